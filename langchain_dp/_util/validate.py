"""Checks of named values. Every message says name, value, bound and remedy."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from numbers import Number, Real
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_LONG = 10**40
"""Whole numbers of more digits are no setting; Python refuses to write those of more than 4,300."""
_OPTION = re.compile(r"[\w.+-]{0,16}")


def _fail(name: str, value: object, bound: str, remedy: str) -> InvalidParameter:
    return InvalidParameter(f"Expected {name}{_shown(value)} {bound}. {remedy}".rstrip())


def _shown(value: object) -> str:
    """The value where it is a number or reads like the name of an option; else its type: it may be somebody's text."""
    if isinstance(value, int) and abs(value) >= _LONG:
        return " of type int, too long to be shown,"
    plain = value is None or isinstance(value, (bool, Number)) or (isinstance(value, str) and _OPTION.fullmatch(value))
    return f"={value!r}" if plain else f" of type {type(value).__name__}"


def number(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    remedy: str = "",
) -> float:
    """Return ``value`` as a finite float inside its interval, or raise InvalidParameter."""
    low = "(-inf" if above is None and at_least is None else f"({above}" if above is not None else f"[{at_least}"
    high = "inf)" if below is None and at_most is None else f"{below})" if below is not None else f"{at_most}]"
    bound = f"in {low}, {high}"
    if isinstance(value, bool) or not isinstance(value, Real) or not _finite(value):
        raise _fail(name, value, f"to be a finite number {bound}", remedy)
    if (
        (above is not None and not value > above)
        or (at_least is not None and not value >= at_least)
        or (below is not None and not value < below)
        or (at_most is not None and not value <= at_most)
    ):
        raise _fail(name, value, bound, remedy)
    return float(value)


def _finite(value: Real) -> bool:
    """Whether a float can hold it."""
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def integer(name: str, value: int, *, at_least: int, at_most: int | None = None, remedy: str = "") -> int:
    """Return ``value`` as an int inside its interval, or raise InvalidParameter."""
    bound = f"to be a whole number in [{at_least}, {'inf)' if at_most is None else f'{at_most}]'}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fail(name, value, bound, remedy)
    if value < at_least or (at_most is not None and value > at_most):
        raise _fail(name, value, bound, remedy)
    return value


def one_of(name: str, value: T, allowed: Collection[T], *, remedy: str = "") -> T:
    """Return ``value`` if it is allowed, or raise InvalidParameter."""
    if value not in allowed:
        raise _fail(name, value, f"to be one of {sorted(map(str, allowed))}", remedy)
    return value


def no_further(kwargs: Mapping[str, Any], *, remedy: str = "Bind them to the inner model.") -> None:
    """Typos are not swallowed."""
    if kwargs:
        raise InvalidParameter(f"Expected no further arguments, got {sorted(kwargs)}. {remedy}")


def function(name: str, given: F, *, of: str) -> F:
    """The function, if it can be called; a chain is named by its method."""
    if not callable(given):
        raise InvalidParameter(
            f"Expected {name} of type {type(given).__name__} to be a function of {of}. Of a chain give its method, "
            "such as chain.invoke."
        )
    return given


def numbers(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """An array of numbers; what is none is not shown."""
    import numpy as np  # the package is imported without it

    with contextlib.suppress(TypeError, ValueError):  # whose message may hold what was given
        return np.asarray(given, dtype=np.float64)
    raise InvalidParameter(f"Expected {name} to hold numbers in rows of one length, but it does not.")
