"""Labelled texts for training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from langchain_dp._util.documents import FileForm
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.wire import MOST, Kind, PredictionRequest, PrivatizedText
from langchain_dp.records import PrivateRecords

FORMAT = "langchain-dp privatized examples 1"
LABELS_IN_CLEAR = "The labels of the training texts are in clear."

Examples = Iterable[Mapping[str, Any]] | PrivateRecords

_NO_CERTIFICATE = (
    "Expected privatized examples to come with the certificate of their privatization, got {}. Privatize them with a "
    "RAPTClient or a RAPTPromptTuner. Where nobody knows how they were privatized, say so: MetricCertificate("
    "mechanism='unknown', eta=math.inf, table=..., private=False, reason='...')."
)


@dataclasses.dataclass(frozen=True, repr=False)
class RawExamples:
    """Checked raw examples. Private."""

    texts: list[str]
    labels: list[int]
    users: list[str | None]

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return "RawExamples(<private>)"


@dataclasses.dataclass(frozen=True, repr=False)
class PrivatizedExamples:
    """Privatized training texts for a provider, with labels in clear and their certificate, which is not signed.

    Args:
        kind: "tokens" or "text".
        inputs: Privatized texts, without plain tokens.
        labels: Their labels, in clear.
        truncated: Number of truncated texts.
        certificate: Their promise.

    Raises:
        InvalidParameter: There is no certificate, or the numbers of labels and texts differ.

    Examples:
        >>> privatized = tuner.privatize(examples)
        >>> privatized.save("privatized.json")
        >>> classifier = tuner.fit(PrivatizedExamples.load("privatized.json"))  # at no further cost
    """

    kind: Kind
    inputs: Sequence[PrivatizedText]
    labels: Sequence[str]
    truncated: int
    certificate: MetricCertificate

    def __post_init__(self) -> None:
        if not isinstance(self.certificate, MetricCertificate):
            raise InvalidParameter(_NO_CERTIFICATE.format(f"one of type {type(self.certificate).__name__}"))
        if len(self.inputs) != len(self.labels):
            raise InvalidParameter(
                f"Expected as many labels as privatized texts, got {len(self.labels)} and {len(self.inputs)}."
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"PrivatizedExamples({len(self)}, {self.certificate!r})"

    def save(self, path: str | PathLike[str]) -> None:
        """Write one JSON file."""
        fields = {
            "format": FORMAT,
            "kind": self.kind,
            "inputs": list(self.inputs),
            "labels": list(self.labels),
            "truncated": self.truncated,
            "certificate": self.certificate.to_dict(),
        }
        write_whole(Path(path), json.dumps(fields).encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> PrivatizedExamples:
        """Read a saved file. InvalidParameter without a certificate."""
        form = _ExamplesForm.load(Path(path), FORMAT)
        if form.certificate is None:
            raise InvalidParameter(_NO_CERTIFICATE.format(f"none in {str(path)!r}"))
        for start in range(0, len(form.inputs), MOST):  # checked like input from outside
            some = form.inputs[start : start + MOST]
            PredictionRequest(form.kind, [[] for _ in some], some)
        certificate = MetricCertificate.from_dict(form.certificate)
        return cls(form.kind, form.inputs, form.labels, form.truncated, certificate)


class _ExamplesForm(FileForm):
    kind: Kind
    inputs: list[list[int] | str]
    labels: list[str]
    truncated: int
    certificate: dict[str, Any] | None = None


def checked(
    examples: Examples, labels: Sequence[str], *, user_key: str | None, what: str = "example", both: bool = True
) -> RawExamples:
    records = PrivateRecords(examples)
    if user_key is None and records.user_key is not None:
        raise InvalidParameter(
            f"Expected user_key={records.user_key!r} here, too: RAPT has an account per user. Pass it, or give "
            "PrivateRecords without a user_key."
        )
    rows = [records.get(name) for name in records.ids()]
    users: list[str | None] = []
    for position, row in enumerate(rows):
        if row["label"] not in labels:
            raise InvalidParameter(
                f"Expected the label of {what} {position} to be one of {list(labels)}. Repair it, or add the label."
            )
        user = None if user_key is None else row.get(user_key)
        if user_key is not None and (not isinstance(user, str) or not user):
            raise InvalidParameter(f"Expected {what} {position} to have a string under user_key={user_key!r}.")
        users.append(user)
    numbers = [list(labels).index(row["label"]) for row in rows]
    if not rows:
        raise InvalidParameter(f"Expected at least one {what}, got none.")
    if both and len(set(numbers)) < 2:
        raise InvalidParameter(
            f"Expected {what}s of at least two labels, but all {len(rows)} have one. There is nothing to learn."
        )
    return RawExamples([row["text"] for row in rows], numbers, users)
