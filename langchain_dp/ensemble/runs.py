"""Private runs that write text: journal, lock and start.

A run charges before the model sees a record, and stores each outcome before it leaves. A charge whose outcome is lost
pays for no second draw.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Self

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import run_in_executor

from langchain_dp._util import forks
from langchain_dp._util.reprs import safe_repr
from langchain_dp.accounting import LedgerPlan, Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.store.backend import LockUnavailable
from langchain_dp.errors import PlanError, PrivateDataError
from langchain_dp.isolation.run import check_environment
from langchain_dp.mechanisms import Randomness
from langchain_dp.records import Examples, KeepsExamples, PrivateRecords
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, run_redacted

CANCELLED = "The run was cancelled. The draws are kept: invoke again to continue."
TRIES = 5
"""Resumptions without progress, after which a text is abandoned."""
_SHOWN = "<private examples>"

Halted = Callable[[], bool]


@dataclasses.dataclass(repr=False, kw_only=True)
class RunJournal(abc.ABC):
    """Journal of one run, without any record.

    ``key`` draws the run's coins. ``data`` is the records' keyed digest. ``kept`` is the stored state.
    """

    VERSION: ClassVar[int]

    settings: Mapping[str, Any]
    key: bytes
    masked_key: str
    data: str
    plan: LedgerPlan | None = None
    kept: str = ""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the other fields for JSON."""

    @classmethod
    @abc.abstractmethod
    def from_state(cls, fields: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        """Damage raises any builtin error."""

    def text(self) -> str:
        common = {"key": self.masked_key, "settings": dict(self.settings), "data": self.data}
        return json.dumps({"version": self.VERSION, **common, **self.state()})

    def save(self) -> None:
        """Durably replace this object's last state."""
        now = self.text()
        if now != self.kept and self.plan is not None:
            self.plan.save_journal(now, expected=self.kept)
            self.kept = now

    def update(self, **changes: Any) -> None:
        changed = dataclasses.replace(self, **changes)
        changed.save()
        for name in (*changes, "kept"):
            setattr(self, name, getattr(changed, name))

    @classmethod
    def load(cls, ledger: PrivacyLedger, plan: LedgerPlan) -> Self:
        if not plan.journal:
            raise PlanError(
                f"The ledger holds a plan {plan.name!r}, but no journal of its run: it cannot be resumed. Give this "
                "run another name=."
            )
        failure = ""
        try:
            fields = json.loads(plan.journal)
            if fields["version"] != cls.VERSION or not isinstance(fields["data"], str):
                raise ValueError
            common = {
                "settings": dict(fields["settings"]),
                "key": unmasked(ledger, fields["key"]),
                "masked_key": fields["key"],
                "data": fields["data"],
            }
            journal = cls.from_state(fields, common)
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
            failure = type(problem).__name__  # its text may show the journal
        if failure:
            raise PlanError(
                f"Expected the journal of the run {plan.name!r} to be one, but it cannot be read ({failure}). Bring "
                "the ledger's newest copy back, or give the new run another name=."
            )
        journal.plan, journal.kept = plan, plan.journal
        return journal


class PrivateRun:
    """Base of a Runnable's one private run. Its owner holds a lock."""

    def __init__(
        self,
        engine: Any,
        settings: Any,
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
        self._unit_notes: tuple[str, ...] = ()

    @property
    def neighbors(self) -> Neighbors:
        return self._ledger.budget.neighbors

    def _public_settings(self) -> dict[str, Any]:
        return {**self._settings.public(), "name": self._name, "model": self._engine.name}

    def _new_journal(self, records: PrivateRecords) -> dict[str, Any]:
        key = secret_key(self._rng)
        return {
            "settings": self._public_settings(),
            "key": key,
            "masked_key": masked(self._ledger, key),
            "data": self._digest(records, key),
        }

    def _digest(self, records: PrivateRecords, key: bytes) -> str:
        return fingerprint(record_digests(records, key, self._settings.prompts.variables), key)


class RunRunnable(KeepsExamples, Runnable[Examples | None, Any]):
    """Base of these Runnables. Callbacks see neither examples nor their number."""

    name: str
    _working: ClassVar[str]
    _lock: threading.Lock

    def _set_lock(self) -> None:
        self._lock = threading.Lock()
        forks.renew_lock(self)

    @abc.abstractmethod
    def _run(self, records: PrivateRecords, halted: Halted) -> Any:
        """Check ``halted`` before every call."""

    def _execute(self, held: PrivateArgs, config: RunnableConfig | None, halted: Halted = lambda: False) -> Any:
        # Before LangChain's run, so that callbacks see no error about an example.
        records = run_redacted(self._checked, held, READING)
        results: list[Any] = []

        def run(_: str) -> Any:
            results.append(run_redacted(self._locked, PrivateArgs(records, halted), self._working))
            return self._traced(results[0])

        RunnableLambda(run, name=self.get_name()).invoke(_SHOWN, config)
        return results[0]

    def _traced(self, result: Any) -> Any:
        return result

    async def _aexecute(self, held: PrivateArgs, config: RunnableConfig | None) -> Any:
        cancelled = threading.Event()
        try:
            return await run_in_executor(config, self._execute, held, config, cancelled.is_set)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def _locked(self, records: PrivateRecords, halted: Halted) -> Any:
        check_environment()
        with self._lock:
            return self._run(records, halted)

    @safe_repr
    def __repr__(self) -> str:
        return f"{type(self).__name__}(labels={list(self.settings.labels)}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            f"A {type(self).__name__} holds a run and its budget, and cannot be pickled or copied. Construct it again: "
            "with the same name= and ledger= it continues the run."
        )


def secret_key(rng: Randomness) -> bytes:
    return secrets.token_bytes(32) if rng.private else rng.randbelow(2**256).to_bytes(32, "big")


def changed_settings(kept: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    now = json.loads(json.dumps(dict(asked)))
    return sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))


def check_settings(name: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if changed := changed_settings(kept, asked):
        raise PlanError(
            f"The run {name!r} was started with other settings: {', '.join(changed)} changed. Keep the old ones to "
            "go on with it, or give the new run another name=."
        )


@contextlib.contextmanager
def run_lock(ledger: PrivacyLedger, name: str, who: str = "chain") -> Iterator[None]:
    """Keep two processes from resuming a run."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(ledger._store.backend.run_lock(name))
        except LockUnavailable as refused:
            another = who if ledger.path is None else f"process or {who}"
            why = refused.args[0] if refused.args else f"another {another} is at it: wait for it"
            raise PlanError(f"The run {name!r} cannot be taken up, since {why}, or give another name=.") from None
        yield


def masked(ledger: PrivacyLedger, key: bytes) -> str:
    salt = secrets.token_bytes(32)
    return (salt + _mask(ledger, key, salt)).hex()


def unmasked(ledger: PrivacyLedger, text: str) -> bytes:
    both = bytes.fromhex(text)
    if len(both) != 64:
        raise ValueError
    return _mask(ledger, both[32:], both[:32])


def _mask(ledger: PrivacyLedger, key: bytes, salt: bytes) -> bytes:
    """XOR with a pad used once."""
    return bytes(one ^ other for one, other in zip(key, ledger.digest("run key", salt.hex()), strict=True))


def record_digests(records: PrivateRecords, key: bytes, variables: Iterable[str]) -> dict[str, bytes]:
    """Digest ids, labels and ``variables``, which have a stable order."""
    shown = sorted({*variables, "label"})

    def mark(name: str) -> bytes:
        row = json.dumps([name, {each: str(records.get(name)[each]) for each in shown}])
        return hmac.new(key, row.encode(errors="surrogatepass"), hashlib.sha256).digest()

    return {name: mark(name) for name in records.ids()}


def fingerprint(seen: Mapping[str, bytes], key: bytes) -> str:
    return hmac.new(key, b"".join(seen.values()), hashlib.sha256).hexdigest()
