"""Text inside nested values: JSON-like arguments, metadata, and strings that hold JSON themselves.

A walk is a function that rebuilds a value and passes every text in it through ``swap``. It runs twice: once to collect
the texts, once to put the released ones in their places. So there is one description of what is text, and sync and
async, caches and ledgers need not know it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
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


def structured(value: Any, swap: Swap, keys: Collection[str]) -> Any:
    """Rebuild a JSON-like value with every leaf and every key swapped; nesting, lengths and nulls stay.

    A number or a truth value is a text like any other and comes out as one; so does any other object, by its ``str``. A
    string that holds a JSON object or list is one again afterwards.
    """
    try:
        return _structured(value, swap, keys)
    except RecursionError:
        pass
    raise InvalidParameter("Expected nested values of at most some hundred levels. Flatten them first.")


def text_or_json(text: str, swap: Swap, keys: Collection[str]) -> str:
    """Swap a text, or the leaves and keys of the JSON object or list that it holds."""
    inner = json_container(text)
    return swap(text) if inner is None else json.dumps(structured(inner, swap, keys), ensure_ascii=False)


def _structured(value: Any, swap: Swap, keys: Collection[str]) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        inner = json_container(value)
        return swap(value) if inner is None else json.dumps(_structured(inner, swap, keys), ensure_ascii=False)
    if isinstance(value, Mapping):
        return _object(value, swap, keys)
    if isinstance(value, (set, frozenset)):
        # By the order of its texts a retry finds what was released. What is released comes in an order of its own, or
        # the place of each would tell how its text compares with the others.
        return sorted((_structured(inner, swap, keys) for inner in sorted(value, key=_said)), key=str)
    if isinstance(value, (list, tuple)):
        return [_structured(inner, swap, keys) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidParameter("Expected text, found bytes. Decode them, or leave them out.")
    if isinstance(value, (bool, int, float)):
        return swap(json.dumps(value))
    return swap(str(value))


def _said(value: Any) -> str:
    """A value in words that are the same in every process, in which a set inside has another order."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_said, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_said, value))}]"
    return str(value)


def _object(value: Mapping[Any, Any], swap: Swap, keys: Collection[str]) -> dict[str, Any]:
    rebuilt: dict[str, Any] = {}
    declared = {str(key) for key in value} & set(keys)
    for key, inner in value.items():
        name = str(key)
        if name not in declared:
            name = drawn = swap(name)
            times = 1
            while name in rebuilt or name in declared:  # two keys became one word: none of their values is lost
                times += 1
                name = f"{drawn} {times}"
        rebuilt[name] = _structured(inner, swap, keys)
    return rebuilt


def json_container(text: str) -> Any:
    """The JSON object or list that ``text`` holds, or None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
