"""The examples of a run: checked, split into training and validation records, with the sampling constants. Private."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from langchain_dp.accounting import Neighbors
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.checks import check_records
from langchain_dp.opt.ensemble import split
from langchain_dp.opt.settings import Settings
from langchain_dp.records import PrivateRecords
from langchain_dp.scheme import Scheme, choose_scheme


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


def prepare(records: PrivateRecords, settings: Settings, neighbors: Neighbors, key: bytes) -> Data:
    """Check and split the examples.

    Raises:
        InvalidParameter: A record does not fit the templates or labels, or there are too few where their number is
            public.
    """
    check_records(records, settings.prompts, settings.labels)
    even = neighbors is not Neighbors.ADD_OR_REMOVE_ONE
    training, validation = split(records.ids(), settings.validation, key, even=even)
    if even and not validation:
        raise InvalidParameter(
            f"Expected validation={settings.validation} of {len(records)} examples to be at least one. Give more "
            "examples or a larger share."
        )
    return Data(records, training, validation)


def scheme_for(settings: Settings, neighbors: Neighbors, records: int) -> Scheme:
    """Sampling constants of a run over so many examples (a public number, or not used).

    Raises:
        InvalidParameter: There are too few, or a constant is missing under add/remove.
    """
    return choose_scheme(
        sampling=settings.sampling,
        neighbors=neighbors,
        records=records - round(settings.validation * records),
        shots=settings.shots,
        subsets=settings.subsets,
        partitions=settings.partitions,
        sampling_probability=settings.sampling_probability,
    )


def fingerprint(records: PrivateRecords, key: bytes) -> str:
    """Keyed hash of all records: tells whether two runs have the same data, to whoever holds the key."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for name in records.ids():
        row = json.dumps([name, {k: str(v) for k, v in records.get(name).items()}], sort_keys=True)
        digest.update(hashlib.sha256(row.encode(errors="surrogatepass")).digest())
    return digest.hexdigest()
