"""Files of private lines, in batches."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from langchain_dp.cli.parser import WrongArguments
from langchain_dp.cli.runs import check_folder
from langchain_dp.errors import InvalidParameter

Format = Literal["text", "jsonl"]

SUFFIXES = (".txt", ".md", ".jsonl")
"""Files read in folders."""

_TABLES = (".csv", ".tsv", ".xlsx", ".parquet")

_AS_LINES = ", or give --format text to take its lines as they are"

LINES = 256
"""Most lines of a batch, charged and drawn together."""

CHARACTERS = 1 << 20

STDIN = "standard input"


@dataclasses.dataclass(frozen=True)
class Job:
    """Files to read and write. None: standard streams."""

    source: Path | None
    target: Path | None
    format: Format
    guessed: bool = False

    @property
    def name(self) -> str:
        return STDIN if self.source is None else str(self.source)


@dataclasses.dataclass(frozen=True)
class Fields:
    """Sanitized fields, fields in clear, and the user."""

    sanitize: Sequence[str] = ("text",)
    keep: Sequence[str] = ()
    user: str | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Line:
    """One private line. ``texts`` are one release, written to ``places`` of ``row``, if any."""

    number: int
    texts: tuple[str, ...]
    user: str | None = None
    row: dict[str, Any] | None = None
    places: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Line(<private>)"

    def written(self, released: Sequence[str]) -> bytes:
        if self.row is None:
            return released[0].replace("\n", " ").encode("utf-8", "replace") + b"\n"
        return json.dumps(self.row | dict(zip(self.places, released, strict=True))).encode() + b"\n"


def find(source: Path | None, target: Path | None, form: Format | None, *, overwrite: bool) -> list[Job]:
    """Pair files to read and write, or refuse before any charge."""
    if source is not None and source.is_dir():
        if target is None:
            raise WrongArguments(f"Expected --out to name a folder, as --in {source} does.")
        found = _in_folder(source, target, form)
    else:
        if source is not None and not source.exists():
            raise InvalidParameter(f"Expected --in {source} to be a file or a folder, but nothing is there.")
        if form is None and source is not None and source.suffix.lower() in _TABLES:
            or_so = _AS_LINES if source.suffix.lower() in _TABLES[:2] else ""
            raise WrongArguments(
                f"Expected --in {source} to hold lines of text or JSON rows, not a table, whose header and labels "
                f"would be sanitized with it. Save it as .jsonl{or_so}."
            )
        found = [Job(source, target, form or _format(source), guessed=form is None)]
        if target is not None:
            check_folder(target, "--out")
    for job in found:
        if job.target is None or not os.path.lexists(job.target):
            continue
        if not job.target.is_file():
            raise InvalidParameter(f"Expected --out {job.target} to be a regular file. Name another.")
        if not overwrite:
            raise InvalidParameter(f"Expected --out {job.target} to be new. Name another, or give --overwrite.")
    return found


def _in_folder(source: Path, target: Path, form: Format | None) -> list[Job]:
    if target.resolve().is_relative_to(source.resolve()):
        raise InvalidParameter(
            f"Expected --out {target} to lie outside --in {source}, where it would be read next time."
        )
    if (target.exists() and not target.is_dir()) or not target.parent.is_dir():
        raise InvalidParameter(f"Expected --out {target} to be a folder, or a new one in a folder that is there.")
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise InvalidParameter(f"Expected --in {source} to hold files named {', '.join(SUFFIXES)}, but it holds none.")
    return [Job(path, target / path.relative_to(source), form or _format(path)) for path in paths]


def skipped(source: Path | None) -> list[tuple[Path, str]]:
    """Return unread files of a folder, with reasons."""
    if source is None or not source.is_dir():
        return []
    found = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            if path.suffix.lower() not in SUFFIXES:
                found.append((path, f"its name does not end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"))
        elif path.is_symlink():
            found.append((path, "a link to a folder" if path.is_dir() else "a link to nothing"))
        elif not path.is_dir():
            found.append((path, "no regular file"))
    return found


def _format(path: Path | None) -> Format:
    return "jsonl" if path is not None and path.suffix.lower() == ".jsonl" else "text"


def read(lines: Iterable[bytes], job: Job, fields: Fields, *, replace: bool) -> Iterator[Line]:
    """Yield lines, without blank JSON lines. Errors never quote content."""
    for number, raw in enumerate(lines, start=1):
        text = _decoded(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, replace=replace)
        if text is None:
            raise InvalidParameter(
                f"Expected line {number} of {job.name} to be UTF-8. Convert the file, or give --errors replace."
            )
        if job.format == "text":
            if number == 1 and job.guessed and isinstance(_parsed(text), dict):
                raise InvalidParameter(
                    f"Expected {job.name} to hold lines of text, but the first is a JSON object, whose keys would be "
                    "sanitized with it. Give --format jsonl, or --format text if that is meant."
                )
            yield Line(number, (text.removesuffix("\n").removesuffix("\r"),))
        elif text.strip():
            yield _row(text, number, job.name, fields)


def check(jobs: Iterable[Job], fields: Fields, *, replace: bool) -> None:
    """Read every regular file before any charge."""
    met: set[str] = set()
    for job in jobs:
        if job.source is None or not job.source.is_file():
            return
        with job.source.open("rb") as source:
            for line in read(source, job, fields, replace=replace):
                met.update(line.row or ())
    if met and (absent := [field for field in fields.keep if field not in met]):
        raise InvalidParameter(f"Expected some row to have the fields {absent} of --keep-fields, but none has.")


def _decoded(raw: bytes, *, replace: bool) -> str | None:
    """Return the text, or None, because the error would carry the line."""
    with contextlib.suppress(UnicodeDecodeError):
        return raw.decode("utf-8", "replace" if replace else "strict")
    return None


def _parsed(text: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def _row(text: str, number: int, name: str, fields: Fields) -> Line:
    row = _parsed(text)
    where = f"line {number} of {name}"
    if not isinstance(row, dict):
        raise InvalidParameter(f"Expected {where} to be a JSON object. Repair it, or give --format text.")
    places = []
    for field in fields.sanitize:
        if isinstance(row.get(field), str):
            places.append(field)
        elif row.get(field) is not None:
            raise InvalidParameter(f"Expected {where} to hold a text, or nothing, under {field!r}. Repair it.")
    if not any(field in row for field in fields.sanitize):
        raise InvalidParameter(f"Expected {where} to have one of --fields {list(fields.sanitize)}. Name its fields.")
    user = None if fields.user is None else row.get(fields.user)
    if fields.user is not None and not _names_somebody(user):
        # Without a user no limit would hold.
        raise InvalidParameter(
            f"Expected {where} to have a string or a whole number under --user-field {fields.user!r}. Add it."
        )
    # In the order of the options: that of the row may depend on its content.
    shown = {key: row[key] if key in fields.keep else None for key in (*fields.keep, *fields.sanitize) if key in row}
    texts = tuple(row[place] for place in places)
    return Line(number, texts, None if user is None else str(user), shown, tuple(places))


def _names_somebody(user: Any) -> bool:
    if isinstance(user, str):
        return bool(user) and not any("\ud800" <= letter <= "\udfff" for letter in user)  # those cannot be hashed
    return isinstance(user, int) and not isinstance(user, bool)


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += sum(map(len, line.texts))
        if len(batch) == LINES or size >= CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
