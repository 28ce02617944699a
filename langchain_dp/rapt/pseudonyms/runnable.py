"""One conversation under pseudonyms, as a Runnable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import Any

from langchain_dp._util.validate import group, instance
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.rapt._shell import Core, S, SanitizerShell
from langchain_dp.rapt.addresses import checked_hosts
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.parts import DocumentRules
from langchain_dp.rapt.placeholders import PlaceholderMap, PlaceholderReleases
from langchain_dp.rapt.pseudonyms.recognize import KINDS, AllEntities, PatternEntities, Recognizer, TermEntities
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.restore import Restorer
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import PrivateArgs, redact_errors, run_redacted

WITHHELD = "<withheld>"
_DEEPEST = 50


@dataclasses.dataclass(frozen=True)
class PseudonymReport:
    """Report on one conversation, without private text.

    Args:
        counts: Number of different hidden entities of each kind.
        looked_for: Names of the recognizers.
        not_looked_for: Usual kinds without a recognizer.
        unknown: Whether a recognizer declares no kinds.
        remaining_text_sanitizer: Promise for the other words. None: they passed in clear.
        system_in_clear: Whether system messages were not searched.
        left_in_addresses: Number of placeholders left in web addresses.
        private: False.

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
        """Return plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        rest = None if self.remaining_text_sanitizer is None else self.remaining_text_sanitizer.to_dict()
        lists = {"counts": dict(self.counts), "not_looked_for": list(self.not_looked_for)}
        return {**fields, **lists, "remaining_text_sanitizer": rest}

    def __str__(self) -> str:
        hidden = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "nothing"
        lines = [
            f"NOT PRIVATE: pseudonyms, no epsilon. Hidden: {hidden}.",
            f"Looked for by: {self.looked_for}. Names that these miss passed in clear.",
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
    """Replaces recognized entities by placeholders such as ``<PERSON_1>``, the same in a whole conversation.

    NOT formal privacy: text that no recognizer finds passes in clear. Takes a str, messages, a prompt value or
    documents. :meth:`restorer` restores the originals at the end of a chain.

    One object is one conversation: equal entities share a placeholder, different ones never do. A hidden entity of at
    least three letters is hidden everywhere else: a single word as it was met and in capitals.

    The ROOT run shows tracers the input and output of the chain: use ``with private_run():``.

    Args:
        recognizers: Finders of entities, or one. None: ``PatternEntities()``. A function returns start, end and kind of
            each entity.
        presidio: Whether Presidio looks as well. A code such as "de" is the language.
        gliner: Whether GLiNER looks as well. A text is the folder of its model.
        terms: Your own words to hide, or a mapping of each to its kind.
        remaining_text_sanitizer: Sanitizer for the other words, under metric privacy.
        messages: Parts of messages that pass in clear: by default media, and with ``remaining_text_sanitizer`` system
            messages.
        documents: Metadata of a document that pass in clear.
        allowed_hosts: Hosts in whose web addresses originals are restored. Elsewhere placeholders stay: a preview may
            fetch an address that a document made the model write.
        name: Name of the run.

    Formal guarantee:
        None. ``certificate().private`` is False. ``remaining_text_sanitizer`` covers the words between placeholders
        alone.

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
        presidio: bool | str = False,
        gliner: bool | str | PathLike[str] = False,
        terms: Sequence[str] | Mapping[str, str] = (),
        remaining_text_sanitizer: RAPTSanitizer | None = None,
        messages: MessageRules | None = None,
        documents: DocumentRules | None = None,
        allowed_hosts: Collection[str] = (),
        name: str = "Pseudonymizer",
    ) -> None:
        if remaining_text_sanitizer is not None:
            instance("remaining_text_sanitizer", remaining_text_sanitizer, RAPTSanitizer, "a RAPTSanitizer")
            remedy = "Give remaining_text_sanitizer= a sanitizer without a limit."
            remaining_text_sanitizer.check_limit("text", remedy, user=False)
        if not isinstance(recognizers, (list, tuple)):
            recognizers = [PatternEntities() if recognizers is None else recognizers]  # type: ignore[list-item]
        self.name = name
        models: list[Recognizer] = []
        if presidio:
            from langchain_dp.integrations.presidio import PresidioEntities

            models.append(PresidioEntities(language="en" if presidio is True else presidio))
        if gliner:
            from langchain_dp.integrations.gliner import GlinerEntities

            models.append(GlinerEntities() if gliner is True else GlinerEntities(gliner))
        finder = AllEntities([*recognizers, *models, *([TermEntities(terms)] if terms else [])])
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
            return Core(PlaceholderReleases(finder, self._map, hidden=hidden, rest=rest), *rules)

        self._core, self._named = core(hidden=False, rest=words), core(hidden=True, rest=words)
        self._hidden = core(hidden=True, rest=None)  # for authors who know sanitized text only

    def new_conversation(self) -> Pseudonymizer:
        """Return the settings, with a new map."""
        other = object.__new__(type(self))
        other.name, other._settings, other._allowed_hosts = self.name, self._settings, self._allowed_hosts
        other._begin()
        return other

    @redact_errors()
    def sanitize(self, value: S, *, hidden: bool = False, named: bool = False) -> S:
        """:meth:`invoke` without a run. With ``hidden`` or ``named``, this conversation's placeholders stay.

        With ``hidden``, for authors who saw placeholders only, ``remaining_text_sanitizer`` is not applied.
        """
        return (self._hidden if hidden else self._named if named else self._core).sanitize(value, None, None)

    def restore(self, value: Any) -> Any:
        """Replace placeholders by originals."""
        return self.restorer().restore(value)

    def restorer(self) -> Restorer:
        """Return :meth:`restore` as a Runnable."""
        return Restorer(self._map)

    def as_langsmith_anonymizer(self) -> Callable[[Any], Any]:
        """Return a function for ``langsmith.Client(anonymizer=...)``, which sends placeholders only.

        Names and tags of runs pass in clear, unless :meth:`langsmith_options` hides them.

        Examples:
            >>> client = langsmith.Client(anonymizer=Pseudonymizer().as_langsmith_anonymizer())
            >>> chain.invoke(question, {"callbacks": [LangChainTracer(client=client)]})
        """
        return TraceMask(self.sanitize)

    def langsmith_options(self) -> dict[str, Any]:
        """Return options for ``langsmith.Client(...)`` that also hide names of runs, tags and settings.

        Examples:
            >>> client = langsmith.Client(**Pseudonymizer().langsmith_options())
        """
        mask = TraceMask(self.sanitize)
        return {
            "anonymizer": mask,
            "process_buffered_run_ops": functools.partial(masked_runs, mask),
            "run_ops_buffer_size": 1,
        }

    def as_langfuse_mask(self) -> Callable[..., Any]:
        """Return a Langfuse ``mask``."""
        mask = TraceMask(self.sanitize)
        return lambda *, data, **_: mask(data)

    @property
    def placeholders(self) -> PlaceholderMap:
        return self._map

    @property
    def sanitizes_the_rest(self) -> bool:
        return self._settings[1] is not None

    def certificate(self) -> MetricCertificate:
        """Certify that nothing is promised."""
        return self._core.certificate()

    def report(self) -> PseudonymReport:
        """Report on hidden entities and other words."""
        finder, rest, (messages, _) = self._settings
        kinds = finder.kinds
        return PseudonymReport(
            counts=self._map.counts(),
            looked_for=finder.name,
            not_looked_for=() if kinds is None else tuple(kind for kind in KINDS if kind not in kinds),
            unknown=kinds is None,
            remaining_text_sanitizer=None if rest is None else rest.certificate(),
            system_in_clear=messages.system == "keep",
            left_in_addresses=self._map.left_in_addresses,
        )

    def __repr__(self) -> str:
        return "Pseudonymizer(NOT PRIVATE: no epsilon)"


class TraceMask:
    """Hides entities in nested values. Where a recognizer fails, the text is withheld."""

    def __init__(self, sanitize: Callable[[str], str]) -> None:
        self._sanitize = sanitize

    def __call__(self, data: Any) -> Any:
        return run_redacted(self._masked, PrivateArgs(data, _DEEPEST))

    def _masked(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if depth == 0:
            return WITHHELD
        if isinstance(value, Mapping):
            return {self._masked(key, 1): self._masked(inner, depth - 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            masked = [self._masked(inner, depth - 1) for inner in value]
            return tuple(masked) if isinstance(value, tuple) else masked
        return self._text(str(value))

    def _text(self, text: str) -> str:
        try:
            return self._sanitize(text)
        except Exception:  # of a recognizer, whose text may be private
            return WITHHELD

    def __repr__(self) -> str:
        return "TraceMask(NOT PRIVATE: no epsilon)"


_SHOWN = ("name", "tags", "extra", "serialized")
"""Fields that LangSmith does not, or not wholly, anonymize."""


def masked_runs(mask: TraceMask, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    masked = []
    for run in runs:
        fields = {field: mask(run[field]) for field in _SHOWN if run.get(field)}
        events = [{**event, "kwargs": mask(event.get("kwargs"))} for event in run.get("events") or ()]
        masked.append({**run, **fields, **({"events": events} if events else {})})
    return masked
