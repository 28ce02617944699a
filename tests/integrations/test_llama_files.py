"""The prepared copy of the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_dp.integrations.llama_cpp import context
from langchain_dp.integrations.llama_cpp import model_files as files


@pytest.fixture
def one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CANDIDATES", ("F16",))
    monkeypatch.setattr(files, "WORTH", 0.0)  # speed is the machine's affair, not the test's


@pytest.fixture
def tiny(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model in the place of the embedded one."""
    monkeypatch.setattr(files, "embedded_model_path", lambda: model_path)
    monkeypatch.setattr(files, "_PROBE", files._PROBE[:200])  # its tokens are letters


@pytest.mark.usefixtures("one_candidate", "tiny")
def test_the_copy_is_made_once_and_its_reasons_are_kept(tmp_path: Path) -> None:
    """If this fails, every start spends ten seconds on preparing the model, or nobody can see why it was chosen."""
    first = Path(files.prepared_model_path(tmp_path))
    made = first.stat().st_mtime_ns
    record = json.loads((tmp_path / f"{files.EMBEDDED}.json").read_text())
    assert record["file"] == first.name == f"{files.EMBEDDED}.F16.gguf"
    assert record["measured"][1]["mean_kl"] <= files.MAX_MEAN_KL
    assert files.prepared_model_path(tmp_path) == str(first)
    assert first.stat().st_mtime_ns == made
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, f"{files.EMBEDDED}.json"]
    first.write_bytes(b"cut short")
    assert Path(files.prepared_model_path(tmp_path)).stat().st_size == record["file_bytes"]


@pytest.mark.usefixtures("one_candidate", "tiny")
def test_two_processes_that_begin_together_use_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the model is another file, and so other bits, from one engine of a process to the next."""
    compare, others = files._compare, []

    def overtaken(source: str, scratch: Path) -> Any:
        found = compare(source, scratch)
        if not others:
            others.append("")
            others[0] = files.prepared_model_path(tmp_path)
            monkeypatch.setattr(files.os, "replace", None)  # nothing is put in its place
        return found

    monkeypatch.setattr(files, "_compare", overtaken)
    assert files.prepared_model_path(tmp_path) == others[0] == str(tmp_path / f"{files.EMBEDDED}.F16.gguf")


@pytest.mark.usefixtures("tiny")
def test_an_inaccurate_copy_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, speed is bought with wrong answers: Q4_0 differs from the original in every third token."""
    monkeypatch.setattr(files, "CANDIDATES", ("Q4_0",))
    monkeypatch.setattr(files, "WORTH", 0.0)
    assert files.prepared_model_path(tmp_path) == files.embedded_model_path()
    (row,) = json.loads((tmp_path / f"{files.EMBEDDED}.json").read_text())["measured"][1:]
    assert row["mean_kl"] > files.MAX_MEAN_KL
    assert files.prepared_model_path(tmp_path) == files.embedded_model_path()


def test_without_a_writable_folder_or_disk_the_original_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the quickstart stops on a read-only home or fills the last of a disk."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert files.prepared_model_path(in_the_way) == files.embedded_model_path()
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**8))
    assert files.prepared_model_path(tmp_path / "new") == files.embedded_model_path()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": "../../x"}'])
def test_a_damaged_note_is_not_believed(tmp_path: Path, text: str) -> None:
    """If this fails, a broken or planted note chooses which file is loaded."""
    note = tmp_path / "note.json"
    note.write_text(text)
    assert files._kept(note, {"engine": "1"}) is None


def test_two_processes_that_prepare_at_once_both_get_a_whole_file(tmp_path: Path, model_path: str) -> None:
    """If this fails, a server with two workers loads a half-written model on its first start."""
    code = (
        "import sys, pathlib, langchain_dp.integrations.llama_cpp.model_files as files\n"
        "files.CANDIDATES, files.WORTH, files._PROBE = ('F16',), 0.0, files._PROBE[:200]\n"
        "files.embedded_model_path = lambda: sys.argv[2]\n"
        "files._evaluate(files.prepared_model_path(pathlib.Path(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), model_path]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [worker.communicate(timeout=200)[1] for worker in workers] == [b"", b""]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, 300 MB land where an administrator did not want them."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.delenv("LANGCHAIN_DP_CACHE", raising=False)
    assert files.cache_folder() == Path("/b/langchain-dp")
    monkeypatch.setenv("LANGCHAIN_DP_CACHE", "/a")
    assert files.cache_folder() == Path("/a/langchain-dp")


@pytest.mark.parametrize("build", [b"AVX2 = 1 | AMX_INT8 = 1 | ", b"AVX2 = 1 | "], ids=["with tiles", "without"])
def test_a_build_for_tiles_never_multiplies_by_them(build: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the first batch ends the whole process by an illegal instruction on most new Intel servers."""
    library = pytest.importorskip("llama_cpp.llama_cpp", reason="llama-cpp-python is not installed")
    given = getattr(library.llama_model_default_params, "given", library.llama_model_default_params)
    monkeypatch.setattr(library, "llama_print_system_info", lambda: build)
    monkeypatch.setattr(library, "llama_model_default_params", given)
    for _ in range(3):  # more often than once, and no deeper for it
        context.import_llama()
    now = library.llama_model_default_params
    if b"AMX" in build:
        assert now.given is given
        assert not now().use_extra_bufts
    else:
        assert now is given


@pytest.mark.parametrize("told", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}], ids=str)
def test_threads_that_wait_leave_the_processor_to_others(told: dict[str, str]) -> None:
    """If this fails, an evaluation beside one busy process takes ten times as long, or what the user said is lost."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    code = (
        "import os; from langchain_dp.integrations.llama_cpp.context import import_llama; before = dict(os.environ); "
        "import_llama(); print(os.environ == before)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"OMP_DISPLAY_ENV": "verbose"} | told,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"  # not handed on to other processes
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this llama.cpp does not wait by GCC's OpenMP")
    turns = told.get("GOMP_SPINCOUNT", context._TURNS)
    assert (f"GOMP_SPINCOUNT = '{turns}'" in done.stderr) == ("OMP_WAIT_POLICY" not in told)
