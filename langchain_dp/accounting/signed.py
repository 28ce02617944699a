"""Signed certificates."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Self

from langchain_dp._util.rounding import bound
from langchain_dp.accounting.certificate import INCLUDING, ROUNDED, PrivacyCertificate, one_line
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.accounting.signing import code_digest, verified
from langchain_dp.errors import LedgerMismatch


@dataclasses.dataclass(frozen=True)
class SignedCertificate:
    """A certificate whose Ed25519 signature was verified.

    Args:
        certificate: The certificate.
        ledger: Id of the charged ledger.
        version: Version of the signing package.
        code: SHA-256 of that package's code.

    Examples:
        >>> text = ledger.certificate().sign("key.pem")  # doctest: +SKIP
        >>> SignedCertificate.read(text, "public.pem").certificate.epsilon  # doctest: +SKIP
        3.0
    """

    certificate: PrivacyCertificate
    ledger: str
    version: str
    code: str

    @classmethod
    def read(cls, text: str, public_key: str | os.PathLike[str]) -> Self:
        """Read the text of :meth:`PrivacyCertificate.sign`, and verify it with the PEM file of a public key.

        A text that is unsigned, changed or signed by another key raises InvalidParameter.
        """
        fields = verified(text, public_key)
        certificate = PrivacyCertificate.from_dict(fields["certificate"])
        return cls(certificate, fields["ledger"], fields["version"], fields["code"])

    def check_ledger(self, ledger: PrivacyLedger | MetricLedger) -> None:
        """Raise LedgerMismatch for another ledger, or one with lower costs than the certificate's."""
        own = ledger._store.ledger_id
        if own != self.ledger or not isinstance(ledger, PrivacyLedger):
            raise LedgerMismatch(
                f"The certificate belongs to the ledger {self.ledger or 'of no name'}, but this one is {own}. Name the "
                "ledger that was charged."
            )
        plans = {plan.name: plan for plan in ledger.plans()}
        named = [source for source in self.certificate.sources if source.ledger == own]
        for source in named:
            plan = plans.get(source.plan)
            if plan is None or (plan.epsilon, plan.delta) != (source.epsilon, source.delta):
                raise _older(own, f"no plan {source.plan!r} of epsilon={source.epsilon:g}, delta={source.delta:g}")
        notes = self.certificate.notes
        others = math.fsum(source.epsilon for source in self.certificate.sources if source.ledger != own)
        spent = math.fsum(
            plans[source.plan].epsilon
            if place and INCLUDING in notes  # released text that went into the run counts as reserved
            else plans[source.plan].spent(round_up=ROUNDED in notes)[0]
            for place, source in enumerate(named)
        )
        if self.certificate.spent[0] > (others + spent) * (1 + 1e-9):
            raise _older(own, f"epsilon={spent:.6g} is spent, not {self.certificate.spent[0] - others:.6g}")

    def in_plain_words(self) -> str:
        """Explain the claim in plain words."""
        one, code = self.certificate, "the code of this installation"
        if self.code != code_digest():
            code = f"other code than this installation, {self.code[:12]}"
        made = f"It was signed by langchain-dp {one_line(self.version)} ({code})."
        ledger = f"Its ledger is {one_line(self.ledger)}." if self.ledger else "It names no ledger."
        if not one.private:
            return f"It claims no privacy: {one_line(one.reason)}.\n{made} {ledger}"
        change = one.neighbors.name.lower().replace("_", " ")
        factor = f"{math.exp(one.epsilon):,.3g}" if one.epsilon < 700 else "any number"
        return (
            f"It claims epsilon {bound(one.epsilon)} and delta {bound(one.delta)}. Two data sets that differ by one "
            f"record ({change}) lead to any outcome with chances that differ by a factor of at most {factor}, except "
            f"for a chance of {bound(one.delta)}. Epsilon {bound(one.spent[0])} of this was spent.\n{made} {ledger}"
        )


def _older(ledger: str, why: str) -> LedgerMismatch:
    return LedgerMismatch(
        f"The ledger {ledger} holds less than the certificate says: {why}. It is an older copy, or was changed."
    )
