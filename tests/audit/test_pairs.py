"""Neighbors are neighbors, a worst pair is one, and the worst-case model does what its docstring says."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes.voters import is_invented
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda
from scipy.stats import binom

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.accounting import Neighbors
from langchain_dp.audit import (
    AuditResult,
    NamingEngine,
    audit_mechanism,
    canaries_needed,
    canary_pair,
    check_neighbors,
    epsilon_bound,
    lower_limit,
    runs_needed,
    upper_limit,
    worst_margin,
)
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import SamplingOptions

ONE, ADD, ZERO = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
SECRET = "Zebedee"


@pytest.mark.parametrize(
    ("neighbors", "one", "other"),
    [
        (ONE, ["a", "b"], ["a", "c"]),
        ("replace-one", [{"text": "a"}], [{"text": "b"}]),
        (ADD, ["a", "b"], ["a", "x", "b"]),
        (ADD, ["a", "a"], ["a"]),
        (ADD, ["a"], []),
        (ZERO, ["a", None], ["a", "b"]),
    ],
)
def test_neighbors_pass(neighbors: Any, one: list[Any], other: list[Any]) -> None:
    """If it breaks, a proper pair is refused."""
    check_neighbors(one, other, neighbors)
    check_neighbors(other, one, neighbors)


@pytest.mark.parametrize(
    ("neighbors", "one", "other", "said"),
    [
        (ONE, [SECRET, "b"], ["c", "d"], "differ in 2 .positions 0 and 1"),
        (ONE, [SECRET], [SECRET], "differ in 0"),
        (ONE, [SECRET], [SECRET, "b"], "equal length"),
        (ADD, [SECRET, "b"], ["c"], "differ in more"),
        (ADD, [SECRET, "b", "c"], ["c"], "1 and 3 records"),
        (ADD, [SECRET], [SECRET], "1 and 1 records"),
        (ZERO, [SECRET], ["b"], "None, the ghost"),
        (ONE, SECRET, SECRET, "list of records"),
    ],
)
def test_others_are_refused_without_showing_a_record(neighbors: Any, one: Any, other: Any, said: str) -> None:
    """If it breaks, an audit of data sets that differ in two records accuses sound code, or a record is printed."""
    with pytest.raises(InvalidParameter, match=said) as refused:
        check_neighbors(one, other, neighbors)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("neighbors", [ONE, ADD])
def test_a_canary_pair_is_a_pair(neighbors: Neighbors) -> None:
    """If it breaks, the worst case is none, or no neighbors."""
    pair = canary_pair(("yes", "no", "so"), (2, 3, 1), neighbors=neighbors)
    check_neighbors(pair.one, pair.other, neighbors)
    assert [row["label"] for row in pair.one].count("yes") == 3
    assert [row["label"] for row in pair.other].count("no") == (4 if neighbors is ONE else 3)
    assert len({row["text"] for row in pair.one}) == 7
    assert "yes" not in repr(pair)


def test_pairs_that_cannot_be_are_refused() -> None:
    """If it breaks, labels and votes are shifted, a chain is given a ghost, or two equal data sets are audited."""
    with pytest.raises(InvalidParameter, match="labels"):
        canary_pair(["yes", "no", "yes"], [0, 3, 1])
    with pytest.raises(InvalidParameter, match="one number for each of 2"):
        canary_pair(("yes", "no"), (1, 2, 3))
    with pytest.raises(InvalidParameter, match="no example is a ghost"):
        canary_pair(("yes", "no"), (1, 2), neighbors=ZERO)
    with pytest.raises(InvalidParameter, match="votes=-1"):
        canary_pair(("yes", "no"), (1, -1))


def test_the_margin_grows_with_what_can_be_seen() -> None:
    """If it breaks, the canary's label wins too often or never, and the bound is looser than it could be."""
    margins = [worst_margin(1.17, delta=0.01, runs=runs, error=1e-3) for runs in (100, 10_000, 1_000_000)]
    assert margins == sorted(margins)
    assert 2 <= margins[1] <= 4 <= margins[2]  # the likelihood ratio of the claim, e^3, is reached at 3 * 1.17^2 = 4.1
    with pytest.raises(InvalidParameter, match="sigma="):
        worst_margin(math.nan, delta=0.01, runs=10, error=0.1)


def test_records_may_be_arrays() -> None:
    """If it breaks, records that are vectors end in an error of numpy's."""
    one = [np.array([1, 2]), np.array([3, 4])]
    check_neighbors(one, [np.array([1, 2]), np.array([3, 5])], "replace-one")
    check_neighbors(one, one[:1], "add-or-remove-one")
    with pytest.raises(InvalidParameter, match="differ in 0"):
        check_neighbors(one, [np.array([1, 2]), np.array([3, 4])], "replace-one")


def test_the_example_of_the_docstring_is_an_audit() -> None:
    """If it breaks, who copies the example gets an error, or an audit that can see nothing.

    In 400 of 500 runs the canary's label must win at least once: it does in each with probability 0.05.
    """
    code = inspect.getdoc(NamingEngine) or ""
    code = textwrap.dedent(code.split("::\n", 1)[1].split("\nYour own model")[0]).replace("runs=2_000", "runs=500")
    found: list[AuditResult] = []
    names: dict[str, Any] = {
        "DPICLClassifier": DPICLClassifier,
        "SamplingOptions": SamplingOptions,
        "NamingEngine": NamingEngine,
        "PrivacyBudget": PrivacyBudget,
        "audit_mechanism": audit_mechanism,
        "canary_pair": canary_pair,
        "print": found.append,
    }
    exec(code, names)  # the example of this package
    [audited] = found
    assert not audited.violated
    assert audited.hits > audited.other_hits
    assert audited.hits > 0


def test_a_runnable_gets_messages() -> None:
    """If it breaks, a stub that was written as the docstring says reads something else than the last example."""
    seen: list[list[BaseMessage]] = []

    def last(messages: list[BaseMessage]) -> Any:
        seen.append(messages)
        return messages[-2].content

    chain = DPICLClassifier(
        model=RunnableLambda(last), examples=canary_pair(["yes", "no"], [0, 1]).one, labels=["yes", "no"],
        max_queries=1, budget=PrivacyBudget(50.0), shots=1, subsets=1, sampling=SamplingOptions("fixed", 2, 1.0),
        trust_opaque_model=True,
    )  # fmt: skip
    chain.invoke("a question")
    members = [messages for messages in seen if not is_invented(str(messages[1].content))]
    asked = [messages for messages in members if "a question" in str(messages[-1].content)]
    assert {messages[-2].content for messages in asked} == {"yes", "no"}
    assert {len(messages) for messages in asked} == {4}


@pytest.mark.parametrize("runs", [1, 7, 40])
def test_limits_hold_with_the_stated_error_whatever_the_probability(runs: int) -> None:
    """If it breaks, an audit accuses sound code more often than it says. By enumeration: no tolerance."""
    error, hits = 0.05, np.arange(runs + 1)
    low = np.array([lower_limit(int(h), runs, error) for h in hits])
    high = np.array([upper_limit(int(h), runs, error) for h in hits])
    for p in np.linspace(0.001, 0.999, 101):
        law = binom.pmf(hits, runs, p)
        assert law[low > p].sum() <= error + 1e-12
        assert law[high < p].sum() <= error + 1e-12
    assert (low[0], high[-1]) == (0.0, 1.0)
    # a limit that is twice as daring is wrong more often than stated
    daring = np.array([lower_limit(int(h), runs, 3 * error) for h in hits])
    assert runs < 7 or max(binom.pmf(hits, runs, p)[daring > p].sum() for p in np.linspace(0.01, 0.99, 99)) > error


def test_a_bound_disproves_what_the_definition_disproves() -> None:
    """If it breaks, the printed epsilon is not the one that the frequencies exclude."""
    bound = epsilon_bound(900, 100, 1000, delta=0.05, error=1e-3)
    low, high = lower_limit(900, 1000, 5e-4), upper_limit(100, 1000, 5e-4)
    assert low == pytest.approx(math.exp(bound) * high + 0.05)
    assert 1.5 < bound < math.log(0.85 / 0.1)
    assert epsilon_bound(900, 100, 1000, delta=0.9, error=1e-3) == 0.0
    assert epsilon_bound(100, 900, 1000, delta=0.0, error=1e-3) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("claim", [0.0, 1.0, 5.0])
def test_the_runs_that_are_asked_for_are_enough_and_no_fewer_are(claim: float, delta: float) -> None:
    """If it breaks, an audit that can never accuse is run, or one that could is refused."""
    least = runs_needed(claim, delta=delta, error=1e-3)
    assert epsilon_bound(least, 0, least, delta=delta, error=1e-3) > claim
    assert epsilon_bound(least - 1, 0, least - 1, delta=delta, error=1e-3) <= claim + 1e-9


@pytest.mark.parametrize("needed", [lambda claim: runs_needed(claim, delta=0.0, error=0.05),
                                    lambda claim: canaries_needed(claim, error=0.05)])  # fmt: skip
def test_a_claim_that_nothing_disproves_is_refused(needed: Callable[[float], int]) -> None:
    """If it breaks, asking how large an audit must be ends in a division by zero."""
    assert needed(699.0) > 1e300
    with pytest.raises(InvalidParameter, match=r"epsilon=800.*700"):
        needed(800.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hits": 1_500}, "hits=1500"),
        ({"other_hits": -5}, "other_hits=-5"),
        ({"runs": 0}, "runs=0"),
        ({"delta": -0.5}, "delta=-0.5"),
        ({"error": 1.99}, "error=1.99"),
    ],
)
def test_counts_that_are_none_are_refused(changes: dict[str, Any], said: str) -> None:
    """If it breaks, a bound is above what the counts disprove, or zero: nothing disproved."""
    given = {"hits": 900, "other_hits": 100, "runs": 1_000, "delta": 1e-5, "error": 1e-3} | changes
    with pytest.raises(InvalidParameter, match=said):
        epsilon_bound(**given)
    for limit in (lower_limit, upper_limit):
        for wrong in ((150, 100, 0.05), (-3, 100, 0.05), (3, 0, 0.05), (3, 100, 1.5)):
            with pytest.raises(InvalidParameter):
                limit(*wrong)
