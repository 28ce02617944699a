"""Links of the README, its companions, the reference and the notebooks lead somewhere. No network: links that leave the
repository are only parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "cookbook").glob("*.ipynb")),
]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*[\"'])?\s*\)")
DEFINED = re.compile(r"(?m)^\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
TAG = re.compile(r"<(?:a|img)\b[^>]*\b(?:href|src)=[\"']([^\"']+)[\"']")
BARE = re.compile(r"<(https?://[^>\s]+)>")
FENCE = re.compile(r"(?ms)^ *(```+|~~~+).*?^ *\1")
PATH = re.compile(r"`((?:\.ci|cookbook|docs|integrations|langchain_dp|tests)/[\w./*-]*)`")
COMMAND = re.compile(r"\bmake ((?:[a-z]+-)*[a-z]+)")


def text_of(path: Path) -> str:
    """Markdown of a file; of a notebook, that of its cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def links(text: str) -> Iterator[str]:
    """Targets, without those in code."""
    prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "code", FENCE.sub("", text), flags=re.DOTALL)
    for pattern in (LINK, DEFINED, TAG, BARE):
        yield from pattern.findall(prose)


def anchors(path: Path) -> set[str]:
    """Names that a link into a file of Markdown may have after the hash: headings as hosts of repositories name them,
    and names that are given.
    """
    prose = FENCE.sub("", text_of(path))
    found: set[str] = set(re.findall(r"\b(?:id|name)=[\"']([^\"']+)[\"']", prose))
    for title in re.findall(r"(?m)^#{1,6}\s+(.*?)\s*#*$", prose):
        given = re.search(r"\{\s*#([\w.-]+)\s*\}", title)
        if given:
            found.add(given[1])
            continue
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (named := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(named)
    return found


def problem(link: str, path: Path) -> str | None:
    """Why a link of a file leads nowhere, or None."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no address"
    if parts.scheme or parts.netloc:
        return None if parts.scheme in {"https", "http"} and "." in parts.netloc else "no address of the web"
    if parts.path.startswith("/"):
        return "absolute: give a path relative to the file"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return "no such file"
    if not target.is_relative_to(ROOT):
        return "outside of the repository"
    if parts.fragment and (target.suffix not in {".md", ".ipynb"} or parts.fragment not in anchors(target)):
        return "no such heading"
    return None


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    """If it breaks, a reader clicks and finds nothing."""
    assert not {link: why for link in links(text_of(path)) if (why := problem(link, path))}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_path_and_target_that_is_named_exists(path: Path) -> None:
    """If it breaks, a text sends its reader to a file or a `make` target that is not there."""
    text = text_of(path)
    assert not [named for named in PATH.findall(text) if not list(ROOT.glob(named.rstrip("/")))]
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    blocks = " ".join(block[0] for block in FENCE.finditer(text) if not block[0].lstrip().startswith("```python"))
    code = blocks + " " + " ".join(re.findall(r"`([^`\n]+)`", FENCE.sub("", text)))
    assert set(COMMAND.findall(re.sub(r"(?m) #.*$", "", code))) <= targets


def test_the_readme_has_links_and_the_index_those_of_all_how_to_pages() -> None:
    """If it breaks, the tests above see no links where there are some, or a page is found by chance alone."""
    assert {"CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"} <= set(links(text_of(ROOT / "README.md")))
    assert sum(1 for path in TEXTS for _ in links(text_of(path))) > 20
    docs = ROOT / "docs"
    listed = set(links((docs / "index.md").read_text(encoding="utf-8")))
    assert {path.relative_to(docs).as_posix() for path in (docs / "how-to").glob("*.md")} <= listed


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](README.md#two-words) [b](sub/c.md) ![p](p%20q.png \"t\") <a href='README.md'>", []),
        ("[a](README.md#two-word)", ["README.md#two-word"]),
        ("[a\nb](sub/c.md#again-1), [c](sub/c.md#again-2)", ["sub/c.md#again-2"]),
        ("[a](sub/d.md) and ![b](p.png)", ["sub/d.md", "p.png"]),
        ("[r]\n\n[r]: missing.md", ["missing.md"]),
        ("<img src=\"missing.svg\">", ["missing.svg"]),
        ("`[a](missing.md)`\n\n```\n[b](missing.md)\n```\n", []),
        ("[a](https://example.org/x#y) [b](https://nowhere) [c](ftp://example.org)", ["https://nowhere", "ftp://example.org"]),
        ("[a](/README.md) [b](../../etc/passwd)", ["/README.md", "../../etc/passwd"]),
    ],
)  # fmt: skip
def test_a_broken_link_is_seen(text: str, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, links may be broken and the tests above still pass."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "README.md").write_text(f"# Two words\n\n{text}", encoding="utf-8")
    (tmp_path / "sub" / "c.md").write_text("# Again\n\n```\n# Not\n```\n\n## `Again`\n", encoding="utf-8")
    (tmp_path / "p q.png").touch()
    path = tmp_path / "README.md"
    assert [link for link in links(text_of(path)) if problem(link, path)] == wrong
