"""Who is asked for one token: the training records in their subsets, and the coins that draw them. No I/O."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Hashable, Sequence
from fractions import Fraction

from langchain_dp.ensemble.partition import FixedPartition, resample
from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.mechanisms.randomness import Randomness


@dataclasses.dataclass(frozen=True, repr=False)
class Subset:
    """Records that are shown together in one prompt.

    Args:
        member: Opaque key of this content.
        record_ids: Its records. Private.
    """

    member: Hashable
    record_ids: tuple[str, ...]

    def __repr__(self) -> str:
        return "Subset(<private>)"


class Ensemble:
    """The subsets of the training records, and who of them takes part in one call.

    Args:
        record_ids: Training records.
        scheme: Sampling constants.
        rng: Source of assignment and sampling coins.

    Formal guarantee:
        Whatever the coins, one record is in at most one of the subsets of one draw; see
        :class:`~langchain_dp.ensemble.partition.FixedPartition` and :func:`~langchain_dp.ensemble.partition.resample`.
    """

    def __init__(self, record_ids: Sequence[str], scheme: Scheme, rng: Randomness) -> None:
        self._ids = list(record_ids)
        self._scheme = scheme
        self._rng = rng
        self._rate = Fraction(scheme.sampling_probability)
        self._nonce = secrets.token_hex(8)  # caches of another run must not be found
        self._draws = 0
        self._fixed: FixedPartition | None = None
        if scheme.sampling == "fixed":
            self._fixed = FixedPartition(self._ids, scheme.groups, even=scheme.even, rng=rng)

    def draw(self) -> list[Subset]:
        """Subsets of one call, by fresh coins; those without records abstain and are left out."""
        if self._fixed is not None:
            fixed = self._fixed
            drawn = [(subset, fixed.members(subset)) for subset in fixed.draw(self._rate, self._rng)]
        else:
            drawn = list(enumerate(resample(self._ids, self._scheme.groups, self._rate, self._rng)))
            self._draws += 1
        return [Subset((self._nonce, self._draws, subset), ids) for subset, ids in drawn if ids]

    @property
    def lasting(self) -> bool:
        """Whether a subset comes back with the same content, so that its caches are worth keeping."""
        return self._fixed is not None


def split(record_ids: Sequence[str], share: float, key: bytes, *, even: bool) -> tuple[list[str], list[str]]:
    """Training and validation records, by coins that hang on nothing but ``key`` and the slot or id.

    Args:
        record_ids: All records, in their order.
        share: Share of the validation records, in (0, 1).
        key: Secret key of the coins, at least 16 bytes. The same key splits the same records alike, so a run that is
            taken up again never moves a record from one part to the other.
        even: Take exactly the rounded share of the slots (sound where the number of records is public); otherwise
            every record draws its own coin.

    Returns:
        (training, validation), disjoint, in the order given.

    Formal guarantee:
        Even: the part of a slot does not depend on what the slot holds. Else: parts are independent coins of the ids.
        So two neighbours differ within one part.
    """
    names = [str(slot) for slot in range(len(record_ids))] if even else list(record_ids)
    coins = [hmac.new(key, name.encode(), hashlib.sha256).digest() for name in names]
    if even:
        order = sorted(range(len(record_ids)), key=lambda slot: coins[slot])
        chosen = set(order[: round(share * len(record_ids))])
    else:
        bound = int(Fraction(share) * 2**256)
        chosen = {i for i, coin in enumerate(coins) if int.from_bytes(coin, "big") < bound}
    return (
        [name for i, name in enumerate(record_ids) if i not in chosen],
        [name for i, name in enumerate(record_ids) if i in chosen],
    )
