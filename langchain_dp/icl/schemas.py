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
    """A function from the name of a label to what the schema makes of it: tried on every label, before any is paid for.

    Args:
        schema: An Enum, a Literal, a pydantic class, a TypedDict or a JSON schema.
        labels: Names of the labels.

    Raises:
        InvalidParameter: There is no such function.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return _object(schema, labels)
    if is_typeddict(schema):
        choices = {key: _given(hint) for key, hint in get_type_hints(schema).items() if _is_choice(hint)}
        return _dict(schema, choices, schema.__required_keys__, labels)
    if isinstance(schema, Mapping):
        # LangChain takes a tool as well, or a function's description, which holds the schema.
        given = schema
        for inner in ("function", "parameters"):
            given = given[inner] if isinstance(given.get(inner), Mapping) else given
        plain: Mapping[str, Any] = {}
        with contextlib.suppress(LookupError, ValueError):  # a reference to nothing
            plain = dereference_refs(dict(given)).get("properties") or {}
        choices = {key: what["enum"] for key, what in plain.items() if isinstance(what, Mapping) and "enum" in what}
        required = given.get("required") or ()
        return _dict(schema, choices, required, labels)
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
    except ValueError as problem:  # pydantic's own is one
        raise InvalidParameter(
            f"Expected schema={schema!r} to take every label as {key!r} alone ({type(problem).__name__}). Give its "
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
    """The one field that a label may fill."""
    if len(choices) != 1:
        raise InvalidParameter(
            f"Expected schema={schema!r} to have one field that is {_KINDS.format(sorted(labels))}, got "
            f"{len(choices)}: {_ALONE}."
        )
    return next(iter(choices))


def _beside_none(annotation: Any) -> Any:
    """The one kind that an optional field may have; else the annotation itself."""
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
    """What the schema allows, by the names of the labels."""
    by_value = {label_name(one.value if isinstance(one, enum.Enum) else one): one for one in given}
    by_name = {label_name(one): one for one in given}
    for found in (by_value, by_name):
        if set(found) == set(labels) and len(given) == len(labels):
            return {label: found[label] for label in labels}
    raise InvalidParameter(f"Expected the schema's values {sorted(map(str, by_value))} to be {sorted(labels)}.")
