"""The whole optimizer on worst-case neighbours: what is measured stays below what is charged, and faults do not.

A candidate is one call of the mechanism, one token long, and its outcome is the token or nothing. Every record sits
alone in its subset and votes for the token that it names; the neighbour names the other one.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
from audit_tools import lower, upper, violates
from fakes.next_token import WordEngine
from fakes.optimizers import optimizer

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import LedgerPlan, LimitedDomainEvent, PartEvent, epsilon
from langchain_dp.accounting.events import event_from_json
from langchain_dp.mechanisms import LimitedDomain
from langchain_dp.opt import data
from langchain_dp.opt.voters import PrivateVote

pytestmark = pytest.mark.statistical

FIRST, SECOND = WordEngine().tokenize("Say Think")
"""Ties go to the first."""


class Copying(WordEngine):
    """Each member writes the token that its record names."""

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        return [FIRST if "say" in one.prompt.body else SECOND for one in asked]


@pytest.fixture(autouse=True)
def last_record_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The split is fixed, so that the votes are: its coins are independent of the data anyhow."""
    monkeypatch.setattr(data, "split", lambda ids, *_, **__: (ids[:-1], ids[-1:]))


def released(first: int, second: int, calls: int, **changes: Any) -> tuple[Counter[Any], LimitedDomainEvent]:
    """How often each token (None: no token) came out of these votes, and what one call was charged as."""
    found: Counter[Any] = Counter()
    at_once = calls // 10 if changes["delta0"] < 0.05 else 20
    for _ in range(calls // at_once):
        ledger = PrivacyLedger(PrivacyBudget(500.0, 0.999))
        rows = [{"text": "say", "label": "negative"}] * first + [{"text": "think", "label": "positive"}] * (second + 1)
        settings: dict[str, Any] = {"shots": 1, "partitions": first + second, "max_retries": 0} | changes
        settings["validation"] = 1 / len(rows)
        made = optimizer(Copying(), ledger=ledger, num_prompts=at_once, max_new_tokens=1, max_calls=at_once, **settings)
        made.invoke(rows)
        events = [event_from_json(entry.event) for entry in ledger.entries()]
        [charged] = {event.event for event in events if isinstance(event, PartEvent) and event.part == "training"}
        said = Counter(made.released())
        found.update({FIRST: said["Say"], SECOND: said["Think"], None: at_once - said.total()})
    return found, charged


def exceeds(one: Counter[Any], other: Counter[Any], charged: LimitedDomainEvent, delta: float) -> bool:
    """Whether any set of outcomes, either way round, disproves what one call was charged."""
    claim = epsilon([(charged, 1)], delta)
    runs = one.total()
    assert other.total() == runs
    sets = [(FIRST,), (SECOND,), (None,), (FIRST, None), (SECOND, None), (FIRST, SECOND)]
    return any(
        violates(sum(a[each] for each in outcome), sum(b[each] for each in outcome), runs, epsilon=claim, delta=delta)
        for outcome in sets
        for a, b in ((one, other), (other, one))
    )


# Seven votes each, and six against eight. Noise of half the scale: 0.50 against 0.008 for the first token.
TIE: dict[str, Any] = {"epsilon0": 2.4, "delta0": 0.01, "kbar": 10}
# One candidate only: the second token is lost at (3, 3), and stands on the threshold at (2, 4): mass 1/(1+4) there.
LOST: dict[str, Any] = {"epsilon0": 2.5, "delta0": 0.2, "kbar": 1}


def test_noise_is_as_wide_as_it_is_charged() -> None:
    """If it breaks, the mechanism draws with another scale than the ledger is told (Gumbel 1/epsilon0: twice the loss).

    1400 calls on either data set: the sound scale fails at 1e-6, and half of it passes with less than 1e-4.
    """
    one, charged = released(7, 7, 1400, **TIE)
    other, _ = released(6, 8, 1400, **TIE)
    assert charged == LimitedDomainEvent(2.4, 0.01, 1.0, "fixed")
    assert not exceeds(one, other, charged, 0.05)
    # 1/(2 + 99 b^-5) and 1/(1 + b^2 + 99 b^-4) with b = e^1.2: the law itself
    for found, share in ((one[FIRST], 0.4454), (other[FIRST], 0.0779)):
        assert lower(found, 1400) <= share <= upper(found, 1400)


def test_half_the_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the audit above is blind."""
    draw = LimitedDomain.release

    def half(self: LimitedDomain[Any], votes: Any, **rest: Any) -> Any:
        event = dataclasses.replace(self.event, epsilon0=2 * self.event.epsilon0)
        return draw(dataclasses.replace(self, event=event), votes, **rest)

    monkeypatch.setattr(LimitedDomain, "release", half)
    one, charged = released(7, 7, 1400, **TIE)
    other, _ = released(6, 8, 1400, **TIE)
    assert exceeds(one, other, charged, 0.05)


def test_the_threshold_is_as_high_as_it_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a token that the neighbour can never release comes more often than delta0 ("+1" instead of "+2").

    Mass of the lost token: 0.2 with "+2", 0.47 with "+1", and 0 on the neighbour: 1300 calls fail the sound threshold
    at 1e-6 and pass the other with less than 1e-4.
    """
    one, charged = released(2, 4, 1300, **LOST)
    other, _ = released(3, 3, 1300, **LOST)
    assert other[SECOND] == 0
    assert not exceeds(one, other, charged, 0.22)
    assert lower(one[SECOND], 1300) <= 0.2 <= upper(one[SECOND], 1300)
    draw = LimitedDomain.release
    monkeypatch.setattr(
        LimitedDomain,
        "release",
        lambda self, votes, **rest: draw(dataclasses.replace(self, moved_votes=False), votes, **rest),
    )
    assert exceeds(released(2, 4, 1300, **LOST)[0], other, charged, 0.22)


# A single voter among eleven that abstain, at q = 0.8: its token has mass 0.8 / (1 + 4 e^0.25) = 0.13.
LONELY: dict[str, Any] = {"epsilon0": 0.5, "delta0": 0.2, "partitions": 12, "sampling_probability": 0.8}


def test_a_call_that_is_made_again_for_free_is_seen_at_a_rate_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, amplification is charged for that is not drawn, or retries leak what nobody pays for.

    Four retries without a charge take the mass of a token that the neighbour never votes for from 0.13 to 0.5.
    """
    one, charged = released(0, 1, 400, **LONELY)
    other, _ = released(1, 0, 400, **LONELY)
    assert charged == LimitedDomainEvent(0.5, 0.2, 0.8, "fixed")
    assert not exceeds(one, other, charged, 0.17)
    assert lower(one[SECOND], 400) <= 0.8 / (1 + 4 * math.exp(0.25)) <= upper(one[SECOND], 400)
    call = PrivateVote.next_token

    def again(self: PrivateVote, message: int, written: Any) -> Any:
        token = call(self, message, written)
        with pytest.MonkeyPatch.context() as free:
            free.setattr(LedgerPlan, "spend", lambda *args, **settings: None)
            for _ in range(4):
                token = call(self, message, written) if token is None else token
        return token

    monkeypatch.setattr(PrivateVote, "next_token", again)
    assert exceeds(released(0, 1, 400, **LONELY)[0], other, charged, 0.17)
