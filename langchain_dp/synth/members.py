"""Who takes part in the writing of a private text: a fresh secret coin a round, or disjoint groups."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.subsets import KeyedCoins, bound_of
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.settings import Design


class Members(KeyedCoins):
    """Who takes part in a round, by coins that hang on a secret key, the round and a slot or id, and on no content.

    The coins of a round are its own, and the same again after a restart, so that a round that was paid for goes on.

    Args:
        key: Secret key of the coins, 32 bytes.
        names: Of each record what its coin hangs on: its slot where the number of records is public, else its id.
    """

    def __init__(self, key: bytes, names: Mapping[str, str]) -> None:
        super().__init__(key, names)
        self._orders: dict[int, list[str]] = {}  # by the number of groups
        self._last: tuple[int | None, list[str]] = (None, [])  # the round that was asked for last

    def of_text(self, design: Design, number: int, label: str) -> list[list[str]]:
        """Members of the text of ``label`` in round ``number``: of each the records that share its prompt.

        Each is one record, or a block of slots that stay together in all rounds; the caller leaves out the records of
        other labels. Blocks take part by a coin of the round and the label.
        """
        if design.block == 1:
            if self._last[0] != number:
                self._last = number, self.of_round(design, number)
            return [[record] for record in self._last[1]]
        if design.scheme == "groups":
            whole = self.of_round(design, number)
            blocks = max(len(whole) // design.block, 1)
            return [whole[at::blocks] for at in range(blocks)]
        blocks = max(len(self._names) // design.block, 1)
        bound = bound_of(design.noise.event.sampling_probability)
        return [self.group(at, blocks) for at in range(blocks) if self._toss("block", number, f"{at} {label}") < bound]

    def of_round(self, design: Design, number: int) -> list[str]:
        """Records of round ``number`` of a design.

        Of a group that would make more members than the design expects those that come first in the secret order: the
        others take no part at all.
        """
        if design.scheme == "groups":
            whole, one = self.group(number, design.rounds), design.texts * design.shots
            most = design.noise.members * one
            return whole if len(whole) < most + one else whole[:most]
        return self.drawn(number, design.noise.event.sampling_probability)

    def group(self, number: int, groups: int) -> list[str]:
        """Records of one of ``groups`` disjoint groups: a secret order of the slots, cut once into equal parts."""
        if groups not in self._orders:
            self._orders[groups] = sorted(self._names, key=lambda record: self._coin("group", groups, record))
        return self._orders[groups][number::groups]


def slots_of(records: PrivateRecords, neighbors: Neighbors) -> dict[str, str]:
    """What a record's coins hang on: its slot where the number of records is public, else its id."""
    counted = count_is_public(neighbors)
    return {name: str(slot) if counted else name for slot, name in enumerate(records.ids())}
