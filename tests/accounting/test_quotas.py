"""Accounts of those who ask: a share each, never more than the plan, charged with it and never given back."""

from __future__ import annotations

import os
import pathlib
import random
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from fakes.fair_semaphore import on_both
from fakes.forked import end_of
from fakes.kills import killed_often
from fakes.ledger_files import edited
from fakes.racing import Attempt, outcome, race

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger, Quotas
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerCorrupt, PlanError, QuotaExceeded

BUDGET = PrivacyBudget(3.0, 1e-5)
FAINT = NoisyMaxEvent(60.0)
SHARES = Quotas(default=3, overrides={"team-7": 5})
PRIVATE = "Zebedee Quillfeather has gout"
PROCESSES, THREADS = 2, 4


def made(place: str | pathlib.Path | None, most: int = 10) -> tuple[PrivacyLedger, Any]:
    ledger = PrivacyLedger(BUDGET, place)
    return ledger, ledger.reserve([(FAINT, most)], name="p", delta=1e-6, quotas=SHARES)


@on_both
def test_each_asker_has_a_share_and_all_have_the_plan(place: str) -> None:
    """If this fails, one user uses up the share of another, or all together more than was promised."""
    ledger, plan = made(place)
    with ledger:
        plan.spend(FAINT, 4, user_id="team-7")
        with pytest.raises(
            BudgetExceeded, match=r"^This user's share of the plan 'p' is 5 releases, and 1 are left"
        ) as refused:
            plan.spend(FAINT, 2, user_id="team-7")
        assert isinstance(refused.value, QuotaExceeded)
        assert "team-7" not in str(refused.value)  # it may go to a tracer
        assert (refused.value.fits, plan.remaining(FAINT), len(list(ledger.entries()))) == (1, 6, 1)
        assert ledger.refusals == 1
        with pytest.raises(BudgetExceeded, match="and 3 are left"):
            plan.spend(FAINT, 4, user_id="a")  # more than a whole share, at first
        plan.spend(FAINT, 3, user_id="a")
        plan.spend(FAINT, 2, user_id="b")
        assert plan.remaining(FAINT, user_id="c") == 1  # the plan has less than the share
        with pytest.raises(BudgetExceeded, match="1 of 10 planned releases are left") as refused:
            plan.spend(FAINT, 2, user_id="c")
        assert not isinstance(refused.value, QuotaExceeded)
        assert plan.used_by() == {"a": 3, "b": 2, "team-7": 4}
    with PrivacyLedger(BUDGET, place) as again:  # checks what is kept
        found = again.plan("p")
        assert (found.used_by(), found.quotas, found.settings) == ({"a": 3, "b": 2, "team-7": 4}, SHARES, None)
        with pytest.raises(BudgetExceeded):  # no refill
            again.reserve([(FAINT, 10)], name="p", quotas=SHARES).spend(FAINT, user_id="a")
        with pytest.raises(PlanError, match="quotas was"):
            again.reserve([(FAINT, 10)], name="p", quotas=Quotas(default=9))


def test_who_asks_must_be_said_and_known_before_anything_is_charged() -> None:
    """If this fails, a question nobody answers for is charged, or a private text stands in an error."""
    ledger, plan = made(None)
    closed = ledger.reserve([(FAINT, 3)], name="closed", delta=1e-6, quotas=Quotas(overrides={"team-7": 2}))
    free = ledger.reserve([(FAINT, 3)], name="free", delta=1e-6)
    for where, user_id, says in (
        (plan, None, "Say who asks"),
        (closed, PRIVATE, "no account for this user"),
        (free, "team-7", "has no accounts"),
    ):
        with pytest.raises(PlanError, match=says) as refused:
            where.spend(FAINT, user_id=user_id)
        assert PRIVATE not in str(refused.value)
    for wrong in ("", "two\nlines", "x" * 201, 7):
        with pytest.raises(InvalidParameter, match="user_id"):
            plan.spend(FAINT, user_id=wrong)
    assert list(ledger.entries()) == []
    for certificate in (plan.certificate(), ledger.certificate()):
        assert "pool" in " ".join(certificate.notes)
    assert "pool" not in " ".join(free.certificate().notes)


def test_shares_never_change() -> None:
    """If this fails, a restart gives users a larger share of the same rows, or a plan without accounts gets some."""
    ledger, _ = made(None)
    with pytest.raises(PlanError, match=r"quotas was Quotas\(default=3.*now Quotas\(default=4"):
        ledger.reserve([(FAINT, 10)], name="p", quotas=Quotas(default=4))
    assert ledger.reserve([(FAINT, 10)], name="p", settings=None).quotas == SHARES
    ledger.reserve([(FAINT, 1)], name="free", delta=1e-6)
    with pytest.raises(PlanError, match="quotas was None"):
        ledger.reserve([(FAINT, 1)], name="free", quotas=SHARES)
    both = ledger.reserve([(FAINT, 1)], name="both", delta=1e-6, settings={"shots": 4}, quotas=SHARES)
    assert (both.settings, both.quotas) == ({"shots": 4}, SHARES)
    for wrong in ({"default": 0}, {"overrides": {"a": 0}}, {"overrides": {"": 1}}, {"overrides": [1]}, {}):
        with pytest.raises(InvalidParameter):
            Quotas(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="quotas="):
        ledger.reserve([(FAINT, 1)], name="q", settings={"quotas": 1})
    with pytest.raises(InvalidParameter, match="Quotas"):
        ledger.reserve([(FAINT, 1)], name="q", quotas=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", ["{", "[1]", "3"])
def test_a_plan_that_cannot_be_read_is_a_damaged_ledger(tmp_path: pathlib.Path, settings: str) -> None:
    """If this fails, an edited row ends in an error of a library, which a chain takes for one of its own."""
    path = tmp_path / "l.db"
    ledger, _ = made(path)
    ledger.close()
    edited(path, "UPDATE plans SET settings = ?", settings)
    with pytest.raises(LedgerCorrupt, match="a plan in it cannot be read"):
        PrivacyLedger(BUDGET, path).plans()


def test_the_database_itself_refuses_a_refund_and_a_damaged_account_is_found(tmp_path: pathlib.Path) -> None:
    """If this fails, a hand in the file gives a user answers back, and nobody sees it."""
    path = tmp_path / "l.db"
    ledger, plan = made(path)
    plan.spend(FAINT, 2, user_id="a")
    ledger.close()
    connection = sqlite3.connect(path, isolation_level=None)
    for edit in ("UPDATE quotas SET used = 1", "UPDATE quotas SET most = 9", "DELETE FROM quotas",
                 "UPDATE quotas SET used = 4"):  # fmt: skip
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(edit)
    connection.execute("UPDATE quotas SET used = 3")
    connection.close()
    with pytest.raises(LedgerCorrupt, match="used more than was charged"):
        PrivacyLedger(BUDGET, path)


def test_a_crash_between_the_plan_and_the_share_charges_neither(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a kill in the middle of a charge leaves a share and a plan that contradict each other."""
    path = tmp_path / "l.db"
    ledger, plan = made(path)
    plan.spend(FAINT, user_id="a")

    def charge() -> None:
        monkeypatch.setattr(PlanStore, "_enter", lambda *_args, **_named: os._exit(7))
        plan.spend(FAINT, user_id="a")

    assert end_of(charge) == 7
    assert (plan.used_by(), plan.remaining(FAINT)) == ({"a": 1}, 9)
    ledger.close()
    PrivacyLedger(BUDGET, path).close()


@on_both
@pytest.mark.parametrize("most", [100, 9])
def test_the_last_answers_of_each_asker_go_to_exactly_as_many_racers(place: str, most: int) -> None:
    """If this fails, threads of two processes get more than a share or the plan has, or lose some of it."""
    made(place, most)[0].close()

    def enter(_: int) -> Attempt:
        plan = PrivacyLedger(BUDGET, place).plan("p")
        return lambda _: (
            outcome(plan.spend, FAINT, user_id=user_id, done=user_id) for user_id in ("team-7", "a", "b", "c") * 2
        )

    total = race(PROCESSES, THREADS, enter)
    refused, shares = total.pop("refused"), {"team-7": 5, "a": 3, "b": 3, "c": 3}
    given = min(most, sum(shares.values()))
    assert (sum(total.values()), refused) == (given, PROCESSES * THREADS * 8 - given)
    assert all(count <= shares[user_id] for user_id, count in total.items())
    with PrivacyLedger(BUDGET, place) as ledger:
        plan = ledger.plan("p")
        assert plan.used_by() == total
        assert (plan.remaining(FAINT), len(list(ledger.entries()))) == (most - given, given)


def spend_at(place: str) -> Callable[[], object]:
    plan = PrivacyLedger(BUDGET, place).plan("p")
    return lambda: plan.spend(FAINT, user_id="team-7")


@on_both
def test_a_kill_at_any_moment_gives_no_asker_an_answer_back(place: str) -> None:
    """If this fails, what a user was given before a crash is not in the share, or not in the plan."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(FAINT, 400)], name="p", delta=1e-6, quotas=Quotas(default=400))

    def used() -> int:
        with PrivacyLedger(BUDGET, place) as ledger:  # opening checks that counts, shares and entries agree
            plan = ledger.plan("p")
            assert plan.used_by().get("team-7", 0) == 400 - plan.remaining(FAINT)
            return 400 - plan.remaining(FAINT)

    killed_often(lambda: spend_at(place), used, 12, random.Random(30))


@on_both
def test_a_share_is_never_prepaid(place: str) -> None:
    """If this fails, a block that was paid for one user is spent by another, or goes beyond the share or the plan."""
    with PrivacyLedger(BUDGET, place, prepay_block=50) as ledger:
        plan = ledger.reserve([(FAINT, 7)], name="p", delta=1e-6, quotas=SHARES)
        plain = ledger.reserve([(FAINT, 60)], name="plain", delta=1e-6)
        plain.spend(FAINT)
        for _ in range(3):
            plan.spend(FAINT, user_id="a", caller="mail")
        with pytest.raises(QuotaExceeded):
            plan.spend(FAINT, user_id="a")
        for _ in range(4):
            plan.spend(FAINT, user_id="team-7", caller="mail")
        with pytest.raises(BudgetExceeded, match="0 of 7 planned releases are left"):
            plan.spend(FAINT, user_id="team-7")
        counts = [(entry.count, entry.caller) for entry in ledger.entries()]
        assert counts == [(50, " (prepaid)"), *[(1, "mail")] * 7]
        assert not any("blocks of" in note for note in plan.certificate().notes)
        assert any("blocks of 50" in note for note in ledger.certificate().notes)
