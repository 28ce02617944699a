"""Signed certificates: any change is found, and a certificate of another ledger is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyCertificate, PrivacyLedger, SignedCertificate
from langchain_dp.cli import main
from langchain_dp.errors import InvalidParameter, LedgerMismatch

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="needs the extra encrypted")
EVENT = NoisyMaxEvent(10.0)


def write_pair(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """Private and public key, as PEM files."""
    from cryptography.hazmat.primitives import serialization as forms

    key = ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with keys, a ledger with five releases, and its signed certificate."""
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path)
    with PrivacyLedger(PrivacyBudget(4.0), "privacy.ledger") as ledger:
        plan = ledger.reserve([(EVENT, 10)], name="answers", epsilon=2.5, delta=5e-6)
        plan.spend(EVENT, 5)
        Path("certificate.json").write_text(plan.certificate(model="größer").sign("key.pem"))
    return tmp_path


def check(*more: str) -> int:
    return main(["ledger", "--check", "certificate.json", "--public-key", "key.pub.pem", *more])


def test_what_was_signed_is_read_elsewhere(place: Path, capsys: Any) -> None:
    """If it breaks, somebody without the ledger cannot see what was promised, by which code, or for which ledger."""
    signed = SignedCertificate.read(Path("certificate.json").read_text(), "key.pub.pem")
    with PrivacyLedger(PrivacyBudget(4.0), "privacy.ledger") as ledger:
        plan = ledger.plan("answers")
        assert plan is not None
        assert signed.certificate == plan.certificate(model="größer")
        assert signed.ledger == plan.certificate().sources[0].ledger
    assert check("--ledger", "privacy.ledger") == 0
    said = capsys.readouterr().out
    for part in (
        "The signature is right", "It claims epsilon 2.5 and delta 5e-06.", "factor of at most 12.2",
        "the code of this installation", f"Its ledger is {signed.ledger}", "holds at least what the certificate says",
    ):  # fmt: skip
        assert part in said
    assert check("--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["certificate"]["epsilon"], shown["same_code"]) == (2.5, True)
    assert len(shown["code"]) == 64


def test_any_byte_that_changed_is_found(place: Path) -> None:
    """If it breaks, an epsilon of 3 becomes one of 1 under the same signature."""
    text = Path("certificate.json").read_text().strip()
    for place_, letter in enumerate(text):
        other = "7" if letter.isdigit() and letter != "7" else "x" if letter != "x" else "y"
        for changed in (text[:place_] + other + text[place_ + 1 :], text[:place_] + text[place_ + 1 :]):
            with pytest.raises(InvalidParameter, match=r"signature is wrong|Expected a signed certificate"):
                SignedCertificate.read(changed, "key.pub.pem")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"epsilon":2.5', '"epsilon":2.50'), ('"epsilon":2.5', '"epsilon":9,"epsilon":2.5'), (",", ", "), ("{", "{ "),
     ("\\u00f6", "\u00f6"), ('"signature":"', '"signature":" ')],
)  # fmt: skip
def test_the_same_values_in_another_spelling_are_refused(place: Path, old: str, new: str) -> None:
    """If it breaks, two readers of one signed text may read two epsilons."""
    text = Path("certificate.json").read_text()
    assert old in text
    with pytest.raises(InvalidParameter, match="signature is wrong"):
        SignedCertificate.read(text.replace(old, new, 1), "key.pub.pem")
    upper = json.loads(text)["signature"]
    with pytest.raises(InvalidParameter, match="signature is wrong"):
        SignedCertificate.read(text.replace(upper, upper.upper()), "key.pub.pem")


def test_another_ledger_and_another_key_are_named(place: Path, capsys: Any) -> None:
    """If it breaks, a certificate of a small ledger stands for a large one, or anybody signs in another's name."""
    PrivacyLedger(PrivacyBudget(4.0), "other.ledger").close()
    assert check("--ledger", "other.ledger") == 1
    said = capsys.readouterr().err
    assert "The certificate belongs to the ledger" in said
    assert "but this one is" in said
    write_pair(place, "other")
    shutil.copy("other.pub.pem", "key.pub.pem")
    assert check() == 1
    assert "another key signed it" in capsys.readouterr().err


def test_a_ledger_that_holds_less_is_refused(place: Path, capsys: Any) -> None:
    """If it breaks, a ledger that was put back to an older copy passes for the one that was charged."""
    with PrivacyLedger(PrivacyBudget(4.0), "privacy.ledger") as ledger:
        first = ledger.plan("answers")
        assert first is not None
        before = first.certificate()
        shutil.copy("privacy.ledger", "older.ledger")
        first.spend(EVENT)
        after = first.certificate()
        second = ledger.reserve([(EVENT, 1)], name="more", epsilon=0.9, delta=2e-6)
        both = ledger.certificate(EVENT)
        made_with = second.certificate().including(first.certificate().as_sources())
        rounded = first.certificate(round_up=True)
    for certificate, fits in ((before, True), (after, False), (both, False), (made_with, False), (rounded, False)):
        Path("certificate.json").write_text(certificate.sign("key.pem"))
        assert check("--ledger", "privacy.ledger") == 0
        assert check("--ledger", "older.ledger") == (0 if fits else 1)
        assert fits or "holds less than the certificate says" in capsys.readouterr().err


def test_what_is_no_key_or_no_certificate_is_said(place: Path, capsys: Any) -> None:
    """If it breaks, a mistake ends in a traceback, or quotes a key."""
    certificate = PrivacyCertificate.from_json(
        json.dumps(json.loads(Path("certificate.json").read_text())["certificate"])
    )
    for wrong, says in (("key.pub.pem", "Ed25519 private key"), ("certificate.json", "Ed25519 private key")):
        with pytest.raises(InvalidParameter, match=says):
            certificate.sign(wrong)
    for text in (certificate.to_json(), "no JSON", "[]", "{}", '{"certificate": NaN}', "\ufeff"):
        Path("certificate.json").write_text(text)
        assert check() == 1
        assert "Expected a signed certificate" in capsys.readouterr().err
    Path("certificate.json").write_bytes(b"\xff\xfe")
    assert check() == 1
    assert "Expected a signed certificate" in capsys.readouterr().err
    shutil.copy("key.pem", "key.pub.pem")
    assert check() == 1
    said = capsys.readouterr().err
    assert "Ed25519 public key in PEM" in said
    assert Path("key.pem").read_text().splitlines()[1] not in said


def test_a_certificate_without_privacy_says_so(place: Path, capsys: Any) -> None:
    """If it breaks, a signature makes a seeded run look private."""
    known: Any = {"mechanism": "m", "epsilon": 1.0, "delta": 0.0, "neighbors": "replace_one"}
    seeded = PrivacyCertificate(**known, private=False, reason="a seed")
    Path("certificate.json").write_text(seeded.sign("key.pem"))
    assert check() == 0
    assert "It claims no privacy: a seed." in capsys.readouterr().out
    with PrivacyLedger(PrivacyBudget(4.0), "privacy.ledger") as ledger, pytest.raises(LedgerMismatch, match="no name"):
        SignedCertificate.read(Path("certificate.json").read_text(), "key.pub.pem").check_ledger(ledger)
