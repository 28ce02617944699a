"""Users with several records: who they are, what stays of them, and which classes protect them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import synthesizers, voters

from langchain_dp import PrivateRecords
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.records import check_records

ROWS = [{"text": f"text {i}", "label": "a", "who": who} for i, who in enumerate(["x", 7, "y", "7", "x", 7.0])]


def records(rows: Any = ROWS) -> PrivateRecords:
    return PrivateRecords(rows, user_key="who")


def test_records_of_a_user_belong_together_in_the_order_of_the_oldest() -> None:
    """If it breaks, a user with several records is several users, and the promise holds for none of them."""
    assert records().users() == [["#0", "#4"], ["#1", "#3", "#5"], ["#2"]]
    assert PrivateRecords(ROWS).users() == [[f"#{i}"] for i in range(6)], "without user_key each record is alone"


@pytest.mark.parametrize(
    ("column", "user_key", "warned"),
    [
        ("customer", None, True),
        ("userId", None, True),
        ("E-Mail address", None, True),
        ("patients", None, True),
        ("client_uuid", None, True),
        ("customer", "customer", False),
        ("user_message", None, False),
    ],
)
def test_a_column_that_may_name_people_is_told_of(column: str, user_key: str | None, warned: bool) -> None:
    """If it breaks, a customer with ten tickets is believed to be protected as one, and nobody is told."""
    rows = [{"text": "a", "label": "x", column: "ann"}]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_records(PrivateRecords(rows, user_key=user_key), ["x"], ["text"], protects_users=True)
        check_records(PrivateRecords(rows), ["x"], ["text"])
    said = [f"give user_key={column!r} of PrivateRecords" in str(one.message) for one in told]
    assert said == [True] * warned, "a class that protects single records alone must not promise more"
    assert not any("ann" in str(one.message) for one in told)


def test_a_column_of_a_table_names_the_users(tmp_path: Path) -> None:
    """If it breaks, users of a DataFrame or a file are not found, or whole numbers that became floats are others."""
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = pandas.DataFrame({"text": ["a", "b", "c"], "label": ["x"] * 3, "customer": [3, 4, 3]})
    assert PrivateRecords(table, user_key="customer").users() == [["#0", "#2"], ["#1"]]
    table.to_csv(tmp_path / "rows.csv", index=False)
    assert PrivateRecords(tmp_path / "rows.csv", user_key="customer").users() == [["#0", "#2"], ["#1"]]
    table.loc[1, "customer"] = None
    with pytest.raises(InvalidParameter, match="1"):
        PrivateRecords(table, user_key="customer")


@pytest.mark.parametrize("who", [None, "", "  ", float("nan"), True, 1.5, b"x", ["x"], {}])
def test_a_missing_user_is_an_error_that_names_the_position(who: Any) -> None:
    """If it breaks, records without a user are one large user, or each is a user of its own, in silence."""
    with pytest.raises(InvalidParameter, match=r"(?s)4.*'who'|'who'.*4") as caught:
        records([*ROWS[:4], {**ROWS[4], "who": who}])
    assert "text 4" not in str(caught.value)
    with pytest.raises(InvalidParameter, match="'who'"):
        records().add({"text": "x", "label": "a", "who": who})


def test_copies_keep_users_and_forgetting_takes_them_out() -> None:
    """If it breaks, a copy forgets who is who, a forgotten record counts, or a copy changes the original."""
    first = records()
    copy = PrivateRecords(first)
    assert copy.user_key == "who"
    copy.forget("#0")
    copy.add({"text": "new", "label": "a", "who": "x"})
    assert copy.users() == [["#1", "#3", "#5"], ["#2"], ["#4", "#6"]]
    assert first.users()[0] == ["#0", "#4"]
    copy.forget("#2")
    assert "'uy'" not in repr(vars(copy)), "nothing of a forgotten user stays"
    with pytest.raises(InvalidParameter, match="user_key"):
        PrivateRecords(first, user_key="who")
    with pytest.raises(PrivateDataError):
        pickle.dumps(first)
    for key in ("", True, 1.5, ["who"]):
        with pytest.raises(InvalidParameter, match="user_key"):
            PrivateRecords(ROWS, user_key=key)  # type: ignore[arg-type]


def of_users(rows: list[dict[str, str]]) -> PrivateRecords:
    return PrivateRecords([{**row, "who": f"u{i // 2}"} for i, row in enumerate(rows)], user_key="who")


REFUSING: dict[str, Callable[[], Any]] = {
    "DPICLClassifier with replicas": lambda: voters.classifier(
        examples=of_users(voters.private_examples(24)), replicas=True
    ),
    "DPAnswerGenerator": lambda: synthesizers.generator(examples=of_users(synthesizers.replies())),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_class_that_protects_single_records_refuses_users(name: str) -> None:
    """If it breaks, a promise for all records of a user is given by a class that protects one of them."""
    with pytest.raises(InvalidParameter, match="Keep one record of each user"):
        REFUSING[name]()
