"""How records take part in a release: which sampling, at which rate. Constants, fixed once, all public."""

from __future__ import annotations

import dataclasses
import math

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import Sampling
from langchain_dp.errors import InvalidParameter


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

    def least_records(self, records: int) -> tuple[int, str]:
        """A number that delta has to stay far below one over, and what it counts: the records, where that is public.

        Where it is private, a constant that settings of sense have at least one record for.
        """
        if self.even:
            return records, "records"
        if self.sampling == "fixed":
            return self.groups, "subsets"
        return math.ceil(1 / self.sampling_probability), "draws that one record is expected in once"


def check_bounds(
    *,
    sampling: Sampling,
    shots: int,
    subsets: int,
    partitions: int | None,
    sampling_probability: float | None,
) -> None:
    """Raise InvalidParameter if a sampling parameter is out of bounds by itself."""
    validate.one_of("sampling", sampling, ("fixed", "resample"))
    validate.integer("shots", shots, at_least=1)
    validate.integer("subsets", subsets, at_least=1)
    if sampling_probability is not None:
        validate.number("sampling_probability", sampling_probability, above=0.0, at_most=1.0)
    if partitions is not None:
        validate.integer("partitions", partitions, at_least=1)


def choose_scheme(
    *,
    sampling: Sampling,
    neighbors: Neighbors,
    records: int,
    shots: int,
    subsets: int,
    partitions: int | None,
    sampling_probability: float | None,
    apart: int = 0,
) -> Scheme:
    """Derive the missing sampling parameters, where deriving them is sound. Bounds are checked already.

    Under replace-one and zero-out the number of records is public, and K and q may come from it, once. Under
    add/remove it is private, and a K or q derived from it would break the guarantee: they must be given.

    ``apart`` are records that are kept from the subsets; it is named where there are too few.

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
            raise _too_few(records, shots, subsets, apart)
        return Scheme(sampling, subsets, sampling_probability or wanted, public)
    if partitions is not None and sampling_probability is None and partitions < subsets:
        raise InvalidParameter(
            f"Expected partitions={partitions} to be at least subsets={subsets}. Raise partitions= or lower subsets=."
        )
    groups = partitions if partitions is not None else records // shots
    if groups < (1 if sampling_probability is not None else subsets):
        raise _too_few(records, shots, 1 if sampling_probability is not None else subsets, apart)
    return Scheme(sampling, groups, sampling_probability or subsets / groups, public)


def _too_few(records: int, shots: int, subsets: int, apart: int) -> InvalidParameter:
    beside = f" beside the {apart} that validation= sets apart" if apart else ""
    return InvalidParameter(
        f"Expected at least subsets * shots = {subsets} * {shots} = {subsets * shots} examples, but there are "
        f"{records}{beside}. Give more examples, or lower subsets= or shots=."
    )
