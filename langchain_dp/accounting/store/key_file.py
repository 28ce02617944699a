"""The key of a ledger's hashes, in a file of its own: neither file alone allows to test a guess.

A ledger's file holds the charges, the journal of each run and the released sanitized texts, which must stay together.
Of private data it holds keyed hashes only: of records, documents, users and raw texts. Their key is 32 bytes from the
operating system in ``<ledger>.key``, readable by its owner alone. (A run splits its records by a key of its own, kept
in the journal under a mask from the ledger's key.) So:

- The ledger's file alone shows releases and costs, and tests no guess at a record or a text. The key alone is random.
- Both together test guesses. The key stays where the records are.
- The key is made at its first use and is on disk before anything is hashed. From then on the ledger holds its check
  value for good: under a new key every account would begin at zero, and a run would split its records differently. A
  lost, damaged or foreign key is refused, and so is a new ledger beside an old key.
- A backup holds both files. Charges and releases are in one file, so every copy holds both as of one moment. A process
  that has seen newer entries refuses an older copy. A process that starts on an older copy cannot know that it undoes
  charges, and with them the limit.

The key of a ledger in a database is outside of it: in the file that its URL names (``key_file=``), or as ``<id of the
ledger>.key`` in the folder of the environment variable LANGCHAIN_DP_KEYS. Each machine has a copy of the file.
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
    """Return a new random key."""
    return secrets.token_bytes(_BYTES)


def keyed(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA256."""
    return hmac.new(key, message, hashlib.sha256).digest()


def digest(key: bytes, domain: str, text: str) -> bytes:
    """Return a keyed hash of ``text``. Equal texts of two domains have different hashes."""
    return keyed(key, domain.encode() + b"\0" + text.encode("utf-8", "surrogatepass"))


def check_value(key: bytes) -> bytes:
    """Return the value by which a ledger recognizes its key."""
    return keyed(key, b"check")


def bound_key(connection: Connection, file: str, ledger_id: str, kind: str, remedy: str) -> bytes:
    """Return the key of a ledger in ``file``, made if the ledger never had one, in a transaction that may write.

    ``kind`` (the ledger's name) and ``remedy`` (with a placeholder for the key) go into messages.
    """
    check = connection.execute("SELECT key_check FROM ledger").fetchone()[0]
    key = read_key(file, ledger_id, kind)
    if key is None and check:
        raise LedgerCorrupt(
            f"The key {file} of the {kind} is gone, and with another one its hashes would match nobody: what "
            f"was released would be forgotten. {remedy.format('it')}"
        )
    if key is None:
        key = new_key()
        write_key(file, ledger_id, key, kind)
    if not check:
        connection.execute("UPDATE ledger SET key_check = ?", (check_value(key),))
    elif not hmac.compare_digest(check_value(key), check):
        raise LedgerMismatch(
            f"The key {file} is not the one that the {kind} was made with: its hashes would match nobody. "
            f"{remedy.format('the right one')}"
        )
    return key


def write_key(file: str, ledger_id: str, key: bytes, kind: str) -> None:
    """Write ``key`` into ``file``, durably, whole or not at all."""
    try:
        write_whole(Path(file), f"{ledger_id} {key.hex()}\n", owner_only=True)
    except OSError as error:
        raise LedgerUnwritable(
            f"The key {file} of the {kind} cannot be written durably ({error.strerror}). Make its folder "
            "writable, or free space on the disk."
        ) from None


def read_key(file: str, ledger_id: str, kind: str) -> bytes | None:
    """Return the key in ``file``. None if there is no file."""
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
