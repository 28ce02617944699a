"""Neighbors are neighbors, a worst pair is one, and the worst-case model does what its docstring says."""

from __future__ import annotations

import inspect
import math
import textwrap
from typing import Any

import numpy as np
import pytest
from fakes.voters import is_invented
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.accounting import Neighbors
from langchain_dp.audit import AuditResult, NamingEngine, audit_mechanism, canary_pair, check_neighbors, worst_margin
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
def test_neighbours_pass(neighbors: Any, one: list[Any], other: list[Any]) -> None:
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
    """If it breaks, the worst case is none, or no neighbours."""
    pair = canary_pair(("yes", "no", "so"), (2, 3, 1), neighbors=neighbors)
    check_neighbors(pair.one, pair.other, neighbors)
    assert [row["label"] for row in pair.one].count("yes") == 3
    assert [row["label"] for row in pair.other].count("no") == (4 if neighbors is ONE else 3)
    assert len({row["text"] for row in pair.one}) == 7
    assert "yes" not in repr(pair)


def test_pairs_that_cannot_be_are_refused() -> None:
    """If it breaks, labels and votes are shifted against each other, or a chain is given a ghost."""
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


def test_labels_of_a_pair_are_different() -> None:
    """If it breaks, a "pair" of two equal data sets is audited, and nothing is found."""
    with pytest.raises(InvalidParameter, match="labels"):
        canary_pair(["yes", "no", "yes"], [0, 3, 1])


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
