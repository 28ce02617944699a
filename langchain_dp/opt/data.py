"""The examples of a run: checked, split into training and validation records, with the sampling constants. Private."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.scheme import SamplingOptions, Scheme, choose_scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.settings import Settings
from langchain_dp.records import PrivateRecords


@dataclasses.dataclass(frozen=True, repr=False)
class Data:
    """Examples of one run.

    Args:
        records: The examples.
        training: Ids of those that teach.
        validation: Ids of those that select.
    """

    records: PrivateRecords
    training: list[str]
    validation: list[str]

    def rows(self, ids: list[str]) -> list[Mapping[str, Any]]:
        """Their content."""
        return [self.records.get(name) for name in ids]

    def __repr__(self) -> str:
        return "Data(<private>)"


@dataclasses.dataclass(frozen=True, repr=False)
class Split:
    """Who sits in which part, kept while this process lives so that a record may be forgotten in the middle of a run.

    Args:
        marks: Keyed hash of every record the run was started with.
        training: Ids of those that teach.
        validation: Ids of those that select. The others, if any, take no part.
    """

    marks: Mapping[str, bytes]
    training: frozenset[str]
    validation: frozenset[str]

    def __repr__(self) -> str:
        return "Split(<private>)"


def prepare(records: PrivateRecords, settings: Settings, neighbors: Neighbors, key: bytes) -> Data:
    """Split the examples."""
    even = count_is_public(neighbors)
    taken = settings.taking_part(len(records))
    training, validation = split(records.ids(), settings.validation, key, even=even, rows=taken)
    return Data(records, training, validation)


def split(
    record_ids: Sequence[str], share: float, key: bytes, *, even: bool, rows: int | None = None
) -> tuple[list[str], list[str]]:
    """Training and validation records, by coins that hang on nothing but ``key`` and the slot or id.

    Args:
        record_ids: All records, in their order.
        share: Share of the validation records, in (0, 1].
        key: Secret key of the coins, at least 16 bytes. The same key splits the same records alike, so a run that is
            taken up again never moves a record from one part to the other.
        even: Take exactly the rounded share of the slots (sound where the number of records is public); otherwise
            every record draws its own coin.
        rows: Slots that take part, drawn by the same coins, with ``even``; None is all. Those left out are in no part.

    Returns:
        (training, validation), disjoint, in the order given.

    Formal guarantee:
        Even: the part of a slot does not depend on what the slot holds. Else: parts are independent coins of the ids.
        So two neighbours differ within one part.
    """
    names = [str(slot) for slot in range(len(record_ids))] if even else list(record_ids)
    # Coins of rounds hang on the same key: a record's id must not name one of theirs.
    coins = [hmac.new(key, f"split\n{name}".encode(), hashlib.sha256).digest() for name in names]
    if even:
        order = sorted(range(len(record_ids)), key=lambda slot: coins[slot])
        taken = order[:rows]
        chosen = set(taken[: round(share * len(taken))])
        others = set(taken) - chosen
    else:
        bound = int(Fraction(share) * 2**256)
        chosen = {i for i, coin in enumerate(coins) if int.from_bytes(coin, "big") < bound}
        others = set(range(len(record_ids))) - chosen
    return (
        [name for i, name in enumerate(record_ids) if i in others],
        [name for i, name in enumerate(record_ids) if i in chosen],
    )


def check_split(settings: Settings, records: int) -> None:
    """Raise InvalidParameter where nobody of so many records, a public number, would select, or teach."""
    apart = round(settings.validation * records)
    if not 0 < apart < records:
        raise InvalidParameter(
            f"Expected validation={settings.validation} of {records} examples to be at least one, and not all. Give "
            "more examples, or another share."
        )


def scheme_for(settings: Settings, neighbors: Neighbors, records: int) -> Scheme:
    """Sampling constants of a run over so many examples (a public number, or not used).

    Raises:
        InvalidParameter: There are too few, or a constant is missing under add/remove.
    """
    records = settings.taking_part(records)
    if not settings.writes:  # nothing is shown to subsets: one that holds nobody
        alone = SamplingOptions("fixed", partitions=1, probability=1.0)
        return choose_scheme(alone, neighbors=neighbors, records=records, shots=1, subsets=1)
    apart = round(settings.validation * records)
    if records and count_is_public(neighbors):
        check_split(settings, records)
    return choose_scheme(
        settings.sampling,
        neighbors=neighbors,
        records=records - apart,
        apart=apart,
        shots=settings.shots,
        subsets=settings.subsets,
    )
