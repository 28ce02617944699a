"""What a run holds after its process was killed with no chance to clean up."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.optimizers import (
    SENTENCE,
    Looking,
    calls_of,
    examples,
    journal_fields,
    ledger_in,
    notes,
    optimizer,
    used,
)

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
        marks = dice.randrange(1, 5) if kills < 12 else 10**6
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
            if not list(tmp_path.glob("*.run.json")):
                assert ledger.plan("dp-opt") is None
                continue
        fields = journal_fields(tmp_path)
        # every call that showed a record was charged before; each kill cost one token at most
        assert asked <= spent["training"] <= asked + kills
        assert calls_of(fields) <= spent["training"] <= calls_of(fields) + kills
        assert fields["winner"] is None or spent["validation"] == 1
        if fields["winner"] is not None:
            winners.add(fields["winner"])
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


def test_a_kill_while_the_choice_is_written_leaves_none_behind(tmp_path: Path) -> None:
    """If it breaks, every kill at that moment leaves another choice on disk, and one charge has paid for them all."""
    named = Path.replace

    def killed(part: Path, target: Path) -> Path:
        if target.name.endswith(".run.json") and '"winner": null' not in part.read_text():
            os.kill(os.getpid(), signal.SIGKILL)
        return named(part, target)

    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            Path.replace = killed  # type: ignore[method-assign,assignment]  # in this child only
            with ledger_in(tmp_path) as ledger:
                optimizer(ledger=ledger).optimize(examples())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert len(list(tmp_path.glob(".*.part"))) == 1
    with ledger_in(tmp_path) as ledger:
        optimizer(ledger=ledger).optimize(examples())
    assert not list(tmp_path.glob(".*.part"))
