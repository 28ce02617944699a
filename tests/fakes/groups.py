"""Settings that a test says flat, put into the groups that the classes take."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from langchain_dp.accounting.events import SamplingName
from langchain_dp.icl import SamplingOptions


def grouped(flat: dict[str, Any], **kinds: type[Any]) -> dict[str, Any]:
    """The same settings as a user spells them.

    Args:
        flat: By name.
        **kinds: Group of each argument; those of its fields that are given make one.
    """
    left = dict(flat)
    for name, kind in kinds.items():
        given = {field.name: left.pop(field.name) for field in dataclasses.fields(kind) if field.name in left}
        if given:
            left[name] = kind(**given)
    return left


def with_sampling(flat: dict[str, Any]) -> dict[str, Any]:
    """The same settings, where ``partitions`` and ``sampling_probability`` beside a name make a ``SamplingOptions``."""
    left = dict(flat)
    partitions, rate = left.pop("partitions", None), left.pop("sampling_probability", None)
    if left.setdefault("sampling", "fixed") in get_args(SamplingName):  # else it is whole, or wrong
        left["sampling"] = SamplingOptions(left["sampling"], partitions, rate)
    return left
