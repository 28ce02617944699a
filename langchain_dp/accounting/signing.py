"""Signed certificates, which anybody with the public key can check elsewhere.

A signed certificate is one line of JSON: the certificate, the id of its ledger, the package's version, a hash of the
package's code, and an Ed25519 signature of all of this. It is checked byte by byte: other blanks or digits are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from langchain_dp._util.extras import needs
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.certificate import INCLUDING, ROUNDED, PrivacyCertificate, library_version, one_line
from langchain_dp.errors import InvalidParameter, LedgerMismatch

if TYPE_CHECKING:
    from langchain_dp.accounting.ledger import PrivacyLedger
    from langchain_dp.accounting.metric import MetricLedger

_FIELDS = {"certificate", "code", "ledger", "version", "signature"}
_MAKE = (
    "Make a pair with: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out pub.pem"
)


@functools.cache
def code_digest() -> str:
    """Return the SHA-256 of the package's Python files, by name."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        name, code = path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {code}\n".encode())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class SignedCertificate:
    """A certificate whose signature was verified.

    Args:
        certificate: The certificate.
        ledger: Id of the ledger that was charged; empty if none was.
        version: Version of the package that signed it.
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
        """Read the text of :meth:`PrivacyCertificate.sign`, and verify its signature.

        Args:
            text: The signed certificate.
            public_key: PEM file of the Ed25519 public key.

        Raises:
            InvalidParameter: It is no signed certificate, it was changed, or another key signed it.
            MissingExtra: cryptography is not installed.
        """
        key = _key(public_key, private=False)
        fields = _fields(text)
        signature = _bytes(fields.pop("signature"))
        with needs("encrypted", "cryptography", why=" to check a signature"):
            exceptions: Any = importlib.import_module("cryptography.exceptions")
        wrong = False
        try:
            key.verify(signature, _canonical(fields).encode())
        except exceptions.InvalidSignature:
            wrong = True
        if wrong or text.strip() != _canonical(fields | {"signature": signature.hex()}):
            raise InvalidParameter(
                "The signature is wrong: the certificate was changed after it was signed, or another key signed it. Do "
                "not trust it. Ask for the signed file and the public key again."
            )
        certificate = PrivacyCertificate.from_dict(fields["certificate"])
        return cls(certificate, fields["ledger"], fields["version"], fields["code"])

    def check_ledger(self, ledger: PrivacyLedger | MetricLedger) -> None:
        """Check that a ledger is the certificate's, and holds at least what the certificate says.

        Raises:
            LedgerMismatch: It is another ledger, or an older copy of this one.
        """
        from langchain_dp.accounting.ledger import PrivacyLedger

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
        """Return what the certificate claims, for readers who are new to differential privacy."""
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


def sign(certificate: PrivacyCertificate, key: str | os.PathLike[str]) -> str:
    """Return the text of a signed certificate; see :meth:`PrivacyCertificate.sign`."""
    private = _key(key, private=True)
    ledger = certificate.sources[0].ledger if certificate.sources else ""
    fields = {
        "certificate": certificate.to_dict(), "code": code_digest(), "ledger": ledger, "version": library_version(),
    }  # fmt: skip
    return _canonical(fields | {"signature": private.sign(_canonical(fields).encode()).hex()}) + "\n"


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
        if isinstance(fields, dict) and fields.keys() == _FIELDS and isinstance(fields["certificate"], dict):
            _canonical(fields)
            return fields
    except (ValueError, RecursionError):
        pass
    raise InvalidParameter(
        "Expected a signed certificate, as certificate().sign(key) returns it, but this text is none. Files that "
        "commands write are not signed."
    )


def _bytes(signature: object) -> bytes:
    try:
        return bytes.fromhex(signature)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return b""  # which no key verifies


def _older(ledger: str, why: str) -> LedgerMismatch:
    return LedgerMismatch(
        f"The ledger {ledger} holds less than the certificate says: {why}. It is an older copy, or was changed."
    )


def _key(path: str | os.PathLike[str], *, private: bool) -> Any:
    """Load an Ed25519 key from a PEM file."""
    with needs("encrypted", "cryptography", why=" to sign a certificate, or check one"):
        serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
        ed25519: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    content = Path(path).read_bytes()
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    try:
        key = (
            serialization.load_pem_private_key(content, None) if private else serialization.load_pem_public_key(content)
        )
    except Exception:  # of the library, in many kinds: its text may quote the key
        key = None
    if not isinstance(key, kind):
        side = "private key without a passphrase" if private else "public key"
        raise InvalidParameter(f"Expected {os.fsdecode(path)} to be an Ed25519 {side} in PEM. {_MAKE}")
    return key
