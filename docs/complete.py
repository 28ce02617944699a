"""Check that the reference has every public name, and every name an explanation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOMS = (
    "langchain_dp",
    "langchain_dp.accounting",
    "langchain_dp.aggregate",
    "langchain_dp.attacks",
    "langchain_dp.audit",
    "langchain_dp.audit.report",
    "langchain_dp.audit.watch",
    "langchain_dp.errors",
    "langchain_dp.icl",
    "langchain_dp.integrations.gliner",
    "langchain_dp.integrations.llama_cpp",
    "langchain_dp.integrations.openai",
    "langchain_dp.integrations.presidio",
    "langchain_dp.integrations.ray",
    "langchain_dp.integrations.transformers",
    "langchain_dp.mechanisms",
    "langchain_dp.opt",
    "langchain_dp.ports",
    "langchain_dp.rapt",
    "langchain_dp.rapt.middleware",
    "langchain_dp.rapt.pseudonyms",
    "langchain_dp.rapt.tuning",
    "langchain_dp.synth",
    "langchain_dp.sample",
)
"""Modules that users import from. Without ``__all__``, what a module defines under a public name is public."""

SECTION = re.compile(r"(?m)^(?:::: |#+ .*\{ ?#)(langchain_dp[\w.]*)")
"""A thing that is rendered, or a heading that stands for one."""

MENTIONED = re.compile(r"``(\w+)``")
LISTS = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
BY_NAME = {"self", "cls", "not_private_seed"}
"""Common knowledge: a seed makes draws reproducible, and the result is not private."""
VARIADIC = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)

HANDED_OUT = {"langchain_dp.accounting._plan.LedgerPlan", "langchain_dp.icl.baseline.NonPrivateICL"}
"""Classes that users are given and do not make: their parameters are no concern of theirs. So are errors."""


def problems(sources: Path, pages: Path) -> Iterator[str]:
    """One sentence for each thing that is wrong.

    Args:
        sources: Folder that holds ``langchain_dp`` as it is installed.
        pages: Folder of the pages.
    """
    package = load(sources)
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(pages.rglob("*.md"))}
    written = {name: page for page, text in texts.items() for name in SECTION.findall(text)}
    homes: dict[str, str] = {}
    for room in ROOMS:
        for name in public_names(module_of(package, room)):
            homes[f"{room}.{name}"] = home(module_of(package, room), name)
    shown = {homes.get(name, name) for name in written}
    yield from (f"{name} is public and in no page of {pages.name}/." for name in homes if homes[name] not in shown)
    known = {*homes, *homes.values()}
    for name, page in written.items():
        if name not in known and name not in rooms_of(package):
            yield f"{page.name} has a section for {name}, which is not public."
    for path in sorted(set(homes.values())):
        thing = find(package, path)
        if thing is None:
            continue  # of another package
        yield from unexplained(thing)


def rooms_of(package: Any) -> set[str]:
    """Full names of all packages and modules without an underscore: a heading may stand for one."""
    todo, found = [package], set()
    while todo:
        module = todo.pop()
        found.add(str(module.path))
        own = {name: inner for name, inner in module.members.items() if not inner.is_alias and inner.is_module}
        todo += [inner for name, inner in own.items() if not name.startswith("_")]
    return found


def load(sources: Path) -> Any:
    """The package, read and not imported."""
    return griffe.load(
        "langchain_dp",
        search_paths=[sources],
        try_relative_path=False,
        docstring_parser="google",
        extensions=griffe.load_extensions(str(Path(__file__).with_name("roles.py"))),
    )


def module_of(package: Any, path: str) -> Any:
    """A module by its full name, though its package may have a function of the same name."""
    place = package
    for part in path.split(".")[1:]:
        place = place.modules[part]
    return place


def public_names(module: Any) -> list[str]:
    """Names that a module promises."""
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [
        name
        for name, thing in module.members.items()
        if not name.startswith("_") and not thing.is_alias and not thing.is_module and explained(thing)
    ]


def explained(thing: Any) -> bool:
    """True if something without ``__all__`` means to be public: a constant without a docstring does not."""
    return bool(thing.is_class or thing.is_function or thing.docstring is not None)


def home(module: Any, name: str) -> str:
    """Full name of the place where a public name is defined."""
    imported = module.imports.get(name)
    if imported is None or imported == f"{module.path}.{name}":
        return f"{module.path}.{name}"
    parent, _, last = imported.rpartition(".")
    package = module.package
    if parent != package.path and not parent.startswith(f"{package.path}."):
        return f"{module.path}.{name}"
    return home(module_of(package, parent), last)


def find(package: Any, path: str) -> Any:
    """The object under a full name, or None if it comes from elsewhere."""
    parent, _, name = path.rpartition(".")
    thing = module_of(package, parent).members.get(name)
    return None if thing is None or thing.is_alias or thing.is_module else thing


def unexplained(thing: Any) -> Iterator[str]:
    """Parameters that the docstrings of a public thing leave out."""
    if thing.docstring is None:
        yield f"{thing.path} has no docstring."
        return
    callables = [thing] if thing.is_function else []
    if thing.is_class:
        if thing.path not in HANDED_OUT and thing.module.path != "langchain_dp.errors":
            yield from missing_parameters(thing)
        callables = [f for f in thing.functions.values() if not f.name.startswith("_") and not f.is_alias]
        for function in callables:
            if function.docstring is None:
                yield f"{function.path} has no docstring."
    for function in callables:
        if function.docstring is not None and thing.is_function:
            yield from missing_parameters(function)


def missing_parameters(thing: Any) -> Iterator[str]:
    """Parameters without an explanation; one sentence names them all."""
    told = set()
    for known in [thing, *(thing.mro() if thing.is_class else [])]:
        if known.docstring is not None:
            told |= set(MENTIONED.findall(known.docstring.value))
            for section in known.docstring.parsed:
                if section.kind in LISTS:
                    told |= {entry.name.lstrip("*") for entry in section.value}
    names = [p.name for p in thing.parameters if p.name not in BY_NAME and p.kind not in VARIADIC]
    left = [name for name in names if name not in told]
    if left:
        yield f"{thing.path} does not explain {', '.join(left)}."
