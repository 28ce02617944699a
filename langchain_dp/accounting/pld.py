"""A ``dp_accounting`` PLD accountant for the library's events and ours.

Our events become pessimistic connect-the-dots losses. Epsilon is an upper bound, with delta lost to rounding added.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

import numpy as np
from dp_accounting import UnsupportedEventError, dp_event
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import PLDAccountant, common, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft

from langchain_dp._util import validate
from langchain_dp.accounting import profiles, text_rounds
from langchain_dp.accounting.budget import neighbors_from
from langchain_dp.accounting.events import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    VectorSumEvent,
)
from langchain_dp.accounting.profiles import Array, Profile
from langchain_dp.errors import InvalidParameter, UnsupportedEvent

# dp_accounting 0.6 charges n randomized responses like one, so the library's events pass by name only.
_LIBRARY_EVENTS = (
    dp_event.NoOpDpEvent, dp_event.NonPrivateDpEvent, dp_event.ComposedDpEvent, dp_event.SelfComposedDpEvent,
    dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent, dp_event.PoissonSampledDpEvent,
)  # fmt: skip
MOST_COUNTS = 10**7  # above, composition takes minutes
_TAIL_MASS = 1e-16  # profile value below which the grid ends. The rest counts as infinite loss
_ROUNDING = 2.0**-50  # delta that one more release may lose in the library's Fourier transforms: 20 times the observed
_TRUNCATED = 1e-15  # probability that self-composition counts as infinite loss, as the library does
_MANY = 5_000  # releases from which self-composition bounds its range by orders of its own
_MAX_POINTS = 400_000
_MAX_LIBRARY_POINTS = 2**21  # of a library event beside finer ones. More take minutes
_FINEST, _COARSEST = 1e-6, 1e-2
_LEAST_SIGMA = 0.02  # one vote then loses some 1 / sigma^2 nats, beyond the largest loss below
_OWN_EVENTS = (NoisyMaxEvent, LimitedDomainEvent, ExponentialEvent, ClippedSumRoundEvent, VectorSumEvent)
_MOST_ADAPTIVE = 256  # releases. Beyond, the search for the worst sequence takes seconds
_LARGEST_LOSS = 600.0  # nats: exp() must stay finite. Larger losses count as infinite


class _Accountant(PLDAccountant):  # type: ignore[misc]  # dp_accounting ships no types
    _pld: PrivacyLossDistribution

    def _maybe_compose(
        self, event: DpEvent, count: int, do_compose: bool
    ) -> PLDAccountant.CompositionErrorDetails | None:
        if not isinstance(event, (*_OWN_EVENTS, MetricEvent)):
            if not isinstance(event, _LIBRARY_EVENTS):
                kinds = ", ".join(kind.__name__ for kind in _LIBRARY_EVENTS)
                message = f"Of the library's events these are known to be counted right: {kinds}"
                return self.CompositionErrorDetails(invalid_event=event, error_message=message)
            return super()._maybe_compose(event, count, do_compose)
        refusal = _refusal(event, self.neighboring_relation)
        if refusal:
            return self.CompositionErrorDetails(invalid_event=event, error_message=refusal)
        if do_compose and count:
            interval = self._value_discretization_interval
            self._pld = self._pld.compose(repeated(event, count, self.neighboring_relation, interval))
        return None


def epsilon(
    events: Sequence[tuple[DpEvent, int]], delta: float, *, neighbors: Neighbors | str = Neighbors.REPLACE_ONE
) -> float:
    """Return the total epsilon of ``events`` at ``delta``.

    Args:
        events: Pairs (event, count), in any order.
        delta: Target delta in (0, 1).
        neighbors: Neighboring relation, or its name.

    Returns:
        Epsilon in nats. Infinite above some 600 nats, or for delta below some 2e-15 per release.

    Raises:
        UnsupportedEvent: An event has no sound bound under these neighbors.

    Formal guarantee:
        Queries may depend on all earlier releases, but the events' parameters and maximum counts are fixed in advance.
        Then the composition is (epsilon, delta)-DP under adaptive and concurrent interaction (Vadhan and Zhang 2022;
        Lyu 2022). Disjoint parts (``PartEvent``) compose in parallel: given the split, neighbors differ within one
        part. So the total is the largest over the parts, each with the releases that read all data.

    Examples:
        >>> round(epsilon([(NoisyMaxEvent(10.0), 25)], delta=1e-5), 2)
        2.94
    """
    validate.number("delta", delta, above=0.0, below=1.0)
    neighbors = neighbors_from(neighbors)
    events = list(events) if isinstance(events, Iterable) else [events]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in events):
        raise InvalidParameter("Expected events to be pairs of an event and how many times. Write [(event, count)].")
    events = [(event, validate.integer("count", count, at_least=0, at_most=MOST_COUNTS)) for event, count in events]
    events = [(event, count) for event, count in events if count]
    if not events:
        return 0.0
    parts = {event.part for event, _ in events if isinstance(event, PartEvent)}
    whole = [(event, count) for event, count in events if not isinstance(event, PartEvent)]
    return max(
        _composed(
            [*whole, *((e.event, n) for e, n in events if isinstance(e, PartEvent) and e.part == part)],
            delta,
            neighbors,
        )
        for part in parts or {""}
    )


def _composed(events: Sequence[tuple[DpEvent, int]], delta: float, neighbors: Neighbors) -> float:
    for event, _ in events:
        if refusal := _refusal(event, neighbors):
            raise UnsupportedEvent(f"{refusal}.")
    # The mass that thresholds may miss is lost under any noise. Where little else is left, the library has no grid.
    log_missed = sum(
        count * math.log1p(-event.sampling_probability * event.delta0)
        for event, count in events
        if isinstance(event, LimitedDomainEvent)
    )
    if -math.expm1(log_missed) > delta:
        return math.inf
    lost = least_delta(events) / 2
    if delta < 2 * lost:
        return math.inf
    delta -= lost
    finest = grid(event for event, _ in events)
    groups: dict[float, list[tuple[DpEvent, int]]] = {}
    for event, count in events:
        groups.setdefault(_interval(event, neighbors, finest), []).append((event, count))
    for interval, group in groups.items():
        if any(_exceeds_grid(event, count, neighbors, interval, delta) for event, count in group):
            return math.inf
    try:
        loss = _of_groups(groups, neighbors)
        return math.inf if loss is None else _epsilon(loss, delta)
    except UnsupportedEventError as error:
        message = str(error)
    raise UnsupportedEvent(message)


def _interval(event: DpEvent, neighbors: Neighbors, finest: float) -> float:
    own = grid([event])
    if own <= finest:
        return finest
    if isinstance(event, _OWN_EVENTS):
        loss = privacy_loss(event, neighbors, own)
        points = max(loss._pmf_remove.size, loss._pmf_add.size) * own / finest
        too_many = points / _MAX_POINTS
    else:
        too_many = 2 * _loss_of_library(event) / finest / _MAX_LIBRARY_POINTS
    return finest if too_many <= 1 else min(own, finest * 2.0 ** math.ceil(math.log2(too_many)))


def _of_groups(
    groups: Mapping[float, Sequence[tuple[DpEvent, int]]], neighbors: Neighbors
) -> PrivacyLossDistribution | None:
    coarsest, whole = max(groups), None
    for interval, group in groups.items():
        accountant = _Accountant(neighbors, interval)
        for event, count in group:
            accountant.compose(event, count)
        if accountant._contains_non_dp_event:
            return None
        one = _coarser(accountant._pld, coarsest)
        whole = one if whole is None else whole.compose(one)
    return whole


def _coarser(loss: PrivacyLossDistribution, interval: float) -> PrivacyLossDistribution:
    """Round losses up to a coarser grid, which never lowers delta."""

    def rounded(pmf: pld_pmf.PLDPmf) -> pld_pmf.PLDPmf:
        dense = pmf.to_dense_pmf()
        ratio = round(interval / dense._discretization)
        if ratio == 1:
            return dense
        places = -(-(np.arange(dense.size) + dense._lower_loss) // ratio)
        probs = np.bincount(places - places[0], weights=dense._probs)
        return pld_pmf.DensePLDPmf(interval, int(places[0]), probs, dense._infinity_mass, True)

    return _by_direction(loss, rounded)


def _by_direction(
    loss: PrivacyLossDistribution, change: Callable[[pld_pmf.PLDPmf], pld_pmf.PLDPmf]
) -> PrivacyLossDistribution:
    if loss._symmetric:
        return PrivacyLossDistribution(change(loss._pmf_remove))
    return PrivacyLossDistribution(change(loss._pmf_remove), change(loss._pmf_add))


def _epsilon(loss: PrivacyLossDistribution, delta: float) -> float:
    """Compute ``get_epsilon_for_delta`` from arrays, which is faster."""

    def of(pmf: pld_pmf.PLDPmf) -> float:
        dense = pmf.to_dense_pmf()
        if dense._infinity_mass > delta:
            return math.inf
        probs = np.flip(dense._probs)
        losses = (dense._lower_loss + len(probs) - 1) * dense._discretization - dense._discretization * np.arange(
            len(probs)
        )
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            upper = np.cumsum(np.concatenate([[dense._infinity_mass], probs]))
            lower = np.cumsum(np.concatenate([[0.0], np.exp(-losses) * probs]))
            needed = np.log((upper - delta) / lower)
        ends = np.flatnonzero((upper[:-1] > delta) & (lower[:-1] > 0) & (needed[:-1] >= losses))
        vast = np.flatnonzero((upper[1:] >= delta) & (lower[1:] == 0))  # exp(-loss) underflows
        place = int(ends[0]) if len(ends) else len(probs)
        if len(vast) and vast[0] < place:
            return max(0.0, float(losses[vast[0]]))
        return 0.0 if upper[place] <= lower[place] + delta else float(needed[place])

    return max(0.0, of(loss._pmf_remove), 0.0 if loss._symmetric else of(loss._pmf_add))


def least_delta(events: Sequence[tuple[DpEvent, int]]) -> float:
    """Return the smallest delta that the accountant can resolve. Each composed release may lose 2**-50 to rounding."""
    transforms = sum(1 if _is_adaptive(event, count) else count for event, count in events) - 1
    return 2 * _ROUNDING * max(transforms, 0)


def _exceeds_grid(event: DpEvent, count: int, neighbors: Neighbors, interval: float, delta: float) -> bool:
    noise = getattr(event, "sigma", getattr(event, "noise_multiplier", math.inf))
    if isinstance(event, (NoisyMaxEvent, VectorSumEvent)) and noise < _LEAST_SIGMA:
        return True
    if not isinstance(event, _OWN_EVENTS):
        return _loss_of_library(event) > _LARGEST_LOSS
    if float(privacy_loss(event, neighbors, interval).get_delta_for_epsilon(_LARGEST_LOSS)) > delta:
        return True
    if not _is_adaptive(event, count):
        return False
    return float(_profile_of_all(event, count, neighbors)(np.array([_LARGEST_LOSS]))[0]) > delta


def grid(events: Iterable[DpEvent]) -> float:
    spread = min((_spread(event) for event in events), default=1.0)
    # quantized to powers of two, so that close parameters in a root search share one grid
    return 2.0 ** math.floor(math.log2(min(max(0.03 * spread, _FINEST), _COARSEST)))


def _spread(event: DpEvent) -> float:
    if isinstance(event, NoisyMaxEvent):
        chi_squared = math.expm1(min(2 / event.sigma**2, 50.0))
        return min(event.sampling_probability * math.sqrt(chi_squared), 2 / event.sigma)
    if isinstance(event, LimitedDomainEvent):
        return event.sampling_probability * event.epsilon0 / 2
    if isinstance(event, ExponentialEvent):
        return event.epsilon / 2
    if isinstance(event, ClippedSumRoundEvent):
        most = event.epsilon0 * event.tokens  # a share of it, so that the grid stays within its bound of points
        return max(event.sampling_probability * event.epsilon0 * math.sqrt(event.tokens) / 2, most / 4000)
    if isinstance(event, VectorSumEvent):
        return 1 / event.noise_multiplier
    return max(2e-3, _loss_of_library(event) / 15_000)  # for noise so small that a fine grid would take gigabytes


def _loss_of_library(event: DpEvent) -> float:
    name = type(event).__name__
    if isinstance(event, (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)):
        noise = validate.number(f"{name}.noise_multiplier", event.noise_multiplier, at_least=0.0)
        shift = 1 / noise if noise else math.inf
        return shift if isinstance(event, dp_event.LaplaceDpEvent) else shift * (shift / 2 + 12)
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        validate.number(f"{name}.sampling_probability", event.sampling_probability, at_least=0.0, at_most=1.0)
    inner = event.events if isinstance(event, dp_event.ComposedDpEvent) else [getattr(event, "event", None)]
    return max((_loss_of_library(one) for one in inner if one is not None), default=0.0)


def _refusal(event: DpEvent, neighbors: Neighbors) -> str:
    if isinstance(event, MetricEvent):
        return "Metric privacy is a unit of its own (nats per unit of distance) and is never added to an epsilon"
    if isinstance(event, NoisyMaxEvent) and event.sampling == "resample" and neighbors is Neighbors.REPLACE_SPECIAL:
        return (
            'NoisyMaxEvent with sampling="resample" is not accounted for under REPLACE_SPECIAL (zero-out): use '
            'sampling="fixed" or Neighbors.REPLACE_ONE'
        )
    if (
        isinstance(event, LimitedDomainEvent)
        and event.sampling == "resample"
        and neighbors is not Neighbors.ADD_OR_REMOVE_ONE
    ):
        return 'LimitedDomain with sampling="resample" has a proof under add/remove only: use sampling="fixed"'
    return ""


def repeated(event: DpEvent, count: int, neighbors: Neighbors, interval: float) -> PrivacyLossDistribution:
    """Return the joint loss of ``count`` releases. LimitedDomain calls cost the worst adaptive sequence."""
    if _is_adaptive(event, count):
        return _symmetric(_profile_of_all(event, count, neighbors), interval, make_convex=True)
    loss = privacy_loss(event, neighbors, interval)
    if count < _MANY:
        return loss.self_compose(count)
    return _by_direction(loss, functools.partial(_self_composed, count=count))


def _self_composed(pmf: pld_pmf.PLDPmf, count: int) -> pld_pmf.DensePLDPmf:
    """Compose in a narrower range than the library. Chernoff's bound holds at any order."""
    dense = pmf.to_dense_pmf()
    probs, places = dense._probs, np.arange(dense.size)
    mean = probs @ places / probs.sum()
    variance = max(probs @ (places - mean) ** 2, 1e-300)
    best = math.sqrt(2 * math.log(2 / _TRUNCATED) / (count * variance))
    orders = [sign * scale * best for scale in (0.5, 0.8, 1.0, 1.25, 2.0) for sign in (-1, 1)]
    low, high = common.compute_self_convolve_bounds(probs, count, _TRUNCATED, orders=orders)
    size = high - low + 1
    length = fft.next_fast_len(max(size, dense.size), real=True)
    composed = np.roll(fft.irfft(fft.rfft(probs, length) ** count, length), -low)[:size]
    infinite = _TRUNCATED - math.expm1(count * math.log1p(-dense._infinity_mass))
    return pld_pmf.DensePLDPmf(dense._discretization, dense._lower_loss * count + low, composed, infinite, True)


def _is_adaptive(event: DpEvent, count: int) -> TypeGuard[LimitedDomainEvent]:
    everybody = isinstance(event, LimitedDomainEvent) and event.sampling_probability == 1
    return everybody and 1 < count <= _MOST_ADAPTIVE


def _profile_of_all(event: LimitedDomainEvent, count: int, neighbors: Neighbors) -> Profile:
    bound = event.epsilon0 / 2 if neighbors is Neighbors.REPLACE_SPECIAL else event.epsilon0
    missed = -math.expm1(count * math.log1p(-event.delta0))

    def profile(epsilons: Array) -> Array:
        inner = text_rounds.composed_bounded_range(epsilons, bound=bound, times=count)
        return np.asarray(missed + (1 - missed) * inner)

    return profile


@functools.lru_cache(maxsize=64)
def privacy_loss(event: DpEvent, neighbors: Neighbors, interval: float) -> PrivacyLossDistribution:
    if isinstance(event, NoisyMaxEvent):
        return _noisy_max(event, neighbors, interval)
    if isinstance(event, LimitedDomainEvent):
        return _limited_domain(event, neighbors, interval)
    if isinstance(event, ExponentialEvent):
        bound = event.epsilon * (2 if neighbors is Neighbors.REPLACE_ONE else 1)
        return _symmetric(functools.partial(profiles.bounded_range, bound=bound), interval)
    if isinstance(event, ClippedSumRoundEvent):
        return _text_round(event, neighbors, interval)
    if isinstance(event, VectorSumEvent):
        distance, sigma = event.distance(neighbors), event.noise_multiplier
        return _symmetric(functools.partial(profiles.gaussian, distance=distance, sigma=sigma), interval)
    raise UnsupportedEvent(f"Expected event={type(event).__name__} to be one of this package's events.")


def _noisy_max(event: NoisyMaxEvent, neighbors: Neighbors, interval: float) -> PrivacyLossDistribution:
    sigma, q = event.sigma, event.sampling_probability
    zero_out = neighbors is Neighbors.REPLACE_SPECIAL
    if event.sampling == "fixed" and not zero_out:
        return _symmetric(functools.partial(profiles.noisy_max_fixed, sigma=sigma, q=q), interval)
    if event.sampling == "resample" and neighbors is Neighbors.REPLACE_ONE:
        # Old and new record share the coins of their slot: by advanced joint convexity the pair is below the
        # remove profile at epsilon >= 0 in both directions, and below its reflection (the add profile) at < 0.
        base = functools.partial(profiles.gaussian, distance=math.sqrt(2), sigma=sigma)
        return _symmetric(functools.partial(profiles.poisson_remove, base, q), interval)
    # The two Poisson-subsampled Gaussian pairs of dp_accounting, in a closed form that is three times as fast.
    distance = 1.0 if zero_out else math.sqrt(2)
    base = functools.partial(profiles.gaussian, distance=distance, sigma=sigma)
    remove = functools.partial(profiles.poisson_remove, base, q)
    add = functools.partial(profiles.poisson_add, base, q)
    return _pair(remove, add, interval)


def _limited_domain(event: LimitedDomainEvent, neighbors: Neighbors, interval: float) -> PrivacyLossDistribution:
    epsilon0, delta0, q = event.epsilon0, event.delta0, event.sampling_probability
    zero_out = neighbors is Neighbors.REPLACE_SPECIAL
    if event.sampling == "fixed" and not zero_out:
        fixed = functools.partial(profiles.limited_domain_fixed, epsilon0=epsilon0, delta0=delta0, q=q)
        return _symmetric(fixed, interval, make_convex=True)
    # Zero-out: a vote appears or disappears, so Gumbel noise of scale 2/epsilon0 gives half the range.
    bound = epsilon0 / 2 if zero_out else epsilon0
    base = functools.partial(profiles.bounded_range, bound=bound)

    def missed_or(direction: Callable[[Profile, float, Array], Array]) -> Profile:
        # The mass that a threshold may miss is lost in both directions, so the grid may end where the noise does.
        return lambda epsilons: q * delta0 + (1 - delta0) * direction(base, q, epsilons)

    return _pair(missed_or(profiles.poisson_remove), missed_or(profiles.poisson_add), interval)


def _text_round(event: ClippedSumRoundEvent, neighbors: Neighbors, interval: float) -> PrivacyLossDistribution:
    bound, tokens, q = event.epsilon0, event.tokens, event.sampling_probability
    if neighbors is Neighbors.REPLACE_ONE:
        replaced = functools.partial(text_rounds.text_round, bound=bound, tokens=tokens, q=q)
        return _symmetric(replaced, interval, make_convex=True)
    # The record is there or not, also with a ghost in its place: half the range, an ordinary Poisson pair.
    base = functools.partial(text_rounds.composed_bounded_range, bound=bound / 2, times=tokens)
    remove = functools.partial(profiles.poisson_remove, base, q)
    add = functools.partial(profiles.poisson_add, base, q)
    return _pair(remove, add, interval)


def _symmetric(profile: Profile, interval: float, *, make_convex: bool = False) -> PrivacyLossDistribution:
    return PrivacyLossDistribution(_pmf(profile, profile, interval, make_convex=make_convex))


def _pair(forward: Profile, backward: Profile, interval: float) -> PrivacyLossDistribution:
    return PrivacyLossDistribution(_pmf(forward, backward, interval), _pmf(backward, forward, interval))


def _pmf(forward: Profile, backward: Profile, interval: float, *, make_convex: bool = False) -> pld_pmf.PLDPmf:
    upper, lower = _end(forward, interval), -_end(backward, interval)
    if upper - lower > _MAX_POINTS:
        raise InvalidParameter(
            f"Expected a privacy loss grid of {upper - lower} points to be at most {_MAX_POINTS}. "
            "The noise of one release is too small to account for: give it more."
        )
    epsilons: Array = interval * np.arange(lower, upper + 1, dtype=np.float64)
    deltas = profiles.at_any_epsilon(forward, backward, epsilons)
    if make_convex:
        deltas = profiles.convex_minorant(epsilons, deltas)
    deltas = np.minimum.accumulate(deltas)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)


def _end(profile: Profile, interval: float) -> int:
    """Return the index beyond which the profile is flat."""
    floor = float(profile(np.array([_LARGEST_LOSS]))[0])
    most = min(_MAX_POINTS, int(_LARGEST_LOSS / interval))

    def fallen(index: int) -> bool:
        return float(profile(np.array([index * interval]))[0]) <= floor + _TAIL_MASS

    high = 1
    while not fallen(high) and high < most:
        high = min(2 * high, most)
    low = high // 2 if fallen(high) else most - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fallen(middle) else (middle, high)
    return high
