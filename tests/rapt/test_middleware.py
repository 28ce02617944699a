"""A real agent over a fake model: nothing raw reaches the model, in any turn, by any way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.rapt import CLOSE, sanitizer
from fakes.styles import STYLES as ALL_STYLES
from fakes.tool_callers import ToolCaller
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from langchain_dp import RAPTSanitizer, private_run
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter

pytest.importorskip("langchain.agents", reason="needs the extra agents")

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
)

from langchain_dp.rapt.middleware import RAPTMiddleware

QUESTION = f"what does the record of {CANARY} say"
ANSWER = "it says that the patient has severe pain today"


class Caller(ToolCaller):
    """Calls the tool once, then answers."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        if not isinstance(messages[-1], HumanMessage):
            return AIMessage(ANSWER)
        call = {"name": "look_up", "args": {"who": "the patient"}, "id": f"c{len(self.told)}"}
        return AIMessage("", tool_calls=[call])


@tool
def look_up(who: str) -> str:
    """Look up the record of a patient."""
    return f"record: {CANARY} has severe pain"


def agent(model: Caller, middleware: Sequence[Any], **options: Any) -> Any:
    return create_agent(model, [look_up], middleware=list(middleware), **options)


STYLES = {name: ALL_STYLES[name] for name in ("invoke", "stream", "ainvoke", "astream")}


@pytest.mark.parametrize("style", STYLES)
def test_nothing_raw_reaches_the_model(style: str, tmp_path: Path) -> None:
    """If it breaks, the model of an agent is told a question, an argument or a tool's result as it was."""
    model = Caller()
    made = agent(model, [RAPTMiddleware(sanitizer())], system_prompt="You help a doctor.")
    history = [
        HumanMessage(QUESTION),
        AIMessage("", tool_calls=[{"name": "look_up", "args": {"who": {"name": CANARY}}, "id": "c0"}]),
        ToolMessage([{"type": "text", "text": f"{CANARY} is well"}], tool_call_id="c0", artifact=CANARY),
        HumanMessage(QUESTION),
    ]
    with leak_surfaces(tmp_path) as surfaces, private_run():
        STYLES[style](made, {"messages": history}, {"callbacks": surfaces.handlers})
        assert surfaces.where(CANARY) == set()
    assert len(model.told) == 2
    for messages in model.told:
        assert messages[0] == SystemMessage("You help a doctor.")
        assert CANARY not in repr(messages) + repr([message.model_dump() for message in messages])


def test_the_run_of_the_middleware_and_of_the_model_hold_nothing_raw(tmp_path: Path) -> None:
    """If it breaks, the middleware's span hands the raw history to a tracer beside the graph's own runs."""
    with leak_surfaces(tmp_path) as surfaces:
        agent(Caller(), [RAPTMiddleware(sanitizer())]).invoke(
            {"messages": [HumanMessage(QUESTION)]}, {"callbacks": surfaces.handlers}
        )
        seen = surfaces.by_name()["handler"].splitlines()
        told = [line for line in seen if line.startswith(("on_chat_model_start", "on_llm_end"))]
        assert len(told) == 4
        assert CANARY not in "".join(told)
        assert "RAPTMiddleware.wrap_model_call" in surfaces.by_name()["tracer"]
        assert "<withheld: the input of a sanitizer>" in surfaces.by_name()["tracer"]
        # The limit that the documentation names: the runs of the graph show its state.
        assert CANARY in "".join(seen)


def test_the_state_stays_raw_and_the_history_is_paid_once() -> None:
    """If it breaks, tools and users lose their words, or each turn pays for the whole history anew."""
    model = Caller()
    kept = sanitizer()
    made = agent(model, [RAPTMiddleware(kept, user="u")])
    state: dict[str, Any] = {"messages": []}
    for turn in range(3):
        state = made.invoke({"messages": [*state["messages"], HumanMessage(f"{QUESTION} in turn {turn}")]})
    assert CANARY in repr(state["messages"])
    # Three questions and three results of the tool: what the model said itself is public.
    assert kept.ledger.spent(user="u") == pytest.approx(6 * CLOSE)
    for earlier, later in itertools.pairwise(model.told):
        assert [message.content for message in later[: len(earlier)]] == [message.content for message in earlier]
    last = model.told[-1]
    assert [message.content for message in last if isinstance(message, AIMessage) and message.content] == [ANSWER] * 2
    assert [
        message.tool_calls[0]["args"] for message in last if isinstance(message, AIMessage) and message.tool_calls
    ] == [{"who": "the patient"}] * 3


@pytest.mark.parametrize("how", ["changed", "copied"])
def test_a_reply_that_is_not_the_models_own_is_sanitized(how: str) -> None:
    """If it breaks, a message that somebody restored, or that bears a stolen mark, passes in clear."""
    model, kept = Caller(), sanitizer()
    made = agent(model, [RAPTMiddleware(kept)])
    history = made.invoke({"messages": [HumanMessage("a")]})["messages"]
    reply = history[-1]
    assert "rapt_reply" in reply.response_metadata
    if how == "changed":
        history[-1] = reply.model_copy(update={"content": CANARY})
    else:
        history[-1] = HumanMessage(reply.content, response_metadata=reply.response_metadata)
    made.invoke({"messages": [*history, HumanMessage("b")]})
    told = model.told[-2][len(history) - 1]
    assert told.content not in (ANSWER, CANARY)
    stranger = sanitizer().invoke(reply)
    assert stranger.content != ANSWER


def test_whose_account_pays_may_hang_on_the_request() -> None:
    """If it breaks, all users of an agent share one account."""
    kept = sanitizer(eta=1.0, limit=1.5)
    made = agent(
        Caller(), [RAPTMiddleware(kept, user=lambda request: request.runtime.context["user"])], context_schema=dict
    )
    for user in ("a", "b"):
        with pytest.raises(BudgetExceeded):  # the tool's result is one too many
            made.invoke({"messages": [HumanMessage(QUESTION)]}, context={"user": user})
        assert kept.ledger.spent(user=user) == 1.0


def test_inner_middleware_is_told_nothing_raw_and_no_system_prompt_where_that_is_sanitized() -> None:
    """If it breaks, what stands before the model picks raw words up from the state, or a prompt holds a user's text."""
    from langchain.agents.middleware import wrap_model_call

    seen: list[str] = []

    @wrap_model_call
    def nosy(request: Any, handler: Any) -> Any:
        seen.append(repr(request.messages) + repr(request.state))
        return handler(request)

    model, guard = Caller(), RAPTMiddleware(sanitizer(system="sanitize"))
    agent(model, [guard, nosy], system_prompt=f"You help {CANARY}.").invoke({"messages": [HumanMessage(QUESTION)]})
    assert len(seen) == 2
    assert isinstance(model.told[0][0], SystemMessage)
    assert CANARY not in "".join(seen) + repr(model.told)


class Selects(Caller):
    """Selects the tool."""

    def with_structured_output(self, schema: Any, **_: Any) -> Any:
        def select(messages: Any) -> dict[str, list[str]]:
            self.told.append(messages)
            return {"tools": ["look_up"]}

        return RunnableLambda(select)


def summing_up(by: RAPTSanitizer, model: Caller) -> Any:
    """The summary's model behind the sanitizer, as the documentation shows it."""

    def instruct(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [*messages, HumanMessage("Summarize what was said.")]

    return SummarizationMiddleware(
        model,
        trigger=("messages", 3),
        keep=("messages", 1),
        summarizer=by | instruct | model | StrOutputParser(),
    )


@pytest.mark.parametrize("style", STYLES)
def test_in_the_documented_order_every_model_is_told_sanitized_text_only(style: str) -> None:
    """If it breaks, the model that selects tools, or that sums the history up, is told raw messages."""
    kept, model, selects, sums = sanitizer(), Caller(), Selects(), Caller()
    made = agent(
        model, [summing_up(kept, sums), RAPTMiddleware(kept), LLMToolSelectorMiddleware(model=selects, max_tools=1)]
    )
    history = [HumanMessage(QUESTION), AIMessage(f"{CANARY} is well"), HumanMessage(f"again: {QUESTION}")]
    STYLES[style](made, {"messages": history}, {})
    for asked in (model, selects, sums):
        assert asked.told
        assert CANARY not in repr(asked.told)
    assert "Summarize" in repr(sums.told)


def test_in_another_order_they_are_told_everything() -> None:
    """If it breaks, the refusals below protect nobody, or trusted= does not let a model inside be told raw text."""
    selects, sums = Selects(), Caller()
    outside = [
        LLMToolSelectorMiddleware(model=selects, max_tools=1),
        SummarizationMiddleware(sums, trigger=("messages", 3), keep=("messages", 1)),
    ]
    trusted = ["LLMToolSelectorMiddleware", "SummarizationMiddleware"]
    made = agent(Caller(), [*outside, RAPTMiddleware(sanitizer(), trusted=trusted)])
    made.invoke({"messages": [HumanMessage(QUESTION), AIMessage("a"), HumanMessage(QUESTION)]})
    assert CANARY in repr(selects.told)
    assert CANARY in repr(sums.told)


class Remembers(AgentMiddleware[Any, Any, Any]):
    """Asks a model after every answer."""

    def __init__(self, model: BaseChatModel) -> None:
        self.helper = model.with_retry()

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        await self.helper.ainvoke(state["messages"])


def test_an_order_in_which_another_model_is_told_raw_messages_is_refused() -> None:
    """If it breaks, an agent runs in whose list a middleware hands the raw history to a model of its own."""
    kept, model = sanitizer(), Caller()
    guard = RAPTMiddleware(kept)
    for wrong, said in (
        ([LLMToolSelectorMiddleware(model=Selects()), guard], "LLMToolSelectorMiddleware after RAPTMiddleware"),
        ([LLMToolSelectorMiddleware(), guard], "LLMToolSelectorMiddleware after RAPTMiddleware"),
        ([SummarizationMiddleware(model, trigger=("messages", 3)), guard], "SummarizationMiddleware to ask no model"),
        ([guard, SummarizationMiddleware(model, trigger=("messages", 3))], "SummarizationMiddleware to ask no model"),
        ([guard, SummarizationMiddleware(model, summarizer=Caller())], "SummarizationMiddleware to ask no model"),
        ([guard, SummarizationMiddleware(model, summarizer=len)], "SummarizationMiddleware to ask no model"),
        ([guard, Remembers(model)], "Remembers to ask no model"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            agent(model, wrong)
        with pytest.raises(InvalidParameter, match=said):
            create_agent(model, middleware=tuple(wrong))
    right = [
        ModelFallbackMiddleware(Caller()),
        guard,
        LLMToolSelectorMiddleware(),
        ModelCallLimitMiddleware(run_limit=3),
    ]
    agent(model, right)
    assert guard.name == "RAPTMiddleware"


def test_what_the_tools_declare_stays_and_other_keys_do_not() -> None:
    """If it breaks, a model does not know its own calls again, or names that are keys of an answer reach it."""
    model = Caller()
    call = {"name": "look_up", "args": {"who": {"old": CANARY}, CANARY: 1}, "id": "c0"}
    answer = ToolMessage(f'{{"{CANARY}": 1, "who": 2}}', tool_call_id="c0")
    history = [HumanMessage("a"), AIMessage("", tool_calls=[call]), answer, HumanMessage("b")]
    agent(model, [RAPTMiddleware(sanitizer())]).invoke({"messages": history})
    first = model.told[0]
    assert CANARY not in repr(first)
    assert "who" in first[1].tool_calls[0]["args"]
    assert '"who"' in first[2].content


def test_a_limit_that_no_message_could_reach_is_refused() -> None:
    """If it breaks, who sets a limit believes that it holds, and every message leaves."""
    for kept in (sanitizer(limit=30.0), sanitizer(ledger=MetricLedger(document_limit=30.0))):
        with pytest.raises(InvalidParameter, match=r"`limit` \(30\) .*Give user="):
            RAPTMiddleware(kept)
    made = agent(Caller(), [RAPTMiddleware(sanitizer(limit=30.0), user=lambda request: None)])
    with pytest.raises(InvalidParameter, match=r"`limit` \(30\)"):
        made.invoke({"messages": [HumanMessage("a")]})
    RAPTMiddleware(sanitizer(limit=30.0), user="u")
    RAPTMiddleware(sanitizer(limit=30.0, cache=False))
    RAPTMiddleware(sanitizer())


@pytest.mark.parametrize(
    "bad", [{"sanitizer": 7}, {"sanitizer": sanitizer(), "user": 7}, {"sanitizer": sanitizer(), "trusted": "name"}]
)
def test_bad_parts_are_refused(bad: dict[str, Any]) -> None:
    """If it breaks, an agent runs with a middleware that sanitizes nothing or charges nobody."""
    with pytest.raises(InvalidParameter, match="Expected"):
        RAPTMiddleware(**bad)
