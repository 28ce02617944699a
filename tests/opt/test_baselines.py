"""The baselines: OPT and DLN-1 do what their papers say, and say that they promise nothing."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing, all_distinct
from fakes.optimizers import BUDGET, INSTRUCTION, LABELS, SENTENCE, Looking, examples, notes, optimizer

from langchain_dp import PrivacyLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import DLNSettings, OptimizedPrompt, OptPrompts, optimize_with_dln1, optimize_with_opt
from langchain_dp.opt.baselines import DLN1
from langchain_dp.opt.text import Text
from langchain_dp.ports import Decoding

FEW = DLNSettings(steps=3, prompts_per_step=2, demonstrations=4, max_new_tokens=6)


def by_opt(engine: Any = None, *, seed: int | None = None, **changes: Any) -> OptimizedPrompt:
    return optimize_with_opt(optimizer(engine, **changes), examples(), seed=seed)


def by_dln(engine: Any = None, *, seed: int | None = None, **changes: Any) -> OptimizedPrompt:
    return optimize_with_dln1(optimizer(engine, **changes), examples(), FEW, seed=seed)


BASELINES = pytest.mark.parametrize("baseline", [by_opt, by_dln], ids=["opt", "dln-1"])


@pytest.mark.parametrize(
    ("baseline", "method", "reason"),
    [
        (by_opt, "opt", "OPT counts votes without noise: a prompt may betray a record"),
        (
            by_dln,
            "dln-1",
            "DLN-1 samples prompts from single backward prompts: a prompt may repeat records word for word",
        ),
    ],
)
def test_they_say_that_they_are_not_private(baseline: Any, method: str, reason: str) -> None:
    """If it breaks, a baseline passes for a private prompt, or charges a ledger for nothing."""
    ledger = PrivacyLedger(BUDGET)
    prompt = baseline(ledger=ledger)
    certificate = prompt.certificate
    assert (certificate.private, certificate.epsilon, certificate.reason) == (False, math.inf, reason)
    assert certificate.mechanism == f"non-private {method}"
    assert certificate.model == "word-engine-1"
    shown = prompt.template().metadata["dp"]
    assert shown["private"] is False
    assert shown["reason"] == reason
    assert list(ledger.entries()) == []


@BASELINES
def test_they_drop_their_caches_and_keep_the_rules_of_the_data(baseline: Any) -> None:
    """If it breaks, a baseline leaves private prompts in the model, or learns from the records it is scored on."""
    engine = Looking()
    baseline(engine)
    assert engine.cache == {}
    taught = notes([body for body in engine.shown if "Student" in body])
    scored = notes(engine.shown) - taught
    assert len(taught) <= 32
    assert len(scored) >= 8


@BASELINES
def test_a_seed_repeats_them(baseline: Any) -> None:
    """If it breaks, a comparison cannot be drawn twice."""
    assert len({baseline(WordEngine(), temperature=1.0, seed=4).instruction for _ in range(2)}) == 1


def test_opt_asks_one_batch_for_the_whole_of_a_candidate() -> None:
    """If it breaks, OPT deals a new batch for every token, which is DP-OPT's way (Algorithm 1 draws once)."""
    engine = WordEngine(agreeing(SENTENCE))
    by_opt(engine, partitions=None, sampling_probability=None, subsets=4)
    batches: list[list[str]] = []
    for call in engine.calls:
        members = sorted(asked.prompt.body for asked in call)
        if not call[0].written:
            batches.append(members)
        assert members == batches[-1]
    assert len(batches) == 2
    assert len(engine.calls) == 12


def test_opt_takes_the_token_with_most_votes_and_the_best_candidate() -> None:
    """If it breaks, OPT releases another token than the majority's, or draws noise."""

    def script(place: int, asked: Any) -> str:
        return "Think." if place < 7 else "Say yes."

    runs = {by_opt(WordEngine(script), num_prompts=1).instruction for _ in range(3)}
    assert runs <= {"Say yes.", INSTRUCTION}  # 9 votes of 16; one record a subset would do
    first = {by_opt(WordEngine(all_distinct), num_prompts=1, max_new_tokens=1).instruction for _ in range(3)}
    assert first <= {WordEngine().detokenize([4]).strip(), "Read", INSTRUCTION}  # ties go to the smaller token


# -------------------------------------------------------------------------------------------------------- DLN-1


class Scripted:
    """The forward pass as a table: what each instruction scores. Answers are always the first label."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores
        self.scored: list[str] = []

    def predict(self, instruction: str, texts: Sequence[str]) -> list[int | None]:
        return [0] * len(texts)

    def log_probabilities(self, instruction: str, texts: Sequence[str]) -> list[Any]:
        self.scored.append(instruction)
        return [[self.scores.get(instruction, -9.0)] * 2 for _ in texts]


def dln(forward: Any, engine: WordEngine, teaching: int = 20, advance: Any = lambda: None, **settings: int) -> str:
    """What a run makes of "Start.", with so many records that teach, and four that select."""
    chosen = DLNSettings(**{"steps": 1, "prompts_per_step": 2, "demonstrations": 4, "max_new_tokens": 6} | settings)
    made = DLN1(
        engine, forward, prompts=OptPrompts(), labels=LABELS, settings=chosen,
        text=Text(engine, Decoding(), ["\n"]), rng=random.Random(3),
    )  # fmt: skip
    return made.run("Start.", examples(teaching), examples(4, start=90), advance=advance)


def written_by_step(*sentences: str) -> WordEngine:
    """An engine that writes the n-th sentence under the n-th instruction it is shown."""
    heads: list[str] = []

    def script(place: int, asked: Any) -> str:
        if asked.prompt.head not in heads:
            heads.append(asked.prompt.head)
        return sentences[heads.index(asked.prompt.head) % len(sentences)]

    return WordEngine(script)


def test_dln_keeps_the_best_by_log_probability() -> None:
    """If it breaks, DLN-1 takes the last candidate, or the worst, or counts answers instead."""
    forward = Scripted({"Start.": -2.0, "Say yes.": -1.0, "Think.": -1.5, "Decide.": -0.5})
    engine = written_by_step("Say yes.", "Decide.", "Think.")
    steps: list[int] = []
    assert dln(forward, engine, steps=3, advance=lambda: steps.append(1)) == "Decide."
    assert len(steps) == 3
    assert forward.scored == ["Start.", "Say yes.", "Decide.", "Think."]  # each one once


def test_the_current_instruction_stays_in_the_race() -> None:
    """If it breaks, a bad round throws away the best instruction so far."""
    forward = Scripted({"Start.": -1.0, "Say yes.": -2.0})
    assert dln(forward, written_by_step("Say yes."), steps=4) == "Start."
    assert dln(forward, WordEngine(lambda place, asked: None)) == "Start."


def test_dln_shows_a_batch_with_the_models_answers_and_samples_from_it() -> None:
    """If it breaks, DLN-1 is another algorithm: its leak is measured for nothing."""
    engine = written_by_step("Say yes.")
    dln(Scripted({}), engine, demonstrations=5, prompts_per_step=3)
    bodies = {asked.prompt.body for call in engine.calls for asked in call}
    [body] = bodies
    assert len(notes([body])) == 5
    assert notes([body]) <= {f"{i:03d}" for i in range(20)}
    for row in re.findall(r"note (\d+) .*\n(?:Student Output: (\w+)\n)?Correct Output: (\w+)", body):
        number, said, right = row
        assert right == LABELS[int(number) % 2]
        assert said == ("negative" if right == "positive" else "")
    assert all(len(call) == 1 for call in engine.calls)
    starts = [call[0] for call in engine.calls if not call[0].written]
    assert len(starts) == 3
    assert len({one.draw for call in engine.calls for one in call}) == len(engine.calls)
    assert {one.prompt.head for one in starts} == {OptPrompts().backward_head("Start.")}


@pytest.mark.parametrize(("count", "share"), [(2, 0.1), (2, 0.9)])
def test_dln_without_records_that_select_or_teach_is_refused(count: int, share: float) -> None:
    """If it breaks, all candidates score "not a number", and the first one is the best."""
    made = optimizer(validation=share, partitions=None, sampling_probability=None)
    with pytest.raises(InvalidParameter, match="to be at least one, and not all"):
        optimize_with_dln1(made, examples(count), FEW)


def test_dln_stops_where_a_candidate_ends() -> None:
    """If it breaks, a candidate goes on beyond its end, its length or a stop string."""
    engine = written_by_step("Say yes or no if not.\nInput")
    dln(Scripted({}), engine, 8, prompts_per_step=1, max_new_tokens=4)
    assert len(engine.calls) == 4
    engine = written_by_step("Say.\nInput")
    assert dln(Scripted({"Say.": -0.5}), engine, 8, prompts_per_step=1) == "Say."
    assert len(engine.calls) == 3
