"""Events: frozen public parameters of releases."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, TypeAlias

from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

Neighbors: TypeAlias = NeighboringRelation
"""REPLACE_ONE, ADD_OR_REMOVE_ONE or REPLACE_SPECIAL (zero-out)."""

SamplingName = Literal["fixed", "resample"]

_SCHEMES = ("fixed", "resample")
MOST_EPSILON0 = 20.0
"""Larger values give no privacy to account for."""
MOST_TOKENS = 512


def _set(event: DpEvent, **values: float) -> None:
    """Store converted values, so that NoisyMaxEvent(1) equals NoisyMaxEvent(1.0)."""
    for name, value in values.items():
        object.__setattr__(event, name, value)  # frozen: the only way


def _rate(sampling_probability: float) -> float:
    return validate.number("sampling_probability", sampling_probability, above=0.0, at_most=1.0)


@dataclasses.dataclass(frozen=True)
class NoisyMaxEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One report-noisy-max release of a vote in which one record moves at most one vote.

    Args:
        sigma: Standard deviation of the Gaussian noise on EVERY class count, in votes.
        sampling_probability: Rate of records (resample) or subsets (fixed).
        sampling: "fixed": records stay in their subset, which takes part with this probability. "resample": each
            release Poisson-samples the records and splits them again.

    Examples:
        >>> event = NoisyMaxEvent(sigma=10.0, sampling_probability=0.1)
        >>> round(epsilon([(event, 50)], delta=1e-5), 2)
        0.34
    """

    sigma: float
    sampling_probability: float = 1.0
    sampling: SamplingName = "fixed"

    def __post_init__(self) -> None:
        sigma = validate.number("sigma", self.sigma, above=0.0, remedy="Calibrate it with calibrate_noisy_max.")
        _set(self, sigma=sigma, sampling_probability=_rate(self.sampling_probability))
        validate.one_of("sampling", self.sampling, _SCHEMES)


@dataclasses.dataclass(frozen=True)
class LimitedDomainEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One call of LimitedDomain top-1. A token and a bottom cost the same.

    Args:
        epsilon0: Bounded-range parameter of the call. The Gumbel scale is 2/epsilon0.
        delta0: Mass that the threshold may miss.
        sampling_probability: As in :class:`NoisyMaxEvent`.
        sampling: As in :class:`NoisyMaxEvent`.

    Examples:
        >>> event = LimitedDomainEvent(epsilon0=0.1, delta0=1e-8)
        >>> round(epsilon([(event, 100)], delta=1e-5), 2)
        2.02
    """

    epsilon0: float
    delta0: float
    sampling_probability: float = 1.0
    sampling: SamplingName = "fixed"

    def __post_init__(self) -> None:
        epsilon0 = validate.number("epsilon0", self.epsilon0, above=0.0)
        delta0 = validate.number("delta0", self.delta0, above=0.0, below=1.0)
        _set(self, epsilon0=epsilon0, delta0=delta0, sampling_probability=_rate(self.sampling_probability))
        validate.one_of("sampling", self.sampling, _SCHEMES)


@dataclasses.dataclass(frozen=True)
class ExponentialEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One selection by the exponential mechanism, P(j) proportional to exp(``epsilon`` * count_j).

    A record that joins or leaves changes counts by at most one, all in one direction (monotone). So the release is
    epsilon-bounded-range under add/remove and zero-out, and twice that under replace-one.

    Examples:
        >>> event = ExponentialEvent(0.5)
        >>> round(epsilon([(event, 1)], delta=1e-5), 1)
        1.0
    """

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, epsilon=validate.number("epsilon", self.epsilon, above=0.0))


@dataclasses.dataclass(frozen=True)
class ClippedSumRoundEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One round of texts, written token by token from clipped sums of members that are drawn once per round.

    A record is a member with probability q, independently per round. Replacing it changes one text, or two by half as
    much each if its label changes.

    Args:
        epsilon0: Bounded-range parameter of one token if a member's record is replaced. Half if it is added or removed.
        tokens: Most tokens of one text. A short text costs the same.
        sampling_probability: Rate q of the members.

    Examples:
        >>> event = ClippedSumRoundEvent(epsilon0=0.4, tokens=40, sampling_probability=0.06)
        >>> round(epsilon([(event, 16)], delta=1e-5), 1)
        2.5
    """

    epsilon0: float
    tokens: int
    sampling_probability: float = 1.0

    def __post_init__(self) -> None:
        epsilon0 = validate.number("epsilon0", self.epsilon0, above=0.0, at_most=MOST_EPSILON0)
        # A ledger keeps every number as a float.
        given: float = self.tokens
        whole = int(given) if isinstance(given, float) and given.is_integer() else self.tokens
        tokens = validate.integer("tokens", whole, at_least=1, at_most=MOST_TOKENS)
        _set(self, epsilon0=epsilon0, tokens=tokens, sampling_probability=_rate(self.sampling_probability))


@dataclasses.dataclass(frozen=True)
class VectorSumEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One noisy sum of vectors, to which each record adds one vector of bounded L2 norm.

    Args:
        noise_multiplier: Standard deviation of the Gaussian noise per coordinate, divided by the norm bound.
        replaced: Largest distance between two records' vectors, divided by the norm bound: 2 for any directions,
            sqrt(2) without negative coordinates, 1 for a single number of at least 0.

    Examples:
        >>> event = VectorSumEvent(noise_multiplier=7.46)
        >>> round(epsilon([(event, 1)], delta=1e-5), 2)
        1.0
    """

    noise_multiplier: float
    replaced: float = 2.0

    def __post_init__(self) -> None:
        remedy = "Calibrate it with calibrate_vector_sum."
        noise = validate.number("noise_multiplier", self.noise_multiplier, above=0.0, remedy=remedy)
        _set(
            self, noise_multiplier=noise, replaced=validate.number("replaced", self.replaced, at_least=1.0, at_most=2.0)
        )

    def distance(self, neighbors: Neighbors) -> float:
        """Return the distance of neighbors' sums, divided by the norm bound."""
        return self.replaced if neighbors is Neighbors.REPLACE_ONE else 1.0


@dataclasses.dataclass(frozen=True)
class MetricEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """One release under metric privacy, at ``eta`` nats per unit of distance. It never adds to an epsilon.

    Examples:
        >>> MetricEvent(eta=12.0).eta
        12.0
    """

    eta: float

    def __post_init__(self) -> None:
        _set(self, eta=validate.number("eta", self.eta, above=0.0))


@dataclasses.dataclass(frozen=True)
class PartEvent(DpEvent):  # type: ignore[misc]  # dp_accounting ships no types
    """The release ``event`` on the disjoint part of the data with the public name ``part``.

    A record's part is drawn from its slot or id alone, so a record pays for the releases of its part only (parallel
    composition).

    Examples:
        >>> event = NoisyMaxEvent(10.0)
        >>> apart = [(PartEvent("even", event), 50), (PartEvent("odd", event), 50)]
        >>> epsilon(apart, delta=1e-5) == epsilon([(event, 50)], delta=1e-5)
        True
    """

    part: str
    event: DpEvent

    def __post_init__(self) -> None:
        if not isinstance(self.part, str) or not self.part:
            raise InvalidParameter(f"Expected part={self.part!r} to be the name of a part of the data.")
        if not isinstance(self.event, DpEvent) or isinstance(self.event, PartEvent):
            raise InvalidParameter(f"Expected event={self.event!r} to be a release, and not a part of a part.")


def count_is_public(neighbors: Neighbors) -> bool:
    return neighbors is not Neighbors.ADD_OR_REMOVE_ONE


def votes_move(neighbors: Neighbors) -> bool:
    return neighbors is not Neighbors.REPLACE_SPECIAL


_OURS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        NoisyMaxEvent, LimitedDomainEvent, ExponentialEvent, ClippedSumRoundEvent, VectorSumEvent, MetricEvent,
    )
}  # fmt: skip
_WITHIN: dict[str, tuple[type[DpEvent], str]] = {
    "PartEvent": (PartEvent, "part"),
    "PoissonSampledDpEvent": (PoissonSampledDpEvent, "sampling_probability"),
}
_NOISES: dict[str, type[DpEvent]] = {"GaussianDpEvent": GaussianDpEvent, "LaplaceDpEvent": LaplaceDpEvent}


def event_to_json(event: DpEvent) -> str:
    return json.dumps(_as_dict(event), sort_keys=True, separators=(",", ":"))


def _as_dict(event: DpEvent) -> dict[str, Any]:
    name = type(event).__name__
    if name in _OURS:
        return {"event": name, **dataclasses.asdict(event)}
    if name in _WITHIN:
        field = _WITHIN[name][1]
        value = getattr(event, field)
        return {"event": name, field: value if isinstance(value, str) else float(value), "of": _as_dict(event.event)}
    if name in _NOISES:
        return {"event": name, "noise_multiplier": float(event.noise_multiplier)}
    raise InvalidParameter(
        f"Expected event={name} to be one of {sorted(_OURS)} or Part, Gaussian, Laplace, PoissonSampled. "
        "Other events can be accounted for with epsilon(), but not stored in a ledger."
    )


def event_from_json(text: str) -> DpEvent:
    return _from_dict(json.loads(text))


def _from_dict(fields: dict[str, Any]) -> DpEvent:
    rest = dict(fields)
    name = rest.pop("event", None)
    if name in _OURS:
        return _OURS[name](**rest)
    if name in _WITHIN:
        kind, field = _WITHIN[name]
        return kind(rest[field], _from_dict(rest["of"]))
    if name in _NOISES:
        return _NOISES[name](rest["noise_multiplier"])
    raise InvalidParameter(f"Expected event={name!r} to be one of {sorted(_OURS)} or a stored library event.")
