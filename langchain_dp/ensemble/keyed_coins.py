"""Coins that hang on a secret key: the same again after a restart, so that what was paid for goes on. No I/O."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from fractions import Fraction

_COIN_BITS = 256


class KeyedCoins:
    """Who takes part in a round, by coins that hang on a key, the round and a slot or id, and on no content.

    Args:
        key: Secret key of the coins, 32 bytes.
        names: Of each record what its coin hangs on: its slot where the number of records is public, else its id.

    Formal guarantee:
        Who takes part in a round is drawn by independent coins, as far as HMAC-SHA-256 under a secret key cannot be
        told from chance.
    """

    def __init__(self, key: bytes, names: Mapping[str, str]) -> None:
        self._key = key
        self._names = dict(names)

    def drawn(self, number: int, rate: float) -> list[str]:
        """Records of round ``number``, each with probability ``rate``, independently."""
        bound = bound_of(rate)
        return [record for record in self._names if self._coin("round", number, record) < bound]

    def _coin(self, what: str, number: int, record: str) -> int:
        return self._toss(what, number, self._names[record])

    def _toss(self, what: str, number: int, name: str) -> int:
        text = f"{what}\n{number}\n{name}".encode(errors="surrogatepass")
        return int.from_bytes(hmac.new(self._key, text, hashlib.sha256).digest(), "big")


def bound_of(rate: float) -> int:
    """Coins below it fall with probability ``rate``."""
    return int(Fraction(rate) * 2**_COIN_BITS)
