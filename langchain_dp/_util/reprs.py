"""How objects print, also those whose ``__init__`` failed, and how frozen dataclasses are copied and pickled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")


class InNotebooks:
    """What stands in the last line of a notebook's cell, or is typed in IPython, shows as ``print`` shows it."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))


def safe_repr(show: Callable[[T], str]) -> Callable[[T], str]:
    """A ``__repr__`` that stands an object without its attributes.

    Error reporters print the locals of each frame, ``self`` among them: without this the error of a ``__init__`` is
    lost in an AttributeError.
    """

    @functools.wraps(show)
    def shown(self: T) -> str:
        try:
            return show(self)
        except AttributeError:
            return f"{type(self).__name__}(not made)"

    return shown


class MadeOfFields:
    """Base of a dataclass that is copied and pickled by its fields, since a mapping proxy is neither by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]  # a dataclass, as the subclass is
        plain = {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in fields.items()}
        return functools.partial(type(self), **plain), ()
