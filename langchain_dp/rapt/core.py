"""What a sanitizer does, whoever calls it: take apart, release, put together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.messages import AIMessage

from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerError
from langchain_dp.rapt.documents import DocumentRules
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.parts import Rules, Taken, marked, take, take_mappings
from langchain_dp.rapt.placeholders import PlaceholderReleases
from langchain_dp.rapt.release import STREAMED, FormalReleases
from langchain_dp.rapt.tokenize import TextStream
from langchain_dp.redact import without_frames

V = TypeVar("V")


@dataclasses.dataclass(frozen=True, repr=False)
class Sanitized:
    """What a sanitizer released, with its certificate as of that moment.

    Args:
        value: The sanitized input, in the input's own type.
        certificate: Under which promise; its notes name what of this input passed in clear or was dropped.

    Examples:
        >>> released = sanitizer.invoke_with_certificate("Anna takes prednisone.")
        >>> released.value, released.certificate.eta
    """

    value: Any
    certificate: MetricCertificate

    def __repr__(self) -> str:
        return f"Sanitized({type(self.value).__name__}, {self.certificate!r})"


class Core:
    """Releases inputs of every kind under one set of rules.

    Args:
        releases: Draws and charges.
        messages: What of a message passes in clear.
        documents: What of a document passes in clear.
    """

    def __init__(
        self, releases: FormalReleases | PlaceholderReleases, messages: MessageRules, documents: DocumentRules
    ) -> None:
        self.releases = releases
        self._rules = Rules(messages, documents, releases.stamp(), releases.mark)

    def sanitize(self, value: V, user: str | None, document: str | None, keys: Sequence[str] = ()) -> V:
        """Release one input; ``keys``: more keys of JSON that pass in clear."""
        return self._released([self._take(value, user, document, keys)])[0]  # type: ignore[no-any-return]  # the same type

    def sanitize_all(
        self, values: Sequence[V], tolerant: bool, users: Sequence[str | None], document: str | None
    ) -> list[V | Exception]:
        """Release many inputs, each with its user, under one charge.

        With ``tolerant`` each is released on its own where not all of them can be. A ledger that failed is not tried
        again: what it charged before would be charged twice.
        """
        try:
            return self._released(
                [self._take(value, user, document) for value, user in zip(values, users, strict=True)]
            )
        except LangChainDPError as error:
            if not tolerant or isinstance(error, LedgerError):
                raise
        met: Counter[str] = Counter()
        return [self._tried(value, user, document, met) for value, user in zip(values, users, strict=True)]

    def sanitize_mappings(
        self, mappings: Sequence[Mapping[str, Any]], keep: Sequence[str], user_key: str | None
    ) -> list[dict[str, Any]]:
        """Release the values of mappings."""
        released: list[dict[str, Any]] = self._released([take_mappings(mappings, self._rules, keep, user_key)])[0]
        return released

    def marked(self, reply: AIMessage) -> AIMessage:
        """Mark what a model answered that was told sanitized text only."""
        return marked(reply, self._rules)

    def with_certificate(self, value: Any, user: str | None, document: str | None) -> Sanitized:
        """Release one input and say how."""
        taken = self._take(value, user, document)
        released = self._released([taken])[0]
        return Sanitized(released, self.certificate(taken.notes))

    def certificate(self, also: Counter[str] | None = None) -> MetricCertificate:
        """The promise, with what one input added to what passes in clear."""
        met = () if also is None else tuple(f"In this input: {note} ({count} x)." for note, count in also.items())
        streams = (STREAMED,) if self.streams(None) else ()
        notes = (*self.releases.notes(), *streams, *self._rules.notes(), *met)
        return self.releases.certificate(notes, {})

    def streams(self, document: str | None) -> bool:
        """Whether words of a text may leave before it is complete, if this is the name of its document."""
        return self.releases.streams(document)

    @property
    def names_documents(self) -> bool:
        """Whether the metadata of a document say whose, or which, it is."""
        return (self._rules.documents.user_key or self._rules.documents.document_key) is not None

    def check_limit(self, what: str, remedy: str, *, user: bool) -> None:
        """Refuse a place in which the limit would never be reached; ``user``: whether somebody is charged there."""
        limit = self.releases.idle_limit(user=user)
        if limit is not None:
            raise InvalidParameter(
                f"Expected limit={limit:g} to be one that can be reached: here every {what} is a document of its own, "
                f"which is charged once, and no user has an account under the limit. {remedy}"
            )

    def stream(self, user: str | None, document: str | None) -> TextStream:
        """Charge one release of a text to come."""
        assert isinstance(self.releases, FormalReleases)  # the other kind does not stream
        _check_key("user", user)
        _check_key("document", document)
        return self.releases.stream(user=user, document=document)

    def _take(self, value: Any, user: str | None, document: str | None, keys: Sequence[str] = ()) -> Taken:
        _check_key("user", user)
        _check_key("document", document)
        return take(value, dataclasses.replace(self._rules, declared=keys), user=user, document=document)

    def _released(self, taken: Sequence[Taken], met: Counter[str] | None = None) -> list[Any]:
        texts = self.releases.release([unit for one in taken for unit in one.units], met)
        results, start = [], 0
        for one in taken:
            end = start + len(one.units)
            results.append(one.put(texts[start:end]))
            start = end
        return results

    def _tried(self, value: V, user: str | None, document: str | None, met: Counter[str]) -> V | Exception:
        try:
            return self._released([self._take(value, user, document)], met)[0]  # type: ignore[no-any-return]  # as above
        except LangChainDPError as error:
            return without_frames(error)  # type: ignore[return-value]  # of the same class


def _check_key(name: str, value: str | None) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidParameter(f"Expected {name} of type {type(value).__name__} to be a non-empty string, or None.")
