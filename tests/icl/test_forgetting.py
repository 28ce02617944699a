"""Records come and go; each edit touches one subset, and what was spent stays spent."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.voters import VotingChat, VotingEngine, VotingLLM, classifier, left, private_examples

from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import AMAZON


def members(engine: VotingEngine) -> dict[Any, str]:
    """What each member was asked last: key -> private text."""
    return {prompt.member: prompt.body for prompt in engine.calls[-1]}


@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_a_forgotten_text_is_in_no_prompt_any_more(sampling: Any) -> None:
    """The model still sees a record that was forgotten."""
    model = VotingChat()
    chain = classifier(model, sampling=sampling, partitions=8 if sampling == "fixed" else None)
    chain.invoke("x")
    assert any("note 005" in prompt for prompt in model.asked.prompts)
    chain.forget("#5")
    model.asked.clear()
    chain.batch(["x", "y", "z"])
    assert len(model.asked) >= 3
    assert not any("note 005" in prompt for prompt in model.asked.prompts)
    assert sum("note 006" in prompt for prompt in model.asked.prompts) == 3


def test_forgetting_changes_one_subset_and_leaves_the_others_byte_by_byte() -> None:
    """An edit moves other records about: more than one vote changes, and caches are lost or wrongly kept."""
    engine = VotingEngine()
    chain = classifier(engine)
    chain.invoke("x")
    before, [stale] = members(engine), [key for key, body in members(engine).items() if "note 005" in body]
    chain.forget("#5")
    assert engine.forgotten == [stale]
    chain.invoke("x")
    after = members(engine)
    assert len(after) == 8
    assert stale not in after
    assert {key: body for key, body in after.items() if key in before} == {
        key: body for key, body in before.items() if key != stale
    }
    [changed] = [body for key, body in after.items() if key not in before]
    kept = [line for line in before[stale].split("\n\n") if "note 005" not in line]
    assert changed.split("\n\n") == kept


def test_adding_changes_one_subset_and_leaves_the_others_byte_by_byte() -> None:
    """A new record re-deals the others, or is put beside its subset's stale cache."""
    engine = VotingEngine()
    chain = classifier(engine)
    chain.invoke("x")
    before = members(engine)
    record_id = chain.add({"text": "brand new", "label": "negative"})
    assert len(engine.forgotten) == 1
    chain.invoke("y")
    after = members(engine)
    [(_, changed)] = [(key, body) for key, body in after.items() if key not in before]
    [stale] = [key for key in before if key not in after]
    assert engine.forgotten == [stale]
    assert changed == before[stale] + "Text: brand new\nLabel: negative\n\n"
    chain.forget(record_id)
    chain.invoke("z")
    assert sorted(members(engine).values()) == sorted(before.values())


def test_a_text_forgotten_while_it_is_scored_does_not_come_back_into_the_cache() -> None:
    """A release under way puts the forgotten text back into the engine's caches after forget() has returned."""
    scoring, go_on = threading.Event(), threading.Event()

    def during() -> None:
        scoring.set()
        go_on.wait(30)

    engine = VotingEngine(during=during)
    chain = classifier(engine)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(chain.invoke, "x")
        assert scoring.wait(30)
        chain.forget("#5")
        go_on.set()
        under_way.result(30)
    assert not any("note 005" in body for body in engine.cache.values())
    assert len(engine.cache) == 7


@pytest.mark.parametrize(("neighbors", "left_then"), [(Neighbors.REPLACE_ONE, 3), (Neighbors.ADD_OR_REMOVE_ONE, 4)])
def test_asking_again_does_not_show_that_a_record_was_forgotten(neighbors: Neighbors, left_then: int) -> None:
    """If it breaks, under add/remove a question that costs again tells that the forgotten record existed."""
    examples = [{**example, "id": f"p{i}"} for i, example in enumerate(private_examples(24))]
    chain = classifier(examples=examples, budget=PrivacyBudget(50.0, neighbors=neighbors))
    chain.invoke("x")
    chain.forget("p1")
    chain.invoke("x")
    assert asyncio.run(chain.ainvoke("x")) == "positive"
    assert left(chain) == left_then


@pytest.mark.parametrize("blank", [None, math.nan, " "])
def test_a_new_record_without_an_id_is_not_numbered_however_it_has_none(blank: Any, tmp_path: Path) -> None:
    """If it breaks, the private number of records is told, or replicas forget another record than the one asked for."""
    ids = []
    for count in (23, 24):
        examples = [{**example, "id": f"p{i}"} for i, example in enumerate(private_examples(count))]
        chain = classifier(examples=examples, budget=PrivacyBudget(50.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE))
        ids += [chain.add({"text": "new", "label": "positive", **row}) for row in ({}, {"id": blank})]
        assert chain.add({"text": "new", "label": "positive", "id": "mine"}) == "mine"
        chain.forget(ids[-1])
    assert len(set(ids)) == 4
    assert not [one for one in ids if len(one) != 16 or "#" in one]
    named = [{**row, "id": str(place)} for place, row in enumerate(private_examples(24))]
    with PrivacyLedger(PrivacyBudget(50.0), tmp_path / "ledger") as ledger:
        chain = classifier(examples=named, ledger=ledger, replicas=True)
        assert not chain.add({"text": "x", "label": "positive", "id": blank}).startswith("#")
        chain.forget("12")
        with pytest.raises(InvalidParameter, match="a record of this id was forgotten"):
            chain.add({"text": "x", "label": "positive", "id": 12.0})


def test_resampled_subsets_leave_nothing_in_the_engine() -> None:
    """Subsets that never come back fill the engine's caches with private text."""
    engine = VotingEngine()
    classifier(engine, sampling="resample", partitions=None).invoke("x")
    assert engine.calls
    assert engine.cache == {}


@pytest.mark.parametrize("neighbors", list(map(Neighbors, (Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE))))
def test_edits_change_neither_the_spent_budget_nor_the_constants(neighbors: Neighbors) -> None:
    """Forgetting gives budget back, or the rates follow the number of records."""
    examples = [{**example, "id": f"p{i}"} for i, example in enumerate(private_examples(24))]
    chain = classifier(examples=examples, budget=PrivacyBudget(50.0, neighbors=neighbors))
    chain.invoke("x")
    before, scheme, sigma = chain.certificate(), chain.scheme, chain.sigma
    for record_id in ("p1", "p2", "p3"):
        chain.forget(record_id)
    for _ in range(10):
        chain.add({"text": "new", "label": "positive"})
    assert chain.certificate() == before
    assert (chain.scheme, chain.sigma) == (scheme, sigma)
    assert left(chain) == 4


def test_all_records_can_be_forgotten_and_an_answer_still_comes() -> None:
    """An empty record set raises: it shows that it is empty."""
    model = VotingChat()
    chain = classifier(model)
    for record_id in [f"#{i}" for i in range(24)]:
        chain.forget(record_id)
    assert chain.invoke("x") in chain.labels
    assert len(model.asked) == 0
    assert left(chain) == 4


def test_two_chains_over_one_record_set_forget_on_their_own() -> None:
    """A record that one chain forgot cannot be forgotten by the other, which goes on using it."""
    records, models = PrivateRecords(private_examples(24)), [VotingLLM(), VotingLLM()]
    first, second = (classifier(model, examples=records) for model in models)
    first.forget("#5")
    second.forget("#5")
    records.forget("#6")
    for chain in (first, second):
        chain.invoke("x")
    for model in models:
        assert not any("note 005" in prompt for prompt in model.asked.prompts)
        assert any("note 006" in prompt for prompt in model.asked.prompts)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"text": "new", "label": "green"}, r"label of the example to be one of labels=\['positive', 'negative'\]"),
        ({"text": "new"}, "the example to have a non-empty str under 'label'"),
        ({"text": " ", "label": "positive"}, "under 'text'"),
        ({"label": "positive"}, "under 'text'"),
        ("new", "the example to be a mapping with text and label, not str"),
    ],
)
def test_a_bad_record_is_refused_and_nothing_changes(example: Any, message: str) -> None:
    """A refused record is half in: it has a subset but no id to forget it by."""
    engine = VotingEngine()
    chain = classifier(engine)
    chain.invoke("x")
    before = members(engine)
    with pytest.raises(InvalidParameter, match=message):
        chain.add(example)
    titled = classifier(examples=[{**one, "title": "t"} for one in private_examples(24)], prompt=AMAZON)
    with pytest.raises(InvalidParameter, match=r"the example to have the prompt's keys, but \['title'\] are missing"):
        titled.add({"text": "new", "label": "positive"})
    with pytest.raises(InvalidParameter, match="id of the example not to start with '#'"):
        chain.add({"text": "new", "label": "positive"}, record_id="#0")
    with pytest.raises(InvalidParameter, match="record_id to be a known id"):
        chain.forget("nobody")
    chain.invoke("y")
    assert members(engine) == before
    assert engine.forgotten == []


def test_places_are_no_names_under_add_remove() -> None:
    """forget("#7") removes another record in a neighboring data set, and two votes move."""
    chain = classifier(budget=PrivacyBudget(50.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE))
    with pytest.raises(InvalidParameter, match="record_id='#7' to be a given id under add/remove"):
        chain.forget("#7")


@pytest.mark.parametrize("given", [{"text": CANARY, "label": "positive"}, CANARY, [CANARY], None, "MRN-4711"])
def test_who_forgets_by_the_record_and_not_by_its_id_does_not_see_it_in_the_error(given: Any) -> None:
    """forget(row) is tried before the page is read, and the row ends in a log or an error reporter."""
    chain, records = classifier(), PrivateRecords(private_examples(24))
    for forget in (chain.forget, records.forget):
        with pytest.raises(InvalidParameter, match=f"record_id( of type {type(given).__name__}|=None|) to be a"):
            forget(given)
        with pytest.raises(InvalidParameter) as caught:
            forget(given)
        assert CANARY not in str(caught.value)
        assert "MRN" not in str(caught.value)
