"""The Runnable plumbing of a sanitizer: every way to call it, and none that shows a callback what went in.

LangChain's own helpers log what they are given as the input of the run. So they are given a word that says that the
input is withheld, and the work is done on the side.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, get_config_list

from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerError, PrivateDataError
from langchain_dp.rapt.documents import DocumentRules
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.parts import Rules, Taken, check_keys, take
from langchain_dp.rapt.placeholders import PlaceholderReleases
from langchain_dp.rapt.release import STREAMED, FormalReleases
from langchain_dp.rapt.tokenize import TextStream
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, run_redacted, without_frames

_KNOWN = "Known are user= and document=."

S = TypeVar("S")
"""One of :data:`langchain_dp.rapt.parts.Sanitizable`: what goes in comes out in the same type."""

USER = "user_id"  # among the ``configurable`` values of a config

WITHHELD = "<withheld: the input of a sanitizer>"
"""What callbacks and tracers see instead of the raw input."""

NOTHING: Any = object()
"""Stands for no chunk at all; None is a chunk, and refused."""


@dataclasses.dataclass(frozen=True, repr=False)
class SanitizeResult:
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
        return f"SanitizeResult({type(self.value).__name__}, {self.certificate!r})"


class Core:
    """Takes inputs of every kind apart, releases their texts and puts them together, under one set of rules."""

    def __init__(
        self, releases: FormalReleases | PlaceholderReleases, messages: MessageRules, documents: DocumentRules
    ) -> None:
        self.releases = releases
        self.rules = Rules(messages, documents, releases.stamp(), releases.mark)

    def sanitize(self, value: S, user: str | None, document: str | None, keys: Sequence[str] = ()) -> S:
        """Release one input; ``keys``: more keys of JSON that pass in clear."""
        return self.released([take(value, self.rules, user, document, keys)])[0]  # type: ignore[no-any-return]

    def sanitize_all(
        self, values: Sequence[Any], tolerant: bool, users: Sequence[str | None], document: str | None
    ) -> list[Any]:
        """Release many inputs, each with its user, under one charge.

        With ``tolerant`` each is released on its own where not all of them can be. A ledger that failed is not tried
        again: what it charged before would be charged twice.
        """
        pairs = list(zip(values, users, strict=True))
        try:
            return self.released([take(value, self.rules, user, document) for value, user in pairs])
        except LangChainDPError as error:
            if not tolerant or isinstance(error, LedgerError):
                raise
        met: Counter[str] = Counter()
        results: list[Any] = []
        for value, user in pairs:
            try:
                results += self.released([take(value, self.rules, user, document)], met)
            except LangChainDPError as error:
                results.append(without_frames(error))
        return results

    def with_certificate(self, value: Any, user: str | None, document: str | None) -> SanitizeResult:
        """Release one input and say how."""
        taken = take(value, self.rules, user, document)
        released = self.released([taken])[0]
        return SanitizeResult(released, self.certificate(taken.notes))

    def certificate(self, also: Mapping[str, int] | None = None) -> MetricCertificate:
        """The promise, with what one input added to what passes in clear."""
        met = (f"In this input: {note} ({count} x)." for note, count in (also or {}).items())
        streams = (STREAMED,) if self.releases.streams(None) else ()
        return self.releases.certificate((*self.releases.notes(), *streams, *self.rules.notes(), *met), {})

    def released(self, taken: Sequence[Taken], met: Counter[str] | None = None) -> list[Any]:
        """Release inputs that were taken apart."""
        texts = iter(self.releases.release([unit for one in taken for unit in one.units], met))
        return [one.put([next(texts) for _ in one.units]) for one in taken]


class SanitizerShell(HeldInputs, Runnable[Any, Any]):
    """Every call style of a Runnable over one core."""

    _core: Core

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What a config may say: whose account is charged."""
        return user_specs()

    @hold_arguments("input")
    def invoke(
        self,
        input: S,  # noqa: A002  # Runnable's name
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> S:
        """Sanitize one input.

        Args:
            input: What to sanitize. Callbacks see that something was, and the outcome.
            config: LangChain config.
            user: Whose account is charged; beside ``user_key`` this one counts. By default
                ``config={"configurable": {"user_id": "u-17"}}``, which reaches a sanitizer anywhere in a chain; not for
                documents, which are not about who asks.
            document: Which document it is, for its account; by default its content says it, and of a list each
                message, or document, is one.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The input is of a kind that cannot be sanitized. Nothing was charged.
            BudgetExceeded: An account has too little left. Nothing was charged and nothing released.
            LedgerError: The ledger cannot be trusted or written. Nothing was released.
        """
        given = PrivateArgs.of(input)
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        held = PrivateArgs(*given.values, _whose(given, user, config), document)
        released: S = self._call_with_config(lambda _: run_redacted(self._core.sanitize, held), WITHHELD, config)
        _tell_of_ids(given, released)
        return released

    @hold_arguments("input")
    async def ainvoke(
        self,
        input: S,  # noqa: A002
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> S:
        """Async twin of :meth:`invoke`; the work is done in a thread."""
        given = PrivateArgs.of(input)
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        held = PrivateArgs(*given.values, _whose(given, user, config), document)
        work = in_thread(run_redacted, self._core.sanitize, held)
        released: S = await self._acall_with_config(work, WITHHELD, config)
        _tell_of_ids(given, released)
        return released

    @hold_arguments("inputs")
    def batch(
        self,
        inputs: Sequence[S],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> list[S]:
        """Sanitize many inputs at once: one charge for all of them, all or none, and one pass over the table.

        Each input is a document. Equal ones get releases of their own, which under a limit for each document add up.
        With ``return_exceptions`` an input that is refused does not keep the others back.
        """
        given = PrivateArgs(*PrivateArgs.of(inputs).values[0])
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        users = _whose_each(given, user, config)
        held = PrivateArgs(given.values, return_exceptions, users, document)
        return self._batch_with_config(
            lambda _: run_redacted(self._core.sanitize_all, held),
            [WITHHELD] * len(users),
            config,
            return_exceptions=return_exceptions,
        )

    @hold_arguments("inputs")
    async def abatch(
        self,
        inputs: Sequence[S],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> list[S]:
        """Async twin of :meth:`batch`."""
        given = PrivateArgs(*PrivateArgs.of(inputs).values[0])
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        users = _whose_each(given, user, config)
        held = PrivateArgs(given.values, return_exceptions, users, document)
        work = in_thread(run_redacted, self._core.sanitize_all, held)
        shown = [WITHHELD] * len(users)
        return await self._abatch_with_config(work, shown, config, return_exceptions=return_exceptions)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            f"{type(self).__name__} holds an open account, or private text, and cannot be pickled: build it where it "
            "runs."
        )

    def __copy__(self) -> Self:
        return self  # a copy must not have releases, or placeholders, of its own

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def as_tool(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a model that calls a tool has read what it gives to it."""
        raise InvalidParameter(
            "Expected a sanitizer to be no tool: an agent that calls one has read the text already. Put it before the "
            "model, as sanitizer | model, or, of RAPTSanitizer, as RAPTMiddleware of an agent."
        )

    def transform(
        self,
        input: Iterator[S],  # noqa: A002
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> Iterator[S]:
        """Sanitize what arrives in chunks, as one document; see the class for what is held back until when."""
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        first = PrivateArgs(next(input, NOTHING))  # starts the run before this one first
        streaming = Streaming(self._core, _whose(first, user, config), document)

        def run(_: Iterator[Any]) -> Iterator[Any]:
            if first.values[0] is not NOTHING:
                yield from run_redacted(streaming.push, first)
            for chunk in map(PrivateArgs, input):
                yield from run_redacted(streaming.push, chunk)
            yield from run_redacted(streaming.finish, PrivateArgs())

        yield from self._transform_stream_with_config(iter([WITHHELD]), run, config)

    async def atransform(
        self,
        input: AsyncIterator[S],  # noqa: A002
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[S]:
        """Async twin of :meth:`transform`."""
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        first = PrivateArgs(await anext(input, NOTHING))
        streaming = Streaming(self._core, _whose(first, user, config), document)

        async def withheld() -> AsyncIterator[str]:
            yield WITHHELD

        async def run(_: AsyncIterator[Any]) -> AsyncIterator[Any]:
            if first.values[0] is not NOTHING:
                for part in await asyncio.to_thread(run_redacted, streaming.push, first):
                    yield part
            async for chunk in input:
                held = PrivateArgs(chunk)
                del chunk
                for part in await asyncio.to_thread(run_redacted, streaming.push, held):
                    yield part
            for part in await asyncio.to_thread(run_redacted, streaming.finish, PrivateArgs()):
                yield part

        async for part in self._atransform_stream_with_config(withheld(), run, config):
            yield part


class Streaming:
    """One stream. No I/O of its own, so that sync and async callers drive the same thing.

    A stream of one chunk is a whole input, as every chain makes it of a plain call, and is released like one: from
    what was released before, if it was.
    """

    def __init__(self, core: Core, user: str | None, document: str | None) -> None:
        self._core, self._user, self._document = core, user, document
        self._gathered: Any = NOTHING
        self._text: TextStream | None = None

    def push(self, chunk: Any) -> list[Any]:
        """Take a chunk and return what leaves now."""
        if self._text is None and self._gathered is NOTHING:
            self._gathered = chunk
            return []
        if self._text is None:
            releases = self._core.releases
            both = isinstance(self._gathered, str) and isinstance(chunk, str)
            if not (both and isinstance(releases, FormalReleases) and releases.streams(self._document)):
                self._gathered = _added(self._gathered, chunk)
                return []
            check_keys(self._user, self._document)
            self._text = releases.stream(user=self._user, document=self._document)
            chunk = self._gathered + chunk
        return list(self._text.push(chunk))

    def finish(self) -> list[Any]:
        """Return the rest."""
        if self._text is not None:
            return list(self._text.finish())
        if self._gathered is NOTHING:
            return []
        return [self._core.sanitize(self._gathered, self._user, self._document)]


def in_thread(work: Callable[..., Any], *given: Any) -> Callable[[Any], Awaitable[Any]]:
    """What LangChain is to await for a run: the work, in a thread."""

    async def run(_: Any) -> Any:
        return await asyncio.to_thread(work, *given)

    return run


def _added(before: Any, chunk: Any) -> Any:
    """Chunks that cannot be added replace one another, as everywhere in LangChain."""
    try:
        return before + chunk
    except TypeError:
        return chunk


def _whose(held: PrivateArgs, given: str | None, config: RunnableConfig | None) -> str | None:
    """The user to charge. Documents are not about who asks: their metadata say whose they are."""
    return given if _has_documents(*held.values) else named_user(given, config)


def _has_documents(value: object) -> bool:  # in a frame of its own, which is gone when an error is raised
    several = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(one, Document) for one in several)


def _whose_each(
    held: PrivateArgs, given: str | None, config: RunnableConfig | list[RunnableConfig] | None
) -> list[str | None]:
    configs = get_config_list(config, len(held.values))
    return [_whose(one, given, each) for one, each in zip(map(PrivateArgs, held.values), configs, strict=True)]


def user_specs() -> list[ConfigurableFieldSpec]:
    """What a config may say to whatever charges somebody's account."""
    described = "Whose account is charged."
    return [ConfigurableFieldSpec(id=USER, annotation=str, name="User", description=described, default=None)]


def named_users(
    given: str | None, config: RunnableConfig | list[RunnableConfig] | None, count: int
) -> list[str | None]:
    """The same for each of so many inputs of a batch."""
    return [named_user(given, each) for each in get_config_list(config, count)]


def named_user(given: str | None, config: RunnableConfig | None) -> str | None:
    """Whose account is charged: as the call says, or else the config."""
    named = ensure_config(config).get("configurable", {}).get(USER)
    if named is not None and not isinstance(named, str):
        raise InvalidParameter(
            f'Expected config={{"configurable": {{"{USER}": ...}}}} of type {type(named).__name__} to be a str that '
            "names whose account is charged. Nothing was charged."
        )
    return named if given is None else given


def _tell_of_ids(held: PrivateArgs, released: Any) -> None:
    """Warn where messages have other ids now: a graph, which puts them by their ids, keeps the raw ones."""
    (given,) = held.values
    if not (isinstance(given, list) and isinstance(released, list)):
        return
    pairs = [pair for pair in zip(given, released, strict=False) if all(isinstance(one, BaseMessage) for one in pair)]
    if any(raw.id is not None and raw.id != shown.id for raw, shown in pairs):
        warn_caller(
            "A message had an id that is no random one, and was given another. A node of a graph that returns it "
            "leaves the raw message in the state, beside it: return "
            '{"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *messages]} instead.',
            UserWarning,
        )
