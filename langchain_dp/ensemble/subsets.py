"""Public sampling constants, and the subset sampler: one record moves at most one vote. No I/O.

No coin depends on content or other records. A new shuffle of all records per release could move many votes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import get_args

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import SamplingName, count_is_public
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, bernoulli, shuffled


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


_COIN_BITS = 256


class FixedPartition:
    """Assigns each record to one of ``subsets`` subsets for good.

    Replacing a record (``even``), or adding or removing one (not ``even``), changes exactly one subset. ``even`` is
    sound only if the number of records is public.
    """

    def __init__(self, record_ids: Iterable[str], subsets: int, *, even: bool, rng: Randomness) -> None:
        validate.integer("subsets", subsets, at_least=1)
        self._rng = rng
        self._members: list[list[str]] = [[] for _ in range(subsets)]
        self._subset: dict[str, int] = {}
        ids = list(record_ids)
        places = shuffled(rng, len(ids)) if even else [rng.randbelow(subsets) for _ in ids]
        for record_id, place in zip(ids, places, strict=True):
            self._put(record_id, place % subsets)

    def __len__(self) -> int:
        return len(self._members)

    def members(self, subset: int) -> tuple[str, ...]:
        """Return private record ids."""
        return tuple(self._members[subset])

    def add(self, record_id: str) -> int:
        if record_id in self._subset:
            raise InvalidParameter("Expected the record id to be new, but it is assigned already.")
        return self._put(record_id, self._rng.randbelow(len(self._members)))

    def subset_of(self, record_id: str) -> int:
        return self._subset[record_id]

    def forget(self, record_id: str) -> int:
        subset = self._subset.pop(record_id)
        self._members[subset].remove(record_id)
        return subset

    def _put(self, record_id: str, subset: int) -> int:
        self._subset[record_id] = subset
        self._members[subset].append(record_id)
        return subset

    def draw(self, sampling_probability: Fraction, rng: Randomness) -> list[int]:
        """Draw each subset independently, also empty ones."""
        return [subset for subset in range(len(self._members)) if bernoulli(rng, sampling_probability)]


def resample(
    record_ids: Sequence[str], slots: int, sampling_probability: Fraction, rng: Randomness
) -> list[tuple[str, ...]]:
    """Poisson-sample records into random slots. One record is in at most one slot."""
    dealt: list[list[str]] = [[] for _ in range(slots)]
    for record_id in record_ids:
        if bernoulli(rng, sampling_probability):
            dealt[rng.randbelow(slots)].append(record_id)
    return [tuple(slot) for slot in dealt]


@dataclasses.dataclass(frozen=True, repr=False)
class Subset:
    """Private records in one prompt. ``member`` is a key of this content alone."""

    member: Hashable
    record_ids: tuple[str, ...]

    def __repr__(self) -> str:
        return "Subset(<private>)"


class SubsetSampler:
    """The subsets of private records. One record is in at most one subset of a draw.

    Changes return the former key of the subset.
    """

    def __init__(self, record_ids: Iterable[str], scheme: Scheme, rng: Randomness) -> None:
        ids = dict.fromkeys(record_ids)
        self._scheme = scheme
        self._rng = rng
        self._rate = Fraction(scheme.sampling_probability)
        self._key = secrets.token_hex(8)  # two samplers on one engine never share a cache entry
        self._draws = 0
        self._fixed: FixedPartition | None = None  # it owns the ids where it is
        self._dealt: dict[str, None] = {}
        if self.lasting:
            self._fixed = FixedPartition(ids, scheme.groups, even=scheme.even, rng=rng)
            self._versions = [0] * scheme.groups
        else:
            self._dealt = ids

    @property
    def lasting(self) -> bool:
        return self._scheme.sampling == "fixed"

    def draw(self) -> list[Subset]:
        if self._fixed is not None:
            return [self._subset(place) for place in self._fixed.draw(self._rate, self._rng)]
        slots = resample(list(self._dealt), self._scheme.groups, self._rate, self._rng)
        self._draws += 1
        return [Subset((self._key, self._draws, slot), ids) for slot, ids in enumerate(slots)]

    def everyone(self) -> list[Subset]:
        return [] if self._fixed is None else [self._subset(place) for place in range(len(self._fixed))]

    def add(self, record_id: str) -> Hashable | None:
        if self._fixed is not None:
            return self._changed(self._fixed.add(record_id))
        self._dealt[record_id] = None
        return None

    def forget(self, record_id: str) -> Hashable | None:
        if self._fixed is not None:
            return self._changed(self._fixed.forget(record_id))
        del self._dealt[record_id]
        return None

    def change(self, record_id: str) -> Hashable | None:
        return None if self._fixed is None else self._changed(self._fixed.subset_of(record_id))

    def _subset(self, place: int) -> Subset:
        assert self._fixed is not None
        return Subset((self._key, self._versions[place], place), self._fixed.members(place))

    def _changed(self, place: int) -> Hashable:
        before = self._subset(place).member
        self._versions[place] += 1
        return before


KEYED = "the subset is drawn by HMAC-SHA-256 under a secret key: this holds as far as that cannot be told from chance"


class KeyedCoins:
    """Participation by HMAC-SHA-256 coins of key, round and name, never content.

    ``names`` are slots if the number of records is public, else ids.
    """

    def __init__(self, key: bytes, names: Mapping[str, str]) -> None:
        self._key = key
        self._names = dict(names)

    def drawn(self, number: int, rate: float) -> list[str]:
        """Draw each record independently."""
        bound = int(Fraction(rate) * 2**_COIN_BITS)  # a coin is below it with probability ``rate``
        return [record for record in self._names if self._coin("round", number, record) < bound]

    def _coin(self, what: str, number: int, record: str) -> int:
        text = f"{what}\n{number}\n{self._names[record]}".encode(errors="surrogatepass")
        return int.from_bytes(hmac.new(self._key, text, hashlib.sha256).digest(), "big")
