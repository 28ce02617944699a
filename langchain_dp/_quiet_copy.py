"""Quiet copies: the same model without its own callbacks, cache and verbosity, however deep it sits."""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import Any

from langchain_core.language_models import LLM, BaseChatModel, BaseLanguageModel, BaseLLM, SimpleChatModel
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableSerializable,
    RunnableWithMessageHistory,
)
from langchain_core.runnables.base import RunnableBindingBase

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment


@dataclasses.dataclass
class Survey:
    """What was met on the way down: the models, and the parts that cannot be looked into."""

    models: list[BaseLanguageModel[Any]] = dataclasses.field(default_factory=list)
    opaque: list[Runnable[Any, Any]] = dataclasses.field(default_factory=list)

    def blocks(self) -> bool:
        """Whether every ``ainvoke`` in here would only run the sync code in the event loop's shared threads."""
        parts = [*self.models, *self.opaque]
        return bool(parts) and all(map(_is_sync_only, parts))

    def serialises(self) -> str | None:
        """Class of the first part that says it answers one call after the other, or None."""
        parts = [*self.models, *self.opaque]
        return next((type(part).__name__ for part in parts if getattr(part, "serialises_calls", False) is True), None)

    def name(self, whole: Runnable[Any, Any]) -> str:
        """Name of the first model that says one, else the class of the first model or of the whole."""
        for model in self.models:
            for field in ("model_name", "model", "model_id", "deployment_name"):
                value = getattr(model, field, None)
                # An address may hold a password, so it is no name.
                if isinstance(value, str) and value and "://" not in value and "@" not in value:
                    return os.path.basename(value) if os.path.isabs(value) else value[:200]
        return type(self.models[0] if self.models else whole).__name__


def quiet_copy(llm: Any) -> tuple[Runnable[Any, Any], Survey]:
    """Return ``llm`` with quiet copies of everything reachable inside it, and what was found.

    Raises:
        InvalidParameter: It is no Runnable.
        UnsafeEnvironment: It keeps what it is told: a message history, a graph with a checkpointer, a cache inside a
            function.
    """
    if not isinstance(llm, Runnable):
        raise InvalidParameter(
            f"Expected llm={type(llm).__name__} to be a chat model, an LLM or a Runnable. Pass e.g. ChatOpenAI(...)."
        )
    survey = Survey()
    return _copy(llm, survey), survey


def _copy(part: Any, survey: Survey) -> Any:
    if isinstance(part, RunnableWithMessageHistory):
        raise UnsafeEnvironment(
            "Expected llm to keep nothing of its prompts, but RunnableWithMessageHistory stores them. "
            "Pass the model inside it."
        )
    if isinstance(part, RunnableSerializable):
        return _copy_fields(part, survey)
    if isinstance(part, Runnable):
        _refuse_memory(part)
        _refuse_cached_closure(part)
        survey.opaque.append(part)
        return part
    if type(part) in (list, tuple):
        items = [_copy(item, survey) for item in part]
        # A container without models stays the very same object: the model may share it with its owner.
        return part if all(map(operator.is_, items, part)) else type(part)(items)
    if type(part) is dict:
        fields = {key: _copy(item, survey) for key, item in part.items()}
        return part if all(map(operator.is_, fields.values(), part.values())) else fields
    return part


def _copy_fields(part: RunnableSerializable[Any, Any], survey: Survey) -> RunnableSerializable[Any, Any]:
    fields = type(part).model_fields
    if isinstance(part, BaseLanguageModel):
        survey.models.append(part)
    elif not type(part).__module__.startswith("langchain_core."):
        survey.opaque.append(part)
    update = {}
    for field in fields:
        value = part.__dict__.get(field)
        if isinstance(value, (Runnable, list, tuple, dict)):
            copied = _copy(value, survey)
            if copied is not value:
                update[field] = copied
    # Models have all three, tools and agents some of them.
    silent = {"callbacks": None, "verbose": False}
    if isinstance(part, BaseLanguageModel):
        silent["cache"] = False
    update.update({field: value for field, value in silent.items() if field in fields})
    if isinstance(part, RunnableBindingBase):
        update["config"] = {key: value for key, value in part.config.items() if key not in ("callbacks", "run_id")}
        update["config_factories"] = []  # with_listeners() puts its handlers in here
    return part.model_copy(update=update)


def _refuse_memory(part: Runnable[Any, Any]) -> None:
    """Refuse a graph that remembers: a vote would read the prompts of all votes before it, and be stored with them."""
    for name in ("checkpointer", "store", "cache"):
        if getattr(part, name, None) not in (None, False):
            raise UnsafeEnvironment(
                f"Expected llm to keep nothing of its prompts, but {type(part).__name__} has a {name}. Compile the "
                "graph without one."
            )
    graphs = getattr(part, "get_subgraphs", tuple)  # a graph's own iterator over (name, graph)
    for other in (*(graph for _, graph in graphs()), *(part.deps if isinstance(part, RunnableLambda) else ())):
        if isinstance(other, Runnable) and not isinstance(other, RunnableSerializable):
            _refuse_memory(other)


def _refuse_cached_closure(part: Runnable[Any, Any]) -> None:
    for model in part.deps if isinstance(part, RunnableLambda) else ():
        if isinstance(model, BaseLanguageModel) and model.cache not in (None, False):
            raise UnsafeEnvironment(
                f"Expected the {type(model).__name__} called inside llm={type(part).__name__} to have cache=False: "
                "its cache would store private prompts. Set cache=False on it, or pass the model itself as llm."
            )


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
    return bool(kind.ainvoke is Runnable.ainvoke)
