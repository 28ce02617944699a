"""Sanitizes the history of every model call of an agent."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_dp._util import validate
from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt._shell import WITHHELD
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

with needs("agents", "langchain", why=", 1.4 or newer, whose agents take middleware"):
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langgraph.types import TracePolicy

__all__ = ["RAPTMiddleware"]

User = str | Callable[[ModelRequest[Any]], str | None] | None

_RAW_HOOKS = ("before_agent", "before_model", "after_model", "after_agent")
_REMEDY = "Give user=, a name or a function of the request, or a sanitizer without a limit."


def nothing(payload: Any) -> dict[str, str]:
    return {"payload": WITHHELD}


class RAPTMiddleware(AgentMiddleware[Any, Any, Any]):
    """Sanitizes all messages of every model call of an agent, with tool calls and results.

    The agent's state keeps the raw messages. Each message is a document of the account and is paid once. An unchanged
    reply of the model passes free.

    Put BEFORE this one a middleware that adds private text to a request, and AFTER it one that asks its own model about
    the request. A hook on the state reads raw messages, so its model must be behind the sanitizer:
    ``SummarizationMiddleware(model, summarizer=sanitizer | instruct | model | StrOutputParser())``. ``create_agent``
    raises :class:`InvalidParameter` where it finds such a model in attributes. Call it in ``with private_run():``, or
    tracers see the raw state.

    Args:
        sanitizer: Sanitizer of messages and system prompt, by its ``MessageRules``.
        user: User whose account is charged: a name, or a function of the request.
        trusted: Names of middleware whose own models may read raw messages.

    Raises:
        InvalidParameter: No message could ever reach the sanitizer's limit: without a user, each is charged once.

    Formal guarantee:
        That of the sanitizer, for everything that the model reads of the messages. Keys that the agent's tools declare
        pass in clear. Effects and descriptions of tools are not covered.

    Examples:
        >>> agent = create_agent(model, tools, middleware=[RAPTMiddleware(sanitizer)])
        >>> with private_run():
        ...     agent.invoke({"messages": [("user", "Anna takes prednisone.")]})
    """

    trace_policy = TracePolicy(process_inputs=nothing)

    def __init__(
        self,
        sanitizer: RAPTSanitizer,
        *,
        user: User = None,
        trusted: Sequence[str] = (),
    ) -> None:
        super().__init__()
        validate.instance("sanitizer", sanitizer, RAPTSanitizer, "a RAPTSanitizer")
        if not (user is None or isinstance(user, str) or callable(user)):
            raise InvalidParameter(f"Expected user of type {type(user).__name__} to be a name, or a function.")
        if isinstance(trusted, str) or not all(isinstance(name, str) for name in trusted):
            raise InvalidParameter(f"Expected trusted={trusted!r} to be a list of names of middleware.")
        sanitizer.check_limit("message", _REMEDY, user=user is not None)
        self.sanitizer = sanitizer
        self._trusted = frozenset(trusted)
        self._user = user

    @property
    def name(self) -> str:
        """Name of this middleware. ``create_agent`` reads it: the list's order is checked here."""
        self._check_order(agents_middleware())
        return super().name

    def _check_order(self, middleware: Sequence[object]) -> None:
        place = next((number for number, one in enumerate(middleware) if one is self), None)
        if place is None:
            return
        for number, one in enumerate(middleware):
            if one is self or not isinstance(one, AgentMiddleware) or not _asks_a_model(one):
                continue
            if one.name in self._trusted:
                continue
            if has_hooks(one, AgentMiddleware, *_RAW_HOOKS):
                raise InvalidParameter(
                    f"Expected {one.name} to ask no model about raw messages: it works on the state, which is raw "
                    "at each place of the list. Put its model behind the sanitizer (summarizer=sanitizer | ...), "
                    f"or name it in trusted=[{one.name!r}] if its model is inside the trust boundary."
                )
            if number < place and has_hooks(one, AgentMiddleware, "wrap_model_call"):
                raise InvalidParameter(
                    f"Expected {one.name} after {type(self).__name__} in the list of middleware: before it, its own "
                    f"model is told raw messages. Or name it in trusted=[{one.name!r}] if that model is inside the "
                    "trust boundary."
                )

    @hold_arguments("request")
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with sanitized messages."""
        return self._marked(handler(run_redacted(self._sanitized, PrivateArgs.of(request))))

    @hold_arguments("request")
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Async twin of :meth:`wrap_model_call`."""
        sanitized = await asyncio.to_thread(run_redacted, self._sanitized, PrivateArgs.of(request))
        return self._marked(await handler(sanitized))

    def _marked(self, response: ModelResponse[Any]) -> ModelResponse[Any]:
        mark = self.sanitizer.mark_reply
        result = [mark(message) if isinstance(message, AIMessage) else message for message in response.result]
        return dataclasses.replace(response, result=result)

    def _sanitized(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        user = self._user(request) if callable(self._user) else self._user
        self.sanitizer.check_limit("message", _REMEDY, user=user is not None)
        system = [] if request.system_message is None else [request.system_message]
        # One call: all new messages of a turn are charged together, or none.
        sanitized = self.sanitizer.sanitize([*system, *request.messages], user=user, keys_keep=_declared(request))
        messages = sanitized[len(system) :]
        # The state holds the raw messages, so inner middleware and the handler get a copy.
        changed: dict[str, Any] = {"messages": messages, "state": {**request.state, "messages": messages}}
        if system:
            changed["system_message"] = sanitized[0]
        return request.override(**changed)


def _asks_a_model(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    attributes = vars(middleware)
    summarizer = _first(attributes.get("summarizer"))
    if summarizer is not None:
        return not isinstance(summarizer, RAPTSanitizer)
    return "model" in attributes or any(isinstance(_first(part), BaseLanguageModel) for part in attributes.values())


def _first(part: Any) -> Any:
    while isinstance(part, (RunnableSequence, RunnableBindingBase)):
        part = part.first if isinstance(part, RunnableSequence) else part.bound
    return part


def _declared(request: ModelRequest[Any]) -> list[str]:
    schemas: list[Any] = [spec.json_schema for spec in getattr(request.response_format, "schema_specs", ())]
    schemas += [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
    return sorted({key for schema in schemas for key in _properties(schema)})


def _properties(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(declared := schema.get("properties"), Mapping):
            yield from map(str, declared)
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from _properties(inner)


def agents_middleware() -> Sequence[object]:
    """Return the middleware list of the ``create_agent`` above, or ()."""
    frame = sys._getframe(2)
    for _ in range(3):  # a comprehension has a frame of its own before Python 3.12
        if frame.f_code.co_name == "create_agent":
            middleware = frame.f_locals.get("middleware", ())
            return middleware if isinstance(middleware, Sequence) else ()
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()


def has_hooks(middleware: object, base: type, *hooks: str) -> bool:
    return isinstance(middleware, base) and any(
        getattr(type(middleware), f"{prefix}{hook}") is not getattr(base, f"{prefix}{hook}")
        for hook in hooks
        for prefix in ("", "a")
    )
