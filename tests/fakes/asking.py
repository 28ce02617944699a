"""Every way to ask a chain or an isolated model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fakes.styles import gathered

BOTH = pytest.mark.parametrize("how", ["sync", "async"])


def ask(how: str, quiet: Any, prompts: list[Any], **options: Any) -> list[Any]:
    """What an isolated model answers."""
    return quiet.batch(prompts, **options) if how == "sync" else asyncio.run(quiet.abatch(prompts, **options))  # type: ignore[no-any-return]


def text(answer: Any) -> Any:
    """A message or a string as a string; None stays."""
    return getattr(answer, "content", answer)


STYLES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "invoke": lambda c, given, config: c.invoke(given, config),
    "batch": lambda c, given, config: c.batch([given] * 3, config),
    "stream": lambda c, given, config: list(c.stream(given, config)),
    "ainvoke": lambda c, given, config: asyncio.run(c.ainvoke(given, config)),
    "abatch": lambda c, given, config: asyncio.run(c.abatch([given] * 3, config)),
    "astream": lambda c, given, config: asyncio.run(gathered(c.astream(given, config))),
    "astream_events": lambda c, given, config: asyncio.run(gathered(c.astream_events(given, config, version="v2"))),
    "astream_log": lambda c, given, config: asyncio.run(gathered(c.astream_log(given, config))),
}
"""Each call style of a c."""
