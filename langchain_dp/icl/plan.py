"""Who is asked in one release: the configuration of DP-ICL, fixed once, and its subsets. No I/O, no LangChain."""

from __future__ import annotations

import dataclasses
import random
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any

from langchain_dp import _validate
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import Sampling
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.votes import Ballot, Shot
from langchain_dp.mechanisms.randomness import Randomness
from langchain_dp.partition import FixedPartition, resample
from langchain_dp.records import PrivateRecords


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How records take part in a release. Constants of the configuration, all public.

    Args:
        sampling: "fixed" or "resample".
        groups: Number of subsets K ("fixed") or of slots N per release ("resample").
        sampling_probability: Rate q of each subset ("fixed") or record ("resample").
        even: Whether the number of records is public, so that subsets may be cut to equal size.
    """

    sampling: Sampling
    groups: int
    sampling_probability: float
    even: bool

    @property
    def expected_subsets(self) -> float:
        """Expected number of subsets asked per release (an upper bound where subsets may be empty)."""
        return self.groups * self.sampling_probability if self.sampling == "fixed" else float(self.groups)


def check_bounds(
    *,
    sampling: Sampling,
    shots: int,
    subsets: int,
    partitions: int | None,
    sampling_probability: float | None,
) -> None:
    """Raise InvalidParameter if a sampling parameter is out of bounds by itself."""
    _validate.one_of("sampling", sampling, ("fixed", "resample"))
    _validate.integer("shots", shots, at_least=1)
    _validate.integer("subsets", subsets, at_least=1)
    if sampling_probability is not None:
        _validate.number("sampling_probability", sampling_probability, above=0.0, at_most=1.0)
    if partitions is not None:
        _validate.integer("partitions", partitions, at_least=1)


def choose_scheme(
    *,
    sampling: Sampling,
    neighbors: Neighbors,
    records: int,
    shots: int,
    subsets: int,
    partitions: int | None,
    sampling_probability: float | None,
) -> Scheme:
    """Derive the missing sampling parameters, where deriving them is sound. Bounds are checked already.

    Under replace-one and zero-out the number of records is public, and K and q may come from it, once. Under
    add/remove it is private, and a K or q derived from it would break the guarantee: they must be given.

    Raises:
        InvalidParameter: There are too few records, or K or q is missing under add/remove.
    """
    public = neighbors is not Neighbors.ADD_OR_REMOVE_ONE
    if not public:
        missing = sampling_probability is None or (sampling == "fixed" and partitions is None)
        if missing:
            raise InvalidParameter(
                f"Expected partitions={partitions!r} and sampling_probability={sampling_probability!r} to be given "
                "under add/remove neighbours, where the number of records is private and nothing may be derived from "
                'it. Give constants (sampling="resample" needs sampling_probability only), or use replace-one.'
            )
    elif records < 1:
        raise InvalidParameter("Expected at least one example, but there are none. Give examples=[{text, label}, ...].")
    if sampling == "resample":
        if partitions is not None:
            raise InvalidParameter(f'Expected partitions={partitions} to be absent: "resample" uses subsets= as slots.')
        wanted = subsets * shots / max(records, 1)
        if sampling_probability is None and wanted > 1:
            raise _too_few(records, shots, subsets)
        return Scheme(sampling, subsets, sampling_probability or wanted, public)
    if partitions is not None and sampling_probability is None and partitions < subsets:
        raise InvalidParameter(
            f"Expected partitions={partitions} to be at least subsets={subsets}. Raise partitions= or lower subsets=."
        )
    groups = partitions if partitions is not None else records // shots
    if groups < (1 if sampling_probability is not None else subsets):
        raise _too_few(records, shots, 1 if sampling_probability is not None else subsets)
    return Scheme(sampling, groups, sampling_probability or subsets / groups, public)


def _too_few(records: int, shots: int, subsets: int) -> InvalidParameter:
    return InvalidParameter(
        f"Expected at least subsets * shots = {subsets} * {shots} = {subsets * shots} examples, but there are "
        f"{records}. Give more examples, or lower subsets= or shots=."
    )


class Electorate:
    """The private records in their subsets, and what each subset is asked.

    Thread-safe. Records may come and go; each such edit touches one subset, whose key changes.

    Args:
        records: Private examples.
        scheme: Sampling scheme.
        render: Turns an example into a shot.
        rng: Source of assignment and sampling coins.
    """

    def __init__(
        self,
        records: PrivateRecords,
        scheme: Scheme,
        render: Callable[[Mapping[str, Any]], Shot],
        rng: Randomness,
    ) -> None:
        self.scheme = scheme
        self._records = records
        self._shots: dict[str, Shot] = {record_id: render(records.get(record_id)) for record_id in records.ids()}
        self._render = render
        self._rng = rng
        self._q = Fraction(scheme.sampling_probability)
        self._lock = threading.Lock()
        self._key = secrets.token_hex(8)  # two classifiers on one engine never share a cache entry
        self._version = 0
        self._forgotten = 0
        self._fixed: FixedPartition | None = None
        self._versions: list[int] = []
        if scheme.sampling == "fixed":
            self._fixed = FixedPartition(self._shots, scheme.groups, even=scheme.even, rng=rng)
            self._versions = [0] * scheme.groups

    def draw(self, question: str) -> list[Ballot]:
        """Ballots of one release, by fresh coins."""
        with self._lock:
            if self._fixed is not None:
                return [self._ballot(subset, question) for subset in self._fixed.draw(self._q, self._rng)]
            slots = resample(list(self._shots), self.scheme.groups, self._q, self._rng)
            self._version += 1
            return [
                Ballot((self._key, self._version, slot), tuple(self._shots[member] for member in members), question)
                for slot, members in enumerate(slots)
            ]

    def one(self, question: str, rng: random.Random) -> list[Ballot]:
        """One subset as it is, chosen at random: plain few-shot prompting, without any privacy."""
        filled = [ballot for ballot in self.everyone(question) or self.draw(question) if ballot.shots]
        return [rng.choice(filled)] if filled else []

    def everyone(self, question: str) -> list[Ballot]:
        """Ballots of all fixed subsets (to warm caches); empty under "resample", which has nothing to keep."""
        with self._lock:
            return [] if self._fixed is None else [self._ballot(k, question) for k in range(len(self._fixed))]

    def _ballot(self, subset: int, question: str) -> Ballot:
        assert self._fixed is not None
        shots = tuple(self._shots[member] for member in self._fixed.members(subset))
        return Ballot(self._member(subset), shots, question)

    def _member(self, subset: int) -> Hashable:
        return (self._key, self._versions[subset], subset)

    def add(self, example: Mapping[str, Any], record_id: str | None) -> tuple[str, Hashable | None]:
        """Add a record by its own coin; returns its id and the key of the content that its subset had before."""
        with self._lock:
            shot = self._render(example)
            record_id = self._records.add(example, record_id=record_id)
            self._shots[record_id] = shot
            return record_id, self._changed(None if self._fixed is None else self._fixed.add(record_id))

    def forget(self, record_id: str) -> Hashable | None:
        """Remove a record; returns the key of the content that its subset had before."""
        with self._lock:
            self._records.forget(record_id)
            self._forgotten += 1
            del self._shots[record_id]
            return self._changed(None if self._fixed is None else self._fixed.forget(record_id))

    def _changed(self, subset: int | None) -> Hashable | None:
        if subset is None:
            return None
        before = self._member(subset)
        self._versions[subset] += 1
        return before

    @property
    def forgotten(self) -> int:
        """How many records were forgotten so far: answers from before belong to another page."""
        return self._forgotten

    def average_shot(self) -> str:
        """A shot of average length, for the operator's cost estimate. Private."""
        with self._lock:
            texts = sorted((f"{question} {word}\n\n" for question, word in self._shots.values()), key=len)
        mean = sum(map(len, texts)) / max(len(texts), 1)
        return min(texts, key=lambda text: abs(len(text) - mean), default="")
