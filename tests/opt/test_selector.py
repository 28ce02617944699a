"""A choice among public prompts: what is chosen among, by whom, what it costs, and that it can be taken up."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    INSTRUCTION,
    LABELS,
    ZERO_OUT,
    Looking,
    examples,
    ledger_in,
    notes,
    optimizer,
)

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import ExponentialEvent, PartEvent, epsilon
from langchain_dp.accounting.events import event_from_json
from langchain_dp.errors import InvalidParameter, MostlyNoiseWarning, PlanError
from langchain_dp.mechanisms import Exponential
from langchain_dp.opt import DPPromptOptimizer, DPPromptSelector, OptPrompts, PromptAlternative, load_prompt
from langchain_dp.opt.checks import alternatives
from langchain_dp.opt.fit import rows_to_select_by
from langchain_dp.opt.verdict import ahead_for_sure, choice_note

GOOD = PromptAlternative("Is it good?", {"negative": "dull", "positive": "great"})
OTHERS = ["Say yes or no.", GOOD]


def selector(engine: Any = None, **changes: Any) -> DPPromptSelector:
    """Selects among the initial instruction and two others."""
    settings: dict[str, Any] = {"model": engine or WordEngine(), "labels": LABELS, "instruction": INSTRUCTION}
    settings |= {"alternatives": OTHERS, "progress": False}
    if "ledger" not in changes:
        settings["budget"] = BUDGET
    return DPPromptSelector(**settings | changes)


class Preferring(WordEngine):
    """Answers right under one head alone: whoever holds a note of an even number is the first label."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def score_labels(self, prompts: Any, words: Any, *, content_free: Any = ()) -> Any:
        found = []
        for prompt in prompts:
            first = bool(notes([prompt.body])) and int(notes([prompt.body]).pop()) % 2 == 0
            found.append([0.0, -1.0] if first is (self.marker in prompt.head) else [-1.0, 0.0])
        return found


def test_a_choice_at_random_says_so_before_it_is_paid_for() -> None:
    """If it breaks, plan() says that nothing should be spent, and the run spends it without a word."""
    ledger = PrivacyLedger(PrivacyBudget(0.1))
    small = selector(ledger=ledger, budget=PrivacyBudget(0.1))
    assert small.plan(examples(6)).verdict.rating == "no"
    with pytest.warns(MostlyNoiseWarning, match=r"the choice is one at random, not with 6 rows"):
        small.optimize(examples(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MostlyNoiseWarning)
        selector().optimize(examples())


def test_alternatives_and_words_are_taken_in_every_form() -> None:
    """If it breaks, labels that are numbers get no words, or what stands in a file for --alternatives is refused."""
    given = {"positive": "good", "negative": "bad"}
    made = alternatives([{"instruction": "Say which.", "words": given}, {"words": given}, "Say it."])
    assert made == (
        PromptAlternative("Say which.", given),
        PromptAlternative(words=given),
        PromptAlternative("Say it."),
    )
    fitted: dict[str, Any] = {"model": WordEngine(), "labels": LABELS, "instruction": INSTRUCTION, "progress": False}
    fitted |= {"budget": PrivacyBudget(8.0), "examples_count": 400}
    read_once = DPPromptOptimizer.auto(**fitted, alternatives=(each for each in OTHERS))
    assert len(read_once.settings.alternatives) == len(OTHERS)
    assert PromptAlternative(words={0: "bad", True: "good"}).words == {"0": "bad", "True": "good"}
    assert OptPrompts(words={0: "bad", True: "good"}).words == {"0": "bad", "True": "good"}
    with pytest.raises(InvalidParameter, match="one line of text by label"):
        PromptAlternative(words={1.5: "bad"})


@pytest.mark.parametrize(
    ("marker", "instruction", "words"),
    [
        ("Say yes or no.", "Say yes or no.", LABELS),
        ("Is it good?", "Is it good?", ["dull", "great"]),
        (INSTRUCTION, INSTRUCTION, LABELS),
    ],
)
def test_the_prompt_that_answers_best_is_handed_over(
    marker: str, instruction: str, words: list[str], tmp_path: Path
) -> None:
    """If it breaks, the choice is one at random, or words and instruction of two prompts are mixed up."""
    engine = Preferring(marker)
    made = selector(engine, calibrate=False).optimize(examples())
    assert (made.instruction, list(made.words.values())) == (instruction, words)
    assert made.candidates == ()  # nothing was written
    [message] = made.template().format_messages(text="a film")
    assert message.content.startswith(f"Instruction: {instruction}\nAnswer with one of: {', '.join(words)}.")
    made.save(tmp_path / "prompt.json")
    assert load_prompt(tmp_path / "prompt.json") == made
    assert CANARY not in (tmp_path / "prompt.json").read_text()


def test_all_records_select_and_no_token_is_written() -> None:
    """If it breaks, most records pay and are not asked, or a model writes what nobody paid for."""
    engine = Looking()
    selector(engine).optimize(examples())
    assert engine.calls == []
    assert len(notes(engine.shown)) == 40
    assert len(engine.shown) == 3 * 40


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT, PrivacyBudget(0.5, 1e-6)])
def test_one_choice_is_charged_before_any_record_is_shown(budget: PrivacyBudget) -> None:
    """If it breaks, a choice is drawn that nobody paid for, costs more than the budget, or wastes much of it."""
    ledger = PrivacyLedger(budget)
    charged: list[int] = []
    engine = Looking(lambda bodies: charged.append(len(list(ledger.entries()))))
    made = selector(engine, ledger=ledger).optimize(examples())
    [entry] = ledger.entries()
    event = event_from_json(entry.event)
    assert isinstance(event, PartEvent)
    assert isinstance(event.event, ExponentialEvent)
    assert set(charged) == {1}
    cost = epsilon([(event, 1)], budget.delta, neighbors=budget.neighbors)
    assert 0.9 * min(budget.epsilon, cost + 1) <= cost <= budget.epsilon
    assert made.certificate.epsilon == budget.epsilon
    assert made.certificate.parameters == {"epsilon_selection": event.event.epsilon, "alternatives": 2}
    assert "public prompts" in made.certificate.mechanism
    assert not any("training" in note for note in made.certificate.notes)


@pytest.mark.parametrize("others", [1, 3, 11])
@pytest.mark.parametrize("weight", [0.02, 0.4, 3.0])
def test_a_certificate_says_how_far_ahead_the_best_prompt_has_to_be(others: int, weight: float) -> None:
    """If it breaks, a prompt that is worse than the initial instruction is handed over without a word."""
    ahead = ahead_for_sure(ExponentialEvent(weight), others + 1)

    def wins(rows: int) -> float:
        return 1 / (1 + others * math.exp(-weight * rows))

    assert wins(ahead) >= 0.95 > wins(ahead - 1)
    certificate = selector(Looking()).optimize(examples()).certificate
    event = ExponentialEvent(certificate.parameters["epsilon_selection"])
    assert choice_note(event, 3) in certificate.notes
    assert f"answers {ahead_for_sure(event, 3)} more" in str(certificate)


@pytest.mark.parametrize("place", range(3))
def test_a_complete_choice_is_given_again_at_no_cost(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a choice that was paid for is lost with its process, or drawn a second time."""
    monkeypatch.setattr(Exponential, "release", lambda self, counts, **_: range(len(counts))[place])
    with ledger_in(tmp_path) as ledger:
        first = selector(ledger=ledger).optimize(examples())
    engine = Looking()
    with ledger_in(tmp_path) as ledger:
        again = selector(engine, ledger=ledger).optimize(examples())
        assert sum(entry.count for entry in ledger.entries()) == 1
        with pytest.raises(PlanError, match="settings"):
            selector(ledger=ledger, alternatives=OTHERS[:1]).optimize(examples())
        with pytest.raises(PlanError, match="over other examples"):
            selector(ledger=ledger).optimize(examples(start=1))
    assert engine.shown == []
    assert dataclasses.replace(first, created="") == dataclasses.replace(again, created="")


def test_a_plan_of_another_method_is_refused(tmp_path: Path) -> None:
    """If it breaks, a choice goes on with the noise of a run that wrote, or the other way round."""
    with ledger_in(tmp_path, PrivacyBudget(400.0, 0.3)) as ledger:
        selector(ledger=ledger, name="one", budget=PrivacyBudget(10.0, 1e-3)).optimize(examples())
        with pytest.raises(PlanError):
            optimizer(ledger=ledger, name="one", budget=PrivacyBudget(10.0, 1e-3)).optimize(examples())
        optimizer(ledger=ledger, name="other", budget=BUDGET).optimize(examples())
        with pytest.raises(PlanError):
            selector(ledger=ledger, name="other", budget=BUDGET).optimize(examples())


def test_alternatives_are_candidates_of_what_is_written() -> None:
    """If it breaks, a prompt that answers better than what was written is not considered."""
    engine = Preferring("Is it good?")
    made = optimizer(engine, alternatives=OTHERS, calibrate=False).optimize(examples())
    assert (made.instruction, list(made.words.values())) == ("Is it good?", ["dull", "great"])
    assert made.settings["alternatives"] == [
        {"instruction": "Say yes or no.", "words": {}},
        {"instruction": GOOD.instruction, "words": dict(GOOD.words)},
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alternatives": ()}, "alternatives="),
        ({"alternatives": "Say yes or no."}, "alternatives of type str to be a list"),
        ({"alternatives": ["Say yes.", 7]}, r"alternatives\[1\] of type int"),
        ({"alternatives": [{"instruction": "Say yes.", "word": {}}]}, r"alternatives\[0\] of type dict"),
        ({"alternatives": [PromptAlternative(words={"great": "good"})]}, "none of"),
        ({"alternatives": [PromptAlternative(words={"positive": "Negative"})]}, "differ in more than case"),
        ({"alternatives": [INSTRUCTION]}, "comes twice"),
        ({"alternatives": ["Say yes.", PromptAlternative("Say yes. ", {"positive": "positive"})]}, "comes twice"),
    ],
)
def test_what_cannot_be_chosen_among_is_refused(changes: dict[str, Any], said: str) -> None:
    """If it breaks, an argument is ignored, or a run ends in a traceback after it has paid."""
    with pytest.raises(InvalidParameter, match=said):
        selector(**changes)
    with pytest.raises(InvalidParameter, match="empty"):
        PromptAlternative(" ")
    for words in ({"positive": " "}, {1.5: "a", "x": "b"}, {"positive": "gr\neat"}):
        with pytest.raises(InvalidParameter, match="one line of text"):
            PromptAlternative(words=words)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(GOOD)) == GOOD  # of our own


@pytest.mark.parametrize("auto", [DPPromptSelector.auto, DPPromptOptimizer.auto])
@pytest.mark.parametrize("wrong", [{"model": "a name"}, {"instruction": 3}, {"alternatives": [""]}])
def test_wrong_arguments_make_no_ledger(auto: Any, wrong: Any, tmp_path: Path) -> None:
    """If it breaks, a typing mistake leaves a ledger file behind, which holds the next run to its budget."""
    given = {"model": WordEngine(), "labels": LABELS, "instruction": INSTRUCTION, "alternatives": OTHERS} | wrong
    with pytest.raises(InvalidParameter):
        auto(**given, examples_count=400, budget=BUDGET, ledger=tmp_path / "l.db")
    assert not (tmp_path / "l.db").exists()


def test_no_examples_cost_nothing() -> None:
    """If it breaks, a budget is spent on a choice by nobody, or ends in a division by zero."""
    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(InvalidParameter, match="at least one example"):
        selector(ledger=ledger).optimize([])
    fitted = {"model": WordEngine(), "labels": LABELS, "instruction": INSTRUCTION}
    made = DPPromptSelector.auto(**fitted, alternatives=OTHERS, examples_count=40, ledger=ledger)
    with pytest.raises(InvalidParameter, match="at least one example"):
        made.optimize([])
    assert list(ledger.plans()) == []
    assert made.check(row for row in examples()).validation == 40  # read once


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("kind", [selector, optimizer])
def test_a_prompt_that_the_model_cannot_answer_is_found_before_the_charge(calibrate: bool, kind: Any) -> None:
    """If it breaks, a budget buys a choice that one of the prompts could never win, and nobody is told."""
    ledger = PrivacyLedger(BUDGET)
    engine = WordEngine(max_prompt_tokens=300)
    made = kind(engine, ledger=ledger, alternatives=["Say " * 400], calibrate=calibrate)
    with pytest.raises(InvalidParameter, match="'Say Say"):
        made.optimize(examples())
    assert list(ledger.plans()) == []


def test_a_plan_says_how_far_ahead_a_prompt_has_to_be() -> None:
    """If it breaks, a choice at random looks like one of use, or rows are asked for that nobody needs."""
    sound = selector(budget=PrivacyBudget(1.0)).plan(500)
    assert (sound.verdict.rating, sound.max_calls, sound.validation) == ("yes", 0, 500)
    assert "among 3 prompts" in str(sound)
    told = json.loads(json.dumps(sound.to_dict()))
    assert (told["epsilon"], told["choices"], told["verdict"]["rating"]) == (1.0, 3, "yes")
    assert "votes" not in str(sound)
    assert "8 more of 500" in sound.verdict.message  # ln(19 * 2) / (1 / 2) is 7.3
    assert selector(budget=PrivacyBudget(1.0)).plan(100).verdict.rating == "hardly"
    assert selector(budget=PrivacyBudget(1.0)).plan(20).verdict.rating == "no"


@pytest.mark.parametrize(
    ("count", "epsilon"), [(1, 1.0), (10, 0.1), (10, 8.0), (19, 8.0), (21, 1.0), (50, 0.5), (50, 1.0), (200, 0.1)]
)
def test_what_a_plan_says_would_help_does(count: int, epsilon: float) -> None:
    """If it breaks, a user raises the budget for nothing: below twenty rows none is large enough."""
    found = selector(budget=PrivacyBudget(epsilon)).plan(count).verdict
    assert found.rating != "yes"
    [rows] = re.findall(r"About ([\d,]+) rows", found.message)
    assert selector(budget=PrivacyBudget(epsilon)).plan(int(rows.replace(",", ""))).verdict.rating == "yes"
    more = re.findall(r"rows that select or epsilon ([\d.]*\d) would", found.message)
    assert bool(more) is (count >= 20)
    for enough in map(float, more):
        assert selector(budget=PrivacyBudget(enough)).plan(count).verdict.rating == "yes"


def test_an_instruction_that_leaves_no_room_for_records_is_refused_before_the_choice() -> None:
    """If it breaks, a long alternative is judged by records of which the model sees nothing, and loses."""
    ledger = PrivacyLedger(BUDGET)
    long = selector(ledger=ledger, alternatives=["film " * 965])
    with pytest.raises(InvalidParameter, match="to leave 21 tokens for a record, but it leaves 16"):
        long.optimize(examples())
    assert ledger.plans() == []


def test_a_choice_that_fits_is_refused_where_it_would_be_one_at_random() -> None:
    """If it breaks, a budget is spent on coins; or a run takes hours because there are many rows."""
    fitted = {"model": WordEngine(), "labels": LABELS, "instruction": INSTRUCTION}
    fitted |= {"alternatives": OTHERS, "progress": False}
    ledger = PrivacyLedger(PrivacyBudget(0.2))
    with pytest.raises(InvalidParameter, match="keep your instruction"):
        DPPromptSelector.auto(**fitted, examples_count=40, ledger=ledger).optimize(examples())
    assert list(ledger.plans()) == []
    made = DPPromptSelector.auto(**fitted, examples_count=40, budget=PrivacyBudget(8.0))
    assert made.check(40).verdict.rating in ("yes", "hardly")
    assert made.optimize(examples()).settings["rows"] == 40
    few = rows_to_select_by(10**6, PrivacyBudget(8.0), prompts=3)
    assert few is not None
    assert 500 < few < 10_000
    assert rows_to_select_by(10**6, ADD_OR_REMOVE, prompts=3) is None
