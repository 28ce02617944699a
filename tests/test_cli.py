"""The command line, with the real embedded model on a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from langchain_dp import sample
from langchain_dp.cli import main


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    train, _ = sample.load()
    return write(tmp_path / "tickets.jsonl", train[:30])


def test_demo_prints_rows_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a script cannot read the demo: one row per method, in order, scored on the held-out part."""
    assert main(["demo", "--data", str(data), "--shots", "2", "--subsets", "4", "--json", "--limit", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["zero-shot", "few-shot", "vote", "dp-icl", "dp-icl", "dp-icl"]
    assert [row["epsilon"] for row in rows] == [0.0, None, None, 1.0, 3.0, 8.0]
    assert all(row["n"] == 3 and 0 <= row["accuracy"] <= 1 for row in rows)


def test_demo_shows_a_table_and_saves_a_picture(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a person sees no table, no certificate or no picture."""
    picture = tmp_path / "picture.png"
    test = write(tmp_path / "test.jsonl", sample.load()[1][:2])
    arguments = ["demo", "--data", str(data), "--test", str(test), "--shots", "3", "--subsets", "3"]
    assert main([*arguments, "--epsilon", "3", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    for part in (
        "read off the private rows",
        "DP-ICL",
        "vote without noise",
        "Privacy certificate",
        "epsilon = 3",
        "replace one record",
    ):
        assert part in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"text": "secret", "label": "a"}] * 3, "at least"),
        ([{"text": "secret"}], "'label'"),
        ([], "at least"),
    ],
)
def test_bad_data_is_one_line(
    rows: list[dict[str, str]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a user gets a traceback, or private text on the terminal."""
    path = write(tmp_path / "bad.jsonl", rows)
    assert main(["demo", "--data", str(path)]) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert says in error[0]
    assert "secret" not in error[0]


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a typo in a path ends in a traceback."""
    assert main(["demo", "--data", "no-such-file.jsonl"]) == 1
    assert "no-such-file.jsonl" in capsys.readouterr().err
