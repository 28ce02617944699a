"""The notebooks: each runs as it stands, in its fast settings, and its two files say the same."""

from __future__ import annotations

import os
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "cookbook"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.timeout(900)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a newcomer's first hour ends in a traceback."""
    for name in ("COOKBOOK", "COOKBOOK_CLOUD"):  # small settings, and no cloud
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith(("LANGSMITH_", "LANGCHAIN_TRACING"))]:
        monkeypatch.delenv(name)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_two_files_of_a_notebook_agree(path: Path) -> None:
    """If it breaks, what is reviewed is not what is run."""
    script = jupytext.read(path.with_suffix(".py"))
    notebook = nbformat.read(path, as_version=4)
    assert [(cell.cell_type, cell.source) for cell in script.cells] == [
        (cell.cell_type, cell.source) for cell in notebook.cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_outputs_and_says_what_it_does_not_protect(path: Path) -> None:
    """If it breaks, a reader without a kernel sees nothing, or takes away a promise that is too large."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= len(code) / 3
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "**Who is kept from what.**" in text
    assert "## What was not protected" in text
    assert str(Path.home()) not in path.read_text(encoding="utf-8")


def test_there_are_notebooks() -> None:
    """If it breaks, the tests above have nothing to run."""
    assert len(NOTEBOOKS) >= 1
