"""Measures eta on a table, and finds the eta that reaches a target, from public texts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import cache
from importlib import resources
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainc

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import NearestVector, sharded
from langchain_dp.mechanisms.metric_exponential import distances
from langchain_dp.mechanisms.metric_noise import checked_eta
from langchain_dp.rapt.posterior import ExactInversion, Floats, Ids, SimulatedInversion, guessable, running_words
from langchain_dp.rapt.privatize import Mechanism
from langchain_dp.rapt.vocabulary import Vocabulary

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SAMPLE = 500  # running words whose probabilities are computed
_POPULATION = 3_000  # running words whose frequencies the attacker knows. Each distinct word takes a pass
_DIGITS = 4  # of a returned eta, so that the same setting has one value on every machine
_LEAST_KNOWN = 20


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Effect of one setting on the running words of public texts.

    Args:
        table: Name of the vocabulary.
        mechanism: "laplace" or "exponential".
        eta: Privacy loss per unit of distance and token.
        target: The calibration target, in words.
        replacement: Probability that a word is replaced by another.
        interval: Its 95% interval.
        unchanged: Quantiles of the probability to stay unchanged: (share of words, upper bound).
        inversion: Share of words guessed by an attacker who knows their frequencies, simulated for "laplace".
        inversion_interval: Its 95% interval.
        blind: Share guessed without the release.
        neighbor_distance: Mean distance of a word to its nearest neighbor.
        texts: Description of the texts.

    Examples:
        >>> calibration = sanitizer.calibration()
        >>> calibration.replacement, calibration.inversion  # words that change, and that an attacker guesses
    """

    table: str
    mechanism: Mechanism
    eta: float
    target: str
    replacement: float
    interval: tuple[float, float]
    unchanged: tuple[tuple[float, float], ...]
    inversion: float
    inversion_interval: tuple[float, float]
    blind: float
    neighbor_distance: float
    texts: str

    @property
    def neighbor_loss(self) -> float:
        """Mean loss between nearest neighbors, in nats."""
        return self.eta * self.neighbor_distance

    def __str__(self) -> str:
        quantiles = ", ".join(f"{chance:.2f} ({share:.0%} of words)" for share, chance in self.unchanged)
        replaced, guessed = (
            f"{value:.3f} (95%: {low:.3f} to {high:.3f})"
            for value, (low, high) in ((self.replacement, self.interval), (self.inversion, self.inversion_interval))
        )
        rows = [
            ("table, mechanism", f"{self.table}, {self.mechanism}"),
            ("eta", f"{self.eta:g} nats per unit of distance, for {self.target}"),
            ("words replaced", replaced),
            ("N_w, unchanged, at most", quantiles),
            ("words guessed", f"{guessed}; {self.blind:.3f} without the release"),
            (
                "nearest neighbors",
                f"{self.neighbor_distance:.3g} apart on average: {self.neighbor_loss:.3g} nats between the two",
            ),
            ("measured on", self.texts),
        ]
        return "\n".join(f"{name:<24} {value}" for name, value in rows)


def calibrate(
    vocabulary: Vocabulary,
    *,
    target_replacement: float | None = None,
    inversion: float | None = None,
    eta: float | None = None,
    mechanism: Mechanism = "exponential",
    texts: Sequence[str] | None = None,
    threads: int | None = None,
) -> Calibration:
    """Find the eta that reaches one target, and measure it.

    Args:
        vocabulary: Public table.
        target_replacement: Share of running words that are replaced by another, in (0, 1).
        inversion: Bound on the share of running words that an attacker guesses, in (0, 1).
        eta: An eta to measure, without a target.
        mechanism: "laplace" or "exponential".
        texts: PUBLIC texts like those to be privatized. None: a page of English.
        threads: Threads to work with.

    Raises:
        InvalidParameter: Not exactly one target is given, it is unreachable on this table, or too few words are in it.

    Examples:
        >>> calibration = calibrate(load("glove"), target_replacement=0.5)
        >>> calibration.eta
        4.063
        >>> TextPrivatizer(load("glove"), calibration.eta, mechanism="exponential")
    """
    name, value = _one_target(target_replacement=target_replacement, inversion=inversion, eta=eta)
    validate.one_of("mechanism", mechanism, get_args(Mechanism))
    population, described = _running_words(vocabulary, texts)
    sample = _systematic(population, _SAMPLE)
    if len(population) > _POPULATION:
        population = np.concatenate([_systematic(population, _POPULATION - len(sample)), sample])
    curve: ExponentialCurve | LaplaceCurve
    attack: ExactInversion | SimulatedInversion
    if mechanism == "laplace":
        curve = LaplaceCurve(vocabulary.table, sample, np.random.default_rng(0), threads)
        attack = SimulatedInversion(population, sample, vocabulary, threads)
    else:
        curve = exact = ExponentialCurve(vocabulary.table, sample, threads, others=np.unique(population))
        attack = ExactInversion(population, vocabulary, exact.log_norm, threads)
    near = float(curve.nearest.mean())
    reached: dict[str, Callable[[float], float]] = {
        "target_replacement": lambda x: 1 - float(curve.unchanged(x).mean()),
        "inversion": lambda x: float(attack.guessed(x).mean()),
    }
    chosen = value
    if name != "eta":
        scale = (1 / near if near > 0 else 1.0) * vocabulary.dimension
        chosen = float(f"{_root(name, value, reached[name], scale):.{_DIGITS}g}")
    guessed = attack.guessed(chosen)
    while name == "inversion" and guessed.mean() > value:
        chosen = float(Decimal(f"{chosen:.{_DIGITS}g}").next_minus(Context(prec=_DIGITS)))  # it was rounded up
        guessed = attack.guessed(chosen)
    chances = curve.unchanged(chosen)
    return Calibration(
        table=vocabulary.name,
        mechanism=mechanism,
        eta=chosen,
        target="a given eta" if name == "eta" else f"{name}={value:g}",
        replacement=1 - float(chances.mean()),
        interval=_interval(1 - chances, curve.error(chosen)),
        unchanged=tuple((share, float(np.quantile(chances, share))) for share in QUANTILES),
        inversion=float(guessed.mean()),
        inversion_interval=_interval(guessed, 0.0),
        blind=attack.blind,
        neighbor_distance=near,
        texts=described,
    )


@cache
def english_texts() -> tuple[str, ...]:
    lines = (resources.files("langchain_dp") / "sample" / "english.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["text"] for line in lines)


def _one_target(**targets: float | None) -> tuple[str, float]:
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        raise InvalidParameter(f"Expected one of {', '.join(targets)} to be given, got {sorted(given) or 'none'}.")
    name, value = next(iter(given.items()))
    if name == "eta":
        return name, checked_eta(value)
    return name, validate.number(name, value, above=0.0, below=1.0)


def _running_words(vocabulary: Vocabulary, texts: Sequence[str] | None) -> tuple[Ids, str]:
    described = "the page of English that is built in"
    if texts is None:
        texts = english_texts()
    elif isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InvalidParameter("Expected texts= to be a list of strings. Give [text].")
    else:
        described = f"{len(texts):,} given texts"
    ids = running_words(vocabulary, texts)
    known = guessable(vocabulary, ids)
    distinct = len(np.unique(known))
    if len(known) < _LEAST_KNOWN or distinct < 2:
        raise InvalidParameter(
            f"Expected texts= to hold at least {_LEAST_KNOWN} running words of the table, got {len(known)} of "
            f"{len(ids)}. Give public texts like those to be privatized."
        )
    share = len(known) / len(ids)
    described += f": {len(ids):,} running words, {share:.1%} of them in the table, {distinct:,} distinct"
    return np.sort(known), described


def _systematic(values: Ids, count: int) -> Ids:
    places = (np.arange(count) + 0.5) * len(values) / count
    return np.asarray(values[places.astype(np.int64)])


def _root(name: str, target: float, reached: Callable[[float], float], scale: float) -> float:
    low, high = math.log(1e-4 * scale), math.log(1e3 * scale)
    at_low, at_high = reached(math.exp(low)), reached(math.exp(high))
    if not min(at_low, at_high) < target < max(at_low, at_high):
        raise InvalidParameter(
            f"Expected {name}={target!r} to be reachable on this table and these texts: "
            f"between {min(at_low, at_high):.4g} and {max(at_low, at_high):.4g}."
        )
    return math.exp(brentq(lambda x: reached(math.exp(x)) - target, low, high, xtol=1e-4))


def _interval(chances: Floats, error: float) -> tuple[float, float]:
    half = 1.96 * math.hypot(float(chances.std(ddof=1)) / math.sqrt(len(chances)), error)
    mean = float(chances.mean())
    return max(0.0, mean - half), min(1.0, mean + half)


_DIRECTIONS = 8  # per word. Five times as many for a frequent one
_ROWS = 32
_COLUMNS = 2048
_BINS = 4096


class LaplaceCurve:
    """The probability that a word stays unchanged under noise, as a function of eta.

    Along a direction v the nearest word of x + l v is x while l < l* = min_w |w - x|^2 / (2 v.(w - x))_+. The length l
    is Gamma(d, 1/eta), so P(unchanged | eta) = E_v[P(d, eta l*)], P the lower regularized gamma function.
    """

    def __init__(self, table: NearestVector, ids: Ids, rng: np.random.Generator, threads: int | None = None) -> None:
        self._dimension = table.vectors.shape[1]
        distinct, self._which, counts = np.unique(ids, return_inverse=True, return_counts=True)
        self._shares = counts / len(ids)
        nearest = np.empty(len(distinct))
        self._reach: list[tuple[Ids, Floats]] = []  # places among the distinct words, l* by direction
        frequent = counts >= _DIRECTIONS
        for places, number in ((np.flatnonzero(~frequent), _DIRECTIONS), (np.flatnonzero(frequent), 5 * _DIRECTIONS)):
            reach, nearest[places] = self._measure(table, distinct[places], number, rng, threads)
            self._reach.append((places, reach))
        self.nearest = nearest[self._which]

    def _measure(
        self, table: NearestVector, ids: Ids, number: int, rng: np.random.Generator, threads: int | None
    ) -> tuple[Floats, Floats]:
        directions = rng.standard_normal((len(ids), number, self._dimension))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        blocks = [slice(start, start + _ROWS) for start in range(0, len(ids), _ROWS)]
        parts = list(sharded(lambda block: _reach(table, ids[block], directions[block]), blocks, threads))
        if not parts:
            return np.empty((0, number)), np.empty(0)
        return np.concatenate([reach for reach, _ in parts]), np.concatenate([nearest for _, nearest in parts])

    def unchanged(self, eta: float) -> Floats:
        chances = np.empty(len(self._shares))
        for places, reach in self._reach:
            chances[places] = gammainc(self._dimension, eta * reach).mean(axis=1)
        return np.asarray(chances[self._which])

    def error(self, eta: float) -> float:
        variance = 0.0
        for places, reach in self._reach:
            spread = gammainc(self._dimension, eta * reach).var(axis=1, ddof=1) / reach.shape[1]
            variance += float(np.sum(self._shares[places] ** 2 * spread))
        return math.sqrt(variance)


def _reach(table: NearestVector, ids: Ids, directions: Floats) -> tuple[Floats, Floats]:
    """Return l*, (words, directions), and the distance to the nearest other word."""
    points = table.vectors[ids]
    flat = directions.reshape(-1, directions.shape[2]).astype(np.float32)
    here = np.einsum("ikd,id->ik", directions, points).astype(np.float32)
    inverse = np.zeros(directions.shape[:2], dtype=np.float32)  # largest 1/l* so far
    nearest = np.full(len(ids), np.inf)
    for start in range(0, len(table.vectors), _COLUMNS):
        rows = slice(start, start + _COLUMNS)
        block = table.vectors[rows]
        apart = _squared(points, block, table.squares[ids], table.squares[rows])
        apart[:, ~table.allowed[rows]] = np.inf
        inside = np.flatnonzero((start <= ids) & (ids < start + len(block)))
        apart[inside, ids[inside] - start] = np.inf
        nearest = np.minimum(nearest, np.sqrt(apart.min(axis=1)))
        # Between words of one vector, the earlier one in the table wins every tie.
        same, other = np.divmod(np.flatnonzero(apart == 0), len(block))
        inverse[same[start + other < ids[same]]] = np.inf
        apart[same, other] = np.inf
        ahead = (flat @ block.T).reshape(*inverse.shape, -1)
        ahead -= here[:, :, None]
        ahead *= np.divide(np.float32(2.0), apart, out=apart)[:, None, :]
        inverse = np.maximum(inverse, ahead.max(axis=2))
    with np.errstate(divide="ignore"):
        return 1.0 / np.abs(inverse.astype(np.float64)), nearest  # a maximum of zeros may be -0.0


def _squared(
    points: NDArray[np.float32], block: NDArray[np.float32], here: Floats, there: Floats
) -> NDArray[np.float32]:
    squares = here.astype(np.float32)[:, None] + there.astype(np.float32)
    apart = points @ block.T
    apart *= -2
    apart += squares
    i, j = np.divmod(np.flatnonzero(apart < np.float32(1e-2) * squares), apart.shape[1])
    apart[i, j] = np.square(points[i] - block[j]).sum(axis=1)
    return apart


class ExponentialCurve:
    """The curve of the exponential mechanism, 1 / sum_w exp(-(eta/2) |x - w|)."""

    def __init__(
        self, table: NearestVector, ids: Ids, threads: int | None = None, *, others: Ids | None = None
    ) -> None:
        distinct = np.unique(ids if others is None else np.concatenate([ids, others]))
        self._ids, self._which = distinct, np.searchsorted(distinct, ids)
        width = 2.001 * float(np.sqrt(table.squares.max())) / _BINS
        blocks = [distinct[start : start + _ROWS] for start in range(0, len(distinct), _ROWS)]
        parts = list(sharded(lambda block: _histogram(table, block, width), blocks, threads))
        counts, means = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        used = np.flatnonzero(counts.any(axis=0))  # few pairs of words are near the largest distance
        self._counts, self._means = counts[:, used], means[:, used]
        self.nearest = np.concatenate([part[2] for part in parts])[self._which]

    def unchanged(self, eta: float) -> Floats:
        return np.asarray(np.exp(-self._log_norms(eta))[self._which])

    def log_norm(self, ids: Ids, eta: float) -> Floats:
        return np.asarray(self._log_norms(eta)[np.searchsorted(self._ids, ids)])

    def _log_norms(self, eta: float) -> Floats:
        return np.asarray(np.log1p((self._counts * np.exp((-eta / 2) * self._means)).sum(axis=1)))

    def error(self, eta: float) -> float:
        return 0.0


def _histogram(table: NearestVector, ids: Ids, width: float) -> tuple[Floats, Floats, Floats]:
    points = table.vectors[ids].astype(np.float64)
    shape = (len(ids), _BINS + 1)  # the last bin takes excluded words
    lines = np.arange(shape[0])[:, None] * shape[1]
    counts, sums = np.zeros(shape), np.zeros(shape)
    nearest = np.full(len(ids), np.inf)
    for start in range(0, len(table.vectors), _COLUMNS):
        rows = slice(start, start + _COLUMNS)
        apart = distances(table, points, rows)
        bins = np.minimum((apart / width).astype(np.int64), _BINS - 1)
        left_out = (ids[:, None] == np.arange(start, start + apart.shape[1])) | ~table.allowed[rows]
        bins[left_out] = _BINS
        nearest = np.minimum(nearest, apart.min(axis=1, where=~left_out, initial=np.inf))
        bins += lines
        flat, size = bins.reshape(-1), counts.size
        counts += np.bincount(flat, minlength=size).reshape(shape)
        sums += np.bincount(flat, weights=apart.reshape(-1), minlength=size).reshape(shape)
    counts, sums = counts[:, :_BINS], sums[:, :_BINS]
    return counts, sums / np.maximum(counts, 1), nearest
