"""What a new user gets wrong: each wrong use ends in an answer, or in one line of ours that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import INSTRUCTION, LABELS, SENTENCE, optimizer
from fakes.optimizers import examples as labelled
from fakes.synthesizers import generator, synthesizer
from fakes.voters import VotingChat, classifier, private_examples
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from langchain_dp import (
    ChatDPGenerator,
    ChatDPICL,
    DPICLClassifier,
    DPPromptOptimizer,
    Neighbors,
    PrivacyBudget,
    PrivacyLedger,
    PrivateRecords,
    Pseudonymizer,
)
from langchain_dp.accounting import NoisyMaxEvent, Quotas, calibrate_noisy_max, epsilon
from langchain_dp.errors import LangChainDPError
from langchain_dp.icl import ClassifyBatches, ICLPrompt, ModelCallOptions, SamplingOptions
from langchain_dp.rapt.pseudonyms import PseudonymizeBatches

EVENT = NoisyMaxEvent(1.0, 0.1, "fixed")
BUDGET = PrivacyBudget(50.0)


def ledger() -> PrivacyLedger:
    return PrivacyLedger(BUDGET)


def used_up() -> Any:
    chain = classifier(max_queries=1)
    chain.invoke("first")
    return chain


def two(name: str) -> Any:
    """Two chains on one ledger without shares of it."""
    shared = ledger()
    classifier(ledger=shared)
    return classifier(ledger=shared, name=name)


def auto(**changed: Any) -> DPPromptOptimizer:
    settings: dict[str, Any] = {"model": WordEngine(agreeing(SENTENCE)), "labels": LABELS, "instruction": INSTRUCTION}
    return DPPromptOptimizer.auto(**{**settings, "examples_count": 2000, "budget": BUDGET, **changed})


def shared(**changed: Any) -> Any:
    """A chain with shares for those who ask."""
    return classifier(**{"quotas": Quotas(default=2, overrides={"team-7": 1}), "max_queries": 10, **changed})


def asks(chain: Any, user_id: Any, question: str = "x") -> Any:
    return chain.invoke(question, {"configurable": {"user_id": user_id}})


def chat(**changed: Any) -> ChatDPGenerator:
    return ChatDPGenerator(generator=generator(**changed))


def replica() -> Any:
    rows = [{**row, "id": f"case-{i}"} for i, row in enumerate(private_examples(24))]
    return classifier(ledger=PrivacyLedger(BUDGET, "labels.ledger"), examples=rows, replicas=True)


def labels_of(batch: Any) -> Any:
    """A batch that is labelled, and the proof that a refused one cost nothing."""
    classify = ClassifyBatches(replica, "text", keep_columns=["id"])
    try:
        return classify(batch)
    finally:
        assert classify.certificate().remaining == 5
        for file in Path().iterdir():
            file.unlink()


def names() -> Pseudonymizer:
    return Pseudonymizer(terms=[CANARY])


def middleware(*given: Any, **changed: Any) -> Any:
    pytest.importorskip("langchain.agents", reason="needs the extra agents")
    from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

    return PseudonymMiddleware(*given or (names(),), **changed)


def agent(given: Any) -> Any:
    """An agent under pseudonyms that is given something."""
    inner = middleware()
    from langchain.agents import create_agent

    return inner.around(create_agent(VotingChat(), [], middleware=[inner])).invoke(given)


ANSWERED: dict[str, Callable[[], Any]] = {
    "a message as the question": lambda: classifier().invoke(HumanMessage("x")),
    "messages as the question": lambda: classifier().invoke([HumanMessage("x"), AIMessage("y")]),
    "a document as the question": lambda: classifier().invoke(Document("x")),
    "a state as the question": lambda: classifier().invoke({"messages": [("user", "x")]}),
    "behind a prompt": lambda: (ChatPromptTemplate.from_template("{t}") | classifier()).invoke({"t": "x"}),
    "a str as the prompt": lambda: classifier(prompt="Review: {text}\nMood:").invoke("x"),
    "labels as a tuple": lambda: classifier(labels=("positive", "negative")).invoke("x"),
    "labels as keys": lambda: classifier(labels={"positive": 1, "negative": 2}.keys()).invoke("x"),
    "a tool": lambda: classifier().as_tool().invoke({"text": "x"}),
    "a tool with a str": lambda: classifier().as_tool().invoke("x"),
    "a used-up tool": lambda: used_up().as_tool().invoke({"text": "x"}),
    "a blank in a tool": lambda: classifier().as_tool().invoke({"text": ""}),
    "a batch": lambda: classifier().batch(["x", HumanMessage("y")]),
    "a batch of a used-up chain": lambda: used_up().batch(["first", "x"], return_exceptions=True)[0],
    "a chat face": lambda: ChatDPICL(classifier=classifier()).invoke("x").content,
    "examples from a generator": lambda: classifier(examples=(row for row in private_examples(24))).invoke("x"),
    "records twice": lambda: PrivateRecords(PrivateRecords(private_examples(3))),
    "no records": lambda: PrivateRecords(),
    "an input schema": lambda: classifier().get_input_jsonschema(),
    "an output schema": lambda: classifier().get_output_jsonschema(),
    "a graph": lambda: classifier().get_graph().draw_ascii if hasattr(classifier().get_graph(), "draw_ascii") else None,
    "with_retry": lambda: classifier().with_retry().invoke("x"),
    "with_config": lambda: classifier().with_config(tags=["a"]).invoke("x"),
    "with_types": lambda: classifier().with_types(input_type=str).invoke("x"),
    "a user": lambda: asks(shared(), "team-7"),
    "a user of a batch": lambda: shared().batch(["x", "y"], {"configurable": {"user_id": "team-8"}}),
    "a user beside the keys of a config": lambda: shared().invoke("x", {"user_id": "team-8"}),
    "a user of a chain without shares": lambda: asks(classifier(), "team-7"),
    "what a user has left": lambda: shared().answers_left(user_id="team-9"),
    "a generator's chat face": lambda: chat().invoke("where is it").content,
    "a stop that is a str": lambda: chat().invoke("where is it", stop="e").content,
    "a chat face with a stop that is a str": lambda: (
        ChatDPICL(classifier=classifier()).invoke("x", stop="tive").content
    ),
    "more rows than there are": lambda: optimizer(rows=4000).invoke(labelled(40)).metadata,
    "a message for an agent under pseudonyms": lambda: agent({"messages": "x"})["messages"][0].content,
    "a repr": lambda: repr((classifier(), ledger(), generator(), synthesizer(), optimizer())),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "no examples": lambda: classifier(examples=None),
    "one example": lambda: classifier(examples=private_examples(1)[0]),
    "a text as examples": lambda: classifier(examples=CANARY),
    "a number as examples": lambda: classifier(examples=24),
    "pairs as examples": lambda: classifier(examples=[(CANARY, "positive")] * 24),
    "texts as examples": lambda: classifier(examples=[CANARY] * 24),
    "other columns": lambda: classifier(examples=[{"review": CANARY, "stars": 1}] * 24),
    "a wrong text_key": lambda: PrivateRecords(private_examples(3), text_key="body"),
    "a key of another kind": lambda: PrivateRecords(private_examples(3), text_key=["text"]),  # type: ignore[arg-type]
    "missing values": lambda: PrivateRecords([{"text": float("nan"), "label": None}]),
    "float labels": lambda: PrivateRecords([{"text": "x", "label": 1.5}]),
    "too few examples": lambda: classifier(examples=private_examples(2), partitions=None, sampling_probability=None),
    "labels as one str": lambda: classifier(labels="positive"),
    "no labels": lambda: classifier(labels=None),
    "a number as labels": lambda: classifier(labels=2),
    "labels of several kinds": lambda: classifier(labels=["positive", 0]),
    "one label": lambda: classifier(labels=["positive"]),
    "labels twice": lambda: classifier(labels=["positive", "positive"]),
    "a whole column as labels": lambda: classifier(labels=[CANARY] * 100),
    "an unknown label": lambda: classifier(labels=["good", "bad"]),
    "budget as a number": lambda: classifier(budget=3.0),
    "no budget": lambda: DPICLClassifier(
        model=VotingChat(), examples=private_examples(24), labels=["positive", "b"], max_queries=1
    ),
    "ledger as a number": lambda: classifier(ledger=3.0),
    "a path without budget": lambda: classifier(ledger="privacy.ledger"),
    "a ledger of a class": lambda: classifier(ledger=PrivacyLedger),
    "epsilon as a str": lambda: PrivacyBudget("3"),  # type: ignore[arg-type]
    "delta of 1": lambda: PrivacyBudget(3.0, 1),
    "neighbors as a str": lambda: PrivacyBudget(3.0, 1e-5, "replace"),  # type: ignore[arg-type]
    "a ledger of a number": lambda: PrivacyLedger(3.0),  # type: ignore[arg-type]
    "a spend of a number": lambda: ledger().spend(0.1),  # type: ignore[arg-type]
    "a spend of none": lambda: ledger().spend(EVENT, 0),
    "a plan without a name": lambda: ledger().reserve([(EVENT, 1)], name=""),
    "a plan of nothing": lambda: ledger().reserve([], name="a"),
    "two chains without shares": lambda: two("second"),
    "the same name, another plan": lambda: classifier(
        ledger=(shared := ledger()), budget=PrivacyBudget(5.0), name=classifier(ledger=shared, max_queries=7).name
    ),
    "the prompt as a number": lambda: classifier(prompt=7),
    "the prompt without a variable": lambda: classifier(prompt="Classify."),
    "the prompt as messages": lambda: classifier(prompt=[("human", "{text}")]),
    "the prompt with a placeholder": lambda: classifier(prompt=ChatPromptTemplate([MessagesPlaceholder("x")])),
    "a model's name": lambda: classifier("gpt-5"),
    "a model's class": lambda: classifier(VotingChat),
    "a function as the model": lambda: classifier(lambda prompt: "positive"),
    "asking as a dict": lambda: DPICLClassifier(
        model=VotingChat(),
        examples=private_examples(24),
        labels=["positive", "b"],
        budget=BUDGET,
        max_queries=1,
        model_calls={"timeout": 1},
    ),  # type: ignore[arg-type]
    "sampling as a number": lambda: classifier(sampling=3),
    "max_queries as a float": lambda: classifier(max_queries=1e4),
    "shots of none": lambda: classifier(shots=0),
    "a timeout as a str": lambda: ModelCallOptions(timeout="5"),  # type: ignore[arg-type]
    "a probability of 2": lambda: SamplingOptions("fixed", probability=2.0),
    "a blank question": lambda: classifier().invoke(" "),
    "no question": lambda: classifier().invoke(None),
    "a list of questions": lambda: classifier().invoke(["a", "b"]),
    "a question of other keys": lambda: classifier().invoke({"question": CANARY}),
    "a message of nothing": lambda: classifier().invoke(AIMessage("")),
    "messages without a human": lambda: classifier().invoke([AIMessage(CANARY)]),
    "a temperature": lambda: classifier().invoke("x", temperature=0),
    "a used-up chain": lambda: used_up().invoke("second"),
    "a tool that ends otherwise": lambda: classifier().as_tool(exit_behavior="stop"),  # type: ignore[arg-type]
    "a tool of a function's types": lambda: classifier().as_tool(arg_types={"text": str}),
    "forgetting nobody": lambda: classifier().forget("nobody"),
    "forgetting a place's number": lambda: classifier().forget(3),  # type: ignore[arg-type]
    "adding a text": lambda: classifier().add(CANARY),
    "a baseline without a word": lambda: classifier().baseline("vote", private=True),
    "another neighbor": lambda: classifier().with_budget(PrivacyBudget(1.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE)),
    "a second budget as a number": lambda: classifier().with_budget(1.0),  # type: ignore[arg-type]
    "a chat face over a model": lambda: ChatDPICL(classifier=VotingChat()),  # type: ignore[arg-type]
    "words as a list": lambda: ICLPrompt(question="{text}", answer="A:", words=["a"]),  # type: ignore[arg-type]
    "an optimizer of nothing": lambda: optimizer().invoke(None),
    "an optimizer of one row": lambda: optimizer().invoke(labelled(1)),
    "an optimizer of other columns": lambda: optimizer().invoke([{"body": CANARY}] * 40),
    "an optimizer with a chat model": lambda: optimizer(VotingChat()),
    "an optimizer's certificate too early": lambda: optimizer().certificate(),
    "a synthesizer of nothing": lambda: synthesizer().invoke(None),
    "a synthesizer of a text": lambda: synthesizer().invoke(CANARY),
    "a synthesizer with a chat model": lambda: synthesizer(VotingChat()),  # type: ignore[arg-type]
    "a generator with a chat model": lambda: generator(VotingChat()),  # type: ignore[arg-type]
    "a generator with a str as prompts": lambda: generator(prompts="Reply to {text}"),
    "a generator without a question": lambda: generator().invoke([]),
    "auto without a count": lambda: auto(examples_count=None),
    "auto with rows as the count": lambda: auto(examples_count=labelled(40)),
    "auto with a float as the count": lambda: auto(examples_count=2e3),
    "auto of another effort": lambda: auto(effort="heavy"),
    "auto with what it chooses": lambda: auto(shots=3),
    "auto with a number as the budget": lambda: auto(budget=3.0),
    "auto without a budget": lambda: auto(budget=None),
    "auto with a chat model": lambda: auto(model=VotingChat()),
    "auto of a method": lambda: auto(method="glossary"),
    "auto with too small a budget": lambda: auto(budget=PrivacyBudget(0.01, 1e-6)).invoke(labelled(2000)),
    "a chat face of a model": lambda: ChatDPGenerator(generator=VotingChat()),  # type: ignore[arg-type]
    "a chat face of shares": lambda: chat(quotas=Quotas(default=2)),
    "a generator's chat without a question": lambda: chat().invoke([AIMessage(CANARY)]),
    "a generator's chat with a blank": lambda: chat().invoke(" "),
    "a generator's chat with tools": lambda: chat().bind_tools([print]),
    "a generator's chat with a schema": lambda: chat().with_structured_output({"title": "a", "type": "object"}),
    "a template as the prompt": lambda: classifier(prompt=ChatPromptTemplate.from_template("{text}\nMood:")),
    "a chat face with tools": lambda: ChatDPICL(classifier=classifier()).bind_tools([print]),
    "a stop that is a number": lambda: chat().invoke("where is it", stop=3),  # type: ignore[arg-type]
    "a chat face with a stop of numbers": lambda: ChatDPICL(classifier=classifier()).invoke("x", stop=[3]),  # type: ignore[list-item]
    "a used-up chat": lambda: chat().batch([f"where {i}" for i in range(9)]),
    "users as a number": lambda: classifier(quotas=3),
    "users as a dict": lambda: classifier(quotas={"team-7": 3}),
    "a share as a str": lambda: Quotas(default="5"),  # type: ignore[arg-type]
    "shares as a list": lambda: Quotas(overrides=["team-7"]),  # type: ignore[arg-type]
    "nobody who asks": lambda: shared().invoke("x"),
    "a number who asks": lambda: asks(shared(), 7),
    "an empty name who asks": lambda: asks(shared(), ""),
    "somebody unknown who asks": lambda: asks(shared(quotas=Quotas(overrides={"team-7": 1})), "team-8"),
    "a used-up share": lambda: [asks(chain, "team-7", question) for chain in [shared()] for question in "xy"],
    "a user as an argument": lambda: shared().invoke("x", user_id="team-7"),
    "a tool without a user": lambda: shared().as_tool().invoke({"text": "x"}),
    "rows as a str": lambda: optimizer(rows="100"),
    "rows of none": lambda: optimizer(rows=0),
    "a chain in place of what builds it": lambda: ClassifyBatches(classifier(), "text"),  # type: ignore[arg-type]
    "a chain without replicas in batches": lambda: ClassifyBatches(classifier, "text"),
    "a column as a number": lambda: ClassifyBatches(classifier, 3),  # type: ignore[arg-type]
    "kept columns as a number": lambda: ClassifyBatches(classifier, "text", keep_columns=3),  # type: ignore[arg-type]
    "a batch as rows": lambda: labels_of([{"text": CANARY}]),
    "a batch of one row": lambda: labels_of({"text": CANARY, "id": 7}),
    "a batch of columns of two lengths": lambda: labels_of({"text": [CANARY, "x"], "id": [7]}),
    "a batch of other columns": lambda: labels_of({"body": [CANARY], "id": [7]}),
    "a batch of numbers": lambda: labels_of({"text": [1], "id": [7]}),
    "a name as the pseudonymizer": lambda: middleware(CANARY),
    "the class of a pseudonymizer": lambda: middleware(Pseudonymizer),
    "one tool's name": lambda: middleware(tools_inside="send_mail"),
    "a tool inside": lambda: middleware(tools_inside=[print]),
    "tools inside as a number": lambda: middleware(tools_inside=3),
    "a word as the key": lambda: middleware(key="secret"),
    "a report of what an agent returned": lambda: middleware().report({"messages": [AIMessage(CANARY)]}),
    "pseudonyms around a model": lambda: middleware().around(VotingChat()),
    "pseudonyms around nothing": lambda: middleware().around(None),
    "a text for an agent under pseudonyms": lambda: agent(CANARY),
    "a list for an agent under pseudonyms": lambda: agent([("user", CANARY)]),
    "a number as its messages": lambda: agent({"messages": 3}),
    "one str as terms": lambda: Pseudonymizer(terms=CANARY),
    "a number to hide names in": lambda: names().invoke(3),  # type: ignore[arg-type]
    "a pseudonymizer in place of what builds it": lambda: PseudonymizeBatches(names(), "text"),  # type: ignore[arg-type]
    "a key in place of what reads it": lambda: PseudonymizeBatches(names, "text", map_column="map", key="abc"),  # type: ignore[arg-type]
    "a map without a key": lambda: PseudonymizeBatches(names, "text", map_column="map"),
    "a map in a column of texts": lambda: PseudonymizeBatches(names, "text", map_column="text", key=str),
    "a batch of texts": lambda: PseudonymizeBatches(names, "text")([CANARY]),
    "what nobody can put back": lambda: PseudonymizeBatches(names, "text").restore({"text": ["x"]}),
    "describe": lambda: synthesizer(describe=True),
    "a plan of a str": lambda: synthesizer().plan("100"),  # type: ignore[arg-type]
    "an epsilon of a number": lambda: epsilon(EVENT, 1e-5),  # type: ignore[arg-type]
    "a calibration of a number": lambda: calibrate_noisy_max(3.0, queries=10, sampling_probability=0.1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("use", ANSWERED)
def test_what_a_new_user_tries_is_answered(use: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it breaks, what works everywhere else in LangChain does not work here."""
    monkeypatch.chdir(tmp_path)
    assert CANARY not in repr(ANSWERED[use]())


@pytest.mark.parametrize("use", REFUSED)
def test_a_wrong_use_ends_in_one_line_with_the_remedy(
    use: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it breaks, a slip ends in an AttributeError or a TypeError from deep inside, or shows what is private."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LangChainDPError) as caught:
        REFUSED[use]()
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith((".", ".)"))
    assert CANARY not in said
    assert list(tmp_path.iterdir()) == []
