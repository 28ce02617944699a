"""The clipped sum: what one member can move, to the last integer, and the law that is drawn."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import ClippedSum

NOISE = ClippedSum.clipped(3.0, members=4, tokens=5)
PUBLIC = np.log([0.6, 0.3, 0.1])


def law(noise: ClippedSum, public: object, members: object) -> list[Fraction]:
    """The exact law of one draw, as fractions."""
    found: list[list[Fraction]] = []

    def written_down(rng: object, base: Fraction, exponents: list[int], factors: list[int]) -> int:
        least = min(exponents)
        weights = [factor * base ** (x - least) for x, factor in zip(exponents, factors, strict=True)]
        found.append([weight / sum(weights) for weight in weights])
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("langchain_dp.mechanisms.clipped_sum.draw", written_down)
        noise.release(public, members)  # type: ignore[arg-type]
    return found[0]


def spread(first: list[Fraction], second: list[Fraction]) -> float:
    """Range of the log-ratios of two laws: their bounded-range parameter."""
    ratios = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    return max(ratios) - min(ratios)


ROWS = st.lists(st.one_of(st.floats(-60, 0), st.sampled_from([math.nan, math.inf, -math.inf])), min_size=3, max_size=3)


@settings(max_examples=150, deadline=None)
@given(old=ROWS, new=ROWS, others=st.lists(ROWS, max_size=3))
def test_a_replaced_record_moves_a_token_by_no_more_than_its_event(
    old: list[float], new: list[float], others: list[list[float]]
) -> None:
    """If it breaks, a token costs more than it is charged, for some log-probabilities however odd."""
    before, after, without = (law(NOISE, PUBLIC, members) for members in ([*others, old], [*others, new], others))
    assert spread(before, after) <= NOISE.event.epsilon0 + 1e-9
    assert spread(before, without) <= NOISE.event.epsilon0 / 2 + 1e-9


def test_the_canary_reaches_the_bound_and_would_show_half_the_charge() -> None:
    """If it breaks, the noise is larger than it need be, or the test could not see zero-out's C/s under replace-one."""
    up, down = [math.inf, -math.inf, -math.inf], [-math.inf, math.inf, math.inf]
    moved = spread(law(NOISE, PUBLIC, [up]), law(NOISE, PUBLIC, [down]))
    assert moved == pytest.approx(NOISE.event.epsilon0, rel=1e-6)
    assert moved > 1.9 * ClippedSum.clipped(1.5, members=4, tokens=5).event.epsilon0


def test_who_takes_part_or_fails_changes_the_weight_of_nobody() -> None:
    """If it breaks, who takes part changes the weight of others, a failure moves the text, or an empty round shows."""
    row = [0.0, -9.0, -9.0]
    one, three = law(NOISE, PUBLIC, [row]), law(NOISE, PUBLIC, [row] * 3)
    step = spread(one, law(NOISE, PUBLIC, []))
    assert spread(three, law(NOISE, PUBLIC, [])) == pytest.approx(3 * step, rel=1e-9)
    nothing = law(NOISE, PUBLIC, [])
    assert law(NOISE, PUBLIC, [None, [math.nan] * 3]) == nothing
    assert [float(share) for share in nothing] == pytest.approx([0.6, 0.3, 0.1], rel=1e-9)


def test_temperature_is_the_one_that_is_accounted_for() -> None:
    """If it breaks, another temperature is charged, or a low one gives any token that members want beyond the clip."""
    hot = dataclasses.replace(NOISE, temperature=2.0)
    assert hot.clip == pytest.approx(2 * NOISE.clip), "at the same price"
    shares = np.exp(PUBLIC / 2)
    assert [float(share) for share in law(hot, PUBLIC, [])] == pytest.approx(list(shares / shares.sum()), rel=1e-9)
    sharp = ClippedSum.clipped(5.0, members=60, tokens=8, temperature=0.1)
    public = np.log([0.9, 1e-3, 1e-5, 1e-5])
    wanted = np.log([1e-6, 0.3, 0.2, 0.2])  # the last three are moved by more than the clip
    chances = [float(chance) for chance in law(sharp, public, [wanted] * 60)]
    assert chances[1] > 0.999
    assert chances[2] == pytest.approx(1e-20 * chances[1], rel=1e-6), "a hundredth, to the power of ten"


def test_clip_and_charge_say_the_same() -> None:
    """If it breaks, the clip that is shown is not the one that is drawn by and charged."""
    for clip in np.random.default_rng(0).uniform(0.01, 9, 50):
        noise = ClippedSum.clipped(float(clip), members=7, tokens=5, temperature=0.7)
        assert noise.clip == pytest.approx(clip)
        assert noise.event.epsilon0 == pytest.approx(4 * clip / (7 * 0.7))


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"clip": 0.0}, "clip"), ({"clip": math.nan}, "clip"), ({"clip": 1e6}, "clip"), ({"members": 0}, "members"),
     ({"temperature": 0.0}, "temperature"), ({"tokens": 0}, "tokens"), ({"sampling_probability": 2.0}, "sampling")],
)  # fmt: skip
def test_what_promises_nothing_is_refused(fields: dict[str, float], named: str) -> None:
    """If it breaks, a value out of bounds reaches the noise."""
    with pytest.raises(InvalidParameter, match=named):
        ClippedSum.clipped(**{"clip": 3.0, "members": 4, "tokens": 5, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("public", "members", "named"),
    [([], [], "public"), ([math.nan, 0.0], [], "public"), ([-math.inf, 0.0], [], "public"),
     (PUBLIC, [[0.0, 0.0]], "each candidate once")],
)  # fmt: skip
def test_rows_that_are_none_or_of_another_length_are_refused(public: object, members: object, named: str) -> None:
    """If it breaks, a broken public model is taken for one that says something, or scores are out of step."""
    with pytest.raises(InvalidParameter, match=named):
        NOISE.release(public, members)  # type: ignore[arg-type]
