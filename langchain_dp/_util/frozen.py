"""Frozen dataclasses with mappings that cannot be changed, which can still be copied and pickled."""

from __future__ import annotations

import dataclasses
import functools
from types import MappingProxyType
from typing import Any


class MadeOfFields:
    """Base of a dataclass that is copied and pickled by its fields, since a mapping proxy is neither by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]  # a dataclass, as the subclass is
        plain = {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in fields.items()}
        return functools.partial(type(self), **plain), ()
