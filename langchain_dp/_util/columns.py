"""Reads and rebuilds batches of columns."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, Generic, TypeVar

import numpy as np

from langchain_dp._util import forks
from langchain_dp._util.validate import as_int
from langchain_dp.errors import InvalidParameter

B = TypeVar("B")
Opened = TypeVar("Opened")


class WorksOnBatches(Generic[Opened]):
    """Base of classes for batches. Each worker opens the resource with :meth:`_built`."""

    def __init__(self, opened: Opened) -> None:
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._own: Opened | None = opened

    def __call__(self, batch: B) -> B:
        """Work on one batch."""
        raise NotImplementedError

    def in_pandas(self, frames: Iterable[B]) -> Iterator[B]:
        """Work on frames in turn, as Spark's ``mapInPandas`` needs."""
        yield from map(self, frames)

    def _built(self) -> Opened:
        raise NotImplementedError

    def _open(self) -> Opened:
        with self._lock:
            if self._own is None:
                self._own = self._built()
            return self._own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
        forks.renew_lock(self)


class Columns:
    """The private columns of one batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        if isinstance(batch, Mapping):
            self._names = list(batch)
            _check_columns(batch)
        elif hasattr(batch, "column_names") and hasattr(batch, "column"):  # an Arrow table, or a record batch
            self._names = list(batch.column_names)
        elif hasattr(batch, "columns") and hasattr(batch, "iloc"):  # a pandas frame
            self._names = list(batch.columns)
        else:
            raise InvalidParameter(
                f"Expected a batch of type {type(batch).__name__} to be a mapping of columns, an Arrow table or a "
                "pandas frame. Give map_batches a batch_format, and Dataset.map batched=True."
            )

        if len(set(self._names)) < len(self._names):
            raise InvalidParameter("Expected every column of a batch to have a name of its own. Rename them.")

    def texts(self, name: str) -> list[str | None]:
        values = [None if _absent(value) else value for value in self._values(name)]
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, str):
                raise InvalidParameter(
                    f"Expected column {name!r} to hold texts, got {type(value).__name__} in row {row} of a batch. "
                    "Make a text of it, or leave the column out."
                )
        return [None if value is None else str(value) for value in values]

    def keys(self, name: str, what: str) -> list[str]:
        values = [as_int(value) for value in self._values(name)]
        for row, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
                raise InvalidParameter(
                    f"Expected row {row} of a batch to have a text or a whole number in column {name!r}, which says "
                    f"its {what}, got {type(value).__name__}. Add it, or leave such rows out."
                )
        return [str(value) for value in values]

    def with_only(self, new: Mapping[str, Sequence[str | None]], kept: Sequence[str]) -> Any:
        made = {
            name: _like(self._column(name), new[name]) if name in new else self._column(name)
            for name in (*self._names, *(name for name in new if name not in self._names))
            if name in new or name in kept
        }
        return self._alone(made)

    def with_new(self, name: str, values: Sequence[str | None], *, like: str, kept: Sequence[str]) -> Any:
        made = {each: self._column(each) for each in self._names if each in kept}
        made[name] = _like(self._column(like), values)
        if hasattr(self._batch, "iloc"):
            return self._batch[[each for each in made if each in self._names]].assign(**{name: made[name]})
        return self._alone(made)

    def _alone(self, made: dict[str, Any]) -> Any:
        """Drop private axis names, ``attrs`` and unused categories."""
        values = {name: _bare(column) for name, column in made.items()}
        if isinstance(self._batch, Mapping):
            return {name: type(made[name])(one) if hasattr(made[name], "iloc") else one for name, one in values.items()}
        if hasattr(self._batch, "iloc"):
            return type(self._batch)(values, index=self._batch.index.rename(None))
        return type(self._batch).from_arrays(list(values.values()), names=list(values))

    def check_only(self, kept: Sequence[str]) -> None:
        """Refuse a frame's own index, which would leave in clear."""
        self.check_there(kept)
        if hasattr(self._batch, "iloc") and type(self._batch.index).__name__ != "RangeIndex":
            raise InvalidParameter(
                "Expected a frame with a plain index (0, 1, ...): another index would leave in clear. "
                "Call reset_index(drop=True), or reset_index() and name its column in keep_columns=."
            )

    def check_there(self, names: Iterable[str]) -> None:
        for name in names:
            self._column(name)

    def _column(self, name: str) -> Any:
        if name not in self._names:
            raise InvalidParameter(f"Expected a batch with column {name!r}, got {len(self._names)} other columns.")
        return (
            self._batch[name]
            if isinstance(self._batch, Mapping) or hasattr(self._batch, "iloc")
            else (self._batch.column(name))
        )

    def _values(self, name: str) -> list[Any]:
        column = self._column(name)
        lists: Callable[[], list[Any]] | None = getattr(column, "to_pylist", None) or getattr(column, "tolist", None)
        return list(column) if lists is None else lists()


def column_names(columns: object, keep_columns: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A str or a number is one name."""
    results: list[tuple[Any, ...]] = []
    for names in ((columns,) if _is_name(columns) else columns, keep_columns):
        listed = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (None,)
        results.append(tuple(name for name in listed if _is_name(name)))
        if len(set(results[-1])) < len(listed) or not results[0]:
            raise InvalidParameter(
                f"Expected columns={columns!r} and keep_columns={keep_columns!r} to be lists of names of columns, each "
                "once, with at least one to work on."
            )
    return results[0], results[1]


def _is_name(name: object) -> bool:
    return isinstance(name, (str, Integral)) and not isinstance(name, bool) and name != ""


def _check_columns(batch: Mapping[str, Any]) -> None:
    lengths = set()
    for name, column in batch.items():
        if isinstance(column, (str, bytes)) or not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            raise InvalidParameter(
                f"Expected column {name!r} of a batch to be a list, got {type(column).__name__}. Give Dataset.map "
                "batched=True, and a single row as lists of one."
            )
        lengths.add(len(column))
    if len(lengths) > 1:
        raise InvalidParameter(
            f"Expected the columns of a batch to be equally long, got {min(lengths)} and {max(lengths)} rows."
        )


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"


def _bare(column: Any) -> Any:
    """Drop an index, and values of other rows."""
    if hasattr(getattr(column, "cat", None), "remove_unused_categories"):
        column = column.cat.remove_unused_categories()
    values = getattr(column, "array", column)  # of a pandas series
    if hasattr(values, "__arrow_array__") and "Arrow" in type(values).__name__:
        return type(values)(_copied(values.__arrow_array__()))
    return _copied(values) if hasattr(values, "to_pylist") else values


def _copied(column: Any) -> Any:
    """A slice keeps the whole column alive."""
    if hasattr(column.type, "index_type"):
        return column.cast(column.type.value_type).dictionary_encode()
    return column.take(np.arange(len(column)))


def _like(column: Any, values: Sequence[str | None]) -> Any:
    if hasattr(column, "to_pylist"):
        arrow: Any = importlib.import_module("pyarrow")
        return arrow.array(values, arrow.large_string() if arrow.types.is_large_string(column.type) else arrow.string())
    if isinstance(column, np.ndarray):
        return np.array(values, dtype=object)
    return list(values)
