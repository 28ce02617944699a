"""The user as the unit of privacy in a vote: all records of one user sit in one subset."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.scorer import WordScorer

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivateRecords
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.mechanisms import SystemRandomness

LABELS = ["good", "bad"]


def rows(users: int, of_each: int = 1) -> list[dict[str, Any]]:
    return [
        {"id": f"{user}-{each}", "text": f"{user} wrote {each}", "label": LABELS[user % 2], "user": user}
        for user in range(users)
        for each in range(of_each)
    ]


def shown(subsets: SubsetPrompts) -> list[list[str]]:
    """Texts of each subset."""
    return [[text for text, _ in prompt.shots] for prompt in subsets.everyone("?")]


def subsets_of(records: PrivateRecords, groups: int = 4) -> SubsetPrompts:
    scheme = Scheme("fixed", groups, 1.0, even=True)
    return SubsetPrompts(records, scheme, lambda row: (row["text"], row["label"]), SystemRandomness())


@pytest.mark.parametrize("most", [None, 3])
def test_a_user_of_many_records_is_in_one_subset_with_few_of_them(most: int | None) -> None:
    """If it breaks, a user with 200 records moves many votes, or fills a prompt."""
    many = [{"id": f"m{each}", "text": f"x wrote {each}", "label": "bad", "user": "x"} for each in range(200)]
    records = PrivateRecords([*rows(11), *many], user_key="user", records_per_user=most)
    found = [sum(text.startswith("x wrote") for text in texts) for texts in shown(subsets_of(records))]
    assert sorted(found) == [0, 0, 0, most or 1]
    assert sorted(map(len, shown(subsets_of(PrivateRecords([*rows(11), *many], user_key="user"))))) == [3, 3, 3, 3]


def test_records_of_a_user_come_and_go_in_the_subset_of_the_user() -> None:
    """If it breaks, a user's second record joins another subset, or a forgotten user's place goes to another one."""
    records = PrivateRecords(rows(8), user_key="user", records_per_user=2)
    subsets = subsets_of(records)
    before = shown(subsets)
    [place] = [place for place, texts in enumerate(before) if "3 wrote 0" in texts]
    _, stale = subsets.add({"text": "3 wrote again", "label": "bad", "user": 3}, "again")
    after = shown(subsets)
    assert stale is not None
    assert {place} == {at for at, texts in enumerate(after) if texts != before[at]}
    assert "3 wrote again" in after[place]
    assert subsets.add({"text": "3 wrote a third", "label": "bad", "user": 3}, "third")[1] is None  # two are shown
    subsets.forget("3-0")
    assert {"3 wrote again", "3 wrote a third"} <= set(shown(subsets)[place])
    for name in ("again", "third"):
        subsets.forget(name)
    assert not [text for texts in shown(subsets) for text in texts if text.startswith("3 wrote")]
    assert [texts for at, texts in enumerate(shown(subsets)) if at != place] == [
        texts for at, texts in enumerate(before) if at != place
    ]


def test_a_chain_protects_users_and_says_so() -> None:
    """If it breaks, the noise is for a number of records that is not the number of users, or a reader is not told."""
    records = PrivateRecords(rows(20, of_each=5), user_key="user")
    chain = DPICLClassifier(
        model=WordScorer(), examples=records, labels=LABELS, budget=PrivacyBudget(5.0), max_queries=3, shots=2
    )
    assert chain.plan().records == 20
    assert "the promise holds for all records of one user" in chain.certificate().notes
    assert chain.invoke("a question") in LABELS


def test_replicas_refuse_users() -> None:
    """If it breaks, a replica forgets a record and keeps the user's others in another subset."""
    records = PrivateRecords(rows(20), user_key="user")
    with pytest.raises(InvalidParameter, match="without replicas"):
        DPICLClassifier(
            model=WordScorer(), examples=records, labels=LABELS, budget=PrivacyBudget(5.0), max_queries=3, replicas=True
        )
