"""A prompt on the model that it is handed to: scored, and chosen among what a run has released."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.models import Chat, Completion
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import BUDGET, LABELS, SENTENCE, examples, optimizer
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.opt import (
    Candidate,
    OptimizedPrompt,
    OptPrompts,
    PromptScore,
    choose_for_target,
    evaluate_prompt,
    load_prompt,
)
from langchain_dp.opt.target import paired_gain
from langchain_dp.records import PrivateRecords

TEMPLATE = ChatPromptTemplate.from_messages([("human", "Say good or bad.\n\nInput: {text}\n\nOutput:")])
ROWS = [{"text": f"{CANARY} {i}", "label": LABELS[i % 2]} for i in range(8)]


def answering(*answers: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(answers))


def test_answers_are_compared_with_the_labels() -> None:
    """If it breaks, accuracy is no share of right answers, or right labels and answers change places in the table."""
    right = answering("negative", "positive")
    score = evaluate_prompt(TEMPLATE, right, ROWS, LABELS, max_concurrency=1)
    assert score == PromptScore(1.0, 0.0, 1.0, 8)
    mixed = answering("negative", "negative", "I do not know", "It is positive.")
    score = evaluate_prompt(TEMPLATE, mixed, ROWS, LABELS, max_concurrency=1)
    assert (score.accuracy, score.answered, score.rows) == (0.5, 0.75, 8)
    assert score.standard_error == pytest.approx(math.sqrt(0.25 / 8))
    assert str(score) == "accuracy 0.500 +- 0.177 on 8 rows (75% of the answers named one label)"
    assert score.confusion == {
        "negative": {"negative": 2, "positive": 0, "": 2},
        "positive": {"negative": 2, "positive": 2, "": 0},
    }
    assert [line.split() for line in score.table().splitlines()] == [
        ["right", "\\", "said", "negative", "positive", "(no", "label)"],
        ["negative", "2", "0", "2"],
        ["positive", "2", "2", "0"],
    ]
    assert json.dumps(dict(score.confusion))


def test_a_constant_answer_is_seen() -> None:
    """If it breaks, a prompt that says one label to everything passes for one that knows half of the answers."""
    score = evaluate_prompt(TEMPLATE, answering("positive"), ROWS, LABELS)
    assert score.always == "positive"
    assert "always says 'positive'" in str(score)
    assert evaluate_prompt(TEMPLATE, answering("positive"), ROWS[1::2], LABELS).always is None  # as the rows do
    assert evaluate_prompt(TEMPLATE, answering("I do not know"), ROWS, LABELS).always is None
    assert evaluate_prompt(TEMPLATE, answering("positive", "negative"), ROWS, LABELS, max_concurrency=1).always is None


def test_words_stand_for_labels() -> None:
    """If it breaks, a model that answers in the words it was asked for gets no point."""
    words = {"negative": "bad", "positive": "good"}
    said = answering("bad", "Good!")
    assert evaluate_prompt(TEMPLATE, said, ROWS, LABELS, words=words, max_concurrency=1).accuracy == 1.0
    said = answering("negative", "positive")
    assert evaluate_prompt(TEMPLATE, said, ROWS, LABELS, words=words, max_concurrency=1).answered == 0.0


def test_a_call_that_fails_is_wrong_and_raises_nothing() -> None:
    """If it breaks, one refused call ends an evaluation of thousands, with the row in the message."""
    left = [1]

    def act(prompt: str) -> None:
        if not left:
            raise ValueError(prompt)
        left.pop()

    score = evaluate_prompt(TEMPLATE, Chat(act=act), ROWS, LABELS, max_concurrency=1)
    assert score.rows == len(ROWS)
    assert score.accuracy < 0.2


def test_a_model_that_never_answers_is_no_bad_prompt() -> None:
    """If it breaks, a wrong key or an outage is taken for a prompt that is worth nothing, or looks like any fault."""

    class Denied(Exception):
        status_code = 401

    def refused(value: Any) -> str:
        raise Denied("invalid key")

    with pytest.raises(ModelUnavailable, match=r"Denied \(status 401\): invalid key"):
        evaluate_prompt(TEMPLATE, RunnableLambda(refused), ROWS, LABELS)

    def act(prompt: str) -> None:
        raise ValueError(prompt)

    with pytest.raises(ModelUnavailable, match="got ValueError") as caught:
        evaluate_prompt(TEMPLATE, Chat(act=act), ROWS, LABELS)
    assert CANARY not in str(caught.value)

    def too_long(prompt: str) -> None:
        if CANARY in prompt:
            raise ValueError(prompt)

    with pytest.raises(ModelUnavailable, match=f"failed on each of {len(ROWS)} rows"):
        evaluate_prompt(TEMPLATE, Chat(act=too_long), ROWS, LABELS)


def test_labels_and_prompts_of_every_kind_are_scored() -> None:
    """If it breaks, rows that the optimizer took cannot be scored, or nonsense is."""
    rows = [{**row, "label": LABELS.index(row["label"])} for row in ROWS]
    words = {"0": LABELS[0], "1": LABELS[1]}
    whole = evaluate_prompt(TEMPLATE, answering(*LABELS), rows, [0, 1], words=words, max_concurrency=1)
    assert whole.answered == 1.0
    tuples = [namedtuple("Row", row)(**row) for row in ROWS]  # as PrivateRecords takes them
    assert evaluate_prompt(TEMPLATE, answering(*LABELS), tuples, LABELS, max_concurrency=1).answered == 1.0
    named = [{"body": row["text"], "kind": row["label"]} for row in ROWS]
    records = PrivateRecords(named, text_key="body", label_key="kind")
    assert evaluate_prompt(TEMPLATE, answering(*LABELS), records, LABELS, max_concurrency=1).accuracy == 1.0
    template = optimizer(budget=BUDGET).invoke(examples())
    assert evaluate_prompt(template, answering("positive"), ROWS, LABELS).accuracy == 0.5
    for bad in ({"rows": [None]}, {"rows": [{**ROWS[0], "text": None}]}, {"labels": "ab"}, {"prompt": None}):
        given: dict[str, Any] = {"prompt": TEMPLATE, "rows": ROWS, "labels": LABELS} | bad
        with pytest.raises(InvalidParameter):
            evaluate_prompt(given["prompt"], answering(*LABELS), given["rows"], given["labels"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"postive": "good"}, r"\['postive'\] are not in labels="),
        ({"positive": 5}, "one line of text by label, not 'positive': 5"),
        ({"positive": "good", "negative": "Good"}, "differ in more than case"),
        ("good", "words of type str to map labels to words"),
    ],
)
def test_words_that_no_answer_can_be_read_by_are_refused(words: Any, message: str) -> None:
    """If it breaks, a slip in a label's name is scored as if the model were wrong."""
    model = Chat()
    with pytest.raises(InvalidParameter, match=message):
        evaluate_prompt(TEMPLATE, model, ROWS, LABELS, words=words)
    assert model.calls == []


def test_any_kind_of_model_can_be_scored() -> None:
    """If it breaks, only chat models can be scored, or a chain behind the prompt cannot."""
    chain = answering("negative", "positive") | StrOutputParser()
    assert evaluate_prompt(TEMPLATE, chain, ROWS, LABELS, max_concurrency=1).accuracy == 1.0
    assert evaluate_prompt(TEMPLATE, RunnableLambda(lambda _: AIMessage("positive")), ROWS, LABELS).accuracy == 0.5
    assert evaluate_prompt(TEMPLATE, Completion(), ROWS, ["negative", "positive", "other"]).rows == 8


def test_the_rows_leave_no_trace(tmp_path: Path) -> None:
    """If it breaks, test rows reach a tracer, a cache or a log on the way to the model."""
    with leak_surfaces(tmp_path) as surfaces:
        model = Chat()
        evaluate_prompt(TEMPLATE, model, ROWS, LABELS)
        assert len(model.calls) == 8
        assert surfaces.where(CANARY) == set()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"number of rows=0"),
        ([{"text": CANARY}], r"test row 0 to have its label under 'label'"),
        ([*ROWS, {"label": "positive"}], r"test row 8 to have the prompt's keys, but \['text'\] are missing"),
        ([{"text": CANARY, "label": CANARY}], r"label of test row 0 to be one of labels=\['negative', 'positive'\]"),
        (
            [{"text": f"{CANARY} \ud800", "label": "positive"}],
            r"\['text'\] of test row 0 to be text that UTF-8 can hold",
        ),
    ],
)
def test_bad_rows_are_refused_without_a_word_of_them(rows: Any, message: str) -> None:
    """If it breaks, a bad row is quoted, or found after all others were paid for."""
    model = Chat()
    with pytest.raises(InvalidParameter, match=message) as caught:
        evaluate_prompt(TEMPLATE, model, rows, LABELS)
    assert CANARY not in str(caught.value)
    assert model.calls == []


def test_a_result_is_scored_under_its_own_labels_only(several: OptimizedPrompt) -> None:
    """If it breaks, rows of another task score 0, as if the prompt were bad."""
    model = answering("positive")
    rows = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
    with pytest.raises(InvalidParameter, match=r"labels=\['good', 'bad'\].*\['negative', 'positive'\]"):
        evaluate_prompt(several, model, rows, ["good", "bad"])


# --------------------------------------------------------------------------------------------- choose_for_target

INITIAL = "Classify this text."
MANY = [{"text": f"{CANARY} {i}", "label": LABELS[i % 2]} for i in range(40)]


def target(right: dict[str, int], words: tuple[str, ...] = tuple(LABELS)) -> RunnableLambda[Any, str]:
    """A model that answers so many of the forty rows right under a prompt that holds the key, and none under others."""

    def answer(value: Any) -> str:
        asked = "\n".join(message.content for message in (value if isinstance(value, list) else value.to_messages()))
        number = int(asked.split(f"{CANARY} ")[1].split("\n")[0])
        known = next((count for key, count in right.items() if key in asked), 0)
        return words[(number + (number >= known)) % 2]

    return RunnableLambda(answer)


@pytest.fixture(scope="module")
def several() -> OptimizedPrompt:
    """A result that released four candidates, of which one was dropped."""
    made = optimizer(WordEngine(agreeing(SENTENCE))).optimize(examples())
    candidates = Candidate("It helps."), Candidate("It harms."), Candidate("It repeats.", "it repeats the request")
    return dataclasses.replace(made, candidates=(*made.candidates, *candidates))


def test_the_target_gets_what_it_does_best_with(several: OptimizedPrompt, tmp_path: Path) -> None:
    """If it breaks, a prompt goes to a model that it harms though a better one was paid for, or a dropped one goes."""
    chosen = choose_for_target(several, target({INITIAL: 20, "It helps.": 36, SENTENCE: 25}), MANY)
    scored = {each.instruction: (each.score.accuracy, each.gain) for each in chosen.scores}
    assert scored == {
        INITIAL: (0.5, 0.0),
        SENTENCE: (0.625, pytest.approx(0.125)),
        "It helps.": (0.9, pytest.approx(0.4)),
        "It harms.": (0.0, -0.5),
    }
    assert chosen.prompt.instruction == "It helps."
    [message] = chosen.prompt.template().format_messages(text="a film")
    assert message.content.startswith("Instruction: It helps.\nAnswer with one of: negative, positive.\n")
    assert chosen.prompt.certificate == several.certificate
    assert [line[:2] for line in str(chosen).splitlines()].count("->") == 1
    assert "-> 0.900 (+0.400 +- 0.100)  'It helps.'" in str(chosen)
    assert CANARY not in repr(chosen) + str(chosen)
    chosen.prompt.save(tmp_path / "prompt.json")
    assert load_prompt(tmp_path / "prompt.json") == chosen.prompt


@pytest.mark.parametrize(("others", "kept"), [({}, INITIAL), ({SENTENCE: 21}, INITIAL), ({SENTENCE: 24}, SENTENCE)])
def test_the_initial_instruction_stands_where_nothing_is_clearly_better(
    others: dict[str, int], kept: str, several: OptimizedPrompt
) -> None:
    """If it breaks, one lucky answer of forty hands over a prompt that is no better."""
    chosen = choose_for_target(several, target({INITIAL: 20} | others), MANY)
    assert chosen.prompt.instruction == kept


def test_gains_are_paired() -> None:
    """If it breaks, two prompts with the same errors are told apart by nothing, or not told apart at all (1e-12)."""
    before = [True] * 30 + [False] * 10
    assert paired_gain(before, before) == (0, 0)
    gain, error = paired_gain([*before[:30], *[True] * 4, *[False] * 6], before)
    assert gain == pytest.approx(0.1, abs=1e-12)
    assert error == pytest.approx(2 / 40, abs=1e-12)
    assert paired_gain([*before[1:], True], before) == (pytest.approx(0.0), pytest.approx(math.sqrt(2) / 40))


def test_words_and_system_messages_are_handed_over_too(several: OptimizedPrompt) -> None:
    """If it breaks, the chosen prompt asks for other words than the ones it was chosen with."""
    made = optimizer(WordEngine(agreeing(SENTENCE)), prompts=OptPrompts(system=True)).optimize(examples())
    words = {"negative": "bad", "positive": "good"}
    made = dataclasses.replace(made, settings={**made.settings, "alternatives": [{"instruction": "", "words": words}]})
    model = target({"bad, good": 40}, ("bad", "good"))
    chosen = choose_for_target(made, model, MANY)
    assert chosen.prompt.words == words
    system, human = chosen.prompt.template().format_messages(text="a film")
    assert (system.type, human.type) == ("system", "human")
    assert system.content == f"Instruction: {INITIAL}\nAnswer with one of: bad, good."
    assert chosen.prompt.chain(model).invoke({"text": f"{CANARY} 3"}) == "positive"
    assert chosen.prompt.template().metadata["words"] == words  # type: ignore[index]


def test_what_cannot_be_chosen_by_is_refused(several: OptimizedPrompt) -> None:
    """If it breaks, a handful of rows chooses by luck, or the error holds a row."""
    model = Chat()
    with pytest.raises(InvalidParameter, match=r"number of rows=19 .* With fewer, luck would choose") as caught:
        choose_for_target(several, model, MANY[:19])
    assert CANARY not in str(caught.value)
    with pytest.raises(InvalidParameter, match="ChatPromptTemplate"):
        choose_for_target(several.template(), model, MANY)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="label") as caught:
        choose_for_target(several, model, [*MANY, {"text": CANARY, "label": "neither"}])
    assert CANARY not in str(caught.value)
    assert model.calls == []
