"""The released prompt for another model: as a template, as a file, and scored on a test set."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import LABELS, SENTENCE, examples, optimizer
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import (
    OptimizedPrompt,
    OptPrompts,
    PromptAlternative,
    evaluate_prompt,
    load_prompt,
    optimize_with_opt,
)  # fmt: skip
from langchain_dp.opt.candidates import PromptChoice

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


def test_a_prompt_that_is_not_private_says_so_in_its_file(tmp_path: Path) -> None:
    """If it breaks, an infinite epsilon cannot be written, or is read as something else."""
    prompt = optimize_with_opt(optimizer(max_new_tokens=2), examples(20), seed=1)
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


def test_a_file_that_is_no_prompt_or_one_of_another_form_is_refused(released: OptimizedPrompt, tmp_path: Path) -> None:
    """If it breaks, any JSON is taken for a prompt, or a bad file is found at the first answer of a chain."""
    path = tmp_path / "prompt.json"
    whole = released.to_dict()
    changes: list[dict[str, Any]] = [{name: 7} for name in whole]
    changes += [{"certificate": whole["certificate"] | {name: [7]}} for name in ("spent", "parameters", "remaining")]
    changes += [{"certificate": whole["certificate"] | {"notes": 7}}, {"prompt": "Input: {text"}]
    changes += [{"words": {"negative": words, "positive": "Good"}} for words in ("", "good")]
    others = ["", "[]", "7", "{}", '{"prompt": "x"}', "\x00", json.dumps(whole | {"certificate": {}, "model": {}})]
    for text in [*others, *(json.dumps(whole | change) for change in changes)]:
        path.write_text(text)
        with pytest.raises(InvalidParameter):
            load_prompt(path)


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


def test_a_prompt_that_answers_by_names_gives_labels_back(tmp_path: Path) -> None:
    """If it breaks, an application that has codes gets names, from a model as from a file."""
    names = PromptAlternative(words={"A": "sports", "B": "money"})
    made = optimizer(labels=["A", "B"], prompts=OptPrompts(system=True), alternatives=[names], num_prompts=1)
    prompt = made.optimize([{"text": f"t{i}", "label": "AB"[i % 2]} for i in range(40)])
    choice = PromptChoice(made.settings.instruction, ("sports", "money"))
    assert choice in prompt.choices()
    prompt.with_choice(choice).save(tmp_path / "prompt.json")
    loaded = load_prompt(tmp_path / "prompt.json")
    model = FakeListChatModel(responses=["Sports.", "money"])
    assert [loaded.chain(model).invoke({"text": "x"}) for _ in range(2)] == ["A", "B"]
    template = loaded.template()
    assert template.metadata["words"] == {"A": "sports", "B": "money"}
    rows = [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]
    assert evaluate_prompt(template, model, rows, ["A", "B"], max_concurrency=1).accuracy == 1.0
    assert "Answer with one of: sports, money." in template.format_messages(text="x")[0].content
