"""Text inside nested values: JSON-like arguments, metadata, and strings that hold JSON themselves.

A walk is a function that rebuilds a value and passes every text in it through ``swap``. It runs twice: once to collect
the texts, once to put the released ones in their places. So there is one description of what is text, and sync and
async, caches and ledgers need not know it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_dp.errors import InvalidParameter

Swap = Callable[[str], str]
T = TypeVar("T")


def texts_in(walk: Callable[[Swap], object]) -> tuple[str, ...]:
    """The texts that ``walk`` passes through its swap, in order."""
    found: list[str] = []

    def collect(text: str) -> str:
        found.append(text)
        return text

    walk(collect)
    return tuple(found)


def with_texts(walk: Callable[[Swap], T], released: Sequence[str]) -> T:
    """What ``walk`` rebuilds when its texts become ``released``, in order."""
    left = iter(released)
    rebuilt = walk(lambda _: next(left))
    assert next(left, None) is None  # both walks see the same texts
    return rebuilt


def structured(value: Any, swap: Swap) -> Any:
    """Rebuild a JSON-like value with every leaf swapped; keys, nesting and nulls stay.

    A number or a truth value is a text like any other and comes out as one; so does any other object, by its ``str``. A
    string that holds a JSON object or list is one again afterwards.

    Raises:
        InvalidParameter: Bytes, or nesting too deep to be followed.
    """
    try:
        return _structured(value, swap)
    except RecursionError:
        pass
    raise InvalidParameter("Expected nested values of at most some hundred levels. Flatten them first.")


def text_or_json(text: str, swap: Swap) -> str:
    """Swap a text, or the leaves of the JSON object or list that it holds."""
    inner = _container(text)
    return swap(text) if inner is None else json.dumps(structured(inner, swap), ensure_ascii=False)


def _structured(value: Any, swap: Swap) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        inner = _container(value)
        return swap(value) if inner is None else json.dumps(_structured(inner, swap), ensure_ascii=False)
    if isinstance(value, Mapping):
        return {str(key): _structured(inner, swap) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        # A set has no order that lasts; its texts do.
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_structured(inner, swap) for inner in items]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidParameter("Expected text, found bytes. Decode them, or leave them out.")
    if isinstance(value, (bool, int, float)):
        return swap(json.dumps(value))
    return swap(str(value))


def has_keys(value: Any) -> bool:
    """Whether a JSON-like value, or the JSON that a string holds, has keys, which pass in clear."""
    if isinstance(value, str):
        value = _container(value)
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, (list, tuple, set, frozenset)) and any(map(has_keys, value))


def _container(text: str) -> Any:
    """The JSON object or list that ``text`` holds, or None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
