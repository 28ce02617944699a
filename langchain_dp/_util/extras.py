"""Packages that only an extra brings, and public names that are loaded when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_dp.errors import MissingExtra


def missing_extra(extra: str, *packages: str, why: str = "") -> MissingExtra:
    """The error about packages that are not installed.

    Args:
        extra: Extra that brings them.
        packages: Their names, as pip knows them.
        why: What they are for, as the sentence goes on after their names.
    """
    several, one = ("s", "them") if len(packages) > 1 else ("", "it")
    return MissingExtra(
        f"Expected the package{several} {' and '.join(packages)}{why}. "
        f"Install {one} with: pip install 'langchain-dp[{extra}]'."
    )


@contextmanager
def needs(extra: str, *packages: str, why: str = "") -> Iterator[None]:
    """Imports inside of it fail as :func:`missing_extra` says; one that is there and breaks stays as the cause."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(extra, *packages, why=why) from (None if isinstance(error, ModuleNotFoundError) else error)


def lazy_exports(
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
