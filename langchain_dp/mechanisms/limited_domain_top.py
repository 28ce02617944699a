"""LimitedDomain top-1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Generic, TypeVar

from langchain_dp._util import validate
from langchain_dp.accounting.events import LimitedDomainEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.exponential_choice import below_exp, check_counts, draw
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

T = TypeVar("T", bound=int | str)

_MOVED, _APPEARED = 2, 1  # votes by which a token that a neighbor lacks can stand above the first one left out


@dataclasses.dataclass(frozen=True)
class LimitedDomain(Generic[T]):
    r"""Report the noisy most voted token of a large vocabulary, or None ("bottom") where none stands out.

    Gumbel noise of scale 2/epsilon0 goes on the ``kbar`` largest counts and on a bottom of h_(kbar+1) + s +
    (2/epsilon0) ln((1-delta0)/delta0), with h_(kbar+1) the largest count left out, or 0. s is 2 when votes move, 1 when
    they only appear. The argmax is released. Tokens without votes are no candidates. A domain of at most ``kbar``
    outcomes gets the plain exponential mechanism, and never None.

    Args:
        event: Cost of one call: bounded-range parameter ``epsilon0``, in nats, and mass ``delta0`` that the threshold
            may miss. The caller samples at the event's rate.
        domain: Public outcomes, or their number if above ``kbar``.
        kbar: Number of candidates beside bottom. A public constant.
        moved_votes: False if a record can only make a vote appear or disappear, as under zero-out.

    Formal guarantee:
        If one record moves at most one vote, one call is delta0-approximately epsilon0-bounded-range. With
        ``moved_votes=False``, for zero-out only, it is so with epsilon0/2. One call costs ``event``.

        P(token) is proportional to b^(h_token) and P(None) to m b^(h_(kbar+1) + s), with b = e^(epsilon0/2) and m =
        (1-delta0)/delta0 [1, 2]. The exact draw rounds b down to a rational and m up to a whole number, which lowers
        epsilon0 and delta0.

        Ties go to the smaller token, so one vote removes at most one candidate. That token had at most h_(kbar+1) + s
        votes, hence a mass of at most 1/(1+m).

    References:
        [1] Durfee, Rogers. NeurIPS 2019, Section 5 (with s = 1: a record never moves a vote).
        [2] Dong, Durfee, Rogers. ICML 2020.

    Examples:
        >>> mechanism = LimitedDomain(LimitedDomainEvent(1.0, 1e-6), domain=50_000)
        >>> ledger.spend(mechanism.event)  # charge first, then draw
        >>> mechanism.release({17: 90, 4: 3})
        17
    """

    event: LimitedDomainEvent
    _: dataclasses.KW_ONLY
    domain: int | Sequence[T]
    kbar: int = 10
    moved_votes: bool = True

    def __post_init__(self) -> None:
        validate.integer("kbar", self.kbar, at_least=1)
        validate.one_of("moved_votes", self.moved_votes, (True, False))
        _check_domain(self.domain, self.kbar)
        if not isinstance(self.domain, int):
            object.__setattr__(self, "domain", tuple(self.domain))  # frozen, whatever becomes of the caller's list

    def release(self, votes: Mapping[T, int], *, rng: Randomness | None = None) -> T | None:
        """Return a token or None. Both cost the same, and only they may leave.

        Args:
            votes: Votes per token. A vote outside of a listed ``domain`` abstains, because an error would reveal its
                record.
            rng: Source of randomness.

        Raises:
            InvalidParameter: ``votes`` is no mapping of tokens to counts. The message shows no vote.
        """
        candidates = self._candidates(votes)
        _, exponents, factors = zip(*candidates, strict=True)
        base = below_exp(Fraction(self.event.epsilon0) / 2)
        return candidates[draw(rng or SystemRandomness(), base, exponents, factors)][0]

    def _candidates(self, votes: Mapping[T, int]) -> list[tuple[T | None, int, int]]:
        """Return triples (outcome, x, m): P(outcome) is proportional to m b^x."""
        if not isinstance(votes, Mapping) or not _are_tokens(votes):
            raise InvalidParameter(
                "Expected votes to map whole numbers or strings to counts. Give a collections.Counter."
            )
        check_counts(votes.values())
        inside = None if isinstance(self.domain, int) else dict.fromkeys(self.domain)
        if inside is not None and len(inside) <= self.kbar:
            return [(outcome, votes.get(outcome, 0), 1) for outcome in inside]
        ranked = sorted(
            ((token, count) for token, count in votes.items() if count and (inside is None or token in inside)),
            key=lambda vote: (-vote[1], isinstance(vote[0], str), vote[0]),  # a total order: numbers before strings
        )
        left_out = ranked[self.kbar][1] if len(ranked) > self.kbar else 0
        delta = Fraction(self.event.delta0)
        threshold = left_out + (_MOVED if self.moved_votes else _APPEARED)
        bottom = (None, threshold, math.ceil((1 - delta) / delta))
        return [*((token, count, 1) for token, count in ranked[: self.kbar]), bottom]


def _are_tokens(values: Iterable[object]) -> bool:
    return all(issubclass(kind, (int, str)) for kind in set(map(type, values)))


def _check_domain(domain: int | Sequence[object], kbar: int) -> None:
    if isinstance(domain, int):
        remedy = f"A domain of at most kbar={kbar} outcomes has to be given as a sequence of them."
        validate.integer("domain", domain, at_least=kbar + 1, remedy=remedy)
        return
    listed = isinstance(domain, Sequence) and not isinstance(domain, str)
    if not listed or not domain or not _are_tokens(domain):
        raise InvalidParameter(
            f"Expected domain of type {type(domain).__name__} to be a number of outcomes, or a sequence of them: whole "
            "numbers or strings, at least one."
        )
    if len(set(domain)) < len(domain):
        raise InvalidParameter(f"Expected domain of {len(domain)} outcomes to hold each of them once.")
