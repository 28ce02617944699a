"""An agent whose model never sees a raw word: the whole history of every model call is sanitised on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_dp.errors import InvalidParameter, MissingExtra
from langchain_dp.rapt.runnable import RAPTSanitizer

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langgraph.types import TracePolicy
except ImportError:
    raise MissingExtra(
        "Expected the package langchain, whose agents take middleware. "
        "Install it with: pip install 'langchain-dp[agents]'."
    ) from None

User = str | Callable[[ModelRequest[Any]], str | None] | None


def _nothing(payload: Any) -> dict[str, str]:
    return {"payload": "<withheld: the input of a sanitizer>"}


class RAPTMiddleware(AgentMiddleware[Any, Any, Any]):
    """Sanitises every message of every model call of an agent, with tool calls and tool results, not only the newest.

    The agent's state keeps the raw messages: tools and the user work with them. What was sanitised in an earlier turn
    is given out again, so that a growing history costs each message once. Put it last in the list of middleware: what
    an inner one adds to the request would pass it by.

    The graph's own runs, from the root on, show callbacks and tracers the raw state: call the agent in
    ``with private_run():``.

    Args:
        sanitizer: Sanitises messages. Its ``system`` option also rules over the agent's system prompt.
        user: Whose account is charged: a name, or a function of the request, as of
            ``request.runtime.context``; None for nobody's.

    Raises:
        InvalidParameter: ``sanitizer`` is none, or keeps nothing for reuse, so that every turn would pay for all.

    Formal guarantee:
        That of the sanitizer, for everything that the model is told of the messages. What tools do with arguments that
        the model made up from sanitised text is outside of it, and so are tool and schema descriptions.
    """

    trace_policy = TracePolicy(process_inputs=_nothing)

    def __init__(self, sanitizer: RAPTSanitizer, *, user: User = None) -> None:
        super().__init__()
        if not isinstance(sanitizer, RAPTSanitizer):
            raise InvalidParameter(f"Expected sanitizer of type {type(sanitizer).__name__} to be a RAPTSanitizer.")
        if not (user is None or isinstance(user, str) or callable(user)):
            raise InvalidParameter(f"Expected user of type {type(user).__name__} to be a name, or a function.")
        self.sanitizer = sanitizer
        self._user = user

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with sanitised messages."""
        return handler(self._sanitised(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Async twin of :meth:`wrap_model_call`."""
        return await handler(await asyncio.to_thread(self._sanitised, request))

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
