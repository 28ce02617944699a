"""Who may import whom. A reader sees the promise in the folders; this keeps them true."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "langchain_dp"
MODELS = {"llama_cpp", "torch", "transformers", "peft", "openai", "langchain_openai", "langchain_community"}
TRAINED = ["rapt/tuning", "attacks"]  # what trains models of its own
ON_TORCH = {"torch", "transformers", "peft"}
PURE = [
    "accounting", "mechanisms", "records", "ensemble/subsets.py", "ports.py", "errors.py",
    "redact.py", "_util/validate.py",
]  # fmt: skip


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """What a file is made of."""
    text = path.read_text(encoding="utf-8")
    try:
        return tuple(ast.walk(ast.parse(text)))
    except SystemError:  # Python 3.11 while another thread parses (python/cpython#106905)
        return tuple(ast.walk(ast.parse(text)))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a file imports, anywhere in it."""
    found: set[str] = set()
    package = ["langchain_dp", *path.parent.relative_to(ROOT if "integrations" in path.parts else PACKAGE).parts]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            named = {f"{source}.{alias.name}" for alias in node.names}
            found |= named | (set() if named <= modules().keys() else {source})
    return frozenset(found)


FLOORS = [
    "__main__",
    "cli",
    "audit",
    "attacks",
    "icl opt rapt synth",
    "aggregate",
    "ensemble",
    "records parsing",
    "isolation",
    "mechanisms",
    "accounting",
    "redact",
    "ports",
    "_util",
    "errors",
]
"""Imports go down this list only."""


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "langchain_dp" else ("langchain_dp", *parts))
        found[name.removesuffix(".__init__")] = path
    return found


def test_imports_go_down_the_floors() -> None:
    """If it breaks, a room can no longer be read without those above it."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}
    found = []
    for name, path in modules().items():
        here = name.split(".")[1] if "." in name else ""
        for other in imports(path):
            there = other.split(".")[1] if other.startswith("langchain_dp.") else ""
            up = here in floor and there in floor and here != there and floor[there] <= floor[here]
            found += [f"{name} imports {other}"] if up else []
    assert not found
    rooms = {name.split(".")[1] for name in modules() if "." in name}
    assert rooms - {"integrations", "sample"} == set(floor)


def test_no_imports_go_in_a_circle() -> None:
    """If it breaks, two files can only be understood, and imported, together: not even inside functions."""
    known = modules()
    uses = {
        name: {other for other in imports(path) if other in known and other != name} for name, path in known.items()
    }
    # That a package imports its own parts to offer their names is no circle, unless a part asks the package.
    alone: set[str] = set()
    while ready := {name for name in uses if name not in alone and uses[name] <= alone}:
        alone |= ready
    assert sorted(set(uses) - alone) == []


def test_no_two_classes_share_a_name() -> None:
    """If it breaks, a reader has to ask which of the two is meant."""
    names = Counter(node.name for path in modules().values() for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert [name for name, times in names.items() if times > 1] == []


def test_a_file_is_one_idea_in_a_folder_of_its_kind() -> None:
    """If it breaks, prefixes stand for folders again, or a file holds more than one idea."""
    assert len(list(PACKAGE.glob("*.py"))) <= 6
    for path in modules().values():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, path
        assert path.parent.name not in path.stem.split("_"), path


def test_no_name_that_a_package_offers_hides_a_file_of_its_own() -> None:
    """If it breaks, ``package.name`` is a function, and the file of that name cannot be reached by it."""
    hidden = [
        name
        for package, path in modules().items()
        if path.name == "__init__.py"
        for name in (f"{package}.{offered.split('.')[-1]}" for offered in imports(path) if offered not in modules())
        if name in modules()
    ]
    assert hidden == ["langchain_dp.rapt.calibrate"]  # the one that is left


def files(*places: str) -> list[Path]:
    return [
        path
        for place in places
        for path in ([PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).rglob("*.py")))
    ]


def touches(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports(path))


@pytest.mark.parametrize("path", files(*PURE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_imports_no_langchain_and_no_model(path: Path) -> None:
    """If it breaks, what a release costs or how it is drawn depends on a framework or on a model."""
    assert not [name for name in {"langchain_core", "langsmith", *MODELS} if touches(path, name)]


def test_mechanisms_know_what_they_cost_and_never_see_the_ledger() -> None:
    """If it breaks, a mechanism could decide about its own budget: of the accounting it may know the events alone."""
    known = {name for path in files("mechanisms") for name in imports(path) if "langchain_dp.accounting" in name}
    assert known
    assert not [name for name in known if not name.startswith("langchain_dp.accounting.events")]


def test_what_ledgers_keep_is_said_in_no_dialect() -> None:
    """If it breaks, the stores' SQL runs on SQLite alone, and another database needs stores of its own."""
    stores = [path for path in files("accounting") if not path.stem.startswith("sqlite")]
    dialect = re.compile(r"PRAGMA|lastrowid|\?\d|INSERT OR|sqlite_")
    said = [path for path in stores if dialect.search(path.read_text(encoding="utf-8").replace("store.sqlite_", ""))]
    assert not [path for path in stores if touches(path, "sqlite3")] + said


def test_the_package_never_imports_integrations() -> None:
    """If it breaks, the core needs a third party; the command line and ``Pseudonymizer`` alone choose one by a flag."""
    users = [p for p in PACKAGE.rglob("*.py") if touches(p, "langchain_dp.integrations")]
    choose = PACKAGE / "rapt" / "pseudonyms" / "runnable.py"
    assert not [path for path in users if path.parent.name != "cli" and path != choose]
    top = [node for node in ast.parse(choose.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    assert not [node for node in top if "integrations" in (node.module or "")]


def test_model_libraries_stay_in_integrations_and_where_models_are_trained() -> None:
    """If it breaks, importing the package pulls in a model library."""
    trained = set(files(*TRAINED))
    users = [(p, m) for p in PACKAGE.rglob("*.py") for m in MODELS if touches(p, m)]
    assert not [(path, model) for path, model in users if path not in trained or model not in ON_TORCH]


def test_an_adapter_imports_ports_errors_and_one_third_party() -> None:
    """If it breaks, an integration reaches into the private machinery."""
    assert {name for name in imports(PACKAGE / "redact.py") if "langchain_dp" in name} <= {
        f"langchain_dp.errors{name}" for name in ("", ".LangChainDPError", ".ModelUnavailable", ".PrivateDataError")
    }
    util = {f"langchain_dp._util.{name}" for name in ("extras", "machine", "validate")}
    allowed = {"langchain_dp.ports", "langchain_dp.errors", "langchain_dp.redact", *util}
    for path in (ROOT / "integrations").rglob("*.py"):
        ours = {name for name in imports(path) if name.startswith("langchain_dp.") and ".integrations" not in name}
        outside = {name for name in ours if not any(name == a or name.startswith(f"{a}.") for a in allowed)}
        assert not outside, (path.name, outside)


def test_plans_do_no_io() -> None:
    """If it breaks, sync and async could drift apart: the plan of a release must be driven from outside."""
    forbidden = {"asyncio", "langchain_core", "langchain_dp.isolation", "langchain_dp.accounting.ledger"}
    for name in ("icl/subset_prompts.py", "opt/plan.py", "ensemble/subsets.py"):
        assert not [bad for bad in forbidden if touches(PACKAGE / name, bad)]
