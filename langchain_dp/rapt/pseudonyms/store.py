"""A LangGraph store that holds placeholders, and an encrypted map."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import instance
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt.pseudonyms.keeping import cipher_of
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer
from langchain_dp.rapt.restore import each_text
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

with needs("agents", "langgraph", why=" for a store of LangGraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchOp,
    )

_MAP = ("langchain_dp", "pseudonyms")
_PAGE = 100


class PseudonymStore(BaseStore):
    """Hides entities in the memory of an agent, in any store of LangGraph. NOT formal privacy.

    Values, keys and namespaces are hidden before they reach the store, and restored for the caller. The map lies in the
    same store. Use one process at a time: two would give one placeholder to two people.

    Args:
        store: The store that keeps the memories, e.g. ``InMemoryStore()``.
        pseudonymizer: Settings of recognition. None: ``Pseudonymizer()``.
        key: Key that encrypts the map, as from ``Fernet.generate_key()``. None: it stays in memory.

    Raises:
        InvalidParameter: The key is no key.
        PrivateDataError: The map in the store has another key, or was changed.
        MissingExtra: cryptography is not installed.

    Formal guarantee:
        None: text that no recognizer finds is kept in clear.

    Examples:
        >>> store = PseudonymStore(InMemoryStore(), Pseudonymizer(terms=["Ann Smith"]), key=key)
        >>> store.put(("users", "Ann Smith"), "note", {"text": "Ann Smith likes tea."})
        >>> store.get(("users", "Ann Smith"), "note").value
        {'text': 'Ann Smith likes tea.'}
        >>> store.erase("Ann Smith")
        1
    """

    def __init__(
        self, store: BaseStore, pseudonymizer: Pseudonymizer | None = None, *, key: str | bytes | None = None
    ) -> None:
        instance("store", store, BaseStore, "a store of LangGraph")
        self._store = store
        self.supports_ttl, self.ttl_config = store.supports_ttl, store.ttl_config
        settings = Pseudonymizer() if pseudonymizer is None else pseudonymizer
        instance("pseudonymizer", settings, Pseudonymizer, "a Pseudonymizer")
        self._names = settings.new_conversation()
        if self._names.sanitizes_the_rest:
            raise InvalidParameter(
                "Expected a pseudonymizer without remaining_text_sanitizer=: memories must come back unchanged."
            )
        self._cipher: Any = None if key is None else cipher_of(key)
        self._kept: set[str] = set()
        if self._cipher is not None:
            self._read()

    @hold_arguments("ops")
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Hide operations, and restore results."""
        hidden = run_redacted(self._hidden, PrivateArgs.of(ops))
        return run_redacted(self._restored, PrivateArgs(hidden, self._store.batch([*self._news(), *hidden])))

    @hold_arguments("ops")
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async twin of :meth:`batch`."""
        hidden = await asyncio.to_thread(run_redacted, self._hidden, PrivateArgs.of(ops))
        results = await self._store.abatch([*self._news(), *hidden])
        return await asyncio.to_thread(run_redacted, self._restored, PrivateArgs(hidden, results))

    @hold_arguments("name")
    def erase(self, name: str) -> int:
        """Drop the entries of a person or other entity, in any case, and return how many.

        Memories keep their placeholders, for good. Backups of the store still hold the entry.
        """
        dropped = run_redacted(self._names.placeholders.forget, PrivateArgs.of(name))
        self._kept -= {*dropped}
        if self._cipher is not None:
            # The number stays taken, so that no other person is met under it.
            self._store.batch([PutOp(_MAP, _key(one), {"erased": True}, index=False) for one in dropped])
        return len(dropped)

    def _read(self) -> None:
        names, place = self._names.placeholders, 0
        while page := self._store.search(_MAP, limit=_PAGE, offset=place):
            place += len(page)
            for item in page:
                if item.value.get("erased"):
                    names.skip(f"<{item.key}>")
                else:
                    run_redacted(lambda held: names.learn([self._opened(held)]), PrivateArgs(item))
        self._kept = {placeholder for _, _, placeholder in names.entries()}

    def _opened(self, item: Item) -> tuple[str, str, str]:
        try:
            label, original, placeholder = json.loads(self._cipher.decrypt(item.value["sealed"].encode()))
        except Exception:  # its text may hold decrypted text
            placeholder = ""
        if placeholder != f"<{item.key}>":
            raise PrivateDataError(
                "Expected the map in the store under the given key, but it has another key or was changed. Give the "
                "key that it was made with."
            )
        return label, original, placeholder

    def _news(self) -> list[Op]:
        if self._cipher is None:
            return []
        new = [entry for entry in self._names.placeholders.entries() if entry[2] not in self._kept]
        self._kept |= {entry[2] for entry in new}
        sealed = [(_key(entry[2]), self._cipher.encrypt(json.dumps(entry).encode()).decode()) for entry in new]
        return [PutOp(_MAP, key, {"sealed": value}, index=False) for key, value in sealed]

    def _hide(self, value: Any) -> Any:
        return each_text(value, self._names.sanitize, keys=True)

    def _hidden(self, ops: Iterable[Op]) -> list[Op]:
        return [self._hidden_op(op) for op in ops]

    def _hidden_op(self, op: Op) -> Op:
        if isinstance(op, PutOp):
            value = None if op.value is None else self._hide(op.value)
            return op._replace(namespace=self._hide(op.namespace), key=self._hide(op.key), value=value)
        if isinstance(op, GetOp):
            return op._replace(namespace=self._hide(op.namespace), key=self._hide(op.key))
        if isinstance(op, SearchOp):
            prefix = self._hide(op.namespace_prefix)
            return op._replace(namespace_prefix=prefix, filter=self._hide(op.filter), query=self._hide(op.query))
        if isinstance(op, ListNamespacesOp):
            conditions = [
                MatchCondition(one.match_type, self._hide(tuple(one.path))) for one in op.match_conditions or ()
            ]
            return op._replace(match_conditions=tuple(conditions) or None)
        raise InvalidParameter(f"Expected an operation of a store, not {type(op).__name__}.")

    def _restored(self, ops: Sequence[Op], results: Sequence[Result]) -> list[Result]:
        return [self._shown(result) for result in results[len(results) - len(ops) :]]

    def _shown(self, result: Any) -> Any:
        if isinstance(result, Item):
            shown = copy.copy(result)  # the store may keep the other one
            for field in ("namespace", "key", "value"):
                setattr(shown, field, self._names.restore(getattr(result, field)))
            return shown
        if isinstance(result, list):
            return [self._shown(one) for one in result if not _is_map(one)]
        return self._names.restore(result) if isinstance(result, tuple) else result

    def __repr__(self) -> str:
        return "PseudonymStore(NOT PRIVATE: no epsilon)"


def _key(placeholder: str) -> str:
    return placeholder.strip("<>")


def _is_map(one: Any) -> bool:
    namespace = one.namespace if isinstance(one, Item) else one
    return tuple(namespace)[:2] == _MAP
