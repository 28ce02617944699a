"""Quiet copies: the same model without its own callbacks, cache and verbosity, wherever it sits in fields of others.

What sits elsewhere is silenced by the seal alone; a copy also keeps a model's code from reading its own settings.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import Any

from langchain_core.language_models import LLM, BaseChatModel, BaseLanguageModel, BaseLLM, SimpleChatModel
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda, RunnableSerializable
from langchain_core.runnables.base import RunnableBindingBase

from langchain_dp.errors import InvalidParameter


@dataclasses.dataclass
class Survey:
    """What was met on the way down: the models, and the parts whose fields are not known."""

    models: list[BaseLanguageModel[Any]] = dataclasses.field(default_factory=list)
    opaque: list[Runnable[Any, Any]] = dataclasses.field(default_factory=list)

    def blocks(self) -> bool:
        """Whether every ``ainvoke`` in here would only run the sync code in the event loop's shared threads."""
        parts = [*self.models, *self.opaque]
        return bool(parts) and all(map(_is_sync_only, parts))

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
    """Return ``llm`` with quiet copies of everything in its fields, and what was found.

    Raises:
        InvalidParameter: It is no Runnable.
    """
    if not isinstance(llm, Runnable):
        raise InvalidParameter(
            f"Expected llm={type(llm).__name__} to be a chat model, an LLM or a Runnable. Pass e.g. ChatOpenAI(...)."
        )
    survey = Survey()
    return _copy(llm, survey), survey


def _copy(part: Any, survey: Survey) -> Any:
    if isinstance(part, RunnableSerializable):
        return _copy_fields(part, survey)
    if isinstance(part, Runnable):
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
