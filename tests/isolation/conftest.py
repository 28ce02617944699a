"""What the tests of isolated calls have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_core.globals import set_debug, set_llm_cache


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No test leaves its global cache or debug mode to the next one."""
    yield
    set_llm_cache(None)
    set_debug(False)
