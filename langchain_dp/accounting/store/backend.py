"""Transactions on the database under a store, one at a time in a process, never over a fork.

One thread runs all pending writes in one transaction. A failing write is undone alone. No write returns before the
synced commit.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from langchain_dp._util import forks
from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp.accounting.store.schema import LedgerKind
from langchain_dp.errors import LedgerError, LedgerUnwritable

BUSY_SECONDS = 30.0

LARGEST_GROUP = 64

T = TypeVar("T")


class Connection(Protocol):
    """A DB-API connection."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class LockUnavailable(Exception):  # no error: the caller words it
    """The lock of a run cannot be taken."""


Together = Callable[["Connection", Sequence[Any]], Any]


@dataclasses.dataclass(eq=False)
class _Write:
    work: Callable[[Connection], Any]
    together: Together | None
    argument: Any
    result: Any = None
    error: Exception | None = None
    settled: bool = False  # whether result and error are final


class Backend(abc.ABC):
    """Transactions on a ledger, or in memory (``path`` None). A given ``ledger_id`` must exist."""

    errors: ClassVar[type[Exception]]  # of the database
    lost_key: ClassVar[str]  # the remedy for a lost or wrong key, a sentence with a placeholder for the key

    def __init__(
        self, path: str | None, kind: LedgerKind, ledger_id: str | None = None, *, reading: bool = False
    ) -> None:
        self.path = path
        self.kind = kind
        self.ledger_id = ledger_id
        self.reading = reading  # whether nothing is ever written
        self._lock = FairSemaphore(1, watched=False)
        self._pending: deque[_Write] = deque()
        self._give_back: Callable[[], None] | None = None
        self._process = self._forking = forks.process()
        self._closed = False
        self._runs: set[str] = set()
        self._connection = self._memory() if path is None else None
        forks.watch(self)

    @abc.abstractmethod
    def _memory(self) -> Connection: ...

    @abc.abstractmethod
    def _find_or_make(self, fill: Callable[[Connection], str]) -> None: ...

    @abc.abstractmethod
    def _open(self, wait: float) -> Connection: ...

    @abc.abstractmethod
    def _begin(self, write: bool, wait: float) -> Connection:
        """Begin a locked transaction. Refuse a ledger that was replaced or lost durability."""

    @abc.abstractmethod
    def _commit(self, connection: Connection, wait: float) -> None: ...

    @staticmethod
    @abc.abstractmethod
    def refusal(error: Exception, path: str | None, wait: float, kind: LedgerKind) -> LedgerError: ...

    @abc.abstractmethod
    def damage(self, connection: Connection, *, pages: bool) -> str:
        """Return damage, or ""."""

    @abc.abstractmethod
    def newest_id(self, connection: Connection) -> int: ...

    @property
    @abc.abstractmethod
    def key_file(self) -> str:
        """Path of the key, never inside the ledger's data."""

    @abc.abstractmethod
    def _hold(self, name: str) -> Callable[[], None]:
        """Take a run's lock and return its release. Death frees it."""

    def begin(self, fill: Callable[[Connection], str], verify: Callable[[Connection], None]) -> None:
        if self.path is None:
            with self.transaction(write=True) as connection:
                self.ledger_id = fill(connection)
            return
        if not self.reading:
            self._find_or_make(fill)
        with self.transaction(write=False) as connection:
            verify(connection)
        if self.reading:
            return
        with self.transaction(write=True) as connection:
            # A real, synced write, so that an unwritable ledger fails here and not at the first release.
            connection.execute("UPDATE ledger SET only_row = only_row")

    @contextlib.contextmanager
    def _exclusive(self, wait: float) -> Iterator[None]:
        give_back = self._lock.take(wait)
        if give_back is None:
            raise LedgerUnwritable(
                f"Expected the {self.kind.name} to be free within {wait:g} s, but other threads kept it. "
                "Nothing was charged: try again, with fewer threads."
            )
        try:
            yield
        finally:
            give_back()

    @contextlib.contextmanager
    def transaction(self, *, write: bool, wait: float | None = None) -> Iterator[Connection]:
        """Run the block in a transaction, rolled back if it raises."""
        wait = BUSY_SECONDS if wait is None else wait
        with self._exclusive(wait), self._transaction(write, wait) as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, write: bool, wait: float) -> Iterator[Connection]:
        try:
            connection = self._begin(write, wait)
            yield connection
            self._commit(connection, wait)
        except self.errors as error:
            self._abandon(drop=True)
            raise self.refusal(error, self.path, wait, self.kind) from error
        except BaseException:
            self._abandon(drop=False)
            raise

    def write(self, work: Callable[[Connection], T], together: Together | None = None, argument: Any = None) -> T:
        """Run ``work`` in a shared transaction, and return its durable result.

        Another thread may run it, and again after an interrupt.
        """
        wait = BUSY_SECONDS
        mine = _Write(work, together, argument)
        self._pending.append(mine)
        while not mine.settled:
            try:
                with self._exclusive(wait):
                    if not mine.settled:
                        if mine not in self._pending:  # the thread that ran it was interrupted
                            self._pending.append(mine)
                        self._write_group(wait)
            except BaseException as error:
                with contextlib.suppress(ValueError):
                    self._pending.remove(mine)
                    raise
                # Another thread runs it already, so only an interrupt may end the wait.
                if not isinstance(error, LedgerUnwritable):
                    raise
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[no-any-return]  # of the caller's work

    def _write_group(self, wait: float) -> None:
        """Run the pending writes. Raise only if none was run, or at an interrupt."""
        group: list[_Write] = []
        ran = False
        failure: Exception | None = None
        try:
            with self._transaction(True, wait) as connection:
                while self._pending and len(group) < LARGEST_GROUP:
                    group.append(self._pending.popleft())
                if len(group) == 1:  # its error ends the transaction
                    group[0].error, group[0].result = None, group[0].work(connection)
                else:
                    for together, members in itertools.groupby(group, operator.attrgetter("together")):
                        self._run_all(connection, together, list(members))
                ran = True
        except Exception as error:
            if not group:
                raise
            failure = error
        except BaseException:  # Ctrl-C
            group = group if ran else []
            failure = LedgerUnwritable(
                f"A thread was interrupted while it wrote charges of several threads to the {self.kind.name} "
                f"{self.path}: they count as spent, whether they were written or not. Release nothing for them."
            )
            raise
        finally:
            for write in group:
                if failure is not None:  # a copy for each thread: an error collects the frames that it passes
                    write.error = failure if len(group) == 1 else type(failure)(*failure.args)
                write.settled = True
            failure = None  # or this frame would keep it alive

    def _run_all(self, connection: Connection, together: Together | None, writes: Sequence[_Write]) -> None:
        """Run writes at once if they can, else each, undone alone if it fails."""
        if together is not None and len(writes) > 1:
            connection.execute("SAVEPOINT member")
            with contextlib.suppress(Exception):  # each raises its own error, below
                result = together(connection, [write.argument for write in writes])
                if result is not None:
                    for write in writes:
                        write.result, write.error = result, None
                    return
            connection.execute("ROLLBACK TO SAVEPOINT member")
        for write in writes:
            connection.execute("SAVEPOINT member")
            try:
                write.error, write.result = None, write.work(connection)
            except Exception as error:
                connection.execute("ROLLBACK TO SAVEPOINT member")
                known = isinstance(error, self.errors)
                own = self.refusal(error, self.path, BUSY_SECONDS, self.kind) if known else error
                write.error = own.with_traceback(None)  # frames of this thread are not for another caller

    @contextlib.contextmanager
    def run_lock(self, name: str) -> Iterator[None]:
        give_back = self._hold_here(name) if self.path is None else self._hold(name)
        try:
            yield
        finally:
            give_back()

    def _hold_here(self, name: str) -> Callable[[], None]:
        with self._exclusive(BUSY_SECONDS):
            if name in self._runs:
                raise LockUnavailable
            self._runs.add(name)
        return functools.partial(self._runs.discard, name)

    def _abandon(self, *, drop: bool) -> None:
        connection = self._connection
        if connection is None or self._process != forks.process():
            return
        failed = False
        try:
            connection.rollback()
        except self.errors:
            failed = True
        if self.path is not None and (drop or failed):
            self._connection = None
            with contextlib.suppress(self.errors):
                connection.close()

    def _connect(self, wait: float) -> Connection:
        if self._closed:
            raise LedgerError(f"The {self.kind.name} is closed. Open it again with {self.kind.opener}.")
        if self._process != forks.process():
            if self.path is None:
                raise LedgerError(
                    f"An in-memory {self.kind.name} was carried into a forked process, where its budget could be "
                    f"spent twice. Share one budget between processes by a file: {self.kind.opener}."
                )
            if self._connection is not None:  # forked by code that runs no fork handlers
                raise LedgerError("The process was forked around Python. Open the ledger again in the child.")
            self._process = forks.process()
        if self._connection is None:
            self._connection = self._open(wait)
        return self._connection

    def close(self) -> None:
        if self._process != forks.process() and self._connection is not None:
            forks.disown(self._connection)
            self._connection, self._closed = None, True
            return
        with self._exclusive(BUSY_SECONDS):
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        self._give_back = self._lock.take()
        self._forking = forks.process()
        if self.path is not None and self._connection is not None and self._process == forks.process():
            connection, self._connection = self._connection, None
            with contextlib.suppress(self.errors):
                connection.close()

    def after_fork(self) -> None:
        if self._forking == forks.process():
            assert self._give_back is not None  # before_fork waited for it
            self._give_back()
        else:
            self._lock = FairSemaphore(1, watched=False)
            self._pending.clear()

    def __del__(self) -> None:
        # No other thread can hold the lock here. Half-built objects may lack it, and modules may be gone at exit.
        try:  # noqa: SIM105  # contextlib may be gone, too
            self.close()
        except Exception:  # noqa: S110  # no caller is left
            pass
