"""One conversation under pseudonyms, as a Runnable: the same type comes out, and can be put back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_dp._util.validate import group
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt._shell import Core, S, SanitizerShell
from langchain_dp.rapt.addresses import checked_hosts
from langchain_dp.rapt.documents import DocumentRules
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.placeholders import PlaceholderMap, PlaceholderReleases
from langchain_dp.rapt.pseudonyms.patterns import PatternEntities
from langchain_dp.rapt.pseudonyms.recognize import KINDS, AllEntities, Recognizer, TermEntities
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.restore import Restorer
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import redact_errors


@dataclasses.dataclass(frozen=True)
class PseudonymReport:
    """What was hidden in one conversation, and what nobody looked for. No private text is in it.

    Args:
        counts: How many different entities of each kind became placeholders.
        looked_for: Names of the recognizers.
        not_looked_for: Usual kinds that none of them looks for; empty if one does not say what it looks for.
        unknown: Whether one of them does not say what it looks for.
        remaining_text_sanitizer: What was promised for the words that remain, under ``remaining_text_sanitizer=``;
            None: they passed in clear.
        system_in_clear: Whether nothing was looked for in system messages.
        left_in_addresses: How many placeholders were not put back, because they stood in a web address whose host is
            not allowed.
        private: False. Pseudonyms are no formal privacy and have no epsilon.

    Examples:
        >>> print(pseudonymizer.report())
        NOT PRIVATE: pseudonyms, no epsilon. Hidden: 1 EMAIL. ...
    """

    counts: Mapping[str, int]
    looked_for: str
    not_looked_for: tuple[str, ...]
    unknown: bool
    remaining_text_sanitizer: MetricCertificate | None
    system_in_clear: bool = False
    left_in_addresses: int = 0
    private: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values that strict JSON can hold, as ``langchain-dp audit --pseudonyms`` reads them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **fields,
            "counts": dict(self.counts),
            "not_looked_for": list(self.not_looked_for),
            "remaining_text_sanitizer": None
            if self.remaining_text_sanitizer is None
            else self.remaining_text_sanitizer.to_dict(),
        }

    def __str__(self) -> str:
        hidden = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "nothing"
        lines = [
            f"NOT PRIVATE: pseudonyms, no epsilon. Hidden: {hidden}.",
            f"Looked for by: {self.looked_for}. What these miss passed in clear.",
        ]
        if self.unknown:
            lines.append("One of these does not say what it looks for.")
        elif self.not_looked_for:
            lines.append(f"Nobody looked for: {', '.join(self.not_looked_for)}.")
        if self.system_in_clear:
            lines.append("System messages passed in clear: MessageRules(system='sanitize') hides in them, too.")
        if self.left_in_addresses:
            lines.append(
                f"{self.left_in_addresses} placeholders were not put back: they stood in web addresses of hosts that "
                "allowed_hosts= does not name."
            )
        lines.append(
            "All other words passed in clear."
            if self.remaining_text_sanitizer is None
            else f"All other words: {self.remaining_text_sanitizer}"
        )
        return "\n".join(lines)


class Pseudonymizer(SanitizerShell):
    """Replaces what its recognizers find by placeholders such as ``<PERSON_1>``, the same in a whole conversation.

    NOT formal privacy: there is no epsilon, and what no recognizer finds passes in clear. Takes a str, a message, a
    list of messages, a prompt value, a document or a list of documents, and gives the same type back;
    :meth:`restore` puts the originals back, and :meth:`restorer` does so as the last step of a chain, in streams too.

    One object is one conversation: equal entities share a placeholder, in any spelling of case and space where these
    say nothing; different ones never do. What was hidden once is hidden wherever it stands again, found or not, if it
    has three letters at least, or two of writing without spaces; a single word as it was met, and in capitals. What a
    text holds that looks like a placeholder becomes one itself. The next conversation needs :meth:`new_conversation`.

    The map is in memory, and in no repr, trace or error. As with every part of a chain, the ROOT run shows tracers
    what the chain was given and what it answers: use ``with private_run():``.

    Args:
        recognizers: What finds entities: ``PatternEntities()`` if left out, ``PresidioEntities(...)``,
            ``GlinerEntities(...)``, a function of a text that returns start, end and kind of each entity, or a list.
        terms: The caller's own words to hide, or a mapping of each to its kind.
        remaining_text_sanitizer: A sanitizer for the words that remain, under metric privacy; None: they pass in clear.
        messages: What of messages passes in clear. By default media do; system messages, which often hold context, are
            hidden in like all others, but pass where ``remaining_text_sanitizer`` would replace their words.
        documents: What of a document's metadata passes. By default none does.
        allowed_hosts: Names of hosts in whose web addresses originals are put back, percent-encoded. In all other
            addresses placeholders stay: a page or a preview may fetch an address by itself, and a document can make
            the model write one.
        name: Name of the run.

    Raises:
        InvalidParameter: A recognizer is none, or a value is of another type.

    Formal guarantee:
        None. ``certificate().private`` is False. With ``remaining_text_sanitizer``, its own promise holds for the
        words between the placeholders alone.

    Examples:
        >>> pseudonymizer = Pseudonymizer(terms={"Ann Smith": "person"})
        >>> pseudonymizer.invoke("Ann Smith has ann@example.org.")
        '<PERSON_1> has <EMAIL_1>.'
        >>> pseudonymizer.restore("Dear <PERSON_1>")
        'Dear Ann Smith'
    """

    def __init__(
        self,
        recognizers: Recognizer | Sequence[Recognizer] | None = None,
        *,
        terms: Sequence[str] | Mapping[str, str] = (),
        remaining_text_sanitizer: RAPTSanitizer | None = None,
        messages: MessageRules | None = None,
        documents: DocumentRules | None = None,
        allowed_hosts: Collection[str] = (),
        name: str = "Pseudonymizer",
    ) -> None:
        if remaining_text_sanitizer is not None and not isinstance(remaining_text_sanitizer, RAPTSanitizer):
            raise InvalidParameter(
                f"Expected remaining_text_sanitizer of type {type(remaining_text_sanitizer).__name__} to be a "
                f"RAPTSanitizer."
            )
        if remaining_text_sanitizer is not None:
            remaining_text_sanitizer.check_limit(
                "text", "Give remaining_text_sanitizer= a sanitizer without a limit.", user=False
            )
        if recognizers is None:
            recognizers = [PatternEntities()]
        given = list(recognizers) if isinstance(recognizers, (list, tuple)) else [recognizers]
        self.name = name
        finder = AllEntities([*given, *([TermEntities(terms)] if terms else [])])  # type: ignore[list-item]
        if messages is None:
            messages = MessageRules(system="sanitize" if remaining_text_sanitizer is None else "keep")
        rules = group("messages", messages, MessageRules), group("documents", documents, DocumentRules)
        self._settings = finder, remaining_text_sanitizer, rules
        self._allowed_hosts = checked_hosts(allowed_hosts)
        self._begin()

    def _begin(self) -> None:
        finder, remaining_text_sanitizer, rules = self._settings
        self._map = PlaceholderMap(self._allowed_hosts)
        words = None if remaining_text_sanitizer is None else remaining_text_sanitizer._releases

        def core(*, hidden: bool, rest: FormalReleases | None) -> Core:
            return Core(PlaceholderReleases(finder, self._map, hidden=hidden, remaining_text_sanitizer=rest), *rules)

        self._core, self._named = core(hidden=False, rest=words), core(hidden=True, rest=words)
        self._told = core(hidden=True, rest=None)  # who was told sanitized text only has nothing else to say

    def new_conversation(self) -> Pseudonymizer:
        """The same settings for another conversation, with a map of its own."""
        other = object.__new__(type(self))
        other.name, other._settings, other._allowed_hosts = self.name, self._settings, self._allowed_hosts
        other._begin()
        return other

    @redact_errors()
    def sanitize(self, value: S, *, hidden: bool = False, named: bool = False) -> S:
        """Do what :meth:`invoke` does, without a run.

        Args:
            value: What to hide entities in.
            hidden: Whether it comes from where only placeholders are known: those of this conversation stay, and its
                other words are not sanitized by ``remaining_text_sanitizer``.
            named: Whether placeholders of this conversation stay, and the other words are sanitized.
        """
        return (self._told if hidden else self._named if named else self._core).sanitize(value, None, None)

    def restore(self, value: Any) -> Any:
        """Put back what placeholders stand for: in a str, messages, a prompt value, documents, a structured answer."""
        return self.restorer().restore(value)

    def restorer(self) -> Restorer:
        """Return :meth:`restore` as the last step of a chain, which restores streams as they come."""
        return Restorer(self._map)

    @property
    def placeholders(self) -> PlaceholderMap:
        """The map, for what keeps it. Private."""
        return self._map

    @property
    def sanitizes_the_rest(self) -> bool:
        """Whether ``remaining_text_sanitizer=`` was given."""
        return self._settings[1] is not None

    def certificate(self) -> MetricCertificate:
        """What is not promised, and why."""
        return self._core.certificate()

    def report(self) -> PseudonymReport:
        """What was hidden so far, what nobody looked for, and what is promised for all other words."""
        finder, remaining_text_sanitizer, (messages, _) = self._settings
        kinds = finder.kinds
        return PseudonymReport(
            counts=self._map.counts(),
            looked_for=finder.name,
            not_looked_for=() if kinds is None else tuple(kind for kind in KINDS if kind not in kinds),
            unknown=kinds is None,
            remaining_text_sanitizer=None
            if remaining_text_sanitizer is None
            else remaining_text_sanitizer.certificate(),
            system_in_clear=messages.system == "keep",
            left_in_addresses=self._map.left_in_addresses,
        )

    def __repr__(self) -> str:
        return "Pseudonymizer(NOT PRIVATE: no epsilon)"
