"""Settings that a test says flat, put into the groups that the classes take."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from langchain_dp.accounting.events import SamplingName
from langchain_dp.icl import Sampling


def grouped(flat: dict[str, Any], **kinds: type[Any]) -> dict[str, Any]:
    """The same settings as a user spells them.

    Args:
        flat: By name; ``partitions`` and ``sampling_probability`` beside ``sampling`` make a ``Sampling``.
        **kinds: Group of each argument; those of its fields that are given make one.
    """
    left = dict(flat)
    sampling = {name: left.pop(old) for name, old in _SAMPLING.items() if old in left}
    if left.get("sampling", "fixed") in get_args(SamplingName):  # else it is whole, or wrong
        left["sampling"] = Sampling(left.get("sampling", "fixed"), **sampling)
    for name, kind in kinds.items():
        given = {field.name: left.pop(field.name) for field in dataclasses.fields(kind) if field.name in left}
        if given:
            left[name] = kind(**given)
    return left


_SAMPLING = {"partitions": "partitions", "probability": "sampling_probability"}
