"""A test of ledgers, once for each kind of place that they can lie in."""

from pathlib import Path

import pytest

on_both = pytest.mark.parametrize("place", ["file", "postgres"], indirect=True)
"""For tests with a ``place`` (``conftest.py``): in a file, and in a PostgreSQL database."""


def path_of(place: str) -> Path | str:
    """A path where it is a file; the URL where it is none."""
    return place if "://" in place else Path(place)
