"""Prototypes as a decision model: they route and gate an agent, and nothing of the records is seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.encoders import PUBLIC, WordEncoder, fitted, rows
from fakes.tool_callers import Scripted
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from langchain_dp import DPPrototypeClassifier, PrivacyBudget, PrivacyLedger, private_run
from langchain_dp.accounting import Neighbors
from langchain_dp.errors import InvalidParameter, MissingExtra

pytest.importorskip("langchain_core.decisions", reason="needs the extra decisions")
from langchain_core.decisions import BaseDecisionModel, Box, Choice, Noul, Score

from langchain_dp.aggregate import DPDecisionModel, state_to_text

STATE = "canary-of-the-state-51c2"
CHOICE = Choice(instructions="Which?", criteria={"A": None, "B": "bills"})


class Named(WordEncoder):
    """An encoder that can be pickled."""

    keeps_no_prompts: ClassVar[bool] = True

    def __reduce__(self) -> Any:
        return Named, ()


def decide(model: BaseDecisionModel, question: Any, state: Any = "my invoice", name: str = "q") -> Any:
    return model.invoke({"state": state, "questions": {name: question}}).answers[name]


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def routed(**changes: Any) -> Any:
    agents = pytest.importorskip("langchain.agents", reason="needs the extra agents")
    middleware = pytest.importorskip("langchain.agents.middleware.model_router", reason="needs langchain 1.5")
    models = {label: FakeListChatModel(responses=[f"model {label}"]) for label in "AB"}
    router = middleware.ModelRouterMiddleware(
        choices={label: middleware.ModelChoice(model, criteria="any task") for label, model in models.items()},
        instructions="Route the task.",
        classifier=DPDecisionModel(fitted(rows(note=CANARY)), **changes),
    )
    return agents.create_agent(FakeListChatModel(responses=["no model"]), middleware=[router])


def gated(path: str) -> Any:
    agents = pytest.importorskip("langchain.agents", reason="needs the extra agents")
    auto_mode = pytest.importorskip("langchain.agents.middleware.auto_mode", reason="needs langchain 1.5")
    call = {"name": "delete_file", "args": {"path": path}, "id": "1"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
    gate = auto_mode.AutoModeMiddleware(
        tools=[delete_file], classifier=DPDecisionModel(fitted(rows(note=CANARY)), yes="B")
    )
    return agents.create_agent(model, tools=[delete_file], middleware=[gate])


async def run(agent: Any, how: str, text: str, config: Any = None) -> list[Any]:
    state = {"messages": [HumanMessage(text)]}
    result = agent.invoke(state, config) if how == "invoke" else await agent.ainvoke(state, config)
    return list(result["messages"])


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_the_router_of_an_agent_goes_by_the_prototypes(how: str) -> None:
    """If it breaks, an agent routes by something else than the private records, or not at all."""
    agent = routed()
    assert (await run(agent, how, "my parcel is late"))[-1].content == "model A"
    assert (await run(agent, how, "my invoice is wrong"))[-1].content == "model B"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize(("path", "deleted"), [("parcel.txt", True), ("invoice.txt", False)])
async def test_auto_mode_goes_by_the_prototypes(how: str, path: str, deleted: bool) -> None:
    """If it breaks, a tool call that resembles the risky records runs, or a harmless one does not."""
    messages = await run(gated(path), how, "Tidy up.")
    [answer] = [message for message in messages if isinstance(message, ToolMessage)]
    assert (answer.content == f"deleted {path}", answer.status == "success") == (deleted, deleted)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("make", [routed, lambda: gated("parcel.txt")], ids=["router", "auto mode"])
async def test_no_record_of_an_agent_is_seen(how: str, make: Callable[[], Any], tmp_path: Path) -> None:
    """If it breaks, private records reach a trace, a callback or a log, or a private run shows the state."""
    with leak_surfaces(tmp_path) as surfaces:
        config = {"callbacks": surfaces.handlers}
        with private_run():
            await run(make(), how, f"a parcel {STATE}", config)
        assert surfaces.where(CANARY) == surfaces.where(STATE) == set()
        messages = await run(make(), how, f"a parcel {STATE}", config)
        assert surfaces.where(CANARY) == set()
        assert surfaces.where(STATE) >= {"tracer", "handler"}
        assert CANARY not in repr(messages)


def test_an_error_in_an_agent_shows_no_record(tmp_path: Path) -> None:
    """If it breaks, a function of the user's that fails shows records in its trace."""

    def broken(state: Any) -> str:
        raise RuntimeError("no text")

    with leak_surfaces(tmp_path) as surfaces:
        agent = routed(text=broken)
        with pytest.raises(RuntimeError, match="no text"):
            agent.invoke({"messages": [HumanMessage("a parcel")]}, {"callbacks": surfaces.handlers})
        assert surfaces.where("no text") >= {"tracer"}
        assert surfaces.where(CANARY) == set()


def test_a_choice_has_the_probabilities_of_its_criteria() -> None:
    """If it breaks, confidence and probabilities are not those of the prototypes, renormalized."""
    three = [{"text": f"my {word} {i}", "label": word} for i in range(60) for word in ("parcel", "invoice", "bread")]
    classifier = fitted(three, labels=["parcel", "invoice", "bread"])
    shares = classifier.probabilities("my invoice")
    answer = decide(DPDecisionModel(classifier), Choice(instructions="", criteria={"bread": 1, "invoice": 2}))
    assert (answer.choice, list(answer.probabilities)) == ("invoice", ["bread", "invoice"])
    assert answer.confidence == answer.probabilities["invoice"] == max(answer.probabilities.values())
    assert answer.confidence == pytest.approx(shares["invoice"] / (shares["invoice"] + shares["bread"]))
    assert math.fsum(answer.probabilities.values()) == pytest.approx(1)


def test_criteria_without_any_probability_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a prior that is certain of another label ends a query with a division by zero."""
    classifier = fitted()
    monkeypatch.setattr(classifier, "probabilities", lambda text: {"A": 1.0, "B": 0.0})
    answer = decide(DPDecisionModel(classifier), Choice(instructions="", criteria={"B": None}))
    assert answer.probabilities == {"B": 1.0}


def test_labels_that_are_no_text_go_by_their_names() -> None:
    """If it breaks, a classifier of numbers or bools answers no question."""
    classifier = fitted([{**row, "label": row["label"] == "B"} for row in rows()], labels=[True, False])
    model = DPDecisionModel(classifier, yes=True)
    assert decide(model, Choice(instructions="", criteria={"True": 1, "False": 2})).choice == "True"
    assert decide(model, Noul(instructions="")).noul == classifier.probabilities("my invoice")[True] > 0.5


def test_several_questions_go_to_their_classifiers() -> None:
    """If it breaks, a question is answered by another question's records, or the promise leaves a cost out."""
    ledger = PrivacyLedger(PrivacyBudget(20.0, 1e-4))
    other = [{"text": row["text"], "label": "BA"["AB".index(row["label"])]} for row in rows()]
    model = DPDecisionModel(
        {
            "same": fitted(ledger=ledger, budget=PrivacyBudget(8.0), name="one"),
            "swapped": fitted(other, ledger=ledger, budget=PrivacyBudget(8.0), name="two"),
        }
    )
    answers = model.invoke({"state": "my invoice", "questions": {"same": CHOICE, "swapped": CHOICE}}).choices
    assert {name: answer.choice for name, answer in answers.items()} == {"same": "B", "swapped": "A"}
    certificate = model.certificate()
    assert certificate.epsilon == 16.0
    assert [source.plan for source in certificate.sources] == ["one", "two"]
    classifier = fitted()
    assert DPDecisionModel({"a": classifier, "b": classifier}).certificate().epsilon == 8.0
    assert DPDecisionModel(classifier).certificate() == classifier.certificate()


def test_nothing_private_is_serialized() -> None:
    """If it breaks, a repr, a dump, a copy or a pickle carries records out of the process."""
    import copy
    import pickle

    model = DPDecisionModel(fitted(rows(note=CANARY), encoder=Named()), yes="B", model="router-1")
    carried = pickle.dumps(model)
    assert CANARY not in repr(model) + str(model) + dumps(model) + repr(model.model_dump()) + repr(carried)
    for twin in (pickle.loads(carried), copy.deepcopy(model), model.model_copy()):
        assert decide(twin, CHOICE).choice == "B"
        assert twin.invoke({"state": "a parcel", "questions": {}}).model == "router-1"


def test_a_state_becomes_a_text() -> None:
    """If it breaks, the router or the gate reads another text than the page says."""
    call = {"id": "1", "name": "delete", "args": {"path": "/tmp/é"}}
    human = [HumanMessage("first"), AIMessage("no"), HumanMessage("last"), AIMessage("yes")]
    assert [state_to_text(state) for state in ("a", HumanMessage("a"), {"text": "a"})] == ["a"] * 3
    assert state_to_text(human) == state_to_text({"messages": human}) == "last"
    assert state_to_text({"messages": human, "tool_call": call}) == 'last\ndelete {"path": "/tmp/é"}'
    assert state_to_text({"messages": human[1:2], "tool_call": call}) == 'delete {"path": "/tmp/é"}'
    assert state_to_text({"tool_call": {"name": "list", "args": None}}) == "list null"
    assert decide(DPDecisionModel(fitted(), text=lambda state: state["a"]), CHOICE, {"a": "parcel"}).choice == "A"


@pytest.mark.parametrize(
    ("question", "state", "message"),
    [
        (Choice(instructions="", criteria={"A": 1, "C": 2}), "a", r"criteria=\['C'\] of the question 'q' to be labels"),
        (Noul(instructions=""), "a", r"yes=\[None\] of the question 'q' to be labels of its classifier\. Use some of"),
        (Score(instructions="", criteria=[1, 2]), "a", "'q' to be a Choice or a Noul, not Score"),
        (Box(instructions=""), "a", "'q' to be a Choice or a Noul, not Box"),
        ({"type": "choice"}, "a", "'q' to be a Choice or a Noul, not dict"),
        (CHOICE, " ", "blank"),
        (CHOICE, HumanMessage(""), "blank"),
        (CHOICE, [AIMessage("a")], "Add HumanMessage"),
        (CHOICE, 3, "int"),
        (CHOICE, HumanMessage([{"type": "image", "url": "x"}]), "such as an image"),
    ],
)
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_bad_questions_and_states_are_refused(question: Any, state: Any, message: str, how: str) -> None:
    """If it breaks, a route is made up, or an error does not say what to change."""
    request: Any = {"state": state, "questions": {"q": question}}
    model = DPDecisionModel(fitted())
    with pytest.raises(InvalidParameter, match=message):
        model.invoke(request) if how == "invoke" else await model.ainvoke(request)


def test_a_question_without_a_classifier_is_refused() -> None:
    """If it breaks, a question is answered by records of another one."""
    model = DPDecisionModel({"model_route": fitted()})
    assert decide(model, CHOICE, name="model_route").choice == "B"
    with pytest.raises(InvalidParameter, match=r"question id 'route' to be one of \['model_route'\]\. Give its"):
        decide(model, CHOICE, name="route")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "classifiers of type dict to be a DPPrototypeClassifier, or a mapping"),
        (("classifier",), "classifiers of type str to be"),
        (({"a": DPPrototypeClassifier},), "classifiers of type dict to be"),
        ((fitted, "C"), r"yes='C' to be one of the labels \['A', 'B'\]"),
        ((fitted, None, "text"), "text of type str to be a function of the state"),
    ],
)
def test_bad_settings_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """If it breaks, a slip shows only when an agent runs."""
    classifiers, yes, text = (*arguments, *(None, state_to_text)[len(arguments) - 1 :])
    with pytest.raises(InvalidParameter, match=message):
        DPDecisionModel(classifiers() if classifiers is fitted else classifiers, yes=yes, text=text)


def test_promises_that_do_not_add_up_are_refused() -> None:
    """If it breaks, costs under two kinds of neighbors are added up."""
    other = fitted(budget=PrivacyBudget(8.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE), components=4, texts=PUBLIC)
    with pytest.raises(InvalidParameter, match="neighbors"):
        DPDecisionModel({"a": fitted(), "b": other})


@pytest.mark.parametrize("absent", ["langchain_core.decisions", "langchain_core.decisions.Noul"])
def test_a_langchain_without_decision_models_is_an_error_with_a_remedy(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, an older or newer langchain-core gives a traceback without a word of what to install."""
    import langchain_dp.aggregate as room

    monkeypatch.delitem(sys.modules, "langchain_dp.aggregate.decisions")
    for name in ("DPDecisionModel", "state_to_text"):
        monkeypatch.delitem(vars(room), name, raising=False)
    if absent == "langchain_core.decisions":
        monkeypatch.setitem(sys.modules, absent, None)
    else:
        module: Any = sys.modules["langchain_core.decisions"]
        monkeypatch.delattr(module, "Noul")
        monkeypatch.setitem(module._dynamic_imports, "Noul", "elsewhere")
    with pytest.raises(MissingExtra, match=r"langchain-core, 1\.8 or newer and before 1\.9.*\.\[decisions\]"):
        room.DPDecisionModel  # noqa: B018  # it is imported now
