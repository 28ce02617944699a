"""Reads the roles of docstrings (such as :func: before a name in backticks) as references between pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`(~?)([\w.]+)`")
LITERAL = re.compile(r"(?m)^(.*)::\n(?=\n[ ]{4,}\S)")
SOURCES = re.compile(r"(?ms)^References:\n.*?(?=^\S|\Z)")
FIELDS = re.compile(r"(?m)^Args:$")


class Roles(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Turn roles into references, literal blocks into code, lists of sources into lists, arguments into fields."""
        for thing in everything(pkg):
            if thing.docstring is None:
                continue
            text = ROLE.sub(lambda match, scope=thing: reference(match, scope), thing.docstring.value)
            if thing.is_class and makes_its_init(thing):
                text = FIELDS.sub("Attributes:", text)
            text = SOURCES.sub(lambda match: re.sub(r"(?m)^( +)(?=\[\d+\] )", r"\1- ", match[0]), text)
            thing.docstring.value = LITERAL.sub(lambda match: f"{match[1]}:\n" if match[1].strip() else "", text)


def everything(thing: Any) -> Iterator[Any]:
    """A module and all that is defined in it, at any depth."""
    yield thing
    for member in list(thing.members.values()):
        if not member.is_alias:
            yield from everything(member)


def reference(match: re.Match[str], scope: Any) -> str:
    """Markdown for a role."""
    short, written = match.groups()
    shown = written.rpartition(".")[2] if short else written
    return f"[`{shown}`][{target(written, scope)}]"


def target(written: str, scope: Any) -> str:
    """Full path of what a docstring names: a member of its class, of its module, of its package, else as it stands."""
    first, _, rest = written.partition(".")
    place = scope
    while place is not None:
        known = place.all_members if place.is_class else place.members
        if first in known:
            imported = place.is_module and known[first].is_alias
            path = known[first].target_path if imported else f"{place.path}.{first}"
            return f"{path}.{rest}" if rest else str(path)
        place = place.parent
    return written


def makes_its_init(thing: Any) -> bool:
    """True if the arguments of a class are its fields and its ``__init__`` is made by pydantic."""
    return not thing.parameters and any(str(base).endswith(("BaseModel", "BaseChatModel")) for base in thing.bases)
