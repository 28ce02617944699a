"""A ledger in a PostgreSQL schema.

The lock of its one row orders writers. A COMMIT whose answer is lost counts as spent. A pooler may stand between,
because each transaction makes its own settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp.accounting.store.backend import BUSY_SECONDS, Backend, Connection, LockUnavailable
from langchain_dp.accounting.store.postgres_schema import make_schema, missing
from langchain_dp.accounting.store.schema import LEDGER, LedgerKind, check_version, of_another_kind
from langchain_dp.errors import InvalidParameter, LedgerCorrupt, LedgerError, LedgerMismatch, LedgerUnwritable

with needs("postgres", "psycopg", why=", which reaches a ledger in PostgreSQL"):
    import psycopg
    from psycopg import conninfo

KEY_FOLDER = "LANGCHAIN_DP_KEYS"
"""Environment variable: folder of keys, for URLs without ``key_file``."""

_SCHEMA = "langchain_dp"
_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
# By default a vanished server is noticed within about a minute.
_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
# Classes of errors: the connection, the role, the database, a deadlock, a full disk, a shutdown, the system.
_OUT_OF_REACH = {"08", "28", "3D", "40", "53", "54", "57", "58"}
_ENCODINGS = ("UTF8", "SQL_ASCII")  # those that store every text unchanged
_GRANTS = (
    "Grant its role what it lacks: USAGE on the schema and SELECT, INSERT, UPDATE on all its tables. For a new ledger "
    "grant CREATE on the database or on an empty schema"
)


class Place:
    """``postgresql://user@host/database?schema=...&key_file=...``, without a password."""

    def __init__(self, url: str) -> None:
        # The URL is not shown before it is known to hold no password.
        try:
            parts = urllib.parse.urlsplit(url)
            options = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
            ours = {name: value for name, value in options if name in ("schema", "key_file")}
            others = [option for option in options if option[0] not in ours]
            rest = urllib.parse.urlencode(others, quote_via=urllib.parse.quote, safe="/")
            server = conninfo.conninfo_to_dict(urllib.parse.urlunsplit(parts._replace(query=rest)))
        except (ValueError, psycopg.Error):
            raise InvalidParameter(
                "Expected the URL of a ledger to be postgresql://user@host/database?schema=name, but it cannot be read."
            ) from None
        if _SECRETS & server.keys():
            raise InvalidParameter(
                "Expected the URL of a ledger to hold no password, since URLs are shown and stored. Give it by "
                "PGPASSFILE or a service."
            )
        self.schema = ours.get("schema", _SCHEMA)
        if not re.fullmatch(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", self.schema):
            raise InvalidParameter(
                f"Expected schema={self.schema!r} to be up to 63 small letters, digits and underscores, and no pg_ at "
                "its beginning."
            )
        self.key_file = ours.get("key_file")
        if self.key_file is not None and not os.path.isabs(self.key_file):
            raise InvalidParameter(f"Expected key_file={self.key_file!r} to be an absolute path.")
        self._server = {**_ALIVE, **server}

    def connect(self, wait: float) -> psycopg.Connection[Any]:
        """Return an autocommit connection."""
        timeout = max(2, math.ceil(min(wait, BUSY_SECONDS)))
        return psycopg.connect(
            conninfo.make_conninfo("", **{"connect_timeout": timeout, **self._server, "client_encoding": "utf8"}),
            autocommit=True,
            prepare_threshold=None,
        )

    @property
    def facts(self) -> str:
        # By the name of the schema: a search path silently leaves out a schema that the role may not use.
        checks = "current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()"
        return f'SELECT ledger_id, tableoid::bigint, {checks} FROM "{self.schema}".ledger'  # noqa: S608  # a checked name

    def begin(self, raw: psycopg.Connection[Any], *, write: bool, wait: float, then: str = "") -> Any:
        kind = "READ COMMITTED" if write else "REPEATABLE READ READ ONLY"
        statements = [
            f"BEGIN ISOLATION LEVEL {kind}",
            # A pooler may give each transaction another session.
            f'SET LOCAL search_path = "{self.schema}", pg_temp',
            f"SET LOCAL lock_timeout = {max(1, math.ceil(wait * 1000))}",
            "SET LOCAL synchronous_commit = on",
            "SET LOCAL extra_float_digits = 1",  # otherwise claims are read rounded, and add up to less
            *([then] if then else []),
        ]
        cursor = raw.execute("; ".join(statements).encode())
        while cursor.nextset():
            pass
        return cursor.fetchone() if then else None


class _Speaking:
    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        return self.raw.execute(sql.replace("?", "%s").encode(), parameters or None)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any:
        cursor = self.raw.cursor()
        cursor.executemany(sql.replace("?", "%s").encode(), parameters)
        return cursor

    def rollback(self) -> None:
        self.raw.rollback()

    def close(self) -> None:
        self.raw.close()


class Postgres(Backend):
    """Transactions on the ledger at a URL."""

    errors = psycopg.Error
    lost_key = "Copy {} from a machine that has it, or from its backup."
    _oid: int | None = None

    def __init__(self, path: str, kind: LedgerKind, ledger_id: str | None = None, *, reading: bool = False) -> None:
        self._place = Place(path)
        super().__init__(path, kind, ledger_id, reading=reading)

    def _memory(self) -> Connection:
        raise AssertionError("a ledger in memory is SQLite's")

    def _find_or_make(self, fill: Callable[[Connection], str]) -> None:
        schema = self._place.schema
        try:
            with contextlib.closing(self._place.connect(BUSY_SECONDS)) as raw:
                lock = f"SELECT pg_advisory_xact_lock({_number(f'schema {schema}')})"
                self._place.begin(raw, write=True, wait=BUSY_SECONDS, then=lock)
                connection = _Speaking(raw)
                there, replica, fsync, whole_pages, encoding = connection.execute(
                    "SELECT to_regnamespace(?) IS NOT NULL, pg_is_in_recovery(), current_setting('fsync'), "
                    "current_setting('full_page_writes'), current_setting('server_encoding')",
                    (f'"{schema}"',),
                ).fetchone()
                if there and _tables(connection, schema):
                    return
                self._check_server(fsync, whole_pages, replica)
                if self.ledger_id is not None:
                    raise LedgerError(
                        f"The {self.kind.name} {self.path} is gone. Restore its schema. A new one would forget its "
                        "spends."
                    )
                if encoding not in _ENCODINGS:
                    raise LedgerUnwritable(
                        f"Expected server_encoding={encoding} of the database of {self.path} to be UTF8, or it could "
                        "not keep every name and journal. Make the database with ENCODING 'UTF8' TEMPLATE template0."
                    )
                if not there:
                    connection.execute(f'CREATE SCHEMA "{schema}"')
                make_schema(connection, schema, self.kind)
                fill(connection)
                self._commit(connection, BUSY_SECONDS)
        except self.errors as error:
            raise self.refusal(error, self.path, BUSY_SECONDS, self.kind) from error

    def _open(self, wait: float) -> Connection:
        raw = self._place.connect(wait)
        connection = _Speaking(raw)
        try:
            self.ledger_id, self._oid = self._checked(connection, wait)
        except BaseException:
            connection.close()
            raise
        return connection

    def _checked(self, connection: _Speaking, wait: float) -> tuple[str, int]:
        kind = kind_at(self._place, connection, wait, str(self.path))
        if kind[0] != self.kind.application_id:
            raise of_another_kind(self.path, kind[0], self.kind) or LedgerCorrupt(
                f"The schema of {self.path} holds no {self.kind.name} of this package. Give another schema."
            )
        check_version(self.path, kind[1], self.kind)
        row = connection.execute(self._place.facts).fetchone()
        if row is None:
            raise LedgerCorrupt(f"The {self.kind.name} {self.path} holds no first row. {self.kind.restore}")
        ledger_id, oid, fsync, whole_pages, replica = row
        self._check_server(fsync, whole_pages, replica)
        if self.ledger_id not in (None, ledger_id):
            raise LedgerError(
                f"The {self.kind.name} {self.path} was replaced by another one. Restore the schema that was there."
            )
        connection.rollback()
        return str(ledger_id), int(oid)

    def _check_server(self, fsync: str, whole_pages: str, replica: bool) -> None:
        """Refuse a server that could forget a charge, or takes none."""
        if replica:
            raise LedgerUnwritable(
                f"The server of the {self.kind.name} {self.path} is a read-only replica, which may lag behind. Connect "
                "to the primary."
            )
        for name, value in (("fsync", fsync), ("full_page_writes", whole_pages)):
            if value != "on":
                raise LedgerUnwritable(
                    f"Expected {name}={value} of the server of the {self.kind.name} {self.path} to be on: without it a "
                    "crash forgets spends. Switch it on."
                )

    def _begin(self, write: bool, wait: float) -> Connection:
        """Retry once over a new connection, because only BEGIN was sent."""
        previous = self._connection
        try:
            return self._begin_over(self._connect(wait), write, wait)
        except self.errors:
            if not isinstance(previous, _Speaking) or not previous.raw.closed:
                raise
        self._abandon(drop=True)
        return self._begin_over(self._connect(wait), write, wait)

    def _begin_over(self, connection: Connection, write: bool, wait: float) -> Connection:
        assert isinstance(connection, _Speaking)
        facts = self._place.facts
        row = self._place.begin(connection.raw, write=write, wait=wait, then=f"{facts} FOR UPDATE" if write else facts)
        if row is None or row[0] != self.ledger_id:
            raise LedgerMismatch(
                f"The {self.kind.name} {self.path} was replaced by another one while it was in use. Nothing was "
                "charged: stop, and restore the schema that was there."
            )
        if row[1] != self._oid:
            raise LedgerError(
                f"The {self.kind.name} {self.path} was replaced while it was in use. Stop, and restore the schema that "
                "was there."
            )
        self._check_server(*row[2:])
        return connection

    def _commit(self, connection: Connection, wait: float) -> None:
        """Commit without a retry, because the outcome may be unknown."""
        assert isinstance(connection, _Speaking)
        try:
            status = connection.raw.execute(b"COMMIT").statusmessage
        except self.errors as error:
            if not connection.raw.closed:
                raise  # refused, so rolled back
            raise LedgerUnwritable(
                f"The connection to the {self.kind.name} {self.path} was lost while a charge was written: it counts as "
                "spent, whether it was or not. Release nothing for it. A new request is charged again."
            ) from error
        if status != "COMMIT":
            raise LedgerUnwritable(
                f"The server of the {self.kind.name} {self.path} rolled the charge back. Nothing was charged."
            )

    @staticmethod
    def refusal(error: Exception, path: str | None, wait: float, kind: LedgerKind) -> LedgerError:
        code = getattr(error, "sqlstate", None) or ""
        diagnosis = getattr(error, "diag", None)
        why = getattr(diagnosis, "message_primary", None) or next(iter(str(error).splitlines()), type(error).__name__)
        name = f"{kind.name} {path}"
        if code == "55P03":
            return LedgerUnwritable(
                f"Expected the {name} to be free within {wait:g} s, but another session held a lock on it. Nothing was "
                "charged: end the session that holds it, then try again."
            )
        if code == "25006":
            return LedgerUnwritable(
                f"The server of the {name} takes no writes: a read-only replica, or set so. Nothing was charged: "
                "connect to the primary."
            )
        if code in ("42P01", "3F000"):
            return LedgerError(
                f"The {name} vanished from its database. Nothing may be released: restore the schema that was there."
            )
        if "statement pooling" in why:
            return LedgerUnwritable(
                f"The pooler before the {name} hands out single statements ({why}). Nothing was charged: set its "
                "pool_mode = transaction, or session."
            )
        if code == "42501":
            return LedgerUnwritable(f"The role of the {name} may not use it ({why}). Nothing was charged. {_GRANTS}.")
        if code in ("22P05", "22021"):
            return LedgerUnwritable(
                f"The database of the {name} cannot keep a text in its encoding ({why}). Nothing was charged: move the "
                "ledger into a database of ENCODING 'UTF8', by a dump."
            )
        if not code or code[:2] in _OUT_OF_REACH:
            return LedgerUnwritable(
                f"The {name} cannot be reached or written ({why}). Nothing was charged: see that its server runs and "
                "takes this role, then try again."
            )
        return LedgerCorrupt(f"The {name} is damaged or not a {kind.name} ({why}). {kind.restore}")

    def damage(self, connection: Connection, *, pages: bool) -> str:
        return missing(connection, self._place.schema, self.kind)

    def newest_id(self, connection: Connection) -> int:
        return int(connection.execute("SELECT newest FROM store").fetchone()[0])

    @property
    def key_file(self) -> str:
        folder = os.environ.get(KEY_FOLDER, "")
        if self._place.key_file is None and not os.path.isabs(folder):
            raise InvalidParameter(
                f"Expected to be told where the key of the {self.kind.name} {self.path} lies, since it must not lie in "
                f"its database: add key_file=/path/of/it to the URL, or name a folder for it in {KEY_FOLDER}."
            )
        return self._place.key_file or os.path.join(folder, f"{self.ledger_id}.key")

    def _hold(self, name: str) -> Callable[[], None]:
        """Take an advisory lock, which ends with the connection."""
        try:
            raw = self._place.connect(BUSY_SECONDS)
            try:
                for_long = "SET LOCAL idle_in_transaction_session_timeout = 0"
                lock = f"SELECT pg_try_advisory_xact_lock({_number(f'run {self.ledger_id} {name}')})"
                row = self._place.begin(raw, write=True, wait=BUSY_SECONDS, then=f"{for_long}; {lock}")
                if not row[0]:
                    raise LockUnavailable
            except BaseException:
                raw.close()
                raise
        except self.errors as error:
            raise self.refusal(error, self.path, BUSY_SECONDS, self.kind) from error
        return raw.close


def kind_at(place: Place, connection: Connection, wait: float, path: str) -> tuple[int, int]:
    """Return mark and version, and leave the transaction open."""
    assert isinstance(connection, _Speaking)
    place.begin(connection.raw, write=False, wait=wait)
    if "store" not in (tables := _tables(connection, place.schema)) and tables:
        raise LedgerCorrupt(f"The schema of {path} holds tables, but no ledger of this package. Give another schema.")
    marks = f'SELECT application_id, version FROM "{place.schema}".store'  # noqa: S608  # a checked name
    mark, version = connection.execute(marks).fetchone() or (0, 0)
    return int(mark), int(version)


def _tables(connection: Connection, schema: str) -> set[str]:
    tables = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(?) AND relkind IN ('r', 'p')"
    return {str(row[0]) for row in connection.execute(tables, (f'"{schema}"',)).fetchall()}


def _number(what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"langchain-dp {what}".encode()).digest()[:8], "big", signed=True)


def is_made(url: str) -> bool:
    with _looking(url) as (connection, place):
        return bool(_tables(connection, place.schema))


def terms_at(url: str) -> tuple[int, Sequence[Any] | None]:
    with _looking(url) as (connection, place):
        if not _tables(connection, place.schema):
            raise InvalidParameter(f"Expected {url} to be a ledger, but nothing is there. Check it.")
        mark, _ = kind_at(place, connection, BUSY_SECONDS, url)
        if mark != LEDGER.application_id:
            return mark, None
        return mark, connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone() or ()


def beside(url: str, name: str) -> str:
    place = Place(url)
    own = {"schema": f"{place.schema}_{name.replace('-', '_').lower()}"}
    if place.key_file is not None:
        own["key_file"] = f"{place.key_file}.{name}"
    parts = urllib.parse.urlsplit(url)
    others = [option for option in urllib.parse.parse_qsl(parts.query, keep_blank_values=True) if option[0] not in own]
    query = urllib.parse.urlencode([*others, *own.items()], quote_via=urllib.parse.quote, safe="/")
    return urllib.parse.urlunsplit(parts._replace(query=query))


def names_beside(url: str) -> list[str]:
    with _looking(url) as (connection, place):
        schemas = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, ?)", (f"{place.schema}_",)
        ).fetchall()
        return [str(schema)[len(place.schema) + 1 :].replace("_", "-").upper() for (schema,) in schemas]


@contextlib.contextmanager
def _looking(url: str) -> Iterator[tuple[Connection, Place]]:
    place = Place(url)
    try:
        with contextlib.closing(place.connect(BUSY_SECONDS)) as raw:
            yield _Speaking(raw), place
    except psycopg.Error as error:
        raise Postgres.refusal(error, url, BUSY_SECONDS, LEDGER) from error
