"""A run that is stopped anywhere is taken up where it stopped: nothing is released twice, and nothing for free."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    SENTENCE,
    ZERO_OUT,
    Looking,
    calls_of,
    examples,
    journal_fields,
    journal_text,
    journals,
    ledger_in,
    notes,
    optimizer,
    stopped,
    stopping,
    used,
)
from fakes.stops import press_ctrl_c

import langchain_dp.opt
from langchain_dp import PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp._util import forks
from langchain_dp.errors import LedgerError, PlanError
from langchain_dp.mechanisms import Exponential
from langchain_dp.opt import DPPromptOptimizer, OptimizedPrompt
from langchain_dp.opt.journal import Journal

OPT = os.path.dirname(langchain_dp.opt.__file__)


def test_what_was_released_is_there_for_a_new_process_that_has_fewer_records(tmp_path: Path) -> None:
    """If it breaks, prompts that were paid for are gone once a record is erased, and so is their certificate."""
    ledger = ledger_in(tmp_path)
    first = optimizer(ledger=ledger)
    first.optimize(examples())
    released, noise = first.released(), first.certificate().parameters
    ledger.close()
    ledger = ledger_in(tmp_path)
    again = optimizer(ledger=ledger)
    before = used(ledger)
    assert again.released() == released != []
    assert again.certificate().parameters == noise
    with pytest.raises(PlanError, match="over other examples"):
        again.invoke(examples()[1:])
    assert optimizer(ledger=ledger, max_new_tokens=3).released() == [], "of other settings"
    assert used(ledger) == before


@pytest.mark.parametrize("turn", [0, 1, 5, 6, 11])
@pytest.mark.parametrize("process", ["same", "new"])
def test_ctrl_c_in_the_model_costs_one_call(turn: int, process: str, tmp_path: Path) -> None:
    """If it breaks, Ctrl-C loses what was paid for, or gives a charge back."""
    engine = stopping(turn)
    ledger = ledger_in(tmp_path)
    made = optimizer(engine, ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        made.invoke(examples())
    assert used(ledger) == {"training": turn + 1, "validation": 0}
    assert calls_of(journal_fields(tmp_path)) == turn
    if process == "new":
        ledger.close()
        ledger = ledger_in(tmp_path)
        made = optimizer(ledger=ledger)
    before = made.released()
    made.invoke(examples())
    assert used(ledger) == {"training": 13, "validation": 1}
    assert made.released() == [SENTENCE, SENTENCE]
    assert process == "new" or all(SENTENCE.startswith(text) for text in before)


def stopped_at_the_choice(folder: Path) -> tuple[PrivacyLedger, DPPromptOptimizer]:
    """A run that is stopped by Ctrl-C while its candidates are compared."""
    turns: list[int] = []

    def look(bodies: list[str]) -> None:
        if "Student" in bodies[0]:
            turns.append(0)
        elif turns:  # answers after the last token are those to the validation records
            turns.append(1)
            if turns.count(1) == 2:
                press_ctrl_c()

    ledger = ledger_in(folder)
    made = optimizer(Looking(look), ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        made.invoke(examples())
    assert used(ledger) == {"training": 12, "validation": 1}
    assert journal_fields(folder)["winner"] is None
    return ledger, made


def test_a_choice_that_was_stopped_before_its_draw_is_made_by_the_same_process(tmp_path: Path) -> None:
    """If it breaks, Ctrl-C in a notebook while candidates are compared loses the run, or charges a second choice."""
    ledger, made = stopped_at_the_choice(tmp_path)
    prompt = made.optimize(examples())
    assert used(ledger) == {"training": 12, "validation": 1}
    assert journal_fields(tmp_path)["winner"] is not None
    assert made.optimize(examples()).instruction == prompt.instruction


@pytest.mark.parametrize("other", ["optimizer", "process"])
def test_a_choice_that_nobody_knows_of_is_never_drawn_again(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one charge pays for as many choices as there are restarts; or the candidates are lost with it."""
    ledger, made = stopped_at_the_choice(tmp_path)
    if other == "optimizer":
        ledger.close()
        ledger = ledger_in(tmp_path)
        engine = Looking()
        made = optimizer(engine, ledger=ledger)
    else:
        engine = Looking()
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)  # as in a fork
        monkeypatch.setattr(ledger._store.backend, "_process", forks.process())
        made._engine.look = engine.shown.extend  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(PlanError, match=r"choice .* is charged.*released\(\).*another name="):
            made.invoke(examples())
    assert used(ledger) == {"training": 12, "validation": 1}
    assert engine.shown == []
    assert made.released() == [SENTENCE, SENTENCE]
    assert made.certificate().spent[0] > 0


def test_a_choice_that_could_not_be_kept_has_not_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it breaks, a full disk at the last moment releases a choice, and the next call another one, for one charge."""
    ledger = ledger_in(tmp_path)
    made = optimizer(ledger=ledger)
    save, full = Journal.save, [True]

    def failing(self: Journal) -> None:
        if self.winner is not None and full:
            raise OSError(28, "No space left on device")
        save(self)

    monkeypatch.setattr(Journal, "save", failing)
    draws: list[int] = []
    monkeypatch.setattr(Exponential, "release", lambda *counts, **options: draws.append(2) or 2)
    with pytest.raises(OSError, match="No space"):
        made.invoke(examples())
    assert made._private is not None
    assert made._private._journal is not None
    assert made._private._journal.winner is None
    full.clear()
    made.invoke(examples())
    assert draws == [2]
    assert used(ledger) == {"training": 12, "validation": 1}


class Interrupter:
    """Presses Ctrl-C at the ``line``-th line of the package's own files that is run, from a function's call on."""

    def __init__(self, line: int, function: str = "") -> None:
        self.left = line
        self._function = function

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(OPT):
            return None
        if self._function in (frame.f_code.co_name, ""):
            self._function = ""
            if event == "line":
                self.left -= 1
                if self.left == -1:
                    press_ctrl_c()
        return self.trace

    def run(self, made: DPPromptOptimizer, rows: Any) -> OptimizedPrompt | None:
        sys.settrace(self.trace)
        try:
            return made.optimize(rows)
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(None)


SMALL: dict[str, Any] = {"partitions": 8, "shots": 1, "epsilon0": 8.0, "num_prompts": 1, "max_new_tokens": 4}


def small(ledger: PrivacyLedger) -> DPPromptOptimizer:
    return optimizer(WordEngine(agreeing("Say yes.")), ledger=ledger, **SMALL)


def test_ctrl_c_at_any_line_keeps_journal_and_ledger_together(tmp_path: Path) -> None:
    """If it breaks, Ctrl-C at some moment releases what nobody paid for, or ends a run that has not yet chosen."""
    with ledger_in(tmp_path) as ledger:
        dry = Interrupter(10**9)
        assert dry.run(small(ledger), examples(10)) is not None
    lines = 10**9 - dry.left
    assert lines > 1000
    winners = lost = 0
    moments = [("", line) for line in range(0, lines - 100, lines // 11)]
    moments += [("complete", line) for line in range(0, 36, 7)]  # where the choice is kept
    for number, (function, line) in enumerate(moments):
        folder = tmp_path / str(number)
        folder.mkdir()
        left = interrupted_at(function, line, folder)
        gc.collect()
        with ledger_in(folder) as ledger:
            before = used(ledger)
            made = small(ledger)
            if before["validation"] and left is not None and left["winner"] is None:
                lost += 1
                with pytest.raises(PlanError, match="choice"):
                    made.optimize(examples(10))
                continue
            final = made.optimize(examples(10))
            after, fields = used(ledger), journal_fields(folder)
            assert after["training"] - calls_of(fields) in (0, 1)
            assert after["validation"] == 1
            if left is not None and left["winner"] is not None:  # what was chosen stays chosen
                winners += 1
                assert fields["winner"] == left["winner"]
                assert after == before
            assert made.optimize(examples(10)).instruction == final.instruction
            assert used(ledger) == after
    assert winners
    assert lost


def interrupted_at(function: str, line: int, folder: Path) -> dict[str, Any] | None:
    """What a run that is interrupted at this line leaves in its journal, once it agrees with the ledger."""
    with ledger_in(folder) as ledger:
        made = small(ledger)
        assert Interrupter(line, function).run(made, examples(10)) is None
        spent = used(ledger)
        if ledger.plan("dp-opt") is None:
            assert not journals(folder / "ledger.db")
            return None
        fields = journal_fields(folder)
        assert calls_of(fields) <= spent["training"] <= calls_of(fields) + 1
        assert fields["winner"] is None or spent["validation"] == 1
        return fields


def test_a_complete_run_is_handed_out_again_at_no_cost(tmp_path: Path) -> None:
    """If it breaks, a restarted service pays for its prompt again, or gets another one for the same charge."""
    with ledger_in(tmp_path) as ledger:
        first = optimizer(ledger=ledger).optimize(examples())
        spent, kept = used(ledger), journal_text(tmp_path)
    for rows in (examples(), PrivateRecords(examples()), iter(examples())):
        engine = Looking()
        with ledger_in(tmp_path) as ledger:
            again = optimizer(engine, ledger=ledger).optimize(rows)
            assert used(ledger) == spent
        assert (again.instruction, again.prompt, again.settings) == (first.instruction, first.prompt, first.settings)
        assert again.certificate == first.certificate
        assert engine.shown == []
    assert journal_text(tmp_path) == kept


def test_a_complete_run_hands_out_the_same_prompt_under_other_filters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it breaks, a new version with other filters hands out a prompt that was never scored on a row."""
    said = "Classify this film. Answer yes or no"
    engine = WordEngine(agreeing(said), extra=said)
    settings = {"filtered": True, "max_new_tokens": 6, "not_private_seed": None}
    first = None
    for turn in range(20):
        ledger = ledger_in(str(tmp_path / f"{turn}.db"))
        first = optimizer(engine, ledger=ledger, **settings).optimize(examples()).instruction
        if first == "Classify this film.":  # in some run of 20 but for a chance of 2^-20
            break
        ledger.close()
    assert first == "Classify this film."
    monkeypatch.setattr("langchain_dp.opt.candidates.whole_sentences", lambda text: (text, ""))
    again = optimizer(engine, ledger=ledger, **settings).optimize(examples())
    assert [each.dropped for each in again.candidates] == ["it stops in mid-sentence"] * 2
    assert again.instruction == first


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"instruction": "Label this text."}, "instruction"),
        ({"labels": ["positive", "negative"]}, "labels"),
        ({"epsilon0": 3.0}, "epsilon0"),
        ({"kbar": 5}, "kbar"),
        ({"num_prompts": 3, "max_calls": 16}, "num_prompts"),
        ({"max_calls": 12}, "max_calls"),
        ({"max_retries": 1}, "max_retries"),
        ({"partitions": 15}, "partitions"),
        ({"sampling_probability": 0.9}, "sampling_probability"),
        ({"validation": 0.25}, "validation"),
        ({"temperature": 0.7}, "temperature"),
        ({"stop": ["."]}, "stop"),
        ({"banned": [7]}, "banned"),
        ({"calibrate": False}, "calibrate"),
        ({"shots": 3, "delta0": 2e-3}, "delta0, shots"),
    ],
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    """If it breaks, a run goes on under settings that it was not accounted for, or does not say which one changed."""
    stopped(tmp_path, stopping(2))
    with ledger_in(tmp_path) as ledger:
        with pytest.raises(PlanError, match=rf"other settings: {named} changed.*another name="):
            optimizer(ledger=ledger, **changes).invoke(examples())
        assert used(ledger) == {"training": 3, "validation": 0}


@pytest.mark.parametrize("share", [PrivacyBudget(150.0, 0.1), PrivacyBudget(200.0, 0.09)])
def test_another_share_is_refused_by_name(share: PrivacyBudget, tmp_path: Path) -> None:
    """If it breaks, a new budget= is ignored without a word: the user believes in another promise."""
    stopped(tmp_path, stopping(2))
    with ledger_in(tmp_path) as ledger:
        with pytest.raises(PlanError, match=r"budget\.(epsilon|delta) was"):
            optimizer(ledger=ledger, budget=share).invoke(examples())
        optimizer(ledger=ledger, budget=BUDGET).invoke(examples())


def test_a_run_that_took_the_whole_ledger_can_be_planned_again(tmp_path: Path) -> None:
    """If it breaks, plan() refuses in a new process what invoke() goes on with."""
    stopped(tmp_path, stopping(2))
    with ledger_in(tmp_path) as ledger:
        assert ledger.reserved()[0] == BUDGET.epsilon
        again = optimizer(ledger=ledger)
        assert again.plan(examples()).budget.epsilon == BUDGET.epsilon
        assert used(ledger) == {"training": 3, "validation": 0}
        again.invoke(examples())


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    """If it breaks, tokens of one model are spelt by another."""
    stopped(tmp_path, stopping(2))

    class Other(WordEngine):
        name = "word-engine-2"

    with ledger_in(tmp_path) as ledger, pytest.raises(PlanError, match="model changed"):
        optimizer(Other(agreeing(SENTENCE)), ledger=ledger).invoke(examples())


def test_two_optimizers_do_not_share_one_charge_in_memory() -> None:
    """If it breaks, two runs under one name choose twice, from two splits of the records, for the price of once."""
    ledger = PrivacyLedger(BUDGET)
    inside, go = threading.Event(), threading.Event()

    def look(bodies: list[str]) -> None:
        inside.set()
        assert go.wait(30)

    first, second = optimizer(Looking(look), ledger=ledger), optimizer(ledger=ledger)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first.invoke, examples())
        assert inside.wait(30)
        with pytest.raises(PlanError, match="another optimizer is at it"):
            second.invoke(examples())
        other = optimizer(ledger=PrivacyLedger(BUDGET))  # the same name in another ledger is another run
        other.invoke(examples())
        go.set()
        running.result()
    assert used(ledger) == {"training": 12, "validation": 1}
    assert second.optimize(examples()).instruction == first.optimize(examples()).instruction
    assert used(ledger) == {"training": 12, "validation": 1}


def test_a_copy_taken_while_the_choice_was_made_gives_no_second_winner(tmp_path: Path) -> None:
    """If it breaks, who copies the ledger during validation draws as many winners as he likes for one charge."""
    file, copies = tmp_path / "ledger.db", []

    def look(bodies: list[str]) -> None:
        if "Student" not in bodies[0]:
            copies.append(file.read_bytes())

    with ledger_in(tmp_path) as ledger:
        final = optimizer(Looking(look), ledger=ledger).optimize(examples()).instruction
    kept, refusals = file.read_bytes(), 0
    for _ in range(15):
        file.write_bytes(copies[-1])
        with ledger_in(tmp_path) as ledger:
            assert used(ledger) == {"training": 12, "validation": 1}
            engine = Looking()
            with pytest.raises(PlanError, match=r"choice .* is charged"):
                optimizer(engine, ledger=ledger).optimize(examples())
            refusals += 1
            assert engine.shown == []
    assert refusals == 15
    file.write_bytes(kept)
    with ledger_in(tmp_path) as ledger:
        assert optimizer(ledger=ledger).optimize(examples()).instruction == final


@pytest.mark.parametrize("moment", ["token", "choice"])
def test_an_older_ledger_put_back_under_a_running_process_releases_nothing(moment: str, tmp_path: Path) -> None:
    """If it breaks, an outcome leaves whose charge was taken back while the model was asked."""
    file, copies = tmp_path / "ledger.db", []

    def look(bodies: list[str]) -> None:
        copies.append(file.read_bytes())
        calls = calls_of(journal_fields(tmp_path))
        if calls == 4 and moment == "token":
            file.write_bytes(copies[-3])
        if calls == 12 and moment == "choice" and "Student" not in bodies[0]:
            file.write_bytes(copies[-2])

    with ledger_in(tmp_path) as ledger:
        made = optimizer(Looking(look), ledger=ledger)
        for _ in range(2):
            with pytest.raises(LedgerError, match="older copy"):
                made.optimize(examples())
        assert journal_fields(tmp_path)["winner"] is None


def changed(rows: list[dict[str, str]], how: str) -> list[dict[str, str]]:
    other = [dict(row) for row in rows]
    if how == "edited":
        other[7]["text"] += "!"
    elif how == "one more":
        other += examples(1, start=90)
    elif how == "one less":
        del other[7]
    elif how == "last one less":
        del other[-1]
    elif how == "reordered":
        other[3], other[4] = other[4], other[3]
    elif how == "relabelled":
        other[7]["label"] = "negative"
    elif how == "with ids":
        other = [{**row, "id": f"r{i}"} for i, row in enumerate(other)]
    return other


CHANGES = ["edited", "one more", "one less", "last one less", "reordered", "relabelled", "with ids"]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE], ids=lambda budget: budget.neighbors.name)
def test_other_data_are_refused(complete: bool, budget: PrivacyBudget, tmp_path: Path) -> None:
    """If it breaks, records move between training and validation, and are paid for once; or data go unnoticed."""
    with ledger_in(tmp_path, budget) as ledger:
        made = optimizer(Looking() if complete else stopping(2), ledger=ledger)
        try:
            made.invoke(examples())
        except KeyboardInterrupt:
            assert not complete
        spent, kept = used(ledger), journal_text(tmp_path)
        for how in CHANGES:
            for other in (made, optimizer(Looking(), ledger=ledger)):
                message = r"complete, and was over other examples" if complete else r"was started with other examples"
                if how.endswith("one less") and other is made and not complete:
                    continue  # forgetting, in the process that has seen them all
                with pytest.raises(PlanError, match=rf"{message}(?s:.*)another name") as caught:
                    other.invoke(changed(examples(), how))
                assert CANARY not in str(caught.value)
                assert not re.search(r"\b(39|40|41)\b", str(caught.value))
        assert used(ledger) == spent
    assert journal_text(tmp_path) == kept


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_a_forgotten_record_is_never_shown_again_and_nobody_changes_its_part(budget: PrivacyBudget) -> None:
    """If it breaks, a deleted record is still read; or the records behind it move up, and one is taught and selects."""
    records = PrivateRecords(examples())
    engine = stopping(3)
    made = optimizer(engine, budget=budget)
    with pytest.raises(KeyboardInterrupt):
        made.invoke(records)
    taught = notes([body for body in engine.shown if "Student" in body])
    gone = {sorted(taught)[0], sorted({f"{i:03d}" for i in range(40)} - taught)[0]}  # one of either part
    for name in list(records.ids()):
        if any(f"note {note} " in records.get(name)["text"] for note in gone):
            records.forget(name)
    engine.shown.clear()
    made.invoke(records)
    after = notes([body for body in engine.shown if "Student" in body])
    assert not gone & notes(engine.shown)
    assert after == taught - gone
    selecting = notes([body for body in engine.shown[-20:] if "Student" not in body])
    assert not selecting & taught
    assert engine.cache == {}
    made.invoke(records)  # complete, over what is left
    with pytest.raises(PlanError, match="complete"):
        made.invoke(examples())


def test_the_parts_of_a_run_stay_disjoint_in_a_new_process(tmp_path: Path) -> None:
    """If it breaks, a restart deals the records anew: one teaches before and selects after, for the larger cost."""
    seen: list[Looking] = [stopping(4), stopping(4), Looking()]
    for engine in seen:
        with ledger_in(tmp_path) as ledger:
            made = optimizer(engine, ledger=ledger)
            if engine is seen[-1]:
                made.invoke(examples())
            else:
                with pytest.raises(KeyboardInterrupt):
                    made.invoke(examples())
        gc.collect()
    taught = [notes([body for body in engine.shown if "Student" in body]) for engine in seen]
    assert len(set.union(*taught)) == 32
    everyone = notes([body for engine in seen for body in engine.shown])
    assert len(everyone) == 40
