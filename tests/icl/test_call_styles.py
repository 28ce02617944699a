"""Every way in which LangChain calls a Runnable, around every kind of model, scheme and neighbors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.voters import (
    AsyncVotingChat,
    VotingChat,
    VotingEngine,
    VotingLLM,
    classifier,
    left,
    private_examples,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnableParallel, RunnablePassthrough

from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.errors import BudgetExceeded, InvalidParameter, ModelUnavailable, UnsupportedEvent
from langchain_dp.icl import AMAZON
from langchain_dp.records import check_records


def test_invoke_asks_every_subset_once_with_its_own_shots() -> None:
    """A subset is asked twice or not at all, or sees another subset's examples."""
    model = VotingChat()
    chain = classifier(model)
    assert chain.invoke("how is it?") == "positive"
    assert len(model.asked) == 8
    assert {len(shots) for shots in model.asked.shots} == {3}
    seen = [question for shots in model.asked.shots for question, _ in shots]
    assert len(set(seen)) == len(seen) == 24
    assert set(model.asked.questions) == {"Text: how is it?\nLabel:"}
    assert left(chain) == 4


async def test_a_stream_gives_the_label_in_one_piece() -> None:
    """A stream shows anything before the noise was drawn, or another label than most examples have."""
    chain = classifier(AsyncVotingChat(), examples=private_examples(24, labels=["negative"]))
    assert list(chain.stream("x")) == [chunk async for chunk in chain.astream("y")] == ["negative"]


async def test_inside_a_chain_it_is_a_runnable_like_others() -> None:
    """The classifier cannot follow a prompt, precede a parser or run beside others."""
    chain: Any = PromptTemplate.from_template("{topic}, please") | (lambda value: value.text) | classifier()
    assert (chain | StrOutputParser()).invoke({"topic": "news"}) == "positive"
    both = RunnableParallel(label=classifier(AsyncVotingChat()), text=RunnablePassthrough())
    assert both.invoke("x") == {"label": "positive", "text": "x"}
    assert await both.ainvoke("y") == {"label": "positive", "text": "y"}


CASES = [
    (sampling, neighbors)
    for sampling in ("fixed", "resample")
    for neighbors in (Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL)
    if (sampling, neighbors) != ("resample", Neighbors.REPLACE_SPECIAL)
]


@pytest.mark.parametrize(("sampling", "neighbors"), CASES)
def test_both_schemes_work_under_every_neighbors(sampling: Any, neighbors: Neighbors) -> None:
    """A scheme cannot be used under one of the neighboring relations, or ends without noise or certificate."""
    model = VotingChat()
    chain = classifier(
        model,
        sampling=sampling,
        partitions=8 if sampling == "fixed" else None,
        budget=PrivacyBudget(50.0, neighbors=neighbors),
        max_queries=1,
    )
    answer = chain.invoke_with_certificate("x")
    assert answer.label == "positive"
    assert answer.certificate.neighbors is neighbors
    assert answer.certificate.parameters["sampling"] == sampling
    assert 1 <= len(model.asked) <= 8
    assert sum(len(shots) for shots in model.asked.shots) == 24


def test_resampling_under_zero_out_is_refused_before_anything_is_reserved() -> None:
    """If it breaks, a ghost's slot is charged like a slot of its own, or the remedy is not said."""
    ledger = PrivacyLedger(PrivacyBudget(50.0, neighbors=Neighbors.REPLACE_SPECIAL))
    with pytest.raises(UnsupportedEvent, match=r'use sampling="fixed" or Neighbors\.REPLACE_ONE'):
        classifier(VotingChat(), sampling="resample", partitions=None, ledger=ledger)
    assert ledger.plans() == []


@pytest.mark.parametrize(
    "make",
    [
        VotingChat,
        AsyncVotingChat,
        VotingLLM,
        lambda: VotingChat().bind(stop=["x"]),
        lambda: VotingLLM().bind(stop=["x"]),
        lambda: VotingLLM().bind(stop=["x"]).with_retry(),
        lambda: VotingLLM().with_fallbacks([VotingLLM()]),
        lambda: VotingLLM().configurable_fields(helpful=ConfigurableField(id="helpful")),
        lambda: VotingChat() | StrOutputParser(),
        lambda: RunnableLambda(VotingChat().vote),
        VotingEngine,
    ],
    ids=[
        "chat", "async-chat", "llm", "bound-chat", "bound-llm", "retried-llm", "fallback-llm", "configurable-llm",
        "sequence", "function", "engine",
    ],
)  # fmt: skip
async def test_any_kind_of_model_votes(make: Callable[[], Any]) -> None:
    """A kind of model that LangChain knows cannot vote, in sync or in async calls."""
    chain = classifier(make(), trust_opaque_model=True)
    assert chain.invoke("x") == "positive"
    assert await chain.ainvoke("y") == "positive"


def test_a_completion_model_reads_plain_text_with_all_variables_of_the_template() -> None:
    """A completion model is sent chat roles, or a template with two variables cannot be asked, or drops one."""
    examples = [{**example, "title": f"title {i}"} for i, example in enumerate(private_examples(24))]
    model = VotingLLM()
    classifier(model).invoke("how is it?")
    start = "Decide which label fits each text. Labels: positive, negative.\n\nText: note "
    assert model.asked.prompts[0].startswith(start)
    assert model.asked.prompts[0].endswith("\n\nText: how is it?\nLabel:")
    model.asked.clear()
    chain = classifier(model, examples=examples, prompt=AMAZON)
    assert chain.invoke({"title": "A lamp", "text": "It broke."}) == "positive"
    assert model.asked.prompts[0].endswith("Title: A lamp\nReview: It broke.\nSentiment:")
    assert "Title: title" in model.asked.prompts[0]


@pytest.mark.parametrize("face", ["batch", "abatch"])
async def test_what_is_paid_for_leaves_a_chain_with_a_fallback_and_retries(face: str) -> None:
    """If it breaks, the composition of the guide gives the fallback's answer for all of a batch that meets the end."""
    chain = classifier(VotingChat(), max_queries=3)
    instead = RunnableLambda(lambda _: "instead")
    safe = chain.with_fallbacks([instead], exceptions_to_handle=(BudgetExceeded,)).with_retry(
        retry_if_exception_type=(ModelUnavailable,)
    )
    asked = list("abcd")
    answers = safe.batch(asked) if face == "batch" else await safe.abatch(asked)
    assert sorted(answers) == ["instead", *["positive"] * 3]  # threads decide who comes last


@pytest.mark.parametrize("named", [{"text_key": "title"}, {"label_key": "kind"}])
def test_a_template_names_no_field_twice(named: dict[str, str]) -> None:
    """If it breaks, a column called text is silently replaced by the one that is the text, in examples alone."""
    rows = [{"title": f"T{i}", "text": f"own {i}", "kind": "positive", "label": "negative"} for i in range(24)]
    ((option, key),) = named.items()
    kept = option.removesuffix("_key")
    with pytest.raises(InvalidParameter, match=f"template to name '{key}' or '{kept}', not both"):
        check_records(PrivateRecords(rows, **named), None, (key, kept))
    check_records(PrivateRecords(rows, **named), None, (key,))


def test_a_question_s_text_is_what_the_records_text_is() -> None:
    """If it breaks, examples show one column, and the question another one."""
    rows = [{"title": f"T{i}", "text": f"own {i}", "label": "positive"} for i in range(24)]
    model = VotingChat()
    chain = classifier(model, examples=PrivateRecords(rows, text_key="title"), prompt="Text: {text}\nLabel:")
    chain.invoke({"title": "asked", "text": "own"})
    assert set(model.asked.questions) == {"Text: asked\nLabel:"}
