"""Every call of a mechanism is charged, before anybody is asked, and nothing that happens afterwards gives it back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
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
    ledger_in,
    optimizer,
    used,
)

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import PartEvent
from langchain_dp.accounting.events import event_from_json
from langchain_dp.ensemble.subsets import SubsetSampler
from langchain_dp.errors import BudgetExceeded, InvalidParameter, ModelUnavailable
from langchain_dp.mechanisms import Exponential, LimitedDomain
from langchain_dp.opt.private import PrivateRuns
from langchain_dp.opt.voters import SubsetVotes
from langchain_dp.ports import CONTENT_FREE


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


def test_a_seeded_run_repeats_and_says_that_it_is_not_private() -> None:
    """If it breaks, a figure cannot be drawn twice, or a seeded prompt passes for a private one."""
    prompts = [optimizer(WordEngine(), not_private_seed=5, temperature=1.0).optimize(examples()) for _ in range(2)]
    assert prompts[0].instruction == prompts[1].instruction
    for prompt in prompts:
        assert not prompt.certificate.private
        assert "not_private_seed" in prompt.certificate.reason


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


async def test_a_cancelled_call_stops_spending_and_can_be_taken_up(tmp_path: Path) -> None:
    """If it breaks, a request that timed out goes on charging the ledger in its thread, to the end of the plan."""
    turns = iter(range(10**6))
    loop, gone = asyncio.get_running_loop(), threading.Event()

    def look(bodies: list[str]) -> None:
        if "Student" in bodies[0] and next(turns) == 2:
            loop.call_soon_threadsafe(call.cancel)
            assert gone.wait(60)

    with ledger_in(tmp_path) as ledger:
        made = optimizer(Looking(look), ledger=ledger)
        call = asyncio.create_task(made.ainvoke(examples()))
        with pytest.raises(asyncio.CancelledError):
            await call
        gone.set()
        with made._lock:  # until the thread has come to its end
            pass
        assert used(ledger) == {"training": 3, "validation": 0}
        await made.ainvoke(examples())
        assert used(ledger) == {"training": 12, "validation": 1}
        assert made.released() == [SENTENCE, SENTENCE]


class Served(WordEngine):
    """An engine that asks a server, which is gone after so many calls on records: all its members abstain then."""

    remote = True

    def __init__(self, calls: int) -> None:
        super().__init__(agreeing(SENTENCE))
        self.left = calls
        self.scored: list[str] = []

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        self.left -= bool(asked[0].prompt.body)
        return super().next_tokens(asked, decoding) if self.left > 0 else [None] * len(asked)

    def score_labels(self, prompts: Any, words: Any, *, content_free: Any = ()) -> Any:
        self.scored += [prompt.body for prompt in prompts]
        if self.left > 0:
            return super().score_labels(prompts, words, content_free=content_free)
        return [None] * len(prompts)


@pytest.mark.parametrize("calls", [1, 4, 9])
def test_a_server_that_dies_costs_one_token_and_the_run_goes_on_later(calls: int) -> None:
    """The rest of the plan is spent on votes that nobody cast, and the prompt is made of noise."""
    engine = Served(calls)
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1))
    made = optimizer(engine, ledger=ledger)
    with pytest.raises(ModelUnavailable, match="invoke this optimizer again to go on"):
        made.invoke(examples())
    assert used(ledger) == {"training": calls, "validation": 0}
    before = made.released()
    engine.left = 1000
    made.invoke(examples())
    assert made.released() == [SENTENCE, SENTENCE]
    assert all(SENTENCE.startswith(text) for text in before)
    assert used(ledger) == {"training": 13, "validation": 1}


class Wordless(WordEngine):
    """An engine that scores labels, and writes nothing: it lacks the chat template that it is asked to use, say."""

    def __init__(self, how: str) -> None:
        super().__init__(agreeing(SENTENCE))
        self.how = how

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        if self.how == "refuses":
            raise InvalidParameter("Expected the GGUF file to hold a chat template.")
        if self.how == "raises":
            raise RuntimeError(SENTENCE)
        return [None] * len(asked)


@pytest.mark.parametrize(
    ("how", "said"),
    [("refuses", "hold a chat template"), ("raises", "RuntimeError"), ("abstains", "wrote no token")],
)
def test_an_engine_that_writes_nothing_costs_nothing(how: str, said: str) -> None:
    """If it breaks, every subset abstains, the budget is spent on noise, and the initial prompt comes back unsaid."""
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1))
    with pytest.raises((InvalidParameter, ModelUnavailable), match=said) as caught:
        optimizer(Wordless(how), ledger=ledger).invoke(examples())
    assert SENTENCE not in str(caught.value)
    assert used(ledger) == {"training": 0, "validation": 0}


def test_a_local_engine_is_not_watched() -> None:
    """Every token costs one more evaluation where nothing can die."""
    engine = Served(1000)
    engine.remote = False  # type: ignore[misc]
    optimizer(engine).invoke(examples())
    assert sum(CONTENT_FREE[0] in body for body in engine.scored) <= 3
