"""What a model may be built around: each structure takes a runnable from text to text and gives one that asks it."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnablePassthrough,
)
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import PrivateAttr

Inner = Runnable[str, str]
CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Holder:
    """An application's object with a runnable in an attribute."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    def ask(self, prompt: str) -> str:
        return self.inner.invoke(prompt)

    __call__ = ask


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Inner) -> None:
        self.inner = inner


@dataclasses.dataclass
class Settings:
    parts: dict[str, list[Any]]


class Delegating(BaseChatModel):
    """Asks what sits in a private attribute."""

    _inner: Any = PrivateAttr()

    @property
    def _llm_type(self) -> str:
        return "delegating"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        said = self._inner.invoke(messages[-1].content)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said))])


class WithField(Delegating):
    part: Any = None

    def model_post_init(self, context: Any, /) -> None:
        self._inner = self.part


class DelegatingLLM(LLM):
    part: Any

    @property
    def _llm_type(self) -> str:
        return "delegating-llm"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        return str(self.part.invoke(prompt))


class Own(Runnable[Any, str]):
    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    def invoke(self, input: Any, config: Any = None, **_: Any) -> str:  # noqa: A002  # Runnable's name
        return self.inner.invoke(input)


def private_attribute(inner: Inner) -> Any:
    model = Delegating()
    model._inner = inner
    return model


def two_deep(inner: Inner) -> Any:
    def outer() -> Callable[[str], str]:
        def middle(prompt: str) -> str:
            return inner.invoke(prompt)

        return lambda prompt: middle(prompt)

    return RunnableLambda(outer())


def default_argument(inner: Inner) -> Any:
    def ask(prompt: str, by: Inner = inner) -> str:
        return by.invoke(prompt)

    return RunnableLambda(lambda prompt: ask(prompt))


def keyword_default(inner: Inner) -> Any:
    def ask(prompt: str, *, by: Inner = inner) -> str:
        return by.invoke(prompt)

    return RunnableLambda(lambda prompt: ask(prompt))


def class_attribute(inner: Inner) -> Any:
    class Bot:
        __slots__ = ()
        made: ClassVar[Inner] = inner

        def ask(self, prompt: str) -> str:
            return self.made.invoke(prompt)

    return RunnableLambda(Bot().ask)


def metaclass(inner: Inner) -> Any:
    class Kind(type):
        made: ClassVar[Inner] = inner

    class Bot(metaclass=Kind):
        pass

    return RunnableLambda(lambda prompt: Bot.made.invoke(prompt))


def static_method(inner: Inner) -> Any:
    class Bot:
        @staticmethod
        def ask(prompt: str) -> str:
            return inner.invoke(prompt)

    return RunnableLambda(lambda prompt: Bot.ask(prompt))


def a_property(inner: Inner) -> Any:
    class Bot:
        @property
        def model(self) -> Inner:
            return inner

    bot = Bot()
    return RunnableLambda(lambda prompt: bot.model.invoke(prompt))


def module_global(inner: Inner, code: str = "def ask(prompt):\n    return inner.invoke(prompt)") -> Any:
    module = types.ModuleType("app_of_a_user")
    module.__dict__["inner"] = inner
    exec(code, module.__dict__)
    return RunnableLambda(module.__dict__["ask"])


def module_attribute(inner: Inner) -> Any:
    chains, app = types.ModuleType("app_of_a_user.chains"), types.ModuleType("app_of_a_user")
    chains.__dict__["inner"], app.__dict__["chains"] = inner, chains
    return module_global(app, "def ask(prompt):\n    return inner.chains.inner.invoke(prompt)")  # type: ignore[arg-type]


def import_inside(inner: Inner) -> Any:
    app = types.ModuleType("app_of_a_user")
    app.__dict__["made"] = inner
    sys.modules["app_of_a_user"] = app  # forget() takes it out
    code = "def ask(prompt):\n    from app_of_a_user import made\n    return made.invoke(prompt)"
    return module_global(inner=None, code=code)  # type: ignore[arg-type]


def relative_import(inner: Inner) -> Any:
    app = types.ModuleType("app_of_a_user")
    app.__dict__["made"] = inner
    sys.modules["app_of_a_user"] = app
    module = types.ModuleType("app_of_a_user.pages.chat")
    module.__package__ = "app_of_a_user.pages"
    sys.modules["app_of_a_user.pages"] = types.ModuleType("app_of_a_user.pages")
    exec("def ask(prompt):\n    from .. import made\n    return made.invoke(prompt)", module.__dict__)
    return RunnableLambda(module.__dict__["ask"])


def slots(inner: Inner) -> Any:
    held = Slotted(inner)
    return RunnableLambda(lambda prompt: held.inner.invoke(prompt))


def containers(inner: Inner) -> Any:
    settings = Settings({"models": [1, (inner,)]})
    return RunnableLambda(lambda prompt: settings.parts["models"][1][0].invoke(prompt))


def long_container(inner: Inner) -> Any:
    registry: dict[int, Any] = {number: {"text": str(number)} for number in range(5_000)} | {-1: inner}
    return RunnableLambda(lambda prompt: registry[-1].invoke(prompt))


def returned(inner: Inner) -> Any:
    return RunnableLambda(lambda prompt: inner)


def wrapped(inner: Inner) -> Any:
    def logged(function: Callable[[str], str]) -> Callable[[str], str]:
        @functools.wraps(function)
        def ask(*args: Any) -> str:
            return function(*args)

        return ask

    @logged
    def ask(prompt: str) -> str:
        return inner.invoke(prompt)

    return RunnableLambda(lambda prompt: ask(prompt))


def remembered(inner: Inner) -> Any:
    @functools.lru_cache(maxsize=1)
    def model() -> Inner:
        return inner

    return RunnableLambda(lambda prompt: model().invoke(prompt))


def weak(inner: Inner) -> Any:
    alive.append(inner)
    reference = weakref.ref(inner)
    return RunnableLambda(lambda prompt: reference().invoke(prompt))  # type: ignore[union-attr]


def in_context(inner: Inner) -> Any:
    CURRENT.set(inner)
    return RunnableLambda(lambda prompt: CURRENT.get().invoke(prompt))


def generator(inner: Inner) -> Any:
    def read(prompts: Iterator[str]) -> Iterator[str]:
        for prompt in prompts:
            yield inner.invoke(prompt)

    return RunnableGenerator(read)


def asynchronous(inner: Inner) -> Any:
    async def ask(prompt: str) -> str:
        return await inner.ainvoke(prompt)

    return RunnableLambda(lambda prompt: asyncio.run(ask(prompt)), ask)


def tool(inner: Inner) -> Any:
    asked = StructuredTool.from_function(lambda prompt: inner.invoke(prompt), name="ask", description="asks")
    return RunnableLambda(lambda prompt: {"prompt": prompt}) | asked


def node(inner: Inner) -> Any:
    return adapted(graph(lambda state: {"messages": [AIMessage(inner.invoke(str(state["messages"][-1].content)))]}))


def subgraph(inner: Inner) -> Any:
    inside = graph(lambda state: {"messages": [AIMessage(inner.invoke(str(state["messages"][-1].content)))]})
    return adapted(graph(inside))


def alternatives(inner: Inner) -> Any:
    return RunnablePassthrough().configurable_alternatives(
        ConfigurableField(id="model"), default_key="none", made=lambda: inner
    ).with_config(configurable={"model": "made"})  # fmt: skip


CURRENT: ContextVar[Any] = ContextVar("current model")
alive: list[Any] = []

STRUCTURES: dict[str, Callable[[Inner], Any]] = {
    "itself": lambda inner: inner,
    "a closure": lambda inner: RunnableLambda(lambda prompt: inner.invoke(prompt)),
    "a closure two deep": two_deep,
    "a partial": lambda inner: RunnableLambda(functools.partial(lambda by, prompt: by.invoke(prompt), inner)),
    "a bound method": lambda inner: RunnableLambda(Holder(inner).ask),
    "a callable object": lambda inner: RunnableLambda(functools.partial(Holder(inner))),
    "a default": default_argument,
    "a keyword default": keyword_default,
    "a class attribute": class_attribute,
    "a metaclass": metaclass,
    "a static method": static_method,
    "a property": a_property,
    "a module's global": module_global,
    "an attribute of a module": module_attribute,
    "an import inside the function": import_inside,
    "an import from a package above": relative_import,
    "a private attribute": private_attribute,
    "a field": lambda inner: WithField(part=inner),
    "a completion model's field": lambda inner: DelegatingLLM(part=inner),
    "slots": slots,
    "a dataclass with containers": containers,
    "a long container": long_container,
    "a sequence": lambda inner: RunnableLambda(lambda prompt: prompt) | inner,
    "a parallel": lambda inner: {"a": inner} | RunnableLambda(lambda both: both["a"]),
    "a branch": lambda inner: RunnableBranch((lambda _: True, inner), RunnablePassthrough()),
    "a binding": lambda inner: inner.with_config(tags=["a"]).bind(),
    "fallbacks": lambda inner: RunnableLambda(lambda prompt: 1 // 0).with_fallbacks([inner]),
    "a retry": lambda inner: inner.with_retry(),
    "alternatives": alternatives,
    "a runnable that is returned": returned,
    "a decorated function": wrapped,
    "a cached function": remembered,
    "a weak reference": weak,
    "a context variable": in_context,
    "a generator": generator,
    "a coroutine": asynchronous,
    "a tool": tool,
    "a node of a graph": node,
    "a node of a subgraph": subgraph,
    "a runnable class of one's own": Own,
    "a model in a model in a function": lambda inner: two_deep(
        private_attribute(WithField(part=inner) | StrOutputParser()) | StrOutputParser()
    ),
}


def graph(step: Any, **options: Any) -> Any:
    made = StateGraph(MessagesState)
    made.add_node("model", step)
    made.add_edge(START, "model")
    return made.compile(**options)


def adapted(compiled: Any) -> Any:
    """A graph of messages that takes and gives a text."""
    return (
        RunnableLambda(lambda prompt: {"messages": [("user", as_text(prompt))]})
        | compiled.with_config(CONFIG)
        | RunnableLambda(lambda state: state["messages"][-1].content)
    )


def as_text(prompt: Any) -> str:
    return str(prompt[-1].content if isinstance(prompt, list) else getattr(prompt, "content", prompt))


def forget() -> None:
    """Take back what structures have put where everybody sees it."""
    alive.clear()
    for name in ("app_of_a_user", "app_of_a_user.pages"):
        sys.modules.pop(name, None)
