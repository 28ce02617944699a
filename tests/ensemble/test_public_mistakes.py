"""A mistake in a public input is named as one, before anything is charged, whatever the model says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import SENTENCE, examples, optimizer
from fakes.scorer import WordScorer
from fakes.synthesizers import entries, generator, rows, synthesizer
from fakes.voters import VotingChat, VotingEngine, classifier, left
from langchain_core.output_parsers import StrOutputParser

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.ensemble.engine_calls import count_publicly
from langchain_dp.errors import InvalidParameter, LangChainDPError, ModelUnavailable
from langchain_dp.icl import ChatDPICL
from langchain_dp.synth import ChatDPGenerator

MARKS = "!" * 9_000
_TEXT = StrOutputParser()
WAYS: dict[str, Callable[[Any, str], Any]] = {
    "invoke": lambda chain, text: chain.invoke(text),
    "batch": lambda chain, text: chain.batch(["a plain text", text]),
    "stream": lambda chain, text: list(chain.stream(text)),
    "ainvoke": lambda chain, text: asyncio.run(chain.ainvoke(text)),
    "abatch": lambda chain, text: asyncio.run(chain.abatch(["a plain text", text])),
}


class _Picky:
    """Tokenizes no run of marks: as a library does that fails on one, and as an engine of this package says it."""

    error: type[Exception] = ValueError
    dead = False

    def count_tokens(self, text: str) -> int:
        if self.dead or MARKS in text:
            raise self.error(f"no tokens in {text}")
        return super().count_tokens(text)  # type: ignore[misc, no-any-return]  # of the engine beside it


class PickyEngine(_Picky, VotingEngine):
    pass


class PickyScorer(_Picky, WordScorer):
    pass


class PickyWords(_Picky, WordEngine):
    pass


class CheckingChat(VotingChat):
    """A chat model that can check a prompt: no run of marks, 4,000 characters at most."""

    keeps_no_prompts: ClassVar[bool] = True

    def check_prompt(self, messages: Any) -> None:
        text = "".join(message.text for message in messages)
        if MARKS in text or len(text) > 4_000:
            raise InvalidParameter(f"Expected a prompt of {len(text)} characters to have at most 4,000. Shorten it.")


@pytest.mark.parametrize("error", [ValueError, ModelUnavailable, InvalidParameter])
@pytest.mark.parametrize("way", WAYS)
def test_a_question_without_tokens_is_the_callers_mistake(way: str, error: type[Exception]) -> None:
    """If it breaks, a question that an engine cannot tokenize is called an outage, or is charged."""
    engine = PickyEngine()
    engine.error = error
    for chain in (classifier(engine), ChatDPICL(classifier=classifier(engine))):
        with pytest.raises(InvalidParameter):
            WAYS[way](chain, MARKS)
        assert left(getattr(chain, "classifier", chain)) == 5


@pytest.mark.parametrize("wrapped", [lambda chat: chat, lambda chat: chat.bind(stop=["x"]), lambda chat: chat | _TEXT])
@pytest.mark.parametrize("text", [MARKS, "word " * 900])
@pytest.mark.parametrize("way", WAYS)
def test_a_question_that_a_chat_model_refuses_is_not_charged(way: str, text: str, wrapped: Any) -> None:
    """If it breaks, a question longer than the context costs an answer and is called an outage."""
    chain = classifier(wrapped(CheckingChat()))
    for face in (chain, ChatDPICL(classifier=chain)):
        with pytest.raises(InvalidParameter, match="at most 4,000"):
            WAYS[way](face, text)
    assert "at most 4,000" in chain.as_tool().invoke({"text": text})
    assert left(chain) == 5
    assert chain.invoke("a plain text") == "positive"


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_generator_refuses_a_question_without_tokens(way: str) -> None:
    """If it breaks, a written answer to a question that cannot be tokenized is charged, or ends in a raw error."""
    ledger = PrivacyLedger(PrivacyBudget(8.0, 1e-5))
    chain = generator(PickyScorer(), ledger=ledger)
    before = entries(ledger)
    for face in (chain, ChatDPGenerator(generator=chain)):
        with pytest.raises(InvalidParameter):
            WAYS[way](face, MARKS)
    assert entries(ledger) == before


def test_a_public_text_that_no_model_takes_is_refused_before_the_charge() -> None:
    """If it breaks, a label, instruction or candidate that is unreadable stops a run midway, or is an outage."""
    ledger = PrivacyLedger(PrivacyBudget(3.0, 1e-5))
    with pytest.raises(InvalidParameter):
        synthesizer(PickyScorer(), ledger=ledger, labels={"delivery": MARKS, "billing": "invoices"}).invoke(rows())
    assert entries(ledger) == 0
    with pytest.raises(InvalidParameter):
        optimizer(PickyWords(agreeing(SENTENCE)), instruction=MARKS)
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1))
    engine = WordEngine(agreeing(SENTENCE), max_prompt_tokens=300)
    long = optimizer(engine, ledger=ledger, alternatives=["Decide. " * 200])
    with pytest.raises(InvalidParameter, match="Shorten it"):
        long.invoke(examples())
    assert entries(ledger) == 0


def test_an_outage_is_no_mistake_of_the_caller_and_errors_show_no_text() -> None:
    """If it breaks, an outage is blamed on the question, or what a library says of a text is in our error."""
    engine = PickyEngine()
    assert count_publicly(engine, "a plain text") > 0
    engine.dead = True
    with pytest.raises(ModelUnavailable):
        count_publicly(engine, "a plain text")
    with pytest.raises(LangChainDPError) as caught:
        count_publicly(PickyEngine(), f"secret {MARKS}")
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_what_a_model_of_ours_refuses_in_public_is_said_whole() -> None:
    """If it breaks, the reason for a refused public question is withheld, and nobody learns that it was too long."""

    class Refusing(VotingChat):
        keeps_no_prompts: ClassVar[bool] = True

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if MARKS in messages[-1].text:
                raise InvalidParameter("Expected a prompt of this kind to be shorter.")
            return super()._generate(messages, *args, **kwargs)

    chain = classifier(Refusing())
    chain.invoke("a plain text")
    with pytest.raises(ModelUnavailable, match="to be shorter"):
        chain.invoke(MARKS)
