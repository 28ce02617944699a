"""One conversation under pseudonyms, as a Runnable that can restore the originals."""

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
from langchain_dp.rapt.pseudonyms.masks import TraceMask, masked_runs
from langchain_dp.rapt.pseudonyms.recognize import KINDS, AllEntities, PatternEntities, Recognizer, TermEntities
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.restore import Restorer
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import redact_errors


@dataclasses.dataclass(frozen=True)
class PseudonymReport:
    """Report on one conversation, without private text.

    Args:
        counts: Number of different hidden entities of each kind.
        looked_for: Names of the recognizers.
        not_looked_for: Usual kinds that no recognizer looks for. Empty if one does not declare its kinds.
        unknown: Whether a recognizer does not declare its kinds.
        remaining_text_sanitizer: Promise for the other words, under ``remaining_text_sanitizer=``. None: they passed in
            clear.
        system_in_clear: Whether system messages were not searched.
        left_in_addresses: Number of placeholders that were not restored, because they stood in a web address whose host
            is not allowed.
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
        """Plain values for strict JSON, as ``langchain-dp audit --pseudonyms`` reads them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        rest = None if self.remaining_text_sanitizer is None else self.remaining_text_sanitizer.to_dict()
        lists = {"counts": dict(self.counts), "not_looked_for": list(self.not_looked_for)}
        return {**fields, **lists, "remaining_text_sanitizer": rest}

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
    """Replaces recognized entities by placeholders such as ``<PERSON_1>``, the same in a whole conversation.

    NOT formal privacy: there is no epsilon, and text that no recognizer finds passes in clear. Accepts a str, a
    message, a list of messages, a prompt value, a document or a list of documents, and returns the same type.
    :meth:`restore` puts the originals back, and :meth:`restorer` does so as the last step of a chain, also in streams.

    One object is one conversation: equal entities share a placeholder, also in other case or spacing where these carry
    no meaning. Different entities never do. A hidden entity is hidden everywhere else, recognized or not, if it has at
    least three letters, or two of writing without spaces. A single word only as it was met, and in capitals. Text that
    looks like a placeholder becomes one. The next conversation needs :meth:`new_conversation`.

    The map is in memory, and in no repr, trace or error. As with every part of a chain, the ROOT run shows tracers the
    input and output of the chain: use ``with private_run():``.

    Args:
        recognizers: Finders of entities: ``PatternEntities()`` by default, ``PresidioEntities(...)``,
            ``GlinerEntities(...)``, a function of a text that returns start, end and kind of each entity, or a list.
        presidio: Whether Presidio looks for entities as well. A code such as "de" is the language of the texts, True
            English. It needs the extra ``presidio`` and spaCy's model of the language.
        gliner: Whether GLiNER looks as well. A text is the folder of its model, True the default model in Hugging
            Face's cache. It needs the extra ``gliner``.
        terms: Your own words to hide, or a mapping of each to its kind.
        remaining_text_sanitizer: Sanitizer for the other words, under metric privacy. None: they pass in clear.
        messages: Parts of messages that pass in clear: by default media. System messages, which often hold context, are
            searched by default, but pass with ``remaining_text_sanitizer``, which would replace their words.
        documents: Metadata of a document that pass in clear: by default none.
        allowed_hosts: Hosts in whose web addresses originals are restored, percent-encoded. In other addresses
            placeholders stay: a page or preview may fetch an address by itself, and a document can make the model write
            one.
        name: Name of the run.

    Raises:
        InvalidParameter: A recognizer is none, or a value is of another type.

    Formal guarantee:
        None. ``certificate().private`` is False. The promise of ``remaining_text_sanitizer`` holds for the words
        between the placeholders alone.

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
        """The same settings for another conversation, with a new map."""
        other = object.__new__(type(self))
        other.name, other._settings, other._allowed_hosts = self.name, self._settings, self._allowed_hosts
        other._begin()
        return other

    @redact_errors()
    def sanitize(self, value: S, *, hidden: bool = False, named: bool = False) -> S:
        """:meth:`invoke` without a run.

        Args:
            value: Value to hide entities in.
            hidden: Whether its author knows placeholders only: those of this conversation stay, and
                ``remaining_text_sanitizer`` does not sanitize its other words.
            named: Whether placeholders of this conversation stay, and the other words are sanitized.
        """
        return (self._hidden if hidden else self._named if named else self._core).sanitize(value, None, None)

    def restore(self, value: Any) -> Any:
        """Replace placeholders by originals in a str, messages, a prompt value, documents or a structured answer."""
        return self.restorer().restore(value)

    def restorer(self) -> Restorer:
        """:meth:`restore` as the last step of a chain, which also restores streams."""
        return Restorer(self._map)

    def as_langsmith_anonymizer(self) -> Callable[[Any], Any]:
        """Return a function for ``langsmith.Client(anonymizer=...)``, which sends placeholders only.

        LangSmith applies it to inputs, outputs, errors and metadata of every run. One object is one map: the same
        entity has the same placeholder in all traces, so they stay readable. A text on which a recognizer fails is
        withheld. Names and tags of runs pass in clear. Use :meth:`langsmith_options` to hide these as well.

        Examples:
            >>> client = langsmith.Client(anonymizer=Pseudonymizer().as_langsmith_anonymizer())
            >>> chain.invoke(question, {"callbacks": [LangChainTracer(client=client)]})
        """
        return TraceMask(self.sanitize)

    def langsmith_options(self) -> dict[str, Any]:
        """Return options for ``langsmith.Client(...)``, which hide names of runs, tags and settings of models as well.

        They include :meth:`as_langsmith_anonymizer`. A run is sent as soon as it is buffered.

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
        """Return a function for ``Langfuse(mask=...)``. See :meth:`as_langsmith_anonymizer`."""
        mask = TraceMask(self.sanitize)
        return lambda *, data, **_: mask(data)

    @property
    def placeholders(self) -> PlaceholderMap:
        """The map. Private."""
        return self._map

    @property
    def sanitizes_the_rest(self) -> bool:
        """Return whether ``remaining_text_sanitizer=`` was given."""
        return self._settings[1] is not None

    def certificate(self) -> MetricCertificate:
        """Certificate without a promise, with the reason."""
        return self._core.certificate()

    def report(self) -> PseudonymReport:
        """Report on the hidden entities, the missing recognizers, and the promise for all other words."""
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
