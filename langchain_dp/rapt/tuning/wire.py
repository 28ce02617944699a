"""Messages between client and provider."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_dp.errors import InvalidParameter

Kind = Literal["tokens", "text"]
PrivatizedText = list[int] | str
"""Token ids, or text."""
Plain = list[int] | list[str]
"""Ids, or words."""

PROVIDER, WEIGHTS = "provider.json", "model.safetensors"
"""Files of a saved provider."""

VERSION = 1
_ONE = 1 + 1e-6  # as some hardware rounds
MOST = 4_096
"""Texts in a request."""


@dataclasses.dataclass(frozen=True, repr=False)
class PredictionRequest:
    """Privatized texts and the privatized plain tokens before them, for a provider.

    Args:
        kind: "tokens": ids of the backbone's vocabulary (-1: unknown). "text": text for its tokenizer.
        plain: Privatized plain tokens, one row per text.
        inputs: Privatized texts, of the same kind.

    Raises:
        InvalidParameter: A value has another form. The message holds no part of it.

    Examples:
        >>> request = client.request(["The film was a joy."])
        >>> len(PredictionRequest.from_json(request.to_json()))
        1
    """

    kind: Kind
    plain: Sequence[Plain]
    inputs: Sequence[PrivatizedText]

    def __post_init__(self) -> None:
        if self.kind not in ("tokens", "text"):
            raise InvalidParameter("Expected a request of the kind 'tokens' or 'text'.")
        if not isinstance(self.plain, list) or not isinstance(self.inputs, list):
            raise InvalidParameter("Expected a request with lists of plain tokens and of inputs.")
        if len(self.plain) != len(self.inputs) or len(self.inputs) > MOST:
            raise InvalidParameter(
                f"Expected a request with as many rows of plain tokens as inputs, at most {MOST}, got "
                f"{len(self.plain)} and {len(self.inputs)}."
            )
        one = int if self.kind == "tokens" else str
        for position, (plain, text) in enumerate(zip(self.plain, self.inputs, strict=True)):
            if not _row(plain, one) or not (isinstance(text, str) if one is str else _row(text, int)):
                raise InvalidParameter(
                    f"Expected row {position} of a request to be of the kind {self.kind!r}. Make it with a RAPTClient."
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"PredictionRequest({self.kind}, {len(self)} privatized texts)"

    def to_json(self) -> bytes:
        """UTF-8 JSON."""
        fields = {"version": VERSION, "kind": self.kind, "plain": self.plain, "inputs": self.inputs}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, body: bytes) -> PredictionRequest:
        """Read a request."""
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, Mapping) or set(fields) != {"version", "kind", "plain", "inputs"}:
            raise InvalidParameter("Expected a JSON request with version, kind, plain and inputs.") from None
        if fields["version"] != VERSION:
            raise InvalidParameter(f"Expected a request of version {VERSION}. Update the older side.")
        return cls(fields["kind"], fields["plain"], fields["inputs"])


@dataclasses.dataclass(frozen=True, repr=False)
class Answer:
    """Answer of a provider."""

    labels: tuple[str, ...]
    probabilities: list[list[float]]

    def __post_init__(self) -> None:
        labels, rows = self.labels, self.probabilities
        whole = all(isinstance(label, str) for label in labels) and len(set(labels)) == len(labels)
        if not whole or any(
            len(row) != len(labels) or not all(type(one) in (int, float) and 0 <= one <= _ONE for one in row)
            for row in rows
        ):
            raise InvalidParameter(
                f"Expected the provider to answer with different labels and {len(rows)} rows of one probability in "
                "[0, 1] for each. Ask it again, or look at its model."
            )

    def to_json(self) -> bytes:
        """UTF-8 JSON."""
        return json.dumps({"labels": list(self.labels), "probabilities": self.probabilities}).encode()

    @classmethod
    def from_json(cls, body: bytes, *, texts: int) -> Answer:
        """Read an answer for this many texts."""
        try:
            fields: Any = json.loads(body)
            labels, rows = tuple(fields["labels"]), [list(row) for row in fields["probabilities"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            labels, rows = (), []
        if not labels or len(rows) != texts:
            raise InvalidParameter(f"Expected the provider to answer with labels and {texts} rows of probabilities.")
        return cls(labels, rows)


def _row(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)
