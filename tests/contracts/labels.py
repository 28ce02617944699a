"""The contract of ``LabelScorer`` as tests. A subclass gives the engine and says what it can do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.canary import CANARY

from contracts.common import TAIL, EngineContract, prompt, unreadable, without_trace
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import LabelScorer, MemberPrompt


class LabelContract(EngineContract):
    """``LabelScorer``."""

    labels = (" good", " bad", " great")
    free = ("Label:", "N/A\nLabel:")

    def rows(self, engine: LabelScorer, members: Sequence[int | MemberPrompt], **options: Any) -> list[Any]:
        """Scores, comparable with ==."""
        prompts = [one if isinstance(one, MemberPrompt) else prompt(one) for one in members]
        rows = engine.score_labels(prompts, self.labels, **options)
        if self.exact:
            return rows
        return [None if row is None else pytest.approx(row, abs=1e-2) for row in rows]

    def test_it_scores_labels(self, engine: Any) -> None:
        """If it breaks, the classifier takes the engine for a chat model."""
        assert isinstance(engine, LabelScorer)
        assert 0 < engine.max_tail_tokens < getattr(engine, "max_prompt_tokens", math.inf)

    def test_rows_keep_the_order_of_the_members(self, engine: Any) -> None:
        """If it breaks, one member's scores are counted as another's."""
        rows = engine.score_labels([prompt(i) for i in range(3)], self.labels)
        assert [len(row) for row in rows] == [3, 3, 3]
        if self.reads:
            assert [max(range(3), key=row.__getitem__) for row in rows] == [0, 1, 2]
        assert rows[0] != rows[1]
        assert self.rows(engine, [2, 1, 0]) == rows[::-1]
        assert self.rows(engine, []) == []

    @pytest.mark.parametrize("free", [(), free], ids=["plain", "calibrated"])
    def test_only_members_that_fail_have_no_row(self, engine: Any, free: tuple[str, ...]) -> None:
        """If it breaks, one record silences or shifts everybody's votes."""
        rows = engine.score_labels([prompt(0), prompt(1)], self.labels, content_free=free)
        assert None not in rows
        crowd: list[int | MemberPrompt] = [0, self.too_long(engine), 1, self.broken()]
        again = self.rows(engine, crowd, content_free=free)
        assert (again[1], again[3]) == (None, None)
        assert [again[0], again[2]] == rows

    def test_scores_hold_nothing_of_the_company(self, engine: Any) -> None:
        """If it breaks, a vote depends on other members' records, and no epsilon we print is true."""
        for free in ((), self.free):
            self.clean(engine)
            (alone,) = engine.score_labels([prompt(0)], self.labels, content_free=free)
            assert self.rows(engine, [1, 2, 0], content_free=free)[2] == alone
            assert self.rows(engine, [6, 0, 9, 10], content_free=free)[1] == alone
            self.clean(engine)
            assert self.rows(engine, [7, self.broken(), 0], content_free=free)[2] == alone

    def test_calibration_is_the_members_own_and_changes_its_row(self, engine: Any) -> None:
        """If it breaks, the option does nothing, or is computed once for all."""
        plain = engine.score_labels([prompt(0), prompt(1)], self.labels)
        rows = engine.score_labels([prompt(0), prompt(1)], self.labels, content_free=self.free)
        shifts = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(plain, rows, strict=True)]
        assert shifts[0] != pytest.approx(shifts[1])
        assert any(abs(shift) > 1e-6 for shift in shifts[0])
        assert self.rows(engine, [0, 1]) == plain

    def test_new_content_under_an_old_key_is_what_scores(self, engine: Any) -> None:
        """If it breaks, a caller's mistake makes deleted records vote, be it through an old calibration only."""
        for free in ((), self.free):
            rows = engine.score_labels([prompt(0), prompt(1)], self.labels, content_free=free)
            changed = dataclasses.replace(prompt(1), member=prompt(0).member)
            assert self.rows(engine, [changed], content_free=free) == rows[1:]

    def test_warm_or_cold_is_the_same(self, engine: Any) -> None:
        """If it breaks, an answer depends on what was asked before."""
        rows = engine.score_labels([prompt(0), prompt(1)], self.labels, content_free=self.free)
        self.clean(engine)
        engine.warm([prompt(1), self.broken(), self.too_long(engine)])
        assert self.rows(engine, [0, 1], content_free=self.free) == rows
        engine.forget(prompt(0).member)
        assert self.rows(engine, [0, 1], content_free=self.free) == rows

    @pytest.mark.parametrize(
        ("prompts", "words", "free"),
        [
            ([prompt(0)], (), ()),
            ([prompt(0)], (" good", " good"), ()),
            ([prompt(0)], (" good", ""), ()),
            ([prompt(0), prompt(1, tail="Other:")], labels, ()),
            ([prompt(0), prompt(1, head="Other.\n")], labels, ()),
            ([prompt(0, tail="")], labels, ()),
            ([prompt(0)], labels, ("",)),
        ],
        ids=["no words", "equal words", "an empty word", "two tails", "two heads", "no tail", "no content-free tail"],
    )
    def test_what_makes_no_sense_is_refused(
        self,
        engine: Any,
        prompts: list[MemberPrompt],
        words: tuple[str, ...],
        free: tuple[str, ...],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """If it breaks, a mistake in the caller turns into silently wrong votes, or its message quotes the records."""
        mine = [dataclasses.replace(one, body=f"{CANARY}\n") for one in prompts]
        without_trace(lambda: engine.score_labels(mine, words, content_free=free), InvalidParameter, caplog)

    def test_a_question_that_is_too_long_is_refused_without_its_text(
        self, engine: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If it breaks, whether a question is accepted depends on the records, or its text is in an exception."""
        long = f"{CANARY} " * (engine.max_tail_tokens + 1)
        for tail, free in ((long, ()), (TAIL, (long,)), *((text, ()) for text in unreadable(engine))):
            mine = [prompt(0, tail=tail)]
            without_trace(
                lambda mine=mine, free=free: engine.score_labels(mine, self.labels, content_free=free),
                InvalidParameter,
                caplog,
            )
