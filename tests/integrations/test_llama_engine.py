"""LlamaCppEnsemble: what one member scores, and that nothing of another member is in it."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from langchain_dp.integrations._engine import Choice
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from langchain_dp.integrations.llama_cpp.evaluate import MemberState

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.icl import SST2, ModelCallOptions
from langchain_dp.icl.subset_prompts import SubsetPrompt
from langchain_dp.icl.voters import EngineVoter, make_voter
from langchain_dp.ports import Continuation, Decoding, HasFile, MemberPrompt, ReportsThroughput

HEAD = "Say whether the review is positive or negative.\n\n"
SHOTS = (
    "Review: the plot goes nowhere and takes its time getting there\nSentiment: negative\n\n",
    "Review: a joy from the first minute to the last\nSentiment: positive\n\n",
    "Review: flat jokes and a tired cast\nSentiment: negative\n\n",
    "Review: I would watch it again tomorrow, and so would my mother\nSentiment: positive\n\n",
)
TAIL = "Review: two hours I will not get back, but the music was nice enough\nSentiment:"
LONG_TAIL = "Review: " + "the hall was cold and the second act too long, yet the singer saved it, " * 2 + "\nSentiment:"
WORDS = (" positive", " negative", " neutral", " good", " bad")
FREE = ("Review: N/A\nSentiment:", "Review:\nSentiment:", "Review: [MASK]\nSentiment:")


def body(member: int, shots: int = 2) -> str:
    return "".join(SHOTS[(member + i * (1 + member % 3)) % 4] for i in range(shots))


def prompt(member: int, shots: int = 2, tail: str = TAIL) -> MemberPrompt:
    return MemberPrompt(head=HEAD, body=body(member, shots), tail=tail, member=(member, shots))


def logits(engine: LlamaCppEnsemble, prompts: Sequence[MemberPrompt]) -> npt.NDArray[np.float32]:
    """Logits of the whole vocabulary after each prompt, in one joint batch."""
    members = [engine._member(asked) for asked in prompts]
    tail = engine._tail(prompts[0].tail)
    return np.stack(engine._evaluator.vectors([member for member in members if member], tail))


def test_logits_of_a_member_are_the_same_bits_alone_and_in_any_company(engine: LlamaCppEnsemble) -> None:
    """If this fails, a vote depends on other members' records, and no epsilon we print is true."""
    assert engine._together == 4
    for tail in ("\n", "Sentiment:", TAIL, LONG_TAIL):  # 1, 3, 20 and 40 tokens: below, at and over one step of rows
        me = prompt(0, tail=tail)
        short = [prompt(i, tail=tail) for i in range(1, 4)]
        long = [prompt(i, shots, tail=tail) for i, shots in ((1, 3), (2, 5), (3, 17))]
        engine.forget(me.member)
        rows = {
            "cold, with three": logits(engine, [*short, me])[3],
            "warm, with three": logits(engine, [me, *short])[0],
            "with one": logits(engine, [me, *short[:1]])[0],
            "others lengthened": logits(engine, [me, *long])[0],
            "another place": logits(engine, [*long[:2], me, long[2]])[2],
            "alone": logits(engine, [me])[0],
        }
        engine.forget(me.member)
        alone = logits(engine, [me])[0]
        assert {name for name, row in rows.items() if not np.array_equal(row, alone)} == set(), tail


class Unified(LlamaCppEnsemble):
    """The cache layout that is not private."""

    _UNIFIED = True


def test_a_unified_cache_is_caught_by_the_same_comparison(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the tests above and the check at start-up could not see members influence each other."""
    with Unified(model_path=model_path, slots=4, max_tokens=768, n_threads=1) as leaky:
        assert leaky._together == 1  # the check at start-up saw it
        alone = logits(leaky, [prompt(0)])[0]
        together = logits(leaky, [prompt(0), *(prompt(i) for i in range(1, 4))])[0]
        lengthened = logits(leaky, [prompt(0), *(prompt(i, 9) for i in range(1, 4))])[0]
        assert not np.array_equal(alone, together)
        assert not np.array_equal(together, lengthened)
        rows = leaky.score_labels([prompt(i) for i in range(3)], WORDS)
        assert leaky.score_labels([prompt(0)], WORDS)[0] == rows[0]  # one by one is private even so
        seen: list[npt.NDArray[np.float32]] = []
        monkeypatch.setattr(Choice, "token", lambda self, row, *_: seen.append(row.copy()))

        def writes(*members: MemberPrompt) -> npt.NDArray[np.float32]:
            seen.clear()
            leaky._context.clear()
            leaky.next_tokens([Continuation(member, (), 0.5) for member in members], Decoding())
            return seen[0]

        assert np.array_equal(writes(prompt(0)), writes(prompt(0), prompt(1, 9)))
        leaky._slots.count = 4  # what the check at start-up prevents
        assert not np.array_equal(writes(prompt(0), prompt(1)), writes(prompt(0), prompt(1, 9)))


def test_what_memory_held_before_does_not_reach_a_member(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, infinities that a broken member left in the cache turn others' scores into abstentions."""
    expected = engine.score_labels([prompt(0)], WORDS)
    engine.score_labels([prompt(1, 8)], WORDS)
    (broken,) = (entry for key, entry in engine._store._kept.items() if key[1] == (1, 8))
    size = broken.state.size
    broken.state[-size // 5 : -size // 10] = 0x7E  # values of the last layer; 0x7E7E is a NaN in half precision
    evaluated: list[object] = []
    joint = engine._evaluator._joint
    monkeypatch.setattr(engine._evaluator, "_joint", lambda *args: (rows := joint(*args), evaluated.extend(rows))[0])
    assert engine.score_labels([prompt(1, 8)], WORDS) == [None]
    assert len(evaluated) == 1  # it was restored and evaluated: the NaN did get into the cache
    assert engine.score_labels([prompt(0)], WORDS) == expected


def test_what_a_sequence_held_before_does_not_reach_who_is_evaluated_in_it(engine: LlamaCppEnsemble) -> None:
    """If this fails, a member is evaluated where a broken one was, and its state holds what that one left."""
    evaluator, tokens = engine._evaluator, engine._context.tokenize("The room was cold and the nurse was kind.")
    nothing = MemberState(np.empty(0, np.uint8), 0, b"")
    expected = evaluator.extended(nothing, tokens, b"")
    broken = evaluator.extended(nothing, tokens * 2, b"")
    size = broken.state.size
    broken.state[-size * 2 // 5 : -size // 3] = 0x7E  # NaN, as above, in values of the first layer: what follows tells
    for _ in range(evaluator.rooms):
        evaluator.extended(broken, tokens, b"")
    assert evaluator.rooms > 1, "else there is nothing to show"
    found = [evaluator.extended(nothing, tokens, b"") for _ in range(evaluator.rooms)]
    (logits,) = evaluator.vectors([expected], tokens)
    assert all(np.array_equal(logits, row) for state in found for row in evaluator.vectors([state], tokens))


def test_the_engine_tells_which_file_it_is(engine: LlamaCppEnsemble, model_path: str) -> None:
    """If this fails, a saved prompt does not say by which model it was written."""
    assert isinstance(engine, HasFile)
    assert engine.file_sha256() == hashlib.sha256(Path(model_path).read_bytes()).hexdigest()


def test_it_tells_its_speed_and_appetite(engine: LlamaCppEnsemble) -> None:
    """If this fails, a plan says nothing of time and memory, or members in memory do not survive the question."""
    rows = engine.score_labels([prompt(0)], WORDS)
    assert isinstance(engine, ReportsThroughput)
    assert engine.tokens_per_second() > 0
    tokens = engine.count_tokens(HEAD) + engine.count_tokens(prompt(0).body)
    assert engine._store.bytes / tokens == pytest.approx(engine.bytes_per_token(), rel=0.02)
    assert engine.score_labels([prompt(0)], WORDS) == rows


def states(engine: LlamaCppEnsemble) -> dict[object, str]:
    return {key[1]: hashlib.sha256(entry.state.tobytes()).hexdigest() for key, entry in engine._store._kept.items()}


def test_forget_drops_one_member_and_leaves_the_others_byte_identical(engine: LlamaCppEnsemble) -> None:
    """If this fails, a deleted record stays in memory, or deleting it disturbs members it never touched."""
    crowd = [prompt(i) for i in range(5)]
    rows = engine.score_labels(crowd, WORDS, content_free=FREE)
    before, used = states(engine), engine._store.bytes
    gone = next(entry for key, entry in engine._store._kept.items() if key[1] == crowd[2].member)
    engine.forget(crowd[2].member)
    assert gone.state.sum() == 0
    assert not gone.calibrations
    assert engine._store.bytes == used - gone.state.nbytes
    assert states(engine) == {member: state for member, state in before.items() if member != crowd[2].member}
    assert engine.score_labels(crowd, WORDS, content_free=FREE) == rows


def test_kept_states_never_exceed_cache_bytes_and_the_least_recently_used_goes_first(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a large ensemble eats the machine's memory, or throws away what it needs next."""
    engine.warm([prompt(0), prompt(1), prompt(2)])
    monkeypatch.setattr(engine._store, "limit", engine._store.bytes + 10)
    engine.score_labels([prompt(0)], WORDS)
    engine.warm([prompt(3)])
    assert engine._store.bytes <= engine._store.limit
    kept = set(states(engine))
    assert {(0, 2), (3, 2)} <= kept
    assert (1, 2) not in kept
    monkeypatch.setattr(engine._store, "limit", 1)
    expected = engine.score_labels([prompt(i) for i in range(4)], WORDS)
    engine._store.clear()
    assert engine.score_labels([prompt(i) for i in range(4)], WORDS) == expected
    assert engine._store.bytes == 0


def test_a_warm_member_is_not_evaluated_again(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, caches or calibrations are rebuilt for every question and answers take minutes."""
    engine.score_labels([prompt(0), prompt(1)], WORDS, content_free=FREE)
    decoded: list[int] = []
    decode = engine._context.decode
    monkeypatch.setattr(engine._context, "decode", lambda rows: (decoded.append(len(rows)), decode(rows))[1])
    engine.score_labels([prompt(0), prompt(1)], WORDS, content_free=FREE)
    assert sum(decoded) == 2 * engine.count_tokens(TAIL)


def log_probabilities(direct: Any, asked: MemberPrompt, tail: str, words: Sequence[str]) -> npt.NDArray[np.float64]:
    """The same scores from a plain evaluation of the whole prompt."""

    def after(tokens: list[int], kept: int = 0) -> npt.NDArray[np.float64]:
        row = direct.logits(tokens, kept=kept).astype(float)
        return np.asarray(row - np.logaddexp.reduce(row))

    prefix = [token for part in (asked.head, asked.body, tail) for token in direct.tokens(part)]
    labels = [direct.tokens(word) for word in words]
    collide = len({label[0] for label in labels}) < len(labels)
    first, sums = after(prefix), []
    for label in labels:
        total = first[label[0]]
        for place, (before, token) in enumerate(itertools.pairwise(label)):
            if collide:
                total += after([before], len(prefix) + place)[token]
        sums.append(total)
    return np.array(sums) - np.logaddexp.reduce(sums)


@pytest.mark.parametrize("words", [WORDS, (" very good", " very bad", " bad")], ids=["distinct", "colliding"])
def test_scores_equal_a_plain_evaluation_of_the_whole_prompt(
    engine: LlamaCppEnsemble, direct: Any, words: Sequence[str]
) -> None:
    """If this fails, sharing the head, restoring states or joint batches changes what the model says."""
    crowd = [prompt(i, 1 + 2 * i) for i in range(3)]
    crowd += [MemberPrompt(HEAD, "", TAIL, 3)]  # as of a zero-shot baseline
    rows = engine.score_labels(crowd, words)
    expected = [log_probabilities(direct, asked, TAIL, words) for asked in crowd]
    np.testing.assert_allclose(np.array(rows, dtype=float), expected, atol=5e-3)


def test_calibration_divides_by_the_mean_probability_after_content_free_tails(
    engine: LlamaCppEnsemble, direct: Any
) -> None:
    """If this fails, the default scores are not contextual calibration and lose its accuracy."""
    (row,) = engine.score_labels([prompt(1)], WORDS[:3], content_free=FREE)
    plain = log_probabilities(direct, prompt(1), TAIL, WORDS[:3])
    free = np.mean([np.exp(log_probabilities(direct, prompt(1), tail, WORDS[:3])) for tail in FREE], axis=0)
    assert row == pytest.approx(plain - np.log(free), abs=5e-3)


def test_a_member_that_llama_cpp_refuses_abstains_without_a_word_of_it(
    engine: LlamaCppEnsemble, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """If this fails, one damaged state stops a vote that was paid for, or a log tells that some member failed."""
    caplog.set_level(logging.DEBUG)
    crowd = [prompt(i) for i in range(3)]
    expected = engine.score_labels(crowd, WORDS)
    damaged = next(entry for key, entry in engine._store._kept.items() if key[1] == crowd[1].member)
    damaged.state[:64] = 255
    assert engine.score_labels(crowd, WORDS) == [expected[0], None, expected[2]]
    assert [record for record in caplog.records if "llama" in record.name] == []
    assert "Review" not in "".join(capfd.readouterr())


def test_threads_that_ask_at_once_get_what_they_would_get_alone(engine: LlamaCppEnsemble) -> None:
    """If this fails, two chains that share an engine mix up their caches."""
    expected = {i: engine.score_labels([prompt(i)], WORDS) for i in range(4)}
    engine._store.clear()
    got: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.update({i: engine.score_labels([prompt(i)], WORDS)})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


@pytest.mark.parametrize(
    "bad",
    [{"slots": 0}, {"slots": 256}, {"max_tokens": 3}, {"max_tokens": 100_000}, {"cache_bytes": -1}, {"n_threads": 0}],
    ids=str,
)
def test_parameters_out_of_bounds_are_refused(model_path: str, bad: dict[str, int]) -> None:
    """If this fails, a typing error ends in a crash inside a C library."""
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        LlamaCppEnsemble(model_path=model_path, **bad)  # type: ignore[arg-type]  # wrong on purpose


def test_a_file_that_is_no_model_is_refused(tmp_path: object) -> None:
    """If this fails, a wrong path ends in a crash or an unclear message."""
    with pytest.raises(InvalidParameter, match="exists"):
        LlamaCppEnsemble(model_path=f"{tmp_path}/none.gguf")
    with pytest.raises(InvalidParameter, match="load"):
        LlamaCppEnsemble(model_path=__file__)


def test_a_closed_engine_says_so(model_path: str) -> None:
    """If this fails, using an engine after close() crashes the process."""
    with LlamaCppEnsemble(model_path=model_path, slots=1, max_tokens=256, n_threads=1) as short_lived:
        short_lived.warm([prompt(0)])
    for call in (
        lambda: short_lived.score_labels([prompt(0)], WORDS),
        lambda: short_lived.warm([prompt(0)]),
        lambda: short_lived.count_tokens("a"),
    ):
        with pytest.raises(ModelUnavailable, match="closed"):
            call()
    short_lived.close()
    short_lived.forget(0)
    assert short_lived._store.bytes == 0


def test_long_examples_are_cut_until_their_member_is_scored(engine: LlamaCppEnsemble) -> None:
    """If it breaks, subsets of long notes abstain, and only noise is left."""
    text = "the hall was cold, ünd 雪 fell. "
    long = [(SST2.ask({"text": f"note {i} {text * (90 * i)}"}), "Positive") for i in (1, 2, 3)]
    question = SST2.ask({"text": "how is it?"})
    subset = SubsetPrompt(("long", 1), tuple(long), question)
    voter = make_voter(
        engine, prompt=SST2, words=["Positive", "Negative"], calibrate=True,
        keep_caches=True, model_calls=ModelCallOptions(), trust_opaque_model=False,
    )  # fmt: skip
    whole = MemberPrompt(SST2.head(), SST2.body(long), question, ("long", 0))
    assert engine.score_labels([whole], [" Positive", " Negative"]) == [None]
    [vote] = voter.ask([subset])
    assert vote in (0, 1)
    assert isinstance(voter, EngineVoter)
    shown = voter._member(subset).body
    assert [f"note {i} the hall" in shown for i in (1, 2, 3)] == [True] * 3
    assert engine.max_tail_tokens - 60 < engine.count_tokens(shown) <= engine.max_tail_tokens
