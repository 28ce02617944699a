"""Results of attacks for a report, read from a JSON file. Numbers and short names only: no text of a record."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_dp._util import validate
from langchain_dp.audit.report.names import label
from langchain_dp.errors import InvalidParameter

_FIELDS = ("name", "rate", "low", "high", "baseline", "n", "settings")
_MOST_ROWS = 2**53  # whole numbers up to this are what they are as floats, too
_MOST = 64 * 2**20  # bytes: a result is a line, so a larger file is another one


@dataclasses.dataclass(frozen=True)
class ReportedAttack:
    """How often an attack was right, beside what guessing reaches.

    Args:
        name: Name of the attack.
        rate: Success rate, or area under the curve, in [0, 1].
        low: Lower end of its interval.
        high: Upper end.
        baseline: What guessing reaches.
        n: Attempts.
        settings: Public settings, by name.
    """

    name: str
    rate: float
    low: float
    high: float
    baseline: float
    n: int
    settings: Mapping[str, float | int | str | bool | None] = dataclasses.field(default_factory=dict)

    @property
    def better(self) -> bool:
        """Whether the attack did better than guessing, beyond its interval."""
        return self.low > self.baseline

    @property
    def bound(self) -> float | None:
        """Largest rate that the promise of what was attacked allows, from the settings; None where none is stated."""
        bound = self.settings.get("bound")
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 <= bound <= 1:
            return None
        return float(bound)

    @property
    def contradicts(self) -> bool:
        """Whether the attack did better than the promise allows, beyond its interval."""
        return self.bound is not None and self.low > self.bound


def read_attacks(path: str | os.PathLike[str]) -> tuple[ReportedAttack, ...]:
    """Results of a JSON file: a list of objects, or one object.

    Each has "name", "rate", "low", "high", "baseline", "n", and may have "settings".

    Raises:
        InvalidParameter: The file is no such list. The message gives the position of the result, never its content.
        OSError: It cannot be read.
    """
    return attacked(rows_of(path, "attacks"))


def attacked(results: Iterable[Any]) -> tuple[ReportedAttack, ...]:
    """Results as a report has them: what has ``to_dict``, as results of attacks do, or is what it gives.

    Raises:
        InvalidParameter: One is none. The message gives its position.
    """
    return tuple(
        one if isinstance(one, ReportedAttack) else _result(one.to_dict() if hasattr(one, "to_dict") else one, place)
        for place, one in enumerate(results)
    )


def rows_of(path: str | os.PathLike[str], what: str) -> list[Any]:
    """Rows of a JSON file: those of a list, or the one object.

    Raises:
        InvalidParameter: It is no JSON, or larger than results are.
        OSError: It cannot be read.
    """
    if os.path.getsize(path) > _MOST:
        raise InvalidParameter(f"Expected the file of {what} to have at most {_MOST} bytes: results are short.")
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        raise InvalidParameter(f"Expected {os.path.basename(path)} to be JSON, but it is not.") from None
    return found if isinstance(found, list) else [found]


def _result(row: Any, place: int) -> ReportedAttack:
    where = f"attack {place}"
    if not isinstance(row, dict) or not set(_FIELDS[:-1]) <= set(row) or not set(row) <= set(_FIELDS):
        raise InvalidParameter(
            f"Expected {where} to be an object with {', '.join(_FIELDS[:-1])}, and settings if any, and nothing else."
        )
    numbers = {name: _number(f"{name} of {where}", row[name]) for name in ("rate", "low", "high", "baseline")}
    if not numbers["low"] <= numbers["rate"] <= numbers["high"]:
        raise InvalidParameter(f"Expected low <= rate <= high of {where}. Give the ends of the rate's interval.")
    if not isinstance(row["name"], str) or not row["name"]:
        raise InvalidParameter(f"Expected the name of {where} to be a non-empty string.")
    settings = row.get("settings") or {}
    if not isinstance(settings, dict):
        raise InvalidParameter(f"Expected the settings of {where} to be an object.")
    n = validate.integer(f"n of {where}", row["n"], at_least=0, at_most=_MOST_ROWS)
    if settings.get("bound") is not None:
        _number(f"the bound of {where}", settings["bound"])
    return ReportedAttack(label(row["name"]), n=n, settings=_settings(settings), **numbers)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameter(f"Expected {name} to be a number in [0, 1].")
    return validate.number(name, value, at_least=0.0, at_most=1.0)


def _settings(given: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
    kept: dict[str, float | int | str | bool | None] = {}
    for name, value in given.items():
        if isinstance(value, str):
            value = label(value)
        elif not isinstance(value, (int, float, bool, type(None))):
            value = "(not shown)"
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        elif isinstance(value, int) and abs(value) > _MOST_ROWS:
            value = "(not shown)"
        kept[label(name)] = value
    return kept
