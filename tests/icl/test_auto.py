"""``DPICLClassifier.auto()`` chooses shots and subsets by public numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.voters import LABELS, VotingChat, private_examples

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import Neighbors
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.report import choose_votes

BUDGET = PrivacyBudget(3.0)


def auto(count: int = 168, **settings: object) -> DPICLClassifier[str]:
    given = {"budget": BUDGET, "max_queries": 100} | settings
    return DPICLClassifier.auto(model=VotingChat(), examples=private_examples(count), labels=LABELS, **given)  # type: ignore[arg-type]


def test_few_examples_are_shown_one_by_one() -> None:
    """If it breaks, 168 examples vote in subsets of four, and a 70% majority drowns in the noise."""
    chain = auto()
    default = DPICLClassifier(
        model=VotingChat(), examples=private_examples(168), labels=LABELS, budget=BUDGET, max_queries=100
    )
    assert chain.plan().survival[0.7] > default.plan().survival[0.7] + 0.1
    assert chain.invoke("Was it good?") in LABELS
    assert chain.certificate().epsilon == 3.0


def test_a_handful_of_examples_gets_a_choice_and_many_keep_four_shots_and_ten_subsets() -> None:
    """If it breaks, the smallest data sets end in a traceback, or a rich one pays for more calls than it needs."""
    for records in (1, 3, 9, 40):
        shots, subsets = choose_votes(BUDGET, records=records, labels=2, max_queries=10)
        assert 1 <= shots * subsets <= records
    assert choose_votes(BUDGET, records=8000, labels=4, max_queries=100) == (4, 10)


def test_a_restart_keeps_the_plan_s_own_choice(tmp_path: Path) -> None:
    """If it breaks, ten further rows change the choice, and a running service does not start again."""
    place = tmp_path / "privacy.ledger"
    with PrivacyLedger(BUDGET, place) as ledger:
        first = auto(400, ledger=ledger, budget=None)
        first.invoke("Was it good?")
        settings = ledger.plan("dp-icl").settings  # type: ignore[union-attr]  # made by the chain
    with PrivacyLedger(BUDGET, place) as ledger:
        assert choose_votes(BUDGET, records=8000, labels=2, max_queries=100) != (settings["shots"], settings["subsets"])
        again = auto(400, ledger=ledger, budget=None)
        assert again.certificate().remaining == 99


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shots": 2}, r"Expected shots= to be left out of auto\(\)"),
        ({"sampling": "resample"}, r"Expected sampling= to be left out"),
        ({"budget": PrivacyBudget(3.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)}, "number of examples is private"),
        ({"max_queries": 0}, "max_queries=0"),
    ],
)
def test_what_cannot_be_chosen_is_refused(settings: dict[str, object], says: str) -> None:
    """If it breaks, a setting is silently replaced, or follows from a private number."""
    with pytest.raises(InvalidParameter, match=says):
        auto(**settings)
