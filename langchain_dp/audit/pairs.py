"""Neighboring data sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.budget import neighbors_from
from langchain_dp.audit.bounds import epsilon_bound
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import MemberPrompt

CANARY = "canary"


@dataclasses.dataclass(frozen=True, repr=False)
class CanaryPair:
    """Two neighboring data sets for an audit.

    Args:
        one: Examples with the canary.
        other: The same without it, or with its other version.
        neighbors: Their relation.

    Examples:
        >>> pair = canary_pair(["yes", "no"], votes=[0, 3])
        >>> audit_mechanism(answer, pair.one, pair.other, epsilon=3.0, delta=1e-5, neighbors=pair.neighbors)
    """

    one: tuple[Mapping[str, Any], ...]
    other: tuple[Mapping[str, Any], ...]
    neighbors: Neighbors

    def __repr__(self) -> str:
        return f"CanaryPair({len(self.one)} and {len(self.other)} examples, {self.neighbors.name})"


def canary_pair(
    labels: Sequence[str], votes: Sequence[int], *, neighbors: Neighbors | str = Neighbors.REPLACE_ONE
) -> CanaryPair:
    """Return worst-case examples for a vote in which every example is a subset and names its label (``shots=1``).

    Under replace-one the canary votes for the first label in one data set and the second in the other. Under add/remove
    the other lacks it.

    Args:
        labels: The public labels, at least two.
        votes: Votes of the other examples per label, see :func:`worst_margin`.
        neighbors: Replace-one or add/remove.

    Examples:
        >>> pair = canary_pair(["yes", "no"], votes=[0, 3])
        >>> len(pair.one), len(pair.other)
        (4, 4)
    """
    neighbors = neighbors_from(neighbors)
    for name, given in (("labels", labels), ("votes", votes)):
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise InvalidParameter(
                f"Expected {name} of type {type(given).__name__} to be a list. Give canary_pair(['yes', 'no'], [0, 3])."
            )
    validate.integer("number of labels", len(set(labels)), at_least=2)
    if len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected {len(labels)} labels to be different, but two are the same. Drop one.")
    if len(votes) != len(labels):
        raise InvalidParameter(f"Expected votes of length {len(votes)} to have one number for each of {len(labels)}.")
    for count in votes:
        validate.integer("votes", count, at_least=0)
    if neighbors is Neighbors.REPLACE_SPECIAL:
        raise InvalidParameter(
            f"Expected neighbors={neighbors.name} to be REPLACE_ONE or ADD_OR_REMOVE_ONE: no example is a ghost."
        )
    rest = [
        {"text": f"record {label} {place}", "label": name}
        for label, (name, count) in enumerate(zip(labels, votes, strict=True))
        for place in range(count)
    ]
    here = {"text": CANARY, "label": labels[0]}
    there = [{"text": CANARY, "label": labels[1]}] if neighbors is Neighbors.REPLACE_ONE else []
    return CanaryPair((*rest, here), (*rest, *there), neighbors)


class NamingEngine:
    """A worst-case model for audits: it scores a label by how often a member's examples carry it.

    With one example per subset, a chain over it is the vote of :func:`canary_pair`. It stores prompts, so use made-up
    examples. Each call of an audit needs a fresh chain with its own budget::

        labels, budget = ["yes", "no"], PrivacyBudget(3.0, 0.05)
        pair = canary_pair(labels, votes=[0, 3])

        def answer(examples):
            chain = DPICLClassifier(
                model=NamingEngine(), examples=examples, labels=labels, budget=budget, max_queries=1,
                shots=1, subsets=1, sampling=SamplingOptions("fixed", len(examples), 1.0), calibrate=False,
            )
            return chain.invoke("Is the canary there?")

        print(audit_mechanism(answer, pair.one, pair.other, epsilon=budget.epsilon, delta=budget.delta,
                              neighbors=pair.neighbors, runs=2_000))

    Your own model can be a ``RunnableLambda``, which receives instruction, examples and question as messages.
    ``RunnableLambda(lambda messages: messages[-2].content)`` names the label of the last example.
    """

    name = "a stub that names the label of its examples"
    max_tail_tokens = 1_000

    def __init__(self) -> None:
        self.asked: dict[Hashable, str] = {}
        self.forgotten: list[Hashable] = []

    def count_tokens(self, text: str) -> int:
        """Count words."""
        return len(text.split())

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """Count the examples of each label. A member without any abstains."""
        rows: list[list[float] | None] = []
        for prompt in prompts:
            self.asked[prompt.member] = prompt.body
            row = [float((prompt.body + "\n").count(f"{word}\n")) for word in words]
            rows.append(row if any(row) else None)
        return rows

    def forget(self, *members: Hashable) -> None:
        """Drop these members."""
        for member in members:
            self.forgotten.append(member)
            self.asked.pop(member, None)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Cache these members."""
        self.asked.update({prompt.member: prompt.body for prompt in prompts})


def worst_margin(sigma: float, *, delta: float, runs: int, error: float) -> int:
    """Return the votes by which the canary's label should trail for the largest expected bound on epsilon.

    ``sigma`` is the noise per count, in votes. ``delta``, ``runs`` and ``error`` are those of :func:`epsilon_bound`.

    Examples:
        >>> worst_margin(2.0, delta=1e-5, runs=10_000, error=1e-3)
        6
    """
    sigma = validate.number("sigma", sigma, above=0.0)
    validate.integer("runs", runs, at_least=1)
    spread = math.sqrt(2) * sigma

    def expected(margin: int) -> float:
        hits, other_hits = (round(runs * float(ndtr((gain - margin) / spread))) for gain in (1, -1))
        return epsilon_bound(hits, other_hits, runs, delta=delta, error=error)

    return max(range(math.ceil(8 * sigma) + 1), key=expected)


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal. Incomparable ones are not."""
    if one is other:
        return True
    try:
        if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
            return np.array_equal(one, other)
        return bool(one == other)
    except Exception:  # data of the caller's own kind, whose comparison may do anything
        return False


def check_neighbors(one: Sequence[Any], other: Sequence[Any], neighbors: Neighbors | str) -> None:
    """Require that two data sets differ in exactly one record, in their order. A ghost is None.

    Args:
        one: Records of one data set.
        other: Records of the other.
        neighbors: The relation, or its name.

    Raises:
        InvalidParameter: They do not. The message holds positions, never a record.

    Examples:
        >>> check_neighbors(["a", "b"], ["a", "c"], "replace-one")  # raises nothing: one record differs
    """
    neighbors = neighbors_from(neighbors)
    for name, data in (("one", one), ("other", other)):
        if isinstance(data, (str, bytes)) or not isinstance(data, Sequence):
            raise InvalidParameter(f"Expected {name} of type {type(data).__name__} to be a list of records.")
    if neighbors is Neighbors.ADD_OR_REMOVE_ONE:
        _check_joined(*sorted((one, other), key=len))
        return
    if len(one) != len(other):
        raise InvalidParameter(
            f"Expected one with {len(one)} records and other with {len(other)} to be of equal length under "
            f"{neighbors.name}. Replace one record, or give neighbors=ADD_OR_REMOVE_ONE."
        )
    places = [place for place, (here, there) in enumerate(zip(one, other, strict=True)) if not equal(here, there)]
    if len(places) != 1:
        raise InvalidParameter(
            f"Expected the two data sets to differ in one record, but they differ in {len(places)}"
            f"{f' (positions {places[0]} and {places[1]}, ...)' if places else ''}. Give neighbors: an audit of "
            "others says nothing about the claim."
        )
    ghosts = [data[places[0]] is None for data in (one, other)]
    if neighbors is Neighbors.REPLACE_SPECIAL and sum(ghosts) != 1:
        raise InvalidParameter(
            f"Expected the record at position {places[0]} to be None, the ghost, in one of the two data sets under "
            f"{neighbors.name}."
        )


def _check_joined(fewer: Sequence[Any], more: Sequence[Any]) -> None:
    if len(more) != len(fewer) + 1:
        raise InvalidParameter(
            f"Expected data sets of {len(fewer)} and {len(more)} records to differ by one record under "
            "ADD_OR_REMOVE_ONE. Add one record to one of them."
        )
    at = next((place for place, record in enumerate(fewer) if not equal(record, more[place])), len(fewer))
    if any(not equal(record, more[place + 1]) for place, record in enumerate(fewer[at:], at)):
        raise InvalidParameter(
            f"Expected the shorter data set to be the longer one without one record, but they differ in more (the "
            f"first at position {at}). Give neighbors: an audit of others says nothing about the claim."
        )
