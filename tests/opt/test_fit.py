"""Settings that fit: chosen from public numbers, in bounded time, and refused where none can release a token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import ADD_OR_REMOVE, INSTRUCTION, LABELS, SENTENCE, Looking, examples, optimizer
from fakes.stops import press_ctrl_c

from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import DPPromptOptimizer
from langchain_dp.opt.data import scheme_for, split
from langchain_dp.opt.fit import AGREED, Lengths, fit, to_evaluate
from langchain_dp.records import PrivateRecords

KEY = b"k" * 32
LENGTHS = Lengths(head=120, shot=45, tail=60)


def auto(count: int, epsilon: float, engine: Any = None, **changes: Any) -> DPPromptOptimizer:
    settings: dict[str, Any] = {"budget": PrivacyBudget(epsilon, 1e-5), "progress": False} | changes
    return DPPromptOptimizer.auto(
        model=engine or WordEngine(agreeing(SENTENCE)),
        labels=LABELS,
        instruction=INSTRUCTION,
        examples_count=count,
        **settings,
    )


def test_a_verdict_never_falls_with_more_epsilon_or_rows() -> None:
    """If it breaks, somebody gives up more privacy, or more records, for a plan that is called worse."""
    order = ("no", "hardly", "possible")

    def ratings(*plans: tuple[int, float]) -> list[int]:
        return [order.index(auto(count, epsilon).plan(count).verdict.rating) for count, epsilon in plans]

    for count in (200, 400, 2_000):
        found = ratings(*((count, epsilon) for epsilon in (0.5, 1.0, 1.5, 2.0, 3.0, 3.1, 5.0, 8.0)))
        assert found == sorted(found)
    found = ratings(*((count, 1.5) for count in (160, 200, 250, 300, 400, 1_000)))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2)


@pytest.mark.parametrize(("effort", "most"), [("light", 330_000), ("full", 3_300_000)])
def test_the_number_of_rows_makes_no_run_longer(effort: Any, most: int) -> None:
    """If it breaks, a command that took minutes takes a day where there are many rows."""
    for count in (1_000, 30_000, 10_000_000):
        found = fit(count, PrivacyBudget(1.0, 1e-5), effort=effort)
        made = auto(count, 1.0, effort=effort).settings
        scheme = scheme_for(made, Neighbors.REPLACE_ONE, count)
        judges = round(found.validation * found.rows)
        cost = to_evaluate(
            scheme, calls=made.calls, texts=made.texts,
            length=made.max_new_tokens, training=found.rows - judges, judged=(made.texts + 1) * judges,
            lengths=LENGTHS,
        )  # fmt: skip
        assert cost.work() <= 1.01 * most
        assert found.rows <= count


MANY = [f"Say which, the {k}." for k in range(200)]


@pytest.mark.parametrize(
    ("count", "epsilon", "others", "told", "refused"),
    [
        (200, 1.0, (), "200 rows at epsilon 1", r"only 180 subsets vote, 90% of them for one token at best\. Give"),
        (50, 3.0, MANY, "5 rows that select at epsilon 3", "to be enough for one token"),
    ],
)
def test_too_few_rows_are_told_to_keep_their_instruction(
    count: int, epsilon: float, others: Any, told: str, refused: str
) -> None:
    """If it breaks, few rows pay for a prompt of noise, or for a choice that a single one of them makes."""
    ledger = PrivacyLedger(PrivacyBudget(epsilon, 1e-5))
    engine = Looking()
    made = auto(count, epsilon, engine, budget=None, ledger=ledger, alternatives=others)
    verdict = made.plan(count).verdict
    assert verdict.rating == "no"
    assert str(verdict).startswith(f"not with {told}: keep your instruction, spend nothing.")
    with pytest.raises(InvalidParameter, match=refused):
        made.invoke(examples(count))
    assert (ledger.plans(), engine.shown) == ([], [])


def test_no_budget_that_promises_nothing_is_advised() -> None:
    """If it breaks, who asks for privacy is told to take an epsilon of 84."""
    made = auto(25, 3.0)
    assert "epsilon 3: keep" in str(made.plan(25).verdict)
    assert not re.search(r"epsilon [\d.]+ would", str(made.plan(25).verdict))
    with pytest.raises(InvalidParameter, match=r"at best\. Give more records\. DPPromptSelector needs"):
        made.invoke(examples(25))


def test_what_the_verdict_says_would_help_does() -> None:
    """If it breaks, a user collects rows, or raises the budget, for nothing."""
    few = CHOSEN | {"num_prompts": 1}
    said = str(optimizer(budget=PrivacyBudget(1.0, 1e-4), **few).plan(400).verdict)
    rows, more = (
        float(word.replace(",", "")) for word in re.findall(r"([\d.,]*\d)(?= rows that take part or| would)", said)
    )
    assert optimizer(budget=PrivacyBudget(more, 1e-4), **few).plan(400).verdict.rating == "possible"
    assert optimizer(budget=PrivacyBudget(0.75 * more, 1e-4), **few).plan(400).verdict.rating != "possible"
    wider = few | {"subsets": round(40 * rows / 400)}
    assert optimizer(budget=PrivacyBudget(1.0, 1e-4), **wider).plan(round(rows)).verdict.rating == "possible"


def test_settings_hang_on_public_numbers_alone() -> None:
    """If it breaks, what the rows hold, or how fast the machine is just now, chooses the noise: nothing covers that."""

    class Fast(WordEngine):
        def tokens_per_second(self) -> float:
            return 1e6

        def bytes_per_token(self) -> int:
            return 1

    made = auto(400, 3.0)
    assert auto(400, 3.0, Fast(agreeing(SENTENCE))).settings == made.settings
    longer = [row | {"text": f"{row['text']} " * 40} for row in examples(400)]
    assert made.plan(longer).token == made.plan(400).token


def test_a_chosen_run_goes_on_under_the_ledger_that_it_filled() -> None:
    """If it breaks, the second call of the same command finds no budget, though its run is there."""
    ledger = PrivacyLedger(PrivacyBudget(8.0, 1e-5))
    made = auto(400, 8.0, budget=None, ledger=ledger)
    prompt = made.optimize(examples(400))
    again = auto(400, 8.0, budget=None, ledger=ledger)
    assert again.settings == made.settings
    assert SENTENCE.strip() in {candidate.text.strip() for candidate in prompt.candidates}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shots": 3}, "Expected shots= to be left out of auto"),
        ({"sampling": "fixed"}, "Expected sampling= to be left out of auto"),
        ({"rows": 3}, "Expected rows= to be left out of auto"),
        ({"effort": "heavy"}, "effort='heavy'"),
        ({"budget": PrivacyBudget(3.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)}, "other than add/remove"),
        ({"budget": None}, "budget= or ledger="),
    ],
)
def test_what_is_not_to_be_chosen_is_refused(changes: dict[str, Any], says: str) -> None:
    """If it breaks, a setting is silently taken over by another, or a private number chooses the noise."""
    with pytest.raises(InvalidParameter, match=says):
        auto(400, 3.0, **changes)


@pytest.mark.parametrize("count", [0, 4, 2.5])
def test_a_number_of_rows_that_does_not_do_is_refused(count: Any) -> None:
    """If it breaks, a division by zero."""
    with pytest.raises(InvalidParameter, match="examples_count="):
        fit(count, PrivacyBudget(3.0, 1e-5))


def test_a_candidate_has_room_for_as_much_as_the_instruction_says() -> None:
    """If it breaks, every candidate stops in mid-sentence and is dropped, and all of them are paid for."""
    long = f"{INSTRUCTION} " * 6
    made = DPPromptOptimizer.auto(
        model=WordEngine(agreeing(SENTENCE)), labels=LABELS, instruction=long, examples_count=2_000,
        budget=PrivacyBudget(8.0, 1e-5),
    )  # fmt: skip
    assert made.settings.max_new_tokens == WordEngine().count_tokens(long.strip()) + 5
    assert made.plan(2_000).verdict.rating == "possible"


# ------------------------------------------------------------------------------------------------------------ rows=


def test_rows_left_out_are_in_no_part_and_are_drawn_by_coins() -> None:
    """If it breaks, a row that was to take no part teaches or selects, or the first rows always do."""
    ids = [str(number) for number in range(1_000)]
    training, validation = split(ids, 0.1, KEY, even=True, rows=200)
    assert (len(training), len(validation)) == (180, 20)
    assert not set(training) & set(validation)
    assert 50 < sum(int(name) < 500 for name in training) < 130  # 90 expected, deviation 6
    assert split(ids, 0.1, b"other" * 8, even=True, rows=200) != (training, validation)
    assert split(ids, 0.1, KEY, even=True, rows=1_000) == split(ids, 0.1, KEY, even=True)


def test_a_run_shows_the_model_no_more_rows_than_take_part() -> None:
    """If it breaks, rows= bounds the arithmetic and not the time."""
    engine = Looking()
    made = optimizer(engine, rows=50, partitions=None, sampling_probability=None, subsets=16, shots=2)
    made.invoke(examples(400))
    texts = {row["text"] for row in examples(400)}
    assert sum(any(text in shown for shown in engine.shown) for text in texts) <= 50
    assert made.plan(400).training == 40


def test_a_record_forgotten_on_the_way_lets_nobody_in() -> None:
    """If it breaks, rows that took no part select after another one was forgotten: read, and paid by none."""
    records = PrivateRecords(examples(400))
    engine = Looking()
    made = optimizer(engine, rows=50, partitions=None, sampling_probability=None, subsets=16, shots=2)
    calls = 0

    def stop(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            press_ctrl_c()

    engine.look = stop
    with pytest.raises(KeyboardInterrupt):
        made.invoke(records)
    engine.look = len
    seen = {text for text in (row["text"] for row in examples(400)) if any(text in shown for shown in engine.shown)}
    gone = next(name for name in records.ids() if records.get(name)["text"] in seen)
    records.forget(gone)
    made.invoke(records)
    shown = [row["text"] for row in examples(400) if any(row["text"] in body for body in engine.shown)]
    assert len(shown) <= 50


def test_rows_under_add_or_remove_are_refused() -> None:
    """If it breaks, a private number of rows decides who takes part."""
    with pytest.raises(InvalidParameter, match="rows=50 with replace-one or zero-out"):
        optimizer(rows=50, budget=ADD_OR_REMOVE)
    with pytest.raises(InvalidParameter, match=r"rows=1 to be a whole number of at least 2"):
        optimizer(rows=1)


CHOSEN: dict[str, Any] = {
    "epsilon0": None,
    "delta0": None,
    "partitions": None,
    "sampling_probability": None,
    "subsets": 40,
    "shots": 8,
}


def test_the_page_says_what_is_chosen_and_that_it_releases_what_most_agree_on() -> None:
    """If it breaks, a reader counts on writing that no budget carries: hardly a token of it can be released."""
    page = (Path(__file__).parents[2] / "docs" / "private-prompts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+)(?: and more)? \| (.+) \| (.+) \| (.+) \|$", page, flags=re.MULTILINE)
    assert len(rows) == 4
    for number, *cells in rows:
        count = int(number.replace(",", ""))
        for epsilon, cell in zip((1.0, 3.0, 8.0), cells, strict=True):
            made = auto(count, epsilon)
            found = made.settings
            said = f"{found.num_prompts} of {found.max_new_tokens}, {found.shots} shot{'s' * (found.shots > 1)}"
            plan = made.plan(count)
            if plan.verdict.rating == "possible":
                assert plan.chance(AGREED) >= 0.5
                assert plan.budget.epsilon == epsilon
                assert plan.training + plan.validation <= count
            else:
                said = "nothing"
            assert cell.replace(" candidate", "").replace(" tokens", "") == said, (count, epsilon)


def test_a_plan_warns_of_an_engine_that_cannot_keep_its_caches() -> None:
    """If it breaks, a run that was to take six minutes takes an hour: every token evaluates every prompt anew."""

    class Small(WordEngine):
        cache_bytes = 1_000_000

        def tokens_per_second(self) -> float:
            return 100.0

        def bytes_per_token(self) -> int:
            return self.each

        each = 1

    fits = auto(1_000, 3.0, Small(agreeing(SENTENCE))).plan(1_000)
    Small.each = 1_000
    cache_too_small = auto(1_000, 3.0, Small(agreeing(SENTENCE))).plan(1_000)
    assert (fits.cache_too_small, cache_too_small.cache_too_small) == (False, True)
    assert fits.seconds is not None
    assert cache_too_small.seconds is not None
    assert cache_too_small.seconds > 3 * fits.seconds
    assert "give it cache_bytes=" in str(cache_too_small)
    assert "cache_bytes=" not in str(fits)


def test_a_plan_warns_of_the_delta_that_its_certificate_warns_of() -> None:
    """If it breaks, rows that take no part hide a weak delta before the run and not after it."""
    made = auto(20_000, 3.0, budget=PrivacyBudget(3.0, 1e-4))
    assert made.settings.rows is not None
    assert made.settings.rows < 1e4
    with pytest.warns(UserWarning, match="delta"):
        plan = made.plan(20_000)
    assert any("delta=0.0001" in point for point in plan.weak), plan
    assert "WARNING" in str(plan)
