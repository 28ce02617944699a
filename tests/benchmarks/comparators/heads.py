"""A linear head on sentence vectors: trained with private gradients, or on vectors that were noised one by one.

- :func:`dp_sgd`: softmax regression by DP-SGD (Abadi et al. 2016): Poisson batches, gradients clipped one by one,
  Gaussian noise, by dp-accounting's accountant. The owner of all rows trains; the head may be used without limit.
- :func:`noised`: every vector gets Laplace noise before it leaves its author (the local model). DPNR (Lyu et al. 2020)
  and CAPE (Plant et al. 2021) release vectors so, and take a sensitivity of one for a vector whose coordinates are
  scaled to [0, 1]; two of d coordinates differ by d in the L1 norm, which is what is charged here. Both train the
  encoder against attackers besides, which changes no promise and is left out.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from sklearn.linear_model import LogisticRegression

Floats = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]
STEPS, RATE, LEARNING = 200, 0.1, 4.0
"""Of DP-SGD: chosen on the dev rows of SST-2 once, for all data and budgets."""


def unit(vectors: Floats) -> Floats:
    """Rows of length one."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@cache
def noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Standard deviation of the noise of DP-SGD in clips, under replace-one neighbors; 0 for an infinite epsilon."""
    if math.isinf(epsilon):
        return 0.0

    def excess(sigma: float) -> float:
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps))
        return float(accountant.get_epsilon(delta)) - epsilon

    return float(brentq(excess, 0.5, 200.0, xtol=1e-3)) + 1e-3


def dp_sgd(vectors: Floats, classes: Classes, *, count: int, epsilon: float, delta: float, seed: int) -> Floats:
    """Weights of a softmax regression, (d + 1, classes).

    Args:
        vectors: Unit rows, (n, d).
        classes: Of each, from 0.
        count: Number of classes.
        epsilon: Of the whole training; infinity adds no noise.
        delta: Of the same.
        seed: Of batches and noise: a comparison, and no release.
    """
    rng = np.random.default_rng(seed)
    shown = np.hstack([vectors, np.ones((len(vectors), 1))])
    sigma = noise_multiplier(epsilon, delta, RATE, STEPS)
    weights, mean = np.zeros((shown.shape[1], count)), np.zeros((shown.shape[1], count))
    expected = RATE * len(shown)
    for step in range(STEPS):
        batch = rng.random(len(shown)) < RATE
        scores = shown[batch] @ weights
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(shares)), classes[batch]] -= 1
        # The gradient of one row is the product of its vector and its error: so is its length.
        length = np.linalg.norm(shares, axis=1) * np.linalg.norm(shown[batch], axis=1)
        gradient = shown[batch].T @ (shares / np.maximum(length, 1.0)[:, None])
        gradient += sigma * rng.standard_normal(gradient.shape)
        weights -= LEARNING * gradient / expected
        if step >= STEPS // 2:
            mean += weights / (STEPS - STEPS // 2)
    return mean


def accuracy(weights: Floats, vectors: Floats, classes: Classes) -> float:
    """Share of rows whose class scores highest."""
    shown = np.hstack([vectors, np.ones((len(vectors), 1))])
    return float(np.mean((shown @ weights).argmax(axis=1) == classes))


def noised(vectors: Floats, *, epsilon: float, kept: int | None, seed: int, public: Floats) -> Floats:
    """Vectors that each text's author may send, at a pure epsilon against any other text.

    Args:
        vectors: Of the texts, (n, d).
        epsilon: Of one text.
        kept: Principal directions that are kept of them (of public vectors: free); None keeps all coordinates.
        seed: Of the noise.
        public: Vectors of public texts, by whose directions and ranges these are scaled.
    """
    rng = np.random.default_rng(seed)
    centre = public.mean(axis=0)
    directions = np.eye(vectors.shape[1])
    if kept is not None:
        directions = np.linalg.svd(public - centre, full_matrices=False)[2][:kept].T
    known, given = (public - centre) @ directions, (vectors - centre) @ directions
    low, high = np.quantile(known, [0.01, 0.99], axis=0)
    scaled = np.clip((given - low) / (high - low), 0.0, 1.0)
    return np.asarray(scaled + rng.laplace(scale=scaled.shape[1] / epsilon, size=scaled.shape))


def trained_on(vectors: Floats, classes: Classes, test: Floats, truth: Classes) -> float:
    """Accuracy of a plain regression on vectors as they were sent."""
    model = LogisticRegression(max_iter=1000).fit(vectors, classes)
    return float(np.mean(model.predict(test) == truth))
