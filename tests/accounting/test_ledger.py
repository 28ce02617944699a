"""The ledger's promises one by one: plans, claims, refusals, and every way in which a file can be wrong."""

from __future__ import annotations

import pathlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from langchain_dp._util.rounding import bound, room
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.calibrate import max_releases
from langchain_dp.accounting.events import ExponentialEvent, MetricEvent, Neighbors, NoisyMaxEvent, PartEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.accounting.pld import epsilon
from langchain_dp.accounting.store import sqlite
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerError, PlanError, UnsupportedEvent

BUDGET = PrivacyBudget(3.0, 1e-5)
VOTE = NoisyMaxEvent(8.0)
CHOICE = ExponentialEvent(0.05)


@pytest.fixture(params=["memory", "file", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[PrivacyLedger]:
    places = {"memory": lambda: None, "file": lambda: tmp_path / "ledger.db"}
    places["postgres"] = lambda: request.getfixturevalue("postgres").fresh(tmp_path)
    with PrivacyLedger(BUDGET, places[request.param]()) as opened:
        yield opened


def test_a_run_pays_for_what_it_has_not_paid_itself(ledger: PrivacyLedger) -> None:
    """If this fails, a run takes for its own what somebody else paid for, or pays twice for what it had paid."""
    plan = ledger.reserve([(VOTE, 5), (CHOICE, 2)], name="p", delta=4e-6)
    plan.spend_up_to(VOTE, 1, caller="run")
    plan.spend_up_to(VOTE, 1, caller="run")
    assert plan.remaining(VOTE) == 4
    plan.spend(VOTE, 2, caller="another")
    plan.spend(CHOICE, caller="run")  # of another event
    plan.spend_up_to(VOTE, 3, caller="run")
    assert plan.remaining(VOTE) == 0
    assert [(entry.caller, entry.count) for entry in plan.entries()] == [
        ("run", 1), ("another", 2), ("run", 1), ("run", 2),
    ]  # fmt: skip
    for count, missing in ((4, "This question"), (5, "These 2 questions"), (6, "0 of 5 planned releases are left")):
        with pytest.raises(BudgetExceeded, match=missing):
            plan.spend_up_to(VOTE, count, caller="run")
    plan.spend_up_to(VOTE, 3, caller="run")
    with pytest.raises(InvalidParameter, match="caller"):
        plan.spend_up_to(VOTE, 1, caller="")
    with pytest.raises(PlanError, match="holds no"):
        plan.spend_up_to(NoisyMaxEvent(9.0), 1, caller="run")


def test_what_another_plan_of_the_name_was_charged_pays_for_nothing(tmp_path: pathlib.Path) -> None:
    """If this fails, a run finds its own name in another copy of the file, and takes its rounds for paid."""
    copied, path = tmp_path / "copied.db", tmp_path / "ledger.db"
    with PrivacyLedger(BUDGET, path):
        shutil.copy(path, copied)
    with PrivacyLedger(BUDGET, path) as ledger, PrivacyLedger(BUDGET, copied) as other:
        plan = ledger.reserve([(VOTE, 3)], name="p", delta=4e-6)
        other.reserve([(VOTE, 3)], name="p", delta=4e-6).spend(VOTE, 2, caller="run")
        with sqlite3.connect(copied) as one, sqlite3.connect(path) as two:
            one.backup(two)
        with pytest.raises(LedgerError):
            plan.spend_up_to(VOTE, 1, caller="run")


def test_a_plan_claims_what_its_full_counts_cost_and_spends_what_is_used(ledger: PrivacyLedger) -> None:
    """If this fails, the two claims are mixed: what was used and what is guaranteed."""
    plan = ledger.reserve([(VOTE, 5), (CHOICE, 2)], name="p", delta=4e-6)
    assert plan.epsilon == pytest.approx(epsilon([(VOTE, 5), (CHOICE, 2)], 4e-6))
    assert plan.reserved() == ledger.reserved() == (plan.epsilon, 4e-6)
    assert plan.spent() == ledger.spent() == (0.0, 0.0)
    assert sorted(plan.events, key=repr) == [(CHOICE, 2), (VOTE, 5)]
    other = ledger.reserve([(CHOICE, 3)], name="unused", delta=1e-6)
    plan.spend(VOTE, 3)
    assert plan.spent() == ledger.spent() == (pytest.approx(epsilon([(VOTE, 3)], 4e-6)), 4e-6)
    assert ledger.reserved() == (pytest.approx(plan.epsilon + other.epsilon), pytest.approx(5e-6))
    for outside in (NoisyMaxEvent(9.0), NoisyMaxEvent(8.0, sampling="resample")):
        with pytest.raises(PlanError, match=r"NoisyMaxEvent.*reserve\(\)"):
            plan.spend(outside)
        assert plan.remaining(outside) == 0
    assert len(list(ledger.entries())) == 1


def test_quick_spent_is_never_below_the_exact_one(ledger: PrivacyLedger) -> None:
    """If this fails, a certificate understates what was spent."""
    plan = ledger.reserve([(CHOICE, 30)], name="p", delta=1e-6)
    for _ in range(30):
        plan.spend(CHOICE)
        assert plan.spent()[0] <= plan.spent(round_up=True)[0] <= plan.epsilon
    assert plan.spent(round_up=True) == plan.spent()


def test_claims_of_plans_add_up_to_the_budget_and_no_further(ledger: PrivacyLedger) -> None:
    """If this fails, plans chosen after answers were seen exceed the budget together."""
    first = ledger.reserve([(VOTE, 5)], name="a", delta=5e-6)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.reserve([(VOTE, 12)], name="b", delta=5e-6)
    left = PrivacyBudget(BUDGET.epsilon - first.epsilon, 5e-6)
    assert refused.value.fits == max_releases(VOTE, left) > 0
    assert refused.value.budget == (3.0, 1e-5)
    assert ledger.plan("b") is None
    assert ledger.reserve([(VOTE, refused.value.fits)], name="b", delta=5e-6).epsilon <= left.epsilon


def test_deltas_add_up_and_a_plan_takes_the_rest_by_default(ledger: PrivacyLedger) -> None:
    """If this fails, two plans spend the same delta twice."""
    ledger.reserve([(CHOICE, 1)], name="a", delta=9e-6)
    with pytest.raises(BudgetExceeded, match="delta"):
        ledger.reserve([(CHOICE, 1)], name="b", delta=2e-6)
    assert ledger.reserve([(CHOICE, 1)], name="b").delta == pytest.approx(1e-6)
    with pytest.raises(BudgetExceeded, match="no delta is left"):
        ledger.reserve([(CHOICE, 1)], name="c")


def test_an_explicit_claim_must_cover_the_composed_cost(ledger: PrivacyLedger) -> None:
    """If this fails, a caller can reserve less than the releases cost."""
    cost = epsilon([(VOTE, 5)], 1e-6)
    with pytest.raises(BudgetExceeded, match="it costs"):
        ledger.reserve([(VOTE, 5)], name="p", epsilon=cost * 0.999, delta=1e-6)
    assert ledger.reserve([(VOTE, 5)], name="p", epsilon=2.0, delta=1e-6).epsilon == 2.0
    assert ledger.reserved() == (2.0, 1e-6)
    with pytest.raises(BudgetExceeded):
        ledger.reserve([(VOTE, 1)], name="q", epsilon=1.1, delta=1e-6)


def test_the_same_plan_is_shared_and_another_under_its_name_refused(ledger: PrivacyLedger) -> None:
    """If this fails, a restart gets a fresh budget, or a plan silently changes under its name."""
    ledger.reserve([(VOTE, 5), (CHOICE, 1)], name="p").spend(VOTE, 4)
    again = ledger.reserve([(CHOICE, 1), (NoisyMaxEvent(8), 5)], name="p")
    assert again.remaining(VOTE) == 1
    for events in ([(VOTE, 6), (CHOICE, 1)], [(VOTE, 5)], [(NoisyMaxEvent(9.0), 5), (CHOICE, 1)]):
        with pytest.raises(PlanError, match="another name"):
            ledger.reserve(events, name="p")
    found = ledger.plan("p")
    assert found is not None
    assert found.remaining(VOTE) == 1
    assert ledger.plan("absent") is None


def test_a_refused_spend_charges_nothing_and_says_what_fits(ledger: PrivacyLedger) -> None:
    """If this fails, a refused question costs budget or the refusal does not say why."""
    plan = ledger.reserve([(VOTE, 5)], name="p", delta=1e-6)
    plan.spend(VOTE, 3)
    for count in (3, 10**30):
        with pytest.raises(BudgetExceeded, match="2 of 5 planned releases are left") as refused:
            plan.spend(VOTE, count)
        assert (refused.value.fits, refused.value.asked) == (2, f"{count} x {VOTE!r}")
        assert refused.value.spent == plan.spent()
    plan.spend(VOTE, 2)
    assert sum(entry.count for entry in plan.entries()) == 5


@pytest.mark.parametrize("event", [MetricEvent(1.0), PoissonSampledDpEvent(0.5, MetricEvent(1.0))])
def test_metric_privacy_is_never_mixed_in(ledger: PrivacyLedger, event: MetricEvent) -> None:
    """If this fails, nats per unit of distance are added to an epsilon."""
    plan = ledger.reserve([(VOTE, 1)], name="p", delta=1e-6)
    for use in (
        lambda: ledger.reserve([(VOTE, 1), (event, 1)], name="q"),
        lambda: plan.spend(event),
        lambda: ledger.spend(event),
        lambda: ledger.remaining(event),
    ):
        with pytest.raises(UnsupportedEvent, match="unit of distance"):
            use()
    assert len(ledger.plans()) == 1


@pytest.mark.parametrize(
    "bad",
    [
        lambda ledger: ledger.reserve([], name="p"),
        lambda ledger: ledger.reserve([VOTE], name="p"),
        lambda ledger: ledger.reserve([(VOTE, 0)], name="p"),
        lambda ledger: ledger.reserve([(VOTE, 1.5)], name="p"),
        lambda ledger: ledger.reserve([("vote", 1)], name="p"),
        lambda ledger: ledger.reserve([(NonPrivateDpEvent(), 1)], name="p"),
        lambda ledger: ledger.reserve([(VOTE, 1)], name=""),
        lambda ledger: ledger.reserve([(VOTE, 1)], name="x" * 201),
        lambda ledger: ledger.reserve([(VOTE, 1)], name="a\nb"),
        lambda ledger: ledger.reserve([(VOTE, 1)], name="p", epsilon=0.0),
        lambda ledger: ledger.reserve([(VOTE, 1)], name="p", delta=1.0),
        lambda ledger: ledger.spend(VOTE, 0),
        lambda ledger: ledger.spend(VOTE, -1),
        lambda ledger: ledger.spend(VOTE, True),
        lambda ledger: ledger.spend(VOTE, caller="a\x00b"),
        lambda ledger: ledger.spend(VOTE, caller="x" * 201),
        lambda ledger: PrivacyLedger("3.0"),
        lambda ledger: PrivacyLedger(BUDGET, 7),
    ],
)
def test_bad_values_are_refused_before_anything_is_stored(
    ledger: PrivacyLedger, bad: Callable[[PrivacyLedger], object]
) -> None:
    """If this fails, a typo reserves the whole budget or lowers a count."""
    with pytest.raises(InvalidParameter, match="Expected"):
        bad(ledger)
    assert ledger.plans() == []


def test_used_directly_the_ledger_is_one_plan_over_its_whole_budget(ledger: PrivacyLedger) -> None:
    """If this fails, direct use allows more or fewer releases than the budget holds."""
    most = max_releases(VOTE, BUDGET)
    assert ledger.remaining(VOTE) == most
    assert ledger.plans() == []
    ledger.spend(VOTE)
    assert ledger.remaining(VOTE) == most - 1
    assert ledger.remaining(CHOICE) == 0
    with pytest.raises(PlanError, match="reserve"):
        ledger.spend(CHOICE)
    ledger.spend(VOTE, most - 1)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.spend(VOTE)
    assert refused.value.fits == 0
    assert ledger.spent()[0] == pytest.approx(epsilon([(VOTE, most)], 1e-5))
    assert ledger.spent()[0] <= ledger.reserved()[0] <= 3.0


def test_a_first_direct_spend_that_does_not_fit_reserves_nothing(ledger: PrivacyLedger) -> None:
    """If this fails, one refused question locks the whole budget into a plan, or one without privacy gets a claim."""
    endless = ExponentialEvent(50.0)
    for ask in (
        lambda: ledger.spend(VOTE, 10_000),
        lambda: ledger.spend(endless),
        lambda: ledger.reserve([(endless, 1)], name="p"),
    ):
        with pytest.raises(BudgetExceeded) as refused:
            ask()
        assert (refused.value.fits > 0) == ("NoisyMax" in str(refused.value.asked))
    assert ledger.plans() == []


def test_direct_use_takes_only_what_plans_have_left(ledger: PrivacyLedger) -> None:
    """If this fails, direct spends and reserved plans exceed the budget together, also where plans took all."""
    plan = ledger.reserve([(VOTE, 5)], name="p", delta=5e-6)
    most = max_releases(VOTE, PrivacyBudget(3.0 - plan.epsilon, 5e-6))
    assert ledger.remaining(VOTE) == most
    ledger.spend(VOTE)
    assert ledger.remaining(VOTE) == most - 1
    assert ledger.reserved()[0] <= 3.0 * (1 + 1e-9)
    with PrivacyLedger(BUDGET) as full:
        full.reserve([(CHOICE, 1)], name="p")
        assert full.remaining(VOTE) == 0
        with pytest.raises(BudgetExceeded, match="0 fit"):
            full.spend(VOTE)


def test_certificates_print_both_claims(ledger: PrivacyLedger) -> None:
    """If this fails, a certificate does not say what is guaranteed, what is spent or what is left."""
    plan = ledger.reserve([(VOTE, 5)], name="p", delta=4e-6)
    plan.spend(VOTE, 2)
    paper = plan.certificate(model="tiny", notes=["hello"])
    assert (paper.epsilon, paper.delta) == plan.reserved()
    assert paper.spent == plan.spent()
    assert (paper.remaining, paper.mechanism, paper.model) == (3, "NoisyMaxEvent", "tiny")
    assert paper.parameters == {"sigma": 8.0, "sampling_probability": 1.0, "sampling": "fixed"}
    assert "hello" in paper.notes
    ledger.spend(VOTE)
    whole = ledger.certificate(round_up=True)
    assert (whole.epsilon, whole.delta) == ledger.reserved()
    assert whole.remaining == ledger.remaining(VOTE)
    assert any("2 plans" in note for note in whole.notes)
    assert any("rounded up" in note for note in whole.notes)


def test_entries_say_when_what_and_who(ledger: PrivacyLedger) -> None:
    """If this fails, an owner cannot see what was charged; paging also loses entries."""
    plan = ledger.reserve([(CHOICE, 1)], name="other", delta=1e-6)
    many = ledger.reserve([(NoisyMaxEvent(4.0, 0.05), 602)], name="many", delta=8e-6)
    plan.spend(CHOICE, caller="chain one")
    many.spend(NoisyMaxEvent(4.0, 0.05), 2, caller="t\u00e9st")
    for _ in range(600):
        many.spend(NoisyMaxEvent(4.0, 0.05))
    entries = list(ledger.entries())
    assert [entry.id for entry in entries] == list(range(1, 603))
    first, second = entries[:2]
    assert (first.plan, first.count, first.caller) == ("other", 1, "chain one")
    assert (second.plan, second.count, second.caller) == ("many", 2, "t\u00e9st")
    assert first.time.endswith("+00:00")
    assert first.time <= second.time
    assert '"ExponentialEvent"' in first.event
    assert list(plan.entries()) == [first]


def test_budgets_check_their_values() -> None:
    """If this fails, a nonsensical promise is accepted or a name of neighbors is misread."""
    assert PrivacyBudget(3, neighbors="Replace-One") == PrivacyBudget(3.0)  # type: ignore[arg-type]
    assert PrivacyBudget(1, neighbors="replace_special").neighbors is Neighbors.REPLACE_SPECIAL  # type: ignore[arg-type]
    assert str(PrivacyBudget(3)) == "epsilon=3, delta=1e-05, neighbors=replace_one"
    for epsilon_, delta in ((0, 0.1), (-1, 0.1), (float("inf"), 0.1), (float("nan"), 0.1), (True, 0.1), (1, 0), (1, 1)):
        with pytest.raises(InvalidParameter, match="Expected"):
            PrivacyBudget(epsilon_, delta)
    for name in ("add", 2, None, GaussianDpEvent(1.0)):
        with pytest.raises(InvalidParameter, match="add_or_remove_one"):
            PrivacyBudget(1.0, neighbors=name)  # type: ignore[arg-type]


def test_a_refusal_reads_like_a_sentence(ledger: PrivacyLedger) -> None:
    """If this fails, who has used up a budget reads the accountant's objects instead of what it would cost."""
    votes = ledger.reserve([(VOTE, 5)], name="p", delta=1e-6)
    votes.spend(VOTE, 5)
    one_more = epsilon([(VOTE, 6)], 1e-6) - epsilon([(VOTE, 5)], 1e-6)
    with pytest.raises(BudgetExceeded) as refused:
        votes.spend(VOTE)
    assert str(refused.value).startswith(
        f"0 of 5 planned releases are left in 'p'. This question would cost epsilon {one_more:.3g}; 0 of "
        f"{votes.epsilon:.4g} is left. Nothing was charged. A second ledger over these records"
    )
    with pytest.raises(
        BudgetExceeded, match=r"^0 of 5 planned releases are left in 'p'\. These 7,000,000 questions would go"
    ):
        votes.spend(VOTE, 7_000_000)
    with pytest.raises(BudgetExceeded, match=r"^The plan 'q' of 1 choice and 900 questions cannot be reserved: it "):
        ledger.reserve([(VOTE, 900), (CHOICE, 1)], name="q", delta=1e-6)
    mixed = ledger.reserve([(CHOICE, 1), (PartEvent("a", CHOICE), 1)], name="mixed", delta=1e-6)
    mixed.spend(CHOICE)
    with pytest.raises(BudgetExceeded, match=r" This choice would cost epsilon 0\.\d+; 0\.\d+ of 0\.\d+ is left\."):
        mixed.spend(CHOICE)
    with (
        PrivacyLedger(PrivacyBudget(1.0)) as small,
        pytest.raises(BudgetExceeded, match=r"^These 4 questions would cost"),
    ):
        small.spend(VOTE, 4)


def test_the_repr_of_a_ledger_shows_what_is_spent_and_left(tmp_path: pathlib.Path) -> None:
    """If this fails, who looks at a ledger does not see whether anything of it is left."""
    ledger = PrivacyLedger(PrivacyBudget(3.0), tmp_path / "l.db")
    assert repr(ledger).endswith("path='" + str(ledger.path) + "', spent=0, reserved=0, left=3)")
    plan = ledger.reserve([(VOTE, 5)], name="p", delta=1e-6)
    plan.spend(VOTE)
    spent = plan.spent()[0]
    assert repr(ledger).endswith(
        f"spent={bound(spent, 4)}, reserved={bound(plan.epsilon, 4)}, left={room(3 - plan.epsilon, 4)})"
    )


def test_the_repr_of_a_ledger_waits_for_nobody_and_never_raises(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a debugger or an error report hangs on a ledger, or dies of it."""
    naps: list[float] = []
    monkeypatch.setattr(sqlite, "time", SimpleNamespace(sleep=naps.append, monotonic=time.monotonic))
    ledger = PrivacyLedger(PrivacyBudget(3.0), tmp_path / "l.db")
    holder = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert repr(ledger).endswith("closed or in use)")
    holder.close()
    with ledger._account.store.read():
        assert repr(ledger).endswith("closed or in use)")
    assert "left=3" in repr(ledger)
    assert naps == []
    (tmp_path / "l.db").unlink()
    assert repr(ledger).endswith("closed or in use)")
    ledger.close()
    assert repr(ledger).endswith("closed or in use)")
