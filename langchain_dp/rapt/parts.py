"""Splits every input of a chain into units of release, and joins released texts."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.prompt_values import (
    ChatPromptValue,
    ChatPromptValueConcrete,
    ImagePromptValue,
    PromptValue,
    StringPromptValue,
)

from langchain_dp.ensemble.questions import as_messages
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.messages import (
    IN_CLEAR,
    MessageRules,
    Swap,
    passing_id,
    rebuild,
    structured,
    texts_in,
    with_texts,
)
from langchain_dp.rapt.release import Texts, Unit

ID = "id"
"""A document's own id."""


@dataclasses.dataclass(frozen=True)
class DocumentRules:
    """Rules for a document's metadata and account. Public. Unlisted metadata is dropped.

    Args:
        metadata_keep: Keys that pass in clear. "id" keeps the document's own id, otherwise only a random UUID stays.
        metadata_sanitize: Keys whose texts are sanitized with the page content.
        user_key: Key of the user whose account is charged.
        document_key: Key that names the document's account ("id": its id). None: its content.

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
        if both := {*self.metadata_keep} & {*self.metadata_sanitize}:
            raise InvalidParameter(
                f"Expected metadata_keep and metadata_sanitize to name different things, found {sorted(both)}."
            )


def account_key(name: str | None, parameter: str, document: Document, position: int) -> str | None:
    if name is None:
        return None
    value = document.metadata.get(name, document.id if name == ID else None)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        # Without a key no account would be charged, and the limit would not hold.
        raise InvalidParameter(
            f"Expected document {position} to have a string or a whole number under {parameter}={name!r}. "
            "Add it, or leave such documents out."
        )
    return str(value)


def rebuild_document(document: Document, rules: DocumentRules, keys: Collection[str], swap: Swap) -> Document:
    content = swap(document.page_content)
    metadata = {
        key: value if key in rules.metadata_keep else structured(value, swap, keys)
        for key, value in document.metadata.items()
        if key in (*rules.metadata_keep, *rules.metadata_sanitize)
    }
    own_id = document.id if ID in rules.metadata_keep else passing_id(document.id)
    return Document(page_content=content, metadata=metadata, id=own_id)


def check_documents(documents: Sequence[Document]) -> None:
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


REPORT = "rapt"
"""Key of ``response_metadata`` with a message's facts."""
REPLY = "rapt_reply"
"""Marks a public reply."""


@dataclasses.dataclass(frozen=True, repr=False)
class SplitInput:
    """An input's units, and a function that joins released ones. Private."""

    units: list[Unit]
    join: Callable[[Sequence[Texts]], Any]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules, a ``stamp`` of facts, and a keyed ``mark`` of public texts."""

    messages: MessageRules
    documents: DocumentRules
    stamp: dict[str, Any]
    mark: Callable[[Texts], str]

    def notes(self) -> tuple[str, ...]:
        keys = ", ".join(sorted(self.messages.keys_keep))
        notes = [
            "The number and the order of inputs are in clear. The choice of a retriever or a selector that "
            "compares texts is not covered.",
            "Of messages: roles, order and number, also of their blocks, names of tools, ids of their calls and "
            "whether these failed are in clear.",
            "Of arguments, answers of tools, JSON and metadata the shape is in clear: nesting, how many entries lists "
            "and objects have, nulls, and which texts hold JSON. Keys of objects are sanitized, but for "
            f"{keys or 'none'} and, in an agent, those that its tools declare.",
            "Of mappings (examples, variables of prompts) the keys are in clear, not those inside their values, and so "
            "are values that keep= names.",
            "Dropped names of people, artifacts, thoughts, metadata and other fields of a message are reported in "
            "clear.",
            "Ids of messages and documents pass if they are whole UUIDs of version 4 or 7, which are taken to be "
            "random (7 tells when it was made). Another id is replaced by a new one.",
        ]
        if self.messages.system == "keep":
            notes.append("System messages pass in clear.")
        if self.messages.media == "keep":
            notes.append(
                "Images, audio and files in messages pass in clear, with their addresses. Their titles do not."
            )
        if self.documents.metadata_keep:
            notes.append(f"Metadata of documents that pass in clear: {', '.join(self.documents.metadata_keep)}.")
        if self.documents.metadata_sanitize:
            named = ", ".join(self.documents.metadata_sanitize)
            notes.append(f"Of metadata that are sanitized, keys are in clear: {named}.")
        return tuple(notes)


def split(value: Any, rules: Rules, user: str | None, document: str | None, keys: Collection[str] = ()) -> SplitInput:
    for name, key in (("user", user), ("document", document)):
        if key is not None and (not isinstance(key, str) or not key):
            raise InvalidParameter(f"Expected {name} of type {type(key).__name__} to be a non-empty string, or None.")
    if isinstance(value, str):
        return SplitInput([Unit((value,), user, document)], lambda released: released[0][0])
    if isinstance(value, BaseMessage):
        return _first(_messages([value], rules, user, document, keys))
    if isinstance(value, Document):
        return _first(_documents([value], rules, user, document))
    if isinstance(value, PromptValue):
        return _prompt(value, rules, user, document, keys)
    if isinstance(value, list):
        if value and isinstance(value[0], Document):
            return _documents(value, rules, user, document)
        wrong = next((type(one).__name__ for one in value if not _is_message(one)), None)
        if wrong is None:
            return _messages(message_list(value), rules, user, document, keys)
        raise InvalidParameter(
            f"Expected a list of messages, or of documents, but it holds {wrong}. Use batch() for many texts."
        )
    raise InvalidParameter(
        f"Expected a str, messages, a prompt value or documents to sanitize, not {type(value).__name__}."
        + ' Take a value of it first: {"question": itemgetter("question") | sanitizer}.' * isinstance(value, Mapping)
    )


def message_list(messages: Any) -> list[BaseMessage]:
    converted = as_messages(messages if isinstance(messages, (list, tuple)) else [messages])
    if converted is None:
        kind = type(messages).__name__
        raise InvalidParameter(f"Expected messages of type {kind} to be messages, or what LangChain makes messages of.")
    return converted


def _is_message(value: object) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2 and isinstance(value[0], str)
    return isinstance(value, BaseMessage) or (isinstance(value, dict) and "role" in value)


def split_mappings(
    mappings: Sequence[Mapping[str, Any]], rules: Rules, keep: Collection[str], user_key: str | None
) -> SplitInput:
    if isinstance(keep, str) or not isinstance(keep, Iterable) or not all(isinstance(key, str) for key in keep):
        raise InvalidParameter(f"Expected keep of type {type(keep).__name__} to be a list of keys: ['label'].")
    keep = frozenset(keep)
    if not isinstance(mappings, Sequence) or not all(isinstance(mapping, Mapping) for mapping in mappings):
        raise InvalidParameter(f"Expected mappings of type {type(mappings).__name__} to be a list of mappings.")

    def walk(mapping: Mapping[str, Any]) -> Callable[[Swap], dict[str, Any]]:
        return lambda swap: {
            key: value if key in keep else structured(value, swap, rules.messages.keys_keep)
            for key, value in mapping.items()
            if key != user_key
        }

    units = []
    for position, mapping in enumerate(mappings):
        user = None if user_key is None else mapping.get(user_key)
        if user_key is not None and (not isinstance(user, str) or not user):
            raise InvalidParameter(
                f"Expected mapping {position} to have a string under user_key={user_key!r}. Add it, or leave it out."
            )
        units.append(Unit(texts_in(walk(mapping)), user))
    return SplitInput(
        units,
        lambda released: [with_texts(walk(one), texts) for one, texts in zip(mappings, released, strict=True)],
    )


def _first(parts: SplitInput) -> SplitInput:
    return dataclasses.replace(parts, join=lambda released: parts.join(released)[0])


def _messages(
    messages: Sequence[BaseMessage], rules: Rules, user: str | None, document: str | None, keys: Collection[str]
) -> SplitInput:
    notes: list[list[str]] = [[] for _ in messages]
    with_keys = dataclasses.replace(rules.messages, keys_keep=[*rules.messages.keys_keep, *keys])
    replies = [_marked_texts(message, rules) for message in messages]

    def walk(position: int, note: Callable[[str], None]) -> Callable[[Swap], BaseMessage]:
        if replies[position] is not None:
            return _whole(messages[position], rules, note)
        return lambda swap: rebuild(messages[position], with_keys, swap, note)

    def join(released: Sequence[Texts]) -> list[BaseMessage]:
        rebuilt = []
        for position, (texts, reply) in enumerate(zip(released, replies, strict=True)):
            message = with_texts(walk(position, _ignore), texts if reply is None else reply)
            if message is not messages[position]:
                own = sorted(set(notes[position]))
                private = rules.stamp["private"] and not any(note.endswith(IN_CLEAR) for note in own)
                message.response_metadata[REPORT] = {**rules.stamp, "private": private, "notes": own}
            rebuilt.append(message)
        return rebuilt

    units = []
    for position, reply in enumerate(replies):
        texts = texts_in(walk(position, notes[position].append))
        if reply is not None:
            notes[position].append("a reply of the model, which was told sanitized text only, passed as it is")
        units.append(Unit(texts if reply is None else (), user, document))
    return SplitInput(units, join)


def marked(message: AIMessage, rules: Rules) -> AIMessage:
    """Mark a reply by key. Any change to its texts voids the mark."""
    metadata = {**message.response_metadata, REPLY: rules.mark(texts_in(_whole(message, rules, _ignore)))}
    return message.model_copy(update={"response_metadata": metadata})


def _whole(message: BaseMessage, rules: Rules, note: Callable[[str], None]) -> Callable[[Swap], BaseMessage]:
    """Return a walk that swaps every key: a mark holds under other tools."""
    whole = dataclasses.replace(rules.messages, keys_keep=())
    return lambda swap: rebuild(message, whole, swap, note)


def _marked_texts(message: BaseMessage, rules: Rules) -> Texts | None:
    mark = message.response_metadata.get(REPLY) if isinstance(message, AIMessage) else None
    if not isinstance(mark, str):
        return None
    texts = texts_in(_whole(message, rules, _ignore))
    return texts if hmac.compare_digest(mark.encode(), rules.mark(texts).encode()) else None


def _documents(documents: Sequence[Document], rules: Rules, user: str | None, document: str | None) -> SplitInput:
    check_documents(documents)
    own, keys = rules.documents, rules.messages.keys_keep

    def walk(position: int) -> Callable[[Swap], Document]:
        return lambda swap: rebuild_document(documents[position], own, keys, swap)

    units = [
        Unit(
            texts_in(walk(position)),
            user if user is not None else account_key(own.user_key, "user_key", one, position),
            document if document is not None else account_key(own.document_key, "document_key", one, position),
        )
        for position, one in enumerate(documents)
    ]
    return SplitInput(
        units,
        lambda released: [with_texts(walk(position), texts) for position, texts in enumerate(released)],
    )


def _prompt(
    value: PromptValue, rules: Rules, user: str | None, document: str | None, keys: Collection[str]
) -> SplitInput:
    if isinstance(value, StringPromptValue):
        unit = Unit((value.text,), user, document)
        return SplitInput([unit], lambda released: StringPromptValue(text=released[0][0]))
    if isinstance(value, ImagePromptValue):
        if rules.messages.media == "drop":
            raise InvalidParameter("Expected a prompt with text, not an image, under media='drop'. Give only text.")
        return SplitInput([], lambda _: value)
    parts = _messages(value.to_messages(), rules, user, document, keys)
    kind = ChatPromptValueConcrete if isinstance(value, ChatPromptValueConcrete) else ChatPromptValue
    return dataclasses.replace(parts, join=lambda released: kind(messages=parts.join(released)))


def _ignore(note: str) -> None:
    """Drop a note: the first walk has it."""
