"""Chains that share a ledger, and chains that come back to one after a restart."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.voters import VotingChat, classifier, left, private_examples

from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import LimitedDomainEvent
from langchain_dp.ensemble.reservation import affordable
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError

BUDGET = PrivacyBudget(50.0)
HALF = PrivacyBudget(25.0, 5e-6)


DERIVED: dict[str, Any] = {"partitions": None, "sampling_probability": None, "shots": 3, "subsets": 8}


@pytest.mark.parametrize(
    ("settings", "first", "then", "says"),
    [
        ({}, 24, 48, ""),
        ({}, 24, 72, "Each now shows about 9 examples instead of 3"),
        (DERIVED, 480, 480, ""),
        (DERIVED, 480, 400, ""),
        (DERIVED, 480, 200, "other data than before"),
    ],
)
def test_many_more_or_far_fewer_rows_under_an_old_plan_are_told(
    settings: dict[str, Any], first: int, then: int, says: str
) -> None:
    """If it breaks, prompts and costs grow many times, or a chain over other data goes on under an old name."""
    ledger = PrivacyLedger(PrivacyBudget(50.0))
    labels = ("positive", "negative")
    classifier(ledger=ledger, examples=private_examples(first, labels=labels), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier(ledger=ledger, examples=private_examples(then, labels=labels), **settings)
    said = [str(one.message) for one in caught if re.search("instead of 3|other data than before", str(one.message))]
    assert len(said) == bool(says)
    assert says in "".join(said)


def test_two_chains_share_one_ledger_by_shares() -> None:
    """The claims of two chains do not add up to the ledger's, or one spends the other's releases."""
    ledger = PrivacyLedger(BUDGET)
    mail = classifier(ledger=ledger, budget=HALF, name="mail")
    news = classifier(ledger=ledger, budget=HALF, name="news")
    assert ledger.reserved() == (50.0, 1e-5)
    mail.batch(["x", "y"])
    news.invoke("x")
    assert (left(mail), left(news)) == (3, 4)
    assert (mail.certificate().epsilon, mail.certificate().delta) == (25.0, 5e-6)
    spent = [chain.certificate().spent for chain in (mail, news)]
    assert ledger.spent() == pytest.approx((spent[0][0] + spent[1][0], 1e-5))
    assert ledger.certificate().epsilon == 50.0
    assert classifier(ledger=ledger, budget=HALF, name="mail").sigma == mail.sigma  # again, also with its share unsaid
    assert classifier(ledger=ledger, name="mail").certificate().epsilon == 25.0
    part = PrivacyLedger(BUDGET)
    classifier(ledger=part, budget=PrivacyBudget(20.0, 4e-6), name="mail")
    rest = classifier(ledger=part, name="news").certificate()  # without a share: what is left
    assert (rest.epsilon, rest.delta) == (pytest.approx(30.0), pytest.approx(6e-6))


def test_a_full_ledger_refuses_another_chain_and_says_how_much_is_left() -> None:
    """A third chain is built over a ledger that is spoken for."""
    ledger = PrivacyLedger(BUDGET)
    classifier(ledger=ledger, name="all of it")
    with pytest.raises(BudgetExceeded, match=r"epsilon=0, delta=0 left to reserve.*budget=") as caught:
        classifier(ledger=ledger, name="late")
    assert (caught.value.fits, caught.value.budget) == (0, (50.0, 1e-5))
    with pytest.raises(
        BudgetExceeded, match=r"^The plan 'late' of 5 .*epsilon=0, delta=0 are not .*charged\. A second ledger"
    ):
        classifier(ledger=ledger, budget=HALF, name="late")
    assert [plan.name for plan in ledger.plans()] == ["all of it"]


def test_a_share_beyond_the_rest_names_what_would_fit() -> None:
    """The refusal does not say how many queries the rest of the ledger would carry."""
    ledger = PrivacyLedger(BUDGET)
    classifier(ledger=ledger, budget=HALF, name="mail")
    with pytest.raises(BudgetExceeded, match=r"only epsilon=25, delta=5e-06 are not reserved yet") as caught:
        classifier(ledger=ledger, budget=PrivacyBudget(40.0, 5e-6), name="news")
    assert "delta" not in str(caught.value).split("are not reserved yet")[1].split("Nothing was charged")[0]
    assert 1 <= caught.value.fits < 5
    assert f"{caught.value.fits} more would fit" in str(caught.value)


def test_who_divides_epsilon_alone_is_told_that_delta_is_divided_too() -> None:
    """If it breaks, the first plan takes all of delta, and nothing says why no later one fits."""
    ledger = PrivacyLedger(BUDGET)
    classifier(ledger=ledger, budget=PrivacyBudget(25.0), name="mail")
    for told in (PrivacyBudget(5.0), PrivacyBudget(5.0, 1e-9), None):
        with pytest.raises(BudgetExceeded, match=r"share of delta, too: .*budget=PrivacyBudget\(1\.0, 5e-6\)"):
            classifier(ledger=ledger, budget=told, name="news")
    with pytest.raises(BudgetExceeded, match="share of delta, too"):
        affordable(ledger, PrivacyBudget(5.0))


def test_a_share_of_another_relation_is_refused() -> None:
    """A chain's promise is made under other neighbors than its ledger's."""
    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(InvalidParameter, match=r"budget.neighbors=ADD_OR_REMOVE_ONE to be the ledger's REPLACE_ONE"):
        classifier(ledger=ledger, budget=PrivacyBudget(1.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE))


@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_a_restart_goes_on_with_what_is_left_and_the_same_noise(tmp_path: Path, sampling: Any) -> None:
    """A restart starts the budget anew, or calibrates other noise because records came or went meanwhile."""
    settings: dict[str, Any] = {"sampling": sampling, "partitions": None, "sampling_probability": None, "shots": 2}
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        chain = classifier(ledger=ledger, **settings)
        chain.batch(["x", "y"])
        scheme, sigma = chain.scheme, chain.sigma
    model = VotingChat()
    for count in (30, 24, 12):
        with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
            again = classifier(model, ledger=ledger, examples=private_examples(count), **settings)
            assert left(again) == 3
            assert again.sigma == sigma
            assert again.scheme == scheme
            assert again.certificate().epsilon == 50.0
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        again = classifier(model, ledger=ledger, **settings)
        again.batch(["a", "b", "c"])
        with pytest.raises(BudgetExceeded):
            again.invoke("d")


RESAMPLED: dict[str, Any] = {"sampling": "resample", "partitions": None, "sampling_probability": 0.5}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_queries": 6}, "max_queries was 5, now 6"),
        ({"sampling": "resample", "partitions": None}, "sampling was 'fixed', now 'resample'"),
        ({"sampling_probability": 0.5}, "sampling_probability was 1.0, now 0.5"),
        ({"partitions": 9, "sampling_probability": None}, "subsets / partitions was 1.0"),
        ({"shots": 4}, "shots was 3, now 4"),
        ({"subsets": 4}, "subsets was 8, now 4"),
        ({"partitions": 9}, "partitions was 8, now 9"),
        ({"shots": 6, "partitions": None}, "partitions was 8, now 4"),
        ({"budget": PrivacyBudget(3.0)}, "budget.epsilon was 50.0, now 3.0"),
        ({"budget": PrivacyBudget(50.0, 1e-6)}, "budget.delta was 1e-05, now 1e-06"),
        (RESAMPLED | {"shots": 2}, "shots was 3, now 2"),
        (RESAMPLED | {"subsets": 4}, "subsets was 8, now 4"),
    ],
)
def test_a_restart_under_another_configuration_is_refused(changes: dict[str, Any], named: str) -> None:
    """A restart changes the configuration and silently gets the old promise, or a second budget."""
    ledger = PrivacyLedger(BUDGET)
    classifier(ledger=ledger, **(RESAMPLED if changes.items() >= RESAMPLED.items() else {}))
    with pytest.raises(PlanError, match=r"(?s)another configuration.*another name=") as caught:
        classifier(ledger=ledger, **changes)
    assert named in str(caught.value)
    assert len(ledger.plans()) == 1


def test_what_is_derived_on_a_restart_need_not_be_given_again(tmp_path: Path) -> None:
    """If it breaks, a restart that gives by name what the first start derived is refused, or the other way round."""
    given: dict[str, Any] = {"partitions": 8, "sampling_probability": 1.0}
    derived: dict[str, Any] = {"partitions": None, "sampling_probability": None}
    for first, second in ((given, derived), (derived, given), (given, {**given, "partitions": None})):
        ledger = PrivacyLedger(BUDGET)
        scheme = classifier(ledger=ledger, **first).scheme
        assert classifier(ledger=ledger, **second).scheme == scheme


def test_a_second_promise_over_the_same_subsets_is_kept_by_their_settings(tmp_path: Path) -> None:
    """If it breaks, a chain that shares another's subsets cannot come back to its plan, or comes back to another's."""
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        classifier().with_budget(HALF, ledger=ledger, name="twin", max_queries=4).invoke("x")
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        again = classifier().with_budget(HALF, ledger=ledger, name="twin", max_queries=4)
        assert left(again) == 3
        assert left(classifier(ledger=ledger, budget=HALF, name="twin", max_queries=4)) == 3
        with pytest.raises(PlanError, match="shots was 3, now 2"):
            classifier(shots=2).with_budget(HALF, ledger=ledger, name="twin", max_queries=4)


def test_a_plan_of_another_kind_is_not_taken_over() -> None:
    """A plan made for another mechanism is spent by DP-ICL."""
    ledger = PrivacyLedger(BUDGET)
    ledger.reserve([(LimitedDomainEvent(0.1, 1e-9), 5)], name="dp-icl", delta=5e-6)
    with pytest.raises(PlanError, match="'dp-icl' is not a DP-ICL plan"):
        classifier(ledger=ledger)


@pytest.mark.parametrize("changes", [{"subsets": 0}, {"partitions": 0}, {"shots": 0}, {"sampling_probability": 0.0}])
def test_bad_bounds_are_refused_on_a_restart_too(changes: dict[str, Any]) -> None:
    """A restart skips the checks and fails on a division by zero."""
    ledger = PrivacyLedger(BUDGET)
    classifier(ledger=ledger)
    with pytest.raises(InvalidParameter, match=f"{next(iter(changes)).removeprefix('sampling_')}="):
        classifier(ledger=ledger, **changes)


@pytest.mark.parametrize("count", [24, 12])
def test_a_restart_under_a_given_rate_keeps_subsets_of_that_size(count: int, tmp_path: Path) -> None:
    """If it breaks, a restart makes ten times fewer and larger subsets: their prompts are too long, and all abstain."""
    settings: dict[str, Any] = {"partitions": None, "sampling_probability": 1.0, "shots": 3, "subsets": 2}
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        assert classifier(ledger=ledger, **settings).scheme.groups == 8
    with PrivacyLedger(BUDGET, tmp_path / "ledger.sqlite") as ledger:
        again = classifier(ledger=ledger, examples=private_examples(count), **settings)
        assert again.scheme.groups == count // 3


def test_a_restart_derives_nothing_from_a_private_number_of_records(tmp_path: Path) -> None:
    """If it breaks, a restart that leaves out partitions= cuts, and shows, as many subsets as there are records."""
    budget = PrivacyBudget(50.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE)
    settings: dict[str, Any] = {"sampling_probability": 1.0, "shots": 3, "subsets": 2}
    with PrivacyLedger(budget, tmp_path / "ledger.sqlite") as ledger:
        classifier(ledger=ledger, partitions=8, **settings).invoke("x")
        for count in (24, 12):
            with pytest.raises(InvalidParameter, match=r"partitions=None .* the number of records is private"):
                classifier(ledger=ledger, partitions=None, examples=private_examples(count), **settings)
        assert left(classifier(ledger=ledger, partitions=8, **settings)) == 4


def test_who_starts_at_the_same_time_goes_on_with_the_others_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the second of two workers is told that the ledger is full, though both share one plan."""
    ledger = PrivacyLedger(BUDGET)
    first, seen, plan = classifier(ledger=ledger), [], ledger.plan

    def late(name: str) -> Any:  # as if the first worker had reserved after this one had looked
        seen.append(name)
        return None if len(seen) == 1 else plan(name)

    monkeypatch.setattr(ledger, "plan", late)
    again = classifier(ledger=ledger)
    assert (again.sigma, len(seen)) == (first.sigma, 2)
    again.invoke("x")
    assert left(first) == 4
