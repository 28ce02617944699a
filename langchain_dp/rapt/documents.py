"""Documents taken apart and put together: metadata is dropped unless it is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.messages import Note, passing_id
from langchain_dp.rapt.structured import Swap, structured

ID = "id"
"""Names the id of a document itself, in ``metadata_keep`` and ``document_key``."""


@dataclasses.dataclass(frozen=True)
class DocumentRules:
    """What of a document's metadata passes, and where its account is kept.

    A name is a key of the metadata or a path through nested mappings with dots ("patient.name"), and stands for
    everything under it. What neither of the two lists names is dropped.

    Args:
        keep: Names that pass in clear. "id" keeps the document's own id, whatever it says; a random UUID always stays,
            and any other id is replaced by one.
        sanitize: Names whose texts are sanitized, with the page content, as one release.
        user_key: Name under which the metadata say whose document it is.
        document_key: Name under which they say which document it is ("id": its own id). None: by its content.
        keys: Keys inside what is sanitized that pass in clear; all others are sanitized, too.
    """

    keep: Sequence[str] = ()
    sanitize: Sequence[str] = ()
    user_key: str | None = None
    document_key: str | None = None
    keys: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("keep", "sanitize"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(key, str) and key for key in value):
                raise InvalidParameter(f"Expected metadata_{name}={value!r} to be a list of names.")
            object.__setattr__(self, name, tuple(value))
        for name in ("user_key", "document_key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidParameter(f"Expected {name}={value!r} to be the name of a key of the metadata, or None.")
        both = {
            (one, other)
            for one in self.keep
            for other in self.sanitize
            if one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
        }
        if both:
            raise InvalidParameter(
                f"Expected metadata_keep and metadata_sanitize to name different things, found {sorted(both)}."
            )

    def user(self, document: Document, position: int) -> str | None:
        """Whose account is charged, or None if no user key is set."""
        return None if self.user_key is None else self._key(document, self.user_key, "user_key", position)

    def document(self, document: Document, position: int) -> str | None:
        """Which document it is, or None if no document key is set: then its content says it."""
        return None if self.document_key is None else self._key(document, self.document_key, "document_key", position)

    def _key(self, document: Document, name: str, what: str, position: int) -> str:
        value = document.id if name == ID and ID not in document.metadata else _find(document.metadata, name)
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            # Without a key nobody would be charged: the limit would not hold.
            raise InvalidParameter(
                f"Expected document {position} to have a string or a whole number under {what}={name!r}. "
                "Add it, or leave such documents out."
            )
        return str(value)

    def rebuild(self, document: Document, swap: Swap, note: Note) -> Document:
        """Return a new document whose texts went through ``swap``; ``note`` is told what passed or was dropped."""
        content = swap(document.page_content)
        metadata = self._metadata(document.metadata, "", swap, note)
        own_id = document.id if ID in self.keep else passing_id(document.id)
        if own_id != document.id:
            note("the id of a document was replaced by a random one")
        return Document(page_content=content, metadata=metadata, id=own_id)

    def _metadata(self, metadata: Mapping[Any, Any], prefix: str, swap: Swap, note: Note) -> dict[str, Any]:
        rebuilt: dict[str, Any] = {}
        for key, value in metadata.items():
            name = f"{prefix}{key}"
            if name in self.keep:
                rebuilt[str(key)] = value
                note(f"metadata {name} passed in clear")
            elif name in self.sanitize:
                rebuilt[str(key)] = structured(value, swap, self.keys)
            elif isinstance(value, Mapping) and any(
                other.startswith(f"{name}.") for other in (*self.keep, *self.sanitize)
            ):
                rebuilt[str(key)] = self._metadata(value, f"{name}.", swap, note)
            else:
                note("metadata were dropped")
        return rebuilt


def check_documents(documents: Sequence[Document]) -> None:
    """Refuse anything but documents, before one of them is charged.

    Raises:
        InvalidParameter: With the position and the type found, never the content.
    """
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
    """The value at a name: a key as it is, else a path through nested mappings."""
    if name in metadata:
        return metadata[name]
    value: Any = metadata
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
