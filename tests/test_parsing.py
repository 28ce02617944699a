"""What counts as a label, and what abstains."""

from __future__ import annotations

import enum
import types
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage

from langchain_dp.parsing import label_parser, parse_label
from langchain_dp.records import label_name

WORDS = ["positive", "negative"]
TREC = ["Number", "Location", "Person", "Description", "Entity", "Abbreviation"]


class Mood(enum.Enum):
    GOOD = "positive"
    BAD = "negative"


class Star(enum.IntEnum):
    NONE = 0
    ONE = 1


def call(*labels: str) -> AIMessage:
    calls = [{"name": "answer", "args": {"label": label}, "id": str(i)} for i, label in enumerate(labels)]
    return AIMessage("", tool_calls=calls)


@pytest.mark.parametrize(
    ("answer", "words", "expected"),
    [
        ("positive", WORDS, 0),
        ("NEGATIVE", WORDS, 1),
        ("  Negative.  ", WORDS, 1),
        ("Positive!", WORDS, 0),
        ('"positive"', WORDS, 0),
        ("**Positive**", WORDS, 0),
        ("# Negative", WORDS, 1),
        ("- negative", WORDS, 1),
        ("`negative`", WORDS, 1),
        ("Label: negative", WORDS, 1),
        ("**Label:** negative", WORDS, 1),
        ("Sentiment: Positive.", WORDS, 0),
        ("The answer is negative.", WORDS, 1),
        ("The sentiment of this text is positive", WORDS, 0),
        ("\n\nnegative\nText: another\nLabel: positive", WORDS, 1),
        ("Positive. The film is a joy.", WORDS, 0),
        ("Negative - it bored me", WORDS, 1),
        ("Answer Type: person", TREC, 2),
        ("not relevant", ["relevant", "not relevant"], 1),
        ("Not relevant. It is about fish.", ["relevant", "not relevant"], 1),
        ("Not relevant: it is about fish", ["relevant", "not relevant"], 1),
        ("relevant", ["relevant", "not relevant"], 0),
        ("very  happy", ["very happy", "sad"], 0),
        ("Sci/Tech", ["World", "Sci/Tech"], 1),
        ("-", ["+", "-"], 1),
        ("(a)", ["a", "(a)"], 1),
        ('{"label": "negative"}', WORDS, 1),
        ('{"label": "Positive", "why": "not negative at all"}', WORDS, 0),
        ('```json\n{"label": "negative"}\n```', WORDS, 1),
        ("```\npositive\n```", WORDS, 0),
        ({"label": "positive"}, WORDS, 0),
        (Mood.BAD, WORDS, 1),
        ({"label": Mood.BAD}, WORDS, 1),
        (types.SimpleNamespace(label="negative"), WORDS, 1),
        (AIMessage("Positive"), WORDS, 0),
        (AIMessage([{"type": "text", "text": "Negative"}]), WORDS, 1),
        (AIMessage([{"type": "reasoning", "reasoning": "positive?"}, {"type": "text", "text": "negative"}]), WORDS, 1),
        (AIMessage(["nega", "tive"]), WORDS, 1),
        (call("negative"), WORDS, 1),
    ],
)
def test_an_answer_that_names_one_label_votes_for_it(answer: Any, words: list[str], expected: int) -> None:
    """A usual way to say a label is lost as an abstention, or counted for another label."""
    assert parse_label(answer, words) == expected


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", WORDS),
        ("   \n ", WORDS),
        ("!!!", WORDS),
        ("...", ["+", "-"]),
        ("", ["+", "-"]),
        ("I cannot say.", WORDS),
        ("positive or negative", WORDS),
        ("positive / negative", WORDS),
        ("Positive, not negative", WORDS),
        ("Positive: negative", WORDS),
        ("Positive or negative: negative", WORDS),
        ("not positive", WORDS),
        ("It is not: positive", WORDS),
        ("Definitely not: positive", WORDS),
        ("not relevant", ["relevant", "irrelevant"]),
        ("not relevant at all", ["relevant", "other"]),
        ("unpositive", WORDS),
        ("positively", WORDS),
        ("[a]", ["a", "(a)"]),
        ('{"mood": "positive"}', WORDS),
        ('{"label": 1}', WORDS),
        ('{"label": "positive"', WORDS),
        ("```json\n[]\n```", WORDS),
        ({"mood": "positive"}, WORDS),
        ({"label": None}, WORDS),
        (None, WORDS),
        (7, WORDS),
        (True, WORDS),
        (object(), WORDS),
        (AIMessage(""), WORDS),
        (AIMessage([{"type": "image", "url": "positive"}]), WORDS),
        (call("positive", "negative"), WORDS),
        (call("who knows"), WORDS),
    ],
)
def test_an_answer_that_does_not_name_exactly_one_label_abstains(answer: Any, words: list[str]) -> None:
    """Nonsense, two labels or a denied label are counted as a vote."""
    assert parse_label(answer, words) is None


def test_every_label_of_every_ready_template_is_read_back() -> None:
    """A label word of a ready template cannot be answered at all."""
    for index, word in enumerate(TREC):
        for form in (word, word.upper(), f" {word}.", f"Answer Type: {word}", f'{{"label": "{word}"}}'):
            assert parse_label(form, TREC) == index


@pytest.mark.parametrize(
    ("answer", "words", "named"),
    [
        ("-1", ["0", "1"], None),
        ("Label: -1", ["0", "1"], None),
        *((one, ["1", "2", "3"], None) for one in ("3.5", "2,500", "1:30", "3-5", "1%")),
        *((one, ["-1", "0", "1"], "-1") for one in ("-1", "Label: -1", "-1.", "**-1**", "(-1)")),
        *((one, ["-1", "0", "1"], "1") for one in ("Label: 1", "1.", "- 1", "1", "1. It is")),
        *((one, ["C", "C#"], "C#") for one in ("Label: C#", "C#.", "**C#**", "c#")),
        *((one, ["C", "C#"], "C") for one in ("Label: C", "C", "c")),
        (5, ["5", "1"], "5"),
        ({"label": 5}, ["5", "1"], "5"),
        ('{"label": 5}', ["5", "1"], "5"),
        ({"label": True}, ["True", "False"], "True"),
    ],
)
def test_numbers_and_signs_of_labels_are_read(answer: Any, words: list[str], named: str | None) -> None:
    """If it breaks, -1 is a vote for 1, 3.5 one for 3, or labels that are numbers get no votes at all."""
    found = parse_label(answer, words)
    assert (None if found is None else words[found]) == named


@pytest.mark.parametrize("answer", [Star.ONE, {"label": Star.ONE}, types.SimpleNamespace(label=Star.ONE)])
def test_a_member_of_an_enum_is_read_by_the_name_that_its_label_has(answer: Any) -> None:
    """If it breaks, a model that returns members of an Enum with numbers as values never votes for one of them."""
    assert parse_label(answer, [str(label_name(star)) for star in Star]) == 1
    assert parse_label(answer, ["0", "1"]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "<think>\nNegative words, but\n</think>\n\npositive",
        "The template opened it. negative?\n</think>\nPositive.",
        AIMessage("<think></think>positive"),
        AIMessage([{"type": "reasoning_content", "text": "negative "}, {"type": "text", "text": "positive"}]),
        AIMessage([{"type": "thinking", "thinking": "negative"}, {"text": "positive"}]),
    ],
)
def test_what_a_model_thinks_aloud_is_no_answer(answer: Any) -> None:
    """If it breaks, a reasoning model served without a parser of its own abstains for every subset."""
    assert parse_label(answer, WORDS) == 0


def test_a_thought_that_breaks_off_is_no_answer() -> None:
    """If it breaks, a word of a thought is counted as a vote."""
    assert parse_label("<think>positive", WORDS) is None
    assert parse_label("<think>\npositive", WORDS) is None


CHINESE = ["\u6b63\u9762", "\u8d1f\u9762"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *((one, ["positive", "negative"]) for one in (
            "\u201cPositive\u201d", "\u2018positive\u2019", "\u00abpositive\u00bb", "positive\u2026",
            "positive \U0001f44d",
            "Positive - no doubt about it", "Positive. No complaints", "**Positive**",
        )),
        *((one, CHINESE) for one in (
            "\u6b63\u9762\u3002", "\u7b54\u6848\uff1a\u6b63\u9762", "\u300c\u6b63\u9762\u300d",
            "\u6b63\u9762\uff0c\u56e0\u4e3a\u5f88\u597d\u3002",
        )),
        ("\u0938\u0915\u093e\u0930\u0964", ["\u0938\u0915\u093e\u0930", "\u0928"]),
        ("\u0646\u0639\u0645\u060c \u0644\u0623\u0646", ["\u0646\u0639\u0645", "\u0644\u0627"]),
        ("Cafe\u0301.", ["Caf\u00e9", "bar"]),
        ("Caf\u00e9", ["Cafe\u0301", "bar"]),
    ],
)  # fmt: skip
def test_answers_end_as_each_writing_does(answer: str, words: list[str]) -> None:
    """If it breaks, a model that ends its answers with the full stop of its own script never votes."""
    assert parse_label(answer, words) == 0


@pytest.mark.parametrize(
    "answer",
    [
        "Cannot be: positive",
        "Anything but: positive",
        "Wrong: positive",
        "It isn't: positive",
        "Positive: false",
        "Positive - no",
    ],
)
def test_what_is_denied_is_no_vote(answer: str) -> None:
    """If it breaks, a denial counts for the label that it denies."""
    assert parse_label(answer, ["positive", "negative"]) is None


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    """If it breaks, a model that repeats one mark for ever holds up every other question for seconds."""
    assert parse_label("-" * 100_000 + " positive", ["positive", "negative"]) is None


def test_an_answer_gives_its_label_back() -> None:
    """If it breaks, a chain that asks for names answers with names, or with another label."""
    parser = label_parser({"team A": "sports", "team B": "sports business"})
    assert parser.invoke(AIMessage("Sports.")) == "team A"
    assert parser.invoke("Topic: sports business") == "team B"


@pytest.mark.parametrize("answer", ["cooking SECRET", "", "sports or money SECRET"])
def test_an_answer_that_names_no_label_is_an_error_without_the_answer(answer: str) -> None:
    """If it breaks, a guess stands for a label, or a log repeats the answer."""
    with pytest.raises(OutputParserException, match="sports") as caught:
        label_parser({"team A": "sports", "team B": "money"}).invoke(answer)
    assert "SECRET" not in str(caught.value)
