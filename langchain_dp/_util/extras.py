"""Packages that only an extra brings: one place that says which, and how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
