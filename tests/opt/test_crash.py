"""What a run holds after its process was killed with no chance to clean up."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.optimizers import (
    SENTENCE,
    Looking,
    calls_of,
    examples,
    journal_fields,
    journals,
    ledger_in,
    notes,
    optimizer,
    used,
)

from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.errors import PlanError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")

SETTINGS: dict[str, Any] = {"num_prompts": 4, "max_calls": 60, "max_new_tokens": 8}


def run_until_killed(folder: Path, pipe: int) -> None:
    """A process of its own: tells of each private call with a mark, and at the end what it wrote."""
    try:

        def look(bodies: list[str]) -> None:
            kind = "T" if "Student" in bodies[0] else "F"
            os.write(pipe, f"{kind}{','.join(sorted(notes(bodies)))};".encode())

        with ledger_in(folder) as ledger:
            prompt = optimizer(Looking(look), ledger=ledger, **SETTINGS).optimize(examples())
        os.write(pipe, f"D{prompt.instruction};".encode())
    finally:
        os._exit(0)


def test_kill_at_any_moment_forgets_no_call_and_no_run(tmp_path: Path) -> None:
    """If it breaks, a killed run releases tokens that its ledger does not know, is lost, or chooses twice."""
    dice = random.Random(11)
    asked = kills = 0
    winners: set[object] = set()
    taught: set[str] = set()
    final = ""
    while not final:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            run_until_killed(tmp_path, write)
        os.close(write)
        told = b""
        marks = dice.randrange(1, 5) if kills < 6 else 10**6  # the choice is left in peace
        while told.count(b";") < marks and (more := os.read(read, 1)):
            told += more
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(read, 65536):
            told += more
        os.close(read)
        kills += 1
        said = told.decode().split(";")[:-1]
        asked += sum(mark[0] == "T" for mark in said)
        taught |= {note for mark in said if mark[0] == "T" for note in mark[1:].split(",")}
        final = next((mark[1:] for mark in said if mark[0] == "D"), "")
        with ledger_in(tmp_path) as ledger:
            spent = used(ledger)
            if ledger.plan("dp-opt") is None:
                assert not journals(tmp_path / "ledger.db")
                continue
        fields = journal_fields(tmp_path)
        # every call that showed a record was charged before; each kill cost one token at most
        assert asked <= spent["training"] <= asked + kills
        assert calls_of(fields) <= spent["training"] <= calls_of(fields) + kills
        assert fields["winner"] is None or spent["validation"] == 1
        if fields["winner"] is not None:
            winners.add(fields["winner"])
        elif spent["validation"]:  # killed between the charge of the choice and its outcome
            refused_for_good(tmp_path)
            return
    assert kills > 3
    assert len(winners) == 1
    assert len(taught) == 32  # eight records select, and never taught, in any of the processes
    fields = journal_fields(tmp_path)
    assert final in (SENTENCE, "Classify this text.")
    assert used_at_last(tmp_path) == {"training": spent["training"], "validation": 1}
    assert [candidate["ended"] for candidate in fields["written"]] == ["end"] * 4


def used_at_last(folder: Path) -> dict[str, int]:
    """What is charged after the complete run was asked for once more."""
    with ledger_in(folder) as ledger:
        engine = Looking()
        optimizer(engine, ledger=ledger, **SETTINGS).invoke(examples())
        assert engine.shown == []
        return used(ledger)


def refused_for_good(folder: Path) -> None:
    """A run whose choice is charged, and its outcome unknown: nothing is asked or charged again."""
    with ledger_in(folder) as ledger:
        spent = used(ledger)
        for _ in range(2):
            engine = Looking()
            with pytest.raises(PlanError, match=r"choice .* is charged"):
                optimizer(engine, ledger=ledger, **SETTINGS).optimize(examples())
            assert engine.shown == []
        assert used(ledger) == spent
    assert journal_fields(folder)["winner"] is None


def test_a_kill_while_candidates_are_compared_loses_the_choice(tmp_path: Path) -> None:
    """If it breaks, every kill during validation is followed by another draw, and one charge pays for them all."""
    taught: list[int] = []

    def look(bodies: list[str]) -> None:
        if "Student" in bodies[0]:
            taught.append(1)
        elif len(taught) == 24:  # four candidates of six calls
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        with ledger_in(tmp_path) as ledger:
            optimizer(Looking(look), ledger=ledger, **SETTINGS).optimize(examples())

    assert killed(run)
    refused_for_good(tmp_path)


def killed(work: Callable[[], object]) -> bool:
    """Whether a child that does this work was killed on the way."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


SMALL: dict[str, Any] = {"partitions": 8, "shots": 1, "epsilon0": 8.0, "num_prompts": 1, "max_new_tokens": 3}


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after it"])
def test_a_kill_at_any_write_keeps_charges_and_outcomes_together(
    committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a kill in the middle of a write leaves an outcome without its charge, or a charge drawn twice."""
    transaction, lost = Backend.transaction, 0

    def run(folder: Path, number: int) -> None:
        writes = itertools.count()

        @contextlib.contextmanager
        def dying(self: Backend, *, write: bool, wait: float | None = None) -> Iterator[Connection]:
            mine = next(writes) if write else -1
            with transaction(self, write=write, wait=wait) as connection:
                if mine == number:
                    connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
                yield connection
                if mine == number and not committed:
                    os.kill(os.getpid(), signal.SIGKILL)
            if mine == number:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Backend, "transaction", dying)
        with ledger_in(folder) as ledger:
            optimizer(ledger=ledger, **SMALL).optimize(examples(10))

    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        if not killed(functools.partial(run, folder, number)):
            break
        with ledger_in(folder) as ledger:
            before, begun = used(ledger), bool(journals(folder / "ledger.db"))
            assert begun == (ledger.plan("dp-opt") is not None)
            fields = journal_fields(folder) if begun else {"written": [], "winner": None}
            assert calls_of(fields) <= before["training"] <= calls_of(fields) + 1
            made = optimizer(ledger=ledger, **SMALL)
            if before["validation"] and fields["winner"] is None:
                lost += 1
                with pytest.raises(PlanError, match="choice"):
                    made.optimize(examples(10))
                continue
            final = made.optimize(examples(10))
            after = used(ledger)
            assert after == (before if fields["winner"] is not None else after)
            assert after["validation"] == 1
            assert calls_of(journal_fields(folder)) == after["training"] - (before["training"] - calls_of(fields))
            assert made.optimize(examples(10)).instruction == final.instruction
            assert used(ledger) == after
    assert number > 8
    assert lost == 1  # after the charge of the choice, or before the commit of its outcome
