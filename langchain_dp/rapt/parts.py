"""Whatever a chain passes on, taken apart into units of release and put together again in its own type."""

from __future__ import annotations

import dataclasses
import hmac
from collections import Counter
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
from langchain_dp.rapt.documents import DocumentRules, check_documents, rebuild_document, said_under
from langchain_dp.rapt.messages import IN_CLEAR, MessageRules, rebuild
from langchain_dp.rapt.release import Texts, Unit
from langchain_dp.rapt.structured import Swap, structured, texts_in, with_texts

Sanitizable = str | BaseMessage | list[BaseMessage] | PromptValue | Document | list[Document]
"""What a sanitizer takes, and gives back in the same type."""

REPORT = "rapt"
"""Key of ``response_metadata`` under which a sanitized message says what it is."""


REPLY = "rapt_reply"
"""Key under which a reply of the model outside is marked: it was made from sanitized text, and is public."""


@dataclasses.dataclass(frozen=True, repr=False)
class Taken:
    """An input in parts. Private.

    Args:
        units: What is to be released.
        put: Makes the output of the released units, in order.
        notes: What passes in clear and what is dropped, with how often; no text.
    """

    units: list[Unit]
    put: Callable[[Sequence[Texts]], Any]
    notes: Counter[str]


@dataclasses.dataclass(frozen=True)
class Rules:
    """What passes in clear, for each kind of input.

    Args:
        messages: Of messages, with the keys that pass in clear everywhere.
        documents: Of documents.
        stamp: What a sanitized message says of itself.
        mark: Keyed mark of texts that are public; nobody else can make it.
    """

    messages: MessageRules
    documents: DocumentRules
    stamp: dict[str, Any]
    mark: Callable[[Texts], str]

    def notes(self) -> tuple[str, ...]:
        """What passes in clear of inputs that are more than a text."""
        keys = ", ".join(sorted(self.messages.keys_keep))
        notes = [
            "Which inputs come, in which order and how many, is in clear: where a retriever or a selector compares "
            "what they hold, its choice is not covered.",
            "Of messages: roles, order and number, also of their blocks, names of tools, ids of their calls and "
            "whether these failed are in clear.",
            "Of arguments, answers of tools, JSON and metadata the shape is in clear: nesting, how many entries lists "
            "and objects have, nulls, and which texts hold JSON. Keys of objects are sanitized, but for "
            f"{keys or 'none'} and, in an agent, those that its tools declare.",
            "Of mappings (examples, variables of prompts) the keys are in clear, not those inside their values, and so "
            "are values that keep= names.",
            "Whether names of people, artifacts, thoughts, metadata and other fields were there to be dropped, and how "
            "many, is in clear: it is reported.",
            "Ids of messages and documents pass if they are whole UUIDs of version 4 or 7, which are taken to be "
            "random (7 tells when it was made); another id is replaced by a new one.",
        ]
        if self.messages.system == "keep":
            notes.append("System messages pass in clear.")
        if self.messages.media == "keep":
            notes.append(
                "Images, audio and files in messages pass in clear, with their addresses; their titles do not."
            )
        if self.documents.metadata_keep:
            notes.append(f"Metadata of documents that pass in clear: {', '.join(self.documents.metadata_keep)}.")
        if self.documents.metadata_sanitize:
            named = ", ".join(self.documents.metadata_sanitize)
            notes.append(f"Of metadata that are sanitized, keys are in clear: {named}.")
        return tuple(notes)


def check_keys(user: str | None, document: str | None) -> None:
    """Refuse names of accounts that are none."""
    for name, value in (("user", user), ("document", document)):
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidParameter(f"Expected {name} of type {type(value).__name__} to be a non-empty string, or None.")


def take(value: Any, rules: Rules, user: str | None, document: str | None, keys: Collection[str] = ()) -> Taken:
    """Take an input apart; ``keys``: more keys of JSON that pass in clear in messages."""
    check_keys(user, document)
    if isinstance(value, str):
        return Taken([Unit((value,), user, document)], lambda released: released[0][0], Counter())
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
            return _messages(listed(value), rules, user, document, keys)
        raise InvalidParameter(
            f"Expected a list of messages, or of documents, but it holds {wrong}. Use batch() for many texts."
        )
    mapping = isinstance(value, Mapping)
    raise InvalidParameter(
        f"Expected a str, messages, a prompt value or documents to sanitize, not {type(value).__name__}."
        + ' Take a value of it first: {"question": itemgetter("question") | sanitizer}.' * mapping
    )


def listed(messages: Any) -> list[BaseMessage]:
    """Messages in any form that LangChain takes."""
    found = as_messages(messages if isinstance(messages, (list, tuple)) else [messages])
    if found is None:
        kind = type(messages).__name__
        raise InvalidParameter(f"Expected messages of type {kind} to be messages, or what LangChain makes messages of.")
    return found


def _is_message(value: object) -> bool:
    """Whether LangChain takes it for one message: a pair of role and text, or a mapping with a role, too."""
    if isinstance(value, tuple):
        return len(value) == 2 and isinstance(value[0], str)
    return isinstance(value, BaseMessage) or (isinstance(value, dict) and "role" in value)


def take_mappings(
    mappings: Sequence[Mapping[str, Any]], rules: Rules, keep: Collection[str], user_key: str | None
) -> Taken:
    """Take mappings apart, one unit each: every value but those under ``keep``; ``user_key`` is not passed on."""
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
    return Taken(
        units,
        lambda released: [with_texts(walk(one), texts) for one, texts in zip(mappings, released, strict=True)],
        Counter(),
    )


def _first(taken: Taken) -> Taken:
    return dataclasses.replace(taken, put=lambda released: taken.put(released)[0])


def _messages(
    messages: Sequence[BaseMessage], rules: Rules, user: str | None, document: str | None, keys: Collection[str]
) -> Taken:
    reports: list[list[str]] = [[] for _ in messages]
    allowed = dataclasses.replace(rules.messages, keys_keep=[*rules.messages.keys_keep, *keys])
    public: dict[int, Texts] = {}

    def walk(position: int, note: Callable[[str], None]) -> Callable[[Swap], BaseMessage]:
        if position in public:
            return _whole(messages[position], rules, note)
        return lambda swap: rebuild(messages[position], allowed, swap, note)

    def put(released: Sequence[Texts]) -> list[BaseMessage]:
        rebuilt = []
        for position, texts in enumerate(released):
            message = with_texts(walk(position, _ignore), public.get(position, texts))
            if message is not messages[position]:
                notes = sorted(set(reports[position]))
                private = rules.stamp["private"] and not any(note.endswith(IN_CLEAR) for note in notes)
                message.response_metadata[REPORT] = {**rules.stamp, "private": private, "notes": notes}
            rebuilt.append(message)
        return rebuilt

    units = []
    for position, report in enumerate(reports):
        said = _said(messages[position], rules)
        texts: Texts = ()
        if said is None:
            texts = texts_in(walk(position, report.append))
        else:
            public[position] = said
            texts_in(walk(position, report.append))
            report.append("a reply of the model, which was told sanitized text only, passed as it is")
        units.append(Unit(texts, user, document))
    return Taken(units, put, Counter(note for report in reports for note in report))


def marked(message: AIMessage, rules: Rules) -> AIMessage:
    """Return a reply with the mark by which it is known again; any change to its texts voids it."""
    metadata = {**message.response_metadata, REPLY: rules.mark(texts_in(_whole(message, rules, _ignore)))}
    return message.model_copy(update={"response_metadata": metadata})


def _whole(message: BaseMessage, rules: Rules, note: Callable[[str], None]) -> Callable[[Swap], BaseMessage]:
    """A walk that takes every key for a text, whatever is declared: a mark holds under other tools, too."""
    whole = dataclasses.replace(rules.messages, keys_keep=())
    return lambda swap: rebuild(message, whole, swap, note)


def _said(message: BaseMessage, rules: Rules) -> Texts | None:
    """What the model itself said in its reply; None if somebody else says it, or it was changed."""
    mark = message.response_metadata.get(REPLY) if isinstance(message, AIMessage) else None
    if not isinstance(mark, str):
        return None
    texts = texts_in(_whole(message, rules, _ignore))
    return texts if hmac.compare_digest(mark.encode(), rules.mark(texts).encode()) else None


def _documents(documents: Sequence[Document], rules: Rules, user: str | None, document: str | None) -> Taken:
    check_documents(documents)
    notes: list[str] = []
    given, keys = rules.documents, rules.messages.keys_keep

    def walk(position: int, note: Callable[[str], None]) -> Callable[[Swap], Document]:
        return lambda swap: rebuild_document(documents[position], given, keys, swap, note)

    units = [
        Unit(
            texts_in(walk(position, notes.append)),
            user if user is not None else said_under(given.user_key, "user_key", one, position),
            document if document is not None else said_under(given.document_key, "document_key", one, position),
        )
        for position, one in enumerate(documents)
    ]
    return Taken(
        units,
        lambda released: [with_texts(walk(position, _ignore), texts) for position, texts in enumerate(released)],
        Counter(notes),
    )


def _prompt(value: PromptValue, rules: Rules, user: str | None, document: str | None, keys: Collection[str]) -> Taken:
    if isinstance(value, StringPromptValue):
        unit = Unit((value.text,), user, document)
        return Taken([unit], lambda released: StringPromptValue(text=released[0][0]), Counter())
    if isinstance(value, ImagePromptValue):
        if rules.messages.media != "keep":
            raise InvalidParameter(
                f"Expected a prompt with text, not an image, under media={rules.messages.media!r}: only text can be "
                "sanitized."
            )
        return Taken([], lambda _: value, Counter({"an image prompt passed in clear": 1}))
    taken = _messages(value.to_messages(), rules, user, document, keys)
    kind = ChatPromptValueConcrete if isinstance(value, ChatPromptValueConcrete) else ChatPromptValue

    return dataclasses.replace(taken, put=lambda released: kind(messages=taken.put(released)))


def _ignore(note: str) -> None:
    """The second walk has nothing new to say."""
