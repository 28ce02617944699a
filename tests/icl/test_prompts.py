"""Templates, and texts that look like templates."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.voters import VotingChat, classifier
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import AGNEWS, AMAZON, SST2, TREC, ICLPrompt
from langchain_dp.icl.prompts import plain, prompt_from

BRACES = "{text} {0} {{label}} %s {answer!r} }{"


TYPES = (
    "Classify the questions based on whether their answer type is a Number, Location, Person, Description, Entity, or "
    "Abbreviation.\n\n"
)


@pytest.mark.parametrize(
    ("prompt", "shot", "label", "question", "whole"),
    [
        (SST2, {"text": "a joy"}, "positive", {"text": "so so"},
         "Review: a joy\nSentiment: Positive\n\nReview: so so\nSentiment:"),
        (AMAZON, {"title": "Good", "text": "It works"}, "positive", {"title": "Bad", "text": "It broke"},
         "Title: Good\nReview: It works\nSentiment: Positive\n\nTitle: Bad\nReview: It broke\nSentiment:"),
        (AGNEWS, {"text": "Stocks fell"}, "Business", {"text": "A cup final"},
         "Article: Stocks fell\nAnswer: Business\n\nArticle: A cup final\nAnswer:"),
        (TREC, {"text": "What is NASA?"}, "expression", {"text": "How many?"},
         f"{TYPES}Question: What is NASA?\nAnswer Type: Abbreviation\n\nQuestion: How many?\nAnswer Type:"),
    ],
)  # fmt: skip
def test_a_template_is_that_of_the_paper(prompt: ICLPrompt, shot: Any, label: str, question: Any, whole: str) -> None:
    """A prompt differs from Table 4 of the DP-ICL paper, so its numbers cannot be compared."""
    assert prompt.head() + prompt.body([(prompt.ask(shot), prompt.word(label))]) + prompt.ask(question) == whole


FULL = ICLPrompt(instruction="Be {fair}.\n\nRead.", question="Review: {text}", answer="Sentiment:")
TEXT = "Be {{fair}}.\n\nRead.\n\nReview: {text}\nSentiment:"


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (FULL, FULL),
        (f"\n{TEXT} {{label}}\n", FULL),
        ("Is it nice? {text}", ICLPrompt(question="Is it nice? {text}", answer="Label:")),
        ("{a}\n\nand {b}\nSo:", ICLPrompt(question="{a}\n\nand {b}", answer="So:")),
        ("A: {a}\nB: {b}", ICLPrompt(question="A: {a}\nB: {b}", answer="Label:")),
    ],
    ids=str,
)
def test_a_text_is_read_to_the_letter(given: Any, prompt: ICLPrompt) -> None:
    """If it breaks, the model is asked in other words than the user wrote."""
    assert prompt_from(given) == prompt
    if given != prompt and prompt == FULL:
        assert prompt.head() + prompt.ask({"text": "Good."}) == TEXT.format(text="Good.")


def test_a_classifier_takes_a_text_and_words_by_the_labels_themselves() -> None:
    """If it breaks, prompt="..." is an AttributeError, or a model is asked for "1", which says nothing."""
    model = VotingChat()
    assert classifier(model, prompt="Review: {text}\nSentiment:").invoke("x") == "positive"
    assert set(model.asked.questions) == {"Review: x\nSentiment:"}
    model.asked.clear()
    examples = [{"text": f"note {i}", "label": 1} for i in range(24)]
    prompt = ICLPrompt(question="Text: {text}", answer="Label:", words={0: "bad", 1: "good"})
    assert classifier(model, examples=examples, labels=[0, 1], prompt=prompt).invoke("x") == 1
    assert {word for shots in model.asked.shots for _, word in shots} == {"good"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "prompt of type int to be an ICLPrompt or a str"),
        ("", "to name a variable"),
        ("Classify the reviews.", r"to name a variable, such as \{text\}"),
        ("Review: {text", "every brace that stands for itself twice"),
    ],
)
def test_what_a_text_does_not_say_is_not_guessed(given: Any, message: str) -> None:
    """If it breaks, a prompt is asked that nobody wrote, or the error does not say what to write."""
    with pytest.raises(InvalidParameter, match=message) as caught:
        classifier(prompt=given)
    assert "Write ICLPrompt(instruction=..., question='Review: {text}', answer='Sentiment:')." in str(caught.value)


@pytest.mark.parametrize("prompt", [SST2, AGNEWS, TREC, plain(["a", "b"])])
def test_braces_in_a_text_or_a_label_stay_as_they_are(prompt: ICLPrompt) -> None:
    """A text with braces is read as a template: it fails, or pulls other values into the prompt."""
    assert "{x}" in plain(["{x}", "y"]).head()
    assert BRACES in prompt.ask({"text": BRACES})
    _, asked = prompt.messages([], prompt.ask({"text": BRACES}), ["a", "b"])
    assert BRACES in str(asked.content)


def test_messages_are_turns_of_a_conversation_with_the_rule_first() -> None:
    """Examples reach a chat model in another order or role than a conversation has."""
    messages = TREC.messages([("Question: Who?\nAnswer Type:", "Person")], "Question: Where?\nAnswer Type:", ["Person"])
    assert [type(message) for message in messages] == [SystemMessage, HumanMessage, AIMessage, HumanMessage]
    assert str(messages[0].content).startswith("Classify the questions")
    assert str(messages[0].content).endswith("Answer with exactly one of: Person. Write nothing else.")
    assert [message.content for message in messages[1:]] == [
        "Question: Who?\nAnswer Type:",
        "Person",
        "Question: Where?\nAnswer Type:",
    ]


def test_a_question_loses_its_outer_blanks_and_one_without_content_is_of_the_template() -> None:
    """Stray blanks make two equal questions two, or calibration asks with another template than the question's."""
    assert SST2.content_free() == ("Review: N/A\nSentiment:", "Review: \nSentiment:", "Review: [MASK]\nSentiment:")
    assert SST2.ask({"text": "  so so\n"}) == "Review: so so\nSentiment:"


def test_a_missing_variable_is_named_and_the_given_text_is_not() -> None:
    """The error for a missing field leaves the user guessing, or quotes the text."""
    with pytest.raises(InvalidParameter, match=r"\['title', 'text'\]; missing: \['title'\]") as caught:
        AMAZON.ask({"text": "secret"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ICLPrompt(question="Review:", answer="S:"), "hold a variable"),
        (lambda: ICLPrompt(question="{text}", answer="S:", words={"a": "Yes", "b": "yes"}), "two labels share one"),
        (
            lambda: ICLPrompt(question="{text}", answer="S:", words={"a": " "}),
            "by label, not 'a': ' '",
        ),
        (lambda: ICLPrompt(question="{text}", answer="S:", words={"a": "p\nq"}), "one line of text"),
        (lambda: ICLPrompt(question="{text}", answer="S:", words={1.5: "p", 2.5: "q"}), "one line of text by label"),
        (lambda: ICLPrompt(question="{text} {price:.2f}", answer="S:"), "plain variables"),
        (lambda: ICLPrompt(question="{text[0]} {}", answer="S:"), "plain variables"),
        (lambda: plain(["one"]), "number of labels=1"),
        (lambda: ICLPrompt(question=5, answer="S:"), "question of type int to be a str"),
        (lambda: ICLPrompt(question="{text}", answer=None), "answer of type NoneType"),
        (lambda: ICLPrompt(question="{text}", answer="S:", instruction=b""), "instruction of type bytes"),
        (lambda: ICLPrompt(question="{text}", answer="S:", words=["a"]), "words of type list to map labels to words"),
        (
            lambda: ICLPrompt(question="{text}", answer="S:", words={"a": 1}),
            "words to be one line of text by label, not",
        ),
        (lambda: ICLPrompt(question="{a", answer="S:"), "every brace that stands for itself twice"),
    ],
)
def test_a_template_that_cannot_work_is_refused(make: object, message: str) -> None:
    """A prompt without a variable, or with one word for two labels, is found only by wrong answers."""
    assert callable(make)
    with pytest.raises(InvalidParameter, match=message):
        make()
