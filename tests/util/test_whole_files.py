"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from langchain_dp._util.whole_files import whole, write_whole


def test_a_folder_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, save(".") ends in an error of pathlib that names no remedy."""
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(IsADirectoryError, match="Name a file in it"):
            write_whole(folder, "x")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """If it breaks, the error names a scratch file that nobody asked for."""
    with pytest.raises(FileNotFoundError, match=r"folder to be there.*gone'$"):
        write_whole(tmp_path / "gone" / "report.html", "x")


def test_a_folder_that_is_closed_is_told_of_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, the error names a scratch file that nobody asked for."""

    def closed(path: Any, *_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(PermissionError, match=r"report.html'$"):
        write_whole(tmp_path / "report.html", "x")


def test_what_was_there_stays_until_all_is_written(tmp_path: Path) -> None:
    """If it breaks, a crash in the middle leaves half a report under the good one's name."""
    path = tmp_path / "report.html"
    write_whole(path, "the old one")

    def write_half() -> None:
        with whole(path) as file:
            file.write(b"half of the ne")
            file.flush()
            assert path.read_text() == "the old one"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "the old one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"], "no scratch file stays"


def test_it_is_replaced_by_the_whole_of_the_new_one(tmp_path: Path) -> None:
    """If it breaks, the end of a longer old file stands after the new text."""
    path = tmp_path / "prompt.json"
    write_whole(path, "a longer old one")
    write_whole(path, "kürzer")
    assert path.read_bytes() == "kürzer".encode()


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_what_is_private_is_for_its_owner_alone(tmp_path: Path) -> None:
    """If it breaks, another user of the machine reads a ledger's key, or nobody else can read a report."""
    before = os.umask(0o022)
    try:
        for name, only, mode in (("key", True, 0o600), ("report", False, 0o644)):
            with whole(tmp_path / name, owner_only=only) as file:
                (part,) = tmp_path.glob(".*.part")
                assert stat.S_IMODE(part.stat().st_mode) == mode, "from the first byte on"
                file.write(b"x")
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    finally:
        os.umask(before)
