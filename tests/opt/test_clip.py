"""Texts by clipped sums in place of votes: who takes part, what it costs, where it is refused, how a run goes on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import ADD_OR_REMOVE, LABELS, ZERO_OUT, Looking, examples, journal_fields, ledger_in, optimizer
from fakes.stops import press_ctrl_c

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import ClippedSumRoundEvent, PartEvent, epsilon
from langchain_dp.accounting.events import event_from_json
from langchain_dp.ensemble.text_writer import INVENTED, TextWriter
from langchain_dp.errors import BudgetExceeded, InvalidParameter, ModelUnavailable, PlanError
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.opt import (
    Decoding,
    DPPromptOptimizer,
    OptPrompts,
    PromptAlternative,
)
from langchain_dp.opt.fit import ENOUGH_CLIP, fit
from langchain_dp.opt.private import PrivateRuns
from langchain_dp.ports import Continuation, NextTokenVoter
from langchain_dp.redact import PrivateArgs

BUDGET = PrivacyBudget(100.0, 0.1)
SENTENCE = "Read the review."
LENGTH = 5


def clipped(engine: Any = None, **changes: Any) -> DPPromptOptimizer:
    """Two candidates of at most five tokens by sixteen subsets; a token that all want is drawn but for e^-10."""
    made = {"decoder": "clip", "delta0": None, "epsilon0": 8.0, "max_new_tokens": LENGTH, "budget": BUDGET} | changes
    return optimizer(engine or WordEngine(agreeing(SENTENCE)), **made)


def paid(ledger: PrivacyLedger) -> list[Any]:
    """What was charged for texts, in order."""
    events = [event_from_json(entry.event) for entry in ledger.entries() for _ in range(entry.count)]
    return [event.event for event in events if event.part == "training"]


def invented(call: Sequence[Continuation]) -> bool:
    """Whether it looks if as many members are heard, before anything is charged."""
    return any(INVENTED in one.prompt.body for one in call)


def test_a_text_is_charged_once_and_written_by_the_same_subsets() -> None:
    """If it breaks, tokens are drawn that nobody paid for, or a record meets two coins for one text."""
    engine, ledger = WordEngine(agreeing(SENTENCE)), PrivacyLedger(BUDGET)
    made = clipped(engine, ledger=ledger, budget=None, sampling_probability=0.5, num_prompts=8, epsilon0=4.0)
    made.invoke(examples(40))
    assert paid(ledger) == [ClippedSumRoundEvent(4.0, LENGTH, 0.5)] * 8
    scoring = [call for call in engine.calls if call and call[0].prompt.response_prefix and not invented(call)]
    texts = [list(group) for _, group in itertools.groupby(scoring, key=_texts_of(scoring))]
    assert len(texts) == 8
    members = []
    for text in texts:
        who = {frozenset(one.prompt.member for one in call) for call in text}
        assert len(who) == 1  # from the first token to the last
        members.append(next(iter(who)))
    assert len(set(members)) > 1  # fresh coins for each text
    assert made.certificate().parameters["members"] == 8


def _texts_of(calls: list[Any]) -> Any:
    """Number of the text that a call is about."""
    starts = [place for place, call in enumerate(calls) if call and not call[0].written]
    places = {id(call): sum(start <= place for start in starts) for place, call in enumerate(calls)}
    return lambda call: places[id(call)]


def test_the_divisor_is_the_expected_number_of_subsets() -> None:
    """If it breaks, the clip depends on who takes part, which is private."""
    seen: list[tuple[int, float]] = []
    real = ClippedSum.release

    def release(self: ClippedSum, public: Any, members: Any, **settings: Any) -> int:
        rows = list(members)
        seen.append((self.members, self.clip))
        return real(self, public, rows, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClippedSum, "release", release)
        clipped(sampling_probability=0.25, num_prompts=6).invoke(examples(40))
    assert set(seen) == {(4, 8.0 * 4 * 0.5 / 4)}


def test_the_noise_is_made_for_all_texts() -> None:
    """If it breaks, noise is calibrated for one text, or for one token, where a run writes several."""
    budget = PrivacyBudget(2.0, 1e-3)
    event = clipped(epsilon0=None, budget=budget, num_prompts=3).plan(40).token
    assert isinstance(event, ClippedSumRoundEvent)
    assert event.tokens == LENGTH
    assert 1.9 < epsilon([(event, 3)], 1e-3) <= 2.0


@pytest.mark.parametrize("part", ["training", "validation"])
def test_what_another_charges_to_the_plan_pays_for_nothing(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a run takes somebody else's charge for its own, and draws once more than its plan holds."""
    ledger = PrivacyLedger(BUDGET)

    def another(*_: Any) -> bool:
        plan = ledger.plan("dp-opt")
        assert plan is not None
        (event,) = (event for event, _ in plan.events if getattr(event, "part", "") == part)
        if plan.remaining(event):
            plan.spend(event, caller="another")
        return True

    owner, look = (TextWriter, "check_answers") if part == "training" else (PrivateRuns, "_may_choose")
    monkeypatch.setattr(owner, look, another)  # the last look before each charge
    engine = WordEngine(agreeing(SENTENCE))
    with pytest.raises(BudgetExceeded):
        clipped(engine, ledger=ledger, budget=None, num_prompts=1).invoke(examples(40))
    assert part == "validation" or not [call for call in engine.calls if call and call[0].prompt.response_prefix]


def test_a_label_change_moves_two_texts_by_half_as_much() -> None:
    """If it breaks, the charge of one round does not hold for a record that leaves one text and joins another."""
    noise = ClippedSum(ClippedSumRoundEvent(1.2, 1, 0.5), members=2)
    publics = np.log([[0.01, 0.99], [0.45, 0.55]])  # a rare word that becomes likelier, a usual one that does not
    sure = np.log([1 - 1e-9, 1e-9])

    def law(mover: int) -> dict[tuple[int, int], float]:
        """Of the words of two texts, one of which a record that is sure is in, by a coin of one half."""
        found = dict.fromkeys(itertools.product((0, 1), repeat=2), 0.0)
        for there in (0, 1):
            laws = [
                _token_law(noise, public, [public] + [sure] * (there and text == mover))
                for text, public in enumerate(publics)
            ]
            for one, two in found:
                found[one, two] += 0.5 * laws[0][one] * laws[1][two]
        return found

    before, after = law(0), law(1)
    for loss in (0.0, 0.1, 0.3, 0.4, 0.6):
        for one, other in ((before, after), (after, before)):
            excess = sum(max(0.0, one[event] - math.exp(loss) * other[event]) for event in one)
            assert excess <= _delta(noise.event, loss) + 1e-9
    half = dataclasses.replace(noise.event, epsilon0=noise.event.epsilon0 / 2)
    excess = sum(max(0.0, before[event] - math.exp(0.4) * after[event]) for event in before)
    assert excess > 10 * _delta(half, 0.4)  # half of the charge is refuted


def test_nobody_included_still_writes() -> None:
    """If it breaks, an empty draw shows by a text that ends early."""
    engine, ledger = WordEngine(agreeing(SENTENCE)), PrivacyLedger(BUDGET)
    made = clipped(engine, ledger=ledger, budget=None, sampling_probability=1e-6, num_prompts=1)
    made.invoke(examples(40))
    assert len(paid(ledger)) == 1
    assert made.certificate().parameters["tokens_released"] > 0


def test_a_failed_member_adds_nothing_and_the_text_goes_on() -> None:
    """If it breaks, one record ends a run by its content, or silences the others."""

    def spoil(prompt: Any) -> None:
        if "note 003" in prompt.body:
            raise ValueError(CANARY)

    engine = WordEngine(agreeing(SENTENCE), spoil=spoil)
    assert [each.text for each in clipped(engine).optimize(examples(40)).candidates] == [SENTENCE] * 2


@pytest.mark.parametrize("turn", [0, 1, 3, 6, 8])
def test_a_run_that_is_stopped_goes_on_with_the_next_text(turn: int, tmp_path: Path) -> None:
    """If it breaks, what was charged is written once more under other coins, or what was released is lost."""
    turns = iter(range(10**6))

    def look(bodies: list[str]) -> None:
        if bodies[0].startswith("# Student") and next(turns) == turn:
            press_ctrl_c()

    with ledger_in(tmp_path) as ledger, pytest.raises(KeyboardInterrupt):
        clipped(Looking(look, agreeing(SENTENCE)), ledger=ledger, budget=None, num_prompts=3).invoke(examples(40))
    if turn:
        kept = journal_fields(tmp_path)["written"]
        assert sum(len(each["tokens"]) for each in kept) >= turn - len(kept)
    with ledger_in(tmp_path) as ledger:
        made = clipped(Looking(len, agreeing(SENTENCE)), ledger=ledger, budget=None, num_prompts=3)
        prompt = made.optimize(examples(40))
        assert len(paid(ledger)) <= 3
    whole = [each.text for each in prompt.candidates if each.text == SENTENCE]
    assert len(whole) >= 2  # the text under way is lost, and no other one
    with ledger_in(tmp_path) as ledger, pytest.raises(PlanError):
        optimizer(WordEngine(agreeing(SENTENCE)), ledger=ledger, budget=None, num_prompts=3).invoke(examples(40))


def test_the_members_of_a_text_that_is_begun_elsewhere_are_not_drawn_again(tmp_path: Path) -> None:
    """If it breaks, one charge pays for the tokens of two draws of subsets."""
    asked: list[str] = []

    def stop(bodies: list[str]) -> None:
        asked.append("")
        if len(asked) == 4:
            press_ctrl_c()

    engine = Looking(lambda bodies: stop(bodies) if bodies[0].startswith("# Student") else None)
    with ledger_in(tmp_path) as ledger, pytest.raises(KeyboardInterrupt):
        clipped(engine, ledger=ledger, budget=None, num_prompts=1).invoke(examples(40))
    assert len(journal_fields(tmp_path)["written"][0]["tokens"]) > 0
    with ledger_in(tmp_path) as ledger:
        engine = Looking(len)
        clipped(engine, ledger=ledger, budget=None, num_prompts=1).invoke(examples(40))
        assert not any(body.startswith("# Student") for body in engine.shown)  # nobody was asked to go on
        assert len(paid(ledger)) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoder": "beam"}, "decoder"),
        ({"budget": ADD_OR_REMOVE}, "REPLACE_ONE"),
        ({"budget": ZERO_OUT}, "REPLACE_ONE"),
        ({"delta0": 1e-3}, "delta0"),
        ({"max_calls": 9}, "max_calls"),
        ({"temperature": 1.0}, "temperature"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"banned": [3]}, "banned"),
        ({"kbar": 5}, "kbar"),
        ({"max_retries": 1}, "max_retries"),
        ({"stop": ["\n", "END"]}, "stop"),
        ({"clip_temperature": 0.0}, "clip_temperature"),
        ({"clip_candidates": 1}, "clip_candidates"),
        ({"epsilon0": 15.0, "num_prompts": 40}, "epsilon0"),
    ],
)
def test_what_clipped_sums_cannot_do_is_refused(changes: Mapping[str, Any], said: str) -> None:
    """If it breaks, an argument is ignored, or a run is charged by a proof that does not cover it."""
    ledger = PrivacyLedger(changes.get("budget", BUDGET))
    with pytest.raises(InvalidParameter, match=said):
        clipped(**{**changes, "budget": None, "ledger": ledger}).invoke(examples(40))
    assert not ledger.plans()


def test_poorer_engines_are_refused() -> None:
    """If it breaks, a run fails after its charge."""

    class Votes:
        """An engine that votes and scores labels, and no more."""

        def __init__(self) -> None:
            self._engine = WordEngine(agreeing(SENTENCE))

        def __getattr__(self, name: str) -> Any:
            if name == "score_next_token":
                raise AttributeError(name)
            return getattr(self._engine, name)

    votes = Votes()
    if isinstance(votes, NextTokenVoter):
        with pytest.raises(InvalidParameter, match="votes"):
            clipped(votes)


def test_a_plan_says_how_far_a_subset_moves_a_token_and_whether_it_is_worth_it() -> None:
    """If it breaks, a budget is spent on texts in which nothing of the records comes through."""
    plan = clipped(epsilon0=2.0).plan(40)
    assert plan.clip == 2.0 * 16 * 0.5 / 4
    assert clipped(epsilon0=8.0).plan(40).clip == 5.0, "what is left goes into a lower temperature"
    assert plan.votes_needed is None
    assert "nats" in str(plan)
    assert plan.verdict.rating == "yes"
    with pytest.raises(InvalidParameter, match="votes"):
        plan.chance(0.7)
    poor = clipped(epsilon0=None, budget=PrivacyBudget(0.5, 1e-6), num_prompts=20, max_new_tokens=40)
    assert poor.plan(40).verdict.rating == "no"
    assert "rows" in str(poor.plan(40).verdict)
    assert "epsilon" in str(poor.plan(40).verdict)


def test_settings_are_chosen_that_fit_and_a_run_that_cannot_is_refused() -> None:
    """If it breaks, auto() chooses by votes where there are none, or spends a budget that moves nothing."""
    budget = PrivacyBudget(3.0)
    found = fit(2_000, budget, clip_temperature=0.5)
    event = DPPromptOptimizer.auto(
        model=WordEngine(agreeing(SENTENCE)),
        labels=LABELS,
        instruction="Say which.",
        budget=budget,
        examples_count=2_000,
        decoder="clip",
    ).plan(2_000)
    assert event.clip is not None
    assert event.clip >= ENOUGH_CLIP
    assert event.scheme.expected_subsets == pytest.approx(found.subsets)
    assert found.rows == 2_000  # more rows than are asked make a smaller rate, and cost no time
    by_votes = fit(2_000, budget)
    assert found.subsets < by_votes.subsets
    few = DPPromptOptimizer.auto(
        model=WordEngine(agreeing(SENTENCE)),
        labels=LABELS,
        instruction="Say which.",
        budget=PrivacyBudget(0.05, 1e-9),
        examples_count=40,
        decoder="clip",
    )
    with pytest.raises(InvalidParameter, match="clip"):
        few.check(40)


# ------------------------------------------------------------------------------------------------ brute force


def test_no_event_of_a_whole_run_is_likelier_than_its_charge_allows() -> None:
    """If it breaks, the charge of a text by subsets is too small: all outcomes of two tokens are enumerated."""
    noise = ClippedSum(ClippedSumRoundEvent(1.2, 2, 0.5), members=2)
    public = np.log([0.5, 0.5])
    up, down, flat = np.log([1 - 1e-9, 1e-9]), np.log([1e-9, 1 - 1e-9]), public

    def law(rows: list[np.ndarray]) -> dict[tuple[int, int], float]:
        """Of the two tokens of a text whose members are these, each in by a coin of one half."""
        found: dict[tuple[int, int], float] = {}
        for there in itertools.product((0, 1), repeat=len(rows)):
            some = [row for row, taken in zip(rows, there, strict=True) if taken]
            first = _token_law(noise, public, some)
            for one, two in itertools.product((0, 1), repeat=2):
                found[one, two] = found.get((one, two), 0.0) + 0.5 ** len(rows) * first[one] * first[two]
        return found

    before, after = law([up, flat, flat]), law([down, flat, flat])
    for loss in (0.0, 0.25, 0.5, 1.0):
        allowed = _delta(noise.event, loss)
        for one, other in ((before, after), (after, before)):
            excess = sum(max(0.0, one[event] - math.exp(loss) * other[event]) for event in one)
            assert excess <= allowed + 1e-9, (loss, excess, allowed)
    half = dataclasses.replace(noise.event, epsilon0=noise.event.epsilon0 / 2)
    excess = sum(max(0.0, before[event] - math.exp(0.25) * after[event]) for event in before)
    assert excess > _delta(half, 0.25)  # half of the charge is refuted


def _token_law(noise: ClippedSum, public: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    total = sum((noise._moved(public, row) for row in rows), np.zeros(2, dtype=np.int64))
    base = math.log(math.exp(Fraction(noise.event.epsilon0) / 256))
    weights = np.exp(public) * np.exp(base * total)
    law: np.ndarray = weights / weights.sum()
    return law


def _delta(event: ClippedSumRoundEvent, loss: float) -> float:
    """The delta at which one text costs this epsilon, by bisection on the accountant."""
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon([(event, 1)], middle) <= loss else (middle, high)
    return high


def test_a_prompt_that_answers_by_names_gives_labels_back(tmp_path: Path) -> None:
    """If it breaks, an application that has codes gets names, from a model as from a file."""
    from langchain_core.language_models import FakeListChatModel

    from langchain_dp.opt import evaluate_prompt, load_prompt
    from langchain_dp.opt.candidates import PromptChoice

    names = PromptAlternative(words={"A": "sports", "B": "money"})
    made = clipped(labels=["A", "B"], prompts=OptPrompts(system=True), alternatives=[names], num_prompts=1)
    prompt = made.optimize([{"text": f"t{i}", "label": "AB"[i % 2]} for i in range(40)])
    choice = PromptChoice(made.settings.instruction, ("sports", "money"))
    assert choice in prompt.choices()
    prompt.with_choice(choice).save(tmp_path / "prompt.json")
    loaded = load_prompt(tmp_path / "prompt.json")
    model = FakeListChatModel(responses=["Sports.", "money"])
    assert [loaded.chain(model).invoke({"text": "x"}) for _ in range(2)] == ["A", "B"]
    template = loaded.template()
    assert template.metadata["words"] == {"A": "sports", "B": "money"}
    rows = [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]
    assert evaluate_prompt(template, model, rows, ["A", "B"], max_concurrency=1).accuracy == 1.0
    assert "Answer with one of: sports, money." in template.format_messages(text="x")[0].content


def test_a_run_cannot_be_paid_for_twice() -> None:
    """If it breaks, a text is written that the plan holds no charge for."""
    ledger = PrivacyLedger(BUDGET)
    made = clipped(ledger=ledger, budget=None)
    made.invoke(examples(40))
    [plan] = ledger.plans()
    event = next(event for event, _ in plan.events if isinstance(event, PartEvent) and event.part == "training")
    with pytest.raises(BudgetExceeded):
        plan.spend(event)
    assert Decoding().chat is None


# ------------------------------------------------------------------- what an attacker, or bad luck, could make of it


def test_a_model_that_scores_no_member_is_found_before_a_text_is_charged() -> None:
    """If it breaks, an engine without memory for its members spends the budget on what the public model says."""
    ledger = PrivacyLedger(BUDGET)

    class Full(WordEngine):
        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            found = super().score_next_token(public, members, **settings)
            return dataclasses.replace(found, members=(None,) * len(members))

    made = clipped(Full(agreeing("Say yes or no.")), ledger=ledger, budget=None)
    with pytest.raises(ModelUnavailable, match=r"0 of .* that show an invented record.*of a prompt subsets="):
        made.invoke(examples(40))
    assert list(ledger.entries()) == []


def test_a_server_that_is_gone_costs_nothing() -> None:
    """If it breaks, an outage uses up the plan, and the initial instruction is all that is left."""
    from langchain_dp.errors import ModelUnavailable

    class Gone(WordEngine):
        def score_next_token(self, *asked: Any, **settings: Any) -> Any:
            raise ModelUnavailable("The server does not answer.")

    ledger = PrivacyLedger(BUDGET)
    made = clipped(Gone(agreeing(SENTENCE)), ledger=ledger, budget=None)
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            made.invoke(examples(40))
    assert not list(ledger.entries())


def test_a_cancelled_run_ends_the_text_under_way_first() -> None:
    """If it breaks, a cancelled call throws away a text that is paid for."""
    stopped: list[bool] = []

    def look(bodies: list[str]) -> None:
        if bodies[0].startswith("# Student"):
            stopped.append(True)

    made = clipped(Looking(look, agreeing(SENTENCE)), num_prompts=3)
    with pytest.raises(PlanError, match="cancelled"):
        made._execute(PrivateArgs(examples(40)), None, lambda: bool(stopped))
    assert made.released() == [SENTENCE]
