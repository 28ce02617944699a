"""Schemas that a released label fills: an Enum, a Literal, or an object with one of them."""

from __future__ import annotations

import contextlib
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from langchain_core.utils.json_schema import dereference_refs
from pydantic import BaseModel
from typing_extensions import is_typeddict  # typing's own knows none that pydantic asks for

from langchain_dp.errors import InvalidParameter
from langchain_dp.records import label_name

_KINDS = "an Enum or a Literal of the labels {}"
_ALONE = "this model can release a label and nothing else"


def filler(schema: Any, labels: Sequence[str]) -> Callable[[str], Any]:
    """Return a function from a label's name to the schema's value, tried on every label before any charge.

    InvalidParameter unless the schema is an Enum, a Literal, a pydantic class, a TypedDict or a JSON schema that fits.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return _object(schema, labels)
    if is_typeddict(schema):
        choices = {key: _given(hint) for key, hint in get_type_hints(schema).items() if _is_choice(hint)}
        return _dict(schema, choices, schema.__required_keys__, labels)
    if isinstance(schema, Mapping):
        # LangChain also takes a tool or a function's description, which holds the schema.
        body = schema
        for key in ("function", "parameters"):
            body = body[key] if isinstance(body.get(key), Mapping) else body
        fields: Mapping[str, Any] = {}
        with contextlib.suppress(LookupError, ValueError):  # a dangling reference
            fields = dereference_refs(dict(body)).get("properties") or {}
        choices = {
            key: field["enum"] for key, field in fields.items() if isinstance(field, Mapping) and "enum" in field
        }
        return _dict(schema, choices, body.get("required") or (), labels)
    if not _is_choice(schema):
        raise InvalidParameter(
            f"Expected schema={schema!r} to be {_KINDS.format(sorted(labels))}, or an object (a pydantic class, a "
            f"TypedDict, a JSON schema) with one such field: {_ALONE}."
        )
    return _values(_given(schema), labels).__getitem__


def _object(schema: type[BaseModel], labels: Sequence[str]) -> Callable[[str], BaseModel]:
    fields = {name: field for name, field in schema.model_fields.items() if _is_choice(field.annotation)}
    name = _only(fields, schema, labels)
    values, key = _values(_given(fields[name].annotation), labels), fields[name].alias or name

    def fill(label: str) -> BaseModel:
        return schema.model_validate({key: values[label]})

    try:
        for label in labels:
            fill(label)
    except ValueError as error:  # pydantic's ValidationError is one
        raise InvalidParameter(
            f"Expected schema={schema!r} to take every label as {key!r} alone ({type(error).__name__}). Give its "
            "other fields defaults."
        ) from None
    return fill


def _dict(
    schema: Any, choices: Mapping[str, Sequence[Any]], required: Sequence[str] | frozenset[str], labels: Sequence[str]
) -> Callable[[str], dict[str, Any]]:
    name = _only(choices, schema, labels)
    if others := sorted(set(required) - {name}):
        raise InvalidParameter(
            f"Expected schema={schema!r} to require no key beside {name!r}, got {others}: {_ALONE}. Make them optional."
        )
    values = _values(choices[name], labels)
    return lambda label: {name: values[label]}


def _only(choices: Mapping[str, Any], schema: Any, labels: Sequence[str]) -> str:
    """Return the one field that a label may fill."""
    if len(choices) != 1:
        raise InvalidParameter(
            f"Expected schema={schema!r} to have one field that is {_KINDS.format(sorted(labels))}, got "
            f"{len(choices)}: {_ALONE}."
        )
    return next(iter(choices))


def _beside_none(annotation: Any) -> Any:
    """Unwrap an optional annotation; return others unchanged."""
    others = [kind for kind in get_args(annotation) if kind is not types.NoneType]
    is_optional = get_origin(annotation) in (Union, types.UnionType) and len(others) == 1
    return others[0] if is_optional else annotation


def _is_choice(annotation: Any) -> bool:
    annotation = _beside_none(annotation)
    is_enum = isinstance(annotation, type) and issubclass(annotation, enum.Enum)
    return is_enum or get_origin(annotation) is Literal


def _given(choice: Any) -> Sequence[Any]:
    choice = _beside_none(choice)
    return get_args(choice) or list(choice)


def _values(given: Sequence[Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the schema's values by label name."""
    by_value = {label_name(one.value if isinstance(one, enum.Enum) else one): one for one in given}
    by_name = {label_name(one): one for one in given}
    for values in (by_value, by_name):
        if set(values) == set(labels) and len(given) == len(labels):
            return {label: values[label] for label in labels}
    raise InvalidParameter(f"Expected the schema's values {sorted(map(str, by_value))} to be {sorted(labels)}.")
