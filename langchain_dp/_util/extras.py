"""Errors about missing optional packages, and lazy public names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_dp.errors import MissingExtra


def install_hint(extra: str) -> str:
    """There is no index release yet, so the extra is that of a checkout."""
    return f"pip install '.[{extra}]' in a checkout of langchain-dp"


def missing_extra(extra: str, *packages: str, why: str = "") -> MissingExtra:
    several, one = ("s", "them") if len(packages) > 1 else ("", "it")
    return MissingExtra(
        f"Expected the package{several} {' and '.join(packages)}{why}. Install {one} with: {install_hint(extra)}."
    )


@contextmanager
def needs(extra: str, *packages: str, why: str = "") -> Iterator[None]:
    """Turn import errors into :func:`missing_extra`."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(extra, *packages, why=why) from (None if isinstance(error, ModuleNotFoundError) else error)


def lazy_exports(
    package: str, modules: Mapping[str, Collection[str]], *, extra: str = "", needs: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(home[name], package), name)
        except ModuleNotFoundError as error:
            absent = str(error.name).partition(".")[0]
            if absent not in needs:
                raise
            raise missing_extra(extra, absent, why=f" for {name}") from None
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return load, names
