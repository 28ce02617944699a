"""What is said where a package of an extra is missing, or broken."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from langchain_dp._util.extras import needs
from langchain_dp.errors import MissingExtra


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    """If it breaks, nobody is told what to install."""
    with (
        pytest.raises(MissingExtra) as caught,
        needs("attacks", "torch", "transformers", why=" for vectors"),
    ):
        importlib.import_module("no_such_package")
    assert str(caught.value) == (
        "Expected the packages torch and transformers for vectors. "
        "Install them with: pip install '.[attacks]' in a checkout of langchain-dp."
    )
    assert caught.value.__cause__ is None


def test_a_package_that_is_there_and_broken_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a library that lacks one of its own files looks as if it were not installed."""
    (tmp_path / "half_a_package.py").write_text("raise ImportError('libhalf.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match="package half for") as caught, needs("local", "half", why=" for two"):
        importlib.import_module("half_a_package")
    assert "libhalf.so" in str(caught.value.__cause__)
