"""The promise for training texts, from their own certificate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting.metric import MetricCertificate, per
from langchain_dp.errors import InvalidParameter

ACCOUNT = "account"
"""Parameter with an opaque name of the account: two certificates of one account count the same releases."""
SETTINGS = "settings"
"""Parameter with a digest of the privatization; see ``RAPTClient.settings``."""
TRAINING_ETA = "training_eta"
TRAINING_MECHANISM = "training_mechanism"
"""Parameters of a training certificate with the privatization of the training texts alone."""

_SPENT = ("user_spent", "document_spent")
_LIMITS = ("user_limit", "document_limit")
_SAME = 1e-6  # calibrations on two machines may differ in the last digits of eta


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """Privatization of the training texts: eta (infinite in clear), mechanism, and table of the distances."""

    eta: float
    mechanism: str
    table: str

    def note(self, eta: float, mechanism: str, table: str) -> str | None:
        """Warn that queries are privatized differently; None otherwise."""
        one, two = _units(self.table, table)
        if not one and self.mechanism == mechanism and _same(self.eta, eta):
            return None
        return (
            f"The model was trained on texts privatized at eta={self.eta:g}{one} ({self.mechanism}); "
            f"questions are privatized at eta={eta:g}{two} ({mechanism})."
        )

    @classmethod
    def of(cls, certificate: MetricCertificate) -> TrainedOn:
        """Read it from a training certificate, whose own eta may be that of validation texts."""
        known = certificate.parameters
        eta, mechanism = known.get(TRAINING_ETA), known.get(TRAINING_MECHANISM)
        return cls(
            certificate.eta if eta is None else float(eta),
            certificate.mechanism if mechanism is None else str(mechanism),
            certificate.table,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {"eta": _json_eta(self.eta), "mechanism": self.mechanism, "table": self.table}


def joined(one: MetricCertificate, other: MetricCertificate) -> MetricCertificate:
    """Join two certificates into one with the larger of each value.

    Certificates of one account count the same releases, so the later one holds. Those of two accounts add up, and the
    result names neither, so that a third one is added whole: it may count too much, never too little.
    """
    if one.table != other.table:
        raise InvalidParameter(
            f"Expected training and validation texts privatized over one table, got {one.table!r} and {other.table!r}. "
            "Privatize both over one."
        )
    worse = max(one, other, key=lambda each: (not each.private, each.eta))
    account = one.parameters.get(ACCOUNT)
    if account is not None and account == other.parameters.get(ACCOUNT):
        later = max(one, other, key=lambda each: (each.releases, each.document_spent or 0.0))
        counts = {name: getattr(later, name) for name in (*_SPENT, *_LIMITS, "releases")}
        parameters = {**other.parameters, **one.parameters}
    else:
        counts = {"releases": one.releases + other.releases}
        for name in (*_SPENT, *_LIMITS):
            both = getattr(one, name), getattr(other, name)
            known = [value for value in both if value is not None]
            # Two limits add up; one limit alone does not bind.
            counts[name] = sum(known) if len(known) == 2 or (known and name in _SPENT) else None
        parameters = {k: v for k, v in {**other.parameters, **one.parameters}.items() if k != ACCOUNT}
    notes = tuple(dict.fromkeys((*one.notes, *other.notes)))
    return dataclasses.replace(worse, **counts, notes=notes, parameters=parameters)


def _same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=_SAME)


def _units(one: str, other: str) -> tuple[str, str]:
    """Units of two etas; empty if both count in distances of one table."""
    return ("", "") if one == other else (f" {per(one)}", f" {per(other)}")


def _json_eta(eta: float) -> float | str:
    return "inf" if math.isinf(eta) else eta


def of_training(
    train: MetricCertificate,
    held: MetricCertificate | None,
    *,
    inference_eta: float,
    inference_table: str,
    notes: Sequence[str],
    parameters: Mapping[str, float | int | str],
) -> MetricCertificate:
    """Certificate of a training: joins those of its texts and validation texts (``held``), and adds notes."""
    etas = {TRAINING_ETA: train.eta, "inference_eta": inference_eta}
    all_notes = list(notes)
    whole = train
    if held is not None:
        etas["validation_eta"] = held.eta
        whole = joined(train, held)
        if not held.private and train.private:
            all_notes.append(f"The validation texts are NOT private: {held.reason}.")
        elif (held.eta, held.mechanism) != (train.eta, train.mechanism):
            all_notes.append(f"The validation texts were privatized at eta={held.eta:g} ({held.mechanism}).")
    one, two = _units(train.table, inference_table)
    if one or not _same(train.eta, inference_eta):
        all_notes.append(
            f"The training texts were privatized at eta={train.eta:g}{one}; plain tokens were, and questions will be, "
            f"at eta={inference_eta:g}{two}."
        )
    json_etas = {name: _json_eta(eta) for name, eta in etas.items()}
    return dataclasses.replace(
        whole,
        notes=tuple(dict.fromkeys((*whole.notes, *all_notes))),
        parameters={**whole.parameters, **json_etas, TRAINING_MECHANISM: train.mechanism, **parameters},
    )
