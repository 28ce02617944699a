"""Algorithm 2: when a call is made again, when a prompt is complete, and that it can stop and go on anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from langchain_dp.opt.plan import Written, count_votes, steps
from langchain_dp.ports import Token

END, STOP = 0, 9
Outcome = int | None


def stops(tokens: Sequence[Token]) -> bool:
    return STOP in tokens


def go_on(
    written: Written,
    outcomes: list[Outcome],
    *,
    length: int = 4,
    retries: int = 2,
    stops: Callable[[Sequence[Token]], bool] = stops,
) -> int:
    """Feed the outcomes until the prompt is complete or they are used up; how many calls were asked for."""
    plan = steps(written, max_new_tokens=length, max_retries=retries, end_tokens=frozenset({END}), stops=stops)
    calls = 0
    try:
        next(plan)
        for outcome in outcomes:
            calls += 1
            plan.send(outcome)
    except StopIteration:
        pass
    plan.close()
    return calls


def after(outcomes: list[Outcome], **settings: Any) -> Written:
    written = Written(0)
    go_on(written, outcomes, **settings)
    return written


outcome_lists = st.lists(st.one_of(st.none(), st.sampled_from([END, STOP, 3, 4, 5])), max_size=14)
bounds = st.tuples(st.integers(1, 6), st.integers(0, 3))


def algorithm_2(outcomes: list[Outcome], length: int, most_retries: int) -> tuple[list[int], int, int, str]:
    """Hong et al. 2024, Algorithm 2, in the paper's own shape: (tokens, calls, retries, why it ended)."""
    tokens: list[int] = []
    draws, calls, retries = iter(outcomes), 0, 0
    while len(tokens) < length:
        for attempt in range(2):
            if attempt and retries == most_retries:
                return tokens, calls, retries, "retries"
            drawn = next(draws, "none left")
            if isinstance(drawn, str):
                return tokens, calls, retries, ""
            calls += 1
            retries += attempt
            if drawn is not None:
                break
        else:
            return tokens, calls, retries, "bottom"
        if drawn == END:
            return tokens, calls, retries, "end"
        tokens.append(drawn)
        if drawn == STOP:
            return tokens, calls, retries, "stop"
    return tokens, calls, retries, "length"


@given(outcome_lists, bounds)
def test_it_is_algorithm_2(outcomes: list[Outcome], bound: tuple[int, int]) -> None:
    """If it breaks, the plan releases another text, or makes other calls, than the algorithm that is accounted for."""
    written = after(outcomes, length=bound[0], retries=bound[1])
    found = (written.tokens, written.calls, written.retries, written.ended)
    assert found == algorithm_2(outcomes, *bound)
    assert not written.ended or written.pending == (written.ended == "retries")
    assert len(written.tokens) + written.bottoms <= written.calls <= len(written.tokens) + written.bottoms + 1


@given(outcome_lists, bounds, st.lists(st.integers(0, 14), max_size=4))
def test_a_run_that_stops_anywhere_goes_on_as_if_it_had_not(
    outcomes: list[Outcome], bound: tuple[int, int], cuts: list[int]
) -> None:
    """If it breaks, a run that was interrupted gets another text, another retry, or a call that nobody charged."""
    whole = after(outcomes, length=bound[0], retries=bound[1])
    written, at = Written(0), 0
    for cut in [*sorted(cuts), len(outcomes)]:
        part = outcomes[at : max(cut, at)]
        at += len(part)
        go_on(written, part, length=bound[0], retries=bound[1])
        written = Written(**dataclasses.asdict(written))  # as the journal keeps it
    assert written == whole


@given(outcome_lists, bounds)
def test_what_comes_next_hangs_on_released_values_only(outcomes: list[Outcome], bound: tuple[int, int]) -> None:
    """If it breaks, the plan looks at more than what was released, and so tells of the votes."""
    asked: list[list[Token]] = []

    def watched(tokens: Sequence[Token]) -> bool:
        asked.append(list(tokens))
        return STOP in tokens

    written = after(outcomes, length=bound[0], retries=bound[1], stops=watched)
    assert asked == [written.tokens[:i] for i in range(1, len(asked) + 1)]
    assert {field.name for field in dataclasses.fields(written)} == {
        "message", "tokens", "calls", "bottoms", "retries", "pending", "ended",
    }  # fmt: skip


def test_abstentions_are_no_votes_and_numbers_of_any_kind_are() -> None:
    """If it breaks, members that could not be asked are counted, or those who answer with numpy's numbers are not."""
    assert count_votes([3, None, 4, 3, None]) == {3: 2, 4: 1}
    assert count_votes([None, None]) == count_votes([]) == {}
    assert count_votes([np.int64(7), 7, "a", None, 2.5]) == {7: 2, "a": 1}  # type: ignore[list-item]  # on purpose
