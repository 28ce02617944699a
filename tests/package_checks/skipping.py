"""Plugin of `make package`: a test that needs another extra than the one under test is skipped, and the reason says so.

Not for `make test`, where every extra is there: a package that is missing then is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

EXTRA = "LANGCHAIN_DP_EXTRA"
"""Environment variable: the extra under test, and those it consists of."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def reason(error: BaseException | None) -> str | None:
    """What an error says is not installed, if that is no matter of the extra under test."""
    for known in chain(error):
        if type(known).__name__ == "MissingExtra":
            named = re.findall(r"\.\[([\w-]+)\]", str(known))
            if named and not set(named) & set(os.environ[EXTRA].split()):
                return f"needs the extra {named[0]}"
        if isinstance(known, ModuleNotFoundError) and known.name and absent(known.name):
            return f"needs {known.name}"
    return None


def absent(module: str) -> bool:
    """Whether a package is not installed; parts of our own are never excused."""
    root = module.partition(".")[0]
    return root != "langchain_dp" and importlib.util.find_spec(root) is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """A test, or a fixture of it."""
    report = yield
    why = reason(call.excinfo.value) if report.failed and call.excinfo else None
    if why:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {why}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A file that cannot be imported."""
    report = yield
    lacks = (
        re.findall(r"ModuleNotFoundError: No module named '([\w.]+)'", str(report.longrepr)) if report.failed else []
    )
    if lacks and absent(lacks[-1]):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {lacks[-1]}")
    return report
