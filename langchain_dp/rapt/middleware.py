"""An agent whose model never sees a raw word: the whole history of every model call is sanitized on its way."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

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
    """What a trace holds of the state that a hook is given."""
    return {"payload": WITHHELD}


class RAPTMiddleware(AgentMiddleware[Any, Any, Any]):
    """Sanitizes the messages of every model call of an agent, with tool calls and tool results, not only the newest.

    Of system messages and media the sanitizer's :class:`MessageRules` say whether they pass in clear, as they do by
    default.

    The agent's state keeps the raw messages: tools and the user work with them. What was sanitized in an earlier turn
    is given out again, so that a growing history costs each message once. For the account, each message is a document.

    The order of the list counts, as the first wraps all others. BEFORE this one goes what adds private text to a
    request: what an inner one adds passes this one by. AFTER it goes what asks a model of its own about the request,
    as ``LLMToolSelectorMiddleware`` does: it is then told sanitized messages. What asks a model in a hook on the state,
    as ``SummarizationMiddleware`` does, is told the raw state wherever it stands, so its model must be behind the
    sanitizer itself: ``SummarizationMiddleware(model, summarizer=sanitizer | instruct | model | StrOutputParser())``,
    in which ``instruct`` adds the request to summarize. ``create_agent`` is stopped by an :class:`InvalidParameter` if
    a middleware that holds a chat model would tell it raw messages, as far as its attributes show one.

    The graph's own runs, from the root on, show callbacks and tracers the raw state: call the agent in
    ``with private_run():``.

    Args:
        sanitizer: Sanitizes messages. Its ``MessageRules`` also rule over the agent's system prompt.
        user: Whose account is charged: a name, or a function of the request, as of
            ``request.runtime.context``; None for nobody's.
        replies: "pass": what the model itself answered, from sanitized text, passes in later turns as it is and costs
            nothing, as long as nobody changes it; "sanitize": it is treated like all other messages.
        trusted: Names of other middleware whose own models are inside the trust boundary and may be told raw messages.

    Raises:
        InvalidParameter: A value is of another type, or the sanitizer has a limit that no message could ever reach:
            without a user, each is charged once.

    Formal guarantee:
        That of the sanitizer, for everything that the model is told of the messages; keys of arguments and answers that
        the agent's tools declare pass in clear. What tools do with arguments that the model made up from sanitized text
        is outside of it, and so are tool and schema descriptions.

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
        replies: Literal["pass", "sanitize"] = "pass",
        trusted: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if not isinstance(sanitizer, RAPTSanitizer):
            raise InvalidParameter(f"Expected sanitizer of type {type(sanitizer).__name__} to be a RAPTSanitizer.")
        if not (user is None or isinstance(user, str) or callable(user)):
            raise InvalidParameter(f"Expected user of type {type(user).__name__} to be a name, or a function.")
        if isinstance(trusted, str) or not all(isinstance(name, str) for name in trusted):
            raise InvalidParameter(f"Expected trusted={trusted!r} to be a list of names of middleware.")
        sanitizer.check_limit("message", _REMEDY, user=user is not None)
        self.sanitizer = sanitizer
        self._trusted = frozenset(trusted)
        self._user = user
        self._pass_replies = validate.one_of("replies", replies, ("pass", "sanitize")) == "pass"

    @property
    def name(self) -> str:
        """Name of this middleware. ``create_agent`` asks for it while it has the whole list, whose order is checked."""
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
                    "wherever it stands in the list. Put its model behind the sanitizer (summarizer=sanitizer | ...), "
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
        return self._marked(
            await handler(await asyncio.to_thread(run_redacted, self._sanitized, PrivateArgs.of(request)))
        )

    def _marked(self, response: ModelResponse[Any]) -> ModelResponse[Any]:
        if not self._pass_replies:
            return response
        mark = self.sanitizer.mark_reply
        result = [mark(message) if isinstance(message, AIMessage) else message for message in response.result]
        return dataclasses.replace(response, result=result)

    def _sanitized(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        user = self._user(request) if callable(self._user) else self._user
        self.sanitizer.check_limit("message", _REMEDY, user=user is not None)
        system = [] if request.system_message is None else [request.system_message]
        # In one go: what is new in a turn is charged together, or refused together.
        messages = self.sanitizer.sanitize([*system, *request.messages], user=user, keys_keep=_declared(request))
        told = messages[len(system) :]
        # The state holds the raw messages: inner middleware and the handler must not be handed it.
        state = {**request.state, "messages": told}
        changed: dict[str, Any] = {"messages": told, "state": state}
        if system:
            changed["system_message"] = messages[0]
        return request.override(**changed)


def _asks_a_model(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Whether it holds a model, or takes the agent's, and does not sanitize what it tells it."""
    held = vars(middleware)
    summarizer = _first(held.get("summarizer"))
    if summarizer is not None:
        return not isinstance(summarizer, RAPTSanitizer)
    return "model" in held or any(isinstance(_first(value), BaseLanguageModel) for value in held.values())


def _first(part: Any) -> Any:
    """What is asked first: of a chain its first step, of a binding what is bound."""
    while isinstance(part, (RunnableSequence, RunnableBindingBase)):
        part = part.first if isinstance(part, RunnableSequence) else part.bound
    return part


def _declared(request: ModelRequest[Any]) -> list[str]:
    """Names of all parameters that the tools and the answer's schema declare: the developer's own words."""
    schemas: list[Any] = [spec.json_schema for spec in getattr(request.response_format, "schema_specs", ())]
    schemas += [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
    return sorted({key for schema in schemas for key in _properties(schema)})


def _properties(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, inner in schema.items():
            if key == "properties" and isinstance(inner, Mapping):
                yield from map(str, inner)
            yield from _properties(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _properties(inner)


def agents_middleware() -> Sequence[object]:
    """The list that ``create_agent`` builds an agent from, if it is what asks for the name of the one that calls this.

    Empty where another asks.
    """
    frame = sys._getframe(2)
    for _ in range(3):  # a comprehension has a frame of its own before Python 3.12
        if frame.f_code.co_name == "create_agent":
            found = frame.f_locals.get("middleware", ())
            return found if isinstance(found, Sequence) else ()
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()


def has_hooks(middleware: object, base: type, *hooks: str) -> bool:
    """Whether a middleware brings one of these hooks, sync or async, and does not inherit it from ``base``."""
    return isinstance(middleware, base) and any(
        getattr(type(middleware), f"{prefix}{hook}") is not getattr(base, f"{prefix}{hook}")
        for hook in hooks
        for prefix in ("", "a")
    )
