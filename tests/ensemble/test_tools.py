"""Private answers in LangChain's own agent and in LangGraph; and what happens at the budget's end."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.optimizers import optimizer
from fakes.synthesizers import generator, synthesizer
from fakes.tool_callers import ToolCaller
from fakes.voters import VotingChat, classifier, left, majority
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, Field

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import NoisyMaxEvent, Quotas
from langchain_dp.ensemble.tools import BudgetMonitor
from langchain_dp.errors import BudgetExceeded, BudgetLowWarning, InvalidParameter, PrivateDataError
from langchain_dp.icl import ICLPrompt

agents = pytest.importorskip("langchain.agents")


class Asking(ToolCaller):
    """Calls the tool once for each question, then is done."""

    questions: list[Any]
    tool: str

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done == len(self.questions):
            return AIMessage("done")
        return AIMessage("", tool_calls=[{"name": self.tool, "args": {"text": self.questions[done]}, "id": f"c{done}"}])


def run(chain: Any, questions: list[str], **options: Any) -> list[BaseMessage]:
    tool = chain.as_tool(**options)
    agent = agents.create_agent(Asking(questions=questions, tool=tool.name), [tool])
    said: list[BaseMessage] = agent.invoke({"messages": [HumanMessage("sort these")]})["messages"]
    return said


def test_a_tool_has_a_name_a_description_and_a_schema() -> None:
    """If it breaks, as_tool() is a TypeError, or the model is not told what the tool decides."""
    tool = classifier(name="sort messages").as_tool()
    assert tool.name == "sort_messages"
    assert "positive, negative" in tool.description
    assert tool.args == {"text": {"description": "the text to be answered", "title": "Text", "type": "string"}}
    assert tool.invoke({"text": "x"}) == "positive"
    named = classifier().as_tool(name="moods", description="Tells moods.")
    assert (named.name, named.description) == ("moods", "Tells moods.")


@pytest.mark.parametrize("make", [classifier, generator])
def test_a_tool_is_not_pickled_and_a_copy_asks_the_same_chain(make: Any) -> None:
    """If it breaks, pickling a tool ends in a raw error of pickle's, or carries the records away."""
    tool = make().as_tool()
    with pytest.raises(PrivateDataError, match="A tool of a private chain"):
        pickle.dumps(tool)
    assert copy.copy(tool).func is copy.deepcopy(tool).func is tool.func


async def test_a_tool_answers_by_the_name_of_a_label_on_every_face() -> None:
    """If it breaks, a message to the model holds "Mood.GOOD", or one face charges twice."""
    examples = [{"text": f"note {i}", "label": 1} for i in range(24)]
    chain = classifier(examples=examples, labels=[1, 0])
    tool = chain.as_tool()
    call = {"type": "tool_call", "name": tool.name, "args": {"text": "x"}, "id": "1"}
    assert (await tool.ainvoke({"text": "x"}), tool.invoke({"text": "x"})) == ("1", "1")
    message = tool.invoke(call)
    assert (type(message), message.content, message.status) == (ToolMessage, "1", "success")
    assert left(chain) == 4
    said = generator().as_tool(exit_behavior="end").invoke({"text": "where is it"})
    assert isinstance(said, str)


def test_a_tool_asks_for_all_variables_of_the_template_and_takes_a_schema() -> None:
    """If it breaks, a template of two variables cannot be a tool."""

    class Ticket(BaseModel):
        text: str = Field(description="the ticket")

    class Wrong(BaseModel):
        body: str

    examples = [{"text": f"note {i}", "title": "t", "label": "positive"} for i in range(24)]
    chain = classifier(examples=examples, prompt=ICLPrompt(question="{title}: {text}", answer="Label:"))
    assert chain.as_tool().invoke({"title": "a", "text": "b"}) == "positive"
    assert "the ticket" in str(classifier().as_tool(Ticket).args)
    with pytest.raises(InvalidParameter, match=r"args_schema to have the fields \['text'\]; missing: \['text'\]"):
        classifier().as_tool(Wrong)
    for bad in (
        {"exit_behavior": "stop"}, {"args_schema": dict}, {"arg_types": {"text": str}}, {"description": 5}, {"name": 5},
    ):  # fmt: skip
        with pytest.raises(InvalidParameter):
            classifier().as_tool(**bad)


def test_what_could_never_be_called_is_no_tool() -> None:
    """If it breaks, an agent is given a tool for private records, or one that never gets what the model gives it."""
    for chain in [optimizer(), synthesizer()]:
        with pytest.raises(InvalidParameter, match=f"Expected {type(chain).__name__} to be no tool"):
            chain.as_tool(name="prompts", description="Writes prompts.")
    for name in ["config", "run_manager", "self"]:
        examples = [{"text": f"note {i}", name: "t", "label": "positive"} for i in range(24)]
        chain = classifier(examples=examples, prompt=ICLPrompt(question=f"{{{name}}}: {{text}}", answer="Label:"))
        with pytest.raises(InvalidParameter, match=rf"no variable \['{name}'\].* Rename it in the template"):
            chain.as_tool()


def test_an_agent_goes_on_without_a_used_up_tool() -> None:
    """If it breaks, the budget's end is the end of every agent, or the model is not told of it."""
    said = run(classifier(max_queries=1), ["one", "two"])
    tools = [message for message in said if isinstance(message, ToolMessage)]
    assert [(message.content, message.status) for message in tools[:1]] == [("positive", "success")]
    assert tools[1].status == "error"
    assert str(tools[1].content).startswith("No answer: the privacy budget of this tool is used up")
    assert said[-1].content == "done"


@pytest.mark.parametrize(("behavior", "last"), [("continue", "ai"), ("end", "tool")])
def test_an_agent_asks_at_the_cost_of_who_runs_it(behavior: str, last: str) -> None:
    """If it breaks, agents of two users share one account, or the end of a share is not that of the agent's tool."""
    chain = classifier(max_queries=10, quotas=Quotas(default=1, overrides={"ward-3": 5}))
    for user_id, statuses in (("user-1", ["success", "error"]), ("ward-3", ["success"] * 2)):
        tool = chain.as_tool(exit_behavior=behavior)
        questions = [f"{user_id} one", f"{user_id} two"]
        agent = agents.create_agent(Asking(questions=questions, tool=tool.name), [tool])
        said = agent.invoke({"messages": [HumanMessage("sort")]}, {"configurable": {"user_id": user_id}})["messages"]
        assert [message.status for message in said if isinstance(message, ToolMessage)] == statuses
        assert said[-1].type == (last if user_id == "user-1" else "ai")
    assert (chain.answers_left(user_id="user-1"), chain.answers_left(user_id="ward-3")) == (0, 3)


def test_what_was_answered_or_misread_does_not_end_an_agent() -> None:
    """If it breaks, exit_behavior="end" ends a run with a slip of the model, or with an answer that was free."""
    chain = classifier(max_queries=1)
    tool = chain.as_tool(exit_behavior="end")
    agent = agents.create_agent(Asking(questions=[7, "one"], tool=tool.name), [tool])
    said = agent.invoke({"messages": [HumanMessage("sort")]})["messages"]
    assert [message.type for message in said] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert (said[2].status, left(chain)) == ("error", 0)
    assert "text: Input should be a valid string" in said[2].text
    assert run(chain, ["one", "two"], exit_behavior="end")[-1].type == "tool"
    ended = agents.create_agent(Asking(questions=["two"], tool=tool.name), [chain.as_tool(exit_behavior="end")])
    assert ended.invoke({"messages": [HumanMessage("sort")]})["messages"][-1].type == "tool"
    assert tool.invoke({"text": "one"}) == "positive"
    assert tool.return_direct is False


def test_the_end_of_one_share_is_not_that_of_another_askers_run() -> None:
    """If it breaks, a run ends with a bare label because somebody else's share was used up meanwhile."""
    tools: list[Any] = []

    def meanwhile(shots: Any, question: str) -> str:
        if "slow" in question:
            spent = tools[0].invoke({"text": "two"}, {"configurable": {"user_id": "user-1"}})
            assert "this user's share" in spent
        return majority(shots, question)

    chain = classifier(VotingChat(reply=meanwhile), max_queries=10, quotas=Quotas(default=1), max_concurrency=99)
    tools.append(chain.as_tool(exit_behavior="end"))
    agent = agents.create_agent(Asking(questions=["slow"], tool=tools[0].name), tools)
    tools[0].invoke({"text": "one"}, {"configurable": {"user_id": "user-1"}})
    said = agent.invoke({"messages": [HumanMessage("sort")]}, {"configurable": {"user_id": "user-2"}})["messages"]
    assert [message.text for message in said[-2:]] == ["positive", "done"]


@pytest.mark.parametrize("make", [classifier, generator])
def test_an_agent_stops_with_an_error_if_it_is_asked_to(make: Any) -> None:
    """If it breaks, a caller who wants to hear of it does not."""
    with pytest.raises(BudgetExceeded):
        run(make(max_queries=1), ["one", "two"], exit_behavior="error")
    assert run(make(max_queries=1), ["one", "two"])[-1].content == "done"


def test_a_question_that_is_refused_is_told_to_the_model_and_costs_nothing() -> None:
    """If it breaks, a model that calls the tool with a blank ends the whole run."""
    chain = classifier()
    said = run(chain, [" ", "one"], exit_behavior="error")
    assert "No answer: Expected the question to be a non-empty text" in str(said[2].content)
    assert said[4].content == "positive"
    assert left(chain) == 4


async def test_no_private_text_leaves_through_an_agent(tmp_path: Path) -> None:
    """If it breaks, a tracer, a log or a message of an agent shows an example: also at the budget's end."""

    def rude(shots: Any, question: str) -> str:
        if shots:
            raise ValueError(f"{shots} {CANARY}")
        return "positive"

    for model, count in ((VotingChat(), 1), (VotingChat(reply=rude), 5)):
        chain = classifier(model, max_queries=count)
        tool = chain.as_tool()
        agent = agents.create_agent(Asking(questions=["one", "two", " "], tool=tool.name), [tool])
        with leak_surfaces(tmp_path) as surfaces:
            config: Any = {"callbacks": surfaces.handlers}
            said = [agent.invoke({"messages": [HumanMessage("go")]}, config)]
            said.append(await agent.ainvoke({"messages": [HumanMessage("go")]}, config))
            assert CANARY not in surfaces.everything()
        assert CANARY not in repr(said)


@pytest.mark.parametrize("make", [classifier, generator])
def test_one_warning_comes_when_four_fifths_are_used(make: Any) -> None:
    """If it breaks, the first that is heard of the budget is its end; or every answer warns."""
    chain = make(max_queries=10, budget=PrivacyBudget(50.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(8):
            chain.invoke(f"question {number}")
    assert chain.answers_left() == 2
    with pytest.warns(BudgetLowWarning, match=r"2 of 10 answers are left in the plan .*not refilled") as given:
        chain.invoke("question 8")
    assert [one.filename for one in given] == [__file__]  # the line of the user, not one of ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain.invoke("question 9")
    assert chain.answers_left() == 0


def test_where_warnings_are_errors_nothing_is_charged_for_one() -> None:
    """If it breaks, an answer is paid for that nobody gets."""
    chain = classifier(max_queries=10)
    for number in range(8):
        chain.invoke(f"question {number}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BudgetLowWarning, match="2 of 10"):
            chain.invoke("question 8")
    assert chain.answers_left() == 2
    assert chain.invoke("question 8") == "positive"


def test_a_share_that_runs_low_is_said_to_whoever_asks() -> None:
    """If it breaks, a user learns of the end of a share by a refusal only, or of another one's."""
    chain = classifier(max_queries=40, quotas=Quotas(default=10))
    heard = []
    for number in range(9):
        for user_id in ("a", "b"):
            if user_id == "b" and number > 5:
                continue
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                chain.invoke(f"{user_id} {number}", {"configurable": {"user_id": user_id}})
            heard += [(user_id, number, str(one.message)) for one in said if one.category is BudgetLowWarning]
    ((user_id, number, message),) = heard
    assert (user_id, number) == ("a", 8)
    assert message.startswith("2 of 10 answers are left in this user's share of the plan")


def test_the_ledger_is_not_asked_at_every_answer() -> None:
    """If it breaks, every answer costs one more round trip to the ledger; or another process's spending is not seen."""
    event = NoisyMaxEvent(5.0, 0.1, "fixed")
    plan = PrivacyLedger(PrivacyBudget(50.0)).reserve([(event, 1000)], name="long")
    asked: list[int] = []

    class Plan:
        name = "long"

        def remaining(self, _: Any, *, user_id: str | None = None) -> int:
            asked.append(1)
            return plan.remaining(event)

    watched = BudgetMonitor(Plan(), event, 1000)  # type: ignore[arg-type]  # a stand-in that counts
    for _ in range(400):
        watched.warn_if_low()
    assert len(asked) in range(30, 42)
    plan.spend(event, 800)  # by somebody else
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(12):
            watched.warn_if_low()
    assert [str(one.message).partition(" in ")[0] for one in heard] == ["200 of 1,000 answers are left"]
