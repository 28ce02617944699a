"""The whole of DP-ICL against every surface at once: no private example is seen by anyone but the model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.asking import STYLES
from fakes.canary import CANARY, leak_surfaces, shows_nothing
from fakes.voters import VotingChat, VotingEngine, VotingLLM, failing, nonsense
from langchain_core.load import dumps
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from langchain_dp import ChatDPICL, DPICLClassifier, PrivacyBudget
from langchain_dp.errors import BudgetExceeded, PrivateDataError

EXAMPLES = [{"text": f"{CANARY} row {i}", "label": ("up", "down")[i % 2]} for i in range(24)]


def chain(model: Any, **changes: Any) -> DPICLClassifier:
    options = {"budget": PrivacyBudget(8.0), "max_queries": 30, "shots": 2, "subsets": 6, **changes}
    return DPICLClassifier(model=model, examples=EXAMPLES, labels=["up", "down"], **options)


MODELS: dict[str, Callable[[], Any]] = {
    "chat": VotingChat,
    "completion": VotingLLM,
    "engine": VotingEngine,
    "failing": lambda: VotingChat(reply=failing),
    "nonsense": lambda: VotingChat(reply=nonsense),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", MODELS)
def test_no_example_is_seen_anywhere(style: str, model: str, tmp_path: Path) -> None:
    """If it breaks, private examples reach a tracer, a handler, a cache, a log, a warning or a terminal."""
    with leak_surfaces(tmp_path) as surfaces:
        classifier = chain(MODELS[model]())
        whole = RunnablePassthrough() | classifier | RunnableLambda(lambda label: f"said {label}")
        released = STYLES[style](whole, "question", surfaces.config)
        assert surfaces.where(CANARY) == set()
        assert "said " in surfaces.by_name()["handler"], "the outer run itself must be seen"
        assert CANARY not in repr(released)


@pytest.mark.parametrize("style", STYLES)
def test_no_example_is_seen_through_the_chat_face(style: str, tmp_path: Path) -> None:
    """If it breaks, the chat model face leaks what the classifier does not."""
    with leak_surfaces(tmp_path) as surfaces:
        face = ChatDPICL(classifier=chain(VotingChat()))
        released = STYLES[style](face, "question", surfaces.config)
        assert surfaces.where(CANARY) == set()
        assert CANARY not in repr(released) + repr(face) + dumps(face)


def test_the_canary_can_be_seen(tmp_path: Path) -> None:
    """If it breaks, the tests above could not fail: a bare model shows the canary on these surfaces."""
    with leak_surfaces(tmp_path) as surfaces:
        VotingChat().invoke(f"{CANARY} bare", surfaces.config)
        assert {"tracer", "handler", "cache"} <= surfaces.where(CANARY)


def test_errors_hold_no_example(tmp_path: Path) -> None:
    """If it breaks, an error handler or its traceback's locals carry private text out."""
    with leak_surfaces(tmp_path) as surfaces:
        classifier = chain(VotingChat(), max_queries=1)
        classifier.invoke("first", surfaces.config)
        with pytest.raises(BudgetExceeded) as caught:
            classifier.invoke("second", surfaces.config)
        assert surfaces.where(CANARY) == set()
        shows_nothing(caught.value)


def test_nothing_private_is_serialized() -> None:
    """If it breaks, a pickle, a copy, a dump or a repr carries examples out of the process."""
    classifier = chain(VotingChat())
    twins = [classifier, classifier.baseline("vote", private=False), ChatDPICL(classifier=classifier)]
    for held in twins:
        assert CANARY not in repr(held) + str(held) + dumps(held)
        for carry in (pickle.dumps, copy.deepcopy):
            with pytest.raises(PrivateDataError):
                carry(held)
