"""Ed25519 signatures of canonical JSON, checked byte by byte."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter

_FIELDS = {"certificate", "code", "ledger", "version", "signature"}
_MAKE = (
    "Make a pair with: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out pub.pem"
)


@functools.cache
def code_digest() -> str:
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        name, code = path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {code}\n".encode())
    return digest.hexdigest()


def signed_text(fields: Mapping[str, Any], key: str | os.PathLike[str]) -> str:
    signature = _key(key, private=True).sign(_canonical(fields).encode())
    return _canonical({**fields, "signature": signature.hex()}) + "\n"


def verified(text: str, public_key: str | os.PathLike[str]) -> dict[str, Any]:
    key = _key(public_key, private=False)
    exceptions: Any = importlib.import_module("cryptography.exceptions")
    fields = _fields(text)
    signature = _bytes(fields.pop("signature"))
    wrong = text.strip() != _canonical({**fields, "signature": signature.hex()})
    try:
        key.verify(signature, _canonical(fields).encode())
    except exceptions.InvalidSignature:
        wrong = True
    if wrong:
        raise InvalidParameter(
            "The signature is wrong: the certificate was changed after it was signed, or another key signed it. Do not "
            "trust it. Ask for the signed file and the public key again."
        )
    return fields


def _canonical(fields: Mapping[str, Any]) -> str:
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
        "Expected a signed certificate, as certificate().sign(key) returns it, but this text is not one. Files that "
        "commands write are not signed."
    )


def _bytes(signature: object) -> bytes:
    try:
        return bytes.fromhex(signature)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return b""  # which no key verifies


def _key(path: str | os.PathLike[str], *, private: bool) -> Any:
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
