"""What every benchmark does with its rows: reads those of earlier runs, and says when and from which commit each is."""

from __future__ import annotations

import datetime
import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from langchain_dp.records import read_jsonl

UNKNOWN = "not recorded"
SOURCES = ("langchain_dp", "integrations", "tests/benchmarks/*.py")


def so_far(path: Path) -> list[dict[str, Any]]:
    """Rows that earlier runs appended to a file of results; none if there is no file."""
    return read_jsonl(path) if path.exists() else []


def made() -> dict[str, str]:
    """The keys "made", today's date, and "commit", for a row of results. Call it once before the work begins."""
    return {"made": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit()}


def keep(path: Path | None, bench: str, settings: dict[str, Any], figures: dict[str, float]) -> None:
    """Append a run's figures, unrounded, to a file of results; nothing where no file is named."""
    if path is None:
        return
    row = {"bench": bench, "settings": settings | {"cpus": os.cpu_count()}, "figures": figures, **made()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@functools.cache
def commit() -> str:
    """The commit that is checked out, with "+" if the sources differ from it.

    Asked once: a commit that is made while a benchmark runs is not the one it runs.
    """
    return commit_of(Path(__file__).parent.parent.parent)


def commit_of(root: Path) -> str:
    """The commit of a checkout; "not recorded" where there is none."""
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{name}+" if changed else name


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
