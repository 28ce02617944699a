"""The reference under docs/: it builds strictly, holds every public name, and what it shows can be read."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def loaded(name: str) -> ModuleType:
    """A script of docs/, under a name that nobody else uses."""
    spec = importlib.util.spec_from_file_location(f"reference_{name}", DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built reference."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Documentation built" in built.stderr, "a quiet build counts no warnings"
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, laid out as they are installed."""
    folder = tmp_path_factory.mktemp("sources")
    loaded("hooks").stage(folder)
    return folder


def _copy(source: Path, target: Path, pattern: str) -> None:
    for path in source.rglob(pattern):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())


def test_the_reference_builds_strictly(site: Path) -> None:
    """If it breaks, a reference between docstrings or pages is broken, or a public name is not explained."""
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    notebooks = {f"cookbook/{path.stem}" for path in (ROOT / "cookbook").glob("[0-9]*.ipynb")}
    written = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert pages - {"404", "search"} == written | notebooks


def test_no_page_shows_markup_or_loads_from_elsewhere(site: Path) -> None:
    """If it breaks, readers see roles or backticks instead of text, or are told to a third party."""
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        if page.parent.name == "cookbook":  # what a notebook runs and prints is no markup
            html = re.sub(r"(?s)<pre.*?</pre>", "", html)
        text = re.sub(r"<[^>]+>", "", html)
        left = re.findall(r":(?:func|class|meth|mod|attr|data):`|``|\w\]\[\w|(?m:^Args:$)|<!-- commands", text)
        assert not left, page
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//|<link[^>]*href=\"(?:https?:)?//", text)


def test_arguments_errors_and_guarantees_are_rendered(site: Path) -> None:
    """If it breaks, the reference shows a docstring as a lump of text."""
    page = (site / "reference" / "icl.html").read_text(encoding="utf-8")
    classifier = page[page.index('id="langchain_dp.icl.DPICLClassifier"') :]
    classifier = classifier[: classifier.index('id="langchain_dp.icl.DPICLClassifier.invoke"')]
    assert re.search(r"Parameters:.*max_queries.*Number of releases.*Raises:.*errors\.html#", classifier, re.DOTALL)
    assert re.search(r'<details class="formal-guarantee"[^>]*>.*differentially private', classifier, re.DOTALL)


def test_the_page_of_the_command_line_has_every_command(site: Path) -> None:
    """If it breaks, a command has no help text in the reference."""
    from langchain_dp import cli

    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for command in cli.COMMANDS:
        assert f"Usage: langchain-dp {command.path}" in page


def test_public_names_are_those_of_the_running_package(sources: Path) -> None:
    """If it breaks, the check of completeness reads another list of public names than users can import."""
    complete = loaded("complete")
    package = complete.load(sources)
    for room in complete.ROOMS:
        module = importlib.import_module(room)
        names = complete.public_names(complete.module_of(package, room))
        assert names
        assert names == list(getattr(module, "__all__", names)), room
        assert all(hasattr(module, name) for name in names), room


def test_every_package_with_public_names_is_a_room() -> None:
    """If it breaks, a package could promise names that no page has to show."""
    complete = loaded("complete")
    packages = [
        *(ROOT / "langchain_dp").rglob("__init__.py"),
        *(ROOT / "integrations").rglob("[a-z]*.py"),
        *(ROOT / "integrations").rglob("__init__.py"),
    ]
    promised = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in packages
        if "\n__all__ = " in path.read_text(encoding="utf-8")
    }
    rooms = {name.removeprefix("langchain_dp.") if "integrations" in name else name for name in complete.ROOMS}
    assert promised <= rooms


FAULTS = [  # file, what stands there, what is put there instead, and what is said then
    ("reference/icl.md", "::: langchain_dp.icl.ChatDPICL\n", "", "langchain_dp.icl.ChatDPICL is public and in no page"),
    ("reference/opt.md", "opt.load_prompt", "opt.lead_prompt", "opt.lead_prompt, which is not public"),
    (
        "langchain_dp/accounting/__init__.py",
        '"epsilon",',
        '"epsilon", "delta",',
        "langchain_dp.accounting.delta is public and",
    ),
    ("langchain_dp/audit/pairs.py", "        other: Records", "        others: Records", "does not explain other."),
    ("langchain_dp/icl/release.py", '"""A released label', '_ = """A released label', "DPAnswer has no docstring"),
]


def test_what_is_left_out_is_found(sources: Path, tmp_path: Path) -> None:
    """If it breaks, a name may be missing from the reference, or unexplained, and the build still passes."""
    pages, package = tmp_path / "docs", tmp_path / "sources"
    _copy(DOCS, pages, "*.md")
    _copy(sources, package, "*.py")
    for file, before, after, _ in FAULTS:
        place = (pages if file.endswith(".md") else package) / file
        text = place.read_text(encoding="utf-8")
        assert before in text
        place.write_text(text.replace(before, after), encoding="utf-8")
    problems = list(loaded("complete").problems(package, pages))
    for *_, told in FAULTS:
        assert any(told in problem for problem in problems), (told, problems)
