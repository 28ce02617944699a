"""Releases that a ledger keeps: charged once, drawn once, returned again free."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from dp_accounting.dp_event import DpEvent
from langchain_core.load import dumps

from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate, PrivacyLedger
from langchain_dp.accounting.budget import warn_weak_promise, weak_promise_reasons
from langchain_dp.accounting.provenance import MadeWith, ReleaseCost, costs_of_inputs
from langchain_dp.ensemble.reservation import LedgerOrPath, about_run, affordable, check_promise, check_same, ledger_for
from langchain_dp.ensemble.runs import (
    RunJournal,
    check_settings,
    fingerprint,
    masked,
    record_digests,
    run_lock,
    secret_key,
)
from langchain_dp.ensemble.splits import note_ledger
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError
from langchain_dp.mechanisms import NotPrivateSeededRandomness, Randomness, SystemRandomness
from langchain_dp.records import AUTOMATIC, CheckedShards, PrivateRecords, RecordShards, check_records
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, run_redacted

Population = PrivateRecords | CheckedShards
DRAWING = "while a release was drawn"
SEEDED = "the noise comes from a seed, and anybody who knows the seed can remove it"


@dataclasses.dataclass(repr=False, kw_only=True)
class ReleaseJournal(RunJournal):
    """Value of a release, and its first part."""

    VERSION = 1
    value: Any = None
    first: Any = None

    def state(self) -> dict[str, Any]:
        return {"value": self.value, **({} if self.first is None else {"first": self.first})}

    @classmethod
    def from_state(cls, fields: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        return cls(**common, value=fields["value"], first=fields.get("first"))


@dataclasses.dataclass(frozen=True)
class Promise:
    """Ledger, noise source and input costs of one release."""

    ledger: PrivacyLedger
    budget: PrivacyBudget | None
    name: str
    model: str
    rng: Randomness
    costs: tuple[ReleaseCost, ...]

    @classmethod
    def of(
        cls,
        budget: PrivacyBudget | None,
        ledger: LedgerOrPath | None,
        name: str,
        not_private_seed: int | None,
        *public_inputs: Any,
        model: str,
        made_with: MadeWith,
    ) -> Self:
        """Check arguments, and open the ledger."""
        check_promise(budget, ledger, not_private_seed)
        costs = costs_of_inputs(*public_inputs, made_with=made_with, budget=budget, ledger=ledger)
        rng: Randomness = SystemRandomness()
        if not_private_seed is not None:
            rng = NotPrivateSeededRandomness(not_private_seed)
        return cls(ledger_for(budget, ledger), budget, name, model, rng, costs)

    def share(self) -> PrivacyBudget:
        """Return the reserved or affordable budget."""
        plan = self.ledger.plan(self.name)
        if plan is None:
            try:
                return affordable(self.ledger, self.budget)
            except BudgetExceeded:
                plan = self.ledger.plan(self.name)  # of a concurrent process
                if plan is None:
                    raise
        return PrivacyBudget(plan.epsilon, plan.delta, self.ledger.budget.neighbors)

    def release_once(
        self,
        event: DpEvent,
        draw: Callable[..., Any],
        *,
        first: Callable[[Randomness], Any] | None = None,
        records: Population,
        settings: Mapping[str, Any],
        share: PrivacyBudget,
        again: bool = True,
    ) -> Any:
        """Charge the event, then draw and store a value, or return the stored value.

        After a failure in between, the same call draws again for the same charge: nobody saw the first draw. ``first``
        is stored before ``draw``, which may show its value to the caller's own code. ``again``: settings identify the
        release, so a stored value may be returned.
        """
        about = about_run(self.model, records, share.neighbors)
        warn_weak_promise(weak_promise_reasons(share.epsilon, share.delta, about.get("records", about.get("users"))))
        with run_lock(self.ledger, self.name):
            plan = self.ledger.plan(self.name)
            if plan is None:
                key = secret_key(self.rng)
                data, masked_key = _digest(records, key), masked(self.ledger, key)
                journal = ReleaseJournal(settings=dict(settings), key=key, masked_key=masked_key, data=data)
                plan = self.ledger.reserve(
                    [(event, 1)], name=self.name, epsilon=share.epsilon, delta=share.delta, settings=about,
                    journal=journal.text(),
                )  # fmt: skip
            if self.rng.private:
                note_ledger(records, self.ledger)
            journal = ReleaseJournal.load(self.ledger, plan)
            check_same(plan, {}, self.budget or share, "release")
            if journal.data != _digest(records, journal.key):
                raise PlanError(
                    f"The ledger holds a release {self.name!r} from other records. To release these, give another "
                    "name= and a budget of its own. DPPrototypeClassifier.update() adds records to a classifier."
                )
            check_settings(self.name, journal.settings, settings)
            if journal.value is None:
                # An earlier attempt that was charged and ended released nothing, so drawing again is free.
                if plan.remaining(event):
                    plan.spend(event, caller=self.name)
                if first is not None and journal.first is None:
                    journal.update(first=first(self.rng))
                journal.update(value=draw(self.rng, *([] if first is None else [journal.first])))
            elif not again:
                raise PlanError(
                    f"The ledger holds a finished release {self.name!r}, and nothing shows that it is this one. Give "
                    "this one another name=, with a budget of its own."
                )
            return journal.value

    def certificate(
        self, *, mechanism: str, parameters: Mapping[str, float | int | str], notes: Sequence[str] = ()
    ) -> PrivacyCertificate:
        """Include the costs of inputs."""
        plan = self.ledger.plan(self.name)
        assert plan is not None  # release_once reserved it
        found = plan.certificate(
            mechanism=mechanism,
            model=self.model,
            parameters=parameters,
            notes=notes,
            private=self.rng.private,
            reason="" if self.rng.private else SEEDED,
        )
        return found.including(self.costs)


def digest_of(public: Any) -> tuple[str, bool]:
    """Return a digest, and whether it is unambiguous."""
    text = dumps(public)
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", text).encode()).hexdigest()
    unknown = re.findall(r'"not_implemented", "id": \[([^]]*)\]', text)
    return digest, all('"DPPrototypeClassifier"' in path for path in unknown)


def _digest(records: Population, key: bytes) -> str:
    return run_redacted(_digest_of, PrivateArgs(records, key), READING)


def _digest_of(records: Population, key: bytes) -> str:
    if isinstance(records, CheckedShards):
        return fingerprint({"": records.digest}, key)
    digests = record_digests(records, key, ["text"])
    users: dict[str, int] = {}
    marks = {name: users.setdefault(records.user_of(name), len(users)).to_bytes(8, "big") for name in digests}
    seen = {name: value + marks[name] for name, value in digests.items()}
    return fingerprint({**seen, AUTOMATIC: str(records.records_per_user).encode()}, key)


def labelled_population(examples: PrivateArgs, labels: Sequence[str]) -> Population:
    [given] = examples.values
    return given.labelled(labels) if isinstance(given, RecordShards) else labelled_records(examples, labels)


def labelled_records(examples: PrivateArgs, labels: Sequence[str]) -> PrivateRecords:
    """Return one or more labelled records."""
    [given] = examples.values
    records = PrivateRecords(given)
    check_records(records, labels, ["text"], protects_users=True)
    if not len(records):
        raise InvalidParameter("Expected at least one example. Give mappings with text and label.")
    return records


def check_encoded(examples: PrivateArgs, encoded: bool) -> None:
    """Refuse shards for a model, whose operator each worker would query."""
    if isinstance(examples.values[0], RecordShards) and not encoded:
        raise InvalidParameter(
            "Expected an encoder to read RecordShards, not a model. Leave model= out, or give a sample of the records."
        )
