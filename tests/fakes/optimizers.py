"""Small optimizers on a fake engine: forty records, sixteen subsets that all vote, noise far below their votes."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.canary import CANARY
from fakes.groups import grouped, with_sampling
from fakes.next_token import Script, WordEngine, agreeing
from fakes.stops import press_ctrl_c
from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.opt import CandidateOptions, Decoding, DPPromptOptimizer
from langchain_dp.opt.reservation import TRAINING, VALIDATION

LABELS = ["negative", "positive"]
INSTRUCTION = "Classify this text."
SENTENCE = "Say yes or no."
"""Five pieces; with the end of the text, a candidate takes six calls."""
BUDGET = PrivacyBudget(200.0, 0.1)
CALLS = 16
ADD_OR_REMOVE = PrivacyBudget(200.0, 0.1, Neighbors.ADD_OR_REMOVE_ONE)
ZERO_OUT = PrivacyBudget(200.0, 0.1, Neighbors.REPLACE_SPECIAL)


def examples(count: int = 40, *, start: int = 0) -> list[dict[str, str]]:
    """Records with the canary in every text; labels in turn."""
    return [{"text": f"note {i:03d} {CANARY}", "label": LABELS[i % 2]} for i in range(start, start + count)]


def optimizer(engine: Any = None, **changes: Any) -> DPPromptOptimizer:
    """Two candidates of at most eight tokens on 16 subsets of two records, which all vote in every call.

    When they agree, their token is released but for a chance of e^-21.
    """
    settings: dict[str, Any] = {
        "allow_small_model": True,
        "model": WordEngine(agreeing(SENTENCE)) if engine is None else engine,
        "labels": LABELS,
        "instruction": INSTRUCTION,
        "shots": 2,
        "partitions": 16,
        "sampling_probability": 1.0,
        "validation": 0.2,
        "num_prompts": 2,
        "max_new_tokens": 8,
        "epsilon0": 4.0,
        "delta0": 1e-3,
        "filtered": False,
        "progress": False,
    } | changes
    if "budget" not in settings and "ledger" not in settings:
        settings["budget"] = BUDGET
    return DPPromptOptimizer(**grouped(with_sampling(settings), candidate_options=CandidateOptions, decoding=Decoding))


class Broken(RuntimeError):
    """What a test raises inside an engine, with private text in it."""


class Looking(WordEngine):
    """Calls ``look`` with the bodies of every call that shows a record, before it answers.

    Attributes:
        shown: Those bodies, all of them: what the model saw of the records.
    """

    def __init__(self, look: Callable[[list[str]], object] = len, script: Script | None = None, **options: Any) -> None:
        super().__init__(agreeing(SENTENCE) if script is None else script, **options)
        self.look = look
        self.shown: list[str] = []

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        self._seen([one.prompt.body for one in asked])
        return super().next_tokens(asked, decoding)

    def score_next_token(self, public: Any, members: Any, *, candidates: int, chat: bool = False) -> Any:
        self._seen([one.prompt.body for one in members])
        return super().score_next_token(public, members, candidates=candidates, chat=chat)

    def score_labels(self, prompts: Any, words: Sequence[str], *, content_free: Sequence[str] = ()) -> Any:
        self._seen([prompt.body for prompt in prompts])
        return super().score_labels(prompts, words, content_free=content_free)

    def _seen(self, bodies: list[str]) -> None:
        private = [body for body in bodies if CANARY in body]
        if private:
            self.shown += private
            self.look(private)


def stopping(turn: int) -> Looking:
    """An engine in which Ctrl-C is pressed at the ``turn``-th call that asks for a token."""
    turns = iter(range(10**6))

    def look(bodies: list[str]) -> None:
        if "Student" in bodies[0] and next(turns) == turn:
            press_ctrl_c()

    return Looking(look)


def ledger_in(folder: Path | str, budget: PrivacyBudget = BUDGET) -> PrivacyLedger:
    """The ledger in a folder, or at a place, made if it is not there."""
    return PrivacyLedger(budget, folder if isinstance(folder, str) else folder / "ledger.db")


def stopped(folder: Path, engine: WordEngine) -> None:
    """A process whose run was stopped by Ctrl-C, and which is gone."""
    with ledger_in(folder) as ledger:
        try:
            optimizer(engine, ledger=ledger).invoke(examples())
        except KeyboardInterrupt:
            return
    raise AssertionError("the run came to its end")


def notes(bodies: Sequence[str]) -> set[str]:
    """Numbers of the records that these prompts show."""
    return set(re.findall(r"note (\d+)", "".join(bodies)))


def used(ledger: PrivacyLedger, name: str = "dp-opt") -> dict[str, int]:
    """Calls charged to the parts of a plan: "training" are tokens, "validation" the selection."""
    plan = ledger.plan(name)
    if plan is None:
        return {TRAINING: 0, VALIDATION: 0}
    return {event.part: most - plan.remaining(event) for event, most in plan.events}


def journals(file: Path) -> list[str]:
    """The journals that a ledger holds, in the order of their plans."""
    if not file.exists():
        return []
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return [row[0] for row in connection.execute("SELECT state FROM journals ORDER BY plan")]


def journal_text(folder: Path) -> str:
    """The one journal of the ledger in a folder."""
    [text] = journals(folder / "ledger.db")
    return text


def journal_fields(folder: Path) -> dict[str, Any]:
    """What that journal holds."""
    fields: dict[str, Any] = json.loads(journal_text(folder))
    return fields


def write_journal(folder: Path, text: str) -> None:
    """Put another journal in its place, as no program of this package does."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as connection, connection:
        connection.execute("UPDATE journals SET state = ?", (text,))


def calls_of(fields: Mapping[str, Any]) -> int:
    """Calls of the mechanism whose outcome a journal holds."""
    return sum(candidate["calls"] for candidate in fields["written"])
