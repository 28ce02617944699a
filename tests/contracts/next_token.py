"""The contract of ``NextTokenVoter`` as tests. A subclass named Test* gives the engine by a fixture of that name.

Whatever an engine is made of, a member gets what its own prompt, its written tokens, its coin and public parameters
say.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.canary import CANARY

from contracts.common import WORDS, EngineContract, asked, prompt, unreadable, without_trace
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, NextTokenVoter, Token

GREEDY = Decoding()
DRAWN = Decoding(temperature=1.5)
STEPS = 4
"""Tokens of a short text."""


class NextTokenContract(EngineContract):
    """``NextTokenVoter``."""

    chats = True
    """The model carries a chat template."""

    def tokens(
        self, engine: NextTokenVoter, ask: Sequence[Continuation], decoding: Decoding = GREEDY
    ) -> list[Token | None]:
        """What the engine writes."""
        return engine.next_tokens(ask, decoding)

    def text(
        self, engine: NextTokenVoter, member: int | MemberPrompt, steps: int, decoding: Decoding = GREEDY
    ) -> tuple[Token, ...]:
        """Tokens that one member writes alone."""
        written: tuple[Token, ...] = ()
        for _ in range(steps):
            (token,) = engine.next_tokens(asked([member], written), decoding)
            assert token is not None
            if token in engine.end_tokens:
                break
            written += (token,)
        return written

    def test_it_is_an_engine(self, engine: Any) -> None:
        """If it breaks, the optimizer refuses the engine, or fails in the middle of a paid run."""
        assert isinstance(engine, NextTokenVoter)
        assert engine.name
        assert engine.vocabulary_size > len(engine.end_tokens) > 0
        assert engine.max_prompt_tokens > 0

    def test_answers_keep_the_order_of_the_members(self, engine: Any) -> None:
        """If it breaks, one member's vote is counted as another's."""
        members = [0, 1, 2, 3, 4, 5]
        answers = self.tokens(engine, asked(members))
        assert len(set(answers)) > 1
        if self.reads:
            assert [engine.detokenize([token]).strip() for token in answers if token is not None] == list(WORDS)
        turned = self.tokens(engine, asked(members[::-1]))
        assert turned == answers[::-1]
        assert self.tokens(engine, asked([2, 2])) == [answers[2]] * 2

    def test_nobody_asked_is_nothing_answered(self, engine: Any) -> None:
        """If it breaks, a release over an empty sample raises, which tells that it was empty."""
        assert self.tokens(engine, []) == []

    def test_only_a_member_that_is_too_long_abstains(self, engine: Any) -> None:
        """If it breaks, one long record silences or shifts everybody's votes."""
        answers = self.tokens(engine, asked([0, 1]))
        assert None not in answers
        crowd = asked([0, self.too_long(engine), 1])
        assert self.tokens(engine, crowd) == [answers[0], None, answers[1]]

    def test_only_a_member_that_cannot_be_evaluated_abstains(
        self, engine: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If it breaks, one record stops a vote that was paid for, or a log tells that some member failed."""
        answers = self.tokens(engine, asked([0, 1]))
        caplog.set_level(logging.DEBUG)
        assert self.tokens(engine, asked([0, self.broken(), 1])) == [answers[0], None, answers[1]]
        assert "no text" not in caplog.text

    def test_at_temperature_0_neither_time_nor_coin_matters(self, engine: Any) -> None:
        """If it breaks, a greedy vote is noise that nobody accounted for."""
        first = self.tokens(engine, asked([0, 1, 2], draw=0.0))
        assert self.tokens(engine, asked([0, 1, 2], draw=0.999)) == first
        self.clean(engine)
        assert self.tokens(engine, asked([0, 1, 2], draw=0.5)) == first

    def test_the_coin_of_each_member_picks_its_token(self, engine: Any) -> None:
        """If it breaks, members share a coin, so that one record's coin moves many votes."""
        draws = [0.02, 0.3, 0.55, 0.8, 0.98, 0.3]
        crowd = [dataclasses.replace(asked([0])[0], draw=draw) for draw in draws]
        answers = self.tokens(engine, crowd, DRAWN)
        assert len(set(answers)) > 2
        assert answers[1] == answers[5]
        assert self.tokens(engine, crowd[::-1], DRAWN) == answers[::-1]
        assert [self.tokens(engine, [one], DRAWN)[0] for one in crowd[:3]] == answers[:3]

    def test_a_banned_token_is_not_taken_by_anybody(self, engine: Any) -> None:
        """If it breaks, a token that the template cannot hold is voted for and paid for."""
        answers = self.tokens(engine, asked([0, 1, 2]))
        assert answers[0] is not None
        banned = Decoding(banned=frozenset({answers[0]}))
        again = self.tokens(engine, asked([0, 1, 2]), banned)
        assert answers[0] not in again
        assert [b for a, b in zip(answers, again, strict=True) if a != answers[0]] == [
            a for a in answers if a != answers[0]
        ]
        self.clean(engine)
        assert self.tokens(engine, asked([0, 1, 2])) == answers

    def test_a_banned_end_is_not_taken(self, engine: Any) -> None:
        """If it breaks, texts end before their preset length although that was ruled out."""
        hot = Decoding(temperature=30.0, banned=engine.end_tokens)
        crowd = [dataclasses.replace(asked([0])[0], draw=i / 12) for i in range(12)]
        assert not set(self.tokens(engine, crowd, hot)) & engine.end_tokens

    def test_no_control_token_is_taken_at_any_temperature(self, engine: Any) -> None:
        """If it breaks, a turn of the conversation ends inside a prompt that is being written."""
        hot = Decoding(temperature=30.0)
        crowd = [dataclasses.replace(asked([0])[0], draw=i / 40) for i in range(40)]
        taken = {token for token in self.tokens(engine, crowd, hot) if token is not None}
        assert len(taken) > 10
        assert all(engine.detokenize([token]) != "" for token in taken - engine.end_tokens)

    def test_a_penalty_weighs_what_was_written_and_nothing_else(self, engine: Any) -> None:
        """If it breaks, prompts repeat themselves, or the penalty punishes words of private examples."""
        strong = Decoding(repetition_penalty=1e6)
        assert self.tokens(engine, asked([0, 1, 2]), strong) == self.tokens(engine, asked([0, 1, 2]))
        seen = 0
        for member in range(3):
            written = self.text(engine, member, 3 * STEPS)
            repeated = [i for i in range(1, len(written)) if written[i] in written[:i]]
            for i in repeated[:2]:
                seen += 1
                assert self.tokens(engine, asked([member], written[:i]), strong)[0] not in written[:i]
        assert seen > 0

    def test_company_does_not_matter(self, engine: Any) -> None:
        """If it breaks, a vote depends on other members' records, and no epsilon we print is true."""
        for decoding in (GREEDY, DRAWN):
            me = asked([0], draw=0.37)[0]
            short = asked([1, 2, 3], draw=0.8)
            long = [dataclasses.replace(one, prompt=prompt(6 + i)) for i, one in enumerate(short)]
            self.clean(engine)
            alone = self.tokens(engine, [me], decoding)[0]
            assert alone is not None
            assert self.tokens(engine, [*short, me], decoding)[3] == alone
            assert self.tokens(engine, [me, *long], decoding)[0] == alone
            assert self.tokens(engine, [long[0], me, *asked([self.too_long(engine)])], decoding)[1] == alone
            self.clean(engine)
            assert self.tokens(engine, [*long, me, *asked([self.broken()])], decoding)[3] == alone

    def test_what_was_written_is_read(self, engine: Any) -> None:
        """If it breaks, every token is the first one, or members at different places mix up."""
        texts = [self.text(engine, member, STEPS) for member in range(3)]
        assert any(len(set(text)) > 1 for text in texts)
        self.clean(engine)
        crowd = [asked([member], text[:member])[0] for member, text in enumerate(texts)]
        together = self.tokens(engine, crowd)
        assert [token for token in together if token not in engine.end_tokens] == [
            text[member] for member, text in enumerate(texts) if len(text) > member
        ]
        back = [asked([member], text[:1])[0] for member, text in enumerate(texts)]
        assert [self.tokens(engine, [one])[0] for one in back] == self.tokens(engine, back)
        other = self.tokens(engine, asked([0], texts[1]))
        assert other == self.tokens(engine, asked([0, 1], texts[1]))[:1]

    def test_tokens_become_their_text(self, engine: Any) -> None:
        """If it breaks, the released prompt is not what was voted for."""
        tokens = self.text(engine, 0, STEPS)
        assert engine.detokenize(tokens)
        assert engine.detokenize([]) == ""
        assert engine.detokenize([*tokens, *engine.end_tokens]) == engine.detokenize(tokens)
        if self.reads:
            assert engine.detokenize(tokens).strip().startswith(WORDS[0])
            parts = [engine.detokenize([token]) for token in tokens]
            assert "".join(parts) == engine.detokenize(tokens)

    def test_forgetting_changes_no_answer(self, engine: Any) -> None:
        """If it breaks, an answer depends on what was asked before, or a forgotten member is not evaluated anew."""
        answers = self.tokens(engine, asked([0, 1, 2]))
        engine.forget(prompt(1).member)
        engine.forget("nobody", prompt(0).member)
        engine.forget()
        assert self.tokens(engine, asked([0, 1, 2])) == answers

    def test_new_content_under_an_old_key_is_what_answers(self, engine: Any) -> None:
        """If it breaks, a caller's mistake makes deleted records vote."""
        one, two = prompt(0), prompt(1)
        answers = self.tokens(engine, asked([one, two]))
        assert self.tokens(engine, asked([dataclasses.replace(two, member=one.member)])) == answers[1:]

    def test_public_text_that_fills_the_context_is_refused(self, engine: Any) -> None:
        """If it breaks, every member abstains because of a public text, and noise is paid for."""
        for text in unreadable(engine):
            with pytest.raises(InvalidParameter):
                self.tokens(engine, asked([prompt(0, tail=text)]))

    def test_public_parts_have_to_be_equal(self, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
        """If it breaks, a mistake in the caller turns into wrong votes, or its message quotes the records."""
        mine = prompt(0, body=f"{CANARY}\n")
        for other in (prompt(1, tail="Other:"), prompt(1, head="Another.\n"), prompt(1, response_prefix="Then")):
            without_trace(lambda other=other: self.tokens(engine, asked([mine, other])), InvalidParameter, caplog)

    def test_a_text_of_the_records_shows_nowhere(
        self, engine: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """If it breaks, a notebook, a log file or a terminal holds private records."""
        caplog.set_level(logging.DEBUG)
        mine = asked([prompt(0, body=f"Label: {CANARY}\n"), 1])
        cold = repr(engine)
        assert None not in self.tokens(engine, mine)
        assert repr(engine) == cold
        shown = f"{engine!r} {mine!r} {mine[0].prompt!r} {caplog.text} {''.join(capfd.readouterr())}"
        assert CANARY not in shown.replace(repr(mine[0].prompt.member), "")  # a key is the caller's

    @pytest.mark.parametrize("chat", [False, True])
    def test_a_text_goes_on_from_how_it_begins(self, engine: Any, chat: bool) -> None:
        """If it breaks, a chat model says what it is going to write, and is cut before it does."""
        if chat and not self.chats:
            pytest.skip("no chat template")
        rule = Decoding(chat=chat)
        begun = [prompt(member, response_prefix=" Read the review and") for member in range(3)]
        plain = [self.text(engine, member, 3, rule) for member in range(3)]
        answers = [self.text(engine, one, 3, rule) for one in begun]
        assert answers != plain
        self.clean(engine)
        crowd = [asked([one], text[:1])[0] for one, text in zip(begun, answers, strict=True)]
        together = self.tokens(engine, crowd, rule)
        assert [self.tokens(engine, [one], rule)[0] for one in crowd] == together
        assert [self.text(engine, member, 3, rule) for member in range(3)] == plain

    def test_a_chat_is_another_prompt(self, engine: Any) -> None:
        """If it breaks, an instruction-tuned model continues text although it was to answer."""
        chat = Decoding(chat=True)
        if not self.chats:
            with pytest.raises(InvalidParameter, match="chat"):
                self.tokens(engine, asked([0]), chat)
            return
        plain = [self.text(engine, member, 2) for member in range(3)]
        answers = [self.text(engine, member, 2, chat) for member in range(3)]
        assert answers != plain
        assert [self.text(engine, member, 2) for member in range(3)] == plain
        crowd = [asked([member], text[:1])[0] for member, text in enumerate(answers)]
        self.clean(engine)
        together = self.tokens(engine, crowd, chat)
        assert [self.tokens(engine, [one], chat)[0] for one in crowd] == together
