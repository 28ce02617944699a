"""A decision model as the voter of DP-ICL: each subset's prompt is a state, and its choice is the vote."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.voters import LABELS, Shots, VotingChat, classifier, failing, left
from langchain_core.caches import InMemoryCache
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp.errors import ModelUnavailable, UnsafeEnvironment

pytest.importorskip("langchain_core.decisions", reason="needs the extra decisions")
from fakes.decisions import TOKENS, AsyncVotingDecision, Undeclared, VotingDecision
from langchain_core.decisions import Choice


@pytest.mark.parametrize("kind", [VotingDecision, AsyncVotingDecision])
async def test_the_choice_is_the_vote(kind: type[VotingDecision], histograms: list[list[int]]) -> None:
    """If it breaks, no decision model can vote, or votes are charged otherwise than those of a chat model."""
    model = kind()
    chain = classifier(model)
    assert [chain.invoke("x"), await chain.ainvoke("y"), await chain.ainvoke("x")] == ["positive"] * 3
    assert histograms == [[8, 0], [8, 0]]
    assert left(chain) == 3
    assert len(model.chat.asked) == 16
    assert chain.certificate().model == "voting-decision-1"
    [question] = model.questions[-1].values()
    assert isinstance(question, Choice)
    assert list(question.criteria) == LABELS


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "a retry": lambda model: model.with_retry(),
    "a config": lambda model: model.with_config(tags=["a"]),
    "fallbacks": lambda model: model.with_fallbacks([model]),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_wrapped_decision_model_is_one(wrapped: str, histograms: list[list[int]]) -> None:
    """If it breaks, a decision model with retries gets messages in place of a request, and fails on all of them."""
    assert classifier(WRAPPED[wrapped](VotingDecision())).invoke("x") == "positive"
    assert histograms == [[8, 0]]


def private_only(reply: Any) -> Any:
    """A reply to prompts with private shots; public ones get a label."""
    return lambda shots, question: reply(shots, question) if shots else "positive"


def weather(shots: Shots, question: str) -> str:
    return "weather"


SPOILED: dict[str, Callable[[], VotingDecision]] = {
    "a choice outside of the labels": lambda: VotingDecision(chat=VotingChat(reply=private_only(weather))),
    "a failure": lambda: VotingDecision(chat=VotingChat(reply=private_only(failing))),
    "a probability that is no number": lambda: VotingDecision(
        probability=lambda prompt: math.nan if CANARY in prompt else 0.5
    ),
    "an infinite probability": lambda: VotingDecision(probability=lambda prompt: math.inf if CANARY in prompt else 0.5),
}


@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
async def test_a_spoiled_answer_abstains(spoiled: str, style: str, histograms: list[list[int]]) -> None:
    """If it breaks, an error reveals a record, or nonsense counts as a vote."""
    chain = classifier(SPOILED[spoiled]())
    answer = chain.invoke("x") if style == "invoke" else await chain.ainvoke("x")
    assert answer in LABELS
    assert histograms == [[0, 0]]
    assert left(chain) == 4


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (lambda: VotingDecision(chat=VotingChat(reply=weather, helpful=False)), "'weather', which names none of"),
        (lambda: VotingDecision(probability=lambda prompt: math.nan), "ValueError"),
    ],
)
def test_a_decision_model_that_is_down_costs_nothing(model: Callable[[], VotingDecision], got: str) -> None:
    """If it breaks, a decision model that never answers is paid for noise."""
    chain = classifier(model())
    with pytest.raises(ModelUnavailable, match=got):
        chain.invoke("x")
    assert left(chain) == 5


class Cached(VotingDecision):
    """Keeps a cache of its own."""

    keeps_no_prompts: ClassVar[bool] = True
    cache: Any = None


def test_only_known_declared_or_trusted_decision_models_vote() -> None:
    """If it breaks, a decision model with a memory shows one call the prompt of another."""
    with pytest.raises(UnsafeEnvironment, match="not on the list of known models: Undeclared"):
        classifier(Undeclared())
    assert "Undeclared" in repr(classifier(Undeclared(), trust_opaque_model=True).certificate().notes)
    assert "Not checked: VotingDecision" in repr(classifier(VotingDecision()).certificate().notes)
    classifier(Cached())
    with pytest.raises(UnsafeEnvironment, match="Cached has a cache, which no seal bypasses"):
        classifier(Cached(cache=InMemoryCache()), trust_opaque_model=True)


LOUD: dict[str, Callable[[], VotingDecision]] = {
    "sync": VotingDecision,
    "async": AsyncVotingDecision,
    "failing": lambda: AsyncVotingDecision(chat=VotingChat(reply=private_only(failing))),
}


@pytest.mark.parametrize("loud", LOUD)
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
async def test_no_subset_and_no_token_count_is_traced(loud: str, style: str, tmp_path: Path) -> None:
    """If it breaks, prompts of a decision model, or how long they were, reach a tracer, a callback or a log."""
    with leak_surfaces(tmp_path) as surfaces:
        chain = RunnableLambda(str.strip) | classifier(LOUD[loud]())
        config: Any = {"callbacks": surfaces.handlers}
        answer = chain.invoke("x", config) if style == "invoke" else await chain.ainvoke("x", config)
        assert answer in LABELS
        assert surfaces.where(CANARY) == surfaces.where(str(TOKENS)) == set()
        assert surfaces.where("RunnableSequence") >= {"tracer"}
        request: Any = {
            "state": [HumanMessage(CANARY)],
            "questions": {"label": Choice(instructions="Which?", criteria={"positive": None})},
        }
        bare = RunnableLambda(lambda _: VotingDecision().invoke(request))
        bare.invoke("x", {"callbacks": surfaces.handlers})
        assert surfaces.where(CANARY) >= {"tracer", "handler", "async_handler", "log", "warnings"}
        assert surfaces.where(str(TOKENS)) >= {"tracer", "handler"}
