"""The whole of DP-ICL against every surface at once: no private example is seen by anyone but the model."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, LeakSurfaces, leak_surfaces
from fakes.voters import VotingChat, VotingEngine, VotingLLM, failing, nonsense
from langchain_core.load import dumps
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from langchain_dp import ChatDPICL, DPICLClassifier, PrivacyBudget
from langchain_dp.errors import BudgetExceeded, PrivateDataError

EXAMPLES = [{"text": f"{CANARY} row {i}", "label": ("up", "down")[i % 2]} for i in range(24)]


def chain(model: Any, **changes: Any) -> DPICLClassifier:
    options = {"budget": PrivacyBudget(8.0), "max_queries": 30, "shots": 2, "subsets": 6, **changes}
    return DPICLClassifier(model=model, examples=EXAMPLES, labels=["up", "down"], **options)


async def _events(runnable: Runnable[Any, Any], config: Any) -> list[Any]:
    return [event async for event in runnable.astream_events("question", config=config, version="v2")]


async def _astream(runnable: Runnable[Any, Any], config: Any) -> list[Any]:
    return [part async for part in runnable.astream("question", config=config)]


STYLES: dict[str, Callable[[Runnable[Any, Any], Any], Any]] = {
    "invoke": lambda runnable, config: runnable.invoke("question", config),
    "batch": lambda runnable, config: runnable.batch(["one", "two"], config),
    "stream": lambda runnable, config: list(runnable.stream("question", config)),
    "ainvoke": lambda runnable, config: asyncio.run(runnable.ainvoke("question", config)),
    "abatch": lambda runnable, config: asyncio.run(runnable.abatch(["one", "two"], config)),
    "astream": lambda runnable, config: asyncio.run(_astream(runnable, config)),
    "astream_events": lambda runnable, config: asyncio.run(_events(runnable, config)),
}
MODELS: dict[str, Callable[[], Any]] = {
    "chat": VotingChat,
    "completion": VotingLLM,
    "engine": VotingEngine,
    "failing": lambda: VotingChat(reply=failing),
    "nonsense": lambda: VotingChat(reply=nonsense),
}


def config_of(surfaces: LeakSurfaces) -> dict[str, Any]:
    return {
        "callbacks": surfaces.handlers,
        "tags": ["t"],
        "metadata": {"k": "v"},
        "configurable": {"thread_id": "7"},
    }


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", MODELS)
def test_no_example_is_seen_anywhere(style: str, model: str, tmp_path: Path) -> None:
    """If it breaks, private examples reach a tracer, a handler, a cache, a log, a warning or a terminal."""
    with leak_surfaces(tmp_path) as surfaces:
        classifier = chain(MODELS[model]())
        whole = RunnablePassthrough() | classifier | RunnableLambda(lambda label: f"said {label}")
        released = STYLES[style](whole, config_of(surfaces))
        assert surfaces.where(CANARY) == set()
        assert "said " in surfaces.by_name()["handler"], "the outer run itself must be seen"
        assert CANARY not in repr(released)


@pytest.mark.parametrize("style", STYLES)
def test_no_example_is_seen_through_the_chat_face(style: str, tmp_path: Path) -> None:
    """If it breaks, the chat model face leaks what the classifier does not."""
    with leak_surfaces(tmp_path) as surfaces:
        face = ChatDPICL(classifier=chain(VotingChat()))
        released = STYLES[style](face, config_of(surfaces))
        assert surfaces.where(CANARY) == set()
        assert CANARY not in repr(released) + repr(face) + dumps(face)


def test_the_canary_can_be_seen(tmp_path: Path) -> None:
    """If it breaks, the tests above could not fail: a bare model shows the canary on these surfaces."""
    with leak_surfaces(tmp_path) as surfaces:
        VotingChat().invoke(f"{CANARY} bare", config_of(surfaces))
        assert {"tracer", "handler", "cache"} <= surfaces.where(CANARY)


def test_errors_hold_no_example(tmp_path: Path) -> None:
    """If it breaks, an error handler or its traceback's locals carry private text out."""
    with leak_surfaces(tmp_path) as surfaces:
        classifier = chain(VotingChat(), max_queries=1)
        classifier.invoke("first", config_of(surfaces))
        with pytest.raises(BudgetExceeded) as caught:
            classifier.invoke("second", config_of(surfaces))
        assert surfaces.where(CANARY) == set()
        link: BaseException | None = caught.value
        while link is not None:
            assert CANARY not in repr(link)
            link = link.__cause__ or link.__context__


def test_nothing_private_is_serialized() -> None:
    """If it breaks, a pickle, a copy, a dump or a repr carries examples out of the process."""
    classifier = chain(VotingChat())
    twins = [classifier, classifier.baseline("vote", private=False), ChatDPICL(classifier=classifier)]
    for held in twins:
        assert CANARY not in repr(held) + str(held) + dumps(held)
        for carry in (pickle.dumps, copy.deepcopy):
            with pytest.raises(PrivateDataError):
                carry(held)
