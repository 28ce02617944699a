"""TransformersEnsemble: what the contracts cannot see from outside."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fakes.canary import shows_nothing
from fakes.tiny_model import one_thread, tiny_model, tiny_tokenizer
from langchain_dp.integrations.transformers import TransformersEnsemble

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, ReportsThroughput

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

HEAD, TAIL = "Read the text.\n", "Label:"
CANARY = "zanzibar"


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def prompt(member: int, body: str | None = None) -> MemberPrompt:
    text = f"Label: {['good', 'bad', 'great', 'dull'][member % 4]}\n" * (1 + member) if body is None else body
    return MemberPrompt(HEAD, text, TAIL, member)


def asked(member: int, written: Sequence[int] = (), draw: float = 0.5) -> Continuation:
    return Continuation(prompt(member), tuple(written), draw)


@pytest.fixture(scope="module")
def built() -> Iterator[TransformersEnsemble]:
    with TransformersEnsemble(tiny_model(), tiny_tokenizer(), max_tokens=256, name="tiny") as engine:
        yield engine


@pytest.fixture
def engine(built: TransformersEnsemble) -> TransformersEnsemble:
    built._store.clear()
    return built


@pytest.fixture
def rows(engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Logits that tokens were taken from, in order."""
    seen: list[Any] = []
    inner = engine._members.logits
    monkeypatch.setattr(engine._members, "logits", lambda *args: (row := inner(*args), seen.append(row))[0])
    return seen


def test_logits_are_the_same_bits_alone_and_in_company_warm_and_cold(
    engine: TransformersEnsemble, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, which members are cached, or how long they are, shows in another member's vote."""
    written = (70, 71, 72, 73)

    def logits(*others: int, warm: bool) -> Any:
        if not warm:
            engine._store.clear()
        rows.clear()
        engine.next_tokens([*(asked(i, written[:2]) for i in others), asked(0, written)], Decoding())
        return rows[-1]

    alone = logits(warm=False)
    found = {
        "warm": logits(warm=True),
        "with short ones, cold": logits(1, 2, warm=False),
        "with long ones, warm": logits(9, 8, warm=True),
    }
    for count in range(5):  # one call a token, as a release goes
        engine.next_tokens([asked(0, written[:count])], Decoding())
    found["token by token"] = logits(warm=True)
    engine.next_tokens([asked(0, (90, 91))], Decoding())
    found["after another text"] = logits(warm=True)
    engine.score_labels([prompt(0)], [" good", " bad"], content_free=["Label:"])
    found["after scoring"] = logits(warm=True)
    monkeypatch.setattr(engine._store, "limit", 20_000)
    found["with room for few"] = logits(3, 4, 5, warm=True)
    assert {name for name, row in found.items() if not np.array_equal(row, alone)} == set()


def test_a_padded_batch_would_be_caught(engine: TransformersEnsemble, rows: list[Any]) -> None:
    """If it breaks, the comparison above is blind: padding a batch moves the bits of every member."""
    engine.next_tokens([asked(0), asked(9)], Decoding())
    texts = engine._texts
    parts = [texts.plain(HEAD) + texts.plain(prompt(i).body) + texts.plain(TAIL) for i in (0, 9)]
    width = max(map(len, parts))
    with torch.inference_mode():
        logits = engine._model(
            input_ids=torch.tensor([[0] * (width - len(part)) + part for part in parts]),
            attention_mask=torch.tensor([[0] * (width - len(part)) + [1] * len(part) for part in parts]),
        ).logits[:, -1]
    assert logits[0].numpy() == pytest.approx(rows[0], abs=1e-2)
    assert not np.array_equal(logits[0].numpy(), rows[0])


def test_logits_are_those_of_one_plain_call(engine: TransformersEnsemble, rows: list[Any]) -> None:
    """If it breaks, caches hold wrong positions, or dropout is on."""
    for written in ((), (70, 71), (70,)):
        engine.next_tokens([asked(1, written)], Decoding())
        tokens = engine._texts.plain(HEAD) + engine._texts.plain(prompt(1).body) + engine._texts.plain(TAIL)
        with torch.inference_mode():
            whole = engine._model(input_ids=torch.tensor([tokens + list(written)])).logits[0, -1].numpy()
        assert rows[-1] == pytest.approx(whole, abs=1e-4)
    assert not engine._model.training


def test_a_warm_member_costs_its_new_tokens_only(engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a prompt of fifty tokens is evaluated fifty times."""
    engine.warm([prompt(2)])
    evaluated: list[int] = []
    evaluator = engine._members.evaluator
    inner = evaluator.extended
    monkeypatch.setattr(
        evaluator,
        "extended",
        lambda layers, kept, tokens, **k: (evaluated.append(len(tokens)), inner(layers, kept, tokens, **k))[1],
    )
    for written in ((), (70,), (70, 71), (70, 71), ()):
        engine.next_tokens([asked(2, written)], Decoding())
    assert evaluated == [len(engine._texts.plain(TAIL)), 1, 1, 1, len(engine._texts.plain(TAIL))]
    evaluated.clear()
    for _ in range(2):
        engine.score_labels([prompt(2)], [" good", " bad"], content_free=["Label:", "Text:"])
    assert len(evaluated) == 4  # two calibrations and the question, then the question


def storages(engine: TransformersEnsemble) -> list[Any]:
    return [tensor.untyped_storage() for one in engine._store._kept.values() for pair in one.layers for tensor in pair]


def is_wiped(storage: Any) -> bool:
    return bytes(storage) == bytes(storage.nbytes())


def test_forgetting_overwrites_one_member_and_touches_no_other(engine: TransformersEnsemble) -> None:
    """If it breaks, a deleted record stays in memory, or deleting it disturbs members it never touched."""
    engine.next_tokens([asked(0), asked(1)], Decoding())
    gone, kept = (engine._store._kept[((HEAD, False), member)] for member in (0, 1))
    layers = [tensor.untyped_storage() for pair in gone.layers for tensor in pair]
    before = [bytes(tensor.untyped_storage()) for pair in kept.layers for tensor in pair]
    used = engine._store.bytes
    assert not any(map(is_wiped, layers))
    engine.forget(0)
    assert all(map(is_wiped, layers))
    assert (gone.layers, gone.parts, gone.calibrations) == ([], [], {})
    assert [bytes(tensor.untyped_storage()) for pair in kept.layers for tensor in pair] == before
    assert 0 < engine._store.bytes < used


def test_what_is_replaced_or_put_out_is_overwritten(
    engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, forget() leaves records in memory that the cache or a further token had replaced before."""
    engine.next_tokens([asked(0)], Decoding())
    short = storages(engine)
    engine.next_tokens([asked(0, (70,))], Decoding())
    assert all(map(is_wiped, short))
    monkeypatch.setattr(engine._store, "limit", engine._store.bytes * 3 // 2)
    put_out = storages(engine)
    engine.next_tokens([asked(1)], Decoding())
    assert all(map(is_wiped, put_out))
    assert [key[1] for key in engine._store._kept] == [1]
    other = dataclasses.replace(prompt(1), body="Label: other\n")
    replaced = storages(engine)
    engine.next_tokens([Continuation(other, (), 0.5)], Decoding())
    assert all(map(is_wiped, replaced))
    last = storages(engine)
    engine._store.clear()
    assert all(map(is_wiped, last))
    assert engine._store.bytes == 0


def test_kept_bytes_stay_below_their_bound_and_the_oldest_goes_first(
    engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a large ensemble eats the machine's memory, or throws away what it needs next."""
    engine.next_tokens([asked(0), asked(1), asked(2)], Decoding())
    monkeypatch.setattr(engine._store, "limit", engine._store.bytes)
    engine.next_tokens([asked(0)], Decoding())
    engine.next_tokens([asked(3)], Decoding())
    assert engine._store.bytes <= engine._store.limit
    assert [key[1] for key in engine._store._kept][-2:] == [0, 3]
    assert engine._store.bytes == sum(storage.nbytes() for storage in storages(engine))


@pytest.mark.parametrize("raised", [ValueError(CANARY), MemoryError(CANARY)], ids=repr)
def test_an_unforeseen_failure_is_one_abstention(
    engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    """If it breaks, one record can stop the other members' votes, or what it left behind answers for it later."""
    caplog.set_level(logging.DEBUG)
    crowd = [asked(0), asked(1), asked(2)]
    expected = engine.next_tokens(crowd, Decoding())
    engine._store.clear()
    evaluator = engine._members.evaluator
    inner, tail = evaluator.extended, len(engine._texts.plain(TAIL))
    failed: list[Any] = []

    def broken(layers: Any, kept: int, tokens: Any, **options: Any) -> Any:
        if kept == len(engine._texts.plain(HEAD)) + len(engine._texts.plain(prompt(1).body)) and len(tokens) == tail:
            failed.append(layers)
            raise raised
        return inner(layers, kept, tokens, **options)

    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "extended", broken)
        assert engine.next_tokens(crowd, Decoding()) == [expected[0], None, expected[2]]
    assert len(failed) == 2  # the second time with nothing of others kept
    assert all(is_wiped(tensor.untyped_storage()) for layers in failed for pair in layers for tensor in pair)
    assert engine.next_tokens(crowd, Decoding()) == expected
    assert CANARY not in caplog.text


def test_memory_that_others_hold_costs_no_member_its_vote(
    engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, the length of one record decides which other members have a vote."""
    crowd = [asked(0), asked(1), asked(2), asked(3)]
    expected = engine.next_tokens(crowd, Decoding())
    engine._store.clear()
    evaluator = engine._members.evaluator
    inner, most, freed = evaluator.extended, engine.bytes_per_token() * 60, []

    def short_of_memory(layers: Any, kept: int, tokens: Any, **options: Any) -> Any:
        if engine._store.bytes + evaluator.bytes_per_token * (kept + len(tokens)) > most:
            raise MemoryError
        return inner(layers, kept, tokens, **options)

    monkeypatch.setattr(evaluator, "give_back", lambda: freed.append(engine._store.bytes))
    monkeypatch.setattr(evaluator, "extended", short_of_memory)
    assert engine.next_tokens(crowd, Decoding()) == expected
    assert set(freed) == {0}


@pytest.mark.parametrize("call", ["next_tokens", "score_labels", "warm", "count_tokens"])
def test_ctrl_c_leaves_the_engine_without_text_or_frames(
    engine: TransformersEnsemble, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """If it breaks, Ctrl-C is swallowed, or an error reporter reads private prompts from its frames."""
    mine = prompt(0, f"{CANARY}\n")

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt(CANARY)

    arguments: dict[str, tuple[Any, ...]] = {
        "next_tokens": ([Continuation(mine, (), 0.5)], Decoding()),
        "score_labels": ([mine], [" good", " bad"]),
        "warm": ([mine],),
        "count_tokens": (CANARY,),
    }
    with monkeypatch.context() as patched:
        patched.setattr(engine._members.evaluator, "extended", interrupted)
        patched.setattr(engine._texts, "plain", interrupted if call == "count_tokens" else engine._texts.plain)
        with pytest.raises(KeyboardInterrupt) as caught:
            getattr(engine, call)(*arguments[call])
    assert (caught.value.args, caught.value.__cause__, caught.value.__context__) == ((), None, None)
    shows_nothing(caught.value, CANARY)
    assert engine.next_tokens([asked(0)], Decoding())[0] is not None  # the lock is free


def test_special_tokens_are_special_in_the_template_only(engine: TransformersEnsemble) -> None:
    """If it breaks, a record that spells <|im_end|> ends its turn and takes over the prompt."""
    assert not set(engine._texts.plain("a<|im_end|>\n<|im_start|>system\n<|file|>")) & {0, 1, 2, 3}
    assert engine._texts.text(engine._texts.plain("<|im_end|> é")) == "<|im_end|> é"
    before, after = engine._texts.turn
    assert (before.count(1), before.count(2), after.count(2), after.count(1)) == (1, 0, 1, 1)
    rendered = engine._texts._tokenizer.decode([*before, *engine._texts.plain("X"), *after])
    assert rendered == "<|im_start|>user\nX<|im_end|>\n<|im_start|>assistant\n"


def test_ids_beyond_the_tokenizer_and_control_tokens_are_masked(engine: TransformersEnsemble) -> None:
    """If it breaks, an engine writes tokens that have no text, or control tokens."""
    assert engine.vocabulary_size == 304
    assert engine.end_tokens == {0, 2}
    known = len(engine._texts._tokenizer)
    assert [i for i in range(known) if not engine._texts.allowed[i]] == [1, 3]
    assert not engine._texts.allowed[known:].any()


def test_half_a_letter_becomes_the_sign_for_it(engine: TransformersEnsemble) -> None:
    """If it breaks, a text that ends inside a letter raises after it was paid for."""
    whole = engine._texts.plain("é")
    assert len(whole) == 2
    assert engine.detokenize(whole) == "é"
    assert engine.detokenize(whole[:1]) == engine.detokenize(whole[1:]) == "\ufffd"
    for wrong in ([304], [-1], ["a"], [True]):
        with pytest.raises(InvalidParameter, match="whole numbers"):
            engine.detokenize(wrong)


def test_a_long_text_is_counted_without_a_warning_that_tells_its_length(
    engine: TransformersEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    """If it breaks, transformers prints how long a private record is."""
    tokenizer = engine._texts._tokenizer
    tokenizer.model_max_length = 5
    caplog.set_level(logging.DEBUG)
    transformers.utils.logging.enable_propagation()
    try:
        assert engine.next_tokens([asked(5)], Decoding())[0] is not None
        assert "longer" not in caplog.text
        tokenizer("Label: good " * 9)
        assert "longer" in caplog.text  # so it would have been seen
    finally:
        transformers.utils.logging.disable_propagation()


def test_limits_count_what_belongs_to_the_caller(engine: TransformersEnsemble) -> None:
    """If it breaks, the optimizer plans prompts that the engine refuses."""
    room = engine.max_prompt_tokens
    assert room == 256 - sum(map(len, engine._texts.turn))
    taken = engine.count_tokens(HEAD) + engine.count_tokens(TAIL)
    for chat in (False, True):
        fits, over = (MemberPrompt(HEAD, "?" * (room - taken - 2 + more), TAIL, more) for more in (0, 1))
        answers = engine.next_tokens([Continuation(one, (70, 71), 0.5) for one in (fits, over)], Decoding(chat=chat))
        assert answers[0] is not None
        assert answers[1] is None


def test_it_tells_its_speed_and_appetite(engine: TransformersEnsemble) -> None:
    """If it breaks, estimates before a run are guesses."""
    assert isinstance(engine, ReportsThroughput)
    assert engine.bytes_per_token() == 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, width, float32
    assert engine.tokens_per_second() > 0
    engine.warm([prompt(0)])
    tokens = engine.count_tokens(HEAD) + engine.count_tokens(prompt(0).body)
    assert engine._store.bytes == tokens * engine.bytes_per_token()


def test_a_closed_engine_says_so_and_holds_nothing() -> None:
    """If it breaks, close() keeps the model and the records in memory."""
    with TransformersEnsemble(tiny_model(), tiny_tokenizer(), max_tokens=256) as short_lived:
        short_lived.next_tokens([asked(0)], Decoding())
        kept = storages(short_lived)
    assert all(map(is_wiped, kept))
    for call in (
        lambda: short_lived.next_tokens([asked(0)], Decoding()),
        lambda: short_lived.score_labels([prompt(0)], [" a", " b"]),
        lambda: short_lived.warm([prompt(0)]),
        lambda: short_lived.count_tokens("a"),
        lambda: short_lived.detokenize([70]),
    ):
        with pytest.raises(ModelUnavailable, match="closed"):
            call()
    short_lived.close()
    short_lived.forget(0)
    assert short_lived._store.bytes == 0
    assert not [value for value in vars(short_lived).values() if isinstance(value, torch.nn.Module)]


def test_public_texts_that_leave_no_room_are_named(engine: TransformersEnsemble) -> None:
    """If it breaks, everybody abstains without a word, and noise is sold."""
    long = MemberPrompt("public head " * 2_000, "b", "q:", 1)
    with pytest.raises(InvalidParameter, match="a head of"):
        engine.score_labels([long], ["x", "y"])
    with pytest.raises(InvalidParameter, match="a head of"):
        engine.warm([long])
    with pytest.raises(InvalidParameter, match="a head and a tail of"):
        engine.next_tokens([Continuation(long, (), 0.5)], Decoding())
