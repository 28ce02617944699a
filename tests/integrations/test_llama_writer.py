"""LlamaCppEnsemble writes tokens: what one member writes, and that nothing of another member is in it."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from langchain_dp.integrations._engine import Choice
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp.ports import Continuation, Decoding, MemberPrompt

HEAD = "Reviews and their labels.\n"
SHOTS = ("Review: flat jokes\nLabel: no\n", "Review: a joy to the last\nLabel: yes\n", "Review: slow\nLabel: no\n")
TAIL = "The instruction was:"
LONG_TAIL = "So, what was the instruction " + "that was given, and given again, " * 4 + "at first?"
PLAIN = Decoding()
WORDS = (" yes", " no")
_STRIDE = 2**21  # bytes of memory that are searched at once

Bits = dict[int, npt.NDArray[np.float32]]


def prompt(member: int, shots: int = 1, tail: str = TAIL) -> MemberPrompt:
    body = f"Guest {member}. " + "".join(SHOTS[(member + i) % 3] for i in range(shots))
    return MemberPrompt(head=HEAD, body=body, tail=tail, member=(member, shots))


def asked(member: int, written: Sequence[int] = (), *, shots: int = 1, tail: str = TAIL) -> Continuation:
    return Continuation(prompt(member, shots, tail), tuple(written), member / 1000)  # the coin tells who it was


def text(engine: LlamaCppEnsemble, words: str) -> list[int]:
    return engine._context.tokenize(words)


Ask = Callable[..., Bits]


@pytest.fixture
def ask(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask members, and get the logits of each from which its token was taken."""
    seen: Bits = {}
    token = Choice.token

    def noted(self: Choice, logits: npt.NDArray[np.float32], written: Sequence[int], draw: float) -> int | None:
        seen[round(draw * 1000)] = logits.copy()
        return token(self, logits, written, draw)

    monkeypatch.setattr(Choice, "token", noted)

    def call(*members: Continuation, fresh: bool = False, decoding: Decoding = PLAIN) -> Bits:
        if fresh:
            engine._store.clear()
            engine._context.clear()
        seen.clear()
        engine.next_tokens(members, decoding)
        return dict(seen)

    return call


def same(one: Bits, other: Bits, *members: int) -> bool:
    return all(np.array_equal(one[member], other[member]) for member in members)


def decoded(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int, int, bool]]]:
    """Every batch from here on, row by row."""
    batches: list[list[tuple[int, int, int, bool]]] = []
    decode = engine._context.decode
    monkeypatch.setattr(engine._context, "decode", lambda rows: (batches.append(list(rows)), decode(rows))[1])
    return batches


def test_catching_up_equals_never_having_missed_a_token_to_the_last_bit(engine: LlamaCppEnsemble, ask: Ask) -> None:
    """If it breaks, which tokens a member was asked for, or when it was swapped out, shows in its votes."""
    words = text(engine, " Decide whether the guest liked it")
    ask(asked(0), asked(1), fresh=True)
    for count in range(1, len(words)):
        steady = ask(asked(0, words[:count]), asked(1, words[:count]))
    ask(asked(1), asked(0, words[:2]), fresh=True)
    late = ask(asked(0, words[:-1]), asked(1, words[:-1]))
    assert same(steady, late, 0, 1)
    assert same(steady, ask(asked(1, words[:-1]), asked(0, words[:-1]), fresh=True), 0, 1)
    back = ask(asked(0, words[:2]))  # a shorter text, then another tail, then the first again
    other = ask(asked(0, words[3:5], tail=LONG_TAIL))
    assert same(back, ask(asked(0, words[:2])), 0)
    assert same(other, ask(asked(0, words[3:5], tail=LONG_TAIL), fresh=True), 0)


@pytest.mark.parametrize("kept", ["all", "two", "none"])
def test_more_members_than_slots_write_the_same_bits_whoever_was_swapped_out(
    engine: LlamaCppEnsemble, ask: Ask, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """If it breaks, an ensemble larger than the model's memory votes otherwise than a small one."""
    words = text(engine, " Say it")
    alone = {i: ask(asked(i), fresh=True) | {-1: ask(asked(i, words))[i]} for i in (0, 3, 6)}
    engine._store.clear()
    engine._context.clear()
    if kept != "all":
        monkeypatch.setattr(engine._store, "limit", 10 if kept == "none" else 3 * 10**6)
    first = ask(*(asked(i) for i in range(7)))
    ask(asked(5), asked(2, words[:1]))
    second = ask(*(asked(i, words) for i in (4, 6, 0, 3)), asked(1, words))
    assert all(same(alone[i], first, i) for i in (0, 3, 6))
    assert all(np.array_equal(alone[i][-1], second[i]) for i in (0, 3, 6))
    assert len(engine._slots.residents) == 4
    assert engine._store.bytes <= engine._store.limit


def test_a_member_that_left_leaves_nothing_for_the_next_occupant(engine: LlamaCppEnsemble, ask: Ask) -> None:
    """If it breaks, infinities of a member that is gone turn the next one's vote into an abstention."""
    words = text(engine, " Say it")
    expected = {i: ask(asked(i, words), fresh=True)[i] for i in (1, 2, 3, 4)}
    ask(asked(0, shots=9), fresh=True)
    engine._slots.put_away()
    (broken,) = engine._store._kept.values()
    size = broken.state.size
    broken.state[-size // 5 : -size // 25] = 0x7E  # values of the last layer; 0x7E7E is a NaN in half precision
    crowd = [asked(i, words) for i in (1, 2, 3)]
    assert np.isnan(ask(asked(0, shots=9), *crowd)[0]).any()  # it did get into the cache
    rows = ask(asked(4, words), *crowd)  # 4 takes the seat of 0
    assert len(engine._slots.residents) == 4
    assert all(np.array_equal(rows[i], expected[i]) for i in (1, 2, 3, 4))


def test_a_warm_step_is_one_row_a_member_and_restores_nothing(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, every token costs a whole question, and a prompt of 50 tokens takes hours."""
    words = text(engine, " Say it now")[:3]
    crowd = range(4)
    engine.next_tokens([asked(i, words[:1]) for i in crowd], PLAIN)
    batches = decoded(engine, monkeypatch)
    monkeypatch.setattr(engine._context, "restore", lambda *_: pytest.fail("restored"))
    engine.next_tokens([asked(i, words[:2]) for i in crowd], PLAIN)
    assert [[(row[0], row[2]) for row in batch] for batch in batches] == [[(words[1], i) for i in crowd]]
    batches.clear()
    engine.next_tokens([asked(2, words)], PLAIN)  # the others come along, and have their logits to themselves
    assert [[(row[0], row[2]) for row in batch] for batch in batches] == [[(words[2], i) for i in crowd]]
    assert sum(row[3] for row in batches[0]) == 2
    batches.clear()
    engine.next_tokens([asked(i, words) for i in crowd], PLAIN)
    assert [len(batch) for batch in batches] == [4]


def test_scoring_labels_in_between_changes_no_bit_of_either(engine: LlamaCppEnsemble, ask: Ask) -> None:
    """If it breaks, an optimizer that classifies between two tokens spoils its own votes."""
    words = text(engine, " Say it")
    crowd = [prompt(i) for i in range(5)]
    written = [ask(*(asked(i, words[:count]) for i in range(5)), fresh=count == 0) for count in range(3)]
    engine._store.clear()
    scores = engine.score_labels(crowd, WORDS)
    engine._store.clear()
    engine._context.clear()
    for count in range(3):
        assert same(written[count], ask(*(asked(i, words[:count]) for i in range(5))), *range(5))
        assert engine.score_labels(crowd, WORDS) == scores
    engine.forget(crowd[0].member)
    assert engine.score_labels(crowd, WORDS) == scores


def test_progress_survives_scoring_and_the_forgetting_of_others(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, every classification in between evaluates all that was written again."""
    words = text(engine, " Say what you think")[:4]
    engine.next_tokens([asked(i, words[:3]) for i in range(3)], PLAIN)
    engine.score_labels([prompt(0)], WORDS)
    engine.forget(prompt(2).member)
    batches = decoded(engine, monkeypatch)
    engine.next_tokens([asked(i, words) for i in range(2)], PLAIN)
    assert [[row[2] for row in batch] for batch in batches] == [[0, 1]]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/mem")
def test_forget_overwrites_a_member_in_the_store_and_in_the_models_memory(engine: LlamaCppEnsemble, ask: Ask) -> None:
    """If it breaks, a deleted record can still be read from the process, or deleting it disturbs the others."""
    words = text(engine, " Say it")
    crowd = [asked(i, words) for i in range(6)]
    expected = ask(*crowd, fresh=True)
    for resident in (True, False):
        ask(*crowd)
        seated = {at.key[1] for at in engine._slots.residents.values()}
        member = next(one.prompt.member for one in crowd if (one.prompt.member in seated) == resident)
        engine._slots.put_away()
        entries = {key[1]: entry.state for key, entry in engine._store._kept.items()}
        state = entries.pop(member)
        others, end = bytearray(sum(other.nbytes for other in entries.values())), 0
        for other in entries.values():  # no copy of its own is left behind in freed memory, to be found below
            end, start = end + other.nbytes, end
            others[start:end] = memoryview(other).cast("B")
        pieces = [state[at : at + 48].tobytes() for at in range(state.size // 8, state.size - 48, state.size // 40)]
        traces = [piece for piece in pieces if piece not in others]  # those of the head are everybody's
        others[:] = bytes(len(others))
        ask(*crowd)
        if resident:
            ask(next(one for one in crowd if one.prompt.member == member))
            assert _found(traces) > len(traces) // 4 > 1  # keys lie as they were saved, values do not
        engine.forget(member)
        assert not state.any()
        assert _found(traces) == 0
        assert member not in {key[1] for key in engine._store._kept}
    assert same(expected, ask(*crowd), *range(6))


def _found(traces: Sequence[bytes]) -> int:
    """How many of the traces are anywhere in the large private regions of this process but where they are listed.

    A freed part of the heap may hold the model's cache as well as a region of its own does. What is read goes through a
    shared mapping, which is not searched: in a buffer from the heap it would be found again.
    """
    own = {id(trace) + bytes.__basicsize__ - 1 for trace in traces}
    found: set[int] = set()
    with open("/proc/self/maps") as maps:
        regions = [line.split() for line in maps]
    memory, part = os.open("/proc/self/mem", os.O_RDONLY), mmap.mmap(-1, _STRIDE + 64)
    try:
        for fields in regions:
            begin, end = (int(place, 16) for place in fields[0].split("-"))
            if fields[5:] not in ([], ["[heap]"]) or "w" not in fields[1] or end - begin < 2**20:
                continue
            for at in range(begin, end, _STRIDE):
                with memoryview(part)[: end - at] as wanted:
                    try:
                        size = os.preadv(memory, [wanted], at)
                    except OSError:  # given back since, as the stack of a thread that has ended: nothing is there
                        break
                for i, trace in enumerate(traces):
                    place = part.find(trace, 0, size)
                    while place >= 0:
                        if at + place not in own:
                            found.add(i)
                        place = part.find(trace, place + 1, size)
    finally:
        os.close(memory)
        part.close()
    return len(found)
