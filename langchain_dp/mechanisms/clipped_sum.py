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

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting.events import MOST_EPSILON0, ClippedSumRoundEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.exponential_choice import below_exp, draw
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

Scores = NDArray[np.float64]

GRID = 64
"""Whole numbers into which the clip is cut. A member adds to a token's exponent one of -64, ..., 64."""
_PUBLIC_WEIGHT = 2**200
"""The public model's probability of its likeliest token, as a whole number. The least weight is one, 139 nats below.
With 2^40 it was 28: at a temperature of 0.2 all tokens were alike then that the model takes to be six nats less likely,
and a clip that carried one of them to the top carried dozens."""


@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """Draw the tokens of one round of texts.

    Args:
        event: Cost of one round. Its ``epsilon0`` says how far one record may move a token, hence the clip.
        members: s: expected members of one text, a constant. The sum is always divided by it. Who does is
            drawn elsewhere, once a round, at the event's rate.
        temperature: tau of the distribution that a token is drawn from.

    Raises:
        InvalidParameter: A value is out of bounds.

    Formal guarantee:
        A member adds a whole number of at most GRID, up or down, to the exponent of each token, whatever it holds. One
        that fails adds nothing. The base is at most e^(epsilon0 / (4 GRID)). So replacing one member's record moves the
        log-weights within a range of epsilon0: a token is that much bounded-range [2], and half of it where a member
        comes or goes. Tokens are drawn exactly, from whole numbers. The public weights hang on public text alone. A
        round costs ``event``, to be charged before its first token.

    Examples:
        >>> noise = ClippedSum.clipped(3.0, members=30, tokens=40, sampling_probability=0.06)
        >>> ledger.spend(noise.event)  # a ClippedSumRoundEvent with epsilon0 = 0.4
        >>> noise.release([-0.5, -1.2], [[-0.4, -1.5]] * 28) in (0, 1)  # an index
        True
    """

    event: ClippedSumRoundEvent
    members: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        validate.integer("members", self.members, at_least=1)
        validate.number("temperature", self.temperature, at_least=0.05, at_most=100.0)

    @classmethod
    def clipped(
        cls, clip: float, *, members: int, tokens: int, sampling_probability: float = 1.0, temperature: float = 1.0
    ) -> ClippedSum:
        """The mechanism with this clip, in nats. See :attr:`clip`.

        Raises:
            InvalidParameter: A value is out of bounds, or the clip so large that nothing is private.
        """
        validate.number("clip", clip, above=0.0)
        validate.integer("members", members, at_least=1)
        validate.number("temperature", temperature, at_least=0.05, at_most=100.0)
        epsilon0 = 4 * clip / (members * temperature)
        if epsilon0 > MOST_EPSILON0:
            raise InvalidParameter(
                f"Expected clip={clip:g} to be at most {MOST_EPSILON0 * members * temperature / 4:g} at members="
                f"{members} and temperature={temperature:g}. Lower it, or have more members."
            )
        return cls(ClippedSumRoundEvent(epsilon0, tokens, sampling_probability), members, temperature)

    @property
    def clip(self) -> float:
        """C: how far a member's log-probability may lie from the public model's, in nats. The rest is cut."""
        return self.event.epsilon0 * self.members * self.temperature / 4

    def release(
        self, public: Sequence[float] | Scores, members: Iterable[Sequence[float] | Scores | None], *,
        rng: Randomness | None = None,
    ) -> int:  # fmt: skip
        """Draw one token.

        Args:
            public: The public model's log-probabilities of the candidates, in nats, normalized over the whole
                vocabulary: at least one of them, all finite. The candidates are public: found without any member.
            members: Of each member that takes part the log-probabilities of the same candidates. None for one that
                could not be evaluated. Without members the draw is still made.
            rng: Source of randomness. Operating-system entropy by default.

        Returns:
            Index of a candidate. Only this may leave.

        Raises:
            InvalidParameter: ``public`` is empty or not finite, or a member's row has another length or no numbers.
        """
        known = np.asarray(public, dtype=np.float64)
        if known.ndim != 1 or not known.size or not np.isfinite(known).all():
            raise InvalidParameter("Expected public to be a row of finite log-probabilities, at least one.")
        total = np.zeros(known.size, dtype=np.int64)
        for row in members:
            if row is not None:
                total += self._moved(known, _numbers(row))
        base = _base(Fraction(self.event.epsilon0) / (4 * GRID))
        return draw(rng or SystemRandomness(), base, total.tolist(), self._weights(known))

    def _moved(self, public: Scores, row: Scores) -> NDArray[np.int64]:
        """Return whole numbers in [-GRID, GRID] for any row. A NaN becomes 0."""
        if row.shape != public.shape:
            raise InvalidParameter("Expected every member to score each candidate once.")
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.clip(row - public, -self.clip, self.clip)
            steps = np.rint(GRID * np.nan_to_num(difference / self.clip))
        return np.clip(steps, -GRID, GRID).astype(np.int64)

    def _weights(self, public: Scores) -> list[int]:
        shares = np.exp((public - public.max()) / self.temperature)
        return [max(1, math.floor(share * _PUBLIC_WEIGHT)) for share in shares.tolist()]


def _numbers(row: object) -> Scores:
    """A member's row. No error shows what else it holds."""
    with contextlib.suppress(TypeError, ValueError):
        return np.asarray(row, dtype=np.float64)
    raise InvalidParameter("Expected every member's row to hold numbers alone. Give None for one that has none.")


@functools.lru_cache(maxsize=64)
def _base(weight: Fraction) -> Fraction:
    return below_exp(weight)
