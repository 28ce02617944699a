"""The next token of a private text, by an exponential mechanism on clipped differences from the public model.

References:
    [1] Vinod, Pillutla, Thakurta. InvisibleInk. 2025.
    [2] Dong, Durfee, Rogers. ICML 2020.
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
"""Whole steps in the clip."""
_PUBLIC_WEIGHT = 2**200
"""Weight of the likeliest token. The least, 1, is 139 nats below."""


@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """Draw the tokens of one round of texts.

    A member holds one private record. Its clipped difference from the public model's log-probabilities moves the
    distribution of the next token [1].

    Args:
        event: Cost of one round. Its ``epsilon0`` fixes the clip.
        members: Expected members of one text, a constant that divides the sum. The caller draws them once per round, at
            the event's rate.
        temperature: Temperature of the token's distribution.

    Formal guarantee:
        A member adds a whole number in [-GRID, GRID] to the exponent of each token. The base is at
        most e^(epsilon0 / (4 GRID)). So replacing a member's record makes a token epsilon0-bounded-range [2], and
        adding or removing a member half of it. Tokens are drawn exactly, and public weights depend on public text
        alone. Charge ``event`` before a round's first token.

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
        """Return the mechanism with this clip, in nats."""
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
        """Largest difference of a member from the public model, in nats."""
        return self.event.epsilon0 * self.members * self.temperature / 4

    def release(
        self, public: Sequence[float] | Scores, members: Iterable[Sequence[float] | Scores | None], *,
        rng: Randomness | None = None,
    ) -> int:  # fmt: skip
        """Draw one token and return its index. Only the index may leave.

        Args:
            public: Finite log-probabilities of public candidates, in nats, normalized over the vocabulary.
            members: The same per member. None for a failed member.
            rng: Source of randomness.
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
    with contextlib.suppress(TypeError, ValueError):
        return np.asarray(row, dtype=np.float64)
    raise InvalidParameter("Expected every member's row to hold numbers alone. Give None for one that has none.")


@functools.lru_cache(maxsize=64)
def _base(weight: Fraction) -> Fraction:
    return below_exp(weight)
