"""Templates, and texts that look like templates."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import AGNEWS, AMAZON, SST2, TREC, ICLPrompt
from langchain_dp.icl.prompts import plain

BRACES = "{text} {0} {{label}} %s {answer!r} }{"


def whole(prompt: ICLPrompt, shots: list[tuple[dict[str, str], str]], question: dict[str, str]) -> str:
    body = prompt.body([(prompt.ask(fields), prompt.word(label)) for fields, label in shots])
    return prompt.head() + body + prompt.ask(question)


def test_sst2_is_the_papers_template() -> None:
    """The SST-2 prompt differs from Table 4 of the DP-ICL paper, so its numbers cannot be compared."""
    shots = [({"text": "a joy"}, "positive"), ({"text": "dull"}, "negative")]
    assert whole(SST2, shots, {"text": "so so"}) == (
        "Review: a joy\nSentiment: Positive\n\nReview: dull\nSentiment: Negative\n\nReview: so so\nSentiment:"
    )


def test_amazon_is_the_papers_template() -> None:
    """The Amazon prompt loses its title or differs from Table 4."""
    shots = [({"title": "Good", "text": "It works"}, "positive")]
    assert whole(AMAZON, shots, {"title": "Bad", "text": "It broke"}) == (
        "Title: Good\nReview: It works\nSentiment: Positive\n\nTitle: Bad\nReview: It broke\nSentiment:"
    )


def test_agnews_is_the_papers_template() -> None:
    """The AG News prompt differs from Table 4."""
    shots = [({"text": "Stocks fell"}, "Business")]
    assert whole(AGNEWS, shots, {"text": "A cup final"}) == (
        "Article: Stocks fell\nAnswer: Business\n\nArticle: A cup final\nAnswer:"
    )


def test_trec_is_the_papers_template() -> None:
    """The TREC prompt loses its instruction, or the words of its labels."""
    shots = [({"text": "Who wrote it?"}, "human"), ({"text": "What is NASA?"}, "expression")]
    assert whole(TREC, shots, {"text": "How many?"}) == (
        "Classify the questions based on whether their answer type is a Number, Location, Person, Description, "
        "Entity, or Abbreviation.\n\n"
        "Question: Who wrote it?\nAnswer Type: Person\n\nQuestion: What is NASA?\nAnswer Type: Abbreviation\n\n"
        "Question: How many?\nAnswer Type:"
    )


@pytest.mark.parametrize("prompt", [SST2, AGNEWS, TREC, plain(["a", "b"])])
def test_braces_in_a_text_stay_as_they_are(prompt: ICLPrompt) -> None:
    """A text with braces is read as a template: it fails, or pulls other values into the prompt."""
    assert BRACES in prompt.ask({"text": BRACES})
    _, asked = prompt.messages([], prompt.ask({"text": BRACES}), ["a", "b"])
    assert BRACES in str(asked.content)


def test_braces_in_a_label_stay_as_they_are() -> None:
    """The plain prompt's instruction interprets its labels."""
    assert "{x}" in plain(["{x}", "y"]).head()


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


def test_white_space_at_the_ends_of_a_text_is_cut() -> None:
    """Stray blanks make two equal questions two, and cost budget twice."""
    assert SST2.ask({"text": "  so so\n"}) == "Review: so so\nSentiment:"


def test_questions_without_content_come_from_the_template() -> None:
    """Contextual calibration asks with another template than the question's."""
    assert SST2.content_free() == ("Review: N/A\nSentiment:", "Review: \nSentiment:", "Review: [MASK]\nSentiment:")


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
    ],
)
def test_a_template_that_cannot_work_is_refused(make: object, message: str) -> None:
    """A prompt without a variable, or with one word for two labels, is found only by wrong answers."""
    assert callable(make)
    with pytest.raises(InvalidParameter, match=message):
        make()
