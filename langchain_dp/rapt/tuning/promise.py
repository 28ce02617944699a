"""What is said of the texts that a model was trained on: their own promise, and not that of whoever trains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting.metric import MetricCertificate, per
from langchain_dp.errors import InvalidParameter

ACCOUNT = "account"
"""Parameter that tells accounts apart and shows nothing of them: two certificates of one count the same releases."""

SETTINGS = "settings"
"""Parameter: digest of what of a text was privatized, and how; see ``RAPTClient.settings``."""

TRAINING_ETA = "training_eta"
TRAINING_MECHANISM = "training_mechanism"
"""Parameters of a training certificate: how the training texts alone were privatized."""

_SPENT = ("user_spent", "document_spent")
_LIMITS = ("user_limit", "document_limit")
_SAME = 1e-6  # an eta that was calibrated on another machine may differ in its last digits


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """How the texts were privatized that a model was trained on.

    Args:
        eta: Loss of one release, in nats per unit of distance; infinite if they were in clear.
        mechanism: What drew their words.
        table: Whose distances eta is counted by.
    """

    eta: float
    mechanism: str
    table: str

    def note(self, eta: float, mechanism: str, table: str) -> str | None:
        """What a reader must know where questions are privatized otherwise; None where they are not."""
        one, two = _units(self.table, table)
        if not one and self.mechanism == mechanism and _same(self.eta, eta):
            return None
        return (
            f"The model was trained on texts privatized at eta={self.eta:g}{one} ({self.mechanism}); "
            f"questions are privatized at eta={eta:g}{two} ({mechanism})."
        )

    @classmethod
    def of(cls, certificate: MetricCertificate) -> TrainedOn:
        """What a training certificate says of its training texts; its own eta may be that of validation texts."""
        known = certificate.parameters
        eta, mechanism = known.get(TRAINING_ETA), known.get(TRAINING_MECHANISM)
        return cls(
            certificate.eta if eta is None else float(eta),
            certificate.mechanism if mechanism is None else str(mechanism),
            certificate.table,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that strict JSON can hold."""
        return {"eta": _told(self.eta), "mechanism": self.mechanism, "table": self.table}


def joined(one: MetricCertificate, other: MetricCertificate) -> MetricCertificate:
    """One certificate for texts that came under two: nothing in it is smaller than in either.

    Certificates of one account count the same releases, so that the later one holds; those of two accounts add up. What
    came under two accounts names neither, so that a third certificate is added whole: too much may be counted, never
    too little.
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
            # Of two limits the sum binds; of a limit and none nothing does.
            counts[name] = sum(known) if len(known) == 2 or (known and name in _SPENT) else None
        parameters = {k: v for k, v in {**other.parameters, **one.parameters}.items() if k != ACCOUNT}
    notes = tuple(dict.fromkeys((*one.notes, *other.notes)))
    return dataclasses.replace(worse, **counts, notes=notes, parameters=parameters)


def _same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=_SAME)


def _units(one: str, other: str) -> tuple[str, str]:
    """The units of two etas; empty where both count in distances of one table."""
    return ("", "") if one == other else (f" {per(one)}", f" {per(other)}")


def _told(eta: float) -> float | str:
    """As strict JSON, and a certificate's parameter, can hold it."""
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
    """The certificate of a training: that of its texts and validation texts (``held``), with what training adds.

    ``eta`` is the larger one of both; the parameters name each, and that at which questions are privatized.
    """
    etas = {TRAINING_ETA: train.eta, "inference_eta": inference_eta}
    said = list(notes)
    whole = train
    if held is not None:
        etas["validation_eta"] = held.eta
        whole = joined(train, held)
        if not held.private and train.private:
            said.append(f"The validation texts are NOT private: {held.reason}.")
        elif (held.eta, held.mechanism) != (train.eta, train.mechanism):
            said.append(f"The validation texts were privatized at eta={held.eta:g} ({held.mechanism}).")
    one, two = _units(train.table, inference_table)
    if one or not _same(train.eta, inference_eta):
        said.append(
            f"The training texts were privatized at eta={train.eta:g}{one}; plain tokens were, and questions will be, "
            f"at eta={inference_eta:g}{two}."
        )
    told = {name: _told(eta) for name, eta in etas.items()}
    return dataclasses.replace(
        whole,
        notes=tuple(dict.fromkeys((*whole.notes, *said))),
        parameters={**whole.parameters, **told, TRAINING_MECHANISM: train.mechanism, **parameters},
    )
