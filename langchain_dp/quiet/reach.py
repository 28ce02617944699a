"""One walk over everything that a model can reach: is there anything that would show one call what another was told?

CPython's garbage collector knows what an object keeps alive, of whatever class it is: attributes, slots, pydantic's
private attributes, closures, partials, bound methods, containers, the runnables inside a runnable, the nodes of a
graph. The walk asks it, and adds what code names without holding it: the globals and imports of a function, the
attributes of a class.

What is not opened, and why that is sound:

- what the seal takes out of every call anyway: caches of langchain-core, callback handlers and managers
- arrays, tensors, tokenizers, loggers, locks, sockets, loops, types of a schema: they hold no part of a model, and lead
  into the whole process
- globals and class attributes of the standard library, of LangChain, LangGraph and their integrations, and of installed
  packages that use neither: they hold none of the user's memories. Objects of their classes are opened all the same.
- of a container with more than a thousand entries, all but runnables, functions, memories and the first thousand: many
  things of a kind are data. What is still too large to walk counts as what cannot be read.

What no walk sees: what a function fetches by a name that it computes (``getattr``, ``globals()``), and a memory of the
user's own making (a list that the function appends to, a file, a server).
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import dis
import functools
import gc
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableSerializable, RunnableWithMessageHistory
from pydantic import BaseModel

from langchain_dp.quiet.context import CacheGate

_MOST = 200_000  # objects opened; an agent around a chat model and its client has 300
_LONG = 1_000
_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, range, slice}
    | {types.CodeType, types.FrameType, types.GenericAlias}
)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_BYPASSED = (BaseCache, BaseCallbackHandler, BaseCallbackManager)
_CLOSED = frozenset(
    {
        "numpy", "torch", "transformers", "tokenizers", "tiktoken", "llama_cpp", "pandas", "scipy", "sklearn",
        "logging", "threading", "_thread", "asyncio", "_asyncio", "concurrent", "multiprocessing", "socket",
        "_socket", "ssl", "_ssl", "selectors", "select", "sqlite3", "ctypes", "_ctypes", "_io", "_abc",
        "pydantic", "pydantic_core", "inspect", "typing", "importlib", "langsmith",
    }
)  # fmt: skip
_FAMILY = frozenset(
    {
        "langchain", "langchain_classic", "langchain_community", "langchain_core", "langchain_dp",
        "langchain_text_splitters", "langgraph", "langsmith",
    }
)  # fmt: skip
_MEMORIES = (
    ("langgraph.checkpoint.base", "BaseCheckpointSaver"),
    ("langgraph.store.base", "BaseStore"),
    ("langgraph.cache.base", "BaseCache"),
    ("langchain_core.chat_history", "BaseChatMessageHistory"),
    ("langchain_classic.base_memory", "BaseMemory"),
)

Step = tuple[Any, tuple[str, ...]]  # an object, and the names of what led to it


@dataclasses.dataclass
class Found:
    """What the walk met.

    Attributes:
        memory: What keeps prompts, in words with the remedy, or None.
        unread: Names of what could not be looked into.
        serializes: Class of the first part that says it answers one call after the other, or None.
        shares: Whether a part is one llama.cpp context without a lock, which goes on from what two prompts share.
    """

    memory: str | None = None
    unread: list[str] = dataclasses.field(default_factory=list)
    serializes: str | None = None
    shares: bool = False


def walk(llm: Any) -> Found:
    """Look at everything that ``llm`` can reach, breadth first, until a memory is found."""
    found, kinds = Found(), _Kinds()
    met: dict[int, Any] = {}  # keeps what it has met alive, so that no id comes twice
    todo: collections.deque[Step] = collections.deque([(llm, ())])
    while todo:
        part, trail = todo.popleft()
        found.shares = found.shares or kinds.shared(type(part))
        if id(part) in met or kinds.closed(type(part)):
            continue
        met[id(part)] = part
        if len(met) > _MOST:
            found.unread.append(f"{type(llm).__name__} (more than {_MOST:,} objects)")
            break
        if (memory := kinds.memory(part)) is not None:
            what, remedy = memory
            through = f" (reached through {', '.join(trail)})" if trail else ""
            found.memory = f"Expected llm to keep nothing of its prompts, but {what}{through}. {remedy}"
            break
        if found.serializes is None and getattr(type(part), "serializes_calls", False) is True:
            found.serializes = type(part).__name__
        if (name := kinds.compiled(part)) is not None and name not in found.unread:
            found.unread.append(name)
        trail = (*trail[-3:], _name(part)) if kinds.named(type(part)) else trail
        todo.extend((inner, trail) for inner in kinds.inside(part) if type(inner) not in _PLAIN)
    return found


class _Kinds:
    """What to do with each type and module, asked once a walk."""

    def __init__(self) -> None:
        self._closed: dict[type, bool] = {}
        self._shared: dict[type, bool] = {}
        self._library: dict[str, bool] = {}
        self._memories = tuple(
            getattr(sys.modules[module], name) for module, name in _MEMORIES if hasattr(sys.modules.get(module), name)
        )

    def closed(self, kind: type) -> bool:
        known = self._closed.get(kind)
        if known is None:
            known = kind in _PLAIN or issubclass(kind, _BYPASSED) or _root(kind) in _CLOSED
            known = self._closed[kind] = known and not issubclass(kind, (Runnable, BaseModel, threading.local))
        return known

    def shared(self, kind: type) -> bool:
        known = self._shared.get(kind)
        if known is None:
            llamas = (base for base in kind.__mro__ if base.__name__ == "Llama" and _root(base) == "llama_cpp")
            known = self._shared[kind] = next(llamas, None) is not None
        return known

    def memory(self, part: Any) -> tuple[str, str] | None:
        """How this very object keeps prompts, and what to do; None if it does not."""
        kind = type(part)
        if issubclass(kind, RunnableWithMessageHistory):
            return "RunnableWithMessageHistory stores them", "Pass the model inside it."
        if issubclass(kind, Runnable) and not issubclass(kind, RunnableSerializable):
            for name in ("checkpointer", "store", "cache"):
                if getattr(part, "__dict__", {}).get(name) not in (None, False):
                    return f"{kind.__name__} has a {name}", "Compile the graph without one."
            if getattr(part, "__dict__", {}).get("debug") is True:
                return f"{kind.__name__} prints what it is told", "Compile the graph without debug=True."
        if issubclass(kind, self._memories):
            return f"{kind.__name__} stores them", "Leave it out, or pass the model alone."
        own = inspect.getattr_static(kind, "cache", None) if issubclass(kind, BaseLanguageModel) else None
        if own is not None and not isinstance(own, CacheGate):
            return f"{kind.__name__} has an attribute cache of its own making", "Make it a field, which is bypassed."
        return None

    def compiled(self, part: Any) -> str | None:
        """Name of a function whose code cannot be read, unless it comes from a library."""
        if not (_is(part, _COMPILED) or type(part).__name__ == "cython_function_or_method"):
            return None
        module = getattr(part, "__module__", None) or getattr(getattr(part, "__objclass__", None), "__module__", None)
        return None if module is None or self._is_library(str(module)) else f"{module}.{part.__name__}"

    def named(self, kind: type) -> bool:
        return issubclass(kind, (Runnable, types.FunctionType)) or not self._is_library(_root(kind))

    def inside(self, part: Any) -> Iterator[Any]:
        if _is(part, types.ModuleType):
            if not self._is_library(_name(part)):
                yield from self._short(_space(part).values())
        elif _is(part, type):
            if not self._is_library(_root(part)):
                yield from (value for name, value in list(vars(part).items()) if not name.startswith("__pydantic_"))
                yield from (type(part), *part.__bases__)
        elif _is(part, types.FunctionType):
            yield from self._named_by(part)
        else:
            yield from self._short(_kept_by(part))  # its class, too

    def _named_by(self, function: types.FunctionType) -> Iterator[Any]:
        """Closure, defaults, attributes; and of the user's own code the globals and imports that it names."""
        names = _names(function.__code__)
        held = [inner for cell in function.__closure__ or () for inner in gc.get_referents(cell)]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
        if not self._is_library(str(function.__globals__.get("__name__"))):
            held += [function.__globals__[name] for name in names.loaded if name in function.__globals__]
            for name in names.imported:
                # Relative to the function's package, or to one above it.
                above = itertools.accumulate(str(function.__globals__.get("__package__")).split("."), "{}.{}".format)
                places = (name, *(f"{package}.{name}".rstrip(".") for package in above))
                held += [sys.modules[each] for each in places if each in sys.modules]
        modules = [each for each in held if _is(each, types.ModuleType)]
        yield from (each for each in held if not _is(each, types.ModuleType))
        # Of a module only what the code names after it: it may hold a whole application.
        looked: set[int] = set()
        while modules:
            module = modules.pop()
            if id(module) in looked or self._is_library(_name(module)):
                continue
            looked.add(id(module))
            for name in names.attributes & _space(module).keys():
                value = _space(module)[name]
                if _is(value, types.ModuleType):
                    modules.append(value)
                else:
                    yield value

    def _short(self, parts: Iterable[Any]) -> list[Any]:
        parts = list(parts)
        rest = parts[_LONG:]
        parts_of_models = (Runnable, *_FUNCTIONS, *self._memories)
        kinds = {kind for kind in set(map(type, rest)) if issubclass(kind, parts_of_models)}
        return parts[:_LONG] + ([part for part in rest if type(part) in kinds] if kinds else [])

    def _is_library(self, module: str) -> bool:
        root = module.partition(".")[0]
        known = self._library.get(root)
        if known is None:
            known = root in sys.stdlib_module_names or root in _FAMILY or root in _CLOSED
            known = self._library[root] = known or _is_library(root, len(sys.modules))
        return known


def _is(part: Any, kinds: type | tuple[type, ...]) -> bool:
    """As isinstance(), which asks the object for its class, too: a proxy would load what it stands for."""
    return issubclass(type(part), kinds)


def _root(kind: type | types.FunctionType) -> str:
    module = getattr(kind, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _name(part: Any) -> str:
    if _is(part, types.ModuleType):
        return str(_space(part).get("__name__"))
    return str(part.__name__) if _is(part, (types.FunctionType, type)) else type(part).__name__


def _space(module: types.ModuleType) -> dict[str, Any]:
    """Its names, without loading a module that is still to be loaded on its first use."""
    space: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return space


def _kept_by(part: Any) -> list[Any]:
    if _is(part, contextvars.ContextVar):
        return [part.get(None)]
    if _is(part, weakref.ReferenceType):
        return [part()]
    if _is(part, threading.local):
        return list(vars(part).values())
    return gc.get_referents(part)


@dataclasses.dataclass(frozen=True)
class _Names:
    loaded: frozenset[str]
    imported: frozenset[str]
    attributes: frozenset[str]


@functools.lru_cache(maxsize=20_000)
def _names(code: types.CodeType) -> _Names:
    """Names that the code loads as globals, imports, and uses in any way; with the functions written inside it."""
    loaded, imported, attributes = set[str](), set[str](), set(code.co_names)
    if code.co_names:
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                loaded.add(str(step.argval))
            elif step.opname == "IMPORT_NAME":
                imported.add(str(step.argval))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names = _names(inner)
            loaded |= names.loaded
            imported |= names.imported
            attributes |= names.attributes
    return _Names(frozenset(loaded), frozenset(imported), frozenset(attributes))


@functools.lru_cache(maxsize=1_000)
def _is_library(root: str, loaded: int) -> bool:
    """Whether this is an installed package that holds nothing of LangChain or LangGraph in any of its modules.

    Args:
        root: Name of the package.
        loaded: Number of modules of the process: with more of them, the answer may be another.
    """
    top = _space(sys.modules[root]) if root in sys.modules else {}
    file = top.get("__file__") or next(iter(top.get("__path__", ())), "")
    if root == "__main__" or ("site-packages" not in file and "dist-packages" not in file):
        return False  # the user's own
    if root.startswith("langchain_"):
        return True  # an integration
    return not any(
        _origin(value) in _FAMILY
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == root and _is(module, types.ModuleType)
        for value in list(_space(module).values())
    )


def _origin(value: Any) -> str:
    if _is(value, types.ModuleType):
        return _name(value).partition(".")[0]
    return _root(value if _is(value, (type, types.FunctionType)) else type(value))
