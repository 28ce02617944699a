"""The released prompt for another model: as a template, as a file, and scored on a test set."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import stat
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.models import Chat, Completion
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import BUDGET, LABELS, SENTENCE, examples, optimizer
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.errors import InvalidParameter, LangChainDPError, ModelUnavailable
from langchain_dp.opt import OptimizedPrompt, OptPrompts, PromptScore, evaluate_prompt, load_prompt
from langchain_dp.records import PrivateRecords

NAMED = "Answer with one of: negative, positive."
BRACES = 'Say {"label": "positive"} or {{}}, not {text}.'


@pytest.fixture(scope="module")
def released() -> OptimizedPrompt:
    return optimizer(not_private_seed=3).optimize(examples())


def test_the_prompt_asks_for_a_label_under_the_instruction() -> None:
    """If it breaks, the cloud model is asked something else than the local model was selected by."""
    template = optimizer(WordEngine(agreeing(SENTENCE))).invoke(examples())
    assert isinstance(template, ChatPromptTemplate)
    assert template.input_variables == ["text"]
    [message] = template.format_messages(text="a film")
    assert message.type == "human"
    assert message.content in {
        f"Instruction: {said}\nAnswer with one of: negative, positive.\n\nInput: a film\n\nOutput:"
        for said in (SENTENCE, "Classify this text.")
    }


def test_a_prompt_stands_in_a_chain_as_its_template_does(released: OptimizedPrompt) -> None:
    """If it breaks, what load_prompt() gives fails in the first chain that anybody writes."""
    model = FakeListChatModel(responses=["positive"])
    assert (released | model | StrOutputParser()).invoke({"text": "a film"}) == "positive"
    asked = ({"text": lambda text: text.upper()} | released).invoke("a film")
    assert asked.to_string().endswith("Input: A FILM\n\nOutput:")


def test_braces_in_the_instruction_are_text() -> None:
    """If it breaks, a brace in a released instruction is a variable: the template raises, or shows another field."""
    made = optimizer(WordEngine(lambda place, asked: None), instruction=BRACES)
    template = made.invoke(examples())
    assert template.input_variables == ["text"]
    [message] = template.format_messages(text="{a} {b")
    assert message.content == f"Instruction: {BRACES}\n{NAMED}\n\nInput: {{a}} {{b\n\nOutput:"


def test_braces_and_variables_of_the_template_stay_what_they_are() -> None:
    """If it breaks, the cloud model reads another input than the local one."""
    prompts = OptPrompts("{title}: {{{text}}}")
    rows = [{**row, "title": f"t{i}"} for i, row in enumerate(examples())]
    engine = WordEngine(lambda place, asked: None)
    template = optimizer(engine, prompts=prompts).invoke(rows)
    assert sorted(template.input_variables) == ["text", "title"]
    [message] = template.format_messages(title="A", text="b")
    assert message.content.endswith("Input: A: {b}\n\nOutput:")
    assert prompts.render({"title": " A", "text": "b ", "label": "c"}) == "A: {b}"
    bodies = "".join(asked.prompt.body for call in engine.calls for asked in call)
    shown = re.findall(r"Input: t(\d+): \{note (\d+) [^{}\n]*\}\n", bodies)
    assert len(shown) >= 32
    assert all(int(title) == int(note) for title, note in shown)


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
def test_the_certificate_survives_langchains_own_serialization() -> None:
    """If it breaks, a prompt that is stored by LangChain loses its promise."""
    template = optimizer().invoke(examples())
    again = loads(dumps(template), allowed_objects="all")
    assert again == template
    certificate = PrivacyCertificate.from_dict(again.metadata["dp"])
    assert (certificate.epsilon, certificate.delta, certificate.private) == (200.0, 0.1, True)
    assert again.format_messages(text="x") == template.format_messages(text="x")


def test_a_prompt_is_saved_and_read_again(tmp_path: Path) -> None:
    """If it breaks, an artefact on disk is not the prompt that was released."""
    prompt = optimizer().optimize(examples())
    prompt.save(tmp_path / "prompt.json")
    again = load_prompt(tmp_path / "prompt.json")
    assert again == prompt
    assert again.template() == prompt.template()
    assert [path.name for path in tmp_path.iterdir()] == ["prompt.json"]
    text = (tmp_path / "prompt.json").read_text(encoding="utf-8")
    assert CANARY not in text
    assert json.loads(text)["certificate"]["epsilon"] == 200.0
    open_to = 0o666 & ~_umask()
    assert stat.S_IMODE((tmp_path / "prompt.json").stat().st_mode) == open_to  # it may go to anybody


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


@pytest.mark.parametrize("method", ["opt", "dln-1"])
def test_a_prompt_that_is_not_private_says_so_in_its_file(method: str, tmp_path: Path) -> None:
    """If it breaks, an infinite epsilon cannot be written, or is read as something else."""
    prompt = optimizer(method=method, dln=None, not_private_seed=1, max_new_tokens=2).optimize(examples(20))
    prompt.save(tmp_path / "prompt.json")
    assert stat.S_IMODE((tmp_path / "prompt.json").stat().st_mode) == 0o600  # it may hold rows, word for word
    json.loads((tmp_path / "prompt.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = load_prompt(tmp_path / "prompt.json")
    assert again.certificate.epsilon == math.inf
    assert not again.certificate.private


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, released: OptimizedPrompt, monkeypatch: Any) -> None:
    """If it breaks, a full disk leaves half an artefact."""
    path = tmp_path / "prompt.json"
    released.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(OptimizedPrompt, "to_dict", lambda self: {"prompt": object()})
    with pytest.raises(TypeError):
        released.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["prompt.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{}", '{"prompt": "x"}', "\x00", '{"prompt": "x", "instruction": "x", "certificate": {},'
                '"settings": {}, "model": {}, "created": ""}', '{"prompt": 7, "instruction": "x", "certificate": {},'
                '"settings": {}, "model": {}, "created": ""}', '{"prompt": "x", "instruction": "x", "certificate": 7,'
                '"settings": {}, "model": {}, "created": ""}']
)  # fmt: skip
def test_a_file_that_is_no_prompt_is_refused(content: str, tmp_path: Path) -> None:
    """If it breaks, any JSON is taken for a prompt, or a bad one ends in a traceback."""
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(LangChainDPError):
        load_prompt(tmp_path / "other.json")


def test_a_prompt_of_another_form_is_refused(released: OptimizedPrompt, tmp_path: Path) -> None:
    """If it breaks, a number is handed to a model as a prompt, or a bad certificate ends in a TypeError."""
    path = tmp_path / "prompt.json"
    whole = released.to_dict()
    changes: list[dict[str, object]] = [{name: 7} for name in whole]
    changes += [{"certificate": whole["certificate"] | {name: [7]}} for name in ("spent", "parameters", "remaining")]
    changes += [{"certificate": whole["certificate"] | {"notes": 7}}]
    for change in changes:
        path.write_text(json.dumps(whole | change))
        with pytest.raises(InvalidParameter):
            load_prompt(path)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    """If it breaks, a wrong path looks like a broken prompt."""
    with pytest.raises(FileNotFoundError):
        load_prompt(tmp_path / "none.json")


def test_the_model_and_the_settings_are_recorded() -> None:
    """If it breaks, nobody can tell later what wrote a prompt, and how."""

    class Filed(WordEngine):
        def file_sha256(self) -> str:
            return "ab" * 32

    prompt = optimizer(Filed(agreeing(SENTENCE)), stop=["\n"]).optimize(examples())
    assert prompt.model == {"name": "word-engine-1", "sha256": "ab" * 32}
    assert optimizer().optimize(examples()).model == {"name": "word-engine-1"}
    settings = prompt.settings
    assert (settings["groups"], settings["rate"], settings["stop"], settings["labels"]) == (16, 1.0, ["\n"], LABELS)
    assert settings["templates"]["messages"]
    assert json.dumps(prompt.to_dict())


# ----------------------------------------------------------------------------------------------- evaluate_prompt

TEMPLATE = ChatPromptTemplate.from_messages([("human", "Say good or bad.\n\nInput: {text}\n\nOutput:")])
ROWS = [{"text": f"{CANARY} {i}", "label": LABELS[i % 2]} for i in range(8)]


def answering(*answers: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(answers))


def test_why_a_model_fails_on_every_row_is_said() -> None:
    """If it breaks, a wrong key looks like any other fault."""

    class Denied(Exception):
        status_code = 401

    def refused(value: Any) -> str:
        raise Denied("invalid key")

    with pytest.raises(ModelUnavailable, match=r"Denied \(status 401\): invalid key"):
        evaluate_prompt(TEMPLATE, RunnableLambda(refused), ROWS, LABELS)


def test_private_rows_may_be_those_that_score() -> None:
    """If it breaks, rows whose keys have other names cannot be scored."""
    named = [{"body": row["text"], "kind": row["label"]} for row in ROWS]
    rows = PrivateRecords(named, text_key="body", label_key="kind")
    right = answering("negative", "positive")
    assert evaluate_prompt(TEMPLATE, right, rows, LABELS, max_concurrency=1).accuracy == 1.0


def test_answers_are_compared_with_the_labels() -> None:
    """If it breaks, accuracy is another number than the share of right answers."""
    right = answering("negative", "positive")
    score = evaluate_prompt(TEMPLATE, right, ROWS, LABELS, max_concurrency=1)
    assert score == PromptScore(1.0, 0.0, 1.0, 8)
    mixed = answering("negative", "negative", "I do not know", "It is positive.")
    score = evaluate_prompt(TEMPLATE, mixed, ROWS, LABELS, max_concurrency=1)
    assert (score.accuracy, score.answered, score.rows) == (0.5, 0.75, 8)
    assert score.standard_error == pytest.approx(math.sqrt(0.25 / 8))
    assert str(score) == "accuracy 0.500 +- 0.177 on 8 rows (75% of the answers named one label)"


def test_a_constant_answer_is_seen() -> None:
    """If it breaks, a prompt that says one label to everything passes for one that knows half of the answers."""
    score = evaluate_prompt(TEMPLATE, answering("positive"), ROWS, LABELS)
    assert score.always == "positive"
    assert "always says 'positive'" in str(score)
    assert evaluate_prompt(TEMPLATE, answering("positive"), ROWS[1::2], LABELS).always is None  # as the rows do
    assert evaluate_prompt(TEMPLATE, answering("I do not know"), ROWS, LABELS).always is None
    assert evaluate_prompt(TEMPLATE, answering("positive", "negative"), ROWS, LABELS, max_concurrency=1).always is None


def test_the_table_shows_which_label_is_said_for_which() -> None:
    """If it breaks, right labels and answers change places, or answers without a label are lost."""
    said = answering("negative", "negative", "I do not know", "It is positive.")
    score = evaluate_prompt(TEMPLATE, said, ROWS, LABELS, max_concurrency=1)
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
    """If it breaks, a wrong key or an outage is taken for a prompt that is worth nothing."""

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
    for bad in ({"rows": [None]}, {"rows": [{**ROWS[0], "text": None}]}, {"labels": "ab"}, {"prompt": None}):
        given: dict[str, Any] = {"prompt": TEMPLATE, "rows": ROWS, "labels": LABELS} | bad
        with pytest.raises(InvalidParameter):
            evaluate_prompt(given["prompt"], answering(*LABELS), given["rows"], given["labels"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"postive": "good"}, r"\['postive'\] are none of labels="),
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


@pytest.mark.parametrize(
    "edited",
    [
        {"prompt": "Input: {text"},
        {"words": {"negative": "", "positive": "good"}},
        {"words": {"negative": "good", "positive": "Good"}},
    ],
)
def test_a_saved_prompt_that_was_edited_into_none_is_refused_when_it_is_loaded(
    edited: dict[str, Any], tmp_path: Path
) -> None:
    """If it breaks, each answer of a chain fails, or names no label, and the file is not what is blamed."""
    file = tmp_path / "prompt.json"
    optimizer().optimize(examples()).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | edited))
    with pytest.raises(InvalidParameter, match=r"prompt\.json to hold a template and words as they were saved"):
        load_prompt(file)


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


def test_a_result_is_scored_under_its_own_labels_only(released: OptimizedPrompt) -> None:
    """If it breaks, rows of another task score 0, as if the prompt were bad."""
    model = answering("positive")
    rows = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
    with pytest.raises(InvalidParameter, match=r"labels=\['good', 'bad'\].*\['negative', 'positive'\]"):
        evaluate_prompt(released, model, rows, ["good", "bad"])


def test_a_result_prints_its_instruction_and_its_promise(released: OptimizedPrompt) -> None:
    """If it breaks, print() shows one line of everything, in which nobody finds the prompt."""
    said = str(released)
    assert said.startswith(f"{released.instruction}\n")
    assert str(released.certificate) in said
    alike = dataclasses.replace(released, descriptions={"positive": "films", "negative": "films"})
    assert "'positive' and 'negative' were described alike" in str(alike)
    assert "alike" not in said


def test_what_an_optimizer_wrote_can_be_scored() -> None:
    """If it breaks, optimizer, prompt and score do not fit together."""
    template = optimizer(budget=BUDGET).invoke(examples())
    assert evaluate_prompt(template, answering("positive"), ROWS, LABELS).accuracy == 0.5
