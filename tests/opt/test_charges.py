"""Every call of a mechanism is charged, before anybody is asked, and nothing that happens afterwards gives it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing, all_distinct, by_text
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    SENTENCE,
    ZERO_OUT,
    Broken,
    Looking,
    examples,
    optimizer,
    used,
)

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import LedgerPlan, PartEvent
from langchain_dp.accounting.events import event_from_json
from langchain_dp.ensemble.subsets import SubsetSampler
from langchain_dp.errors import BudgetExceeded
from langchain_dp.mechanisms import Exponential, LimitedDomain
from langchain_dp.opt.private import PrivateRuns
from langchain_dp.opt.voters import PrivateVote, SubsetVotes

HALF = PrivacyBudget(100.0, 0.05)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every draw of a mechanism, in order: what it was, and "bottom" where it released nothing."""
    draws: list[str] = []
    tokens, choose = LimitedDomain.release, Exponential.release

    def limited(self: LimitedDomain[Any], votes: Mapping[Any, int], **settings: Any) -> Any:
        answer = tokens(self, votes, **settings)
        draws.append("bottom" if answer is None else "token")
        return answer

    def exponential(*args: Any, **settings: Any) -> int:
        draws.append("selection")
        return choose(*args, **settings)

    monkeypatch.setattr(LimitedDomain, "release", limited)
    monkeypatch.setattr(Exponential, "release", exponential)
    return draws


def charges(ledger: PrivacyLedger) -> list[str]:
    """What each entry of the ledger paid for, in order. An entry pays for one call."""
    found = []
    for entry in ledger.entries():
        assert entry.count == 1
        assert (entry.plan, entry.caller) == ("dp-opt", "dp-opt")
        event = event_from_json(entry.event)
        assert isinstance(event, PartEvent)
        found.append({"training": "token", "validation": "selection"}[event.part])
    return found


ENGINES: dict[str, Any] = {
    "agreeing": lambda: WordEngine(agreeing(SENTENCE)),
    "all distinct": lambda: WordEngine(all_distinct),
    "silent": lambda: WordEngine(lambda place, asked: None),
    "no text at all": lambda: WordEngine(agreeing("")),
    "quarrelling": lambda: WordEngine(by_text({f"note {i:03d}": "Think." for i in range(16)}, SENTENCE)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_the_ledger_has_one_entry_for_each_draw(engine: str, budget: PrivacyBudget, drawn: list[str]) -> None:
    """If it breaks, a bottom, a retry, an end or the selection is free: the true cost is a multiple."""
    ledger = PrivacyLedger(budget)
    made = optimizer(ENGINES[engine](), ledger=ledger)
    made.invoke(examples())
    assert charges(ledger) == ["token" if draw == "bottom" else draw for draw in drawn]
    assert drawn[-1] == "selection"
    assert used(ledger) == {"training": len(drawn) - 1, "validation": 1}
    counts = made.certificate().parameters
    if engine in ("all distinct", "silent"):  # a bottom, its retry, and the end of both candidates
        assert drawn[:-1] == ["bottom"] * 4
        assert (counts["bottoms"], counts["retries"], counts["tokens_released"]) == (4, 2, 0)


def test_the_test_above_sees_a_free_retry(drawn: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the audit of uncharged calls is blind to what it is for."""
    once = PrivateVote.next_token

    def again(self: PrivateVote, message: int, written: Any) -> Any:
        released = once(self, message, written)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LedgerPlan, "spend", lambda *args, **settings: None)
            return once(self, message, written) if released is None else released

    ledger = PrivacyLedger(BUDGET)
    made = optimizer(WordEngine(all_distinct), ledger=ledger)
    monkeypatch.setattr(PrivateVote, "next_token", again)
    made.invoke(examples())
    assert len(charges(ledger)) == 5
    assert len(drawn) == 9


def test_nobody_is_asked_before_the_charge_is_durable() -> None:
    """If it breaks, a crash between the model's answer and the charge releases a token for free."""
    ledger = PrivacyLedger(BUDGET)
    seen: list[tuple[str, dict[str, int]]] = []
    engine = Looking(lambda bodies: seen.append((("Student" in bodies[0] and "token") or "answers", used(ledger))))
    optimizer(engine, ledger=ledger).invoke(examples())
    tokens = [spent["training"] for what, spent in seen if what == "token"]
    assert tokens == list(range(1, len(tokens) + 1))
    assert len(tokens) == 12
    assert seen[0] == ("answers", {"training": 1, "validation": 0})
    assert seen[-1][1] == {"training": 12, "validation": 1}  # the validation records, after the choice was charged
    assert [what for what, _ in seen].index("token") < 3


@pytest.mark.parametrize("left", [0.0, 0.001])
def test_a_refused_plan_asks_nobody(left: float) -> None:
    """If it breaks, the model sees the examples although the ledger has no room."""
    ledger = PrivacyLedger(BUDGET)
    optimizer(name="first", ledger=ledger, budget=PrivacyBudget(200.0 - left, 0.1 - left / 10)).invoke(examples())
    engine = Looking()
    other = optimizer(engine, ledger=ledger, budget=PrivacyBudget(100.0, 0.05) if left else None)
    with pytest.raises(BudgetExceeded):
        other.invoke(examples())
    assert engine.shown == []
    assert engine.calls == []
    assert [plan.name for plan in ledger.plans()] == ["first"]
    assert other.released() == []


@pytest.mark.parametrize("where", ["answers", "token", "selection"])
def test_an_engine_that_fails_costs_its_call_and_raises_nothing(where: str, drawn: list[str]) -> None:
    """If it breaks, a failing model gets its charge back, or what it says reaches the caller: it quotes the prompt."""

    class Failing(WordEngine):
        def next_tokens(self, asked: Any, decoding: Any) -> Any:
            if where == "token" and asked[0].prompt.body:
                raise Broken(f"{CANARY} {asked[0].prompt.body}")
            return super().next_tokens(asked, decoding)

        def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
            if where != "token" and CANARY in prompts[0].body:
                raise Broken(f"{CANARY} {prompts[0].body}")
            return super().score_labels(prompts, words, **options)

    ledger = PrivacyLedger(BUDGET)
    made = optimizer(Failing(agreeing(SENTENCE)), ledger=ledger)
    prompt = made.optimize(examples())
    assert prompt.instruction in (SENTENCE, "Classify this text.")
    assert charges(ledger) == ["token" if draw == "bottom" else draw for draw in drawn]
    if where == "token":
        assert drawn == ["bottom"] * 4 + ["selection"]


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_an_empty_ensemble_draws_its_noise_all_the_same(
    budget: PrivacyBudget, drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, no data and one record have other supports: delta is one."""
    ledger = PrivacyLedger(budget)
    rows = examples() if budget is not ADD_OR_REMOVE else []
    monkeypatch.setattr(SubsetSampler, "draw", lambda self: [])
    optimizer(ledger=ledger).invoke(rows)
    assert drawn == ["bottom"] * 4 + ["selection"]
    assert charges(ledger) == ["token"] * 4 + ["selection"]


def test_calls_that_run_out_end_the_run(drawn: list[str]) -> None:
    """If it breaks, a run goes on beyond its plan, or dies instead of choosing among what it has."""
    ledger = PrivacyLedger(BUDGET)
    made = optimizer(ledger=ledger, num_prompts=3, max_calls=7)
    made.invoke(examples())
    assert used(ledger) == {"training": 7, "validation": 1}
    assert drawn == ["token"] * 7 + ["selection"]
    assert made.released() == [SENTENCE, "Say"]
    assert made.certificate().remaining == 0


def test_every_token_has_subsets_of_its_own(drawn: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, tokens that are charged as independent draws are all of the same subsets."""
    draw = SubsetSampler.draw

    def counted(self: SubsetSampler) -> Any:
        drawn.append("subsets")
        return draw(self)

    monkeypatch.setattr(SubsetSampler, "draw", counted)
    optimizer(num_prompts=3, max_calls=7).invoke(examples())
    assert drawn == ["subsets", "token"] * 7 + ["selection"]


def undecided(**changes: Any) -> tuple[object, ...]:
    """Outcome of twelve calls in which token and bottom are about as likely."""
    settings = {"epsilon0": 1.0, "delta0": 9.12e-4, "num_prompts": 4, "max_calls": 12} | changes
    made = optimizer(WordEngine(lambda place, asked: ["Say"] * 20), **settings)
    made.invoke(examples())
    return tuple(made.released()), made.certificate().parameters["bottoms"]


def test_noise_is_not_seeded() -> None:
    """If it breaks, two processes with the same inputs draw the same noise, and who knows the seed removes it.

    Ten runs of at least four even calls each: all are the same with a chance below 2^-36.
    """
    outcomes = set()
    for _ in range(10):
        outcomes.add(undecided())
    assert len(outcomes) > 1


def test_a_seeded_run_repeats_and_says_that_it_is_not_private() -> None:
    """If it breaks, a figure cannot be drawn twice, or a seeded prompt passes for a private one."""
    prompts = [optimizer(WordEngine(), not_private_seed=5, temperature=1.0).optimize(examples()) for _ in range(2)]
    assert prompts[0].instruction == prompts[1].instruction
    for prompt in prompts:
        assert not prompt.certificate.private
        assert "not_private_seed" in prompt.certificate.reason


def test_two_seeds_differ() -> None:
    """If it breaks, the seed is not used, and the test above would pass for a constant."""
    assert len({undecided(not_private_seed=seed) for seed in range(10)}) > 1


@pytest.mark.parametrize("part", ["training", "validation"])
def test_what_another_charges_to_the_plan_pays_for_nothing(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a run takes somebody else's charge for its own, and draws once more than its plan holds."""
    ledger = PrivacyLedger(BUDGET)

    def another(*_: Any) -> bool:
        plan = ledger.plan("dp-opt")
        assert plan is not None
        (event,) = (event for event, _ in plan.events if getattr(event, "part", "") == part)
        if left := plan.remaining(event):
            plan.spend(event, left, caller="another")
        return True

    owner, look = (SubsetVotes, "check_answers") if part == "training" else (PrivateRuns, "_may_choose")
    monkeypatch.setattr(owner, look, another)  # the last look before each charge
    engine = Looking()
    with pytest.raises(BudgetExceeded):
        optimizer(engine, ledger=ledger, num_prompts=1).invoke(examples())
    assert part == "validation" or not engine.shown
