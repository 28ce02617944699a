"""A ledger in PostgreSQL behind pgbouncer, and on a server that restarts, ends sessions or becomes a replica."""

from __future__ import annotations

import pathlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.postgres import NoServer, Pooler, Server
from fakes.racing import Attempt, outcome, race

from langchain_dp import PrivacyBudget
from langchain_dp.accounting import NoisyMaxEvent, PrivacyLedger
from langchain_dp.ensemble.runs import run_lock
from langchain_dp.errors import LedgerUnwritable

BUDGET = PrivacyBudget(8.0, 1e-5)
VOTE = NoisyMaxEvent(4.0, 0.05)
MOST = 4000


@pytest.fixture(scope="module")
def mortal(postgres: Server) -> Iterator[Server]:
    """A server that may be stopped; skipped where there is no other either."""
    server = Server()
    yield server
    server.close()


def pooled(server: Server, mode: str) -> Pooler:
    try:
        return Pooler(server, mode)
    except NoServer:
        pytest.skip("pgbouncer is not installed")


@pytest.fixture(scope="module")
def pooler(mortal: Server) -> Iterator[Pooler]:
    """A pooler in transaction mode: each transaction may come to another session of the server."""
    pooler = pooled(mortal, "transaction")
    yield pooler
    pooler.close()


def behind(pooler: Pooler, url: str) -> str:
    return re.sub(r":\d+/", f":{pooler.port}/", url)


@pytest.fixture
def url(mortal: Server, pooler: Pooler, tmp_path: pathlib.Path) -> str:
    """A ledger behind the pooler with a plan, of which 3 are used."""
    made = behind(pooler, mortal.fresh(tmp_path))
    with PrivacyLedger(BUDGET, made) as ledger:
        ledger.reserve([(VOTE, MOST)], name="p", delta=9e-6).spend(VOTE, 3)
    return made


def used(url: str) -> int:
    with PrivacyLedger(BUDGET, url) as ledger:  # opening checks that counts and entries agree
        return MOST - ledger.plan("p").remaining(VOTE)


def test_a_race_behind_a_pooler_gives_out_what_is_left(url: str) -> None:
    """If it breaks, writers that share the sessions of a pooler release more than the ledger covers."""
    with PrivacyLedger(BUDGET, url) as ledger:
        ledger.plan("p").spend(VOTE, MOST - 3 - 50)

    def enter(_: int) -> Attempt:
        plan = PrivacyLedger(BUDGET, url).plan("p")
        return lambda _: (outcome(plan.spend, VOTE) for _ in range(4))

    assert race(6, 4, enter) == {"done": 50, "refused": 46}
    assert used(url) == MOST


def test_all_of_a_ledger_works_behind_a_pooler(url: str) -> None:
    """If it breaks, a setting or a lock that belongs to one session is looked for in another."""
    with PrivacyLedger(BUDGET, url) as one, PrivacyLedger(BUDGET, url) as two:
        assert one.digest("a", "b") == two.digest("a", "b")
        with run_lock(one, "run"):
            two.plan("p").spend_up_to(VOTE, 4, caller="run")
            with pytest.raises(Exception, match="another process"), run_lock(two, "run"):
                pass
        two.verify()
        assert [entry.count for entry in one.entries()] == [3, 4]
    with PrivacyLedger(BUDGET, url) as ledger, ledger._store.backend.transaction(write=True) as connection:
        assert connection.execute("SELECT current_setting('synchronous_commit')").fetchone() == ("on",)


def _restart(server: Server) -> None:
    server.stop()
    server.start()


def _end_sessions(server: Server) -> None:
    server.ask("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
               "backend_type = 'client backend'")  # fmt: skip


@pytest.mark.parametrize("gone", [_restart, _end_sessions], ids=["restarted", "sessions ended"])
def test_a_charge_after_the_server_was_away_is_made(mortal: Server, url: str, gone: Any) -> None:
    """If it breaks, a pooler hands out sessions that are gone, and the first charge after a restart fails."""
    with PrivacyLedger(BUDGET, url) as ledger:
        plan = ledger.plan("p")
        for _ in range(2):
            plan.spend(VOTE)
            gone(mortal)
        plan.spend(VOTE)
    assert used(url) == 6


def test_a_session_that_ends_before_its_commit_counts_as_spent(
    mortal: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a charge that the server rolled back is answered, to one of a group or to all."""
    with PrivacyLedger(BUDGET, url) as ledger:
        plan, backend = ledger.plan("p"), ledger._store.backend
        real, refused = backend._commit, []

        def commit(connection: Any, wait: float) -> None:
            [[pid]] = connection.execute("SELECT pg_backend_pid()").fetchall()
            mortal.ask(f"SELECT pg_terminate_backend({pid}, 10000)")
            real(connection, wait)

        def spend() -> None:
            with pytest.raises(LedgerUnwritable, match="counts as spent"):
                plan.spend(VOTE)
            refused.append(1)

        give_back = backend._lock.take()
        threads = [threading.Thread(target=spend) for _ in range(4)]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            while len(backend._lock._waiting) < number:
                pass
        monkeypatch.setattr(backend, "_commit", commit)
        give_back()
        for thread in threads:
            thread.join()
        monkeypatch.undo()
        assert len(refused) == 4
        plan.spend(VOTE)
    assert used(url) == 4


def test_a_pooler_that_hands_out_single_statements_is_refused_by_name(mortal: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, the user of pgbouncer in statement mode is told to look whether the server runs."""
    pooler = pooled(mortal, "statement")
    try:
        with pytest.raises(LedgerUnwritable, match=r"statement pooling.*pool_mode = transaction"):
            PrivacyLedger(BUDGET, behind(pooler, mortal.fresh(tmp_path)))
    finally:
        pooler.close()


def test_a_replica_behind_a_pooler_is_refused(mortal: Server, url: str) -> None:
    """If it breaks, a pooler that leads to a lagging copy shows more than is left."""
    standby = Server(standby_of=mortal)
    pooler = pooled(standby, "transaction")
    try:
        with pytest.raises(LedgerUnwritable, match=r"read-only replica.*Connect to the primary"):
            PrivacyLedger(BUDGET, behind(pooler, url))
    finally:
        pooler.close()
        standby.close()


def test_a_server_that_becomes_a_replica_is_refused(postgres: Server, tmp_path: pathlib.Path) -> None:
    """If it breaks, a running process goes on with a server that was demoted, whose copy may lag behind."""
    server = Server()
    try:
        with PrivacyLedger(BUDGET, server.fresh(tmp_path)) as ledger:
            plan = ledger.reserve([(VOTE, MOST)], name="p")
            plan.spend(VOTE)
            server.stop()
            (server.folder / "data" / "standby.signal").touch()
            server.start()
            for use in (lambda: plan.spend(VOTE), lambda: plan.remaining(VOTE)):
                with pytest.raises(LedgerUnwritable, match=r"replica.*onnect to the primary"):
                    use()
    finally:
        server.close()
