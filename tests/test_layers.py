"""Who may import whom. A reader sees the promise in the folders; this keeps them true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "langchain_dp"
MODELS = {"llama_cpp", "torch", "transformers", "peft", "openai", "langchain_openai", "langchain_community"}
TRAINED = ["rapt/tuning", "attacks"]  # what trains models of its own
ON_TORCH = {"torch", "transformers", "peft"}
PURE = [
    "accounting", "mechanisms", "records.py", "ensemble/partition.py", "ensemble/scheme.py", "ports.py", "errors.py",
    "redact.py", "_util/validate.py",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


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


def test_mechanisms_never_see_the_ledger() -> None:
    """If it breaks, a mechanism could decide about its own budget."""
    assert not [path for path in files("mechanisms") if touches(path, "langchain_dp.accounting")]


def test_the_package_never_imports_integrations() -> None:
    """If it breaks, the core needs a third party; only the command line may choose one."""
    users = [p for p in PACKAGE.rglob("*.py") if touches(p, "langchain_dp.integrations")]
    assert not [path for path in users if path.parent.name != "cli"]


def test_model_libraries_stay_in_integrations_and_where_models_are_trained() -> None:
    """If it breaks, importing the package pulls in a model library."""
    trained = set(files(*TRAINED))
    users = [(p, m) for p in PACKAGE.rglob("*.py") for m in MODELS if touches(p, m)]
    assert not [(path, model) for path, model in users if path not in trained or model not in ON_TORCH]


def test_an_adapter_imports_ports_errors_and_one_third_party() -> None:
    """If it breaks, an integration reaches into the private machinery."""
    assert {name for name in imports(PACKAGE / "redact.py") if "langchain_dp" in name} <= {
        f"langchain_dp.errors{name}" for name in ("", ".LangChainDPError", ".ModelUnavailable")
    }
    allowed = {"langchain_dp.ports", "langchain_dp.errors", "langchain_dp.redact", "langchain_dp._util.validate"}
    for path in (ROOT / "integrations").rglob("*.py"):
        ours = {name for name in imports(path) if name.startswith("langchain_dp")}
        outside = {name for name in ours if not any(name == a or name.startswith(f"{a}.") for a in allowed)}
        assert not outside, (path.name, outside)


def test_the_schemes_of_the_house_never_import_each_other() -> None:
    """If it breaks, one published system cannot be read without another."""
    rooms = ["icl", "opt", "rapt"]
    for room in rooms:
        for path in (PACKAGE / room).rglob("*.py"):
            assert not [other for other in rooms if other != room and touches(path, f"langchain_dp.{other}")]


def test_plans_do_no_io() -> None:
    """If it breaks, sync and async could drift apart: the plan of a release must be driven from outside."""
    forbidden = {"asyncio", "langchain_core", "langchain_dp.quiet", "langchain_dp.accounting.ledger"}
    for name in ("icl/votes.py", "icl/plan.py", "opt/plan.py", "opt/ensemble.py"):
        assert not [bad for bad in forbidden if touches(PACKAGE / name, bad)]
