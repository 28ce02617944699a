"""How joint batches are padded: by a rule that the check at start-up has tested, for every common file type."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fakes.tiny_gguf import TinyGGUF
from langchain_dp.integrations._engine import Choice
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, batch_check
from langchain_dp.integrations.llama_cpp.context import LlamaContext
from langchain_dp.integrations.llama_cpp.evaluate import (
    ALONE,
    EIGHTS,
    PAIRS,
    BatchRule,
    JointEvaluator,
    fixed_shape,
    sequences_for,
)
from langchain_dp.integrations.llama_cpp.model_files import _quantize

from langchain_dp.ports import Continuation, Decoding, MemberPrompt

TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K")
K_QUANTS = ("Q4_K_M", "Q5_K_M", "Q6_K")
SLOTS = 12
HEAD = "Reviews and their labels.\n"
SHOTS = ("Review: flat jokes\nLabel: no\n", "Review: a joy to the last\nLabel: yes\n", "Review: slow\nLabel: no\n")
TAILS = ("Label:", "Review: two hours I will not get back, but the music was nice enough\nLabel:")
WORDS = (" yes", " no", " very good", " not so bad")
PLAIN = Decoding()
Row = tuple[int, int, int, bool]
Bits = dict[int, npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("llama_cpp", "gguf", "torch", "transformers"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    made = tmp_path_factory.mktemp("types")
    TinyGGUF(made, length=2048, wide=True)
    return made


def model(folder: Path, kind: str) -> str:
    """The tiny model with layers 256 wide, which K-quants need, in one file type."""
    path = folder / f"{kind}.gguf"
    if not path.exists():
        assert _quantize(str(folder / "tiny.gguf"), path, kind)
    return str(path)


def built(folder: Path, kind: str, **settings: Any) -> LlamaCppEnsemble:
    return LlamaCppEnsemble(
        model_path=model(folder, kind), **({"slots": SLOTS, "max_tokens": 512, "n_threads": 1} | settings)
    )


@pytest.fixture(scope="module", params=TYPES)
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[LlamaCppEnsemble]:
    with built(folder, request.param) as one:
        yield one


def prompt(member: int, tail: str = TAILS[0], shots: int = 1) -> MemberPrompt:
    body = f"Guest {member}. " + "".join(SHOTS[(member + i) % 3] for i in range(shots))
    return MemberPrompt(head=HEAD, body=body, tail=tail, member=(member, shots))


def scored(engine: LlamaCppEnsemble, members: Sequence[int], tail: str) -> dict[int, list[float] | None]:
    engine._store.clear()
    rows = engine.score_labels([prompt(i, tail, 1 + i % 4) for i in members], WORDS)
    return dict(zip(members, rows, strict=True))


def write(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch, tail: str) -> Callable[[Sequence[int], int], Bits]:
    """Ask members for their next token, and get the logits of each from which it was taken."""
    seen: Bits = {}
    words = engine._context.tokenize(" Say what you think of it")

    def noted(self: Choice, logits: npt.NDArray[np.float32], written: Sequence[int], draw: float) -> int:
        seen[round(draw * 1000)] = logits.copy()
        return 5

    monkeypatch.setattr(Choice, "token", noted)

    def ask(members: Sequence[int], count: int) -> Bits:
        seen.clear()
        asked = [Continuation(prompt(i, tail, 1 + i % 4), tuple(words[:count]), i / 1000) for i in members]
        engine.next_tokens(asked, PLAIN)
        return dict(seen)

    return ask


def anew(engine: LlamaCppEnsemble) -> None:
    engine._store.clear()
    engine._context.clear()


COMPANIES: tuple[tuple[int, ...], ...] = ((0, 1), (2, 1, 0), (0, 3, 4, 5), tuple(range(7)), tuple(range(SLOTS)))


def changed_scores(engine: LlamaCppEnsemble, tail: str) -> list[tuple[int, ...]]:
    """Companies in which the scores of member 0 are other bits than alone."""
    alone = scored(engine, (0,), tail)[0]
    assert alone is not None
    return [others for others in COMPANIES if scored(engine, others, tail)[0] != alone]


def changed_writing(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch, tail: str) -> list[tuple[int, ...]]:
    """Companies in which member 0 writes from other bits than alone: at once, later, or asked on and off."""
    ask = write(engine, monkeypatch, tail)
    anew(engine)
    alone = [ask((0,), count)[0] for count in range(3)]
    changed = []
    for others in COMPANIES:
        anew(engine)
        together = [ask(others, count)[0] for count in range(3)]
        ask(others[1:] or (1,), 3)
        ask(others[::2], 1)
        back = ask((0, *others[2:]), 2)[0]
        if not all(map(np.array_equal, alone, together)) or not np.array_equal(back, alone[2]):
            changed.append(others)
    return changed


@pytest.mark.parametrize("tail", TAILS, ids=["short", "long"])
def test_a_member_has_the_same_bits_alone_and_in_any_company_in_every_file_type(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    """If it breaks, with models in the types that people have a vote depends on other members' records."""
    assert engine._together == SLOTS, "else nobody had company"
    assert changed_scores(engine, tail) == []
    assert changed_writing(engine, monkeypatch, tail) == []


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_need_multiples_of_eight_and_the_check_finds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """If it breaks, the check misses that ragged batches change bits, or it gives up where padding helps."""
    with caplog.at_level(logging.INFO, "langchain_dp.integrations.llama_cpp"), built(folder, kind) as engine:
        assert engine._evaluator.rule.name == EIGHTS.name
        assert [PAIRS.name in text for text in caplog.messages if "change each other's" in text] == [True]
        assert [EIGHTS.name in text for text in caplog.messages if "leave each other's" in text] == [True]
        # Planted: the check was of this rule, but the batches are made by the other one.
        monkeypatch.setattr(engine._evaluator, "rule", PAIRS)
        assert changed_scores(engine, TAILS[0]) != []
        assert changed_writing(engine, monkeypatch, TAILS[0]) != []


def test_ragged_batches_are_caught_under_any_rule(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If it breaks, a mistake in the padding passes the check. Planted: no batch is padded, no logits either."""
    monkeypatch.setattr(BatchRule, "sequences", lambda self, members, rows: members)
    monkeypatch.setattr(BatchRule, "outputs", lambda self, wanted: wanted)
    with built(folder, "Q4_K_M") as engine:
        assert (engine._together, engine._evaluator.rule.name) == (1, ALONE.name)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert changed_scores(engine, TAILS[0]) == []
        assert changed_writing(engine, monkeypatch, TAILS[0]) == []


def test_logits_that_are_not_padded_are_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the last layer, which computes wanted rows only, is a product of few rows. Planted."""
    monkeypatch.setattr(BatchRule, "outputs", lambda self, wanted: wanted)
    with built(folder, "Q4_K_M") as engine:
        assert engine._evaluator.rule.name == ALONE.name


@pytest.mark.parametrize("kind", ["F16", "Q4_K_M"])
def test_every_batch_keeps_the_rule_that_was_checked(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """If it breaks, the check says something about batches that the engine does not make."""
    makers: list[JointEvaluator] = []
    checked = batch_check.company_is_harmless
    monkeypatch.setattr(
        batch_check,
        "company_is_harmless",
        lambda context, evaluator, **sizes: (makers.append(evaluator), checked(context, evaluator, **sizes))[1],
    )
    with built(folder, kind) as engine:
        rule = engine._evaluator.rule
        assert makers[-1] is engine._evaluator is engine._slots.evaluator
        batches = noted(engine._context, monkeypatch)
        ask = write(engine, monkeypatch, TAILS[1])
        engine.warm([prompt(i, shots=1 + i % 4) for i in range(SLOTS)])
        ask(range(SLOTS), 0)
        batches.clear()  # heads and bodies are evaluated alone
        for members in ((0,), (3, 5), (1, 2, 7), range(SLOTS), (11,)):
            ask(members, 3)
            ask(members, 1)
        engine.score_labels([prompt(i, TAILS[1], 1 + i % 4) for i in range(SLOTS)], WORDS)
        engine.score_labels([prompt(3, TAILS[1], 4)], WORDS)
    assert len(batches) > 10
    for batch in batches:
        wanted = sum(row[3] for row in batch)
        sequences = [row[2] for row in batch]
        counts = {sequences.count(at) for at in sequences}
        assert len(counts) == 1
        assert counts.pop() <= rule.longest
        assert len(batch) >= rule.least
        assert len(batch) % rule.multiple == 0
        assert wanted % rule.multiple == 0
        assert wanted == 0 or wanted >= rule.least
        assert sorted(set(sequences)) == list(range(min(sequences), max(sequences) + 1))


def noted(context: LlamaContext, monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """Every batch from here on, row by row."""
    batches: list[list[Row]] = []
    decode = context.decode
    monkeypatch.setattr(context, "decode", lambda rows: (batches.append(list(rows)), decode(rows))[1])
    return batches


def test_padding_is_public_and_leaves_no_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a row that fills a batch holds somebody's token, stays in a cache, or gets an answer."""
    with built(folder, "Q4_K_M") as engine:
        ask = write(engine, monkeypatch, TAILS[0])
        ask(range(SLOTS), 1)
        context, slots = engine._context, engine._slots
        before = {at: context.save(at) for at in range(context.sequences)}
        cells = {at: resident.cells for at, resident in slots.residents.items()}
        at = slots._places[next(key for key in slots._places if key[1] == (3, 4))]
        start = slots.residents[at].tokens
        batches = noted(context, monkeypatch)
        answers = engine.next_tokens([Continuation(prompt(3, TAILS[1], 4), (), 0.003)], PLAIN)  # nobody comes along
        assert len(answers) == 1
        tail = context.tokenize(TAILS[1])
        own = [row for batch in batches for row in batch if row[2] == at]
        assert [(row[0], row[1]) for row in own] == [(token, start + i) for i, token in enumerate(tail)]
        padding = [row for batch in batches for row in batch if row[2] != at]
        assert len(padding) >= 7
        assert [row for row in padding if row[0] != 0 or row[1] != cells.get(row[2], 0)] == []
        cells[at] = start + len(tail)
        assert {i: resident.cells for i, resident in slots.residents.items()} == cells
        after = {i: context.save(i) for i in range(context.sequences)}
        assert [i for i in before if i != at and not np.array_equal(before[i], after[i])] == []


def test_empty_sequences_are_padded_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a lone question writes beside members that nobody asked although there is an empty place."""
    with built(folder, "Q4_K_M") as engine:
        batches = noted(engine._context, monkeypatch)
        ends = dict.fromkeys(range(8), 3)
        found = engine._evaluator._window(8, 8, 1, ends)
        assert sorted(found) == list(range(8, 16))
        assert list(engine._evaluator._window(7, 7, 1, ends)) == list(range(7, 15))
        assert batches == []


def test_on_a_gpu_one_fixed_shape_is_checked_and_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, offloading costs joint evaluation although bits agree, or shapes differ with the company."""
    with built(folder, "Q4_K_M", n_gpu_layers=99) as engine:  # without a GPU llama.cpp takes it and ignores it
        sequences = sequences_for(SLOTS)
        assert engine._evaluator.rule.name == fixed_shape(sequences).name
        assert engine._together == SLOTS
        batches = noted(engine._context, monkeypatch)
        ask = write(engine, monkeypatch, TAILS[0])
        engine.warm([prompt(i) for i in range(SLOTS)])
        ask(range(3), 0)
        batches.clear()
        for members in ((0,), (2, 0), range(3)):
            ask(members, 2)
        engine.score_labels([prompt(i) for i in range(2)], WORDS)
        shapes = {(len(batch), len({row[2] for row in batch}), sum(row[3] for row in batch)) for batch in batches}
        assert (sequences, sequences, sequences) in shapes
        assert {shape[0] for shape in shapes if shape[2]} == {sequences}
        assert changed_scores(engine, TAILS[1]) == []
        assert changed_writing(engine, monkeypatch, TAILS[0]) == []


def test_on_a_gpu_whose_bits_change_members_go_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If it breaks, the check does not decide on a GPU. Planted: hardware whose logits tell how long others are."""
    outputs = LlamaContext.outputs
    lengths: list[int] = []
    decode = LlamaContext.decode

    def noting(self: LlamaContext, rows: Sequence[Row]) -> None:
        lengths.append(sum(row[1] for row in rows))
        decode(self, rows)

    monkeypatch.setattr(LlamaContext, "decode", noting)
    monkeypatch.setattr(LlamaContext, "outputs", lambda self, count: outputs(self, count) * (1 + lengths[-1] * 1e-4))
    with built(folder, "F16", n_gpu_layers=-1) as engine:
        assert (engine._together, engine._evaluator.rule.name) == (1, ALONE.name)
        assert len([record for record in caplog.records if "one at a time" in record.message]) == 1


@pytest.mark.parametrize("rule", [PAIRS, EIGHTS, ALONE, fixed_shape(17)], ids=lambda rule: rule.name)
def test_a_rule_adds_up(rule: BatchRule) -> None:
    """If it breaks, tokens are lost where a tail is cut, or a batch does not have the rows that the rule asks."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.least = 3  # type: ignore[misc]
    for count in range(100):
        assert sum(rule.pieces(count)) == count
        assert all(0 < rows <= rule.longest for rows in rule.pieces(count))
        for rows in set(rule.pieces(count)):
            for members in range(1, 17):
                total = rule.sequences(members, rows) * rows
                assert total >= max(rule.least, members * rows)
                assert total % rule.multiple == 0
                assert total - members * rows < max(rule.multiple, rule.least)
                assert members <= rule.outputs(members) <= max(total, rule.least)
    assert rule.pieces(0) == []


@pytest.mark.parametrize("slots", [1, 2, 7, 8, 9, 16, 31, 255])
def test_there_are_sequences_enough_and_one_that_is_always_public(slots: int) -> None:
    """If it breaks, a batch cannot be padded, or an occupant's memory is overwritten with another's."""
    sequences = sequences_for(slots)
    assert slots < sequences <= 256
    assert slots == 1 or EIGHTS.sequences(slots, 1) <= sequences
