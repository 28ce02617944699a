"""What the accountant is told: constants of the configuration, the same for neighboring data."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    SENTENCE,
    ZERO_OUT,
    Looking,
    examples,
    optimizer,
    used,
)

from langchain_dp import Neighbors, PrivacyBudget, PrivacyCertificate, PrivacyLedger
from langchain_dp._util.rounding import took
from langchain_dp.accounting import LimitedDomainEvent, PartEvent, epsilon
from langchain_dp.errors import BudgetExceeded, InvalidParameter, UnsupportedEvent
from langchain_dp.opt import OptPlanReport
from langchain_dp.opt.reservation import TRAINING, VALIDATION

CHOSEN: dict[str, Any] = {"epsilon0": None, "delta0": None}
DERIVED: dict[str, Any] = {**CHOSEN, "partitions": None, "sampling_probability": None, "subsets": 60, "shots": 3}


def reserved(rows: Any, budget: PrivacyBudget, **changes: Any) -> Any:
    """Events and claim of the plan that a run over these records reserves."""
    ledger = PrivacyLedger(budget)
    optimizer(ledger=ledger, **changes).invoke(rows)
    [plan] = ledger.plans()
    return sorted(map(repr, plan.events)), plan.epsilon, plan.delta


@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_neighbors_under_add_or_remove_reserve_the_same(sampling: Any) -> None:
    """If it breaks, noise, threshold, rate or the number of calls hang on the number of records: the claim is void."""
    changes: dict[str, Any] = {"sampling": sampling}
    if sampling == "resample":
        changes |= {"partitions": None, "subsets": 16, "sampling_probability": 0.9}
    found = [reserved(examples(count), ADD_OR_REMOVE, **changes) for count in (39, 40, 0)]
    assert found[0] == found[1] == found[2]


def test_neighbors_under_replace_one_reserve_the_same() -> None:
    """If it breaks, what a record says changes the noise, or their number gives other noise than the records."""
    made = optimizer(budget=PrivacyBudget(8.0, 1e-3), **DERIVED)
    one, same = made.plan(400), made.plan(examples(400))
    for field in ("budget", "scheme", "token", "selection", "max_calls", "training", "validation"):
        assert getattr(one, field) == getattr(same, field)
    assert (one.training, one.validation) == (320.0, 80.0)
    other = examples(400)
    other[7] = {"text": "word " * 500, "label": "positive"}
    budget = PrivacyBudget(8.0, 1e-3)
    assert reserved(examples(400), budget, **DERIVED) == reserved(other, budget, **DERIVED)


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": None},
        {"sampling_probability": None},
        {"partitions": None, "sampling_probability": None},
        {"sampling": "resample", "partitions": None, "sampling_probability": None},
    ],
)
def test_a_derived_constant_is_refused_under_add_or_remove(changes: dict[str, Any]) -> None:
    """If it breaks, K or q come from the number of records although it is private."""
    engine, ledger = Looking(), PrivacyLedger(ADD_OR_REMOVE)
    with pytest.raises(InvalidParameter, match=r"(?s)to be given under add/remove.*private.*Give constants") as caught:
        optimizer(engine, ledger=ledger, **changes).invoke(examples(41))
    assert "41" not in str(caught.value)
    assert ledger.plans() == []
    assert engine.shown == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_records_under_add_or_remove_are_nobodys_business(count: int) -> None:
    """If it breaks, an error tells that there are few records, or none: their number is private."""
    ledger = PrivacyLedger(ADD_OR_REMOVE)
    assert optimizer(ledger=ledger).invoke(examples(count)) is not None
    assert used(ledger)["validation"] == 1


def _anywhere(certificate: PrivacyCertificate) -> PrivacyCertificate:
    """The certificate without the random id of its ledger."""
    sources = tuple(dataclasses.replace(source, ledger="") for source in certificate.sources)
    return dataclasses.replace(certificate, sources=sources)


@pytest.mark.parametrize("budget", [ADD_OR_REMOVE], ids=["add or remove"])
@pytest.mark.parametrize("counts", [(40, 41), (0, 200)])
def test_nothing_that_leaves_tells_the_number_of_records(budget: PrivacyBudget, counts: tuple[int, int]) -> None:
    """If it breaks, prompt, settings or certificate hold a number that follows the data."""
    seen = []
    for count in counts:
        made = optimizer(WordEngine(lambda place, asked: None), budget=budget)
        prompt = made.optimize(examples(count))
        paper = _anywhere(prompt.certificate).to_dict()
        seen.append(prompt.to_dict() | {"created": "", "certificate": paper})
    assert seen[0] == seen[1]


def test_the_plan_holds_one_event_for_either_part() -> None:
    """If it breaks, tokens and selection are charged as if one record could be in both, or in neither."""
    ledger = PrivacyLedger(BUDGET)
    made = optimizer(ledger=ledger)
    made.invoke(examples())
    [plan] = ledger.plans()
    events = {event.part: (event.event, most) for event, most in plan.events}
    assert set(events) == {TRAINING, VALIDATION}
    assert events[TRAINING] == (LimitedDomainEvent(4.0, 1e-3, 1.0, "fixed"), 16)
    assert events[VALIDATION][1] == 1
    assert (plan.epsilon, plan.delta) == (200.0, 0.1)
    assert epsilon(plan.events, plan.delta) <= plan.epsilon
    assert made.certificate().epsilon == 200.0


@pytest.mark.parametrize("budget", [BUDGET, ZERO_OUT, ADD_OR_REMOVE], ids=lambda budget: budget.neighbors.name)
def test_what_is_chosen_fits_the_budget(budget: PrivacyBudget) -> None:
    """If it breaks, the noise that is chosen by itself costs more than was promised, or leaves half of it unused."""
    share = dataclasses.replace(budget, epsilon=30.0, delta=1e-3)
    made = optimizer(budget=share, **CHOSEN)
    report = made.plan(examples())
    cost = epsilon([(report.token, 16)], share.delta, neighbors=share.neighbors)
    assert 29.0 < cost <= 30.0


@pytest.mark.parametrize("budget", [BUDGET, ZERO_OUT, ADD_OR_REMOVE], ids=lambda budget: budget.neighbors.name)
def test_a_plan_shows_what_a_run_reserves_and_reserves_nothing(budget: PrivacyBudget) -> None:
    """If it breaks, the plan that a user agreed to is another one than is charged, or looking at it costs something."""
    ledger = PrivacyLedger(budget)
    engine = Looking()
    made = optimizer(engine, ledger=ledger)
    report = made.plan(examples())
    assert (ledger.plans(), ledger.reserved(), list(ledger.entries())) == ([], (0.0, 0.0), [])
    assert engine.shown == []
    assert engine.calls == []
    made.invoke(examples())
    [plan] = ledger.plans()
    assert dict(plan.events) == {
        PartEvent(TRAINING, report.token): report.max_calls,
        PartEvent(VALIDATION, report.selection): 1,
    }
    assert (report.budget.epsilon, report.budget.delta) == (plan.epsilon, plan.delta)
    parameters = made.certificate().parameters
    assert report.scheme.groups == parameters["groups"]
    assert report.scheme.sampling_probability == parameters["sampling_probability"]
    assert parameters["votes_needed"] - 1 < report.votes_needed <= parameters["votes_needed"]
    assert made.plan(40).token == report.token  # after the run, over a ledger that is full
    assert str(made.plan(examples())) == str(report)


def test_a_plan_tells_whether_votes_can_win() -> None:
    """If it breaks, the chances in the plan are not those of the mechanism."""
    report = optimizer().plan(examples())
    assert report.chance(1.0) > 0.999
    assert report.chance(report.votes_needed / 16) == pytest.approx(0.5)
    assert 0 < report.chance(0.1) < 0.01
    text = str(report)
    for part in ("epsilon=200", "16 at most", "16 subsets", "q = 1", "epsilon0 = 4", "a token needs about 5 votes"):
        assert part in text
    assert " without)\n" in text  # no time: the fake does not know its speed


def test_a_plan_estimates_time_and_memory_of_an_engine_that_knows_them() -> None:
    """If it breaks, a user starts a run that takes a week."""

    class Quick(WordEngine):
        def tokens_per_second(self) -> float:
            return 100.0

        def bytes_per_token(self) -> int:
            return 2**20

    report = optimizer(Quick(agreeing(SENTENCE))).plan(examples())
    assert report.seconds == (report_total(report) + 5 * 16 * report.max_calls) / 100
    assert report.cache_bytes is not None
    assert report.cache_bytes > 16 * report.subset_tokens * 2**20
    assert f" without), about {took(report.seconds)}, " in str(report)
    assert "GiB of caches" in str(report)


def report_total(report: OptPlanReport) -> float:
    assert 0 < report.warm_tokens <= report.cold_tokens
    return report.warm_tokens


def test_a_plan_that_the_ledger_has_no_room_for_is_refused() -> None:
    """If it breaks, a plan looks fine that the run will refuse."""
    ledger = PrivacyLedger(BUDGET)
    optimizer(ledger=ledger, name="first", budget=PrivacyBudget(150.0, 0.09)).invoke(examples())
    with pytest.raises(BudgetExceeded, match=r"only epsilon=50, delta=0\.01 are not reserved yet"):
        optimizer(ledger=ledger, budget=PrivacyBudget(100.0, 0.01)).plan(examples())
    assert optimizer(ledger=ledger, budget=PrivacyBudget(50.0, 0.01), delta0=1e-4, max_calls=3).plan(examples())


def test_resampling_is_for_add_or_remove_only() -> None:
    """If it breaks, a scheme is used for which nobody has a proof."""
    for neighbors in (Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL):
        ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1, neighbors))
        engine = Looking()
        made = optimizer(engine, ledger=ledger, sampling="resample", partitions=None, subsets=16)
        for ask in (made.invoke, made.plan):
            with pytest.raises((UnsupportedEvent, InvalidParameter), match=r'add/remove only: use sampling="fixed"'):
                ask(examples())
        assert ledger.plans() == []
        assert engine.shown == []


def test_a_weak_promise_says_so_also_after_a_restart(tmp_path: Path) -> None:
    """If it breaks, hardly anything is promised for a prompt, and neither plan nor run nor certificate says it."""
    said = ["epsilon=200 is above 10", "delta=0.1 is not below one over the number of records"]
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1), tmp_path / "ledger")
    made = optimizer(ledger=ledger)
    for act in (lambda: made.plan(examples()), lambda: made.invoke(examples())):
        with pytest.warns(UserWarning, match="The promise is weak") as warned:
            act()
        assert [each in str(w.message) for each, w in zip(said, warned, strict=True)] == [True, True]
    for each in said:
        assert f"WARNING      {each}" in str(made.plan(examples()))
        assert [each in note for note in made.certificate().notes].count(True) == 1
    notes = made.certificate().notes
    ledger.close()
    with PrivacyLedger(PrivacyBudget(200.0, 0.1), tmp_path / "ledger") as again:
        assert optimizer(ledger=again).certificate().notes == notes


def test_where_the_number_of_records_is_private_no_warning_depends_on_it() -> None:
    """If it breaks, whether there is a warning, or what it says, tells how many records there are."""
    found = set()
    for count in (4, 40, 44):
        made = optimizer(budget=ADD_OR_REMOVE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.invoke(examples(count))
            weak = made.plan(examples(count)).weak
        notes = tuple(note for note in made.certificate().notes if "promise" in note)
        found.add((tuple(str(warning.message) for warning in caught), notes, weak))
    [(told, _, weak)] = found
    assert len(told) == 4
    assert "one over the number of subsets" in weak[1]
