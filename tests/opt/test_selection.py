"""Which candidate is handed over: counts that one record can only raise, on records that taught nothing."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    INSTRUCTION,
    LABELS,
    SENTENCE,
    ZERO_OUT,
    Broken,
    Looking,
    examples,
    notes,
    optimizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp import PrivacyBudget
from langchain_dp.accounting import ExponentialEvent, epsilon
from langchain_dp.errors import ModelUnavailable
from langchain_dp.mechanisms import Exponential
from langchain_dp.opt import OptPrompts
from langchain_dp.opt.candidates import PromptChoice
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.run import correct_answers
from langchain_dp.ports import MemberPrompt

PROMPTS = OptPrompts()
CANDIDATES = [PromptChoice(text, tuple(LABELS)) for text in ("Say yes.", "Say no.", "Think about tone.", "Say yes.")]


def forward(engine: Any = None, *, calibrate: bool = True) -> Forward:
    return Forward(WordEngine() if engine is None else engine, PROMPTS, LABELS, calibrate=calibrate)


def counts(rows: Sequence[dict[str, str]], engine: Any = None, *, calibrate: bool = True) -> list[int]:
    return correct_answers(forward(engine, calibrate=calibrate), CANDIDATES, rows, prompts=PROMPTS, labels=LABELS)


def failing_on(*marks: str) -> WordEngine:
    def spoil(prompt: MemberPrompt) -> None:
        if any(mark in prompt.body for mark in marks):
            raise Broken(CANARY)

    return WordEngine(spoil=spoil)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_one_record_raises_each_count_by_at_most_one_and_lowers_none(count: int, place: int, breaks: bool) -> None:
    """If it breaks, the counts are not monotone, and the selection costs twice what is charged."""
    rows = examples(count)
    more = [dict(row) for row in rows]
    more.insert(min(place, count), {"text": "SPOIL it all" if breaks else "a great film", "label": "positive"})
    for calibrate in (True, False):
        before = counts(rows, failing_on("SPOIL"), calibrate=calibrate)
        after = counts(more, failing_on("SPOIL"), calibrate=calibrate)
        differences = [b - a for a, b in zip(before, after, strict=True)]
        assert set(differences) <= ({0} if breaks else {0, 1})


def test_a_record_that_fails_the_whole_batch_spoils_nobody_elses_answer() -> None:
    """If it breaks, one record takes all counts down by the size of a batch, or NaN from the model is an answer."""

    class Choking(WordEngine):
        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            if any("note 003" in prompt.body for prompt in prompts):
                raise Broken(CANARY)
            return super().score_labels(prompts, words, **options)

    rows = examples(12)
    rest = [row for row in rows if "note 003" not in row["text"]]
    assert counts(rows, Choking()) == counts(rest)

    class Strange(WordEngine):
        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            rows = super().score_labels(prompts, words, **options)
            return [[float("nan"), 0.0] if "note" in p.body else row for p, row in zip(prompts, rows, strict=True)]

    assert forward(Strange()).predict("Say yes.", ["note 1", "a film", "note 2"])[::2] == [None, None]
    assert counts(examples(6), Strange()) == [0] * 4


def test_equal_candidates_get_equal_counts_and_are_asked_once() -> None:
    """If it breaks, a candidate that was written twice is evaluated twice, or gets another count."""
    engine = Looking()
    found = correct_answers(forward(engine), CANDIDATES, examples(8), prompts=PROMPTS, labels=LABELS)
    assert found[0] == found[3]
    assert set(Counter(note for body in engine.shown for note in notes([body])).values()) == {3}


def test_calibration_divides_by_texts_without_content() -> None:
    """If it breaks, a model that loves one label gives it to every text."""

    class Loving(WordEngine):
        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            said = {"good": [-2.0, -2.5], "bad": [-1.0, -4.0]}
            return [next((row for mark, row in said.items() if mark in p.body), [-1.0, -3.0]) for p in prompts]

    assert forward(Loving(), calibrate=False).predict("Say yes.", ["good", "bad"]) == [0, 0]
    assert forward(Loving()).predict("Say yes.", ["good", "bad"]) == [1, 0]


def test_a_candidate_that_is_too_long_for_the_model_loses_and_raises_nothing() -> None:
    """If it breaks, one long candidate ends the run for ever, at its very last step."""
    engine = WordEngine(max_prompt_tokens=60)
    texts = [row["text"] for row in examples(4)]
    assert None not in forward(engine).predict("Say yes.", texts)
    assert forward(engine).predict("Say yes. " * 30, texts) == [None] * 4


def test_a_model_that_cannot_score_is_found_before_anything_is_spent() -> None:
    """If it breaks, a dead model costs a call, or the budget goes for bottoms."""

    class Dead(WordEngine):
        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            raise Broken("no such file")

    made = optimizer(Dead(agreeing(SENTENCE)))
    with pytest.raises(ModelUnavailable, match=r"could not score the labels after a public text"):
        made.invoke(examples())
    assert made.plan(examples()).max_calls == 16  # nothing is reserved
    assert made.released() == []


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_training_and_validation_records_never_meet(budget: PrivacyBudget) -> None:
    """If it breaks, a record is read by the tokens and by the selection, and the larger cost does not cover it."""
    engine = Looking()
    optimizer(engine, budget=budget).invoke(examples())
    teaching = notes([body for body in engine.shown if "Student" in body])
    everybody = notes(engine.shown)
    assert len(everybody) == 40
    last = max(i for i, body in enumerate(engine.shown) if "Student" in body)
    selecting = notes(engine.shown[last + 1 :])
    assert teaching | selecting == everybody
    assert not teaching & selecting
    if budget.neighbors is not ADD_OR_REMOVE.neighbors:
        assert len(selecting) == 8


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_the_selection_costs_no_more_than_the_budget(budget: PrivacyBudget) -> None:
    """If it breaks, the choice is sharper than the promise: under replace-one a count may rise and another fall."""
    for share in (PrivacyBudget(0.5, 1e-5, budget.neighbors), PrivacyBudget(8.0, 1e-5, budget.neighbors)):
        made = optimizer(budget=share, epsilon0=2e-3, delta0=1e-8, partitions=40_000, sampling_probability=0.5)
        weight = made.plan(examples()).selection.epsilon
        cost = epsilon([(ExponentialEvent(weight), 1)], share.delta, neighbors=share.neighbors)
        assert 0.95 * share.epsilon < cost <= share.epsilon


@pytest.mark.parametrize("winner", [0, 1, 2])
def test_the_choice_is_left_to_the_mechanism_at_the_weight_that_was_charged(
    winner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, the best candidate is taken as it is, with another weight, or another one is handed over."""
    asked: list[tuple[list[int], float, bool]] = []

    def chosen(self: Exponential, counts: list[int], *, rng: Any) -> int:
        asked.append((counts, self.event.epsilon, rng.private))
        return winner

    monkeypatch.setattr(Exponential, "release", chosen)
    # "Say yes." and its end take four calls
    engine = WordEngine(lambda place, asked: "Say yes." if len(engine.calls) <= 4 else "Think.")
    made = optimizer(engine)
    prompt = made.optimize(examples())
    assert prompt.instruction == ["Say yes.", "Think.", INSTRUCTION][winner]
    [(counts, weight, is_private)] = asked
    assert len(counts) == 3  # two candidates and the initial instruction
    assert all(0 <= count <= 8 for count in counts)
    assert is_private
    assert weight == made.certificate().parameters["epsilon_selection"] == 100.0


def test_a_candidate_without_text_stands_for_the_initial_instruction() -> None:
    """If it breaks, an empty prompt can be handed over."""
    made = optimizer(WordEngine(lambda place, asked: None))
    assert made.optimize(examples()).instruction == INSTRUCTION
    assert made.released() == []


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE], ids=lambda budget: budget.neighbors.name)
def test_progress_shows_no_number_of_records(budget: PrivacyBudget) -> None:
    """If it breaks, the bar of the selection counts validation records, whose number add/remove keeps private."""
    shown = set()
    for count in (40, 240):
        stream = io.StringIO()
        with redirect_stderr(stream):
            optimizer(WordEngine(agreeing(SENTENCE)), budget=budget, progress=True).invoke(examples(count))
        text = stream.getvalue()
        assert "writing" in text
        assert "selecting" in text
        shown |= set(re.findall(r"\d+/(\d+) \[", text))
    assert shown == {"16", "2"}
