"""Pseudonyms for columns of batches: same type out, restored by row, nothing private in a pickle or an error."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from cryptography.fernet import Fernet

from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt.pseudonyms import PseudonymizeBatches, Pseudonymizer

KEY, OTHER = Fernet.generate_key(), Fernet.generate_key()
NAME = "Zebedee Kowalczyk"
ROWS = {"id": [1, 2, 3], "text": [f"{NAME} has zeb@example.org.", None, "Nobody."], "reply": ["ok", f"to {NAME}", ""]}


def build() -> Pseudonymizer:
    return Pseudonymizer(terms={NAME: "person"})


def key() -> bytes:
    return KEY


def other_key() -> bytes:
    return OTHER


def batches(**changed: Any) -> PseudonymizeBatches:
    settings: dict[str, Any] = {"keep_columns": ["id"], "map_column": "map", "key": key}
    return PseudonymizeBatches(build, ["text", "reply"], **{**settings, **changed})


def test_columns_of_a_row_share_placeholders_and_come_back() -> None:
    """If it breaks, a row is hidden in part, or what comes back is another row's."""
    made = batches()
    hidden = made(ROWS)
    assert list(hidden) == ["id", "text", "reply", "map"]
    assert hidden["text"] == ["<PERSON_1> has <EMAIL_1>.", None, "Nobody."]
    assert hidden["reply"] == ["ok", "to <PERSON_1>", ""]
    assert NAME not in str(hidden)
    hidden["reply"] = ["Dear <PERSON_1>", "No <EMAIL_1> here", "<PERSON_1>"]
    restored = made.restore(hidden)
    assert restored == {
        "id": [1, 2, 3],
        "text": ROWS["text"],
        "reply": [f"Dear {NAME}", "No <EMAIL_1> here", "<PERSON_1>"],
    }, "each row has a map of its own"


def test_a_worker_that_opened_its_own_gives_the_same() -> None:
    """If it breaks, a retry on another worker gives other texts, or the pickle shows names or the key."""
    made = batches()
    pickled = pickle.dumps(made)
    assert len(pickled) < 1000
    assert b"Zebedee" not in pickled
    assert KEY not in pickled
    elsewhere = pickle.loads(pickled)
    first, second = made(ROWS), elsewhere(ROWS)
    assert [first[name] for name in ("text", "reply")] == [second[name] for name in ("text", "reply")]
    assert elsewhere.restore(first)["text"] == ROWS["text"]
    assert NAME not in repr(elsewhere)


def test_frames_and_arrow_tables_come_back_as_such() -> None:
    """If it breaks, Spark or Ray gets another type than it gave."""
    pandas = pytest.importorskip("pandas")
    made = batches()
    (frame,) = made.in_pandas([pandas.DataFrame(ROWS)])
    assert list(frame.columns) == ["id", "text", "reply", "map"]
    assert frame["text"][0] == "<PERSON_1> has <EMAIL_1>."
    assert made.restore(frame)["text"][0] == ROWS["text"][0]
    arrow = pytest.importorskip("pyarrow")
    table = made(arrow.table(ROWS))
    assert table.column_names == ["id", "text", "reply", "map"]
    assert made.restore(table).column("reply").to_pylist() == ROWS["reply"]


def test_without_a_map_nothing_comes_back() -> None:
    """If it breaks, maps are kept that nobody asked for."""
    made = batches(map_column=None, key=None)
    assert list(made(ROWS)) == ["id", "text", "reply"]
    with pytest.raises(InvalidParameter, match="map_column= to be given"):
        made.restore(ROWS)
    assert made.certificate().private is False


@pytest.mark.parametrize("part", ["", None, "a.b", "another key"])
def test_a_map_of_another_key_or_that_was_changed_is_refused(part: Any) -> None:
    """If it breaks, somebody else's name is put into a reply, or an error quotes a map."""
    hidden = batches()(ROWS)
    if part == "another key":
        with pytest.raises(PrivateDataError) as caught:
            batches(key=other_key).restore(hidden)
    else:
        hidden["map"] = [part, *hidden["map"][1:]]
        with pytest.raises(PrivateDataError) as caught:
            batches().restore(hidden)
    assert NAME not in str(caught.value)


def test_an_error_shows_no_text() -> None:
    """If it breaks, a row of the wrong type prints the others."""
    with pytest.raises(InvalidParameter, match="row 1") as caught:
        batches()({**ROWS, "text": [NAME, 5, ""]})
    assert NAME not in str(caught.value)
