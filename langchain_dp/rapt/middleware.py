"""An agent whose model never sees a raw word: the whole history of every model call is sanitised on its way."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from langchain_core.messages import AIMessage

from langchain_dp import _validate
from langchain_dp.errors import InvalidParameter, MissingExtra
from langchain_dp.rapt.runnable import RAPTSanitizer

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langgraph.types import TracePolicy
except ImportError:
    raise MissingExtra(
        "Expected the package langchain, 1.4 or newer, whose agents take middleware. "
        "Install it with: pip install 'langchain-dp[agents]'."
    ) from None

User = str | Callable[[ModelRequest[Any]], str | None] | None


def _nothing(payload: Any) -> dict[str, str]:
    return {"payload": "<withheld: the input of a sanitizer>"}


class RAPTMiddleware(AgentMiddleware[Any, Any, Any]):
    """Sanitises the messages of every model call of an agent, with tool calls and tool results, not only the newest.

    Of system messages and media the sanitizer's ``system`` and ``media`` say whether they pass in clear, as they do by
    default.

    The agent's state keeps the raw messages: tools and the user work with them. What was sanitised in an earlier turn
    is given out again, so that a growing history costs each message once. Put it last in the list of middleware: what
    an inner one adds to the request would pass it by.

    The graph's own runs, from the root on, show callbacks and tracers the raw state: call the agent in
    ``with private_run():``.

    Args:
        sanitizer: Sanitises messages. Its ``system`` option also rules over the agent's system prompt.
        user: Whose account is charged: a name, or a function of the request, as of
            ``request.runtime.context``; None for nobody's.
        replies: "pass": what the model itself answered, from sanitised text, passes in later turns as it is and costs
            nothing, as long as nobody changes it; "sanitize": it is treated like all other messages.

    Raises:
        InvalidParameter: A value is of another type.

    Formal guarantee:
        That of the sanitizer, for everything that the model is told of the messages. What tools do with arguments that
        the model made up from sanitised text is outside of it, and so are tool and schema descriptions.
    """

    trace_policy = TracePolicy(process_inputs=_nothing)

    def __init__(
        self, sanitizer: RAPTSanitizer, *, user: User = None, replies: Literal["pass", "sanitize"] = "pass"
    ) -> None:
        super().__init__()
        if not isinstance(sanitizer, RAPTSanitizer):
            raise InvalidParameter(f"Expected sanitizer of type {type(sanitizer).__name__} to be a RAPTSanitizer.")
        if not (user is None or isinstance(user, str) or callable(user)):
            raise InvalidParameter(f"Expected user of type {type(user).__name__} to be a name, or a function.")
        self.sanitizer = sanitizer
        self._user = user
        self._pass_replies = _validate.one_of("replies", replies, ("pass", "sanitize")) == "pass"

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with sanitised messages."""
        return self._marked(handler(self._sanitised(request)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Async twin of :meth:`wrap_model_call`."""
        return self._marked(await handler(await asyncio.to_thread(self._sanitised, request)))

    def _marked(self, response: ModelResponse[Any]) -> ModelResponse[Any]:
        if not self._pass_replies:
            return response
        mark = self.sanitizer.mark_reply
        result = [mark(message) if isinstance(message, AIMessage) else message for message in response.result]
        return dataclasses.replace(response, result=result)

    def _sanitised(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        user = self._user(request) if callable(self._user) else self._user
        system = [] if request.system_message is None else [request.system_message]
        # In one go: what is new in a turn is charged together, or refused together.
        messages = self.sanitizer.sanitize([*system, *request.messages], user=user)
        told = messages[len(system) :]
        # The state holds the raw messages: inner middleware and the handler must not be handed it.
        state = {**request.state, "messages": told}
        changed: dict[str, Any] = {"messages": told, "state": state}
        if system:
            changed["system_message"] = messages[0]
        return request.override(**changed)
