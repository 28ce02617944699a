"""The contract of ``NextTokenScorer`` as tests: see ``next_token.py`` for how a suite is used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY

from contracts.common import HEAD, TAIL, EngineContract, asked, prompt, unreadable, without_trace
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, MemberPrompt, NextTokenScorer, Token, TokenScores

PUBLIC = MemberPrompt(HEAD, "", TAIL, "public")


class TokenScoreContract(EngineContract):
    """``NextTokenScorer``."""

    whole = True
    """The engine knows the whole vocabulary. False where a server lists its most probable tokens only."""

    def scores(
        self, engine: Any, members: Sequence[int | MemberPrompt], written: Sequence[Token] = (), candidates: int = 30
    ) -> TokenScores:
        """What the engine says."""
        public = Continuation(PUBLIC, tuple(written), 0.0)
        made: TokenScores = engine.score_next_token(public, asked(members, written), candidates=candidates)
        return made

    def same(self, one: Any, other: Any) -> bool:
        """Equal bits, or nearly so where that is a server's promise."""
        if one is None or other is None:
            return one is other
        return (
            np.array_equal(one, other) if self.exact else np.allclose(one, other, atol=1e-2)
        )  # kept prefixes move them by up to .006

    def test_it_scores_next_tokens(self, engine: Any) -> None:
        """If it breaks, a synthesizer refuses the engine."""
        assert isinstance(engine, NextTokenScorer)

    def test_candidates_are_the_public_models_and_ends_are_among_them(self, engine: Any) -> None:
        """If it breaks, who is asked changes what can be written, or a text cannot end."""
        found = self.scores(engine, [0, 1, 2])
        nobody = self.scores(engine, [])
        assert found.tokens == nobody.tokens
        assert self.same(found.public, nobody.public)
        assert len(set(found.tokens)) == len(found.tokens)
        assert set(engine.end_tokens) <= set(found.tokens)
        assert len(set(found.tokens) - set(engine.end_tokens)) <= 30
        fewer = self.scores(engine, [], candidates=3).tokens
        assert fewer[:3] == found.tokens[:3]

    def test_log_probabilities_are_those_of_the_whole_vocabulary(self, engine: Any) -> None:
        """If it breaks, a member's score hangs on which candidates were asked for."""
        many, few = self.scores(engine, [0], candidates=200), self.scores(engine, [0], candidates=3)
        for wide, narrow in ((many.public, few.public), (many.members[0], few.members[0])):
            assert wide is not None
            assert narrow is not None
            assert self.same(wide[:3], narrow[:3])
            assert np.isfinite(wide).all()
            if self.whole:
                assert np.exp(wide[: len(many.tokens) - len(engine.end_tokens)]).sum() <= 1 + 1e-9
        assert list(few.public[:3]) == sorted(few.public[:3], reverse=True)

    def test_company_changes_no_score(self, engine: Any) -> None:
        """If it breaks, one record moves the scores of others, and no epsilon we print is true."""
        alone = self.scores(engine, [0])
        for crowd in ([0, 1, 2, 3], [0, prompt(7), prompt(8)], [0, self.too_long(engine)]):
            found = self.scores(engine, crowd)
            assert found.tokens == alone.tokens
            assert self.same(found.public, alone.public)
            assert self.same(found.members[0], alone.members[0])
        self.clean(engine)
        assert self.same(self.scores(engine, [5, 4, 0]).members[2], alone.members[0])

    def test_members_differ_from_the_public_model_by_their_own_text(self, engine: Any) -> None:
        """If it breaks, a member's record is not read, or another one's is."""
        found = self.scores(engine, [0, 1])
        first, second = found.members
        assert first is not None
        assert second is not None
        assert not np.allclose(first, found.public, atol=1e-6)
        turned = self.scores(engine, [1, 0])
        assert self.same(turned.members[0], second)
        assert self.same(turned.members[1], first)

    def test_who_cannot_be_evaluated_has_no_scores(self, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
        """If it breaks, one record stops a text that was paid for, or a log tells that a member failed."""
        caplog.set_level(logging.DEBUG)
        alone = self.scores(engine, [0])
        found = self.scores(engine, [0, self.too_long(engine), self.broken()])
        assert found.members[1] is found.members[2] is None
        assert self.same(found.members[0], alone.members[0])
        assert "no text" not in caplog.text

    def test_what_was_written_is_read(self, engine: Any) -> None:
        """If it breaks, every token is the first one."""
        start = self.scores(engine, [0])
        written = [token for token in start.tokens if token not in engine.end_tokens][:2]
        later = self.scores(engine, [0], written)
        assert not np.array_equal(start.public, later.public)
        self.clean(engine)
        assert self.same(self.scores(engine, [3, 0], written).members[1], later.members[0])

    def test_what_cannot_be_one_call_is_refused(self, engine: Any) -> None:
        """If it breaks, members at different places of a text are added up."""
        public = Continuation(PUBLIC, (), 0.0)
        token = self.scores(engine, []).tokens[0]
        with pytest.raises(InvalidParameter, match="written"):
            engine.score_next_token(public, asked([0], [token]), candidates=3)
        with pytest.raises(InvalidParameter, match="tails"):
            engine.score_next_token(public, asked([prompt(0, tail="Other:")]), candidates=3)
        with pytest.raises(InvalidParameter, match="candidates"):
            engine.score_next_token(public, [], candidates=0)

    def test_a_public_prompt_that_fills_the_context_is_refused(self, engine: Any) -> None:
        """If it breaks, a question that is too long is called an outage, or stops a text that is paid for."""
        for text in unreadable(engine):
            with pytest.raises(InvalidParameter):
                engine.score_next_token(asked([prompt(0, body="", tail=text)])[0], [], candidates=3)

    def test_errors_hold_nothing_of_what_was_asked(self, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
        """If it breaks, an exception or the log carries a record."""
        public, member = Continuation(PUBLIC, (), 0.0), prompt(0, body=CANARY, tail=CANARY)
        without_trace(lambda: engine.score_next_token(public, asked([member]), candidates=3), InvalidParameter, caplog)
