"""What is refused before a question is charged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.client import RAPTClient


def check_parts(client: RAPTClient, provider: Any) -> None:
    """Refuse what could not answer before a question is charged.

    Raises:
        InvalidParameter: Something is of another type, or client and model do not belong together.
    """
    if not isinstance(client, RAPTClient):
        raise InvalidParameter(
            f"Expected client of type {type(client).__name__} to be a RAPTClient. Give RAPTClient.load(folder, "
            "sanitizer)."
        )
    if callable(provider):
        return
    if isinstance(provider, (str, bytes)):
        raise InvalidParameter(
            "Expected provider to be a RAPTProvider or a function, not an address. Give a function that posts the "
            "body there: lambda body: httpx.post(address, content=body).raise_for_status().content."
        )
    if not callable(getattr(provider, "predict", None)):
        raise InvalidParameter(
            f"Expected provider of type {type(provider).__name__} to be a RAPTProvider, or a function that posts a "
            "request's body and returns the body of the answer."
        )
    wanted, length = provider.settings.plain.length, client.plain.settings.length
    if (provider.kind, wanted) != (client.kind, length):
        raise InvalidParameter(
            f"Expected a client of {provider.kind} with {wanted} plain tokens, as the model was trained on, got "
            f"{client.kind} with {length}. Use the client of this model."
        )
    if client.kind == "tokens" and not provider.backbone.matches(client.vocabulary):
        raise InvalidParameter(
            f"Expected a client whose tokens are those of {provider.backbone}, got the table {client.table!r}: its ids "
            "are other words. Use the client of this model."
        )


def check_list(texts: Sequence[object]) -> None:
    """Refuse one text in place of a list: its letters would be asked, and charged, one by one.

    Raises:
        InvalidParameter: It is one.
    """
    if isinstance(texts, (str, bytes)):
        raise InvalidParameter("Expected texts to be a list of strings, not one. Give [text], or call invoke.")
