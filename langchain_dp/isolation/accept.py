"""The allow-list of models for isolated calls. A memory would show one call the prompt of another.

Known parts:

- models, prompt templates and output parsers of ``langchain_core``, installed ``langchain_*`` packages or this one
- compositions of ``langchain_core``, such as sequences, bindings, retries or fallbacks
- functions of these packages, or ``operator.itemgetter``, in a ``RunnableLambda``
- classes that declare ``keeps_no_prompts: ClassVar[bool] = True`` in their own body

Their fields hold plain data, known parts, or (in a model) objects of installed libraries, which are not opened.
Everything else is opaque.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import operator
import os
import pathlib
import re
import ssl
import sys
import threading
import types
import typing
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel, BaseLanguageModel, BaseLLM, SimpleChatModel
from langchain_core.output_parsers import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableSerializable,
    RunnableWithFallbacks,
    RunnableWithMessageHistory,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from pydantic import BaseModel, SecretBytes, SecretStr

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment
from langchain_dp.isolation.context import CacheGate

_COMPOSITIONS = (
    RunnableSequence, RunnableParallel, RunnablePassthrough, RunnableAssign, RunnablePick, RunnableBindingBase,
    RunnableWithFallbacks, RunnableBranch, DynamicRunnable,
)  # fmt: skip
_MODEL_PARTS = (BaseLanguageModel, BasePromptTemplate, BaseLLMOutputParser)
_DATA = (
    types.NoneType, bool, int, float, complex, str, bytes, range, slice, SecretStr, SecretBytes, ssl.SSLContext,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, uuid.UUID, pathlib.PurePath,
    re.Pattern, enum.Enum, types.GenericAlias, types.UnionType, type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip
_CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
# Silenced in every call, or type descriptions.
_SKIPPED = frozenset(
    {"cache", "callbacks", "callback_manager", "verbose", "config_factories", "input_types",
     "custom_input_type", "custom_output_type"}
)  # fmt: skip
_MEMORIES = (
    ("langgraph.checkpoint.base", "BaseCheckpointSaver"),
    ("langgraph.store.base", "BaseStore"),
    ("langgraph.cache.base", "BaseCache"),
    ("langchain_core.chat_history", "BaseChatMessageHistory"),
    ("langchain_core.stores", "BaseStore"),
    ("langchain_classic.base_memory", "BaseMemory"),
)
DECLARATION = "keeps_no_prompts"
_PLAIN_MODULES = sys.stdlib_module_names | {"pydantic"}
_INSTALLED = ("site-packages", "dist-packages")


@dataclasses.dataclass
class ModelParts:
    """The parts of a model."""

    models: list[Runnable[Any, Any]] = dataclasses.field(default_factory=list)  # chat, completion and decision models
    steps: list[Runnable[Any, Any]] = dataclasses.field(default_factory=list)  # others that may block an event loop
    opaque: list[str] = dataclasses.field(default_factory=list)  # parts outside the allow-list
    declared: list[str] = dataclasses.field(default_factory=list)  # classes with ``keeps_no_prompts``
    memory: str | None = None  # the part that keeps prompts, with the remedy
    serializes: str | None = None  # class of the first part that answers one call after the other
    shares: bool = False  # whether a part is an unlocked llama.cpp context, which reuses the start of the last prompt

    def blocks(self) -> bool:
        """True if every ``ainvoke`` only runs sync code in the loop's threads."""
        parts = [*self.models, *self.steps]
        return bool(parts) and all(map(_is_sync_only, parts))

    def name(self, whole: Runnable[Any, Any]) -> str:
        for model in self.models:
            for field in ("model_name", "model", "model_id", "deployment_name"):
                value = getattr(model, field, None)
                # An address may contain a password.
                if isinstance(value, str) and value and "://" not in value and "@" not in value:
                    return os.path.basename(value) if os.path.isabs(value) else value[:200]
        return type(self.models[0] if self.models else whole).__name__


def parts_of(llm: Any) -> ModelParts:
    if not isinstance(llm, Runnable):
        raise InvalidParameter(
            f"Expected model={type(llm).__name__} to be a chat model, an LLM or a Runnable. Pass e.g. ChatOpenAI(...)."
        )
    surveyor = _Surveyor()
    surveyor.look_at_runnable(llm)
    return surveyor.parts


def decision_models() -> tuple[type[Any], ...]:
    module = sys.modules.get("langchain_core.decisions.base")
    return () if module is None else (module.BaseDecisionModel,)


def check_encoder(encoder: Any, *, trusted: bool) -> list[str]:
    """Return certificate notes. UnsafeEnvironment if the encoder keeps texts."""
    if not isinstance(encoder, Embeddings):
        raise InvalidParameter(
            f"Expected encoder={type(encoder).__name__} to be a LangChain Embeddings. Pass e.g. OpenAIEmbeddings(...)."
        )
    kind, surveyor = type(encoder), _Surveyor()
    surveyor.look_at_value(encoder, encoder, "encoder", known=False)
    for name, value in _attributes(encoder):
        surveyor.look_at_value(value, encoder, name, known=False)
        if issubclass(type(value), Embeddings):
            check_encoder(value, trusted=trusted)
    if surveyor.parts.memory is not None:
        raise UnsafeEnvironment(surveyor.parts.memory.replace("model", "encoder", 1).replace("prompts", "texts", 1))
    if vars(kind).get(DECLARATION) is True:
        return [f"{kind.__name__} declares that it keeps no texts"]
    unknown = [*([] if _is_langchain(kind) else [kind.__name__]), *surveyor.parts.opaque]
    if not unknown:
        return []
    if not trusted:
        raise UnsafeEnvironment(
            f"Expected the encoder's class {unknown[0]} to be of a LangChain package. If it keeps no texts, declare "
            f"`{DECLARATION}: ClassVar[bool] = True` in it, or pass trust_opaque_model=True."
        )
    return [f"the encoder {kind.__name__} is trusted to keep no texts"]


class _Surveyor:
    """A walk over a model's attributes that records unknown parts."""

    def __init__(self) -> None:
        self.parts = ModelParts()
        self._memories = tuple(
            getattr(sys.modules[module], name) for module, name in _MEMORIES if hasattr(sys.modules.get(module), name)
        )
        self._visited: set[int] = set()

    def look_at_runnable(self, part: Runnable[Any, Any]) -> None:
        if id(part) in self._visited:
            return
        self._visited.add(id(part))
        kind, parts = type(part), self.parts
        self._find_memory(part)
        if _root(kind) == "langchain_dp" and hasattr(kind, "parts_that_read"):  # the rest of it keeps nothing
            parts.steps.append(part)
            for inner in part.parts_that_read():  # type: ignore[attr-defined]
                name = type(inner).__name__
                if issubclass(type(inner), Runnable):
                    self.look_at_runnable(inner)
                elif issubclass(type(inner), Embeddings) and check_encoder(inner, trusted=True):
                    _note(parts.declared if vars(type(inner)).get(DECLARATION) is True else parts.opaque, name)
            return
        if parts.serializes is None and getattr(kind, "serializes_calls", False) is True:
            parts.serializes = kind.__name__
        declares = vars(kind).get(DECLARATION) is True
        known = not declares and _is_known(part)
        if not known:
            _note(parts.declared if declares else parts.opaque, kind.__name__)
        if isinstance(part, (BaseLanguageModel, *decision_models())):
            parts.models.append(part)
        elif isinstance(part, RunnableLambda) or not known:
            parts.steps.append(part)
        for name, value in _attributes(part):
            self.look_at_value(value, part, name, known)

    def look_at_value(self, value: Any, owner: Any, field: str, known: bool) -> None:
        """An unknown owner vouches for all values except runnables."""
        kind = type(value)
        self._find_memory(value)
        self.parts.shares |= any(base.__name__ == "Llama" and _root(base) == "llama_cpp" for base in kind.__mro__)
        inside: Iterable[Any] = ()
        if issubclass(kind, Runnable):  # isinstance() would open a proxy
            self.look_at_runnable(value)
        elif kind in _CONTAINERS or (issubclass(kind, tuple) and _is_langchain(kind)):
            inside = value.values() if isinstance(value, Mapping) else value
        elif not known or _is_data(value):
            return
        elif issubclass(kind, BaseModel) and _is_langchain(kind):
            inside = [inner for _, inner in _attributes(value)]
        elif issubclass(kind, functools.partial):
            inside = (value.func, *value.args, *value.keywords.values())
        elif not _is_fitting(value, owner):
            _note(self.parts.opaque, f"{field} of {type(owner).__name__} (a {kind.__name__})")
        for inner in inside:
            self.look_at_value(inner, owner, field, known)

    def _find_memory(self, part: Any) -> None:
        kind = type(part)
        memory = ""
        if issubclass(kind, RunnableWithMessageHistory):
            memory = "RunnableWithMessageHistory stores them. Pass the model inside it."
        elif issubclass(kind, self._memories):
            memory = f"{kind.__name__} stores them. Leave it out, or pass the model alone."
        elif issubclass(kind, BaseLanguageModel):
            cache = inspect.getattr_static(kind, "cache", None)
            if cache is not None and not isinstance(cache, CacheGate):
                memory = f"{kind.__name__} defines its own attribute cache. Make it a field, which is bypassed."
        elif issubclass(kind, decision_models()) and getattr(part, "cache", None) not in (None, False):
            memory = f"{kind.__name__} has a cache, which no seal bypasses. Make the model without it."
        elif issubclass(kind, Runnable) and not issubclass(kind, RunnableSerializable):
            settings = getattr(part, "__dict__", {})
            for name in ("checkpointer", "store", "cache"):
                if settings.get(name) not in (None, False):
                    memory = f"{kind.__name__} has a {name}. Compile the graph without one."
            if settings.get("debug") is True:
                memory = f"{kind.__name__} prints its prompts. Compile the graph without debug=True."
        if memory and self.parts.memory is None:
            self.parts.memory = f"Expected model to keep nothing of its prompts, but {memory}"


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield all attributes except silenced ones."""
    private = (part.__pydantic_private__, part.__pydantic_extra__) if isinstance(part, BaseModel) else ()
    for attributes in (getattr(part, "__dict__", {}), *private):
        for name, value in list((attributes or {}).items()):
            if name not in _SKIPPED:
                yield name, value


def _is_known(part: Runnable[Any, Any]) -> bool:
    kind = type(part)
    if kind is RunnableLambda:
        return True  # its function is judged as a field
    if isinstance(part, _COMPOSITIONS):
        return _root(kind) == "langchain_core"
    return isinstance(part, (*_MODEL_PARTS, *decision_models())) and _is_langchain(kind)


def _is_fitting(value: Any, owner: Any) -> bool:
    """Return whether a known part may have this value."""
    kind = value if isinstance(value, (type, types.FunctionType)) else type(value)
    if not isinstance(owner, (BaseLanguageModel, *decision_models())):
        return isinstance(value, operator.itemgetter) or (kind is value and _is_langchain(kind))
    # A class that extends LangChain is the user's, even if installed.
    extends = any(map(_is_langchain, getattr(kind, "__mro__", ())))
    if extends or not _is_installed(_root(kind)):
        return _is_langchain(kind)
    return not any(map(_is_users, getattr(value, "__dict__", {}).values()))


def _is_users(value: Any) -> bool:
    """Return whether a client's attribute is the user's code."""
    if type(value) in _CONTAINERS:
        return any(map(_is_users, value.values() if isinstance(value, dict) else value))
    root = _root(value if isinstance(value, (type, types.FunctionType)) else type(value))
    return root not in sys.stdlib_module_names and not _is_installed(root)


def _is_data(value: Any) -> bool:
    kind = type(value)
    if not isinstance(value, type):
        return kind.__module__ == "typing" or (
            issubclass(kind, _DATA) and (isinstance(value, enum.Enum) or _root(kind) in _PLAIN_MODULES)
        )
    if issubclass(value, BaseModel):
        return not _has_code(vars(value).get("__pydantic_core_schema__"))
    return value.__module__ == "builtins" or typing.is_typeddict(value)


def _has_code(schema: Any) -> bool:
    """Return whether pydantic runs validators or factories."""
    if isinstance(schema, dict):
        own = {"function", "default_factory", "post_init"} & schema.keys() or schema.get("custom_init") is True
        return bool(own) or any(_has_code(value) for key, value in schema.items() if key != "metadata")
    if isinstance(schema, (list, tuple)):
        return any(map(_has_code, schema))
    return schema is None or type(schema).__name__ == "MockCoreSchema"  # not built yet


def _is_langchain(kind: Any) -> bool:
    root = _root(kind)
    return root in ("langchain_core", "langchain_dp") or (root.startswith("langchain_") and _is_installed(root))


def _is_installed(root: str) -> bool:
    module = sys.modules.get(root)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(folder in pathlib.PurePath(str(place)).parts for place in places for folder in _INSTALLED)


def _root(kind: Any) -> str:
    return str(getattr(kind, "__module__", None)).partition(".")[0]


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _is_sync_only(part: Runnable[Any, Any]) -> bool:
    kind: Any = type(part)
    if isinstance(part, RunnableLambda):
        return not hasattr(part, "afunc")
    if isinstance(part, RunnableGenerator):
        return not hasattr(part, "_atransform")
    if isinstance(part, BaseChatModel):
        streams = getattr(part, "streaming", False) and kind._astream is not BaseChatModel._astream
        return bool(
            not streams
            and kind.ainvoke is BaseChatModel.ainvoke
            and kind.agenerate is BaseChatModel.agenerate
            and kind._agenerate in (BaseChatModel._agenerate, SimpleChatModel._agenerate)
        )
    if isinstance(part, LLM) and kind._agenerate is LLM._agenerate:
        return bool(kind.ainvoke is BaseLLM.ainvoke and kind._acall is LLM._acall)
    if isinstance(part, BaseLLM):
        return bool(kind.ainvoke is BaseLLM.ainvoke and kind._agenerate is BaseLLM._agenerate)
    for base in decision_models():
        if isinstance(part, base):
            return bool(kind.ainvoke is base.ainvoke and kind._aclassify is base._aclassify)
    return bool(kind.ainvoke is Runnable.ainvoke)
