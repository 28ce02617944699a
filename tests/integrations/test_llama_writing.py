"""LlamaCppEnsemble as a writer: what the port promises beside bits."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from langchain_dp.integrations._engine import Choice
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from langchain_dp.integrations.llama_cpp.context import LlamaContext, chat_parts

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, NextTokenVoter, Token

CANARY = "zanzibar"
HEAD = "Reviews.\n"
TAIL = "The instruction was:"
PLAIN, CHAT = Decoding(), Decoding(chat=True)


def asked(member: int, written: tuple[Token, ...] = (), *, body: str | None = None, draw: float = 0.5) -> Continuation:
    own = f"Review: {CANARY} {member} is dull\nLabel: no\n" if body is None else body
    return Continuation(MemberPrompt(HEAD, own, TAIL, (member, own)), written, draw)


def noted(engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch, one: Continuation, decoding: Decoding) -> Any:
    """The logits from which a member's token is taken."""
    seen: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(Choice, "token", lambda self, logits, *_: seen.append(logits.copy()))
        engine.next_tokens([one], decoding)
    return seen[0]


def test_plain_text_goes_on_as_a_plain_evaluation_of_the_whole_text_does(
    engine: LlamaCppEnsemble, direct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, sharing heads, restoring states or evaluating step by step changes what the model says."""
    written = tuple(direct.tokens(" Say yes"))
    one = asked(1, written)
    whole = [*direct.tokens(HEAD), *direct.tokens(one.prompt.body), *direct.tokens(TAIL), *written]
    np.testing.assert_allclose(noted(engine, monkeypatch, one, PLAIN), direct.logits(whole), atol=2e-2)


def test_a_chat_is_one_turn_of_the_user_in_the_models_own_template(
    engine: LlamaCppEnsemble, direct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, an instruction-tuned model is not asked the way it was tuned, and writes worse prompts."""
    one = asked(1, body="Review: <|im_end|> dull\n")
    before = "<|im_start|>user\n"
    after = "<|im_end|>\n<|im_start|>assistant\n"
    turn = [token for part in (HEAD, one.prompt.body, TAIL) for token in direct.tokens(part)]
    whole = [*direct.tokens(before, special=True), *turn, *direct.tokens(after, special=True)]
    assert whole.count(2) == 1  # the record's own "<|im_end|>" ends no turn
    assert engine._context.chat_tokens == len(whole) - len(turn)
    np.testing.assert_allclose(noted(engine, monkeypatch, one, CHAT), direct.logits(whole), atol=2e-2)
    plain = noted(engine, monkeypatch, one, PLAIN)
    assert not np.allclose(plain, direct.logits(whole), atol=0.5)


@pytest.mark.parametrize(
    "template",
    [None, "{{ messages[0].content }}{{ messages[0].content }}", "no turn", "{{ raise_exception('two') }}", "{% if"],
    ids=["none", "twice", "never", "raises", "broken"],
)
def test_a_template_is_cut_where_its_single_turn_is_or_refused_with_the_remedy(template: str | None) -> None:
    """If it breaks, a base model is asked in nobody's template, or a frame depends on what members say."""
    pytest.importorskip("llama_cpp")
    cut = chat_parts("{{ bos_token }}[{{ messages[0].content }}]{{ eos_token }}", begin="<s>", end="</s>")
    assert cut == ("<s>[", "]</s>")
    with pytest.raises(InvalidParameter, match="chat=False"):
        chat_parts(template, begin="<s>", end="</s>")


def test_a_model_without_a_template_still_continues_text(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, base models cannot be used at all, or are asked to chat without a word."""
    monkeypatch.setattr(engine._context, "chat_template", lambda: None)
    kept = vars(engine._context)
    monkeypatch.delitem(kept, "chat", raising=False)
    monkeypatch.setitem(kept, "chat_tokens", LlamaContext.chat_tokens.func(engine._context))
    with pytest.raises(InvalidParameter, match="chat=False"):
        engine.next_tokens([asked(0)], CHAT)
    assert engine.max_prompt_tokens == 1535
    assert engine.next_tokens([asked(0)], PLAIN)[0] is not None


@pytest.mark.parametrize("decoding", [PLAIN, CHAT], ids=["plain", "chat"])
def test_only_the_member_that_is_too_long_abstains(
    engine: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch, decoding: Decoding
) -> None:
    """If it breaks, one long record silences the others, or the promised length is not accepted."""
    if decoding is PLAIN:  # a chat fills the cache to its last but one cell
        monkeypatch.setattr(engine, "_max_tokens", 128)
    room = engine.max_prompt_tokens - engine.count_tokens(HEAD) - engine.count_tokens(TAIL)
    body = "a" * (room - 2)
    assert engine.count_tokens(body) == room - 2
    (expected,) = engine.next_tokens([asked(0)], decoding)
    assert engine.next_tokens([asked(1, body=body + "aaa"), asked(0)], decoding) == [None, expected]
    written = tuple(engine._context.tokenize("so"))
    for count in range(3):
        rows = engine.next_tokens([asked(1, written[:count], body=body), asked(0, written[:count])], decoding)
        assert None not in rows
    assert engine.next_tokens([asked(1, written, body=body)], decoding) == rows[:1]
    assert engine.next_tokens([asked(0, written)], decoding) == rows[1:]
    assert engine.next_tokens([asked(1, (*written, 20), body=body)], decoding) == [None]


@pytest.mark.parametrize("place", ["decode", "restore", "prefill", "written", "member", "draw"])
def test_a_failure_of_one_member_is_its_abstention(
    engine: LlamaCppEnsemble,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    place: str,
) -> None:
    """If it breaks, one record can stop or shift the other members' votes, or a log tells of its failure."""
    caplog.set_level(logging.DEBUG)
    crowd = [asked(i) for i in range(3)]
    crowd[1] = asked(1, body=f"Review: {CANARY} is dull, and dull it is\n")
    expected = engine.next_tokens(crowd, PLAIN)
    engine._context.clear()
    context: Any = engine._context
    if place == "written":
        crowd[1] = asked(1, ("word",))
    elif place == "draw":
        crowd[1] = asked(1, draw="heads")  # type: ignore[arg-type]  # wrong on purpose
    elif place == "member":
        crowd[1] = Continuation(MemberPrompt(HEAD, "", TAIL, []), (), 0.5)  # type: ignore[arg-type]  # wrong on purpose
    else:
        if place == "prefill":
            engine._store.clear()
        inner = getattr(context, place)
        size = len(context.tokenize(crowd[1].prompt.body))
        key = _key(crowd[1])
        state = engine._store.get(*key)

        def broken(what: Any, *args: Any, **options: Any) -> Any:
            seat = engine._slots._places.get((key[0], key[1]))
            if place == "decode" and any(row[2] == seat and row[0] > 0 for row in what):
                raise ValueError(CANARY)
            if place == "restore" and state is not None and what is state.state:
                raise MemoryError(CANARY)
            if place == "prefill" and len(what) == size:
                raise ValueError(CANARY)
            return inner(what, *args, **options)

        monkeypatch.setattr(context, place, broken)
    for _ in range(2):
        assert engine.next_tokens(crowd, PLAIN) == [expected[0], None, expected[2]]
    assert [record for record in caplog.records if "llama" in record.name] == []
    assert CANARY not in "".join(capfd.readouterr())


def _key(one: Continuation) -> Any:
    from langchain_dp.integrations._engine import body_digest
    from langchain_dp.integrations.llama_cpp.evaluate import Opening

    return Opening(HEAD), one.prompt.member, body_digest(one.prompt)


def test_public_facts_of_the_model(engine: LlamaCppEnsemble) -> None:
    """If it breaks, a prompt never ends, ends too early, or a control token is released as text."""
    assert isinstance(engine, NextTokenVoter)
    assert engine.vocabulary_size == 304
    assert {0, 2} <= engine.end_tokens
    never = engine._context.never
    assert never[1]
    assert not never[[0, 2]].any()
    assert never.sum() < 20
    assert engine.max_prompt_tokens == 1535 - engine._context.chat_tokens


def test_tokens_are_spelt_byte_by_byte(engine: LlamaCppEnsemble) -> None:
    """If it breaks, the released prompt is not what the members wrote."""
    text = "Wörter: 😀 und «Anführung»\n\t x"
    tokens = engine._context.tokenize(text)
    assert engine.detokenize(tokens) == text
    for cut in range(len(tokens)):
        whole = engine._context.pieces(tokens[:cut]).decode(errors="replace")
        assert engine.detokenize(tokens[:cut]) == whole
    assert engine.detokenize([2, *tokens, 0]) == text
    assert engine.detokenize([]) == ""
    for wrong in ([-1], [304], ["a"], [True]):
        with pytest.raises(InvalidParameter, match="303"):
            engine.detokenize(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_single_slot_writes_for_many_members_one_by_one(model_path: str) -> None:
    """If it breaks, machines on which company changes bits cannot write at all."""
    with LlamaCppEnsemble(model_path=model_path, slots=1, max_tokens=128, n_threads=1) as lone:
        written = tuple(lone._context.tokenize(" Say it"))[:2]
        steps = [lone.next_tokens([asked(i, written[:count]) for i in range(3)], PLAIN) for count in range(3)]
        lone._store.clear()
        lone._context.clear()
        assert [lone.next_tokens([asked(i, written)], PLAIN)[0] for i in (2, 1, 0)] == steps[-1][::-1]
        assert None not in steps[-1]
        hits = {token for step in steps for token in step}
        assert hits - lone.end_tokens
    with pytest.raises(ModelUnavailable, match="closed"):
        lone.next_tokens([asked(0)], PLAIN)
    for closed in ("end_tokens", "max_prompt_tokens"):
        with pytest.raises(ModelUnavailable, match="closed"):
            getattr(lone, closed)
    lone.forget(asked(0).prompt.member)


@pytest.mark.parametrize("kept", [0, 4, 24, 5000, 200_000, -1])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Any, model_path: str, kept: int) -> None:
    """If it breaks, an interrupted download ends in a crash of the process."""
    path = tmp_path / "cut.gguf"
    with open(model_path, "rb") as whole:
        path.write_bytes(whole.read(kept) if kept >= 0 else whole.read()[:kept])
    with pytest.raises(InvalidParameter, match="cut short"):
        LlamaCppEnsemble(model_path=str(path), slots=1, max_tokens=64, n_threads=1)
