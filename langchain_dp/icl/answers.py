"""What leaves a private classifier: a label, and with it a certificate."""

from __future__ import annotations

import dataclasses
from typing import Generic

from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.records import Label


@dataclasses.dataclass(frozen=True)
class Released:
    """What left: a label, and the noisy shares if they were asked for."""

    label: str
    shares: dict[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class DPAnswer(Generic[Label]):
    """A released label with its certificate, as of the moment it was handed over.

    Args:
        label: The released label, as it was given to the classifier.
        certificate: Under which promise it was released.
        shares: Noisy vote shares per label if they were asked for, at the same price; else None.

    Examples:
        >>> answer = chain.invoke_with_certificate("Nobody called me back.")
        >>> answer.label in LABELS
        True
        >>> print(answer.certificate)
    """

    label: Label
    certificate: PrivacyCertificate
    shares: dict[Label, float] | None = None
