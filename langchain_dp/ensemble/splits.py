"""Warnings for records charged to two ledgers, by keyed fingerprints in the user's state folder."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from langchain_dp._util.callers import warn_caller
from langchain_dp._util.machine import state_folder
from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.accounting._account import Account
from langchain_dp.errors import BudgetSplitWarning, OtherRecordsWarning
from langchain_dp.records import CheckedShards, PrivateRecords
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, run_redacted

_MOST = 64
_SHOWN = 3
_WAIT = 2.0  # seconds for another process
_SCHEMA = """
CREATE TABLE IF NOT EXISTS ledgers (id TEXT PRIMARY KEY, place TEXT NOT NULL, epsilon REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS marks (mark BLOB NOT NULL, ledger TEXT NOT NULL, PRIMARY KEY (mark, ledger)) STRICT;
"""


def note_ledger(records: PrivateRecords | CheckedShards, charged: PrivacyLedger | LedgerPlan) -> None:
    """Note the ledger. Warn of a second one, or of a plan's other records."""
    folder = state_folder()
    if folder is None:
        return
    with contextlib.suppress(OSError, sqlite3.Error):  # a note is optional
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        marks = run_redacted(_marks, PrivateArgs(records, _key(folder)), READING)
        plan = charged.name if isinstance(charged, LedgerPlan) else None
        other_rows = plan is not None and _none_known(folder, marks, _id(charged._account, plan))
        others = _noted(folder, marks, charged._account, plan)
        if (others or other_rows) and not run_redacted(_is_sample, PrivateArgs(records), READING):
            if others:
                _warn(charged._account, others)
            if other_rows:
                warn_caller(
                    f"The plan {plan!r} of {_place(charged._account)} was charged for other records, and for none of "
                    "these. These have what is left of it. Give other records another ledger.",
                    OtherRecordsWarning,
                )


def holds_other_rows(records: PrivateRecords, ledger: PrivacyLedger) -> bool:
    folder = state_folder()
    with contextlib.suppress(OSError, sqlite3.Error):
        if folder is not None and (folder / "records.sqlite").exists():
            marks = run_redacted(_marks, PrivateArgs(records, _key(folder)), READING)
            return _none_known(folder, marks, _id(ledger._account))
    return False


def _none_known(folder: Path, marks: list[bytes], holder: str) -> bool:
    with contextlib.closing(sqlite3.connect(folder / "records.sqlite", timeout=_WAIT)) as notes, notes:
        notes.executescript(_SCHEMA)
        known = notes.execute("SELECT mark FROM marks WHERE ledger = ?", (holder,)).fetchall()
    return bool(known) and set(marks).isdisjoint(mark for (mark,) in known)


def _warn(ledger: Account, others: list[tuple[str, float]]) -> None:
    listed = ", ".join(f"{place} (epsilon {epsilon:g})" for place, epsilon in others[:_SHOWN])
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    total = ledger.budget.epsilon + sum(epsilon for _, epsilon in others)
    warn_caller(
        f"Some of these records were charged to another ledger, too: {listed}{more}. With this one, {_place(ledger)}, "
        f"that adds up to epsilon {total:g}. Give each data set one ledger: pass ledger= with the same file "
        "everywhere.",
        BudgetSplitWarning,
    )


def _marks(records: PrivateRecords | CheckedShards, key: bytes) -> list[bytes]:
    texts: Iterable[bytes]
    if isinstance(records, CheckedShards):
        texts = [records.digest]
    else:
        texts = (records.get(name)["text"].encode(errors="surrogatepass") for name in records.ids())
    return heapq.nsmallest(_MOST, {hmac.digest(key, text, hashlib.sha256)[:16] for text in texts})


def _is_sample(records: PrivateRecords | CheckedShards) -> bool:
    if isinstance(records, CheckedShards) or not len(records):
        return False
    text = json.dumps(records.get(records.ids()[0])["text"], ensure_ascii=False)
    folder = resources.files("langchain_dp.sample")
    return any(text in file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".jsonl"))


def _key(folder: Path) -> bytes:
    file = folder / "records.key"
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as new:
            new.write(secrets.token_bytes(32))
    return file.read_bytes()


def _noted(folder: Path, marks: list[bytes], ledger: Account, plan: str | None) -> list[tuple[str, float]]:
    places = ", ".join("?" * len(marks))
    with contextlib.closing(sqlite3.connect(folder / "records.sqlite", timeout=_WAIT)) as notes, notes:
        notes.executescript(_SCHEMA)
        own = _id(ledger)
        notes.execute("INSERT OR REPLACE INTO ledgers VALUES (?, ?, ?)", (own, _place(ledger), ledger.budget.epsilon))
        holders = [own] if plan is None else [own, _id(ledger, plan)]  # plans are in no row of ledgers
        noted = [(mark, holder) for holder in holders for mark in marks]
        notes.executemany("INSERT OR IGNORE INTO marks VALUES (?, ?)", noted)
        found = notes.execute(
            f"SELECT DISTINCT ledgers.id, place, epsilon FROM marks JOIN ledgers ON ledger = id "  # noqa: S608  # marks
            f"WHERE mark IN ({places}) AND id != ? ORDER BY ledgers.rowid",
            (*marks, own),
        )
        return [(place, epsilon) for _, place, epsilon in found]


def _id(ledger: Account, plan: str | None = None) -> str:
    own = ledger.family or ledger.store.ledger_id
    return own if plan is None else f"{own} {plan}"


def _place(ledger: Account) -> str:
    path = ledger.store.path
    if path is None:
        return "one in memory"
    return path if "://" in path else Path(path).name
