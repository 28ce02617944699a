"""Resampling under zero-out: one pair of distributions does not dominate all that can happen."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from langchain_dp.accounting import Neighbors, NoisyMaxEvent, epsilon, profiles

SIGMA, RATE = 1.2060, 40 / 6920


def test_a_slot_that_votes_the_same_is_not_covered_by_one_that_votes_otherwise() -> None:
    """If it breaks, the pair with two different votes would dominate, and our bound could be smaller.

    Ghost against record: where the other records of the slot vote as the record does, the slot's vote is there in one
    world and, with probability q, gone in the other: the ordinary Poisson pair, whose profile at epsilon = 0.01 is
    three times as large as that of the pair with two different votes.
    """
    at = np.array([0.01])
    apart = profiles.noisy_max_resample_zero_out(at, sigma=SIGMA, q=RATE, forward=False, same_vote=False)
    # brute force on a grid: P = (1-q) N(0) + q N(-1) (vote gone), Q = N(0)
    x = np.arange(-12 * SIGMA, 12 * SIGMA, 1e-4)
    here, gone = (np.exp(-0.5 * ((x - c) / SIGMA) ** 2) / (SIGMA * math.sqrt(2 * math.pi)) for c in (0.0, -1.0))
    same = np.maximum((1 - RATE) * here + RATE * gone - math.exp(0.01) * here, 0).sum() * 1e-4
    assert same > 3 * apart[0]
    ours = profiles.noisy_max_resample_zero_out(at, sigma=SIGMA, q=RATE, forward=False)
    assert ours[0] >= same * (1 - 1e-6)


def test_two_adaptive_questions_exceed_the_single_pair() -> None:
    """If it breaks, an asker who picks the second question after the first answer is undercharged.

    Exact two-step game in the direction ghost-free against ghost: first the pair with different votes; then, where the
    loss so far exceeds the target, a question on which the slot votes the same.
    """
    target = 0.001
    apart = functools.partial(profiles.noisy_max_resample_zero_out, sigma=SIGMA, q=RATE, same_vote=False)
    apart_f, apart_b = functools.partial(apart, forward=True), functools.partial(apart, forward=False)
    unit = functools.partial(profiles.gaussian, distance=1.0, sigma=SIGMA)
    same_f = functools.partial(profiles.poisson_add, unit, RATE)
    same_b = functools.partial(profiles.poisson_remove, unit, RATE)
    # law of the first loss, from the second difference of its profile in g = e^epsilon
    grid = np.linspace(-0.5, 3.0, 7001)
    g = np.exp(grid)
    delta = profiles.at_any_epsilon(apart_f, apart_b, grid)
    slopes = np.diff(delta) / np.diff(g)
    mass_q = np.diff(slopes)  # mass of the ratio P/Q near each inner point, under Q
    mass_p = mass_q * g[1:-1]
    left = target - grid[1:-1]
    fixed = float((mass_p * profiles.at_any_epsilon(apart_f, apart_b, left)).sum())
    second = np.maximum(profiles.at_any_epsilon(apart_f, apart_b, left), profiles.at_any_epsilon(same_f, same_b, left))
    adaptive = float((mass_p * second).sum())
    assert adaptive > fixed * 1.001
    event = NoisyMaxEvent(SIGMA, RATE, "resample")
    covered = epsilon([(event, 2)], adaptive, neighbors=Neighbors.REPLACE_SPECIAL)
    assert covered == pytest.approx(target, rel=0.2) or covered > target
