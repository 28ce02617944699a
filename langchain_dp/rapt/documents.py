"""Rebuilds documents: metadata is dropped unless a rule names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.messages import Note, passing_id
from langchain_dp.rapt.structured import Swap, structured

ID = "id"
"""Name of the id of a document itself, in ``metadata_keep`` and ``document_key``."""


@dataclasses.dataclass(frozen=True)
class DocumentRules:
    """Rules for the metadata and the account of a document. Public; ``dataclasses.asdict`` saves it.

    A name is a metadata key or a dotted path through nested mappings ("patient.name"), with everything under it.
    Metadata that no list names is dropped.

    Args:
        metadata_keep: Names that pass in clear. "id" keeps the document's own id. Otherwise a random UUID stays and any
            other id is replaced by one.
        metadata_sanitize: Names whose texts are sanitized with the page content, as one release.
        user_key: Name of the user whose account is charged.
        document_key: Name of the document's account key ("id": the document's id). None: its content.

    Examples:
        >>> DocumentRules(metadata_keep=["source"], user_key="patient").metadata_keep
        ('source',)
    """

    metadata_keep: Sequence[str] = ()
    metadata_sanitize: Sequence[str] = ()
    user_key: str | None = None
    document_key: str | None = None

    def __post_init__(self) -> None:
        for name in ("metadata_keep", "metadata_sanitize"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(key, str) and key for key in value):
                raise InvalidParameter(f"Expected {name}={value!r} to be a list of names.")
            object.__setattr__(self, name, tuple(value))
        for name in ("user_key", "document_key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidParameter(f"Expected {name}={value!r} to be the name of a key of the metadata, or None.")
        both = {
            (one, other)
            for one in self.metadata_keep
            for other in self.metadata_sanitize
            if one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
        }
        if both:
            raise InvalidParameter(
                f"Expected metadata_keep and metadata_sanitize to name different things, found {sorted(both)}."
            )


def account_key(name: str | None, parameter: str, document: Document, position: int) -> str | None:
    """Read an account key from the metadata of a document; None if ``name`` is None."""
    if name is None:
        return None
    value = document.id if name == ID and ID not in document.metadata else _find(document.metadata, name)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        # Without a key no account would be charged, and the limit would not hold.
        raise InvalidParameter(
            f"Expected document {position} to have a string or a whole number under {parameter}={name!r}. "
            "Add it, or leave such documents out."
        )
    return str(value)


def rebuild_document(
    document: Document, rules: DocumentRules, keys: Collection[str], swap: Swap, note: Note
) -> Document:
    """Return a new document with swapped texts. ``note`` gets each thing that passed or was dropped.

    ``keys`` pass in clear inside sanitized metadata; other keys are swapped.
    """
    content = swap(document.page_content)

    def rebuilt(metadata: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in metadata.items():
            name = f"{prefix}{key}"
            if name in rules.metadata_keep:
                kept[str(key)] = value
                note(f"metadata {name} passed in clear")
            elif name in rules.metadata_sanitize:
                kept[str(key)] = structured(value, swap, keys)
            elif isinstance(value, Mapping) and any(
                other.startswith(f"{name}.") for other in (*rules.metadata_keep, *rules.metadata_sanitize)
            ):
                kept[str(key)] = rebuilt(value, f"{name}.")
            else:
                note("metadata were dropped")
        return kept

    metadata = rebuilt(document.metadata, "")
    own_id = document.id if ID in rules.metadata_keep else passing_id(document.id)
    if own_id != document.id:
        note("the id of a document was replaced by a random one")
    return Document(page_content=content, metadata=metadata, id=own_id)


def check_documents(documents: Sequence[Document]) -> None:
    """Refuse other types before anything is charged."""
    if isinstance(documents, (str, bytes, Document)) or not isinstance(documents, Sequence):
        raise InvalidParameter(f"Expected documents to be a list of Document, not {type(documents).__name__}.")
    for position, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InvalidParameter(
                f"Expected document {position} to be a langchain_core Document, not {type(document).__name__}."
            )
        if not isinstance(document.page_content, str):
            raise InvalidParameter(
                f"Expected document {position} to hold a string, not {type(document.page_content).__name__}."
            )


def _find(metadata: Mapping[Any, Any], name: str) -> Any:
    """Value under a key, otherwise under a path through nested mappings."""
    if name in metadata:
        return metadata[name]
    value: Any = metadata
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
