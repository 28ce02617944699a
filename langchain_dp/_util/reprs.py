"""Printing and pickling of objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")


class InNotebooks:
    """Shows in notebooks and IPython like ``print``."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))


def safe_repr(show: Callable[[T], str]) -> Callable[[T], str]:
    """Decorate ``__repr__`` for error reporters that print half-built objects."""

    @functools.wraps(show)
    def shown(self: T) -> str:
        try:
            return show(self)
        except AttributeError:
            return f"{type(self).__name__}(not made)"

    return shown


class MadeOfFields:
    """Base of a dataclass pickled by its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]  # a dataclass, as the subclass is
        plain = {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in fields.items()}
        return functools.partial(type(self), **plain), ()
