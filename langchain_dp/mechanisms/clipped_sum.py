"""The next token of a private text: an exponential mechanism on clipped differences from the public model.

Every member of an ensemble holds one private record and has log-probabilities of its own for the next token. What is
added up is how far they lie from those of the public model, the same model without a private record, clipped. The sum
moves the public model's distribution, and a token is drawn from what results.

References:
    [1] Vinod, Pillutla, Thakurta. InvisibleInk: high-utility and low-cost text generation with differential privacy.
        2025 (clipped differences from the public model).
    [2] Dong, Durfee, Rogers. Optimal differential privacy composition for exponential mechanisms. ICML 2020.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting.events import MOST_EPSILON0, TextRoundEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.exponential import below_exp, draw
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

Scores = NDArray[np.float64]

GRID = 64
"""Whole numbers into which the clip is cut: what a member adds to a token's exponent is one of -64, ..., 64."""
_PUBLIC_WEIGHT = 2**40  # the public model's probability of a token, as a whole number


@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """How the tokens of one round of texts are drawn, and what the round costs. All of it is public.

    Args:
        clip: C: how far a member's log-probability may lie from the public model's, in nats; what is beyond is cut.
        members: s: expected members of one text, a constant. The sum is divided by it, whoever takes part.
        tokens: T: tokens of one text at most.
        sampling_probability: q: rate of the members, by coins that are flipped once a round.
        temperature: tau of the resulting distribution.

    Raises:
        InvalidParameter: A value is out of bounds, or the clip so large that nothing is private.

    Formal guarantee:
        Replacing one member's record changes its whole numbers by at most 2 GRID for every token, so the log-weights
        of tokens move within a range of 4 clip / (members temperature) = ``event.epsilon0``: a token is that much
        bounded-range [2], half of it where a member comes or goes. The divisor is a constant; a member that fails adds
        nothing. Tokens are drawn exactly, from whole numbers; the public weights hang on public text alone. A round
        costs one :class:`~langchain_dp.accounting.TextRoundEvent`, to be charged before its first token.

    Example:
        >>> noise = ClippedSum(clip=3.0, members=30, tokens=40, sampling_probability=0.06)
        >>> noise.event.epsilon0
        0.4
        >>> noise.release([-0.5, -1.2], [[-0.4, -1.5]] * 28)  # an index: 0 or 1
    """

    clip: float
    members: int
    tokens: int
    sampling_probability: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        validate.number("clip", self.clip, above=0.0)
        validate.integer("members", self.members, at_least=1)
        validate.number("temperature", self.temperature, at_least=0.05, at_most=100.0)
        if self._range > MOST_EPSILON0:
            raise InvalidParameter(
                f"Expected clip={self.clip:g} to be at most {MOST_EPSILON0 * self.members * self.temperature / 4:g} "
                f"at members={self.members} and temperature={self.temperature:g}. Lower it, or have more members."
            )
        _ = self.event  # checks the rest

    @property
    def _range(self) -> Fraction:
        return 4 * Fraction(self.clip) / (self.members * Fraction(self.temperature))

    @property
    def event(self) -> TextRoundEvent:
        """What one round costs."""
        epsilon0 = float(self._range)
        if Fraction(epsilon0) < self._range:
            epsilon0 = math.nextafter(epsilon0, math.inf)
        return TextRoundEvent(epsilon0, self.tokens, self.sampling_probability)

    @classmethod
    def largest_clip(cls, epsilon0: float, *, members: int, temperature: float = 1.0) -> float:
        """Largest clip, to 4 significant digits, whose event has at most this ``epsilon0``."""
        clip = Fraction(epsilon0) * members * Fraction(temperature) / 4
        step = Fraction(10) ** (math.floor(math.log10(clip)) - 3)
        return float(clip // step * step)

    def release(
        self, public: Sequence[float] | Scores, members: Iterable[Sequence[float] | Scores | None], *,
        rng: Randomness | None = None,
    ) -> int:  # fmt: skip
        """Draw one token.

        Args:
            public: The public model's log-probabilities of the candidates, in nats, normalized over the whole
                vocabulary: at least one of them, all finite. The candidates are public: found without any member.
            members: Of each member that takes part the log-probabilities of the same candidates; None for one that
                could not be evaluated. There may be no member: the draw is made all the same.
            rng: Source of randomness; operating-system entropy by default.

        Returns:
            Index of a candidate. Only this may leave.

        Raises:
            InvalidParameter: ``public`` is empty or not finite, or a member's row has another length.
        """
        known = np.asarray(public, dtype=np.float64)
        if known.ndim != 1 or not known.size or not np.isfinite(known).all():
            raise InvalidParameter("Expected public to be a row of finite log-probabilities, at least one.")
        total = np.zeros(known.size, dtype=np.int64)
        for row in members:
            if row is not None:
                total += self._moved(known, np.asarray(row, dtype=np.float64))
        weight = Fraction(self.clip) / (GRID * self.members * Fraction(self.temperature))
        return draw(rng or SystemRandomness(), _base(weight), total.tolist(), self._weights(known))

    def _moved(self, public: Scores, row: Scores) -> NDArray[np.int64]:
        """Whole numbers in [-GRID, GRID], whatever the row holds: what is no number moves nothing."""
        if row.shape != public.shape:
            raise InvalidParameter("Expected every member to score each candidate once.")
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.clip(row - public, -self.clip, self.clip)
            steps = np.rint(GRID * np.nan_to_num(difference / self.clip))
        return np.clip(steps, -GRID, GRID).astype(np.int64)

    def _weights(self, public: Scores) -> list[int]:
        shares = np.exp((public - public.max()) / self.temperature)
        return [max(1, math.floor(share * _PUBLIC_WEIGHT)) for share in shares.tolist()]


@functools.lru_cache(maxsize=64)
def _base(weight: Fraction) -> Fraction:
    return below_exp(weight)
