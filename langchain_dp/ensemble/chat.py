"""What the chat faces share: no cache but the chain's own, and a reply that carries its certificate."""

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
    """A chat model whose replies are private releases of a chain. Subclasses say which.

    Raises:
        InvalidParameter: A cache of LangChain's is asked for, or tools are bound.
    """

    # LangChain's caches cannot tell two chains apart, and would keep answers of forgotten records: the chain keeps its
    # own.
    cache: BaseCache | bool | None = Field(default=False, exclude=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if idle := sorted(kwargs.keys() - type(self).model_fields):  # not refused: LangChain's suites give them
            warn_caller(f"{idle} have no effect: what a chat face releases is fixed by its chain.", UserWarning)
        if self.cache is not False:
            raise InvalidParameter(
                "Expected cache=False: LangChain's caches mix chains and keep what is forgotten; the chain keeps its "
                "own answers."
            )

    @property
    def _released_by(self) -> str:
        """Name of the model that the certificate names."""
        raise NotImplementedError

    @property
    def _answers(self) -> ChecksBatches:
        """The chain."""
        raise NotImplementedError

    def _checked_question(self, question: Any) -> str:
        try:
            messages = self._convert_input(question).to_messages()
        except Exception:  # LangChain's text would show it
            raise InvalidParameter(
                f"Expected a str, a list of messages or a prompt value, not {type(question).__name__}. Nothing was "
                "spent."
            ) from None
        return self._answers._checked_question(messages)

    def generate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        """As LangChain's; of several, one that is refused is found before one is charged."""
        return super().generate(self._looked_at(messages, len(messages) < 2), *args, **kwargs)

    async def agenerate(self, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> LLMResult:
        """As :meth:`generate`."""
        checked = await in_own_thread(self._looked_at, messages, len(messages) < 2)
        return await super().agenerate(checked, *args, **kwargs)

    def _count(self, text: str) -> int:
        """Tokens of a text, or an estimate."""
        raise NotImplementedError

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(name.removeprefix("_"), chain) for name, chain in (self.__pydantic_private__ or {}).items()]

    def get_num_tokens(self, text: str) -> int:
        """Tokens of the model below, or an estimate. LangChain's own would ask a hub for another model's."""
        return self._count(text)

    def bind_tools(self, tools: object, **kwargs: Any) -> NoReturn:
        """Refuse: a private answer calls no tool, and is no object of a schema."""
        raise InvalidParameter(
            "Expected no tools and no structured output: what is released is a text, which calls none and fills no "
            "schema. Give the chain itself to an agent as a tool, by its as_tool()."
        )

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "langchain-dp"
        params["ls_model_name"] = self._released_by
        return params


def check_nothing_further(kwargs: Mapping[str, Any]) -> None:
    """What was bound to a call, such as tools or a length, would be ignored, and the answer paid for all the same."""
    reject_extra_kwargs(kwargs, remedy="What is released was fixed when its budget was reserved. Unbind them.")


def check_no_quotas(chain: str, quotas: object) -> None:
    """Refuse a chain that has to know who asks."""
    if quotas is not None:
        raise InvalidParameter(
            f"Expected a {chain} without quotas=: LangChain does not tell a chat model who asks. Use the {chain} "
            "itself, or its as_tool()."
        )


def stop_strings(stop: object) -> tuple[str, ...]:
    """The strings that cut a reply, from what a caller gave: one, several or None."""
    given = () if stop is None else stop
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(one, str) for one in found):
        raise InvalidParameter(f"Expected stop of type {type(stop).__name__} to be a list of str. Nothing was spent.")
    return tuple(one for one in found if isinstance(one, str) and one)


def reply_metadata(
    certificate: PrivacyCertificate, count: Callable[[str], int], *, asked: str, said: str
) -> dict[str, Any]:
    """Fields of a reply beside its content.

    Args:
        certificate: Of what was released.
        count: Tokens of a text. Where they cannot be had, the reply has no usage: it is paid for, and leaves.
        asked: The question.
        said: The answer. How many tokens the private records held is private.
    """
    fields: dict[str, Any] = {"response_metadata": {"dp": certificate.to_dict(), "model_name": certificate.model}}
    with contextlib.suppress(ModelUnavailable, InvalidParameter):
        read, written = count(asked), count(said)
        fields["usage_metadata"] = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return fields
