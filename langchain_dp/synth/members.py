"""Who takes part in the writing of a private text: a fresh secret coin a round, or disjoint groups."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from fractions import Fraction

from langchain_dp.synth.settings import DESCRIBED, Design

_COIN_BITS = 256


class Members:
    """Who takes part in a round, by coins that hang on a secret key, the round and a slot or id, and on no content.

    The coins of a round are its own, and the same again after a restart, so that a round that was paid for goes on.

    Args:
        key: Secret key of the coins, 32 bytes.
        names: Of each record what its coin hangs on: its slot where the number of records is public, else its id.
    """

    def __init__(self, key: bytes, names: Mapping[str, str]) -> None:
        self._key = key
        self._names = dict(names)
        self._orders: dict[int, list[str]] = {}  # by the number of groups
        self._last: tuple[int | None, list[str]] = (None, [])  # the round that was asked for last

    def of_text(self, design: Design, number: int, label: str) -> list[list[str]]:
        """Members of the text of ``label`` in round ``number``: of each the records that share its prompt.

        Each is one record, or a block of slots that stay together in all rounds; the caller leaves out the records of
        other labels. Blocks take part by a coin of the round and the label.
        """
        if design.block == 1 or number == DESCRIBED:
            if self._last[0] != number:
                self._last = number, self.of_round(design, number)
            return [[record] for record in self._last[1]]
        if design.scheme == "groups":
            whole = self.group(number, design.rounds)
            blocks = max(len(whole) // design.block, 1)
            return [whole[at::blocks] for at in range(blocks)]
        blocks = max(len(self._names) // design.block, 1)
        bound = _bound(design.noise.event.sampling_probability)
        return [self.group(at, blocks) for at in range(blocks) if self._toss("block", number, f"{at} {label}") < bound]

    def of_round(self, design: Design, number: int) -> list[str]:
        """Records of round ``number`` of a design, or of its descriptions."""
        if design.scheme == "groups" and number != DESCRIBED:
            return self.group(number, design.rounds)
        return self.drawn(number, design.noise_of(number).event.sampling_probability)

    def drawn(self, number: int, rate: float) -> list[str]:
        """Records of round ``number``, each with probability ``rate``, independently."""
        bound = _bound(rate)
        return [record for record in self._names if self._coin("round", number, record) < bound]

    def group(self, number: int, groups: int) -> list[str]:
        """Records of one of ``groups`` disjoint groups: a secret order of the slots, cut once into equal parts."""
        if groups not in self._orders:
            self._orders[groups] = sorted(self._names, key=lambda record: self._coin("group", groups, record))
        return self._orders[groups][number::groups]

    def _coin(self, what: str, number: int, record: str) -> int:
        return self._toss(what, number, self._names[record])

    def _toss(self, what: str, number: int, name: str) -> int:
        text = f"{what}\n{number}\n{name}".encode(errors="surrogatepass")
        return int.from_bytes(hmac.new(self._key, text, hashlib.sha256).digest(), "big")


def _bound(rate: float) -> int:
    """Coins below it fall with probability ``rate``."""
    return int(Fraction(rate) * 2**_COIN_BITS)
