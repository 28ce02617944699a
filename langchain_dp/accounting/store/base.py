"""Common store of ledgers."""

from __future__ import annotations

import abc
import contextlib
import datetime
import itertools
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from langchain_dp._util import forks, validate
from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.accounting.store.key_file import bound_key, digest, new_key
from langchain_dp.accounting.store.schema import LedgerKind
from langchain_dp.accounting.store.sqlite import SQLite
from langchain_dp.errors import InvalidParameter, LedgerCorrupt

_PAGE = 500
_SCHEMES = ("postgresql://", "postgres://")
_LIKE_A_URL = re.compile(r"[a-z][a-z0-9+.-]*://|postgres[a-z0-9+]*:", re.IGNORECASE)


def backend_at(path: str | os.PathLike[str] | None, kind: LedgerKind, ledger_id: str | None = None) -> Backend:
    if path == ":memory:":
        raise InvalidParameter("Expected path=':memory:' to be a path of a file, or None for a ledger in memory.")
    if is_url(path):
        from langchain_dp.accounting.store.postgres import Postgres

        return Postgres(str(path), kind, ledger_id)
    return SQLite(None if path is None else file_at(path), kind, ledger_id)


def file_at(path: str | os.PathLike[str]) -> str:
    """Return the real path, so that a later chdir or symlink changes nothing."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidParameter(
            f"Expected path{validate.shown(path)} to be the path of a ledger's file, or None for a ledger in memory. "
            "Write PrivacyLedger(PrivacyBudget(3.0), 'privacy.ledger')."
        )
    name = os.path.expanduser(os.fsdecode(path))
    if "\0" in name:
        raise InvalidParameter("Expected the path of a ledger to hold no NUL character, but it does. Remove it.")
    return os.path.realpath(name)


def is_url(path: object) -> bool:
    """Return whether ``path`` is a PostgreSQL URL. Refuse other URLs without showing them."""
    postgres: bool = isinstance(path, str) and path.startswith(_SCHEMES)
    if not postgres and isinstance(path, str) and _LIKE_A_URL.match(path):
        raise InvalidParameter(
            "Expected a ledger's place to be the path of a file, or a URL that begins with postgresql://, but it is "
            "another URL. Write ./ before it if it is a file."
        )
    return postgres


def is_there(path: str | os.PathLike[str]) -> bool:
    if is_url(path):
        from langchain_dp.accounting.store.postgres import is_made

        return is_made(str(path))
    return os.path.exists(file_at(path))


class LedgerStore(abc.ABC):
    """Durable state of one ledger."""

    _charges: ClassVar[str]  # word for entries in messages
    _wrong: ClassVar[tuple[str, str]]  # SQL that counts totals unlike the sum of their entries, and a word for them
    _wrong_since: ClassVar[str] = ""  # the same, for totals and entries since the last check. Empty if there is none
    _orphaned: ClassVar[str]  # SQL condition on an entry that belongs to nothing

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._key: bytes | None = None
        self._newest = (0, "")  # id and time of an entry
        self._lock = threading.Lock()
        forks.renew_lock(self)
        try:
            backend.begin(self._fill, self._verify)
            self._opened()
        except BaseException:
            backend.close()
            raise

    @property
    def path(self) -> str | None:
        return self.backend.path

    @property
    def ledger_id(self) -> str:
        return str(self.backend.ledger_id)

    @contextlib.contextmanager
    def read(self, wait: float | None = None) -> Iterator[Connection]:
        """Read, and refuse an older copy than this process has seen."""
        with self.backend.transaction(write=False, wait=wait) as connection:
            self._remember(self.check_newest(connection))
            yield connection

    def close(self) -> None:
        self.backend.close()

    @abc.abstractmethod
    def _terms(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _check_terms(self, connection: Connection) -> None: ...

    @abc.abstractmethod
    def _check_totals(self, connection: Connection, entries: int) -> None: ...

    def _opened(self) -> None:  # noqa: B027  # not every store needs more
        ...

    def _fill(self, connection: Connection) -> str:
        ledger_id = uuid.uuid4().hex
        row = {"only_row": 1, "ledger_id": ledger_id, "time": now(), "key_check": b"", **self._terms()}
        connection.execute(*_insert("ledger", row))
        return ledger_id

    def verify(self) -> None:
        with self.read() as connection:
            self._verify(connection, whole=True)

    def _checked(self, connection: Connection) -> int:
        return 0

    def _verify(self, connection: Connection, *, whole: bool = False) -> None:
        before = self._checked(connection)
        since = 0 if whole else before
        if damage := self.backend.damage(connection, pages=not since):
            raise self.damaged(damage)
        self._check_terms(connection)
        wrong = connection.execute(self._wrong_since, (before,)).fetchone()[0] if before else 0
        if not since:
            wrong += connection.execute(self._wrong[0]).fetchone()[0]
        if wrong:
            raise self.damaged(f"{wrong} {self._wrong[1]} do not equal the sum of their {self._charges}")
        entries, newest, orphans = connection.execute(
            f"SELECT count(*), coalesce(max(id), ?), count(*) FILTER (WHERE {self._orphaned}) FROM entries "  # noqa: S608  # no value in it
            "WHERE id > ?",
            (since, since),
        ).fetchone()
        entries += since
        # Ids are handed out without gaps, and the database remembers the last one.
        handed_out = self.backend.newest_id(connection)
        if entries != newest or newest != handed_out or orphans:
            raise self.damaged(f"of {max(newest, handed_out)} {self._charges} {entries - orphans} are left")
        self._check_totals(connection, entries)
        self._remember(self.check_newest(connection))

    def damaged(self, what: str) -> LedgerCorrupt:
        kind = self.backend.kind
        return LedgerCorrupt(f"The {kind.name} {self.path} is damaged: {what}. {kind.restore}")

    def key(self) -> bytes:
        if self._key is None:
            if self.path is None:
                self._key = new_key()
            else:
                backend = self.backend
                file = backend.key_file
                self._key = backend.write(
                    lambda connection: bound_key(connection, file, self.ledger_id, backend.kind.name, backend.lost_key)
                )
        return self._key

    def digest(self, domain: str, text: str) -> bytes:
        return digest(self.key(), domain, text)

    def check_newest(self, connection: Connection) -> tuple[int, str] | None:
        """Refuse a ledger without the newest entry that this process has seen. Return its newest.

        An older copy may reuse the id, so the time must match.
        """
        rows = connection.execute(
            "SELECT id, time FROM entries WHERE id = ? OR id = (SELECT max(id) FROM entries) ORDER BY id",
            (self._newest[0],),
        ).fetchall()
        entries = [(int(number), str(time)) for number, time in rows]
        if self._newest[0] and self._newest not in entries:
            raise self.forgotten()
        return entries[-1] if entries else None

    def forgotten(self) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"The {self.backend.kind.name} {self.path} forgot entries that this process has seen: an older copy was "
            "put in its place. Restore the newest copy. Until then nothing may be released."
        )

    def _enter(self, connection: Connection, time: str, *charges: Mapping[str, Any]) -> tuple[int, str]:
        statement, values = _insert("entries", *({"time": time, **charge} for charge in charges))
        rows = connection.execute(
            f"{statement} RETURNING id, (SELECT seen.time FROM entries AS seen WHERE seen.id = ?)",  # noqa: S608  # names only
            (*values, self._newest[0]),
        ).fetchall()
        ids = [int(number) for number, _ in rows]
        if min(ids) <= self._newest[0] or (rows[0][1] or "") != self._newest[1]:  # clocks may be coarse
            raise self.forgotten()
        return max(ids), time

    def _remember(self, newest: tuple[int, str] | None) -> bool:
        """Remember a committed entry. A rolled-back one would give its id away."""
        if newest is None:
            return False
        with self._lock:  # threads of one commit come at once, and an older entry must not win
            self._newest = max(self._newest, newest)
        return True

    def _rows_after(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        last = 0
        while True:
            with self.read() as connection:
                rows = connection.execute(
                    f"{query} AND entries.id > ? ORDER BY entries.id LIMIT ?", (*parameters, last, _PAGE)
                ).fetchall()
            yield from rows
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]


def rows_of(connection: Connection, query: str, keys: Sequence[bytes]) -> Iterator[Any]:
    """Yield the rows of ``query``, which ends with the column of the keys, a page of keys at a time."""
    for start in range(0, len(keys), _PAGE):
        batch = keys[start : start + _PAGE]
        yield from connection.execute(f"{query} IN ({','.join('?' * len(batch))})", batch)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def _insert(table: str, *rows: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    columns = ", ".join(f'"{column}"' for column in rows[0])  # user is a word of SQL's own
    marks = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    return f"INSERT INTO {table} ({columns}) VALUES {marks}", tuple(itertools.chain(*(row.values() for row in rows)))  # noqa: S608  # names only
