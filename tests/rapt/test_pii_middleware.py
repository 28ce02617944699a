"""The open defects of LangChain's PIIMiddleware: ours is right, and whether theirs is wrong in the pinned version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.tool_callers import StreamingCaller
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool

from langchain_dp import Pseudonymizer

pytest.importorskip("langchain.agents", reason="needs the extra agents")

from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware, SummarizationMiddleware

from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

MAIL = "ann@example.org"
SENT: list[str] = []


@tool
def send(to: str) -> str:
    """Send a letter."""
    SENT.append(to)
    return "sent"


class Model(StreamingCaller):
    """Sends a letter to the last word that it was told, and says then that it did."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage) or not str(messages[-1].content).startswith("Write"):
            return AIMessage("done")
        to = str(messages[-1].content).split()[-1]
        return AIMessage("", tool_calls=[{"name": "send", "args": {"to": to}, "id": "1"}])


def theirs(model: Model, *others: Any, **options: Any) -> Any:
    detector = PIIMiddleware("email", strategy=options.pop("strategy", "redact"), **options)
    return create_agent(model, [send], middleware=[detector, *others])


def ours(model: Model, *others: Any, **options: Any) -> Any:
    middleware = PseudonymMiddleware(Pseudonymizer(), tools_inside=["send"])
    return middleware.around(create_agent(model, [send], middleware=[*others, middleware]))


def history(agent: Callable[..., Any]) -> bool:
    """A conversation that another service stored: its first message has an address, and a later one not."""
    model = Model()
    agent(model).invoke({"messages": [("user", f"I am {MAIL}."), ("ai", "Hello."), ("user", "Thanks.")]})
    return MAIL in repr(model.told)


def tool_arguments(agent: Callable[..., Any]) -> bool:
    """What a model wrote into a tool's arguments, told to the model once more."""
    model = Model()
    asked = AIMessage("", tool_calls=[{"name": "send", "args": {"to": MAIL}, "id": "0"}])
    before = [("user", "Write a letter."), asked, ToolMessage("sent", tool_call_id="0")]
    options = {} if agent is ours else {"apply_to_output": True, "apply_to_tool_results": True}
    agent(model, **options).invoke({"messages": [*before, ("user", "Thanks.")]})
    return MAIL in repr(model.told)


def summary(agent: Callable[..., Any]) -> bool:
    """What the model of a SummarizationMiddleware is told, though every address should stop the run."""
    model = Model()
    summarize = SummarizationMiddleware(model, trigger=("messages", 2), keep=("messages", 1))
    options = {} if agent is ours else {"strategy": "block"}
    before = [("user", f"I am {MAIL}."), ("ai", "Hello.")]
    agent(Model(), summarize, **options).invoke({"messages": [*before, ("user", "Thanks.")]})
    assert model.told
    return MAIL in repr(model.told)


def streamed_arguments(agent: Callable[..., Any]) -> bool:
    """Arguments that are streamed piece by piece to a tool that must have the address."""
    SENT.clear()
    options = {} if agent is ours else {"apply_to_input": False, "apply_to_output": True}
    made = agent(Model(), **options)
    given = {"messages": [("user", f"Write to {MAIL}")]}
    run = made.stream(given, stream_mode="messages") if agent is ours else made.stream_events(given, version="v3")
    assert list(run)
    return SENT != [MAIL]


DEFECTS = {
    "langchain#40704": (history, True),
    "langchain#37659": (tool_arguments, True),
    "langchain#40725": (summary, True),
    "langchain#40767": (streamed_arguments, False),  # mended in langchain-core 1.8
}
"""What goes wrong, and whether it still does with PIIMiddleware."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_ours_has_none_of_the_defects(defect: str) -> None:
    """If it breaks, an address reaches a model in clear, or a tool gets a placeholder in place of it."""
    assert not DEFECTS[defect][0](ours)


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_page_says_what_theirs_does(defect: str) -> None:
    """If it breaks, the pinned langchain has mended a defect or has it again, and the page is unfair."""
    goes_wrong, still = DEFECTS[defect]
    assert goes_wrong(theirs) is still
