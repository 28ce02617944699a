"""What a run has released so far, on disk after every token: a crash or Ctrl-C loses nothing but the call under way."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from langchain_dp import _forks
from langchain_dp._whole_files import write_whole
from langchain_dp.errors import PlanError
from langchain_dp.opt.plan import Ended, Written

_VERSION = 3
_HELD: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
_forks.renew_lock(sys.modules[__name__], "_LOCK")


@dataclasses.dataclass(repr=False)
class Journal:
    """State of one run: released values, settings and a keyed hash of the records. It holds no record.

    The key of the split and of the hash lies in a file of its own beside it, ``<journal>.key``. Whoever holds both can
    try out a guess at all records: the key stays where the records are. The journal alone can be shown. Restore it from
    a backup together with the ledger only: beside a newer ledger an older journal is refused once candidates were
    chosen from, and before that it only loses what was paid for.

    Args:
        settings: Public settings that the run was started with; it can be taken up with the same ones only.
        split_key: Secret key of the coins that tell training from validation records.
        data: Keyed hash of the records, under ``split_key``: a run is not taken up, nor handed out, for other data.
        groups: Number of subsets or slots, as derived when the run was started.
        sampling_probability: Rate of subsets or records, likewise.
        written: Candidates, oldest first.
        selecting: Whether the candidates are complete, which is kept before the choice among them is charged.
        winner: Index of the selected candidate, ``len(written)`` for the initial instruction; None before.
        path: File to keep it in, or None: in memory.
    """

    settings: Mapping[str, Any]
    split_key: bytes
    data: str
    groups: int
    sampling_probability: float
    written: list[Written] = dataclasses.field(default_factory=list)
    winner: int | None = None
    path: Path | None = None
    selecting: bool = False

    def __repr__(self) -> str:
        return f"Journal({len(self.written)} candidates, winner={self.winner})"

    @property
    def calls(self) -> int:
        """Calls of the mechanism whose outcome it holds."""
        return sum(candidate.calls for candidate in self.written)

    def complete(self, winner: int, data: str) -> None:
        """Keep the selected candidate, and the data that it was selected on. Only what is kept has left."""
        done = dataclasses.replace(self, winner=winner, data=data)
        done.save()
        self.winner, self.data = winner, data

    def save(self) -> None:
        """Write it, whole or not at all, readable by its owner only."""
        if self.path is None:
            return
        fields = {
            "version": _VERSION,
            "settings": dict(self.settings),
            "data": self.data,
            "groups": self.groups,
            "sampling_probability": self.sampling_probability,
            "written": [dataclasses.asdict(candidate) for candidate in self.written],
            "selecting": self.selecting,
            "winner": self.winner,
        }
        if not self.path.exists():  # the key first: a journal without it could not be taken up
            write_whole(_key_file(self.path), self.split_key.hex(), owner_only=True)
        write_whole(self.path, json.dumps(fields, indent=1), owner_only=True, part=_part_file(self.path))

    def discard(self) -> None:
        """Delete the file: nothing was reserved, so there is nothing to take up."""
        if self.path is not None:
            for file in (self.path, _key_file(self.path), _part_file(self.path)):
                file.unlink(missing_ok=True)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise PlanError unless it was started with these settings."""
        kept, now = self.settings, json.loads(json.dumps(dict(settings)))
        differing = sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))
        if differing:
            raise PlanError(
                f"The run {now.get('name')!r} was started with other settings: {', '.join(differing)} changed. Keep "
                "the old ones to go on with it, or give the new run another name=."
            )


@contextlib.contextmanager
def alone(path: Path | None, ledger: object, name: str) -> Iterator[None]:
    """Hold a run for the block. Two that went on with it would overwrite what the other released, or share one charge.

    The lock is SQLite's on an empty file beside the journal, so the operating system takes it back from a dead process.

    Args:
        path: The journal; None: the ledger, and with it the run, is in the memory of this process.
        ledger: The ledger.
        name: Name of the run.

    Raises:
        PlanError: Another process or optimizer is at it.
    """
    if path is None:
        with _alone_in_memory(ledger, name):
            yield
        return
    connection = sqlite3.connect(f"{path}.lock", timeout=0, isolation_level=None, check_same_thread=False)
    try:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as problem:
            why = (
                "another process or optimizer is at it: wait for it"
                if problem.sqlite_errorcode == sqlite3.SQLITE_BUSY
                else "its folder is not writable: make it so"
            )
            raise PlanError(f"The run of {path.name} cannot be taken up, since {why}, or give another name=.") from None
        # A process that was killed while it wrote may have left a choice there that nobody was given.
        _part_file(path).unlink(missing_ok=True)
        yield
    finally:
        connection.close()


@contextlib.contextmanager
def _alone_in_memory(ledger: object, name: str) -> Iterator[None]:
    with _LOCK:
        held = _HELD.setdefault(ledger, set())
        if name in held:
            raise PlanError(
                f"The run {name!r} cannot be taken up, since another optimizer is at it: wait for it, or give another "
                "name=."
            )
        held.add(name)
    try:
        yield
    finally:
        with _LOCK:
            held.discard(name)


def read(path: Path) -> Journal | None:
    """The journal in ``path``, with the key beside it, if there is one.

    Raises:
        PlanError: It is damaged, or no journal, or its key is gone.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise PlanError(
            f"Expected {path.name} to be the journal of a run, but it cannot be read ({type(problem).__name__}). "
            f"{_REMEDY}"
        ) from None
    key = _read_key(_key_file(path))
    try:
        journal = _from_fields(fields, key, path)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PlanError(f"Expected {path.name} to be the journal of a run, but it is not. {_REMEDY}") from None
    return journal


_REMEDY = "Bring the journal and its key back, or move both away and give the new run another name=."


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _part_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _read_key(path: Path) -> bytes:
    """The key in ``path``, 32 bytes."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as problem:
        raise PlanError(
            f"Expected {path.name} to hold the key of the run beside it, but it cannot be read "
            f"({type(problem).__name__}). {_REMEDY}"
        ) from None
    if len(key) != 32:
        raise PlanError(f"Expected {path.name} to hold a key of 32 bytes, not {len(key)}. {_REMEDY}")
    return key


def _from_fields(fields: Mapping[str, Any], key: bytes, path: Path) -> Journal:
    """The journal with these fields, or any of the errors that Python raises for what is none."""
    journal = Journal(
        dict(fields["settings"]),
        key,
        fields["data"],
        fields["groups"],
        fields["sampling_probability"],
        [Written(**candidate) for candidate in fields["written"]],
        fields["winner"],
        path,
        fields["selecting"],
    )
    sound = (
        fields["version"] == _VERSION
        and isinstance(journal.data, str)
        and isinstance(journal.groups, int)
        and journal.groups > 0
        and 0 < journal.sampling_probability <= 1
        and all(_is_sound(candidate, journal.settings["templates"]["messages"]) for candidate in journal.written)
        and isinstance(journal.selecting, bool)
        and (journal.winner is None or journal.winner in range(len(journal.written) + 1))
    )
    if not sound:
        raise ValueError
    return journal


def _is_sound(candidate: Written, messages: Sequence[str]) -> bool:
    numbers = (candidate.message, candidate.calls, candidate.bottoms, candidate.retries)
    return (
        all(isinstance(number, int) and number >= 0 for number in numbers)
        and candidate.message < len(messages)
        and isinstance(candidate.tokens, list)
        and all(isinstance(token, (int, str)) for token in candidate.tokens)
        and len(candidate.tokens) + candidate.bottoms <= candidate.calls
        and isinstance(candidate.pending, bool)
        and candidate.ended in get_args(Ended)
    )
