"""Write the notebooks from their scripts and run them: `make cookbook`, or `python cookbook/build.py 03`.

The outputs of notebooks 6, 8 and 14 are those of `COOKBOOK=full`: small settings show little.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

FULL = ("06", "08", "14")


def build(script: Path) -> None:
    """Execute one script cell by cell, in an empty folder, and write the notebook beside it with its outputs."""
    notebook = jupytext.read(script)
    given = os.environ | ({"COOKBOOK": "full"} if script.name.startswith(FULL) else {})
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": folder}})
        client.execute(env=given)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # random ones would change with every build
        cell.metadata.pop("execution", None)  # times of this machine
    notebook.metadata.pop("widgets", None)  # of progress bars
    nbformat.write(notebook, script.with_suffix(".ipynb"))


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("[0-9]*.py")):
        if not sys.argv[1:] or path.name.startswith(tuple(sys.argv[1:])):
            print(path.name, flush=True)
            build(path)
