"""What is in the wheel and the sdist, and that the wheel works where nothing else of the checkout is."""

from __future__ import annotations

import email
import json
import tarfile
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from package_checks import importing
from package_checks.building import run
from package_checks.extras import PROJECT, PROMISES, ROOT, installed_with, requirements

DISTRIBUTIONS = packages_distributions()


def sources() -> set[str]:
    """Files of the packages, as they are installed."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "langchain_dp").rglob("*.py")}
    found |= {f"langchain_dp/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "integrations").rglob("*.py")}
    samples = {f"langchain_dp/sample/{path.name}" for path in (ROOT / "langchain_dp" / "sample").glob("*.jsonl")}
    assert samples
    samples |= {f"langchain_dp/aggregate/{name}" for name in ("curves.json", "public_texts.txt", "topics.txt")}
    pages = {
        f"langchain_dp/{name}"
        for name in ("aggregate/survey_page.html.j2", "audit/report/page.html.j2", "audit/watch/live.js")
    }
    return found | samples | pages | {"langchain_dp/py.typed"}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """If it breaks, an installed package lacks a module, its types or its sample, or brings files of the checkout."""
    names = set(zipfile.ZipFile(built[0]).namelist())
    told = {name for name in names if ".dist-info/" in name}
    assert names - told == sources()
    assert {name.partition(".dist-info/")[2] for name in told} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt",
    }  # fmt: skip


def test_the_sdist_holds_what_a_build_needs(built: tuple[Path, Path]) -> None:
    """If it breaks, the sdist cannot be built from, or carries half of the tests and the notebooks."""
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
    packaged = {name.removeprefix("langchain_dp/") if "/integrations/" in name else name for name in sources()}
    told = {name for name in names if ".egg-info/" in name}
    assert names - told == packaged | {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg",
    }  # fmt: skip


def test_the_metadata_say_what_pyproject_says(built: tuple[Path, Path]) -> None:
    """If it breaks, installers see other dependencies, extras or commands than the project names."""
    with zipfile.ZipFile(built[0]) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        told = email.message_from_bytes(wheel.read(path))
        commands = wheel.read(path.replace("METADATA", "entry_points.txt")).decode()
    assert told["Name"] == PROJECT["name"]
    assert told["Version"] == PROJECT["version"]
    assert told["License-Expression"] == "Apache-2.0"
    assert told.get_all("License-File") == ["LICENSE"]
    assert set(told.get_all("Provides-Extra") or []) == set(PROJECT["optional-dependencies"])
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert "langchain-dp = langchain_dp.cli:main" in commands


def test_the_wheel_works_without_extras(bare: Path, tmp_path: Path) -> None:
    """If it breaks, `pip install langchain-dp` alone gives a package that cannot be imported."""
    promised = json.dumps(list(PROMISES[""].imports))
    told = json.loads(run(str(bare), "-I", importing.__file__, promised, cwd=tmp_path))
    assert Path(told["file"]).is_relative_to(bare.parent.parent), "imported from elsewhere"
    assert told["missing"] == []
    assert set(told["modules"]) == {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sources()
        if name.endswith(".py") and not name.endswith("__main__.py")
    } - {"langchain_dp"}
    brought = {name for extra in PROMISES for name in installed_with(requirements(extra))}
    lacking = {module: lacks for module, lacks in told["modules"].items() if lacks}
    for lacks in {lacks.partition(".")[0] for lacks in lacking.values()}:
        assert {canonicalize_name(name) for name in DISTRIBUTIONS.get(lacks, [lacks])} & brought, lacks
    watch = (f"langchain_dp.audit.watch.{name}" for name in ("live", "otel", "prometheus"))
    adapters = ("langchain_dp.rapt", "langchain_dp.integrations", "langchain_dp.accounting.store.postgres", *watch)
    assert not [module for module in lacking if not module.startswith(adapters)]


def test_the_sample_and_the_command_are_installed(bare: Path, tmp_path: Path) -> None:
    """If it breaks, the quickstart's data or the command `langchain-dp` are missing from an installation."""
    code = "from langchain_dp.sample import load; print(*map(len, load()))"
    assert run(str(bare), "-I", "-c", code, cwd=tmp_path).split() == ["640", "80"]
    assert "Usage: langchain-dp audit" in run(str(bare.with_name("langchain-dp")), "audit", "--help", cwd=tmp_path)


def test_a_missing_extra_is_one_line_at_the_command(bare: Path, tmp_path: Path) -> None:
    """If it breaks, who runs a command without its extra gets a traceback, or no word of what to install."""
    with pytest.raises(RuntimeError, match=r"gave 1:\n.*\.\[rapt\].*\n?$") as refused:
        run(str(bare.with_name("langchain-dp")), "plan", "rapt", "--target-replacement", "0.5", cwd=tmp_path)
    assert "Traceback" not in str(refused.value)
