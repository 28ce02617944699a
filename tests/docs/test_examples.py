"""Examples in docstrings: every public name has one, and those that need no model do what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from langchain_dp import accounting, mechanisms
from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import Owner
from langchain_dp.mechanisms._nearest import NearestVector

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"
PAGES = ["accounting.md", "icl.md", "mechanisms.md", "opt.md", "ports.md", "synth.md", "top.md"]
"""Pages whose names all have an example."""
WITHOUT = {
    "langchain_dp.ports.CONTENT_FREE": "a constant, three texts",
    "langchain_dp.icl.AGNEWS": "a constant: an ICLPrompt, whose class has the example",
    "langchain_dp.icl.AMAZON": "a constant: an ICLPrompt, whose class has the example",
    "langchain_dp.icl.SST2": "a constant: an ICLPrompt, whose class has the example",
    "langchain_dp.icl.TREC": "a constant: an ICLPrompt, whose class has the example",
    "langchain_dp.opt.DISASTER": "a constant: an OptTask, whose class has the example",
    "langchain_dp.opt.MPQA": "a constant: an OptTask, whose class has the example",
    "langchain_dp.opt.SST2": "a constant: an OptTask, whose class has the example",
    "langchain_dp.opt.TREC": "a constant: an OptTask, whose class has the example",
    "langchain_dp.ports.Token": "a type alias",
    "langchain_dp.ports.call_abandoned": "a context variable",
}
"""Names that need none, and why."""
EXAMPLE = re.compile(r"^Examples:\n(?: {4}.*\n?)*? {4}>>> ", re.MULTILINE)


def names(page: str) -> list[str]:
    """Names that a page of the reference shows."""
    return re.findall(r"^::: (\S+)$", (REFERENCE / page).read_text(encoding="utf-8"), re.MULTILINE)


def docstring(name: str) -> str:
    """What the object itself says, and not a class that it inherits from or is made of."""
    module, _, attribute = name.rpartition(".")
    shown = getattr(importlib.import_module(module), attribute)
    said = vars(shown).get("__doc__") if isinstance(shown, type) else getattr(shown, "__doc__", None)
    return inspect.cleandoc(said or "") if isinstance(shown, type) or inspect.isroutine(shown) else ""


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_the_reference_has_an_example(page: str) -> None:
    """If it breaks, a reader sees what a public name is, but not how it is used."""
    assert names(page)
    assert [name for name in names(page) if name not in WITHOUT and not EXAMPLE.search(docstring(name))] == []


def test_names_without_an_example_are_shown_and_have_none() -> None:
    """If it breaks, the list excuses a name that is gone, or that has its example by now."""
    shown = {name for page in PAGES for name in names(page)}
    assert [name for name in WITHOUT if name not in shown or EXAMPLE.search(docstring(name))] == []


def pure() -> list[ModuleType]:
    """Every module that needs no model."""
    found = [
        part.name
        for room in (accounting, mechanisms)
        for part in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
    ]
    return [importlib.import_module(name) for name in found]


def test_examples_without_a_model_are_true() -> None:
    """If it breaks, an example of the accounting or of a mechanism shows what does not happen."""
    finder, told = doctest.DocTestFinder(exclude_empty=True), list[str]()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for module in pure():
        for test in finder.find(module):
            given = {name: getattr(room, name) for room in (accounting, mechanisms) for name in room.__all__}
            table = NearestVector(corners, np.ones(3, dtype=bool))
            test.globs |= given | {"Owner": Owner, "np": np, "table": table}
            test.globs["ledger"] = PrivacyLedger(PrivacyBudget(3.0))
            runner.run(test, out=told.append)
    assert not runner.failures, "".join(told)
    assert runner.tries > 60
