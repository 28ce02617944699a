"""Puts the originals back where placeholders stand: the last step of a reversible chain, inside the trust boundary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.placeholders import PlaceholderMap

WITHHELD = "<withheld: the output of a restorer>"


class Restorer(Runnable[Any, Any]):
    """Restores what a sanitizer's placeholders stand for. Its own run shows callbacks what it is given only.

    The run around it, of the whole chain, shows the outcome all the same: use ``with private_run():``.
    A stream is gathered first: a placeholder may be cut anywhere.

    Args:
        placeholders: The map of the sanitizer.
    """

    name = "Restorer"

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders

    def restore(self, value: Any) -> Any:
        """Return a copy of a str, messages, a prompt value or documents with the originals put back.

        Raises:
            InvalidParameter: Another type.
        """
        if isinstance(value, str):
            return self._map.restore(value)
        if isinstance(value, BaseMessage):
            return self._message(value)
        if isinstance(value, Document):
            metadata = self._all(value.metadata)
            return Document(page_content=self._map.restore(value.page_content), metadata=metadata, id=value.id)
        if isinstance(value, StringPromptValue):
            return StringPromptValue(text=self._map.restore(value.text))
        if isinstance(value, PromptValue):
            return ChatPromptValue(messages=[self._message(message) for message in value.to_messages()])
        if isinstance(value, list):
            return [self.restore(one) for one in value]
        raise InvalidParameter(
            f"Expected a str, messages, a prompt value or documents to restore, not {type(value).__name__}."
        )

    def _message(self, message: BaseMessage) -> BaseMessage:
        changed: dict[str, Any] = {"content": self._all(message.content)}
        if isinstance(message, AIMessage):
            changed["tool_calls"] = [{**call, "args": self._all(call["args"])} for call in message.tool_calls]
        return message.model_copy(update=changed)

    def _all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._map.restore(value)
        if isinstance(value, dict):
            return {key: self._all(inner) for key, inner in value.items()}
        return [self._all(inner) for inner in value] if isinstance(value, list) else value

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Restore one value."""
        held: list[Any] = []

        def run(value: Any) -> str:
            held.append(self.restore(value))
            return WITHHELD

        self._call_with_config(run, input, config)
        return held[0]

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Restore one value."""
        held: list[Any] = []

        async def run(value: Any) -> str:
            held.append(self.restore(value))
            return WITHHELD

        await self._acall_with_config(run, input, config)
        return held[0]

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        """Restore one value and yield it."""
        yield self.invoke(input, config)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Restore one value and yield it."""
        yield await self.ainvoke(input, config)
