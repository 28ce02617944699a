"""Labels, places of results, and failures."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from langchain_dp.cli.parser import FAILED, INTERRUPTED, UNREAD, WrongArguments
from langchain_dp.errors import InvalidParameter, LangChainDPError

T = TypeVar("T")


def because(error: BaseException) -> str:
    """Return reason and remedy. Some OS errors have neither."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"There is no file {os.fsdecode(error.filename)}. Check the path."
    remedy = {
        NotADirectoryError: "to lie in a folder. Check the path",
        IsADirectoryError: "to be a file, but it is a folder. Name a file in it",
        PermissionError: "to be open to you. Check its rights, or name another",
    }.get(type(error), f"to be usable ({error.strerror}). Name another")
    return f"Expected {os.fsdecode(error.filename)} {remedy}."


ENDS = (LangChainDPError, OSError, KeyboardInterrupt)
"""They end in one line."""


def ending(error: BaseException) -> tuple[str, int]:
    if isinstance(error, OSError) and error.filename is None:  # perhaps of a stream
        quiet_stdout()
    if isinstance(error, BrokenPipeError):
        return "the reader of the output left.", UNREAD
    return ("interrupted", INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (because(error), FAILED)


_LABELS, _LONG, _ROWS = 100, 60, 4
"""Most labels, letters, and rows per label."""

ESTIMATED = "the time is estimated from the private rows: keep it to yourself"


def read_off(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Return distinct labels, and a note with their number alone, since they are private."""
    from langchain_dp.records.checks import as_seen

    labels = sorted({str(row["label"]) for row in rows})
    found = f"there {'are' if len(labels) > 1 else 'is'} {len(labels)} in {len(rows)} rows"
    if len(labels) < 2:
        raise InvalidParameter(
            f"Expected at least 2 different labels in the private rows, but {found}. Name them all with --labels."
        )
    if len(labels) > min(_LABELS, max(2, len(rows) // _ROWS)) or any(len(label) > _LONG for label in labels):
        raise InvalidParameter(
            f"Expected at most {_LABELS} labels in the private rows, of at most {_LONG} letters and each in {_ROWS} "
            f"rows on average, but {found}. Text and label may be exchanged; if not, name the labels with --labels."
        )
    twins = len(labels) - len(set(map(as_seen, labels)))
    if twins:
        raise InvalidParameter(
            f"{twins} of the {len(labels)} labels in the private rows look like another one: they differ in blanks, in "
            "invisible characters or in how accents are encoded. Repair the rows, or name the labels with --labels."
        )
    told = (
        f"Note: {len(labels)} labels were read off the private rows and count as public from here on. Name them with "
        "--labels to keep them a constant."
    )
    alike = len(labels) - len({label.casefold() for label in labels})
    if alike:
        told += (
            f" {alike} of them differ{'s' if alike == 1 else ''} from another one by case only, and "
            "count as labels of their own: repair the rows first, unless that is meant."
        )
    return labels, told


def check_out(out: Path, load: Callable[[Path], T], what: str) -> T | None:
    """Return the older result at ``out``, or refuse to overwrite other content."""
    check_folder(out, "--out")
    if out.is_dir():
        raise InvalidParameter(f"Expected --out {out} to be a file, but it is a folder. Name a file in it.")
    if not out.exists():
        return None
    try:
        return load(out)
    except (InvalidParameter, ValueError, TypeError, KeyError, AttributeError):
        raise InvalidParameter(f"Expected --out {out} to be new, or {what}. Name another file.") from None


def check_folder(place: Path, option: str) -> None:
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise InvalidParameter(
            f"Expected the folder of {option} {place} to be there and writable. Make it, or name another."
        )


def check_apart(out: Path, ledger: str | None) -> None:
    """Refuse to overwrite the ledger or its key, which would forget every charge."""
    from langchain_dp.accounting.store.base import file_at, is_url
    from langchain_dp.accounting.store.key_file import SUFFIX

    if ledger is None or is_url(ledger):
        return
    place = file_at(ledger)
    if os.path.realpath(out) in (place, f"{place}{SUFFIX}", f"{place}-journal"):
        raise WrongArguments(
            f"Expected --out {out} to be another file than the ledger {ledger} and its key: the result would "
            "overwrite the record of all charges. Name another."
        )


def quiet_stdout() -> None:
    """Keep the interpreter's last flush from failing."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
