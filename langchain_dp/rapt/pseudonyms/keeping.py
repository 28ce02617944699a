"""Stores the maps of conversations: in memory, or encrypted in the state of a graph."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, message_chunk_to_message

from langchain_dp._util import forks
from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer, PseudonymReport

MOST = 10_000  # conversations in memory

_UNSAID = {"id", "type", "response_metadata", "usage_metadata"}
"""Fields that no model reads, or that a graph sets."""


class Conversation:
    """One conversation. ``cipher`` encrypts its map, ``secret`` keys its marks."""

    def __init__(self, name: str, pseudonymizer: Pseudonymizer, cipher: Any, secret: bytes | None = None) -> None:
        self.name = name
        self.pseudonymizer = pseudonymizer
        self._cipher = cipher
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._read: dict[str, frozenset[str]] = {}

    def learn(self, parts: Iterable[str]) -> None:
        if self._cipher is None:
            return
        for part in parts:
            if part not in self._read:
                entries = self._opened(part)
                self.pseudonymizer.placeholders.learn(entries)
                self._read[part] = frozenset(placeholder for _, _, placeholder in entries)

    def news(self, parts: Sequence[str]) -> list[str]:
        if self._cipher is None:
            return [] if parts else [self.name]
        known = {placeholder for part in parts for placeholder in self._read.get(part, ())}
        entries = [entry for entry in self.pseudonymizer.placeholders.entries() if entry[2] not in known]
        if not entries and parts:
            return []
        sealed = self._cipher.encrypt(json.dumps([self.name, entries]).encode()).decode()
        part = f"{self.name}.{sealed}"
        self._read[part] = frozenset(placeholder for _, _, placeholder in entries)
        return [part]

    def mark(self, message: BaseMessage) -> str:
        """Mark a message's content by key."""
        content = message_chunk_to_message(message).model_dump(exclude=_UNSAID)
        text = repr([self.name, type(message).__name__.removesuffix("Chunk"), _ordered(content)])
        return hmac.new(self._secret, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    def _opened(self, part: str) -> list[tuple[str, str, str]]:
        try:
            name, entries = json.loads(self._cipher.decrypt(part.partition(".")[2].encode()))
        except Exception:  # its text may hold decrypted text
            name, entries = None, []
        if name != self.name:
            raise PrivateDataError(
                "Expected the map of this conversation under the given key, but it has another key or was changed. "
                "Give the key that it was made with."
            )
        return [(label, original, placeholder) for label, original, placeholder in entries]

    def __repr__(self) -> str:
        return "Conversation(<private>)"


def _ordered(value: Any) -> Any:
    """Ignore key order, and tuples, which a checkpoint makes lists."""
    if isinstance(value, dict):
        return sorted(((repr(key), _ordered(inner)) for key, inner in value.items()), key=lambda pair: pair[0])
    return [_ordered(inner) for inner in value] if isinstance(value, (list, tuple)) else value


class Conversations:
    """All conversations of this process. ``key`` encrypts their maps."""

    def __init__(self, settings: Pseudonymizer, key: str | bytes | None) -> None:
        self._settings = settings
        self._cipher = None if key is None else cipher_of(key)
        known = secrets.token_bytes(32) if key is None else base64.urlsafe_b64decode(key)
        self._secret = hmac.digest(known, b"marks of messages", "sha256")
        self._lock = threading.Lock()
        forks.keep_still(self)
        self._open: OrderedDict[str, Conversation] = OrderedDict()

    def open(self, parts: Sequence[str]) -> Conversation:
        name = parts[0].partition(".")[0] if parts else secrets.token_hex(8)
        with self._lock:
            conversation = self._open.get(name)
            if conversation is None:
                if parts and self._cipher is None:
                    raise PrivateDataError(
                        "Expected the map of this conversation in the memory of this process, and it is not there: "
                        "another process had it. Give key=, and the checkpointer keeps it encrypted."
                    )
                pseudonymizer = self._settings.new_conversation()
                conversation = Conversation(name, pseudonymizer, self._cipher, self._secret)
                self._open[name] = conversation
                if len(self._open) > MOST:
                    self._open.popitem(last=False)
            self._open.move_to_end(name)
            conversation.learn(parts)
        return conversation

    def reports(self) -> list[PseudonymReport]:
        with self._lock:
            known = list(self._open.values())
        return [one.pseudonymizer.report() for one in known]

    def __repr__(self) -> str:
        return "Conversations(<private>)"


def joined(before: list[str] | None, new: list[str] | None) -> list[str]:
    return list(dict.fromkeys([*(before or []), *(new or [])]))


def cipher_of(key: str | bytes) -> Any:
    with needs("encrypted", "cryptography", why=" to keep maps under a key"):
        fernet: Any = importlib.import_module("cryptography.fernet")
    try:
        return fernet.Fernet(key)
    except (ValueError, TypeError):
        pass
    raise InvalidParameter(
        "Expected key to be 32 bytes in URL-safe base64. Make one with cryptography.fernet.Fernet.generate_key() and "
        "keep it where you keep secrets."
    )
