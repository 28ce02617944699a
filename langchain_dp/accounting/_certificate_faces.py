"""What every certificate can do: be written as strict JSON, read back, printed, and shown in a notebook."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from langchain_dp.errors import InvalidParameter


class CertificateFaces:
    """The faces of a certificate, made of its fields (``to_dict``) and of its rows in reading order (``_rows``)."""

    private: bool
    reason: str
    notes: tuple[str, ...]
    library_version: str
    parameters: Mapping[str, float | int | str]
    _marks: ClassVar[Mapping[str, str]] = {}
    """What its plain values say beside its fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the certificate that ``to_dict`` wrote.

        Raises:
            InvalidParameter: A field is missing, unknown or outside its bound, or it is a certificate of another kind.
        """
        named = dataclasses.fields(cls)  # type: ignore[arg-type]  # every certificate is one
        names = sorted([*cls._marks, *(field.name for field in named)])
        try:
            if sorted(fields) != names or any(fields[name] != mark for name, mark in cls._marks.items()):
                kind = "".join(f" of {mark}" for mark in cls._marks.values())
                raise InvalidParameter(f"Expected fields={sorted(fields)} to be {names}: this is no certificate{kind}.")
            values = {name: value for name, value in fields.items() if name not in cls._marks}
            return cls(**cls._read(values))
        except (TypeError, AttributeError) as error:
            wrong = type(error).__name__
        raise InvalidParameter(f"Expected the fields of a certificate, but one is of another type ({wrong}).")

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Plain values as the constructor takes them."""
        raise NotImplementedError

    def _check_reason(self) -> None:
        if not isinstance(self.private, bool) or self.private == bool(self.reason):
            raise InvalidParameter(
                f"Expected private={self.private!r} to go with reason={self.reason!r}. "
                "Give a reason if not private, and only then."
            )

    def _rows(self) -> list[tuple[str, str]]:
        """(name, value) in reading order; "NOT PRIVATE" first where it applies."""
        rows = [] if self.private else [("NOT PRIVATE", self.reason)]
        rows += self._own_rows()
        rows += [(f"parameter {name}", shown(value)) for name, value in self.parameters.items()]
        rows += [("note", note) for note in self.notes]
        rows.append(("library", f"langchain-dp {self.library_version}"))
        return [(one_line(name), one_line(value)) for name, value in rows]

    def _own_rows(self) -> list[tuple[str, str]]:
        """Those of this kind of certificate."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return strict JSON (no Infinity) that :meth:`from_json` reads back to an equal certificate."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the certificate that :meth:`to_json` wrote.

        Raises:
            InvalidParameter: The text is no certificate of this kind.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidParameter(f"Expected a certificate as JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise InvalidParameter("Expected a certificate as a JSON object.")
        return cls.from_dict(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self.to_dict(),))  # a mapping proxy does not pickle by itself

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(["Privacy certificate" if self.private else "NOT PRIVATE: no privacy certificate"]
                         + [f"  {name:<{width}}  {value}" for name, value in rows])  # fmt: skip

    def _repr_html_(self) -> str:
        """Return a table for notebooks. It takes its colours from the page, so it reads on light and dark."""
        title = "Privacy certificate" if self.private else "NOT PRIVATE"
        cell = "padding:2px 10px;text-align:left;border-top:1px solid currentColor;color:inherit;background:transparent"
        body = "".join(
            f'<tr><th scope="row" style="{cell}">{html.escape(name)}</th>'
            f'<td style="{cell}">{html.escape(value)}</td></tr>'
            for name, value in self._rows()
        )
        return (
            '<table style="border-collapse:collapse;color:inherit;background:transparent">'
            f'<caption style="text-align:left;font-weight:bold;color:inherit">{title}</caption>{body}</table>'
        )


def public(name: str, value: object) -> float | int | str:
    """Return a parameter that a certificate may hold, or raise InvalidParameter."""
    if isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
        return value
    raise InvalidParameter(f"Expected parameters[{name!r}]={value!r} to be a finite number or a string.")


def loss_out(value: float) -> float | str:
    """Infinity as strict JSON can hold it."""
    return "inf" if math.isinf(value) else value


def loss_in(value: object) -> Any:
    """What :func:`loss_out` wrote, read back."""
    return math.inf if value == "inf" else value


def shown(value: float | int | str) -> str:
    """A parameter as people read it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def one_line(text: str) -> str:
    """Keep one value on one line: a model name with a line break must not forge a line of the certificate."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
