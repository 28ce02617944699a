"""The built package, and an environment that holds it with its dependencies and no extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from package_checks.building import build, environment, install
from package_checks.extras import installed_with, requirements

pytest.importorskip("build", reason="build is not installed")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist."""
    return build(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def bare(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel and its dependencies. They are linked: nothing is downloaded."""
    there = [found for found in installed_with(requirements()).values() if found is not None]
    python = environment(tmp_path_factory.mktemp("bare"), there)
    install(python, built[0])
    return python
