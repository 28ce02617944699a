"""A ledger in PostgreSQL: what is refused, what a lost connection means, and who may be killed when."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from fakes.forked import end_of
from fakes.postgres import Server

from langchain_dp import PrivacyBudget
from langchain_dp.accounting import MetricLedger, NoisyMaxEvent, PrivacyLedger, Quotas
from langchain_dp.accounting.metric import Owner
from langchain_dp.accounting.store import postgres as dialect
from langchain_dp.audit.report import report
from langchain_dp.ensemble.runs import run_lock
from langchain_dp.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerUnwritable,
    PlanError,
)

BUDGET = PrivacyBudget(8.0, 1e-5)
VOTE = NoisyMaxEvent(4.0, 0.05)
MOST = 4000
SPENDERS = 4
URL = "postgresql://user@127.0.0.1:1/database"


@pytest.fixture
def url(postgres: Server, tmp_path: pathlib.Path) -> str:
    """A ledger with a plan, of which 3 are used."""
    made = postgres.fresh(tmp_path)
    with PrivacyLedger(BUDGET, made) as ledger:
        ledger.reserve([(VOTE, MOST)], name="p", delta=9e-6).spend(VOTE, 3)
    return made


def schema_of(url: str) -> str:
    return dialect.Place(url).schema


def left(ledger: PrivacyLedger) -> int:
    return ledger.plan("p").remaining(VOTE)


def used(url: str) -> int:
    with PrivacyLedger(BUDGET, url) as ledger:  # opening checks that counts and entries agree
        assert sum(entry.count for entry in ledger.entries()) == MOST - left(ledger)
        return MOST - left(ledger)


def spend(ledger: PrivacyLedger) -> None:
    ledger.plan("p").spend(VOTE)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("postgresql://user:hunter2@host/db", "hold no password"),
        ("postgresql://host/db?password=hunter2", "hold no password"),
        ("postgresql://host/db?hunter2=1", "cannot be read"),
        ("postgresql://host:hunter2/db", "cannot be read|cannot be reached"),
        (f"{URL}?schema=a;drop", "small letters"),
        (f"{URL}?schema=pg_ledger", "no pg_"),
        (f"{URL}?key_file=here.key", "absolute"),
        (URL, "cannot be reached"),
    ],
)
def test_a_wrong_url_is_refused_and_not_shown(wrong: str, says: str) -> None:
    """If it breaks, a password stands in errors, SQL comes in by a name, or a server that is down looks damaged."""
    for opened in (lambda: PrivacyLedger(BUDGET, wrong), lambda: MetricLedger.open(wrong), lambda: report(wrong)):
        with pytest.raises((InvalidParameter, LedgerUnwritable), match=says) as refused:
            opened()
        if "password" in says:
            assert "hunter2" not in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_could_forget_is_refused(postgres: Server, url: str, setting: str) -> None:
    """If it breaks, a crash of the server takes back charges of what was answered."""
    with PrivacyLedger(BUDGET, url) as ledger:
        postgres.ask(f"ALTER SYSTEM SET {setting} = off")
        try:
            wait_for(postgres, setting, "off")
            for use in (lambda: spend(ledger), lambda: PrivacyLedger(BUDGET, url)):
                with pytest.raises(LedgerUnwritable, match=f"{setting}=off.*Switch it on"):
                    use()
        finally:
            postgres.ask(f"ALTER SYSTEM RESET {setting}")
            wait_for(postgres, setting, "on")
        spend(ledger)
    assert used(url) == 4


def wait_for(postgres: Server, setting: str, value: str) -> None:
    postgres.ask("SELECT pg_reload_conf()")
    while postgres.ask(f"SHOW {setting}") != [(value,)]:
        time.sleep(0.005)


def test_a_replica_is_refused(postgres: Server, url: str, tmp_path: pathlib.Path) -> None:
    """If it breaks, a lagging copy says that more is left than is."""
    standby = Server(standby_of=postgres)
    try:
        there = url.replace(f":{postgres.port}/", f":{standby.port}/")
        for path in (there, standby.fresh(tmp_path)):
            with pytest.raises((LedgerUnwritable, InvalidParameter), match=r"is a read-only replica.*the primary"):
                PrivacyLedger(BUDGET, path)
    finally:
        standby.close()


def test_a_role_that_may_not_write_is_refused(postgres: Server, url: str) -> None:
    """If it breaks, a spend that was never written is answered."""
    read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(LedgerUnwritable, match="takes no writes"):
        PrivacyLedger(BUDGET, read_only)
    assert used(url) == 3


def test_charges_are_synced_whatever_the_session_says(url: str) -> None:
    """If it breaks, a setting of the role or a pooler lets a crash forget the last charges."""
    with (
        PrivacyLedger(BUDGET, f"{url}&options=-c%20synchronous_commit%3Doff") as ledger,
        ledger._store.backend.transaction(write=True) as connection,
    ):
        assert connection.execute("SELECT current_setting('synchronous_commit')").fetchone() == ("on",)


def _drop(postgres: Server, schema: str) -> None:
    postgres.ask(f"DROP SCHEMA {schema} CASCADE")


def _swap(postgres: Server, schema: str) -> None:
    """Put another ledger, with the same plan, in its place."""
    place = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres?schema={schema}_other"
    with PrivacyLedger(BUDGET, place) as other:
        other.reserve([(VOTE, MOST)], name="p")
    _drop(postgres, schema)
    postgres.ask(f"ALTER SCHEMA {schema}_other RENAME TO {schema}")


def _restore(postgres: Server, schema: str) -> None:
    """Put a copy in its place, as a restored dump is one."""
    postgres.ask(f"ALTER TABLE {schema}.ledger RENAME TO old")
    postgres.ask(f"CREATE TABLE {schema}.ledger AS SELECT * FROM {schema}.old")


@pytest.mark.parametrize(
    ("harm", "kind", "says"),
    [
        (_drop, LedgerError, "vanished"),
        (_swap, LedgerMismatch, "replaced by another one"),
        (_restore, LedgerError, "replaced while it was in use"),
    ],
)
def test_a_replaced_schema_is_refused(
    postgres: Server, url: str, harm: Callable[[Server, str], None], kind: type[LedgerError], says: str
) -> None:
    """If it breaks, spends go into a ledger that nobody will ever read again."""
    with PrivacyLedger(BUDGET, url) as ledger:
        plan = ledger.plan("p")
        harm(postgres, schema_of(url))
        for use in (lambda: plan.spend(VOTE), lambda: plan.remaining(VOTE)):
            with pytest.raises(kind, match=says):
                use()


def test_an_older_copy_is_refused(postgres: Server, url: str) -> None:
    """If it breaks, a standby that lost the last charges, or a restored dump, is spent from a second time."""
    schema = schema_of(url)
    with PrivacyLedger(BUDGET, url) as ledger:
        for _ in range(2):
            spend(ledger)
        with psycopg.connect(postgres.conninfo) as raw:  # as if the server had come back without the last one
            raw.execute("SET session_replication_role = replica")
            raw.execute(f"DELETE FROM {schema}.entries WHERE id = 3")
            raw.execute(f"UPDATE {schema}.items SET used = 4")
            raw.execute(f"UPDATE {schema}.store SET newest = 2")
        with pytest.raises(LedgerCorrupt, match="older copy"):
            spend(ledger)
    assert used(url) == 4


def test_other_tables_and_other_kinds_are_refused(postgres: Server, url: str, tmp_path: pathlib.Path) -> None:
    """If it breaks, a ledger is made among somebody's tables, or one kind is read as the other."""
    with pytest.raises(
        LedgerMismatch, match=r"to be a metric ledger, of MetricLedger\(limit, path\), but it is a ledger"
    ):
        MetricLedger(3.0, url)
    with pytest.raises(LedgerMismatch, match="belongs to the budget"):
        PrivacyLedger(PrivacyBudget(1.0, 1e-5), url)
    taken = postgres.fresh(tmp_path)
    postgres.ask(f"CREATE SCHEMA {schema_of(taken)} CREATE TABLE cats (name text)")
    for use in (lambda: PrivacyLedger(BUDGET, taken), lambda: report(taken)):
        with pytest.raises(LedgerCorrupt, match="Give another schema"):
            use()
    for use in (lambda: MetricLedger.open(postgres.fresh(tmp_path)), lambda: report(postgres.fresh(tmp_path))):
        with pytest.raises(InvalidParameter, match="nothing is there"):
            use()
    made = postgres.fresh(tmp_path)
    postgres.ask(f"CREATE SCHEMA {schema_of(made)}")  # by an administrator, for a role that may not make one
    PrivacyLedger(BUDGET, made).close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET used = used - 1",
        "UPDATE items SET used = 4001",
        "UPDATE items SET max_count = 10000",
        "UPDATE plans SET epsilon = 0",
        "DELETE FROM entries",
        "DELETE FROM items",
        "UPDATE entries SET count = 1",
        "UPDATE store SET newest = 0",
        "DELETE FROM store",
        "TRUNCATE entries",
        "TRUNCATE ledger, store, items, checked, plans, journals, entries, forgotten, answers, quotas",
        "UPDATE quotas SET used = used - 1",
        "UPDATE quotas SET used = 4",
        "UPDATE quotas SET most = 10000",
        "UPDATE quotas SET user_id = 'another'",
        "DELETE FROM quotas",
        "TRUNCATE quotas",
    ],
)
def test_the_database_itself_refuses_refunds_and_edits(postgres: Server, url: str, statement: str) -> None:
    """If it breaks, a plain SQL statement gives budget back, or refills a user's share."""
    with PrivacyLedger(BUDGET, url) as ledger:
        shared = ledger.reserve([(VOTE, 10)], name="shared", quotas=Quotas(default=3))
        shared.spend(VOTE, 2, user_id="a")
    with psycopg.connect(postgres.conninfo) as raw:
        raw.execute(f"SET search_path = {schema_of(url)}")
        with pytest.raises(psycopg.errors.IntegrityError):
            raw.execute(statement)
    with PrivacyLedger(BUDGET, url) as ledger:
        assert (left(ledger), ledger.plan("shared").used_by()) == (MOST - 3, {"a": 2})


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("ALTER TABLE items DISABLE TRIGGER no_refund", "no_refund on items"),
        ("DROP TRIGGER never_emptied ON entries", "never_emptied on entries"),
        ("DROP TRIGGER number_entries ON entries", "number_entries on entries"),
        ("ALTER TABLE journals SET UNLOGGED", "journals is not logged"),
    ],
)
def test_a_ledger_without_its_guards_is_refused(postgres: Server, url: str, harm: str, says: str) -> None:
    """If it breaks, a ledger whose rules were switched off is trusted."""
    with psycopg.connect(postgres.conninfo) as raw:
        raw.execute(f"SET search_path = {schema_of(url)}")
        raw.execute(harm)
    with pytest.raises(LedgerCorrupt, match=says):
        PrivacyLedger(BUDGET, url)


def test_a_metric_account_cannot_pass_its_limit_by_sql(postgres: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, a rule that asks the ledger's row lets an account above its limit."""
    url = postgres.fresh(tmp_path)
    with MetricLedger(3.0, url) as ledger, psycopg.connect(postgres.conninfo, autocommit=True) as raw:
        ledger.spend(1.0, [Owner("d", "u")], table="t")
        raw.execute(f"SET search_path = {schema_of(url)}")
        for statement in (
            "UPDATE accounts SET spent = 3000000001",
            "UPDATE accounts SET spent = 0",
            "INSERT INTO accounts (whose, hash, spent) VALUES ('user', '\\x00', 3000000001)",
            "UPDATE ledger SET metric = 'other'",
        ):
            with pytest.raises(psycopg.errors.IntegrityError):
                raw.execute(statement)


def test_a_commit_that_took_back_is_no_charge(url: str) -> None:
    """If it breaks, a transaction that the server gave up counts as written, and is answered."""
    with PrivacyLedger(BUDGET, url) as ledger:
        with (
            pytest.raises(LedgerUnwritable, match="rolled the charge back"),
            ledger._store.backend.transaction(write=True) as connection,
            contextlib.suppress(psycopg.Error),
        ):
            connection.execute("SELECT 1 / 0")
        spend(ledger)
    assert used(url) == 4


def test_a_server_that_shows_few_digits_takes_nothing_off_a_claim(postgres: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, claims are read as less than they are, and more plans fit into a budget than may."""
    place = f"{postgres.fresh(tmp_path)}&options=-c%20extra_float_digits%3D-15"
    with PrivacyLedger(BUDGET, place) as ledger:
        plan = ledger.reserve([(VOTE, 300)], name="p", epsilon=2.4999, delta=1.4999e-6)
        assert plan.reserved() == (2.4999, 1.4999e-6)
        assert ledger.plans()[0].reserved() == (2.4999, 1.4999e-6)


def test_ids_have_no_gaps_after_a_spend_that_was_taken_back(url: str) -> None:
    """If it breaks, every ledger that ever refused something looks damaged."""
    with PrivacyLedger(BUDGET, url) as ledger:
        store = ledger._store
        with contextlib.suppress(ZeroDivisionError), store.backend.transaction(write=True) as connection:
            store._enter(connection, "", {"item": 1, "count": 1, "caller": ""})
            raise ZeroDivisionError
        spend(ledger)
        assert [entry.id for entry in ledger.entries()] == [1, 2]
    assert used(url) == 4


def test_the_key_lies_where_it_is_said_and_never_in_the_database(
    postgres: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, whoever has a dump can test guesses, or a second machine makes a key of its own."""
    url = postgres.fresh(tmp_path)
    bare = url.partition("&")[0]
    monkeypatch.delenv(dialect.KEY_FOLDER, raising=False)
    with PrivacyLedger(BUDGET, bare) as ledger:
        with pytest.raises(InvalidParameter, match=r"key_file=.*LANGCHAIN_DP_KEYS"):
            ledger.digest("a", "b")
        monkeypatch.setenv(dialect.KEY_FOLDER, str(tmp_path))
        said = ledger.digest("a", "b")
        assert ledger._store.backend.key_file == str(tmp_path / f"{ledger._store.ledger_id}.key")
    (tmp_path / f"{ledger._store.ledger_id}.key").rename(tmp_path / f"{schema_of(url)}.key")
    with PrivacyLedger(BUDGET, url) as ledger:
        assert ledger.digest("a", "b") == said
    (tmp_path / f"{schema_of(url)}.key").unlink()
    with PrivacyLedger(BUDGET, url) as ledger, pytest.raises(LedgerCorrupt, match="Copy it from a machine"):
        ledger.digest("a", "b")


def test_one_process_at_a_time_goes_on_with_a_run(url: str) -> None:
    """If it breaks, two machines go on with one run, and each is charged for what the other draws."""
    with PrivacyLedger(BUDGET, url) as one, PrivacyLedger(BUDGET, url) as two:
        with run_lock(one, "run"):
            with (
                pytest.raises(PlanError, match="another process or optimizer is at it"),
                run_lock(two, "run", "optimizer"),
            ):
                pass
            with run_lock(two, "other run"):
                pass
        with run_lock(two, "run"):
            pass


def test_a_report_reads_and_changes_nothing(postgres: Server, url: str) -> None:
    """If it breaks, whoever only looks at a ledger writes to it, or cannot look."""
    written = f"SELECT xmin::text FROM {schema_of(url)}.ledger"
    before = postgres.ask(written)
    found = report(url)
    assert (found.file, found.unit, found.budget) == (schema_of(url), "epsilon", (8.0, 1e-5))
    assert postgres.ask(written) == before


class Harmed:
    """A connection to which harm comes at one statement, before or after the server has carried it out."""

    def __init__(self, raw: Any, statement: bytes, after: bool, harm: Callable[[Any], object]) -> None:
        self._raw, self._statement, self._after, self._harm = raw, statement, after, harm

    def execute(self, query: bytes, *given: Any) -> Any:
        if not query.startswith(self._statement):
            return self._raw.execute(query, *given)
        done = self._raw.execute(query, *given) if self._after else None
        self._harm(self._raw)
        return done if self._after and not self._raw.closed else self._raw.execute(query, *given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def harm(ledger: PrivacyLedger, statement: bytes, after: bool, how: Callable[[Any], object]) -> None:
    connection: Any = ledger._store.backend._connection
    connection.raw = Harmed(connection.raw, statement, after, how)


every_step = pytest.mark.parametrize(
    ("statement", "after"),
    [(name, after) for name in (b"BEGIN", b"UPDATE items", b"INSERT INTO", b"COMMIT") for after in (False, True)],
)


@pytest.mark.parametrize(("statement", "after"), [pair for pair in every_step.args[1] if pair[0] != b"BEGIN"])
def test_a_lost_connection_is_raised_and_never_tried_again(url: str, statement: bytes, after: bool) -> None:
    """If it breaks, a charge whose outcome nobody knows is taken for none, or is written twice."""
    with PrivacyLedger(BUDGET, url) as ledger:
        plan = ledger.plan("p")
        harm(ledger, statement, after, lambda raw: raw.close())
        unknown = statement == b"COMMIT"
        with pytest.raises(LedgerUnwritable, match="counts as spent" if unknown else "Nothing was charged") as lost:
            plan.spend(VOTE)
        assert ("Nothing was charged" in str(lost.value)) is not unknown
        plan.spend(VOTE)  # over a new connection
    assert used(url) == (5 if unknown and after else 4)


@pytest.mark.parametrize("after", [False, True])
def test_a_connection_that_is_gone_when_a_charge_begins_is_made_anew(url: str, after: bool) -> None:
    """If it breaks, a charge fails of which nothing was written yet, and the caller has to ask once more."""
    with PrivacyLedger(BUDGET, url) as ledger:
        assert left(ledger) == MOST - 3
        harm(ledger, b"BEGIN", after, lambda raw: raw.close())
        spend(ledger)
    assert used(url) == 4


def _end_session(server: Server, ledger: PrivacyLedger) -> None:
    pid = ledger._store.backend._connection.raw.info.backend_pid  # type: ignore[union-attr]  # of PostgreSQL
    server.ask(f"SELECT pg_terminate_backend({pid}, 10000)")


def _wait_idle(server: Server, ledger: PrivacyLedger) -> None:
    pid = ledger._store.backend._connection.raw.info.backend_pid  # type: ignore[union-attr]  # as above
    while server.ask(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"):
        pass


def _restart(server: Server, _: PrivacyLedger) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize(
    ("options", "gone"),
    [("", _end_session), ("&options=-c%20idle_session_timeout%3D50", _wait_idle), ("", _restart)],
    ids=["ended by an administrator", "idle for too long", "server restarted"],
)
def test_a_session_that_ended_between_two_charges_is_made_anew(
    mortal: Server, tmp_path: pathlib.Path, options: str, gone: Callable[[Server, PrivacyLedger], None]
) -> None:
    """If it breaks, the first query after each quiet hour or restart fails."""
    url = mortal.fresh(tmp_path)
    with PrivacyLedger(BUDGET, url) as ledger:
        ledger.reserve([(VOTE, MOST)], name="p")
    with PrivacyLedger(BUDGET, url + options) as ledger:
        spend(ledger)
        gone(mortal, ledger)
        spend(ledger)
        gone(mortal, ledger)
        assert left(ledger) == MOST - 2


def test_a_role_without_permission_is_told_what_it_lacks(postgres: Server, url: str, tmp_path: pathlib.Path) -> None:
    """If it breaks, a missing GRANT is reported as a ledger that vanished, and somebody restores a backup over it."""
    schema = schema_of(url)
    postgres.ask("DROP ROLE IF EXISTS clerk")
    postgres.ask("CREATE ROLE clerk LOGIN")
    clerk = url.replace("postgres@", "clerk@")
    lacks_schema = "permission denied for schema.*Grant its role.*USAGE on the schema"
    lacks_table = "permission denied for table.*SELECT, INSERT, UPDATE on all its tables"
    try:
        for use in (lambda: PrivacyLedger(BUDGET, clerk), lambda: report(clerk)):
            with pytest.raises(LedgerUnwritable, match=lacks_schema):
                use()
        postgres.ask(f"GRANT USAGE ON SCHEMA {schema} TO clerk")
        with pytest.raises(LedgerUnwritable, match=lacks_table):
            PrivacyLedger(BUDGET, clerk)
        postgres.ask(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO clerk")
        with PrivacyLedger(BUDGET, clerk) as ledger:
            spend(ledger)
            postgres.ask(f"REVOKE USAGE ON SCHEMA {schema} FROM clerk")
            with pytest.raises(LedgerUnwritable, match=lacks_schema):
                spend(ledger)
        with pytest.raises(LedgerUnwritable, match=r"permission denied for database.*CREATE on the database"):
            PrivacyLedger(BUDGET, postgres.fresh(tmp_path).replace("postgres@", "clerk@"))
    finally:
        postgres.ask("DROP OWNED BY clerk")
        postgres.ask("DROP ROLE clerk")
    assert used(url) == 4


def test_a_database_of_another_encoding_is_refused_by_name(postgres: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, a ledger fails at the first name that its database cannot write, and is called damaged."""
    postgres.ask("DROP DATABASE IF EXISTS latin")
    postgres.ask("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(LedgerUnwritable, match=r"server_encoding=LATIN1.*UTF8.*Make the database"):
        PrivacyLedger(BUDGET, postgres.fresh(tmp_path).replace("/postgres?", "/latin?"))
    postgres.ask("DROP DATABASE latin")


def test_names_are_kept_whatever_encoding_the_client_asks_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a setting meant for another program makes a charge fail on the name of a chain."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    for options in ("", "&client_encoding=LATIN1", "&options=-c%20client_encoding%3DLATIN1"):
        with PrivacyLedger(BUDGET, url + options) as ledger:
            plan = ledger.plan("p")
            plan.spend(VOTE, caller="Zoë, 東京")
            assert [entry.caller for entry in ledger.entries()][-1] == "Zoë, 東京"


def test_two_plans_reserved_at_once_share_the_budget(postgres: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, each of two machines reads what is left before the other has written, and both take it all."""
    url = postgres.fresh(tmp_path)
    place = dialect.Place(url)
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(PrivacyLedger(BUDGET, url)) for _ in range(2)]
        pids = [ledger._store.backend._connection.raw.info.backend_pid for ledger in ledgers]  # type: ignore[union-attr]
        other = stack.enter_context(psycopg.connect(postgres.conninfo))
        other.execute(f"LOCK TABLE {place.schema}.plans IN EXCLUSIVE MODE")  # plans can be read, and not be written
        pool = stack.enter_context(ThreadPoolExecutor(2))
        plans = [
            pool.submit(ledger.reserve, [(VOTE, 1)], name=f"plan {number}", epsilon=5.0, delta=1e-6)
            for number, ledger in enumerate(ledgers)
        ]
        waiting = (
            f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid IN ({pids[0]}, {pids[1]})"
        )
        while postgres.ask(waiting) != [(2,)]:
            pass
        other.rollback()
        refused = [plan.exception() for plan in plans if plan.exception()]
        assert [type(error) for error in refused] == [BudgetExceeded]
        assert ledgers[0].reserved()[0] == 5.0


@every_step
def test_a_client_killed_at_a_step_leaves_a_whole_spend_or_none(url: str, statement: bytes, after: bool) -> None:
    """If it breaks, half a spend stays, or a lock that nobody gives back."""

    def child() -> None:
        with PrivacyLedger(BUDGET, url) as ledger:
            plan = ledger.plan("p")
            harm(ledger, statement, after, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            plan.spend(VOTE)

    assert end_of(child) == -signal.SIGKILL
    assert used(url) == (4 if statement == b"COMMIT" and after else 3)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server that may be killed."""
    server = Server()
    yield server
    server.close()


@every_step
def test_a_server_killed_at_a_step_keeps_a_whole_spend_or_none(
    postgres: Server, mortal: Server, tmp_path: pathlib.Path, statement: bytes, after: bool
) -> None:
    """If it breaks, a crash of the server in the middle of a spend leaves half of it, or loses what it acknowledged."""
    url = mortal.fresh(tmp_path)
    with PrivacyLedger(BUDGET, url) as ledger:
        plan = ledger.reserve([(VOTE, MOST)], name="p")
        harm(ledger, statement, after, lambda _: mortal.kill())
        acknowledged = False
        with contextlib.suppress(LedgerUnwritable):
            plan.spend(VOTE)
            acknowledged = True
        mortal.start()
    assert acknowledged is (statement == b"COMMIT" and after)
    assert used(url) == int(acknowledged)


def _spend_for_ever(url: str, pipe: int) -> None:
    """Spend without a pause in threads; a letter for each: "." acknowledged, "?" unknown, "-" not charged."""
    plan = PrivacyLedger(BUDGET, url).plan("p")

    def run() -> None:
        try:
            while True:
                os.write(pipe, b"(")
                try:
                    plan.spend(VOTE)
                    said = b"."
                except LedgerError as error:
                    said = b"?" if "counts as spent" in str(error) else b"-"
                os.write(pipe, said)
        finally:
            os._exit(1)

    for _ in range(SPENDERS - 1):
        threading.Thread(target=run).start()
    run()


@contextlib.contextmanager
def spender(url: str) -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            _spend_for_ever(url, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        yield pid, read
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


def heard(pid: int, read: int, said: bytes) -> tuple[int, int]:
    """Kill a spender; how many spends it was told of, and of how many nobody knows."""
    os.kill(pid, signal.SIGKILL)
    while more := os.read(read, 65536):
        said += more
    return said.count(b"."), said.count(b"(") - said.count(b".") - said.count(b"-")


def rounds(config: pytest.Config, few: int, a_ledger: int) -> Iterator[tuple[int, random.Random]]:
    """How many rounds go into one ledger, which must not be used up, and their dice; ``--kill-rounds`` in all."""
    asked = config.getoption("--kill-rounds")
    dice = random.Random(20) if asked is None else random.Random()
    left_over = asked or few
    while left_over > 0:
        yield min(left_over, a_ledger), dice
        left_over -= a_ledger


@pytest.mark.parametrize(("whom", "few", "a_ledger", "heard_of"), [("client", 30, 100, 16), ("server", 12, 40, 40)])
def test_who_is_killed_at_any_moment_forgets_no_answer(
    whom: str, few: int, a_ledger: int, heard_of: int, mortal: Server, tmp_path: pathlib.Path,
    pytestconfig: pytest.Config,
) -> None:  # fmt: skip
    """If it breaks, an answer that left before its process or the server was killed is not in the ledger."""
    for count, dice in rounds(pytestconfig, few, a_ledger):
        url = mortal.fresh(tmp_path)
        with PrivacyLedger(BUDGET, url) as ledger:
            ledger.reserve([(VOTE, MOST)], name="p")
        before = 0
        for _ in range(count):
            with spender(url) as (pid, read):
                said = b"".join(os.read(read, 1) for _ in range(dice.randrange(2, heard_of)))
                time.sleep(dice.random() * 0.004)
                if whom == "server":
                    mortal.kill()
                acknowledged, unknown = heard(pid, read, said)
            if whom == "server":
                mortal.start()
            after = used(url)
            assert before + acknowledged <= after <= before + acknowledged + unknown
            before = after
        assert before > 0
