"""Makes tensors of privatized rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.backbone import Backbone
from langchain_dp.rapt.tuning.wire import Plain, PredictionRequest, PrivatizedText

MASK = "{mask}"


@dataclasses.dataclass(frozen=True)
class Row:
    """Token ids, starts of the plain tokens, range of the text, place of the mask or -1."""

    ids: list[int]
    plain: list[int]
    text: tuple[int, int]
    mask: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of one step, padded to one length L.

    ``ids``, ``attended`` (no padding) and ``text`` (all if it is empty) are (B, L). ``plain`` (starts of the plain
    tokens) is (B, m), ``mask`` is (B,).
    """

    ids: Tensor
    attended: Tensor
    text: Tensor
    plain: Tensor
    mask: Tensor

    def to(self, device: str) -> Batch:
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in dataclasses.fields(self)})


class Assembler:
    """Assembles special tokens, plain tokens, text and template."""

    def __init__(
        self, backbone: Backbone, *, max_tokens: int, plain_length: int, virtual: int, template: str | None
    ) -> None:
        self._backbone, self._max_tokens, self._plain_length = backbone, max_tokens, plain_length
        self._suffix: list[int] = []
        self._mask_at = -1
        if template is not None:
            if template.count(MASK) != 1 or backbone.tokenizer.mask_token_id is None:
                raise InvalidParameter(
                    f"Expected template={template!r} to hold {MASK} once, and a tokenizer with a mask token."
                )
            before, after = template.split(MASK)
            start = backbone.encode(before)
            self._suffix = [*start, int(backbone.tokenizer.mask_token_id), *backbone.encode(after)]
            self._mask_at = len(start)
        first, last = backbone.frame
        fixed = virtual + len(first) + len(last) + len(self._suffix)
        self._room = backbone.positions - fixed
        if plain_length + max_tokens > self._room:
            raise InvalidParameter(
                f"Expected max_tokens={max_tokens} and {plain_length} plain tokens to fit into {self._room} places: "
                f"the backbone reads {backbone.positions}, and {fixed} are taken by the prompt and special tokens. "
                "Give a smaller max_tokens."
            )

    def rows(self, request: PredictionRequest) -> tuple[list[Row], int]:
        rows, cut = [], 0
        for position, (plain, text) in enumerate(zip(request.plain, request.inputs, strict=True)):
            if len(plain) != self._plain_length:
                raise InvalidParameter(
                    f"Expected {self._plain_length} plain tokens in row {position}, got {len(plain)}. Use the client "
                    "of this model."
                )
            row, was_cut = self._row(plain, text)
            rows.append(row)
            cut += was_cut
        return rows, cut

    def _row(self, plain: Plain, text: PrivatizedText) -> tuple[Row, bool]:
        (first, last), cut = self._backbone.frame, self._backbone.encode
        ids, places = list(first), []
        for token in plain:
            places.append(len(ids))
            ids += self._known([token]) if isinstance(token, int) else cut(token) or [self._backbone.unknown]
        own = self._known(text) if isinstance(text, list) else cut(text)
        # Plain words of several tokens take more room than planned.
        room = min(self._max_tokens, max(0, self._room + len(first) - len(ids)))
        start, end = len(ids), len(ids) + min(len(own), room)
        ids += own[:room]
        mask = len(ids) + self._mask_at if self._suffix else -1
        return Row([*ids, *self._suffix, *last], places, (start, end), mask), len(own) > room

    def _known(self, ids: Sequence[int]) -> list[int]:
        size = len(self._backbone.words)
        if any(not -1 <= i < size for i in ids):
            raise InvalidParameter(f"Expected token ids from -1 to {size - 1}. Use the client of this model.")
        return [self._backbone.unknown if i < 0 else i for i in ids]


def collate(rows: Sequence[Row], pad: int) -> Batch:
    length = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    attended = torch.zeros((len(rows), length), dtype=torch.long)
    text = torch.zeros((len(rows), length), dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        attended[number, : len(row.ids)] = 1
        start, end = row.text if row.text[0] < row.text[1] else (0, len(row.ids))
        text[number, start:end] = True
    return Batch(
        ids,
        attended,
        text,
        torch.tensor([row.plain for row in rows], dtype=torch.long).reshape(len(rows), -1),
        torch.tensor([row.mask for row in rows], dtype=torch.long),
    )
