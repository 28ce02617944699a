"""What makes the tests fast: composition, a pure function, is worked out once, and files live in memory."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_dp.accounting import _account, _plan
from langchain_dp.opt import reservation

_MEMORY = "/dev/shm"


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which answers a question that it has heard before from memory."""

    @functools.cache
    def known(args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
        return function(*args, **dict(kwargs))

    @functools.wraps(function)
    def ask(*args: Any, **kwargs: Any) -> Any:
        frozen = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
        return known(frozen, tuple(sorted(kwargs.items(), key=str)))

    return ask


@pytest.fixture(autouse=True, scope="session")
def composed_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_account, "composed_epsilon", remembered(_account.composed_epsilon))
        patch.setattr(reservation, "epsilon", remembered(reservation.epsilon))
        patch.setattr(reservation, "calibrate_limited_domain", remembered(reservation.calibrate_limited_domain))
        for module in (_account, _plan):
            patch.setattr(module, "event_key", remembered(_account.event_key))
        yield


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what is synced here is read back, but no test cuts the power."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        yield Path(folder)
