"""Public sampling constants."""

from __future__ import annotations

import dataclasses
import math
from typing import get_args

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import SamplingName, count_is_public
from langchain_dp.errors import InvalidParameter


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """Public options for the assignment of records to subsets, and their participation.

    Args:
        scheme: "fixed": subsets are cut once, and each takes part by a coin (less noise, reusable caches). "resample":
            new subsets for every release, as in the papers.
        partitions: Number of subsets K under "fixed". None: the public number of records // ``shots``. Required under
            add/remove.
        probability: Rate q of subsets ("fixed") or records ("resample"). None: ``subsets`` are expected. Required under
            add/remove.

    Raises:
        InvalidParameter: A value is out of bounds, or there are ``partitions`` under "resample".

    Examples:
        >>> SamplingOptions("fixed", partitions=100, probability=0.1)  # ten of a hundred subsets are expected
        SamplingOptions(scheme='fixed', partitions=100, probability=0.1)
    """

    scheme: SamplingName = "fixed"
    partitions: int | None = None
    probability: float | None = None

    def __post_init__(self) -> None:
        validate.one_of("scheme", self.scheme, get_args(SamplingName))
        if self.partitions is not None:
            validate.integer("partitions", self.partitions, at_least=1)
            if self.scheme == "resample":
                raise InvalidParameter(
                    f'Expected partitions={self.partitions} to be absent: "resample" uses subsets= as slots.'
                )
        if self.probability is not None:
            validate.number("probability", self.probability, above=0.0, at_most=1.0)


def sampling_from(given: SamplingName | SamplingOptions) -> SamplingOptions:
    if isinstance(given, SamplingOptions):
        return given
    return SamplingOptions(
        validate.one_of("sampling", given, get_args(SamplingName), remedy="Or give SamplingOptions(...).")
    )


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Public constants: K subsets ("fixed") or N slots ("resample"), each subset or record drawn at rate q.

    ``even``: the number of records is public.
    """

    sampling: SamplingName
    groups: int
    sampling_probability: float
    even: bool

    @property
    def expected_subsets(self) -> float:
        return self.groups * self.sampling_probability if self.sampling == "fixed" else float(self.groups)

    def least_records(self, records: int) -> tuple[int, str]:
        """Return a public n, with its unit: delta must be far below 1/n."""
        if self.even:
            return records, "records"
        if self.sampling == "fixed":
            return self.groups, "subsets"
        return math.ceil(1 / self.sampling_probability), "draws that one record is expected in once"


def choose_scheme(
    sampling: SamplingOptions, *, neighbors: Neighbors, records: int, shots: int, subsets: int, apart: int = 0
) -> Scheme:
    """Under add/remove, K and q must be given: the number of records is private."""
    name, partitions, probability = sampling.scheme, sampling.partitions, sampling.probability
    public = count_is_public(neighbors)
    if not public:
        missing = probability is None or (name == "fixed" and partitions is None)
        if missing:
            raise InvalidParameter(
                f"Expected partitions={partitions!r} and probability={probability!r} of sampling= to be given under "
                "add/remove neighbors, where the number of records is private and nothing may be derived from it. "
                'Give constants, as in SamplingOptions("fixed", partitions=100, probability=0.1) or '
                'SamplingOptions("resample", probability=0.1), or use replace-one.'
            )
    elif records < 1:
        raise InvalidParameter("Expected at least one example, but found 0. Give examples=[{text, label}, ...].")
    if name == "resample":
        wanted = subsets * shots / max(records, 1)
        if probability is None and wanted > 1:
            raise _too_few(records, shots, subsets, apart)
        return Scheme(name, subsets, probability or wanted, public)
    if partitions is not None and probability is None and partitions < subsets:
        raise InvalidParameter(
            f"Expected partitions={partitions} to be at least subsets={subsets}. Raise partitions= or lower subsets=."
        )
    groups = partitions if partitions is not None else records // shots
    if groups < (1 if probability is not None else subsets):
        raise _too_few(records, shots, 1 if probability is not None else subsets, apart)
    return Scheme(name, groups, probability or subsets / groups, public)


def _too_few(records: int, shots: int, subsets: int, apart: int) -> InvalidParameter:
    beside = f" beside the {apart} that validation= sets apart" if apart else ""
    return InvalidParameter(
        f"Expected at least subsets * shots = {subsets} * {shots} = {subsets * shots} examples, but there are "
        f"{records}{beside}. Give more examples, or lower subsets= or shots=."
    )
