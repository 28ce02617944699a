"""LimitedDomain top-1: the token with the most votes, from a vocabulary too large to put noise on every token."""

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

_MOVED, _APPEARED = 2, 1  # votes by which a token that a neighbour lacks can stand above the first one left out


@dataclasses.dataclass(frozen=True)
class LimitedDomain(Generic[T]):
    r"""Report the noisy top token of votes, or None ("bottom") where none stands out.

    Gumbel noise of scale 2/epsilon0 on the ``kbar`` largest counts and on a bottom of
    h_(kbar+1) + s + (2/epsilon0) ln((1-delta0)/delta0), argmax: h_(kbar+1) is the largest count left out, 0 if there is
    none, and s = 2 when votes move, 1 when they only appear. A token without votes is no candidate. A domain of at most
    ``kbar`` outcomes needs no threshold: the plain exponential mechanism over every one of them, votes or none, and
    never None. ``kbar`` stays what it is however many tokens have votes.

    Args:
        event: What one call costs: bounded-range parameter ``epsilon0``, in nats, and the mass ``delta0`` that the
            threshold may miss. Who is asked is drawn elsewhere, at the event's rate.
        domain: The public outcomes, whole numbers or strings, or their number where there are more than ``kbar``.
        kbar: Number of candidates beside bottom, at least 1. A public constant.
        moved_votes: True: a record can turn one vote into another. False: it can only make one appear or disappear,
            as under zero-out.

    Raises:
        InvalidParameter: A parameter is out of bounds, ``domain`` repeats an outcome, or it is a number not above
            ``kbar``.

    Formal guarantee:
        If one record moves at most one vote, one call is delta0-approximately epsilon0-bounded-range. If it only makes
        one appear or disappear, ``moved_votes=False`` is enough, and the call is so with epsilon0/2. It costs
        ``event``, which is charged by the neighbours: ``moved_votes=False`` is for zero-out only.

        Gumbel noise and argmax make P(token) proportional to b^(h_token) and P(None) to m b^(h_(kbar+1) + s), with
        b = e^(epsilon0/2) and m = (1-delta0)/delta0 [1, 2]. What is drawn, exactly, is that law with b rounded down to
        a rational number and m rounded up to a whole one. With any b > 1 and m >= 1 it is the mechanism itself, at
        epsilon' = 2 ln b and delta' = 1/(1+m): its threshold stands log_b m = (2/epsilon') ln((1-delta')/delta') votes
        above h_(kbar+1) + s. As epsilon' <= epsilon0 and delta' <= delta0, its guarantee covers the one above. Counted
        in votes, both roundings raise the threshold. Rounded the other way, b is a larger epsilon, m a larger delta.

        Ties in the ranking go to the smaller token, whatever the data, so that one vote takes at most one token out of
        the candidates. That token had at most h_(kbar+1) + s votes, hence a mass of at most 1/(1+m).

    References:
        [1] Durfee, Rogers. Practical differentially private top-k selection with pay-what-you-get composition.
            NeurIPS 2019, Section 5 (LimitedDomain with s = 1: there a record adds votes, and never moves one).
        [2] Dong, Durfee, Rogers. Optimal differential privacy composition for exponential mechanisms. ICML 2020.

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
        """A token, or None. Both are releases and cost the same. Nothing else may leave.

        Args:
            votes: Votes per token, whole numbers of at least 0. It may be empty. A
                vote for what is not in a ``domain`` given as a sequence is an abstention: an error here would tell of
                the record behind it.
            rng: Source of randomness. Operating-system entropy by default.

        Raises:
            InvalidParameter: ``votes`` is no mapping of tokens to counts. No message holds a vote.
        """
        candidates = self._candidates(votes)
        _, exponents, factors = zip(*candidates, strict=True)
        base = below_exp(Fraction(self.event.epsilon0) / 2)
        return candidates[draw(rng or SystemRandomness(), base, exponents, factors)][0]

    def _candidates(self, votes: Mapping[T, int]) -> list[tuple[T | None, int, int]]:
        """Triples (outcome, exponent x, factor m) of the law P(outcome) proportional to m b^x."""
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
