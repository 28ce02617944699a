"""Keeps an agent under pseudonyms."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import instance
from langchain_dp.errors import InvalidParameter
from langchain_dp.isolation.run import private_run
from langchain_dp.rapt.messages import REMOVE_ALL
from langchain_dp.rapt.middleware import agents_middleware, has_hooks, nothing
from langchain_dp.rapt.parts import message_list
from langchain_dp.rapt.pseudonyms.agent import PARTS, PseudonymousAgent, hidden_goto, hidden_messages, stamped
from langchain_dp.rapt.pseudonyms.keeping import Conversation, Conversations, joined
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer, PseudonymReport
from langchain_dp.rapt.restore import each_text
from langchain_dp.redact import PrivateArgs, arun_redacted, hold_arguments, run_redacted

with needs("agents", "langchain", why=", 1.4 or newer, whose agents take middleware"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromOutput, ToolCallRequest
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
    from langgraph.pregel.protocol import PregelProtocol
    from langgraph.types import Command, TracePolicy


_MARKS_ONLY = (
    "AnthropicPromptCachingMiddleware", "BedrockPromptCachingMiddleware", "UnsupportedContentMiddleware",
)  # fmt: skip
"""Middleware of ``create_deep_agent`` that adds no text of the user."""

_CHECKPOINTER = "__pregel_checkpointer"


class PseudonymState(AgentState[Any]):
    """State of an agent, with its conversation."""

    pseudonyms: NotRequired[Annotated[list[str], OmitFromOutput, joined]]  # LangGraph looks for the reducer at the end


class PseudonymMiddleware(AgentMiddleware[Any, Any, Any]):
    """Keeps an agent under pseudonyms. NOT formal privacy: text that no recognizer finds passes in clear.

    Call the agent through :meth:`around`, or checkpoints and traces are raw. Texts are hidden, while numbers, sets and
    a state's own keys pass. Tools in ``tools_inside`` get the originals, and their results are hidden. Of a ``Command``
    from a tool, updates other than messages stay unchanged.

    Put it last in the list of middleware, or ``create_agent`` raises :class:`InvalidParameter`.

    Args:
        pseudonymizer: Settings of each conversation. None: ``Pseudonymizer()``.
        tools_inside: Names of the tools that get the originals, or "all".
        key: Key to store the map encrypted in the agent's state, as from ``Fernet.generate_key()``. None: this process
            stores the maps of the last 10,000 conversations. Run a conversation in one process at a time.

    Raises:
        MissingExtra: cryptography is not installed.

    Formal guarantee:
        None: no epsilon, ``report().private`` is False.

    Examples:
        >>> pseudonyms = PseudonymMiddleware(Pseudonymizer(terms=["Ann Smith"]), tools_inside=["send_mail"])
        >>> agent = pseudonyms.around(create_agent(model, tools, middleware=[pseudonyms]))
        >>> agent.invoke({"messages": [("user", "Write to Ann Smith.")]})
    """

    trace_policy = TracePolicy(process_inputs=nothing)
    state_schema = PseudonymState

    def __init__(
        self,
        pseudonymizer: Pseudonymizer | None = None,
        *,
        tools_inside: Sequence[str] | Literal["all"] = (),
        key: str | bytes | None = None,
    ) -> None:
        super().__init__()
        settings = Pseudonymizer() if pseudonymizer is None else pseudonymizer
        instance("pseudonymizer", settings, Pseudonymizer, "a Pseudonymizer")
        every = isinstance(tools_inside, str) and tools_inside == "all"
        listed = isinstance(tools_inside, Iterable) and not isinstance(tools_inside, str)
        if not every and not (listed and all(isinstance(one, str) for one in tools_inside)):
            raise InvalidParameter(f"Expected tools_inside={tools_inside!r} to be a list of names of tools, or 'all'.")
        self._inside = None if every else frozenset(tools_inside)
        self._conversations = Conversations(settings, key)

    @property
    def name(self) -> str:
        """Name of this middleware. ``create_agent`` reads it: the list's order is checked here."""
        middleware = list(agents_middleware())
        place = next((number for number, one in enumerate(middleware) if one is self), len(middleware))
        for one in middleware[place + 1 :]:
            wraps = has_hooks(one, AgentMiddleware, "wrap_model_call", "wrap_tool_call")
            if wraps and getattr(one, "name", None) not in _MARKS_ONLY:
                raise InvalidParameter(
                    f"Expected {type(self).__name__} after {getattr(one, 'name', type(one).__name__)} in the list of "
                    "middleware: a later one shows the model names that are not hidden, and tools what is not put "
                    f"back. Put {type(self).__name__} last."
                )
        return super().name

    def around(self, agent: Any) -> PseudonymousAgent:
        """Wrap an agent that has this middleware. Its users send and get originals.

        Raises:
            InvalidParameter: It is no such graph, or lacks a tool of ``tools_inside``.
        """
        instance("agent", agent, PregelProtocol, "a graph of create_agent with this middleware in its list")
        nodes = getattr(agent, "nodes", None)
        if isinstance(nodes, Mapping) and not any(str(node).startswith(f"{self.name}.") for node in nodes):
            raise InvalidParameter(
                f"Expected agent to have this middleware in its list: it has none of the name {self.name}, and would "
                "see originals. Make it by create_agent(..., middleware=[this])."
            )
        self._check_inside(nodes)
        return PseudonymousAgent(agent, self._conversations)

    def _check_inside(self, nodes: Any) -> None:
        """Refuse unknown names: their tools would get placeholders unnoticed."""
        node = nodes.get("tools") if isinstance(nodes, Mapping) else None
        tools = getattr(getattr(node, "bound", None), "tools_by_name", None) or {}
        unknown = sorted((self._inside or frozenset()) - set(tools))
        if unknown:
            raise InvalidParameter(
                f"Expected tools_inside={sorted(self._inside or ())} to name tools of the agent, which has "
                f"{sorted(map(str, tools))}: {unknown} would be given placeholders. Write them as the agent has them."
            )

    def report(self, state: Any) -> PseudonymReport:
        """Report on the conversation of the graph's own ``get_state(config)``.

        Raises:
            InvalidParameter: The state names no conversation.
            PrivateDataError: Its map is not available here.
        """
        parts = _parts(getattr(state, "values", state))
        if not parts:
            raise InvalidParameter(
                "Expected state to name its conversation, as graph.get_state(config) does where the graph has a "
                "checkpointer. The result of an agent does not. For all conversations of this process call reports()."
            )
        return self._conversations.open(list(parts)).pseudonymizer.report()

    def reports(self) -> list[PseudonymReport]:
        """Report on every conversation of this process.

        Examples:
            >>> report("privacy.ledger", pseudonyms=middleware.reports()).pseudonyms[0].conversations
            2
        """
        return self._conversations.reports()

    def _conversation(self, state: Any) -> Conversation:
        return self._conversations.open(list(_parts(state)))

    @hold_arguments("state")
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Hide new messages of the state."""
        return run_redacted(self._before, PrivateArgs.of(state))

    @hold_arguments("state")
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Async twin of :meth:`before_model`."""
        return await asyncio.to_thread(run_redacted, self._before, PrivateArgs.of(state))

    def _before(self, state: Any) -> dict[str, Any] | None:
        conversation = self._conversation(state)
        before = state["messages"]
        messages = hidden_messages(conversation, before, named=True)
        changed: dict[str, Any] = {}
        if any(new is not old for new, old in zip(messages, before, strict=True)):
            changed["messages"] = [RemoveMessage(id=REMOVE_ALL), *messages]
        if news := conversation.news(_parts(state)):
            changed[PARTS] = news
        return changed or None

    @hold_arguments("request")
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Call the model with placeholders."""
        conversation, hidden = run_redacted(self._hidden_request, PrivateArgs.of(request))
        return self._answered(conversation, PrivateArgs.of(request).values[0], handler(hidden))

    @hold_arguments("request")
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """Async twin of :meth:`wrap_model_call`."""
        conversation, hidden = await asyncio.to_thread(run_redacted, self._hidden_request, PrivateArgs.of(request))
        return self._answered(conversation, PrivateArgs.of(request).values[0], await handler(hidden))

    def _hidden_request(self, request: ModelRequest[Any]) -> tuple[Conversation, ModelRequest[Any]]:
        conversation = self._conversation(request.state)
        messages = hidden_messages(conversation, request.messages, named=True)
        # Inner middleware and the model get a hidden state, too.
        changed: dict[str, Any] = {"messages": messages, "state": {**request.state, "messages": messages}}
        if request.system_message is not None:
            changed["system_message"] = conversation.pseudonymizer.sanitize(request.system_message, named=True)
        return conversation, request.override(**changed)

    def _answered(self, conversation: Conversation, request: ModelRequest[Any], response: Any) -> Any:
        # The model, and the answer to its structured output, know placeholders only.
        result = [
            stamped(conversation, one) if isinstance(one, (AIMessage, ToolMessage)) else one for one in response.result
        ]
        answer = dataclasses.replace(response, result=result)
        news = conversation.news(_parts(request.state))
        return ExtendedModelResponse(answer, Command(update={PARTS: news})) if news else answer

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Restore for a tool inside, and hide its result."""
        conversation, call, inside = run_redacted(self._tool_call, PrivateArgs(request))
        if not inside:
            return run_redacted(self._returned, PrivateArgs(conversation, request, handler(call), True))

        def run(call: ToolCallRequest) -> Any:
            try:
                return handler(call)
            except GraphBubbleUp as stop:  # of the graph. Raised again in _result
                return stop

        try:
            with private_run():
                result = run_redacted(run, PrivateArgs(call), "in a tool")
        finally:
            del call
        return run_redacted(self._returned, PrivateArgs(conversation, request, _result(conversation, result), False))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Async twin of :meth:`wrap_tool_call`."""
        conversation, call, inside = run_redacted(self._tool_call, PrivateArgs(request))
        if not inside:
            private = PrivateArgs(conversation, request, await handler(call), True)
            return await asyncio.to_thread(run_redacted, self._returned, private)

        async def run(call: ToolCallRequest) -> Any:
            try:
                return await handler(call)
            except GraphBubbleUp as stop:
                return stop

        try:
            with private_run():
                result = await arun_redacted(run, PrivateArgs(call), "in a tool")
        finally:
            del call
        private = PrivateArgs(conversation, request, _result(conversation, result), False)
        return await asyncio.to_thread(run_redacted, self._returned, private)

    def _tool_call(self, request: ToolCallRequest) -> tuple[Conversation, ToolCallRequest, bool]:
        conversation = self._conversation(request.state)
        call = request.tool_call
        if self._inside is not None and call["name"] not in self._inside:
            return conversation, request, False
        config = getattr(request.runtime, "config", None) or {}
        if _CHECKPOINTER in config.get("configurable", {}):  # a graph in the tool would save originals by it
            config["configurable"] = {**config["configurable"], _CHECKPOINTER: None}
        args = conversation.pseudonymizer.restorer().inside(call["args"], arguments=True)
        return conversation, request.override(tool_call={**call, "args": args}), True

    def _returned(self, conversation: Conversation, request: ToolCallRequest, result: Any, outside: bool) -> Any:
        parts = _parts(request.state)
        several = isinstance(result, list)
        hidden = [self._hidden(conversation, one, parts, outside) for one in (result if several else [result])]
        news = conversation.news(parts)
        if not news:
            return hidden if several else hidden[0]
        if several:
            return [*hidden, Command(update={PARTS: news})]
        (one,) = hidden
        if not isinstance(one, Command):
            return Command(update={"messages": [one], PARTS: news})
        return dataclasses.replace(one, update={**(one.update or {}), PARTS: news})

    def _hidden(self, conversation: Conversation, result: Any, parts: Sequence[str], outside: bool) -> Any:
        if not isinstance(result, Command):
            return hidden_messages(conversation, [result], hidden=outside)[0]
        changed: dict[str, Any] = {}
        if result.goto:
            changed["goto"] = hidden_goto(conversation, result.goto, parts, hidden=outside)
        update = result.update
        if not (update is None or isinstance(update, dict)):
            raise InvalidParameter(
                f"Expected the update of a Command that a tool returned to be a mapping, got {type(update).__name__}."
            )
        if update and "messages" in update:
            messages = hidden_messages(conversation, message_list(update["messages"]), hidden=outside)
            changed["update"] = {**update, "messages": messages}
        return dataclasses.replace(result, **changed)


def _parts(state: Any) -> Sequence[str]:
    parts: Sequence[str] = state.get(PARTS) or () if isinstance(state, dict) else getattr(state, PARTS, None) or ()
    return parts


def _result(conversation: Conversation, result: Any) -> Any:
    """Return a tool's result, or raise a stop with hidden questions."""
    if not isinstance(result, GraphBubbleUp):
        return result
    if isinstance(result, GraphInterrupt) and result.args:
        questions = [copy.copy(one) for one in result.args[0]]
        for question in questions:
            question.value = each_text(question.value, conversation.pseudonymizer.sanitize)
        result = type(result)(questions)
    raise result
