"""Private training and validation records of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.subsets import SamplingOptions, Scheme, choose_scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.settings import Settings
from langchain_dp.records import PrivateRecords


@dataclasses.dataclass(frozen=True, repr=False)
class Data:
    """The records of a run, with ids of training and validation."""

    records: PrivateRecords
    training: list[str]
    validation: list[str]

    def rows(self, ids: list[str]) -> list[Mapping[str, Any]]:
        return [self.records.get(name) for name in ids]

    def __repr__(self) -> str:
        return "Data(<private>)"


def prepare(records: PrivateRecords, settings: Settings, neighbors: Neighbors, key: bytes) -> Data:
    even = count_is_public(neighbors)
    taken = settings.taking_part(len(records))
    training, validation = split(records.ids(), settings.validation, key, even=even, rows=taken)
    return Data(records, training, validation)


def split(
    record_ids: Sequence[str], share: float, key: bytes, *, even: bool, rows: int | None = None
) -> tuple[list[str], list[str]]:
    """Split by coins of ``key`` and the slot or id, never content.

    If their number is public (``even``), an exact share of ``rows`` validates. Neighbors differ within one part.
    """
    names = [str(slot) for slot in range(len(record_ids))] if even else list(record_ids)
    # The same key draws the coins of rounds: a record's id must not name one of theirs.
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
    apart = round(settings.validation * records)
    if not 0 < apart < records:
        raise InvalidParameter(
            f"Expected validation={settings.validation} of {records} examples to be at least one, and not all. Give "
            "more examples, or another share."
        )


def scheme_for(settings: Settings, neighbors: Neighbors, records: int) -> Scheme:
    """``records`` must be public, or is not used."""
    records = settings.taking_part(records)
    if not settings.writes:  # nothing is shown to subsets: one that holds nobody
        alone = SamplingOptions("fixed", partitions=1, probability=1.0)
        return choose_scheme(alone, neighbors=neighbors, records=records, shots=1, subsets=1)
    apart = round(settings.validation * records)
    if records and count_is_public(neighbors):
        check_split(settings, records)
    return choose_scheme(
        settings.sampling, neighbors=neighbors, records=records - apart, apart=apart, shots=settings.shots,
        subsets=settings.subsets,
    )  # fmt: skip
