"""The ways in which LangChain calls a Runnable, each with one input and a config, and what a test does with streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any


async def gathered(stream: AsyncIterator[Any]) -> list[Any]:
    """All parts of a stream."""
    return [part async for part in stream]


async def streamed(values: Iterable[Any]) -> AsyncIterator[Any]:
    """A stream of these values."""
    for value in values:
        yield value


STYLES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "invoke": lambda chain, given, config: chain.invoke(given, config),
    "ainvoke": lambda chain, given, config: asyncio.run(chain.ainvoke(given, config)),
    "batch": lambda chain, given, config: chain.batch([given], config)[0],
    "abatch": lambda chain, given, config: asyncio.run(chain.abatch([given], config))[0],
    "batch_as_completed": lambda chain, given, config: next(chain.batch_as_completed([given], config))[1],
    "stream": lambda chain, given, config: list(chain.stream(given, config))[-1],
    "astream": lambda chain, given, config: asyncio.run(gathered(chain.astream(given, config)))[-1],
    "transform": lambda chain, given, config: list(chain.transform(iter([given]), config))[-1],
    "atransform": lambda chain, given, config: asyncio.run(gathered(chain.atransform(streamed([given]), config)))[-1],
}
"""Each returns what came out for the input."""
