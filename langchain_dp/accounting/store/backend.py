"""Where a ledger lies, seen from its store: transactions, one at a time in a process, and never one over a fork.

Threads queue here and not in the database. A child of a fork must not use what its parent opened: see ``forks.py``.
A database of its own kind is a subclass that fills in :class:`Backend`'s abstract methods.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from langchain_dp._util import forks
from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp.accounting.store.schema import LedgerKind
from langchain_dp.errors import LedgerError, LedgerUnwritable

BUSY_SECONDS = 30.0
"""How long a spend waits for the ledger's lock: long enough for 64 racers that fsync one after the other."""


class Connection(Protocol):
    """An open connection, as Python's standard for databases has it. Values stand in a statement as question marks."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any:
        """Run one statement and return its cursor: ``fetchone``, ``fetchall``, ``rowcount``, ``description``."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any:
        """Run one statement for each of the parameters."""
        ...

    def rollback(self) -> None:
        """Take back what was not committed."""
        ...

    def close(self) -> None:
        """Give the connection up."""
        ...


class LockUnavailable(Exception):  # no error: whoever asked says it in words of its own
    """A run is somebody else's, or cannot be taken for the reason that is given."""


class Backend(abc.ABC):
    """Transactions on one ledger at ``path``, or on a memory (None) that only this process may use.

    A given ``ledger_id`` must be found there.
    """

    errors: ClassVar[type[Exception]]
    """What the database raises."""

    lost_key: ClassVar[str]
    """Where to find a key that is gone, or not the right one, as a sentence with a place for it."""

    reading = False
    """Whether the ledger is only looked at."""

    def __init__(self, path: str | None, kind: LedgerKind, ledger_id: str | None = None) -> None:
        self.path = path
        self.kind = kind
        self.ledger_id = ledger_id
        self._lock = FairSemaphore(1, watched=False)
        self._give_back: Callable[[], None] | None = None
        self._process = self._forking = forks.process()
        self._closed = False
        self._runs: set[str] = set()
        self._connection = self._memory() if path is None else None
        forks.watch(self)

    @abc.abstractmethod
    def _memory(self) -> Connection:
        """An empty ledger in memory."""

    @abc.abstractmethod
    def _find_or_make(self, fill: Callable[[Connection], str]) -> None:
        """See that a ledger of this kind stands at the path: the one of ``ledger_id`` if known, else a new one.

        No moment exists at which half a ledger is there. ``fill`` writes the one row of a new one.
        """

    @abc.abstractmethod
    def _open(self, wait: float) -> Connection:
        """A connection whose commits are durable when they return, to a ledger of this kind and of a known version.

        Sets ``ledger_id``, and raises LedgerError where another one was expected.
        """

    @abc.abstractmethod
    def _begin(self, write: bool, wait: float) -> Connection:
        """Connect and begin a transaction that has its lock. Refuse a ledger that was replaced or lost durability."""

    @abc.abstractmethod
    def _commit(self, connection: Connection, wait: float) -> None:
        """End it, durably."""

    @staticmethod
    @abc.abstractmethod
    def refusal(error: Exception, path: str | None, wait: float, kind: LedgerKind) -> LedgerError:
        """What an ``error`` of the database means for the ledger at ``path``, after ``wait`` seconds."""

    @abc.abstractmethod
    def damage(self, connection: Connection) -> str:
        """What the database itself finds wrong with what it keeps; empty if nothing."""

    @abc.abstractmethod
    def newest_id(self, connection: Connection) -> int:
        """The highest id that an entry ever had, whether it is still there or not."""

    @property
    @abc.abstractmethod
    def key_file(self) -> str:
        """Where the ledger's key lies: never with the ledger's own data."""

    @abc.abstractmethod
    def _hold(self, name: str) -> Callable[[], None]:
        """Take the lock of a run, for this one holder, and return what gives it back; LockUnavailable if it is not
        free.

        Whatever the holder dies of, the lock is free then.
        """

    def begin(self, fill: Callable[[Connection], str], verify: Callable[[Connection], None]) -> None:
        """Find the ledger or make it, and see that it can be trusted and written, before its first use.

        ``fill`` writes the one row of a new ledger and returns its id. ``verify`` raises LedgerError on wrong contents.
        """
        if self.path is None:
            with self.transaction(write=True) as connection:
                self.ledger_id = fill(connection)
            return
        self._find_or_make(fill)
        with self.transaction(write=False) as connection:
            verify(connection)
        with self.transaction(write=True) as connection:
            # A real, synced write: a ledger that cannot be written must say so here, not at the first release.
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
        """Run the block in one transaction: durable when the block is left, rolled back when it raises.

        It waits ``wait`` seconds for others, by default ``BUSY_SECONDS``. Errors of the database become LedgerErrors.
        """
        wait = BUSY_SECONDS if wait is None else wait
        with self._exclusive(wait):
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

    @contextlib.contextmanager
    def run_lock(self, name: str) -> Iterator[None]:
        """Hold the run of that name for the block, against every other holder."""
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
        """Roll back; after a database error also drop the connection, whose state is no longer certain."""
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
                raise LedgerError("The process was forked around Python. Open the ledger anew in the child.")
            self._process = forks.process()
        if self._connection is None:
            self._connection = self._open(wait)
        return self._connection

    def close(self) -> None:
        """Close the connection. Every later use of this ledger object is refused."""
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
        """Wait for a running transaction and close the connection; see ``forks.py``."""
        self._give_back = self._lock.take()
        self._forking = forks.process()
        if self.path is not None and self._connection is not None and self._process == forks.process():
            connection, self._connection = self._connection, None
            with contextlib.suppress(self.errors):
                connection.close()

    def after_fork(self) -> None:
        """Let transactions start again, in the parent and in the child, where no other thread waits."""
        if self._forking == forks.process():
            assert self._give_back is not None  # before_fork waited for it
            self._give_back()
        else:
            self._lock = FairSemaphore(1, watched=False)

    def __del__(self) -> None:
        # Nobody else can hold the lock here; half-built objects may lack it, and at exit modules are gone one by one.
        try:  # noqa: SIM105  # contextlib may be gone, too
            self.close()
        except Exception:  # noqa: S110  # nobody is left to be told
            pass
