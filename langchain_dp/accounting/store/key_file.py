"""The key of a ledger's hashes lies beside the ledger: whoever holds one of the two files cannot test a guess.

A ledger's own file holds the charges, and what must never be apart from them: the journal of each run and the sanitized
texts that were released. Of private data it holds keyed hashes only: of the records of a run, of documents, of users,
and of the texts that were sanitized.

Their key is 32 bytes from the operating system in ``<ledger>.key``, readable by its owner alone. (A run has a key of
its own, which splits its records. It is kept in the journal under a mask that only the ledger's key gives.) So:

- Whoever holds the ledger's file alone sees what was released and what it cost, and cannot test a guess at a record or
  a text. Whoever holds the key alone learns nothing: it is random.
- Whoever holds both can test guesses. The key stays where the records are.
- The key is made at its first use and is on disk before anything is hashed under it. From then on the ledger holds a
  check value of it, and never gets another: under a new key every account would begin at zero, and a run would deal its
  records anew. A key that is lost, damaged or another ledger's is refused. So is a new ledger beside an old one's key.
- A backup holds both files. The charges and what was paid by them are in one file, so every copy of it holds both as
  they were at one moment. A process that has seen newer entries refuses an older copy. One that starts on an older copy
  cannot know: whoever puts it there takes back its charges, and with them the limit.

A ledger in a database has its key outside of it: in the file that its URL names (``key_file=``), or in the folder that
the environment variable LANGCHAIN_DP_KEYS names, as ``<id of the ledger>.key``. Each machine has a copy of the file.
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
"""What is added to the path of a ledger's file."""

_BYTES = 32


def new_key() -> bytes:
    """A key that nobody has seen."""
    return secrets.token_bytes(_BYTES)


def keyed(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.new(key, message, hashlib.sha256).digest()


def digest(key: bytes, domain: str, text: str) -> bytes:
    """Keyed hash of ``text``; equal texts of two domains have different hashes."""
    return keyed(key, domain.encode() + b"\0" + text.encode("utf-8", "surrogatepass"))


def check_value(key: bytes) -> bytes:
    """What a ledger holds of its key, to know it again."""
    return keyed(key, b"check")


def bound_key(connection: Connection, file: str, ledger_id: str, kind: str, remedy: str) -> bytes:
    """Return the key of a ledger in ``file``, made if the ledger never had one. In a transaction that may write.

    ``kind`` and ``remedy`` go into messages: what the ledger is called, and what to do (with a place for the key).
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
    """Put ``key`` into ``file``, durably, whole or not at all."""
    try:
        write_whole(Path(file), f"{ledger_id} {key.hex()}\n", owner_only=True)
    except OSError as error:
        raise LedgerUnwritable(
            f"The key {file} of the {kind} cannot be written durably ({error.strerror}). Make its folder "
            "writable, or free space on the disk."
        ) from None


def read_key(file: str, ledger_id: str, kind: str) -> bytes | None:
    """The key in ``file``; None if there is no file."""
    try:
        owner, key = Path(file).read_text(encoding="ascii").split()
        found = bytes.fromhex(key)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerUnwritable(
            f"The key {file} of the {kind} cannot be read ({error.strerror}). Make it readable for the "
            "user of this process, and for nobody else."
        ) from None
    except ValueError:
        owner, found = "", b""
    if len(found) != _BYTES:
        raise LedgerCorrupt(
            f"Expected {file} to hold the key of the {kind} beside it, but it is damaged. Bring it back "
            "from the backup that holds both files."
        )
    if owner != ledger_id:
        raise LedgerMismatch(
            f"The key {file} belongs to another ledger than the one beside it. Restore that ledger, or move "
            "the key away if what was released under it may be forgotten."
        )
    return found
