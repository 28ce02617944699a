"""The key of a ledger's hashes, in a file of its own: neither file alone allows to test a guess.

The ledger stores a check value of its key, and refuses a lost, damaged or foreign one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting.store.backend import Connection
from langchain_dp.errors import LedgerCorrupt, LedgerMismatch, LedgerUnwritable

SUFFIX = ".key"
_BYTES = 32


def new_key() -> bytes:
    return secrets.token_bytes(_BYTES)


def keyed(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def digest(key: bytes, domain: str, text: str) -> bytes:
    return keyed(key, domain.encode() + b"\0" + text.encode("utf-8", "surrogatepass"))


def check_value(key: bytes) -> bytes:
    return keyed(key, b"check")


def bound_key(connection: Connection, file: str, ledger_id: str, kind: str, remedy: str) -> bytes:
    """Return the ledger's key. If it never had one, a new key is on disk first."""
    check = connection.execute("SELECT key_check FROM ledger").fetchone()[0]
    key = read_key(file, ledger_id, kind)
    if key is None and check:
        raise LedgerCorrupt(
            f"The key {file} of the {kind} is gone, and with another one its hashes would match nobody: releases "
            f"would be forgotten. {remedy.format('it')}"
        )
    if key is None:
        key = new_key()
        try:
            write_whole(Path(file), f"{ledger_id} {key.hex()}\n", owner_only=True)
        except OSError as error:
            raise LedgerUnwritable(
                f"The key {file} of the {kind} cannot be written durably ({error.strerror}). Make its folder "
                "writable, or free space on the disk."
            ) from None
    if not check:
        connection.execute("UPDATE ledger SET key_check = ?", (check_value(key),))
    elif not hmac.compare_digest(check_value(key), check):
        raise LedgerMismatch(
            f"The key {file} is not the one that the {kind} was made with: its hashes would match nobody. "
            f"{remedy.format('the right one')}"
        )
    return key


def read_key(file: str, ledger_id: str, kind: str) -> bytes | None:
    try:
        owner, digits = Path(file).read_text(encoding="ascii").split()
        key = bytes.fromhex(digits)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerUnwritable(
            f"The key {file} of the {kind} cannot be read ({error.strerror}). Make it readable for the "
            "user of this process, and for nobody else."
        ) from None
    except ValueError:
        owner, key = "", b""
    if len(key) != _BYTES:
        raise LedgerCorrupt(
            f"Expected {file} to hold the key of the {kind} beside it, but it is damaged. Bring it back "
            "from the backup that holds both files."
        )
    if owner != ledger_id:
        raise LedgerMismatch(
            f"The key {file} belongs to another ledger than the one beside it. Restore that ledger, or move "
            "the key away if what was released under it may be forgotten."
        )
    return key
