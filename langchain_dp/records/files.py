"""Reads examples from files, and row by row from any input, without importing its library."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from langchain_dp._util import forks
from langchain_dp._util.validate import as_int
from langchain_dp.errors import InvalidParameter
from langchain_dp.redact import PrivateArgs, run_redacted

READING = "while examples were read"

MOST = 10


class RowErrors:
    """Collects the faults of rows, and raises one error about all of them."""

    def __init__(self, rows: str = "example {}") -> None:
        self._rows = rows
        self._found: dict[str, list[int]] = {}

    def add(self, position: int, fault: str) -> None:
        """Add a fault, with ``{where}`` for the row."""
        self._found.setdefault(fault, []).append(position)

    def raise_any(self) -> None:
        if self._found:
            raise InvalidParameter(" ".join(placed(fault, self._where(at)) for fault, at in self._found.items()))

    def _where(self, positions: list[int]) -> str:
        listed = [str(position) for position in positions[:MOST]]
        if len(positions) > MOST:
            listed.append(f"{len(positions) - MOST} more")
        if len(listed) == 1:
            return self._rows.format(listed[0])
        noun, _, rest = self._rows.partition(" ")
        return f"{noun}s {rest.format(' and '.join([', '.join(listed[:-1]), listed[-1]]))}"


def placed(fault: str, where: str) -> str:
    return fault.replace("{where}", where)


def read_jsonl(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read JSON lines. InvalidParameter gives numbers of bad lines, never content."""
    rows: list[dict[str, Any]] = run_redacted(read_span, PrivateArgs(path), READING)
    return rows


def read_span(path: str | PathLike[str], start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    bad: list[int] = []
    with Path(path).open("rb") as lines:  # bytes: a decoding error would carry the file's content
        lines.seek(start)
        for number, line in enumerate(_until(lines, end)):
            if not line.strip():
                continue
            if number == start == 0 and (remedy := _no_lines(line)):
                raise InvalidParameter(f"Expected {_named(path)} to hold one JSON object a line, but {remedy}")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if number == start == 0 and isinstance(row, dict) and row.keys() == {"certificate", "settings"}:
                raise InvalidParameter(
                    f"Expected {_named(path)} to hold rows, but these are synthetic examples with their certificate. "
                    "Read them with SyntheticExamples.load(path).rows()."
                )
            if isinstance(row, dict):
                rows.append(row)
            else:
                bad.append(number)
        if bad:
            lines.seek(0)
            before = lines.read(start).count(b"\n") + 1
            faults = RowErrors(f"line {{}} of {_named(path)}")
            for number in bad:
                faults.add(before + number, "Expected {where} to be a JSON object in UTF-8. Repair it.")
            faults.raise_any()
    return rows


def _until(lines: BinaryIO, end: int | None) -> Iterator[bytes]:
    at = lines.tell()
    while (end is None or at < end) and (line := lines.readline()):
        at += len(line)
        yield line


def _no_lines(first: bytes) -> str:
    if first.startswith(b"\x1f\x8b"):
        return "it is compressed. Unpack it."
    if first.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        return "it is one list. Write its objects a line each, as pandas does by to_json(orient='records', lines=True)."
    return ""


def read_csv(path: str | PathLike[str], *, delimiter: str = ",") -> list[dict[str, Any]]:
    """Read a UTF-8 table. InvalidParameter gives numbers of bad rows."""
    rows: list[dict[str, Any]] = run_redacted(_table, PrivateArgs(path, delimiter), READING)
    return rows


def _table(path: str | PathLike[str], delimiter: str) -> list[dict[str, Any]]:
    content, name = Path(path).read_bytes(), Path(path).name
    try:
        lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidParameter(f"Expected {name} to be UTF-8, but line {line} is not. Save it in UTF-8.") from None
    rows, line, reader = [], 1, csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        with _long_fields():
            names = reader.fieldnames or ()
            check_names(names, name)
            if len(names) == 1 and delimiter == "," and (between := re.search("[;\t]", names[0])):
                what = "semicolons" if between[0] == ";" else "tabs"
                raise InvalidParameter(
                    f"Expected commas between the columns of {name}, but its header has {what}. Save it with commas, "
                    f"or in Python pass langchain_dp.records.files.read_csv(path, delimiter={between[0]!r})."
                )
            line = reader.line_num + 1
            for row in reader:
                rows.append(row)
                line = reader.line_num + 1
    except csv.Error:
        raise InvalidParameter(
            f"Expected the row that begins in line {line} of {name} to close its quotes, and a quote inside of them to "
            "stand twice. Repair it: the text after an open quote is all one field."
        ) from None
    faults = RowErrors(f"row {{}} of {_named(path)}")
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            faults.add(number, "Expected {where} to have as many fields as the header. Repair it.")
    faults.raise_any()
    return rows


def check_names(names: Iterable[Any], where: str) -> None:
    """Refuse two columns of one name: one would be lost."""
    names = list(names)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        places = [place for place, name in enumerate(names, start=1) if name == twice[0]]
        raise InvalidParameter(
            f"Expected the columns of {where} to have different names, but columns {places[0]} and {places[1]} share "
            "one. Rename one of them, or add a header."
        )


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Lift the csv module's limit, which is the whole process's."""
    with _LIMIT:
        before = csv.field_size_limit(2**31 - 1)
        try:
            yield
        finally:
            csv.field_size_limit(before)


_LIMIT = threading.Lock()
forks.renew_lock(sys.modules[__name__], "_LIMIT")


_READERS: dict[str, Callable[[str | PathLike[str]], list[dict[str, Any]]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".tsv": functools.partial(read_csv, delimiter="\t"),
}


def read_file(path: str | PathLike[str]) -> list[dict[str, Any]]:
    reader = _READERS.get(Path(path).suffix.lower())
    if reader is None:
        # What is no file may be a private text.
        what = Path(path).name if os.path.isfile(path) else f"examples of type {type(path).__name__}"
        raise InvalidParameter(
            f"Expected {what} to be a path that ends in one of {sorted(_READERS)}. Save the table as CSV, or read it "
            "in Python, with pandas for instance, and pass the DataFrame."
        )
    return reader(path)


def _named(path: str | PathLike[str]) -> str:
    return Path(path).name.replace("{", "{{").replace("}", "}}")


def rows_of(examples: object) -> Iterable[Any]:
    """Return the rows of any input. Class numbers become names."""
    if isinstance(examples, (str, PathLike)):
        return read_file(examples)
    if hasattr(examples, "iloc") and not hasattr(examples, "columns") and isinstance(examples, Iterable):
        return examples  # one column of texts
    if isinstance(examples, Mapping) or fields_of(examples) is not None:
        raise InvalidParameter(
            f"Expected examples of type {type(examples).__name__} to hold many examples, not one. Put it into a list. "
            "Of a dict of splits choose one, such as data['train']."
        )
    if hasattr(examples, "collect_schema") and not hasattr(examples, "to_dicts"):
        raise InvalidParameter(f"Expected examples of type {type(examples).__name__} to be collected. Call .collect().")
    examples = _in_python(examples)
    names = getattr(examples, "column_names", getattr(examples, "columns", None))
    if isinstance(names, Iterable) and not isinstance(names, str):
        check_names(names, "the table")
    for method, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        convert = getattr(examples, method, None)
        if callable(convert) and (method != "to_dict" or hasattr(examples, "columns")):
            rows: list[Any] = run_redacted(convert, PrivateArgs(*arguments), READING)
            return rows
    if isinstance(examples, Iterable) and not isinstance(examples, (bytes, bytearray)):
        features = getattr(examples, "features", None)
        columns = features.items() if isinstance(features, Mapping) else ()
        classes = {name: list(feature.names) for name, feature in columns if hasattr(feature, "int2str")}
        return (_with_names(row, classes) for row in examples) if classes else examples
    raise InvalidParameter(
        f"Expected examples of type {type(examples).__name__} to be a list of mappings, a DataFrame, a dataset, or a "
        "path to a JSONL or CSV file."
    )


def _in_python(examples: object) -> Any:
    with_format, features = getattr(examples, "with_format", None), getattr(examples, "features", None)
    if not callable(with_format) or not isinstance(features, Mapping):
        return examples
    form = getattr(examples, "format", None)
    if not isinstance(form, Mapping):  # a stream
        return with_format(None)
    if form.get("type") in (None, "custom"):  # its owner's function makes the rows
        return examples
    return with_format(None, columns=form.get("columns"))


def _with_names(row: Any, classes: Mapping[str, list[str]]) -> Any:
    if not isinstance(row, Mapping):
        return row
    named = {name: as_int(value) for name, value in row.items() if name in classes}
    return {**row, **{name: classes[name][one] for name, one in named.items() if isinstance(one, int) and one >= 0}}


def fields_of(example: object) -> Mapping[str, Any] | None:
    """Return one example as a mapping. None without named fields."""
    if isinstance(example, Mapping):
        return _by_text(example)
    if isinstance(example, type):
        return None
    text, metadata = getattr(example, "page_content", None), getattr(example, "metadata", None)
    if isinstance(text, str) and isinstance(metadata, Mapping):
        name = getattr(example, "id", None)
        return {**metadata, "text": text, "page_content": text, **({} if name is None else {"id": name})}
    if dataclasses.is_dataclass(example):
        return {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
    for method in ("model_dump", "_asdict", *(["to_dict"] if getattr(example, "ndim", 0) == 1 else [])):
        # pydantic. A named tuple. A row of a table
        dump = getattr(example, method, None)
        if callable(dump):
            made = run_redacted(dump, PrivateArgs(), READING)
            return _by_text(made) if isinstance(made, Mapping) else None
    return None


def _by_text(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Name unnamed columns: "0", "1", ..."""
    if all(isinstance(name, str) for name in row):
        return row
    return {str(name) if isinstance(name, Integral) else name: value for name, value in row.items()}
