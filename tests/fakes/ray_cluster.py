"""A small cluster of Ray on this machine, whose workers find the tests' fakes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """Two workers; the test is skipped where Ray is not installed."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'langchain-dp[ray]'")
    pytest.importorskip("ray.data", reason="ray is there without ray[data]")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent.parent)}},
    )
    yield ray
    ray.shutdown()
