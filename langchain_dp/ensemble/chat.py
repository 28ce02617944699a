"""Base of the private chat models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from langchain_core.caches import BaseCache
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import LLMResult
from pydantic import Field

from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.ensemble.questions import ChecksBatches
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.calls import in_own_thread


class PrivateChat(ChecksBatches, BaseChatModel):
    """A chat model of private releases, without tools and LangChain's caches."""

    # LangChain's caches mix chains and keep answers of forgotten records.
    cache: BaseCache | bool | None = Field(default=False, exclude=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if idle := sorted(kwargs.keys() - type(self).model_fields):  # not refused: LangChain's suites give them
            warn_caller(f"{idle} have no effect: its chain fixes the releases of a chat model.", UserWarning)
        if self.cache is not False:
            raise InvalidParameter(
                "Expected cache=False: LangChain's caches mix chains and keep forgotten texts. The chain keeps its own "
                "answers."
            )

    @property
    def _chain(self) -> Any:
        [chain] = (self.__pydantic_private__ or {}).values()
        return chain

    def _checked_question(self, question: Any) -> str:
        try:
            messages = self._convert_input(question).to_messages()
        except Exception:  # LangChain's text would show it
            raise InvalidParameter(
                f"Expected a str, a list of messages or a prompt value, not {type(question).__name__}. Nothing was "
                "spent."
            ) from None
        return str(self._chain._checked_question(messages))

    def generate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        return super().generate(self._looked_at(messages, len(messages) < 2), *args, **kwargs)

    async def agenerate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        checked = await in_own_thread(self._looked_at, messages, len(messages) < 2)
        return await super().agenerate(checked, *args, **kwargs)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(name.removeprefix("_"), chain) for name, chain in (self.__pydantic_private__ or {}).items()]

    def get_num_tokens(self, text: str) -> int:
        """LangChain's method would download another tokenizer."""
        return int(self._chain.count_tokens(text))

    def bind_tools(self, tools: object, **kwargs: Any) -> NoReturn:
        raise InvalidParameter(
            "Expected no tools and no structured output: the release is a text, which calls none and fills no "
            "schema. Give the chain itself to an agent as a tool, by its as_tool()."
        )

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "langchain-dp"
        params["ls_model_name"] = self._chain.certificate_model
        return params


def check_nothing_further(kwargs: Mapping[str, Any]) -> None:
    """Refuse bound arguments before a charge."""
    reject_extra_kwargs(kwargs, remedy="The reserved budget fixed the release. Unbind them.")


def check_no_quotas(chain: str, quotas: object) -> None:
    if quotas is not None:
        raise InvalidParameter(
            f"Expected a {chain} without quotas=: LangChain does not tell a chat model who asks. Use the {chain} "
            "itself, or its as_tool()."
        )


def stop_strings(stop: object) -> tuple[str, ...]:
    strings: tuple[object, ...] = () if stop is None else (stop,)
    if isinstance(stop, Iterable) and not isinstance(stop, str):
        strings = tuple(stop)
    if not all(isinstance(string, str) for string in strings):
        raise InvalidParameter(f"Expected stop of type {type(stop).__name__} to be a list of str. Nothing was spent.")
    return tuple(string for string in strings if isinstance(string, str) and string)


def reply_metadata(
    certificate: PrivacyCertificate, count: Callable[[str], int], *, asked: str, said: str
) -> dict[str, Any]:
    """Omit the usage if tokens cannot be counted."""
    fields: dict[str, Any] = {"response_metadata": {"dp": certificate.to_dict(), "model_name": certificate.model}}
    with contextlib.suppress(ModelUnavailable, InvalidParameter):
        read, written = count(asked), count(said)
        fields["usage_metadata"] = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return fields
