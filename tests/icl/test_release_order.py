"""Spend first, ask then, count, draw noise, answer; and nothing on the way changes that order."""

from __future__ import annotations

import asyncio
import logging
import threading
import types
from typing import Any

import pytest
from fakes.canary import CANARY, RecordingHandler, Reporting
from fakes.voters import (
    LABELS,
    Shots,
    VotingChat,
    VotingEngine,
    classifier,
    is_invented,
    left,
)
from langchain_core.globals import set_debug
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import BudgetExceeded, ModelUnavailable, UnsafeEnvironment
from langchain_dp.mechanisms import ReportNoisyMax


@pytest.mark.parametrize("kind", ["chat", "engine"])
async def test_the_ledger_is_charged_before_the_model_is_asked(kind: str) -> None:
    """A crash between the model's answer and the charge releases something for free."""
    seen: list[int] = []
    chains: list[DPICLClassifier] = []

    def look(*_: object) -> str:
        seen.append(left(chains[0]))
        return "positive"

    model: Any = (
        VotingChat(reply=lambda shots, _: look() if shots else "") if kind == "chat" else VotingEngine(during=look)
    )
    chains.append(classifier(model))
    chains[0].invoke("x")
    await chains[0].ainvoke("y")
    assert set(seen) == {4, 3}
    assert seen == sorted(seen, reverse=True)


async def test_an_answer_that_cannot_even_be_read_abstains(histograms: list[list[int]]) -> None:
    """An answer of a strange shape raises after the spend, with private text at hand."""
    odd = types.SimpleNamespace(content=[object()])
    chain = classifier(
        RunnableLambda(lambda turns: "positive" if is_invented(turns[1].content) else odd), trust_opaque_model=True
    )
    assert chain.invoke("x") in LABELS
    assert await chain.ainvoke("y") in LABELS
    assert histograms == [[0, 0], [0, 0]]


class _Quits:
    """An answer that ends the process when it is read, and prints and traces what it was made of."""

    def __init__(self, made_of: object) -> None:
        self._made_of = repr(made_of)

    @property
    def label(self) -> str:
        logging.getLogger("odd").warning(self._made_of)
        RunnableLambda(lambda x: x).invoke(self._made_of)
        if "note 000" in self._made_of:
            raise SystemExit(self._made_of)
        return "positive"


async def test_an_answer_that_quits_when_it_is_read_abstains_unseen(
    histograms: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """If it breaks, one record's answer ends a release that was charged, or is logged or traced where it is read."""
    handler = RecordingHandler()
    chain = classifier(RunnableLambda(_Quits), trust_opaque_model=True)
    assert chain.invoke("x", {"callbacks": [handler]}) == "positive"
    assert await chain.ainvoke("y", {"callbacks": [handler]}) == "positive"
    assert histograms == [[7, 0], [7, 0]]
    assert "note" not in caplog.text + repr(handler.seen)


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_a_model_that_hangs_abstains_after_the_timeout(run: str, histograms: list[list[int]]) -> None:
    """A model that never answers holds the release for ever, or takes the answered votes with it."""
    never = threading.Event()

    def reply(shots: Shots, question: str) -> str:
        if any("note 000" in text for text, _ in shots):
            never.wait(60)
        return "positive" if shots else ""

    chain = classifier(VotingChat(reply=reply), timeout=1.0)
    try:
        assert (chain.invoke("x") if run == "sync" else await chain.ainvoke("x")) == "positive"
    finally:
        never.set()
    assert histograms == [[7, 0]]
    assert left(chain) == 4


@pytest.mark.parametrize("make", [VotingChat, VotingEngine])
async def test_a_refused_spend_asks_nobody(make: Any) -> None:
    """The model sees the examples although the budget is gone."""
    model = make()
    chain = classifier(model, max_queries=1)
    chain.invoke("x")
    before = len(model.asked if isinstance(model, VotingChat) else model.calls)
    for question in ("y", "z"):
        with pytest.raises(BudgetExceeded, match="0 of 1 planned releases are left") as caught:
            chain.invoke(question)
        assert caught.value.fits == 0
    with pytest.raises(BudgetExceeded):
        await chain.ainvoke("y")
    assert len(model.asked if isinstance(model, VotingChat) else model.calls) == before
    assert chain.invoke("x") == "positive"  # already released: free


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_a_dead_model_is_found_before_any_spend(run: str) -> None:
    """A wrong key or address burns the budget on abstentions."""

    def dead(shots: Shots, question: str) -> str:
        raise ConnectionError("no route to host")

    model = VotingChat(reply=dead)
    chain = classifier(model)
    with pytest.raises(ModelUnavailable, match=r"voting-chat-1 to answer a public test question.*no route") as caught:
        chain.invoke("x") if run == "sync" else await chain.ainvoke("x")
    assert left(chain) == 5
    assert len(model.asked) == 0
    assert CANARY not in f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_the_probe_keeps_to_the_timeout(run: str) -> None:
    """A model that hangs from the start hangs the first question, whatever the timeout."""
    never = threading.Event()

    def hang(shots: Shots, question: str) -> str:
        never.wait(60)
        return ""

    chain = classifier(VotingChat(reply=hang), timeout=0.2)
    try:
        with pytest.raises(ModelUnavailable, match=r"no answer \(timeout=0.2\)"):
            chain.invoke("x") if run == "sync" else await chain.ainvoke("x")
    finally:
        never.set()
    assert left(chain) == 5


def test_the_probe_is_made_once_and_shows_no_example() -> None:
    """Each question pays for a probe, or the probe shows examples before the spend."""
    model = VotingChat()
    chain = classifier(model)
    chain.batch(["x", "y"], {"max_concurrency": 1})
    assert model.asked.probes == 16  # at once: as many calls may be under way
    assert len(model.asked) == 16
    one = VotingChat()
    classifier(one, max_concurrency=1).batch(["x", "y"], {"max_concurrency": 1})
    assert one.asked.probes == 1


@pytest.mark.parametrize("model", [VotingChat, VotingEngine])
async def test_debug_mode_is_refused_before_the_spend(model: Any) -> None:
    """A release or a baseline prints the examples under debug mode, or is refused after it was paid for."""
    chain = classifier(model())
    chain.invoke("x")
    set_debug(True)
    try:
        for asked in (chain, chain.baseline("vote", private=False)):
            with pytest.raises(UnsafeEnvironment, match="set_debug"):
                asked.invoke("y")
            with pytest.raises(UnsafeEnvironment, match="set_debug"):
                await asked.ainvoke("y")
    finally:
        set_debug(False)
    assert left(chain) == 4


def test_each_entry_of_the_ledger_names_the_chain_and_no_private_text() -> None:
    """The ledger's record of a release cannot be told apart from others', or holds texts."""
    ledger = PrivacyLedger(PrivacyBudget(50.0))
    chain = classifier(ledger=ledger, name="mail sorter")
    chain.invoke("is it spam?")
    [entry] = ledger.entries()
    assert (entry.plan, entry.caller, entry.count) == ("mail sorter", "mail sorter", 1)
    assert CANARY not in repr(entry)
    assert "spam" not in repr(entry)


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt, SystemExit, BudgetExceeded])
@pytest.mark.parametrize("call", ["invoke", "ainvoke", "batch"])
def test_an_error_reporter_sees_no_votes(stop: Any, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that strikes while noise is drawn hands the raw votes to whatever keeps the frames of an error."""
    made = stop("late", asked="", spent=(0.0, 0.0), budget=(1.0, 0.0), fits=0) if stop is BudgetExceeded else stop()

    def struck(*_: Any, **__: Any) -> None:
        raise made

    reporter, chain = Reporting(), classifier(VotingChat())
    monkeypatch.setattr(ReportNoisyMax, "release", struck)
    expected = RuntimeError if stop is ValueError else stop
    with pytest.raises(expected):
        {
            "invoke": lambda: chain.invoke("x", {"callbacks": [reporter]}),
            "ainvoke": lambda: asyncio.run(chain.ainvoke("x", {"callbacks": [reporter]})),
            "batch": lambda: chain.batch(["x"], {"callbacks": [reporter]}),
        }[call]()
    assert reporter.kept
    assert not [kept for kept in reporter.kept if "counts" in kept or CANARY in kept]
    assert left(chain) == 4


def test_a_certificate_says_at_whose_word_a_model_keeps_nothing() -> None:
    """If it breaks, a reader of the certificate believes that the model was checked for a memory."""
    model = VotingChat()
    opaque = RunnableLambda(lambda prompt: model.invoke(prompt))
    with pytest.raises(UnsafeEnvironment, match="trust_opaque_model=True"):
        classifier(opaque)
    trusted = str(classifier(opaque, trust_opaque_model=True).certificate())
    assert "trust_opaque_model=True: the model is opaque" in trusted
    declared = str(classifier(model).certificate())
    assert "keeps_no_prompts=True" in declared
    assert "VotingChat" in declared
    known = str(classifier(FakeListChatModel(responses=["positive"])).certificate())
    assert "opaque" not in known
    assert "keeps_no_prompts" not in known
