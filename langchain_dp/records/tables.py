"""Examples row by row, without importing their libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from numbers import Integral
from os import PathLike
from typing import Any

from langchain_dp._util.validate import as_int
from langchain_dp.errors import InvalidParameter
from langchain_dp.records.files import READING, check_names, read_file
from langchain_dp.redact import PrivateArgs, run_redacted


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
        return (_named(row, classes) for row in examples) if classes else examples
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


def _named(row: Any, classes: Mapping[str, list[str]]) -> Any:
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
