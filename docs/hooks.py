"""Parts of the reference beyond pages: sources laid out as installed, help texts, and a check of completeness."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

ROOT = Path(__file__).parent.parent
COMMANDS = "<!-- commands -->"
log = logging.getLogger("mkdocs.hooks.reference")
_staged: list[Path] = []


@event_priority(100)  # before the plugins read their settings
def on_config(config: Any) -> Any:
    """Lay the packages out as a wheel has them, so that ``langchain_dp.integrations`` is found in its place."""
    folder = Path(tempfile.mkdtemp(prefix="reference-"))
    _staged.append(folder)
    stage(folder)
    handlers = config.plugins["mkdocstrings"].config.handlers
    handlers.setdefault("python", {})["paths"] = [str(folder)]
    return config


def stage(folder: Path) -> None:
    """Copy every package of pyproject.toml to where it is installed."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for package in tool["packages"]:
        source = ROOT / package.replace(".", "/")
        for name, folder_of_it in tool["package-dir"].items():
            if package == name or package.startswith(f"{name}."):
                source = ROOT / folder_of_it / package.removeprefix(name).strip(".").replace(".", "/")
        target = folder / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for file in source.glob("*.py"):
            shutil.copy(file, target)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help texts of the commands where a page asks for them."""
    return markdown.replace(COMMANDS, "\n\n".join(help_texts())) if COMMANDS in markdown else markdown


def help_texts() -> list[str]:
    """One section per command, in the order of the help, with all its options."""
    from langchain_dp.cli import COMMANDS as CLASSES

    leaves = [tuple(command.path.split()) for command in CLASSES]
    if not leaves:
        log.warning("The command line has no commands.")
    found = [fenced("--help")]
    for path in dict.fromkeys(leaf[:depth] for leaf in leaves for depth in range(1, len(leaf) + 1)):
        shown = fenced(*path, "--help-all" if path in leaves else "--help")
        found.append(f"{'#' * (1 + len(path))} {' '.join(path)}\n\n{shown}")
    return found


def fenced(*arguments: str) -> str:
    """Output of the command line as a block."""
    return f"```text\n{printed(*arguments)}\n```"


def printed(*arguments: str) -> str:
    """Output of the command line."""
    from langchain_dp.cli import main

    before = dict(os.environ)
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return out.getvalue().strip()


def on_post_build(config: Any) -> None:
    """Warn of every public thing that is not explained: under ``strict`` a warning is an error."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from complete import problems
    finally:
        sys.path.pop(0)
    for problem in problems(_staged[-1], Path(config.docs_dir)):
        log.warning(problem)


def on_shutdown() -> None:
    """Remove the copies."""
    while _staged:
        shutil.rmtree(_staged.pop(), ignore_errors=True)
