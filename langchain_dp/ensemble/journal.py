"""What a run keeps of itself in its ledger, and that one process at a time goes on with it.

The journal lies in the ledger's own file, beside the charges. So a copy of the file, or what a crash leaves of it,
holds both as they were at one moment. Secrets of a run (the key of its coins) are in it under a mask, which the
ledger's key gives: that lies in another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import sqlite3
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_dp._util import forks
from langchain_dp.accounting import LedgerPlan, PrivacyLedger
from langchain_dp.errors import PlanError
from langchain_dp.records import PrivateRecords

_LONGEST = 60
"""Letters of a plan's name in a file's."""

_HELD: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
forks.renew_lock(sys.modules[__name__], "_LOCK")


class KeptRun:
    """The journal of one run as the ledger keeps it.

    Args:
        plan: Where it is kept.
        kept: What is kept there now; empty if nothing is.
    """

    def __init__(self, plan: LedgerPlan, kept: str = "") -> None:
        self._plan = plan
        self._kept = kept

    @staticmethod
    def first(fields: Mapping[str, Any]) -> str:
        """The first journal of a run, to be stored with its plan."""
        return json.dumps(dict(fields))

    def save(self, fields: Mapping[str, Any]) -> None:
        """Write it into the ledger, durably, in place of what this object wrote or read last.

        Raises:
            LedgerError: It cannot be written, or another process has written one, or an older copy stands there.
        """
        now = self.first(fields)
        if now != self._kept:
            self._plan.keep(now, instead_of=self._kept)
            self._kept = now


def check_settings(name: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise PlanError unless a run was started with the settings that are asked for now."""
    now = json.loads(json.dumps(dict(asked)))
    differing = sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))
    if differing:
        raise PlanError(
            f"The run {name!r} was started with other settings: {', '.join(differing)} changed. Keep the old ones to "
            "go on with it, or give the new run another name=."
        )


@contextlib.contextmanager
def alone(ledger: PrivacyLedger, name: str) -> Iterator[None]:
    """Hold a run for the block. Two that went on with it would each ask for what the other had charged.

    The lock is SQLite's on an empty file beside the ledger, so the operating system takes it back from a dead process.

    Args:
        ledger: The ledger; if it is in the memory of this process, so is the lock.
        name: Name of the run.

    Raises:
        PlanError: Another process or chain is at it.
    """
    if ledger.path is None:
        with _alone_in_memory(ledger, name):
            yield
        return
    connection = sqlite3.connect(
        f"{beside(ledger, name)}.lock", timeout=0, isolation_level=None, check_same_thread=False
    )
    try:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as problem:
            why = (
                "another process or chain is at it: wait for it"
                if problem.sqlite_errorcode == sqlite3.SQLITE_BUSY
                else "its folder is not writable: make it so"
            )
            raise PlanError(f"The run {name!r} cannot be taken up, since {why}, or give another name=.") from None
        yield
    finally:
        connection.close()


@contextlib.contextmanager
def _alone_in_memory(ledger: object, name: str) -> Iterator[None]:
    with _LOCK:
        held = _HELD.setdefault(ledger, set())
        if name in held:
            raise PlanError(
                f"The run {name!r} cannot be taken up, since another chain is at it: wait for it, or give another "
                "name=."
            )
        held.add(name)
    try:
        yield
    finally:
        with _LOCK:
            held.discard(name)


def beside(ledger: PrivacyLedger, name: str) -> str:
    """Path of the run's files beside the ledger, but for their last ending."""
    short = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if short != name or len(short) > _LONGEST:
        short = f"{short[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{ledger.path}.{short}.run"


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Say what was expected when it is not there, and show nothing of what is."""
    failure = ""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        failure = type(problem).__name__
    if failure:
        raise PlanError(
            f"Expected {what}, but it cannot be read ({failure}). {remedy}, or give the new run another name=."
        )


def masked(ledger: PrivacyLedger, key: bytes) -> str:
    """A key of 32 bytes as a journal may hold it."""
    salt = secrets.token_bytes(32)
    return (salt + _mask(ledger, key, salt)).hex()


def unmasked(ledger: PrivacyLedger, text: str) -> bytes:
    """The key that :func:`masked` hid; ValueError for what is none."""
    both = bytes.fromhex(text)
    if len(both) != 64:
        raise ValueError
    return _mask(ledger, both[32:], both[:32])


def _mask(ledger: PrivacyLedger, key: bytes, salt: bytes) -> bytes:
    """A key of 32 bytes under a pad that is used for it alone; done twice, it is the key again."""
    return bytes(one ^ other for one, other in zip(key, ledger.digest("run key", salt.hex()), strict=True))


def marks(records: PrivateRecords, key: bytes) -> dict[str, bytes]:
    """Keyed hash of each record with its id: tells, to whoever holds the key, whether it is still the same."""

    def mark(name: str) -> bytes:
        row = json.dumps([name, {str(k): str(v) for k, v in records.get(name).items()}], sort_keys=True)
        return hmac.new(key, row.encode(errors="surrogatepass"), hashlib.sha256).digest()

    return {name: mark(name) for name in records.ids()}


def fingerprint(seen: Mapping[str, bytes], key: bytes) -> str:
    """Keyed hash of all records, in their order."""
    return hmac.new(key, b"".join(seen.values()), hashlib.sha256).hexdigest()
