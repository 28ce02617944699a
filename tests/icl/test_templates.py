"""LangChain's prompts as an ICLPrompt: what says enough is read, to the letter; what does not is told what to write."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.voters import VotingChat, classifier
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)

from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ICLPrompt
from langchain_dp.icl.templates import prompt_from

FULL = ICLPrompt(instruction="Be {fair}.\n\nRead.", question="Review: {text}", answer="Sentiment:")
TEXT = "Be {{fair}}.\n\nRead.\n\nReview: {text}\nSentiment:"
SHOT = PromptTemplate.from_template("Review: {text}\nSentiment: {label}")


def few_shot(**changes: Any) -> Any:
    return FewShotPromptTemplate(
        **{
            "examples": [{"text": "a", "label": "b"}],
            "example_prompt": SHOT,
            "prefix": "Be {{fair}}.\n\nRead.",
            "suffix": "Review: {text}\nSentiment:",
            "input_variables": ["text"],
        }
        | changes
    )


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (FULL, FULL),
        (TEXT, FULL),
        (f"\n{TEXT}\n", FULL),
        (PromptTemplate.from_template(TEXT), FULL),
        (ChatPromptTemplate.from_template(TEXT), FULL),
        (ChatPromptTemplate([("system", "Be {{fair}}.\n\nRead."), ("human", "Review: {text}\nSentiment:")]), FULL),
        (few_shot(), FULL),
        ("Is it nice? {text}", ICLPrompt(question="Is it nice? {text}", answer="Label:")),
        ("{a}\n\nand {b}\nSo:", ICLPrompt(question="{a}\n\nand {b}", answer="So:")),
        ("A: {a}\nB: {b}", ICLPrompt(question="A: {a}\nB: {b}", answer="Label:")),
    ],
    ids=str,
)
def test_a_template_is_read_to_the_letter(given: Any, prompt: ICLPrompt) -> None:
    """If it breaks, the model is asked in other words than the user wrote."""
    assert prompt_from(given) == prompt


def test_without_examples_the_model_sees_what_the_template_says() -> None:
    """If it breaks, the pieces are put together otherwise than they were taken apart."""
    read = prompt_from(TEXT)
    assert read.head() + read.ask({"text": "Good."}) == TEXT.format(text="Good.")
    shots = few_shot().format(text="Good.")
    assert read.head() + read.body([(read.ask({"text": "a"}), "b")]) + read.ask({"text": "Good."}) == shots


def test_a_classifier_takes_a_template() -> None:
    """If it breaks, prompt="..." is an AttributeError."""
    model = VotingChat()
    assert classifier(model, prompt="Review: {text}\nSentiment:").invoke("x") == "positive"
    assert set(model.asked.questions) == {"Review: x\nSentiment:"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "prompt of type int to be an ICLPrompt, a str or a template"),
        ("", "to name a variable"),
        ("Classify the reviews.", r"to name a variable, such as \{text\}"),
        ("Review: {text", "every brace that stands for itself twice"),
        (PromptTemplate.from_template("{{text}}", template_format="mustache"), "in f-string format"),
        (PromptTemplate.from_template("{a} {b}").partial(a="x"), "without partial variables"),
        (ChatPromptTemplate([("system", "Labels: {labels}"), ("human", "{text}")]), "not in the system message"),
        (ChatPromptTemplate([("human", "{text}"), ("human", "{more}")]), "one human message with the question, not 2"),
        (ChatPromptTemplate([("system", "{{x}}")]), "one human message with the question, not 0"),
        (ChatPromptTemplate([MessagesPlaceholder("messages")]), "not MessagesPlaceholder"),
        (ChatPromptTemplate([AIMessage("x"), ("human", "{text}")]), "not AIMessage"),
        (ChatPromptTemplate([("human", [{"type": "text", "text": "{text}"}])]), "text alone, not a message of blocks"),
        (ChatPromptTemplate([("human", [{"type": "image_url", "image_url": "{u}"}])]), "not a message of blocks"),
        (ChatPromptTemplate([HumanMessage("{text}")]), r"by \('human', .* HumanMessage LangChain fills in no variable"),
        (ChatPromptTemplate([("human", "{text} {a}")]).partial(a="x"), "no partial variables"),
        (few_shot(example_separator="\n"), "a blank line between its examples"),
        (few_shot(suffix="Review: {text}\nMood:"), "a suffix that is its example prompt, to the letter"),
        (few_shot(example_prompt=PromptTemplate.from_template("Review: {text}")), "without the label at the end"),
        (few_shot(example_prompt=PromptTemplate.from_template("{label}")), "to the letter"),
        (few_shot(prefix="{a}", input_variables=["a", "text"]), "not in the prefix"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_a_template_does_not_say_is_not_guessed(given: Any, message: str) -> None:
    """If it breaks, a prompt is asked that nobody wrote, or the error does not say what to write."""
    with pytest.raises(InvalidParameter, match=message) as caught:
        classifier(prompt=given)
    assert "Write ICLPrompt(instruction=..., question='Review: {text}', answer='Sentiment:')." in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"question": 5}, "question of type int to be a str"),
        ({"answer": None}, "answer of type NoneType"),
        ({"instruction": b""}, "instruction of type bytes"),
        ({"words": ["a"]}, "words of type list to map labels to words"),
        ({"words": {"a": 1}}, "words to be one line of text by label, not 'a': 1"),
        ({"question": "{a"}, "every brace that stands for itself twice"),
    ],
)
def test_an_iclprompt_is_made_of_strings(fields: dict[str, Any], message: str) -> None:
    """If it breaks, a slip ends in an AttributeError of ours."""
    with pytest.raises(InvalidParameter, match=message):
        ICLPrompt(**{"question": "{text}", "answer": "Label:"} | fields)


def test_words_may_be_given_by_the_labels_themselves() -> None:
    """If it breaks, a model is asked for "1", which says nothing."""
    model = VotingChat()
    examples = [{"text": f"note {i}", "label": 1} for i in range(24)]
    prompt = ICLPrompt(question="Text: {text}", answer="Label:", words={0: "bad", 1: "good"})
    assert classifier(model, examples=examples, labels=[0, 1], prompt=prompt).invoke("x") == 1
    assert {word for shots in model.asked.shots for _, word in shots} == {"good"}
