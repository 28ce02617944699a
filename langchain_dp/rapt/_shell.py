"""The Runnable interface of a sanitizer, which withholds its raw input from tracers."""

# LangChain names the parameter ``input``:
# ruff: noqa: A001, A002

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, get_config_list

from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerError, PrivateDataError
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.parts import DocumentRules, Rules, SplitInput, split
from langchain_dp.rapt.placeholders import PlaceholderReleases
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, run_redacted, without_frames

S = TypeVar("S")
Config = RunnableConfig | None
Configs = RunnableConfig | list[RunnableConfig] | None
Name = str | None

USER = "user_id"  # among the ``configurable`` values of a config
USER_SPEC = ConfigurableFieldSpec(id=USER, annotation=str, name="User", description="Whose account is charged.")
WITHHELD = "<withheld: the input of a sanitizer>"
_KNOWN = "Known are user= and document=."


class Core:
    """Releases inputs of every kind."""

    def __init__(
        self, releases: FormalReleases | PlaceholderReleases, messages: MessageRules, documents: DocumentRules
    ) -> None:
        self.releases = releases
        self.rules = Rules(messages, documents, releases.stamp(), releases.mark)

    def sanitize(self, value: S, user: Name, document: Name, keys: Sequence[str] = ()) -> S:
        return self.release([split(value, self.rules, user, document, keys)])[0]  # type: ignore[no-any-return]

    def sanitize_all(self, values: Sequence[Any], tolerant: bool, users: Sequence[Name], document: Name) -> list[Any]:
        def release(some: Sequence[Any], owners: Sequence[Name], seen: Counter[str] | None = None) -> list[Any]:
            return self.release(
                [split(value, self.rules, user, document) for value, user in zip(some, owners, strict=True)], seen
            )

        return all_or_each(release, values, users, tolerant=tolerant)

    def certificate(self) -> MetricCertificate:
        return self.releases.certificate((*self.releases.notes(), *self.rules.notes()), {})

    def release(self, inputs: Sequence[SplitInput], seen: Counter[str] | None = None) -> list[Any]:
        texts = iter(self.releases.release([unit for one in inputs for unit in one.units], seen))
        return [one.join([next(texts) for _ in one.units]) for one in inputs]


def all_or_each(
    release: Callable[..., Sequence[Any]], values: Sequence[Any], users: Sequence[Name], *, tolerant: bool = True
) -> list[Any]:
    """Release all values under one charge. If that fails and ``tolerant``, each alone."""
    try:
        return list(release(values, users))
    except LangChainDPError as error:
        if not tolerant or isinstance(error, LedgerError):  # a ledger that failed may have charged already
            raise
    seen: Counter[str] = Counter()
    results: list[Any] = []
    for value, user in zip(values, users, strict=True):
        try:
            results += release([value], [user], seen)
        except LangChainDPError as error:
            results.append(without_frames(error))
    return results


class ChargesUsers(HeldInputs, Runnable[Any, Any]):
    """Names the user to charge by config."""

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        return [USER_SPEC]

    async def ainvoke(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Async twin of ``invoke``."""
        input = PrivateArgs.of(input)
        return await super().ainvoke(input, *args, **kwargs)

    async def abatch(self, inputs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Async twin of ``batch``."""
        inputs = PrivateArgs.of(inputs)
        return await asyncio.to_thread(self.batch, inputs, *args, **kwargs)


class SanitizerShell(ChargesUsers):
    """Every call style of a Runnable."""

    _core: Core

    @hold_arguments("input")
    def invoke(self, input: S, config: Config = None, *, user: Name = None, document: Name = None, **kwargs: Any) -> S:
        """Sanitize one input. Callbacks see the output and never the input.

        Args:
            input: Value to sanitize.
            config: LangChain config. ``{"configurable": {"user_id": "u-17"}}`` names the user, except for documents.
            user: User whose account is charged.
            document: Key of the document's account. None: its content.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The input cannot be sanitized. Nothing was charged.
            BudgetExceeded: An account has too little left. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written.
        """
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        private = PrivateArgs.of(input)
        private = PrivateArgs(*private.values, _charged_user(private, user, config), document)
        released: S = self._call_with_config(lambda _: run_redacted(self._core.sanitize, private), WITHHELD, config)
        _warn_changed_ids(private, released)
        return released

    @hold_arguments("inputs")
    def batch(
        self, inputs: Sequence[S], config: Configs = None, *, return_exceptions: bool = False, user: Name = None,
        document: Name = None, **kwargs: Any,
    ) -> list[S]:  # fmt: skip
        """Sanitize many inputs under one charge, all or none. Equal inputs get separate releases. With
        ``return_exceptions`` a refused input does not stop the others.
        """
        reject_extra_kwargs(kwargs, remedy=_KNOWN)
        private = PrivateArgs(list(*PrivateArgs.of(inputs).values))
        configs = get_config_list(config, len(*private.values))
        values = zip(map(PrivateArgs, *private.values), configs, strict=True)
        users = [_charged_user(one, user, own) for one, own in values]
        private = PrivateArgs(*private.values, return_exceptions, users, document)
        return self._batch_with_config(
            lambda _: run_redacted(self._core.sanitize_all, private),
            [WITHHELD] * len(users),
            config,
            return_exceptions=return_exceptions,
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            f"{type(self).__name__} holds an open account, or private text, and cannot be pickled. Build it again."
        )

    def __copy__(self) -> Self:
        return self  # a copy must not have releases, or placeholders, of its own

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def as_tool(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an agent has already read a tool's argument."""
        raise InvalidParameter(
            "A sanitizer cannot be a tool: an agent that calls one has already read the text. Put it before the model, "
            "as sanitizer | model, or as RAPTMiddleware of an agent."
        )


def _charged_user(private: PrivateArgs, user: Name, config: Config) -> Name:
    # No local of this frame holds the values when an error is raised.
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in private.values)
    return user if any(isinstance(one, Document) for values in lists for one in values) else named_user(user, config)


def named_user(user: Name, config: Config) -> Name:
    configured = ensure_config(config).get("configurable", {}).get(USER)
    if configured is not None and not isinstance(configured, str):
        raise InvalidParameter(
            f'Expected config={{"configurable": {{"{USER}": ...}}}} of type {type(configured).__name__} to be a str '
            "that names whose account is charged. Nothing was charged."
        )
    return configured if user is None else user


def _warn_changed_ids(private: PrivateArgs, released: Any) -> None:
    """Warn of changed ids: a graph would keep the raw messages."""
    raw = private.values[0]
    if not (isinstance(raw, list) and isinstance(released, list)):
        return
    pairs = [pair for pair in zip(raw, released, strict=False) if all(isinstance(one, BaseMessage) for one in pair)]
    if any(before.id is not None and before.id != after.id for before, after in pairs):
        warn_caller(
            "A message had an id that is no random one, and was given another. A node of a graph that returns it "
            "leaves the raw message in the state, beside it: return "
            '{"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *messages]} instead.',
            UserWarning,
        )
