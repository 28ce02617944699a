"""Runs of the synthesizer that are stopped and taken up: no token is drawn twice, and what was paid for is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.fair_semaphore import on_both
from fakes.scorer import Draws, Panic, WordScorer, of_records, stop_at
from fakes.stops import press_ctrl_c
from fakes.synthesizers import BUDGET, LABELS, entries, rows, synthesizer

from langchain_dp.accounting import PrivacyLedger
from langchain_dp.ensemble.runs import RunJournal
from langchain_dp.errors import (
    InvalidParameter,
    LedgerUnwritable,
    ModelUnavailable,
    PlanError,
)
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.ports import Continuation, Token
from langchain_dp.records import PrivateRecords
from langchain_dp.synth import SyntheticExample
from langchain_dp.synth.journal import SynthesisJournal, WrittenText


def first_asks(engine: WordScorer) -> list[list[Continuation]]:
    """The first question that was asked of any member."""
    return [asked for asked in engine.asked if asked][:1]


def test_a_state_before_a_draw_is_older_than_one_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a copy that lacks one mark gives another draw of a token each time that it is put back."""
    path, older, release = tmp_path / "ledger.db", [], ClippedSum.release

    def stopped(self: ClippedSum, *given: Any, **named: Any) -> Any:
        release(self, *given, **named)
        press_ctrl_c()

    def copied(bodies: list[str]) -> None:
        if len(chain._engine.asked) == 2:  # type: ignore[attr-defined]  # a token is kept, the next one not yet drawn
            older.append(path.read_bytes())
            monkeypatch.setattr(ClippedSum, "release", stopped)

    with PrivacyLedger(BUDGET, path) as ledger:
        chain = synthesizer(Draws(copied), ledger=ledger)
        with pytest.raises(KeyboardInterrupt):
            chain.invoke(rows())
        monkeypatch.setattr(ClippedSum, "release", release)
        path.write_bytes(older[0])
        with pytest.raises(PlanError, match="an older state of the run"):
            chain.invoke(rows())


class Fragile(Draws):
    """Fails as ``fails`` says, by how often it was asked, after two tokens of the first text."""

    def __init__(self, fails: Callable[[int], BaseException | None], *, spells: bool = False) -> None:
        super().__init__(length=6)
        self.fails, self.spells, self.looks, self.texts = fails, spells, 0, 0

    def _break(self, written: tuple[Token, ...]) -> None:
        if self.texts == 1 and len(written) == 2:
            self.looks += 1
            if (error := self.fails(self.looks)) is not None:
                raise error

    def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
        self.texts += bool(of_records(members)) and not public.written
        if not self.spells:
            self._break(public.written)
        return super().score_next_token(public, members, **settings)

    def detokenize(self, tokens: Any) -> str:
        if self.spells:
            self._break(tuple(tokens))
        return super().detokenize(tokens)


class Full(SynthesisJournal):
    """A journal on a disk that has no room for a text, or for a token."""

    full = ""

    def keep(self, text: WrittenText) -> None:
        if self.full == "keep" and text.ended != "lost":
            raise LedgerUnwritable("No space is left.")
        super().keep(text)

    def add(self, token: Token) -> None:
        if self.full == "add":
            raise LedgerUnwritable("No space is left.")
        super().add(token)


class Fails(Draws):
    """Breaks off in the middle of a text, but never at its beginning."""

    def __init__(self, at: int = 2) -> None:
        super().__init__(length=6)
        self._at = at

    def score_next_token(self, public: Any, members: Any, **rest: Any) -> Any:
        if len(public.written) == self._at:
            raise ModelUnavailable("The server does not answer.")
        return super().score_next_token(public, members, **rest)


@on_both
@pytest.mark.parametrize("at", [1, 2, 5, 9, 14, 20, 25])
def test_a_killed_run_loses_nothing_and_goes_on_with_the_next_token(place: str, at: int) -> None:
    """If it breaks, a kill loses what was paid for, or a restart draws a text or a token twice."""
    first = synthesizer(Draws(stop_at(at)), ledger=PrivacyLedger(BUDGET, place))
    with pytest.raises(KeyboardInterrupt):
        first.invoke(rows())
    before = [one.text for one in first._runs.released()]
    assert first._runs._opened is not None
    under_way = first._runs._opened.journal.under_way
    engine, ledger = Draws(), PrivacyLedger(BUDGET, place)
    second = synthesizer(engine, ledger=ledger)
    second.invoke(rows())
    after = second._runs.released()
    assert [one.text for one in after[: len(before)]] == before
    assert second._runs._opened is not None
    assert len(second._runs._opened.journal.written) == len(after) == 6
    assert entries(ledger) == 3
    assert (under_way is not None and not under_way.blank) == any(calls[0].written for calls in first_asks(engine))
    if under_way is not None:
        assert after[len(before)].text.startswith(engine.detokenize(under_way.tokens).strip())
        assert first_asks(engine)[0][0].written == under_way.tokens


@pytest.mark.parametrize("at", [1, 2, 7, 20])
def test_a_process_that_is_killed_while_the_model_computes_loses_nothing(tmp_path: Path, at: int) -> None:
    """If it breaks, SIGKILL costs a text."""

    def killed(bodies: list[str]) -> None:
        if bodies and len([asked for asked in engine.asked if asked]) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    path = tmp_path / "ledger.db"
    pid = os.fork()
    if pid == 0:
        try:
            engine = Draws(killed)
            synthesizer(engine, ledger=PrivacyLedger(BUDGET, path)).invoke(rows())
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    ledger = PrivacyLedger(BUDGET, path)
    chain = synthesizer(ledger=ledger)
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 6
    assert entries(ledger) == 3


@pytest.mark.parametrize("at", [1, 3, 12])
def test_a_token_whose_outcome_was_not_kept_is_not_drawn_again(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, what ends a process may choose among the tokens: they are drawn until one is kept."""
    ledger, draws, release = PrivacyLedger(BUDGET), 0, ClippedSum.release

    def stopped(self: ClippedSum, *given: Any, **named: Any) -> Any:
        nonlocal draws
        draws += 1
        found = release(self, *given, **named)
        if draws == at:
            press_ctrl_c()
        return found

    monkeypatch.setattr(ClippedSum, "release", stopped)
    with pytest.raises(KeyboardInterrupt):
        synthesizer(ledger=ledger).invoke(rows())
    chain = synthesizer(ledger=ledger)
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 5
    assert chain._runs._opened is not None
    assert [one.ended for one in chain._runs._opened.journal.written].count("lost") == 1
    assert "1 given up when the run was stopped" in str(examples)
    assert entries(ledger) == 3


def test_labels_in_another_order_go_on_with_the_text_under_way() -> None:
    """If it breaks, a set of labels, whose order hangs on the process, draws texts until one is liked."""
    ledger = PrivacyLedger(BUDGET)
    first = synthesizer(Draws(stop_at(3)), ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        first.invoke(rows())
    assert first._runs._opened is not None
    under_way = first._runs._opened.journal.under_way
    assert under_way is not None
    assert under_way.tokens
    engine = Draws()
    synthesizer(engine, ledger=ledger, labels=dict(reversed(LABELS.items()))).invoke(rows())
    assert first_asks(engine)[0][0].written == under_way.tokens


def test_an_older_copy_is_not_gone_on_with_by_who_has_seen_more(tmp_path: Path) -> None:
    """If it breaks, a text is drawn as often as an old copy of the ledger is put back, for one charge."""
    path = tmp_path / "ledger.db"
    calls = itertools.count(1)

    def stop(bodies: list[str]) -> None:
        if next(calls) in (2, 4):
            press_ctrl_c()

    with PrivacyLedger(BUDGET, path) as ledger:
        chain = synthesizer(Draws(stop), ledger=ledger)
        with pytest.raises(KeyboardInterrupt):
            chain.invoke(rows())
        older = path.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            chain.invoke(rows())
        newest = path.read_bytes()
        path.write_bytes(older)
        with pytest.raises(PlanError, match="an older state of the run"):
            chain.invoke(rows())
        path.write_bytes(newest)
        assert len(chain.invoke(rows())) > 0


@pytest.mark.parametrize("times", [2, 3])
def test_a_model_that_fails_now_and_then_costs_no_text(times: int) -> None:
    """If it breaks, one time-out, when it was asked if it goes on, loses what was paid for."""
    ledger = PrivacyLedger(BUDGET)
    engine = Fragile(lambda look: ModelUnavailable("The server is slow.") if look <= times else None)
    chain = synthesizer(engine, ledger=ledger)
    with pytest.raises(ModelUnavailable):
        chain.invoke(rows())
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 6


@pytest.mark.parametrize("spells", [False, True])
@pytest.mark.parametrize("kind", [ModelUnavailable, InvalidParameter, ValueError, Panic])
def test_tokens_that_break_the_model_for_good_stop_no_run(kind: type[BaseException], spells: bool) -> None:
    """If it breaks, a paid run ends in the same error for ever, or draws a text for one charge until it is liked."""
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(Fragile(lambda _: kind("of these tokens"), spells=spells), ledger=ledger)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # whatever its kind
        chain.invoke(rows())
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 5
    assert [one.ended == "lost" for one in chain._runs._opened.journal.written] == [True] + [False] * 5  # type: ignore[union-attr]
    assert entries(ledger) == 3


def test_a_text_that_is_whole_needs_no_model_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a kill after the last token loses the text where the model is away, or scores nothing after it."""
    ledger, keep = PrivacyLedger(BUDGET), SynthesisJournal.keep

    def killed(self: SynthesisJournal, text: WrittenText) -> None:
        press_ctrl_c()

    monkeypatch.setattr(SynthesisJournal, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        synthesizer(ledger=ledger).invoke(rows())
    monkeypatch.setattr(SynthesisJournal, "keep", keep)

    class Away(Draws):
        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            raise ModelUnavailable("Nobody is there.")

    chain = synthesizer(Away(), ledger=ledger)
    with pytest.raises(ModelUnavailable):  # of the next one
        chain.invoke(rows())
    assert len(chain._runs.released()) == 1


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_that_ends_the_process_ends_no_run(at: int) -> None:
    """If it breaks, all that is paid for after this text is out of reach: its members come back at every restart."""

    def ends(bodies: list[str]) -> None:
        if any("POISON" in body for body in bodies) and len(engine.asked[-1][0].written) == at:
            press_ctrl_c()  # as a fault of a driver would, in every process that comes

    poisoned = [{**row, "text": f"{row['text']} POISON"} if i == 4 else row for i, row in enumerate(rows())]
    ledger, engine, stops = PrivacyLedger(BUDGET), Draws(ends), 0
    for _ in range(50):
        with contextlib.suppress(KeyboardInterrupt):
            examples = synthesizer(engine, ledger=ledger, count=2, sampling_probability=1.0).invoke(poisoned)
            break
        stops += 1
    assert stops == 6, "the first time, and five more"
    assert len([*examples, *examples.dropped]) == 1
    assert entries(ledger) == 1


def test_who_gives_up_a_round_goes_on_over_other_records() -> None:
    """If it breaks, a row that is erased after a kill costs every round that is not written yet."""
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(Draws(stop_at(9)), ledger=ledger)
    chain.give_up_round()  # nothing has begun
    with pytest.raises(KeyboardInterrupt):
        chain.invoke(rows())
    with pytest.raises(PlanError, match=r"call give_up_round\(\), which loses the rest"):
        chain.invoke(rows(118))
    chain.give_up_round()
    chain.give_up_round()
    examples = chain.invoke(rows(118))
    assert len([*examples, *examples.dropped]) == 5
    assert entries(ledger) == 3


@pytest.mark.parametrize(("full", "draws", "lost"), [("keep", 1, 0), ("add", 3, 3)])
def test_what_could_not_be_kept_is_not_drawn_again(
    full: str, draws: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, texts are drawn for one charge until one fits on the disk, which tells more than was charged."""
    first: Counter[str] = Counter()

    class Counts(Draws):
        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            first[public.prompt.head] += bool(of_records(members)) and not public.written
            return super().score_next_token(public, members, **settings)

    monkeypatch.setattr("langchain_dp.synth.run.SynthesisJournal", Full)
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(Counts(), ledger=ledger)
    monkeypatch.setattr(Full, "full", full)
    for _ in range(3):
        with pytest.raises(LedgerUnwritable):
            chain.invoke(rows())
    assert sum(first.values()) == draws
    monkeypatch.setattr(Full, "full", "")
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 6 - lost
    assert sum(first.values()) == 6, "each text is begun once"
    assert entries(ledger) == 3


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ModelUnavailable])
@pytest.mark.parametrize("at", range(1, 5))
def test_a_round_that_has_begun_goes_on_over_the_same_records_only(stop: type[BaseException], at: int) -> None:
    """If it breaks, one round reads two data sets; or one record decides how many texts there are, without noise."""

    class Stops(Draws):
        begun = 0

        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            self.begun += bool(of_records(members)) and not public.written
            if self.begun == at and public.written:  # a token of that text is drawn
                if stop is KeyboardInterrupt:
                    press_ctrl_c()
                raise ModelUnavailable
            return super().score_next_token(public, members, **settings)

    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(stop):
        synthesizer(Stops(), ledger=ledger).invoke(rows())
    charged, chain = entries(ledger), synthesizer(ledger=ledger)
    edited = [{**row, "text": "none of these"} if place == 3 else row for place, row in enumerate(rows())]
    for other in (edited, rows(118)):
        with pytest.raises(PlanError, match="has begun: it goes on over the same ones only"):
            chain.invoke(other)
    assert len(chain._runs.released()) == at - 1
    assert entries(ledger) == charged
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 6
    assert entries(ledger) == 3


def test_other_records_may_write_rounds_of_their_own() -> None:
    """If it breaks, rows that came in since stop a run for good."""
    ledger, first = PrivacyLedger(BUDGET), list(LABELS)

    def told(example: SyntheticExample) -> None:
        first.remove(example.label)
        if not first:  # the first round is whole
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        synthesizer(ledger=ledger, progress=told).invoke(rows())
    again = synthesizer(ledger=ledger)
    examples = again.invoke(rows(118))
    assert len([*examples, *examples.dropped]) == 6
    assert entries(ledger) == 3


def test_what_is_not_kept_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, who looks on sees a text that a failing disk, or a kill, lets be drawn anew for the same charge."""
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(ledger=ledger)
    looks: list[tuple[int, int]] = []
    save = RunJournal.save

    def watched(journal: RunJournal) -> None:
        plan = ledger.plan("synthesis")
        kept = json.loads(plan.journal)["written"] if plan else []
        looks.append((len(chain._runs.released()), len(kept)))
        if isinstance(journal, SynthesisJournal) and len(journal.written) == 3:
            raise OSError
        save(journal)

    monkeypatch.setattr(RunJournal, "save", watched)
    with pytest.raises(OSError):  # noqa: PT011  # its text withheld
        chain.invoke(rows())
    assert set(looks) == {(0, 0), (1, 1), (2, 2)}, "the third text is not kept"
    assert len(chain._runs.released()) == 2


def test_a_round_that_was_charged_and_not_begun_has_the_members_it_had(tmp_path: Path) -> None:
    """If it breaks, one charge pays for two draws of members."""
    path = tmp_path / "ledger.db"

    def run(stop_at: int) -> set[Any]:
        seen: set[Any] = set()
        engine = Draws()

        def watch(bodies: list[str]) -> None:
            seen.update(body for body in bodies if "parcel" in body)
            if len(engine.asked) == stop_at:
                press_ctrl_c()

        engine._before = watch
        chain = synthesizer(engine, ledger=PrivacyLedger(BUDGET, path), count=2)
        with contextlib.suppress(KeyboardInterrupt):
            chain.invoke(rows())
        return seen

    assert run(1) == run(10_000)


def test_a_text_that_broke_off_is_not_drawn_again() -> None:
    """If it breaks, an engine that fails late gives as many draws as one asks for, and one pays once."""
    ledger, engine = PrivacyLedger(BUDGET), Fails()
    chain = synthesizer(engine, ledger=ledger)
    failures = 0
    for _ in range(20):
        try:
            chain.invoke(rows())
            break
        except ModelUnavailable:
            failures += 1
    assert failures == 6, "each text fails once and is lost"
    assert entries(ledger) == 3
    assert len(chain.released()) == 0


def test_a_failure_before_the_first_token_loses_nothing() -> None:
    """If it breaks, an outage costs texts that were paid for."""
    ledger, engine = PrivacyLedger(BUDGET), Fails(at=0)
    chain = synthesizer(engine, ledger=ledger)
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            chain.invoke(rows())
    engine._at = 99
    made = chain.invoke(rows())
    assert len([*made, *made.dropped]) == 6
    assert entries(ledger) == 3


@pytest.mark.parametrize(
    "damage",
    [
        {"written": [[0, "SECRET", "x", "end"]]},
        {"written": [[99, "delivery", "SECRET", "end"]]},
        {"written": [[0, "delivery", "SECRET", "end"], [0, "delivery", "x", "end"]]},
        {"under_way": [0, "SECRET", [1], False, 0]},
        {"under_way": [2, "billing", ["SECRET", None], False, 0], "written": []},
        {"under_way": [2, "billing", [1], "SECRET", 0], "written": []},
        {"version": 2},
    ],
)
def test_a_damaged_journal_is_said_and_not_shown(damage: dict[str, Any], tmp_path: Path) -> None:
    """If it breaks, a run goes on from what is no journal."""
    ledger = PrivacyLedger(BUDGET, tmp_path / "ledger.db")
    synthesizer(Draws(), ledger=ledger).invoke(rows())
    plan = ledger.plan("synthesis")
    assert plan is not None
    fields = json.loads(plan.journal) | damage
    plan.save_journal(json.dumps(fields), expected=plan.journal)
    with pytest.raises(PlanError, match="cannot be read") as caught:
        synthesizer(Draws(), ledger=PrivacyLedger(BUDGET, tmp_path / "ledger.db")).invoke(rows())
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("at", [1, 2, 4, 7, 30])
def test_a_cancelled_run_stops_at_its_next_token_and_loses_nothing(at: int) -> None:
    """If it breaks, a caller who is gone waits for a round of texts, or loses what was paid for."""
    ledger, asked = PrivacyLedger(BUDGET), itertools.count(1)
    engine = Draws()
    chain = synthesizer(engine, ledger=ledger)
    with pytest.raises(PlanError, match=r"cancelled\. The draws are kept"):
        chain._runs.run(PrivateRecords(rows()), advance=lambda _: None, halted=lambda: next(asked) >= at)
    assert entries(ledger) == (at > 1) + (at > 11) + (at > 22)
    assert len(engine.asked) < at, "no token more"
    examples = chain.invoke(rows())
    assert len([*examples, *examples.dropped]) == 6
    assert entries(ledger) == 3


@pytest.mark.asyncio
async def test_a_cancelled_call_can_be_taken_up() -> None:
    """If it breaks, whoever cancels a call goes on paying for texts."""
    ledger, begun, go_on = PrivacyLedger(BUDGET), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(bodies: list[str]) -> None:
        if bodies and not go_on.is_set():
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(60)

    chain = synthesizer(Draws(wait), ledger=ledger)
    call = asyncio.create_task(chain.ainvoke(rows()))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
    with chain._lock:  # the worker has ended
        assert entries(ledger) == 1
    examples = await chain.ainvoke(rows())
    assert len([*examples, *examples.dropped]) == 6
    assert entries(ledger) == 3
