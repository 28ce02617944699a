"""Private records: kept, never shown, never serialized."""

from __future__ import annotations

import copy
import enum
import importlib
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY
from langchain_core.load import dumpd, dumps

from langchain_dp import PrivateRecords
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.records import row_fault

EXAMPLE = {"text": f"note {CANARY}", "label": "a"}


def _of_pandas(*names: str) -> list[Any]:
    """Values by which pandas says that there is none; the quick tests run without it."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return []
    return [getattr(pandas, name) for name in names]


def clean(error: BaseException | None) -> None:
    """No private text in an exception, nor in what it drags along."""
    while error is not None:
        assert CANARY not in f"{error!s} {error!r} {error.args!r} {vars(error)!r}"
        assert CANARY not in repr(getattr(error, "object", b""))
        assert error.__context__ is None or error.__suppress_context__ or CANARY not in repr(error.__context__)
        error = error.__cause__ or error.__context__


def test_ids_are_given_or_counted_and_never_used_twice() -> None:
    """Two records share an id, a forgotten id comes back, or one record's id renumbers the others."""
    records = PrivateRecords([EXAMPLE, {**EXAMPLE, "id": "1"}, EXAMPLE, {**EXAMPLE, "id": 7}])
    assert records.ids() == ["#0", "1", "#2", "7"]
    assert len(records) == 4
    records.forget("#2")
    assert records.add(EXAMPLE) == "#4"
    assert records.add(EXAMPLE, record_id="mine") == "mine"
    assert records.ids() == ["#0", "1", "7", "#4", "mine"]
    assert dict(records.get("mine")) == EXAMPLE
    unnamed = PrivateRecords([EXAMPLE] * 4)
    assert unnamed.ids()[2:] == PrivateRecords([EXAMPLE, {**EXAMPLE, "id": "alice"}, EXAMPLE, EXAMPLE]).ids()[2:]


def test_forgotten_and_refused_records_are_gone() -> None:
    """If it breaks, a record that was forgotten, or that add() refused, is kept all the same."""
    records = PrivateRecords([EXAMPLE, {"text": "other", "label": "b"}])
    records.forget("#0")
    assert records.ids() == ["#1"]
    for ask in (records.get, records.forget):
        with pytest.raises(InvalidParameter, match="record_id to be a known id"):
            ask("#0")
    records = PrivateRecords([EXAMPLE])
    with pytest.raises(InvalidParameter, match="the example"):
        records.add({"text": CANARY})
    assert records.ids() == ["#0"]


def test_copies_and_the_callers_mapping_go_their_own_way() -> None:
    """If it breaks, two chains over the same records cannot forget one each, or a later edit gets past the checks."""
    first = PrivateRecords([EXAMPLE, EXAMPLE])
    second = PrivateRecords(first)
    assert second.ids() == ["#0", "#1"]
    first.forget("#0")
    assert second.ids() == ["#0", "#1"]
    assert second.add(EXAMPLE) == "#2"
    assert first.ids() == ["#1"]
    mine = dict(EXAMPLE)
    records = PrivateRecords([mine])
    mine["text"] = ""
    assert records.get("#0")["text"] == EXAMPLE["text"]
    with pytest.raises(TypeError):
        records.get("#0")["text"] = ""  # type: ignore[index]  # that it cannot be done is the point


@pytest.mark.parametrize("show", [repr, str, "{}".format, dumps, dumpd, ascii])
def test_nothing_of_the_records_is_shown(show: Any) -> None:
    """A print, a log line or a LangChain dump shows private text, or how many records there are."""
    shown = str(show(PrivateRecords([EXAMPLE] * 17)))
    assert CANARY not in shown
    assert "17" not in shown.replace(str(id(shown)), "")


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_records_cannot_be_taken_out(take: Any) -> None:
    """Private records end up in a pickle on disk, or in a second copy that nobody can forget."""
    with pytest.raises(PrivateDataError, match="cannot be pickled, copied or serialized") as caught:
        take(PrivateRecords([EXAMPLE]))
    clean(caught.value)
    with pytest.raises(TypeError, match="JSON"):
        json.dumps(PrivateRecords([EXAMPLE]))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"text": CANARY}, "example 1 to have a non-empty str under 'label'"),
        ({"label": CANARY}, "example 1 to have a non-empty str under 'text'"),
        ({"text": "  ", "label": CANARY}, "under 'text'"),
        ({"text": 3, "label": CANARY}, "under 'text'"),
        ({"text": CANARY, "label": 3.5}, "under 'label'"),
        ({"text": CANARY, "label": ""}, "under 'label'"),
        ({"text": CANARY, "label": "a", "id": "mine"}, "the id of example 1 to be new"),
        ({"text": CANARY, "label": "a", "id": "#0"}, "not to start with '#'"),
        ({"text": CANARY + chr(0xD800), "label": "a"}, "example 1 to hold valid Unicode under 'text'"),
        (CANARY, "example 1 to be a mapping with text and label, not str"),
    ],
)
def test_a_bad_example_is_named_by_its_position_only(example: Any, message: str) -> None:
    """A bad record slips in, or its content is quoted in the error."""
    with pytest.raises(InvalidParameter, match=message) as caught:
        PrivateRecords([{**EXAMPLE, "id": "mine"}, example])
    clean(caught.value)


class Mood(str, enum.Enum):  # noqa: UP042  # StrEnum is written as its value
    """Equal to its value, and written otherwise: "Mood.GOOD"."""

    GOOD = "positive"


def test_strings_of_a_kind_of_their_own_are_kept_as_plain_ones() -> None:
    """If it breaks, a label passes every check and is then written as "Mood.GOOD", which no label is."""
    records = PrivateRecords([{"text": Mood.GOOD, "label": Mood.GOOD, "note": Mood.GOOD}])
    kept = records.get("#0")
    assert dict(kept) == {"text": "positive", "label": "positive", "note": "positive"}
    assert {type(value) for value in kept.values()} == {str}


def test_an_id_is_the_same_string_by_whatever_reader() -> None:
    """If it breaks, a record is forgotten on one replica, and stays on another that read the same file otherwise."""
    for column in [[0, 1, 2], [0.0, 1.0, 2.0], ["0", "1", "2"], np.arange(3)]:
        rows = [{"id": name, "text": "a", "label": "b"} for name in column]
        assert PrivateRecords(rows).ids() == ["0", "1", "2"]
    with pytest.raises(InvalidParameter, match="record_id of type int to be a str"):
        PrivateRecords([]).add({"text": "a", "label": "b"}, record_id=5)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("nothing", [None, math.nan, "", " ", *_of_pandas("NA", "NaT")])
def test_a_missing_id_is_none(nothing: Any) -> None:
    """If it breaks, records that have no id are called "nan", and pass for named ones."""
    rows = [{"id": name, "text": "a", "label": "b"} for name in ("x", nothing, nothing)]
    assert PrivateRecords(rows).ids() == ["x", "#1", "#2"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("nothing", [None, math.nan, *_of_pandas("NA")])
def test_a_gap_in_a_column_that_a_template_names_is_found(nothing: Any, plain: bool) -> None:
    """If it breaks, a model is shown "nan" where a table has nothing."""
    row = {"text": "a", "label": "b", "product": nothing}
    assert "['product'] are missing" in row_fault(row, None, ["text", "product"], plain=plain)
