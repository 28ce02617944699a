"""Private records: kept in memory, shown to nobody, refused to every serializer."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from langchain_dp.errors import InvalidParameter, PrivateDataError

AUTOMATIC = "#"
"""First letter of the ids that number records by their place; no given id may start with it."""


class PrivateRecords:
    """Labelled private examples under stable ids.

    An example is a mapping with ``text`` and ``label``; further keys fill a prompt's other variables. An ``id`` key
    names the record (for :meth:`forget`); without one the record is named by its place: "#0", "#1", ...

    The object prints as ``PrivateRecords(<private>)``, and pickling, copying or serializing it is an error: under
    add/remove neighbours even the number of records is private.

    Args:
        examples: The examples, or another ``PrivateRecords``: its records as they are now, under the same ids. What
            is added to or forgotten by one of the two later does not reach the other.

    Raises:
        InvalidParameter: An example lacks text or label, or an id occurs twice. The message gives the position of
            the example, never its content.
    """

    def __init__(self, examples: Iterable[Mapping[str, Any]] | PrivateRecords = ()) -> None:
        self._records: dict[str, Mapping[str, Any]] = {}
        self._places = 0
        if isinstance(examples, PrivateRecords):
            self._records.update(examples._records)
            self._places = examples._places
            return
        for position, example in enumerate(examples):
            self._add(example, None, f"example {position}")

    @classmethod
    def from_jsonl(cls, path: str | PathLike[str]) -> PrivateRecords:
        """Read one JSON object a line.

        Raises:
            InvalidParameter: A line is not a JSON object with text and label; the message gives its number.
        """
        return cls(read_jsonl(path))

    def add(self, example: Mapping[str, Any], *, record_id: str | None = None) -> str:
        """Add one record and return its id.

        Raises:
            InvalidParameter: Text or label is missing, or the id is taken.
        """
        return self._add(example, record_id, "the example")

    def forget(self, record_id: str) -> None:
        """Remove one record for good.

        Raises:
            InvalidParameter: There is no such record.
        """
        if record_id not in self._records:
            raise InvalidParameter(f"Expected record_id={record_id!r} to be a known id. See add(), which returns it.")
        del self._records[record_id]

    def get(self, record_id: str) -> Mapping[str, Any]:
        """Private content of one record. It must not leave the trust boundary."""
        return self._records[record_id]

    def ids(self) -> list[str]:
        """Ids of all records, oldest first."""
        return list(self._records)

    def _add(self, example: Mapping[str, Any], record_id: str | None, where: str) -> str:
        if not isinstance(example, Mapping):
            raise InvalidParameter(
                f"Expected {where} to be a mapping with text and label, not {type(example).__name__}."
            )
        text, label = example.get("text"), example.get("label")
        if not isinstance(text, str) or not text.strip():
            raise InvalidParameter(f"Expected {where} to have a non-empty str under 'text'. Drop or repair it.")
        if not isinstance(label, str) or not label:
            raise InvalidParameter(f"Expected {where} to have a non-empty str under 'label'. Drop or repair it.")
        given = record_id if record_id is not None else str(example["id"]) if "id" in example else None
        if given is not None and not isinstance(given, str):
            raise InvalidParameter(
                f"Expected record_id of type {type(given).__name__} to be a str. Give str(record_id)."
            )
        if given is not None and given.startswith(AUTOMATIC):
            raise InvalidParameter(
                f"Expected the id of {where} not to start with {AUTOMATIC!r}, which numbers records."
            )
        # Every record takes a place, named or not: whether one has an id must not renumber the others.
        key = f"{AUTOMATIC}{self._places}" if given is None else given
        if key in self._records:
            raise InvalidParameter(
                f"Expected the id of {where} to be new, but it is taken. Give every record its own id."
            )
        for name, value in example.items():
            if isinstance(value, str) and not encodable(value):
                raise InvalidParameter(
                    f"Expected {where} to hold valid Unicode under {name!r}: it has a lone surrogate."
                )
        self._places += 1
        self._records[key] = MappingProxyType({name: exact(value) for name, value in example.items()})
        return key

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return "PrivateRecords(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("PrivateRecords cannot be pickled, copied or serialized: load them where they are used.")


def check_records(records: PrivateRecords, labels: Collection[str], variables: Iterable[str]) -> None:
    """Raise InvalidParameter unless every record has a known label and the keys of a template.

    The message gives the position of the record, never its content.
    """
    for position, name in enumerate(records.ids()):
        row = records.get(name)
        if row["label"] not in labels:
            raise InvalidParameter(
                f"Expected the label of example {position} to be one of labels={list(labels)}. Add it, or repair the "
                "example."
            )
        missing = [variable for variable in variables if variable not in row]
        if missing:
            raise InvalidParameter(
                f"Expected example {position} to have the template's keys, but {missing} are missing. Add them."
            )


def read_jsonl(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read one JSON object a line; blank lines are skipped.

    Raises:
        InvalidParameter: A line is not a JSON object; the message gives its number and nothing of it.
    """
    rows: list[dict[str, Any]] = []
    with Path(path).open("rb") as lines:  # bytes: a decoding error would carry the file's content
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                del rows, row, line  # a traceback shows locals to those who collect them
                raise InvalidParameter(
                    f"Expected line {number} of {Path(path).name} to be a JSON object with text and label. Repair it."
                ) from None
            rows.append(row)
    return rows


def exact(value: Any) -> Any:
    """A string of a kind of its own (an enum's, say) as the plain string that it is equal to; else the value itself.

    Such a string may be written otherwise than it compares: "L.POS" and "positive".
    """
    return str.__str__(value) if isinstance(value, str) else value


def encodable(text: str) -> bool:
    """Whether UTF-8 can hold it: no lone surrogate is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """At least two labels, each a non-empty string and once."""
    if isinstance(labels, str) or not all(isinstance(label, str) and label.strip() for label in labels):
        raise InvalidParameter(f"Expected labels={labels!r} to be a list of non-empty strings.")
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected labels={list(labels)} to hold at least two labels, each once. Name them all.")
    return tuple(map(exact, labels))
