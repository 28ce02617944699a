"""Columns of a batch that pass in clear: what stands in their rows, and nothing of other rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from langchain_dp._util.columns import Columns, column_names
from langchain_dp.errors import InvalidParameter

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

SECRET = b"ward 500"
WARDS = [f"ward {number}" for number in range(1000)]
TABLE = arrow.table(
    {"text": WARDS, "ward": WARDS, "kind": arrow.array(WARDS).dictionary_encode(), "age": np.arange(1000)}
)
SLICE = TABLE.slice(0, 3)
FRAME = TABLE.to_pandas()
BATCHES: dict[str, Any] = {
    "table": SLICE,
    "record batch": TABLE.to_batches()[0].slice(0, 3),
    "mapping of Arrow": {name: SLICE.column(name) for name in SLICE.column_names},
    "frame": FRAME[:3],
    "frame of Arrow": SLICE.to_pandas(types_mapper=pandas.ArrowDtype),
    "frame of Arrow's texts": FRAME.astype({"ward": "string[pyarrow]"})[:3],
    "mapping of series": {name: FRAME[:3].set_index("ward", drop=False)[name] for name in FRAME},
}


@pytest.mark.parametrize("kind", BATCHES)
def test_what_is_kept_holds_nothing_of_other_rows(kind: str) -> None:
    """If it breaks, values of rows that were never handed over go out as categories, as an index, or in a buffer."""
    batch = BATCHES[kind]
    made = Columns(batch).with_only({"text": ["a", "b", "c"]}, ["ward", "kind", "age"])
    assert type(made) is type(batch)
    assert SECRET not in pickle.dumps(made)
    read = Columns(made)
    assert read.texts("text") == ["a", "b", "c"]
    assert read.texts("ward") == read.texts("kind") == WARDS[:3]
    assert np.asarray(made["age"]).tolist() == [0, 1, 2]


def test_a_series_of_a_mapping_leaves_without_its_index() -> None:
    """If it breaks, names that are the index of a column leave in clear with it."""
    made = Columns(BATCHES["mapping of series"]).with_only({"text": ["a", "b", "c"]}, ["age"])
    assert b"ward" not in pickle.dumps(made)
    assert list(made["age"].index) == [0, 1, 2]


def test_lists_and_arrays_stay_what_they_are() -> None:
    """If it breaks, a batch comes back as another type than it had."""
    made = Columns({"text": ["a"], "list": [[1]], "array": np.zeros(1)}).with_only({"text": ["b"]}, ["list", "array"])
    assert made["list"] == [[1]]
    assert isinstance(made["array"], np.ndarray)


def test_numbers_of_numpy_are_keys_as_pythons_own_are() -> None:
    """If it breaks, a column of users is refused where a library gives its numbers one by one."""
    batch = {"user": [np.int64(7), np.uint8(8), 9, "ten"], "flag": [np.bool_(True), np.float64(1.5), None, ""]}
    assert Columns(batch).keys("user", "user") == ["7", "8", "9", "ten"]
    with pytest.raises(InvalidParameter, match="row 0 of a batch to have a text or a whole number"):
        Columns(batch).keys("flag", "user")


def test_columns_without_names_are_named_by_number() -> None:
    """If it breaks, a table without a header cannot be worked on."""
    assert column_names(0, ["label", 1]) == ((0,), ("label", 1))
    frame = pandas.DataFrame([["Good.", "x"], ["Bad.", "y"]])
    columns = Columns(frame)
    assert columns.texts(0) == ["Good.", "Bad."]
    assert columns.with_only({0: ["A.", "B."]}, [1]).to_dict("list") == {0: ["A.", "B."], 1: ["x", "y"]}
    for wrong in (True, "", 1.5, [], [None]):
        with pytest.raises(InvalidParameter, match="lists of names of columns"):
            column_names(wrong, [])
