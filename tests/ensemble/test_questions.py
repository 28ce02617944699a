"""Questions in every form that LangChain passes on: the same text reaches the members, and nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.canary import CANARY
from fakes.synthesizers import generator
from fakes.voters import VotingChat, classifier, left, private_examples
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from pydantic import BaseModel

from langchain_dp.ensemble.questions import question_fields
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ICLPrompt

TALK = [
    SystemMessage("Be kind."),
    HumanMessage("Hello"),
    AIMessage("Hi"),
    HumanMessage("the question"),
    AIMessage("So"),
]
FORMS: dict[str, Any] = {
    "str": "the question",
    "mapping": {"text": "the question", "other": 1},
    "message": HumanMessage("the question"),
    "a model's message": AIMessage("the question"),
    "content blocks": HumanMessage([{"type": "text", "text": "the question"}]),
    "messages": TALK,
    "pairs": [("system", "Be kind."), ("human", "the question")],
    "role and content": [{"role": "user", "content": "the question"}],
    "a tool's answer last": [*TALK[:4], AIMessage("", tool_calls=[]), ToolMessage("no question", tool_call_id="1")],
    "a graph's state": {"messages": TALK, "label": None},
    "chat prompt value": ChatPromptValue(messages=TALK),
    "string prompt value": StringPromptValue(text="the question"),
    "document": Document("the question", metadata={"source": "x"}),
}


@pytest.mark.parametrize("nothing", [None, float("nan"), np.float32("nan"), pytest.param("NA", id="pandas")])
def test_a_value_that_a_table_does_not_have_is_no_question(nothing: Any) -> None:
    """If it breaks, "nan" is asked, answered and charged."""
    if isinstance(nothing, str):
        nothing = pytest.importorskip("pandas").NA
    with pytest.raises(InvalidParameter, match=r"\['text'\] of the question to be text, but it is missing"):
        question_fields({"text": nothing, "other": 1}, ["text"])


@pytest.mark.parametrize("form", FORMS)
def test_a_question_is_the_same_in_every_form(form: str) -> None:
    """If it breaks, a form that LangChain passes on is refused, or the members are asked something else."""
    model = VotingChat()
    chain = classifier(model)
    assert chain.invoke(FORMS[form]) == "positive"
    assert {question.split("\n")[0] for question in model.asked.questions} == {"Text: the question"}
    assert chain.invoke("the question") == "positive"
    assert left(chain) == 4, "one question, one charge"
    writer = generator()
    assert writer.invoke(FORMS[form]) == writer.invoke("the question")
    assert writer.answers_left() == 4


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPromptTemplate.from_messages([("system", "Be kind."), ("human", "{text}")]),
        PromptTemplate.from_template("{text}"),
        FakeListChatModel(responses=["the question"]),
        FakeListChatModel(responses=["the question"]) | StrOutputParser(),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_a_classifier_stands_behind_a_prompt_or_a_model(prompt: Any) -> None:
    """If it breaks, ``prompt | classifier`` and ``model | classifier`` end in an error."""
    model = VotingChat()
    given: Any = "x" if isinstance(prompt, FakeListChatModel) or hasattr(prompt, "steps") else {"text": "the question"}
    assert (prompt | classifier(model)).invoke(given) == "positive"
    assert {question.split("\n")[0] for question in model.asked.questions} == {"Text: the question"}


def test_history_is_used_where_the_template_names_it() -> None:
    """If it breaks, what was said before reaches the model unasked, or not at all."""
    names = ("history", "text")
    assert question_fields(TALK, names) == {"history": "System: Be kind.\nHuman: Hello\nAI: Hi", "text": "the question"}
    assert question_fields("q", names) == question_fields(HumanMessage("q"), names) == {"history": "", "text": "q"}
    assert question_fields({"text": "q", "history": "h"}, names) == {"history": "h", "text": "q"}
    assert question_fields(TALK, ["history"]) == {"history": "the question"}
    assert question_fields({"messages": "all"}, ["messages"]) == {"messages": "all"}
    model = VotingChat()
    prompt = ICLPrompt(question="Before: {history} Now: {text}", answer="Label:")
    chain = classifier(model, examples=[{**row, "history": ""} for row in private_examples(24)], prompt=prompt)
    chain.invoke(TALK)
    assert all("Human: Hello\nAI: Hi" in question for question in model.asked.questions)


class Ticket(BaseModel):
    """What a model with structured output hands on."""

    product: str
    text: str


class Row(NamedTuple):
    """What a loop over a frame hands on."""

    product: str
    text: str


class Series:
    """What pandas has for a row: names and values of one dimension."""

    ndim = 1

    def to_dict(self) -> dict[str, Any]:
        """The row by its names."""
        return {"product": "Lamp", "text": "It is broken."}


@pytest.mark.parametrize(
    "question",
    [
        Document("It is broken.", metadata={"product": "Lamp", "text": "old"}),
        {"messages": [HumanMessage("It is broken.")], "product": "Lamp"},
        Ticket(product="Lamp", text="It is broken."),
        Row("Lamp", "It is broken."),
        Series(),
    ],
    ids=lambda question: type(question).__name__,
)
def test_a_question_fills_the_variable_of_the_text_wherever_it_stands(question: Any) -> None:
    """If it breaks, a body is put for a title and charged, or what serves as an example is refused as a question."""
    model, prompt = VotingChat(), ICLPrompt(question="Product: {product}\nTicket: {text}", answer="Kind:")
    chain = classifier(model, examples=[{**row, "product": "x"} for row in private_examples(24)], prompt=prompt)
    chain.invoke(question)
    assert {asked.split("\nKind")[0] for asked in model.asked.questions} == {"Product: Lamp\nTicket: It is broken."}


@pytest.mark.parametrize("kind", ["int64", "float32", "str_"])
def test_numbers_out_of_a_table_are_shown_as_they_are(kind: str) -> None:
    """If it breaks, a row of a DataFrame is neither an example nor a question."""
    value = getattr(np, kind)(3)
    model, prompt = VotingChat(), ICLPrompt(question="{text} Stars: {stars}", answer="Label:")
    chain = classifier(model, examples=[{**row, "stars": value} for row in private_examples(24)], prompt=prompt)
    chain.invoke({"text": "Fine.", "stars": value})
    assert any(f"Fine. Stars: {value}" in question for question in model.asked.questions)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ([], "a human message with the question, but found none"),
        ([AIMessage(CANARY)], "a human message with the question"),
        ({"messages": [SystemMessage(CANARY)]}, "a human message with the question"),
        ([CANARY, CANARY], r"one str or a list of messages, not a list with str. Ask many questions by batch\(\)"),
        ([5], "type list to hold messages alone. Nothing was spent"),
        ([{"body": CANARY}], "to hold messages alone"),
        (5, "to be a str or a mapping, not int; or a message"),
        (b"x", "not bytes"),
        ({1, 2}, "not set"),
        (HumanMessage(""), "it is blank"),
        (HumanMessage([{"type": "image", "url": "http://127.0.0.1/x.png"}]), "text alone, .* such as an image"),
        (HumanMessage(["What is it?", {"type": "image_url", "image_url": {"url": CANARY}}]), "text alone"),
        ([HumanMessage([{"type": "text", "text": "a"}, {"type": "file", "id": CANARY}])], "text alone"),
        ({"text": HumanMessage(CANARY)}, r"\['text'\] to be text or numbers"),
        ("\ud800 hello", "lone surrogate"),
        (Document(" "), "it is blank"),
        ({"body": CANARY}, r"mapping with \['text'\]; missing: \['text'\]"),
    ],
)
def test_what_is_no_question_is_told_so_and_costs_nothing(question: Any, message: str) -> None:
    """If it breaks, a slip costs an answer, ends in an error of LangChain, or is shown in ours."""
    chain = classifier()
    with pytest.raises(InvalidParameter, match=message) as caught:
        chain.invoke(question)
    assert CANARY not in str(caught.value)
    assert caught.value.__context__ is None
    assert left(chain) == 5
