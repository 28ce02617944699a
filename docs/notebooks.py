"""Puts the cookbook into the site: each notebook becomes a page of Markdown, with the outputs it was saved with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

COOKBOOK = Path(__file__).parent.parent / "cookbook"
OUTSIDE = re.compile(r"\]\((?:\.\./)((?:\.\./)*)cookbook/([\w./-]+)")
"""A link from a page to the cookbook, which lies beside docs/ in the repository and inside of it on the site."""
TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, and the pictures."""
    for path in sorted(COOKBOOK.glob("[0-9]*.ipynb")):
        text, pictures = page(path)
        files.append(File.generated(config, f"cookbook/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"cookbook/{name}", content=content))
    for path in sorted((COOKBOOK / "pictures").glob("*.svg")):
        files.append(File.generated(config, f"cookbook/pictures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the cookbook lead to its pages."""
    return OUTSIDE.sub(lambda match: f"]({match[1]}cookbook/{re.sub('ipynb$', 'md', match[2])}", markdown)


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\((\d\d_\w+)\.ipynb", r"](\1.md", source))
            continue
        parts.append(fenced(source, "python"))
        for kind, content in outputs(cell):
            if kind == "text":
                parts.append(fenced(content, "text"))
                continue
            name = f"{path.stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode(content)
            parts.append(f"![Picture {len(pictures)}]({name})")
    return "\n\n".join(parts) + "\n", pictures


def outputs(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Outputs of a cell, in order, as ("text" or "picture", content)."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            yield "picture", "".join(data["image/png"])
        else:
            yield "text", TERMINAL.sub("", "".join(output.get("text", data.get("text/plain", ""))))


def fenced(text: str, language: str) -> str:
    """A block of code, behind a fence longer than any inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
