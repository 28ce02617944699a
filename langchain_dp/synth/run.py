"""A run of the synthesizer: from the ledger's plan to released texts. Not thread-safe: its owner holds a lock."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from langchain_dp.accounting import (
    LedgerPlan,
    Neighbors,
    PrivacyBudget,
    PrivacyCertificate,
    PrivacyLedger,
    TextRoundEvent,
)
from langchain_dp.accounting.budget import weak_points
from langchain_dp.ensemble.journal import KeptRun, alone, check_settings, fingerprint, marks
from langchain_dp.ensemble.reservation import affordable
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import ClippedSum, Randomness
from langchain_dp.ports import ScoresNextToken
from langchain_dp.records import PrivateRecords
from langchain_dp.synth import journal as journals
from langchain_dp.synth.journal import SynthesisJournal, WrittenText
from langchain_dp.synth.settings import Design, SynthesisSettings, designed
from langchain_dp.synth.writing import Members, TextWriter


class SynthesisRuns:
    """The one run of a synthesizer, and what of it is released.

    Args:
        engine: The local model.
        settings: Public settings.
        ledger: Ledger to charge.
        budget: Share of it; None is all that is not reserved.
        name: Name of the plan.
        rng: Source of coins and noise.
    """

    def __init__(
        self,
        engine: ScoresNextToken,
        settings: SynthesisSettings,
        *,
        ledger: PrivacyLedger,
        budget: PrivacyBudget | None,
        name: str,
        rng: Randomness,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._ledger = ledger
        self._budget = budget
        self._name = name
        self._rng = rng
        self._journal: SynthesisJournal | None = None
        self._design: Design | None = None
        self._plan: LedgerPlan | None = None

    @property
    def neighbors(self) -> Neighbors:
        """Neighbours of the promise."""
        return self._ledger.budget.neighbors

    def prospect(self, records: int) -> tuple[PrivacyBudget, Design]:
        """Share of the ledger and design that a run over so many records would reserve, or has."""
        if self._design is not None and self._plan is not None:
            return PrivacyBudget(self._plan.epsilon, self._plan.delta, self.neighbors), self._design
        share = affordable(self._ledger, self._budget)
        return share, designed(self._settings, share, records)

    def run(
        self,
        records: PrivateRecords,
        *,
        advance: Callable[[WrittenText], None],
        halted: Callable[[], bool] = lambda: False,
    ) -> list[WrittenText]:
        """Start a run, or take up the one that was started; every released text is told to ``advance``."""
        with alone(self._ledger, self._name):
            self._open(records)
            assert self._journal is not None
            for one in self._journal.written:
                advance(one)
            for one in self._missing(records, halted):
                advance(one)
            return list(self._journal.written)

    def _open(self, records: PrivateRecords) -> None:
        """Reserve the plan, or find it with its journal."""
        asked = {**self._settings.public(), "name": self._name, "model": self._engine.name}
        plan = self._ledger.plan(self._name)
        if plan is None:
            share, design = self.prospect(len(records))
            key = self._rng.randbelow(2**256).to_bytes(32, "big") if not self._rng.private else secrets.token_bytes(32)
            data = fingerprint(marks(records, key), key)
            journal = journals.started(self._ledger, key, settings=asked, design=dataclasses.asdict(design), data=data)
            first = KeptRun.first(journal.fields())
            plan = self._ledger.reserve(
                design.events(), name=self._name, epsilon=share.epsilon, delta=share.delta, journal=first
            )
            journal.kept = KeptRun(plan, plan.journal)
            if plan.journal != first:
                journal = journals.found(self._ledger, plan)  # another process was faster
        else:
            journal = journals.found(self._ledger, plan)
        check_settings(self._name, journal.settings, asked)
        fields = dict(journal.design)
        noise = dict(fields["noise"])
        fields["noise"] = ClippedSum(**{**noise, "event": TextRoundEvent(**noise["event"])})
        self._design = Design(**fields)
        self._plan, self._journal = plan, journal
        self._check_data(records)

    def _check_data(self, records: PrivateRecords) -> None:
        """Other records than before: a round that has begun ends as it stands, and groups cannot be cut anew."""
        assert self._journal is not None
        assert self._design is not None
        now = fingerprint(marks(records, self._journal.key), self._journal.key)
        if now == self._journal.data:
            return
        if self._design.scheme == "groups" and self._journal.written:
            raise PlanError(
                f"The run {self._name!r} was started with other examples, and was cut into groups: it goes on over the "
                "same ones only, in the same order. Give the new run another name= and a budget of its own."
            )
        begun = {one.number for one in self._journal.written}
        there = {(one.number, one.label) for one in self._journal.written}
        missing = [(n, label) for n in sorted(begun) for label in self._settings.labels if (n, label) not in there]
        self._journal.written += [WrittenText(number, label, "", "changed") for number, label in missing]
        self._journal.data = now
        self._journal.save()

    def _missing(self, records: PrivateRecords, halted: Callable[[], bool]) -> Iterator[WrittenText]:
        """Write what is not written yet, round by round, and keep it."""
        journal, design, plan = self._journal, self._design, self._plan
        assert journal is not None
        assert design is not None
        assert plan is not None
        writer = TextWriter(
            self._engine, self._settings.prompts.after, design.noise, candidates=self._settings.candidates,
            chat=self._settings.chat, rng=self._rng,
        )  # fmt: skip
        members = Members(journal.key, slots_of(records, self.neighbors))
        there = {(one.number, one.label) for one in journal.written}
        seen: set[Hashable] = set()
        try:
            for number in range(design.rounds):
                missing = [label for label in self._settings.labels if (number, label) not in there]
                if not missing:
                    continue
                if halted():
                    raise PlanError("The run was cancelled. What was released is kept: invoke again to go on with it.")
                self._charge(plan, design, number)
                drawn = (
                    members.group(number, design.rounds)
                    if design.scheme == "groups"
                    else members.drawn(number, design.noise.event.sampling_probability)
                )
                rows = {name: records.get(name) for name in drawn}
                for label in missing:
                    bodies: dict[Hashable, str] = {
                        (journal.data, name): self._settings.prompts.body([row])
                        for name, row in rows.items()
                        if row["label"] == label
                    }
                    seen.update(bodies)
                    head = self._settings.prompts.described(self._settings.labels[label])
                    tokens = list(writer.tokens(head, self._settings.prompts.tail, bodies))
                    one = WrittenText(number, label, writer.text(tokens), "end" if writer.ended(tokens) else "length")
                    journal.keep(one)
                    yield one
        finally:
            if seen:
                self._engine.forget(*seen)

    def _charge(self, plan: LedgerPlan, design: Design, number: int) -> None:
        """Charge a round before it begins; one that an earlier process has charged is not charged again."""
        event = design.charged(number)
        charged = number + 1 if design.scheme == "rounds" else 1
        most = design.rounds if design.scheme == "rounds" else 1
        if most - plan.remaining(event) < charged:
            plan.spend(event, chain=self._name)

    def released(self) -> list[WrittenText]:
        """Texts released so far."""
        return [] if self._journal is None else [one for one in self._journal.written if one.ended != "changed"]

    def certificate(self) -> PrivacyCertificate:
        """The promise of the run as it stands."""
        plan, design = self._plan, self._design
        if plan is None or design is None:
            raise InvalidParameter("Expected a run to have started. Call invoke(examples) first, or plan(examples).")
        return certified(
            plan, design, self._engine, self._rng,
            "the local model sees the examples; the texts alone leave, and may be shown to anybody and kept",
        )  # fmt: skip


def slots_of(records: PrivateRecords, neighbors: Neighbors) -> dict[str, str]:
    """What a record's coins hang on: its slot where the number of records is public, else its id."""
    counted = neighbors is not Neighbors.ADD_OR_REMOVE_ONE
    return {name: str(slot) if counted else name for slot, name in enumerate(records.ids())}


def certified(
    plan: LedgerPlan, design: Design, engine: ScoresNextToken, rng: Randomness, *notes: str, quick: bool = False
) -> PrivacyCertificate:
    """The promise of a plan of rounds as it stands, with ``notes`` of what leaves."""
    groups = design.scheme == "groups"
    return plan.certificate(
        None if groups else design.charged(0),
        mechanism="exponential mechanism on clipped differences from the public model, token by token",
        model=engine.name,
        private=rng.private,
        reason="" if rng.private else "drawn from not_private_seed: whoever knows the seed can remove the noise",
        notes=(
            *notes,
            "each record is in one of the disjoint groups and pays for that one alone"
            if groups
            else "every record takes part in a round by a secret coin",
            "style and common knowledge of many records come through, what few records hold does not",
            *weak(design, plan.epsilon, plan.delta),
            *getattr(engine, "notes", ()),
        ),
        parameters=parameters(design),
        quick=quick,
    )


def parameters(design: Design) -> dict[str, Any]:
    """What a certificate says of the noise."""
    noise = design.noise
    return {
        "clip": noise.clip,
        "members": noise.members,
        "temperature": noise.temperature,
        "sampling_probability": noise.event.sampling_probability,
        "tokens": noise.event.tokens,
        "rounds": design.rounds,
        "scheme": design.scheme,
    }


def weak(design: Design, epsilon: float, delta: float) -> tuple[str, ...]:
    """Why a promise is weak, if it is."""
    if design.records is not None:
        return weak_points(epsilon, delta, design.records, "records")
    return weak_points(
        epsilon, delta, round(1 / design.noise.event.sampling_probability), "draws that one record is expected in once"
    )
