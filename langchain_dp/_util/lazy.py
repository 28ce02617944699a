"""Public names that are loaded when they are first asked for: importing a package costs what is used of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from langchain_dp._util.extras import missing_extra


def lazily(
    package: str, home: Mapping[str, str], *, extra: str = "", needs: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its name.
        home: Public names, and the module that each is in; one that begins with a dot is inside of the package.
        extra: Extra that brings ``needs``.
        needs: Packages whose absence is reported as that extra's.

    Returns:
        The two functions. The first raises MissingExtra if one of ``needs`` is not installed, and AttributeError for
        other names.
    """

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
