"""Public questions that llama.cpp cannot read, asked of private chains over its models: refused before the charge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.synthesizers import ANSWERS, entries, generator
from fakes.voters import classifier, left
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp, LlamaCppEnsemble

from langchain_dp import PrivacyLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ChatDPICL

QUESTIONS = ["!" * 9_000, "where is it " * 900]
WAYS: dict[str, Callable[[Any, str], Any]] = {
    "invoke": lambda chain, text: chain.invoke(text),
    "batch": lambda chain, text: chain.batch(["a plain text", text]),
    "ainvoke": lambda chain, text: asyncio.run(chain.ainvoke(text)),
    "abatch": lambda chain, text: asyncio.run(chain.abatch(["a plain text", text])),
    "chat": lambda chain, text: ChatDPICL(classifier=chain).invoke(text),
}


@pytest.fixture(scope="module")
def chat(tiny_gguf: str) -> Iterator[ChatLlamaCpp]:
    model = ChatLlamaCpp(model_path=tiny_gguf, n_ctx=1024, max_tokens=4, n_threads=1, temperature=0)
    yield model
    model.close()


@pytest.mark.parametrize("text", QUESTIONS, ids=["marks", "words"])
@pytest.mark.parametrize("way", WAYS)
def test_a_question_that_a_chat_model_cannot_read_is_not_charged(chat: ChatLlamaCpp, way: str, text: str) -> None:
    """If it breaks, a question longer than the context, or a run of marks, is charged and called an outage."""
    for model in (chat, chat.bind(max_tokens=2)):
        chain = classifier(model, labels=["positive", "negative"])
        with pytest.raises(InvalidParameter, match=r"n_ctx=1024|no run of more than"):
            WAYS[way](chain, text)
        assert left(chain) == 5


@pytest.mark.parametrize("text", QUESTIONS, ids=["marks", "words"])
def test_a_question_that_an_engine_cannot_read_is_not_charged(tiny_gguf: str, text: str) -> None:
    """If it breaks, an engine's refusal of a question is called an outage, or is charged."""
    with LlamaCppEnsemble(model_path=tiny_gguf, slots=4, max_tokens=512, n_threads=1) as engine:
        chain, ledger = classifier(engine), PrivacyLedger(ANSWERS)
        replies = generator(engine, ledger=ledger)  # type: ignore[arg-type]  # of its port
        for ask in (chain.invoke, replies.invoke, lambda asked: replies.batch(["where is it", asked])):
            with pytest.raises(InvalidParameter):
                ask(text)
        assert (left(chain), entries(ledger)) == (5, 0)
