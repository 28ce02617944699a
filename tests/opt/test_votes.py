"""From one draw of subsets to one token: what a member sees, who may abstain, and what the mechanism is told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    SENTENCE,
    ZERO_OUT,
    Looking,
    examples,
    optimizer,
    stopping,
)

from langchain_dp import PrivateRecords
from langchain_dp.ensemble.subsets import Scheme, SubsetSampler
from langchain_dp.mechanisms import LimitedDomain, NotPrivateSeededRandomness
from langchain_dp.opt import OptPrompts
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.text import Text
from langchain_dp.opt.voters import Demonstrations, SubsetVotes


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the mechanism was told, call by call, with what it answered."""
    calls: list[dict[str, Any]] = []
    draw = LimitedDomain.release

    def spy(self: LimitedDomain[Any], votes: Mapping[Any, int], **settings: Any) -> Any:
        answer = draw(self, votes, **settings)
        told = vars(self) | {"epsilon0": self.event.epsilon0, "delta0": self.event.delta0}
        calls.append({"votes": Counter(votes), "answer": answer} | told | settings)
        return answer

    monkeypatch.setattr(LimitedDomain, "release", spy)
    return calls


def subset_votes(engine: WordEngine, rows: list[dict[str, str]], *, seed: int = 7, **changes: Any) -> SubsetVotes:
    """Members of one draw on seeded coins, so that two calls differ by what the members hold only."""
    settings: Settings = optimizer(engine, **changes).settings
    records = PrivateRecords(rows)
    rng = NotPrivateSeededRandomness(seed)
    ensemble = SubsetSampler(records.ids(), Scheme("fixed", 8, 1.0, True), rng)
    demonstrations = Demonstrations(records, Forward.of(engine, settings), settings, engine)
    text = Text(engine, settings.decoding, settings.candidate_options.stop)
    return SubsetVotes(engine, ensemble, demonstrations, watch=lambda: None, text=text, rng=rng)


def votes_of_each(engine: WordEngine, rows: list[dict[str, str]]) -> dict[frozenset[str], Any]:
    """The vote of every subset, by the numbers of the notes that it shows."""
    one = subset_votes(engine, rows)
    subsets = one.draw()
    found: dict[frozenset[str], Any] = {}
    original = engine.next_tokens

    def spy(asked: Any, decoding: Any) -> Any:
        answers = original(asked, decoding)
        for member, answer in zip(asked, answers, strict=True):
            found[frozenset(re.findall(r"note (\d+)", member.prompt.body))] = answer
        return answers

    engine.next_tokens = spy  # type: ignore[method-assign]  # a look inside one call
    one.votes(subsets, 0, ())
    return found


def test_a_longer_record_changes_no_other_vote() -> None:
    """If it breaks, members share something: one record moves more votes than its own."""
    rows = examples(24)
    longer = [dict(row) for row in rows]
    longer[5]["text"] += " and it is a very long story" * 30
    before, after = votes_of_each(WordEngine(), rows), votes_of_each(WordEngine(), longer)
    assert before.keys() == after.keys()
    assert len(before) == 8
    differing = [names for names in before if before[names] != after[names]]
    assert all("005" in names for names in differing)


def test_where_a_prompt_is_full_a_longer_record_changes_nothing_that_is_shown_of_others() -> None:
    """If it breaks, records are cut by the longest beside them: one moves more votes than its own."""
    rows = [{**row, "text": f"{row['text']} {'and so on ' * 50}"} for row in examples(24)]
    longer = [dict(row) for row in rows]
    longer[5]["text"] = longer[5]["text"][:30] + " x," * 400  # of many more tokens for its length
    shown, whole = [], "and so on " * 49
    for some in (rows, longer):
        engine = Looking(max_prompt_tokens=330)
        one = subset_votes(engine, some)
        one.votes(one.draw(), 0, ())
        shown.append({body for body in engine.shown if "note 005" not in body})
        assert not any(whole in body for body in engine.shown), "all of them are cut"
    assert shown[0] == shown[1]
    assert sum("Student" in body for body in shown[0]) == 7
    assert sum("Student" not in body for body in shown[0]) == 23


def test_a_record_that_cannot_be_answered_is_shown_as_such() -> None:
    """If it breaks, a record that is too long for the forward pass takes others' answers with it, or raises."""
    engine = Looking(spoil=lambda prompt: 1 / 0 if "note 003" in prompt.body and "Instruction" in prompt.head else 0)
    one = subset_votes(engine, examples(24))
    one.votes(one.draw(), 0, ())
    [body] = {body for body in engine.shown if "note 003" in body and "Student" in body}
    shown = next(part for part in body.split("\n\n") if "note 003" in part)
    assert "Student Output: (none)\nCorrect Output: positive" in shown
    others = "".join(body for body in engine.shown if "note 003" not in body)
    assert "(none)" not in others


def test_a_member_sees_its_own_records_once_and_nobody_elses(told: list[dict[str, Any]]) -> None:
    """If it breaks, a prompt shows records of other subsets: one record moves several votes."""
    engine = WordEngine(agreeing(SENTENCE))
    optimizer(engine).invoke(examples())
    teaching = set()
    by_member: dict[Any, str] = {}
    for call in engine.calls:
        seen: list[str] = []
        for asked in call:
            body = by_member.setdefault(asked.prompt.member, asked.prompt.body)
            assert body == asked.prompt.body  # a cached prompt never changes
            seen += re.findall(r"note (\d+)", body)
            assert CANARY not in asked.prompt.head + asked.prompt.tail
        assert len(seen) == len(set(seen)) == 32
        teaching.add(frozenset(seen))
    assert len(teaching) == 1
    assert len(told) == len(engine.calls)


def test_what_is_written_so_far_is_what_was_released() -> None:
    """If it breaks, a member goes on with its own text instead of the released one, which nobody paid for."""
    engine = WordEngine(agreeing(SENTENCE))
    made = optimizer(engine)
    made.invoke(examples())
    released = engine.tokenize(SENTENCE)
    assert {asked.written for call in engine.calls for asked in call} <= {
        released[:i] for i in range(len(released) + 1)
    }
    assert made.released() == [SENTENCE, SENTENCE]


def test_members_toss_their_own_coins_and_fresh_ones_at_every_call_and_run() -> None:
    """If it breaks, members share a coin or reuse it, so votes hang together; or coins are seeded. By chance: 2^-53."""
    engines = [WordEngine(agreeing(SENTENCE)) for _ in range(2)]
    for engine in engines:
        optimizer(engine).invoke(examples())
    coins = [asked.draw for engine in engines for call in engine.calls for asked in call]
    assert len(set(coins)) == len(coins) > 200
    assert all(0 <= coin < 1 for coin in coins)
    subsets = [{frozenset(re.findall(r"note (\d+)", asked.prompt.body)) for asked in e.calls[0]} for e in engines]
    assert subsets[0] != subsets[1]


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_subsets_are_of_one_size_only_where_the_number_of_records_is_public(budget: Any) -> None:
    """If it breaks, a permutation is cut into equal subsets under add/remove, and one record moves two votes.

    Own coins deal about 128 records into 16 subsets. That those differ by one at most has a chance below 1e-7: no two
    neighboring sizes together are likelier than 0.29, for one subset, and an empty one is not asked.
    """
    engine = WordEngine(agreeing(SENTENCE))
    optimizer(engine, budget=budget, shots=8).invoke(examples(160))
    sizes = {asked.prompt.body.count("Input:") for asked in engine.calls[0]}
    assert (sizes == {8}) if budget is not ADD_OR_REMOVE else (max(sizes) - min(sizes) > 1)


@pytest.mark.parametrize(("budget", "moved"), [(BUDGET, True), (ADD_OR_REMOVE, True), (ZERO_OUT, False)])
def test_the_lower_threshold_is_for_zero_out_only(budget: Any, moved: bool, told: list[dict[str, Any]]) -> None:
    """If it breaks, a vote that moves is treated as one that appears: a lost token has twice its mass and more."""
    made = optimizer(budget=budget)
    made.invoke(examples())
    assert {call["moved_votes"] for call in told} == {moved}
    needed = made.certificate().parameters["votes_needed"]
    assert needed == (6 if moved else 5)  # 2 or 1 + 2/4 ln 999


def test_the_mechanism_draws_with_the_noise_that_was_reserved(told: list[dict[str, Any]]) -> None:
    """If it breaks, the noise is another one than the ledger was charged for."""
    engine = WordEngine(agreeing(SENTENCE))
    optimizer(engine, kbar=7).invoke(examples())
    assert {(c["epsilon0"], c["delta0"], c["kbar"], c["domain"]) for c in told} == {
        (4.0, 1e-3, 7, engine.vocabulary_size)
    }
    assert all(call["votes"].total() == 16 for call in told)
    assert {call["rng"].private for call in told} == {True}


@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_no_cache_outlives_its_run(sampling: Any) -> None:
    """If it breaks, what the model keeps of a record stays after the run, or Ctrl-C, or its subset is dealt anew."""
    left: list[int] = []
    engine = Looking(lambda bodies: left.append(len(engine.cache)))
    changes: dict[str, Any] = {"partitions": None, "subsets": 16} if sampling == "resample" else {}
    optimizer(engine, sampling=sampling, budget=ADD_OR_REMOVE, **changes).invoke(examples())
    assert engine.cache == {}
    if sampling == "resample":  # beside its own call nothing is there
        assert max(left) == 0
    else:
        assert max(left) > 8
        engine = stopping(2)
        with pytest.raises(KeyboardInterrupt):
            optimizer(engine).invoke(examples())
        assert len(engine.shown) > 32
        assert engine.cache == {}


def test_the_answers_shown_are_the_models_own() -> None:
    """If it breaks, the backward prompt calls right answers errors, and the model repairs what works."""
    engine = Looking()
    one = subset_votes(engine, examples(24), prompts=OptPrompts(words={"negative": "bad", "positive": "good"}))
    one.votes(one.draw(), 0, ())
    forward = [body for body in engine.shown if "Student" not in body]
    assert len(forward) == 24
    assert all(re.fullmatch(rf"Input: note \d+ {CANARY}\n\n", body) for body in forward)
    backward = "".join(body for body in engine.shown if "Student" in body)
    for head, found in re.findall(r"# Student (\w+)\n((?:Input:.*\n(?:.*\n)+?\n)+)", backward):
        for row in found.strip().split("\n\n"):
            note = re.search(r"note (\d+)", row)
            right = re.search(r"Correct Output: (\w+)", row)
            assert note is not None
            assert right is not None
            assert right[1] == ("bad", "good")[int(note[1]) % 2]
            said = re.search(r"Student Output: (\w+)", row)
            assert (said is None) == (head == "successes")
            assert said is None or said[1] != right[1]


@pytest.mark.parametrize("odd", [1.5, [3], object(), {}])
def test_an_odd_answer_of_one_member_is_an_abstention(odd: object) -> None:
    """If it breaks, what a model answers to one record ends the run after the call was charged."""

    class Odd(WordEngine):
        def next_tokens(self, asked: Any, decoding: Any) -> Any:
            answers = super().next_tokens(asked, decoding)
            return [odd, *answers[1:]] if asked[0].prompt.body else answers

        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            rows = super().score_labels(prompts, words, **options)
            return [[0.0, 0.0, odd], *rows[1:]] if CANARY in prompts[0].body else rows

    made = optimizer(Odd(agreeing(SENTENCE)))
    made.invoke(examples())
    assert made.released() == [SENTENCE, SENTENCE]
