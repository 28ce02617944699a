"""Stored documents: what is none is refused in one line, and nothing of it is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from langchain_dp._util.documents import FileForm, Form
from langchain_dp.errors import InvalidParameter

SECRET = "quetzal"


class Part(Form):
    """A part of a document."""

    count: int


class Whole(FileForm):
    """A document."""

    kind: Literal["one", "two"]
    rows: list[list[int]]
    names: dict[str, int]
    part: Part


GOOD = {"format": "test 1", "kind": "one", "rows": [[1], [2]], "names": {"a": 1}, "part": {"count": 3}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": SECRET}, "kind input should be 'one' or 'two'"),
        ({"rows": [[1], [SECRET]]}, "rows at 1 input should be a valid integer"),
        ({"rows": [[1], [True]]}, "rows at 1 input should be a valid integer"),
        ({"rows": SECRET}, "rows input should be a valid"),
        ({"names": {SECRET: SECRET}}, "names input should be a valid integer"),
        ({"part": {"count": SECRET}}, "part input should be a valid integer"),
        ({"part": {"count": 3, SECRET: 1}}, "extra inputs are not permitted"),
        ({SECRET: 1}, "extra inputs are not permitted"),
        ({"part": None}, "part input should be an object"),
        ({"format": f"test {SECRET}"}, "it is of another format"),
    ],
)
def test_a_field_of_another_form_is_named_and_nothing_of_it_is_shown(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    """If it breaks, a damaged file is taken for a whole one, or an error repeats the private text that it holds."""
    path = tmp_path / "document.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(InvalidParameter) as refused:
        Whole.load(path, "test 1")
    error = refused.value
    assert f"'test 1', but {said}" in str(error)
    assert "It is damaged, another kind of file, or of another version." in str(error)
    assert "\n" not in str(error)
    assert error.__cause__ is None
    assert SECRET not in f"{error}{error!r}{error.__context__}{error.__context__!r}"


@pytest.mark.parametrize("text", ["", SECRET, f'{{"{SECRET}', f'["{SECRET}"]', "[" * 100_000, "\x00", '"\\ud800"'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    """If it breaks, nonsense ends in a traceback of another kind, or is quoted."""
    with pytest.raises(ValueError, match=r"(?i)json|object") as refused:
        Whole.read(text)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_a_missing_field_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    """If it breaks, the owner of a wrong path looks for damage."""
    with pytest.raises(ValueError, match="rows field required"):
        Whole.read(json.dumps({name: value for name, value in GOOD.items() if name != "rows"}))
    with pytest.raises(InvalidParameter, match=r"a file that can be read \(FileNotFoundError\)"):
        Whole.load(tmp_path / "none.json", "test 1")
    (tmp_path / "good.json").write_text(json.dumps(GOOD))
    assert Whole.load(tmp_path / "good.json", "test 1").part.count == 3
