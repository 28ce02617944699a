"""What a run holds after its process was killed with no chance to clean up."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.forked import end_of
from fakes.optimizers import (
    Looking,
    calls_of,
    examples,
    journal_fields,
    journals,
    ledger_in,
    optimizer,
    used,
)

from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.errors import PlanError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")

SETTINGS: dict[str, Any] = {"num_prompts": 4, "max_calls": 60, "max_new_tokens": 8}


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
    with ledger_in(tmp_path) as ledger:
        spent = used(ledger)
        for _ in range(2):
            engine = Looking()
            with pytest.raises(PlanError, match=r"choice .* is charged"):
                optimizer(engine, ledger=ledger, **SETTINGS).optimize(examples())
            assert engine.shown == []
        assert used(ledger) == spent
    assert journal_fields(tmp_path)["winner"] is None


def killed(work: Callable[[], object]) -> bool:
    """Whether a child that does this work was killed on the way."""
    return end_of(work) == -signal.SIGKILL


SMALL: dict[str, Any] = {"partitions": 8, "shots": 1, "epsilon0": 8.0, "num_prompts": 1, "max_new_tokens": 3}


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after it"])
def test_a_kill_at_any_write_keeps_charges_and_outcomes_together(
    committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a kill in the middle of a write leaves an outcome without its charge, or a charge drawn twice."""
    transaction, lost = Backend._transaction, 0

    def run(folder: Path, number: int) -> None:
        writes = itertools.count()

        @contextlib.contextmanager
        def dying(self: Backend, write: bool, wait: float) -> Iterator[Connection]:
            mine = next(writes) if write else -1
            with transaction(self, write, wait) as connection:
                if mine == number:
                    connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
                yield connection
                if mine == number and not committed:
                    os.kill(os.getpid(), signal.SIGKILL)
            if mine == number:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Backend, "_transaction", dying)
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
