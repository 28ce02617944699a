"""Checks of named values."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Collection
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_LONG = 10**40
"""Larger whole numbers are not printed."""
_EXACT = 2**53
"""Below this a whole float is exact."""
_LONGEST_LABEL = 200
_QUOTED = re.compile(r"[+-]?\d{1,16}(\.\d{0,16})?(e[+-]?\d{1,3})?", re.IGNORECASE)
_OPTION = re.compile(r"#?[\w.+-]{0,16}")


def _fail(name: str, value: object, bound: str, remedy: str) -> InvalidParameter:
    return InvalidParameter(f"Expected {name}{shown(value)} {bound}. {remedy}".rstrip())


def shown(value: object) -> str:
    """Show numbers and option-like texts, otherwise the type: a text may be private."""
    if isinstance(value, int) and abs(value) >= _LONG:
        return " of type int, too long to be shown,"
    return f"={value!r}" if _plain(value) else f" of type {type(value).__name__}"


def _plain(value: object) -> bool:
    if isinstance(value, str):
        return _OPTION.fullmatch(value) is not None
    return value is None or isinstance(value, (bool, Number))


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
    limits = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    bound = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
    if isinstance(value, bool) or not isinstance(value, Real) or not _finite(value):
        _refuse_quoted(name, value)
        raise _fail(name, value, f"to be a finite number, {bound}".rstrip(", "), remedy)
    if (
        (above is not None and not value > above)
        or (at_least is not None and not value >= at_least)
        or (below is not None and not value < below)
        or (at_most is not None and not value <= at_most)
    ):
        raise _fail(name, value, f"to be {bound}", remedy)
    return float(value)


def _refuse_quoted(name: str, value: object) -> None:
    if isinstance(value, str) and _QUOTED.fullmatch(value):
        raise InvalidParameter(f"Expected {name}={value!r} to be a number, got a str. Write {value}, without quotes.")


def _finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def integer(name: str, value: int, *, at_least: int, at_most: int | None = None, remedy: str = "") -> int:
    bound = f"to be a whole number {f'of at least {at_least}' if at_most is None else f'from {at_least} to {at_most}'}"
    if isinstance(value, Integral) and not isinstance(value, int):  # numpy's, which JSON refuses
        raise _fail(name, value, "to be a plain int", f"Give int({name}).")
    if isinstance(value, float) and abs(value) < _EXACT and int(value) == value:
        raise _fail(name, value, "to be a plain int", f"Give {int(value)}.")
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse_quoted(name, value)
        raise _fail(name, value, bound, remedy)
    if value < at_least or (at_most is not None and value > at_most):
        raise _fail(name, value, bound, remedy)
    return value


def as_int(value: T) -> T | int:
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def one_of(name: str, value: T, allowed: Collection[T], *, remedy: str = "") -> T:
    if value not in allowed:
        named = sorted(repr(one if one is None or isinstance(one, bool) else str(one)) for one in allowed)
        raise _fail(name, value, f"to be one of [{', '.join(named)}]", remedy)
    return value


def short_text(name: str, value: str, *, at_least: int) -> str:
    if not isinstance(value, str) or not at_least <= len(value) <= _LONGEST_LABEL or not value.isprintable():
        # The value may be private text, passed by mistake.
        kind = "" if isinstance(value, str) else f" of type {type(value).__name__}"
        raise InvalidParameter(
            f"Expected {name}{kind} to be {at_least} to {_LONGEST_LABEL} printable characters on one line. "
            "Give a short public label."
        )
    return value


def group(name: str, given: T | None, kind: type[T]) -> T:
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise InvalidParameter(f"Expected {name} of type {type(given).__name__} to be {kind.__name__}(...), or None.")
    return given


def instance(name: str, value: object, kind: type | tuple[type, ...], bound: str, remedy: str = "") -> None:
    if not isinstance(value, kind):
        raise InvalidParameter(f"Expected {name} of type {type(value).__name__} to be {bound}. {remedy}".rstrip())


def require_instance(name: str, value: object) -> None:
    if isinstance(value, type):
        raise InvalidParameter(f"Expected {name}={value.__name__} to be made. Write {value.__name__}(...).")


def reject_extra_kwargs(kwargs: Collection[str], *, remedy: str = "Bind them to the inner model.") -> None:
    if kwargs:
        raise InvalidParameter(f"Expected no further arguments, got {sorted(kwargs)}. {remedy}")


def reject_unknown_arguments(function: F) -> F:
    """Suggest known arguments. Errors and frames hold no value."""
    known = inspect.signature(function).parameters.keys()

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        unknown = sorted(kwargs.keys() - known)
        arguments: list[Any] = [args, kwargs]
        del args, kwargs  # error reporters read the locals of each frame
        if unknown:
            del arguments
            of = function.__qualname__.removesuffix(".__init__")
            raise InvalidParameter(" ".join(_meant(of, name, known) for name in unknown))
        return function(*arguments.pop(0), **arguments.pop(0))

    return checked  # type: ignore[return-value]  # the same signature


def made_by(how: str) -> Callable[[F], F]:
    """Refuse a constructor's foreign arguments, and say how the object is made."""

    def decorate(init: F) -> F:
        known = inspect.signature(init).parameters.keys()

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            if args or kwargs.keys() - known or not kwargs:
                del args, kwargs  # error reporters read the locals of each frame
                raise InvalidParameter(f"A {type(self).__name__} is not made directly. Write {how}.")
            init(self, **kwargs)

        return checked  # type: ignore[return-value]  # the same signature

    return decorate


_MEANT = {
    **dict.fromkeys(("epsilon", "delta", "neighbors"), (("budget", "eta"), "budget=PrivacyBudget(epsilon, delta)")),
    **dict.fromkeys(("llm", "chat_model", "chat", "engine"), (("model", "engine"), "")),
    **dict.fromkeys(("data", "dataset", "records", "rows", "train", "private_examples"), (("examples", "budget"), "")),
    **dict.fromkeys(("path", "ledger_path", "db"), (("ledger", "path"), "")),
    "id_key": (("text_key",), "the key 'id' for ids: rename the column"),
}
"""Wrong argument names -> right ones, and their form."""


def _meant(of: str, name: str, known: Collection[str]) -> str:
    names, written = _MEANT.get(name, ((), ""))
    there = next((one for one in names if one in known), None) or next(
        iter(difflib.get_close_matches(name, [one for one in known if one != "self"], 1)), None
    )
    if there == "eta":
        remedy = "Give eta=, since sanitized texts have metric privacy, which is not an epsilon."
    else:
        remedy = "Remove it." if there is None else f"Give {written if name in _MEANT and written else there + '='}."
    return f"{of} has no argument {name}=. {remedy}"


def function(name: str, given: F, *, of: str) -> F:
    if not callable(given):
        raise InvalidParameter(
            f"Expected {name} of type {type(given).__name__} to be a function of {of}. Of a chain give its method, "
            "such as chain.invoke."
        )
    return given


def numbers(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    import numpy as np  # the package is imported without it

    with contextlib.suppress(TypeError, ValueError):  # its message may quote the value
        return np.asarray(given, dtype=np.float64)
    raise InvalidParameter(f"Expected {name} to hold numbers in rows of one length, but it does not.")
