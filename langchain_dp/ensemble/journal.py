"""What a run keeps of itself in its ledger, and that one process at a time goes on with it.

The journal lies in the ledger, beside the charges. So a copy of the ledger, or what a crash leaves of it, holds both as
they were at one moment. Secrets of a run (the key of its coins) are in it under a mask, which the ledger's key gives:
that lies in a file of its own.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.accounting.store.backend import NotHeld
from langchain_dp.errors import PlanError
from langchain_dp.mechanisms import Randomness
from langchain_dp.records import PrivateRecords

CANCELLED = "The run was cancelled. What was drawn is kept: invoke again to go on with it."
"""What a run says that its caller has ended."""
TRIES = 5
"""How often a text is taken up without another token before it is given up: a member may be what ends the process."""


@dataclasses.dataclass(repr=False, kw_only=True)
class RunJournal(abc.ABC):
    """The journal of one run, which the ledger keeps.

    Args:
        plan: Where it is kept; None before the plan is reserved.
        kept: What is kept there now; empty if nothing is.
    """

    plan: LedgerPlan | None = None
    kept: str = ""

    @abc.abstractmethod
    def text(self) -> str:
        """What the ledger holds of it."""

    def save(self) -> None:
        """Write it into the ledger, durably, in place of what this object wrote or read last.

        Raises:
            LedgerError: It cannot be written, or another process has written one, or an older copy stands there.
        """
        now = self.text()
        if now != self.kept and self.plan is not None:
            self.plan.keep(now, instead_of=self.kept)
            self.kept = now


def secret_key(rng: Randomness) -> bytes:
    """Key of a run's own coins, 32 bytes: of the operating system, or of the seed where nothing is private."""
    return secrets.token_bytes(32) if rng.private else rng.randbelow(2**256).to_bytes(32, "big")


def differing(kept: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Names of the settings in which a run differs from what is asked for now."""
    now = json.loads(json.dumps(dict(asked)))
    return sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))


def check_settings(name: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise PlanError unless a run was started with the settings that are asked for now."""
    if changed := differing(kept, asked):
        raise PlanError(
            f"The run {name!r} was started with other settings: {', '.join(changed)} changed. Keep the old ones to "
            "go on with it, or give the new run another name=."
        )


@contextlib.contextmanager
def alone(ledger: PrivacyLedger, name: str, who: str = "chain") -> Iterator[None]:
    """Hold a run for the block. Two that went on with it would each ask for what the other had charged.

    The lock lies where the ledger does: in memory, in an empty file beside its own, or in its database. Whatever its
    holder dies of, it is free then.

    Args:
        ledger: The ledger.
        name: Name of the run.
        who: What goes on with such runs, in a word.

    Raises:
        PlanError: Another process, or another ``who``, is at it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(ledger._store.backend.alone(name))
        except NotHeld as refused:
            another = who if ledger.path is None else f"process or {who}"
            why = refused.args[0] if refused.args else f"another {another} is at it: wait for it"
            raise PlanError(f"The run {name!r} cannot be taken up, since {why}, or give another name=.") from None
        yield


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Say what was expected when it is not there, and show nothing of what is."""
    failure = ""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        failure = type(problem).__name__
    if failure:
        raise PlanError(
            f"Expected {what}, but it cannot be read ({failure}). {remedy}, or give the new run another name=."
        )


def masked(ledger: PrivacyLedger, key: bytes) -> str:
    """A key of 32 bytes as a journal may hold it."""
    salt = secrets.token_bytes(32)
    return (salt + _mask(ledger, key, salt)).hex()


def unmasked(ledger: PrivacyLedger, text: str) -> bytes:
    """The key that :func:`masked` hid; ValueError for what is none."""
    both = bytes.fromhex(text)
    if len(both) != 64:
        raise ValueError
    return _mask(ledger, both[32:], both[:32])


def _mask(ledger: PrivacyLedger, key: bytes, salt: bytes) -> bytes:
    """A key of 32 bytes under a pad that is used for it alone; done twice, it is the key again."""
    return bytes(one ^ other for one, other in zip(key, ledger.digest("run key", salt.hex()), strict=True))


def marks(records: PrivateRecords, key: bytes, variables: Iterable[str]) -> dict[str, bytes]:
    """Keyed hash of each record with its id: tells, to whoever holds the key, whether it is still the same.

    Args:
        records: The records.
        key: Secret key of the run.
        variables: What the template shows of a record, beside its label. Other fields do not count: a set among them
            would be written in another order in each process.
    """
    shown = sorted({*variables, "label"})

    def mark(name: str) -> bytes:
        row = json.dumps([name, {each: str(records.get(name)[each]) for each in shown}])
        return hmac.new(key, row.encode(errors="surrogatepass"), hashlib.sha256).digest()

    return {name: mark(name) for name in records.ids()}


def fingerprint(seen: Mapping[str, bytes], key: bytes) -> str:
    """Keyed hash of all records, in their order."""
    return hmac.new(key, b"".join(seen.values()), hashlib.sha256).hexdigest()
