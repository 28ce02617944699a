"""What a missing package is told to be installed with, against what pyproject.toml says the extras bring."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from langchain_dp._util.extras import missing_extra
from package_checks import missing
from package_checks.building import run
from package_checks.extras import (
    CHECKOUT,
    NEED,
    PROJECT,
    PROMISES,
    ROOT,
    SEVERAL,
    installed_with,
    named_in,
    requirements,
    without_extras,
)

OWN = "_util/extras.py"
"""Where the message is made; there only ``load`` asks for an extra itself."""

DISTRIBUTIONS = packages_distributions()


def files() -> Iterator[tuple[str, Path]]:
    """Every source file of the package, with its name in it."""
    for path in sorted((ROOT / "langchain_dp").rglob("*.py")):
        yield path.relative_to(ROOT / "langchain_dp").as_posix(), path
    for path in sorted((ROOT / "integrations").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path


@functools.cache
def raised() -> tuple[tuple[str, str], ...]:
    """Where an extra is asked for, and what is said there; {} for what only the run knows."""
    found = []
    for name, path in files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(inner): function.name
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for inner in ast.walk(function)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (
                "MissingExtra",
                "missing_extra",
                "needs",
            ):
                continue
            if name != OWN or inside.get(id(node)) == "load":
                text = missing_extra(*map(said, node.args), **{str(one.arg): said(one.value) for one in node.keywords})
                found.append((f"{name}:{inside.get(id(node), '')}", str(text)))
    return tuple(found)


def said(node: ast.expr) -> str:
    """Text of an expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(said, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def brings(extra: str, module: str) -> bool:
    """Whether a module is there once the extra is installed."""
    found = {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, [module])}
    return bool(found & set(installed_with(requirements(extra))))


def test_every_place_is_known() -> None:
    """If it breaks, somebody asks for an extra in a message that no test reads."""
    provoked = {place.partition(",")[0] for place in missing.PROVOKED}
    assert {place for place, _ in raised()} == provoked


@pytest.mark.parametrize(("place", "text"), raised())
def test_a_message_names_an_extra_and_what_it_brings(place: str, text: str) -> None:
    """If it breaks, pip is told to install an extra that does not exist, or that lacks the package named."""
    assert re.search(r"""pip install (['"])\.\[[\w{}-]+\]\1""", text)
    for extra in named_in(text.replace("[{}]", "")):
        assert extra in PROJECT["optional-dependencies"]
        for named in re.findall(r"packages? ([\w-]+)(?: and ([\w-]+))?", text):
            for package in filter(None, named):
                assert canonicalize_name(package) in installed_with(requirements(extra)), (package, extra)


def test_every_message_appears_and_its_extra_helps(bare: Path, tmp_path: Path) -> None:
    """If it breaks, something fails with another error than MissingExtra, or the extra it names does not help."""
    told = json.loads(run(str(bare), "-I", missing.__file__, cwd=tmp_path).splitlines()[-1])
    for place, (_, module) in missing.PROVOKED.items():
        extras = named_in(told[place])
        assert len(extras) == 1, (place, told[place])
        assert brings(extras[0], module), (place, extras[0], module)
        assert not brings("", module) or module in ("httpx", "langchain_core"), f"{module} is no matter of an extra"


def test_a_minimum_that_a_message_names_is_asked_for() -> None:
    """If it breaks, an extra is content with a version that the package then refuses."""
    for place, text in raised():
        for package, version in re.findall(r"package ([\w-]+), ([\d.]+) or newer", text):
            (extra,) = named_in(text)
            asked = [str(r.specifier) for r in requirements(extra) if r.name == package]
            assert any(f">={version}" in specifier for specifier in asked), (place, asked)


def test_every_extra_has_its_promise() -> None:
    """If it breaks, `make package` leaves out an extra, or tries one that does not exist."""
    assert set(PROMISES) - {""} == set(PROJECT["optional-dependencies"]) - {"check", "dev"}
    named = [*CHECKOUT, *SEVERAL, *without_extras(), *(path for promise in PROMISES.values() for path in promise.tests)]
    assert not [pattern for pattern in named if not list((ROOT / "tests").glob(pattern))]
    assert set(NEED) <= set(PROMISES)


def test_extras_bring_no_more_than_they_say() -> None:
    """If it breaks, an extra that is light by its description pulls in torch."""
    heavy = {extra for extra in PROMISES if "torch" in installed_with(requirements(extra))}
    assert heavy == {"attacks", "minilm", "transformers", "tuning"}


def test_dev_holds_everything_the_tests_import() -> None:
    """If it breaks, `make test` of a fresh clone misses a package, or one that is only there by accident."""
    dev = set(installed_with(requirements("dev")))
    for path in (ROOT / "tests").rglob("*.py"):
        if "benchmarks" in path.parts:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for module in {name.partition(".")[0] for name in names} & set(DISTRIBUTIONS) - {"langchain_dp"}:
                assert {canonicalize_name(name) for name in DISTRIBUTIONS[module]} & dev, (path.name, module)


def test_every_package_of_dev_is_pinned() -> None:
    """If it breaks, two builds of the same checkout run with different packages."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    there = {name for name, found in installed_with(requirements("dev")).items() if found is not None}
    assert there - pinned - {"pip", "setuptools", "wheel"} == set()
