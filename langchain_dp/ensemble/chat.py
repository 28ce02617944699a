"""What the chat faces share: no cache but the chain's own, and a reply that carries its certificate."""

from __future__ import annotations

from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages.ai import UsageMetadata
from pydantic import Field

from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.errors import InvalidParameter


class PrivateChat(BaseChatModel):
    """A chat model whose replies are private releases of a chain. Subclasses say which.

    Raises:
        InvalidParameter: A cache of LangChain's is asked for.
    """

    # LangChain's caches cannot tell two chains apart, and would keep answers of forgotten records: the chain keeps its
    # own.
    cache: BaseCache | bool | None = Field(default=False, exclude=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.cache is not False:
            raise InvalidParameter(
                "Expected cache=False: LangChain's caches mix chains and keep what is forgotten; the chain keeps its "
                "own answers."
            )

    @property
    def _released_by(self) -> str:
        """Name of the model that the certificate names."""
        raise NotImplementedError

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "langchain-dp"
        params["ls_model_name"] = self._released_by
        return params


def check_no_askers(chain: str, askers: object) -> None:
    """Refuse a chain that has to know who asks.

    Raises:
        InvalidParameter: It has ``askers``.
    """
    if askers is not None:
        raise InvalidParameter(
            f"Expected a {chain} without askers=: LangChain does not tell a chat model who asks. Use the {chain} "
            "itself, or its as_tool()."
        )


def reply_metadata(certificate: PrivacyCertificate, *, asked: int, said: int) -> dict[str, Any]:
    """Fields of a reply beside its content.

    Args:
        certificate: Of what was released.
        asked: Tokens of the question.
        said: Tokens of the answer. How many the private records held is private.
    """
    usage = UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)
    metadata = {"dp": certificate.to_dict(), "model_name": certificate.model}
    return {"response_metadata": metadata, "usage_metadata": usage}
