"""Swaps the texts inside nested values: JSON-like arguments, metadata, and strings that hold JSON.

A walk rebuilds a value and passes every text in it through ``swap``. It runs twice: first to collect the texts, then to
insert the released ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from langchain_dp.errors import InvalidParameter

Swap = Callable[[str], str]
T = TypeVar("T")


def texts_in(walk: Callable[[Swap], object]) -> tuple[str, ...]:
    """Collect the texts that ``walk`` swaps, in order."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    walk(collect)
    return tuple(texts)


def with_texts(walk: Callable[[Swap], T], released: Sequence[str]) -> T:
    """Rebuild a value with ``released`` as its texts, in order."""
    left = iter(released)
    rebuilt = walk(lambda _: next(left))
    assert next(left, None) is None  # both walks see the same texts
    return rebuilt


def structured(value: Any, swap: Swap, keys: Collection[str]) -> Any:
    """Rebuild a JSON-like value with every leaf and key swapped. Nesting, lengths and nulls stay.

    Numbers, booleans and other objects become texts. A string that holds a JSON object or list still does afterwards.
    """
    try:
        return _structured(value, swap, keys)
    except RecursionError:
        pass
    raise InvalidParameter("Expected nested values of at most some hundred levels. Flatten them first.")


def text_or_json(text: str, swap: Swap, keys: Collection[str]) -> str:
    """Swap a text, or the leaves and keys of the JSON object or list in it."""
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
        # Sorted texts let a retry find the earlier release. Releases are sorted anew, or their order would tell how the
        # texts compare.
        return sorted((_structured(inner, swap, keys) for inner in sorted(value, key=_stable_text)), key=str)
    if isinstance(value, (list, tuple)):
        return [_structured(inner, swap, keys) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidParameter("Expected text, found bytes. Decode them, or leave them out.")
    if isinstance(value, (bool, int, float)):
        return swap(json.dumps(value))
    return swap(str(value))


def _stable_text(value: Any) -> str:
    """The same text in every process, where sets have another order."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_stable_text, value)))}}}"
    return f"[{', '.join(map(_stable_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def _object(value: Mapping[Any, Any], swap: Swap, keys: Collection[str]) -> dict[str, Any]:
    rebuilt: dict[str, Any] = {}
    declared = {str(key) for key in value} & set(keys)
    for key, inner in value.items():
        name = str(key)
        if name not in declared:
            name = drawn = swap(name)
            times = 1
            while name in rebuilt or name in declared:  # two keys became one word; keep both values
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
