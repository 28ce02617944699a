"""A retriever whose queries, or documents, or both are privatized on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.isolation.context import sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.isolation.run import check_environment
from langchain_dp.rapt._shell import named_user
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import HeldInputs, PrivateArgs, arun_redacted, hold_arguments, run_redacted

IN_RETRIEVER = "in the inner retriever"


class SanitizingRetriever(HeldInputs, BaseRetriever):
    """Wraps a retriever: the query that leaves is sanitized, or the documents that come back, or both.

    ``query=True`` is for a search engine outside the trust boundary: it sees, and so do callbacks and tracers, the
    sanitized query only. ``documents=True`` is for a private index whose documents go on to a model outside: the inner
    retriever is then called unseen (no callbacks, no tracing, no logs), and only sanitized documents are shown.

    For the account, a query is a document of who asks, and what comes back are documents as of
    :meth:`RAPTSanitizer.transform_documents`. A limit for users holds for queries that come with ``user=``.

    Args:
        retriever: The retriever inside, or any Runnable from a str to documents.
        sanitizer: Sanitizes both; its metadata options and user key apply to the documents.
        query: Whether the query is sanitized.
        documents: Whether the documents are.
        k: At most this many documents are given back (and paid for).

    Raises:
        InvalidParameter: Neither is to be sanitized, a value is of another type, or the sanitizer has a limit that no
            document could ever reach: where neither ``user_key`` nor ``document_key`` is set, each is charged once.
        UnsafeEnvironment: With ``documents=True``, a global setting that would print them.

    Formal guarantee:
        That of the sanitizer, for what it sanitizes: one release for each query and each document. Which documents come
        back, in which order and how many, is NOT covered: an index compares what they hold, and who may ask it much
        finds out words of them. Where users are not trusted, sanitize first and index what came out
        (:meth:`RAPTSanitizer.transform_documents`).

    Examples:
        >>> SanitizingRetriever(retriever=retriever, sanitizer=sanitizer).invoke(question)  # the query leaves sanitized
        >>> SanitizingRetriever(retriever=retriever, sanitizer=sanitizer, query=False, documents=True, k=4)
    """

    retriever: Any
    sanitizer: Any
    query: bool = True
    documents: bool = False
    k: int | None = None

    def __init__(
        self,
        *,
        retriever: Runnable[str, list[Document]],
        sanitizer: RAPTSanitizer,
        query: bool = True,
        documents: bool = False,
        k: int | None = None,
        **kwargs: Any,
    ) -> None:
        # Before pydantic sees them: its errors print what they were given, and a retriever may hold its documents.
        if not isinstance(retriever, Runnable):
            raise InvalidParameter(f"Expected retriever of type {type(retriever).__name__} to be a retriever.")
        if not isinstance(sanitizer, RAPTSanitizer):
            raise InvalidParameter(f"Expected sanitizer of type {type(sanitizer).__name__} to be a RAPTSanitizer.")
        if not (isinstance(query, bool) and isinstance(documents, bool) and (query or documents)):
            raise InvalidParameter(
                f"Expected query={query!r} or documents={documents!r} to be True: otherwise nothing is sanitized. "
                "Use the inner retriever."
            )
        if k is not None:
            validate.integer("k", k, at_least=1)
        if documents and not query and not sanitizer.names_documents:
            remedy = "Give the sanitizer DocumentRules with user_key= or document_key=, or no limit."
            sanitizer.check_limit("document that comes back", remedy, user=False)
        validate.reject_extra_kwargs(
            kwargs.keys() - BaseRetriever.model_fields, remedy="Set them on the inner retriever."
        )
        kwargs |= {"retriever": retriever, "sanitizer": sanitizer, "query": query, "documents": documents, "k": k}
        super().__init__(**kwargs)

    @hold_arguments("input")
    def invoke(  # type: ignore[override]  # one more keyword
        self,
        input: str,  # noqa: A002  # Runnable's name
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Retrieve.

        Args:
            input: The query.
            config: LangChain config.
            user: Who asks: whose account the query is charged to; by default the config's, as of the sanitizer.
                Documents are charged to whom their metadata name (the sanitizer's ``user_key``), and each to an account
                of its own, whoever asks.
            **kwargs: ``k`` for this call; all others go to the inner retriever.

        Raises:
            InvalidParameter: The query is no str, or there is a user and no query to charge.
            BudgetExceeded: An account has too little left for the query, or for the documents.
        """
        query: PrivateArgs = run_redacted(self._told, PrivateArgs(*PrivateArgs.of(input).values, user, config))
        ask: Callable[..., list[Document]] = super().invoke
        if self.query:
            return ask(*query.values, config, **kwargs)
        return run_redacted(lambda raw: ask(raw, config, **kwargs), query, IN_RETRIEVER)

    @hold_arguments("input")
    async def ainvoke(  # type: ignore[override]
        self,
        input: str,  # noqa: A002
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Async twin of :meth:`invoke`."""
        held = PrivateArgs(*PrivateArgs.of(input).values, user, config)
        ask: Callable[..., Awaitable[list[Document]]] = super().ainvoke
        query = await asyncio.to_thread(run_redacted, self._told, held)
        if self.query:
            return await ask(*query.values, config, **kwargs)
        return await arun_redacted(lambda raw: ask(raw, config, **kwargs), query, IN_RETRIEVER)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        most = self._most(k)
        if not self.documents:
            return _listed(self.retriever.invoke(query, {"callbacks": run_manager.get_child()}, **kwargs))[:most]
        check_environment()

        def ask(query: str) -> PrivateArgs:
            return PrivateArgs(_listed(self.retriever.invoke(query, {"callbacks": []}, **kwargs))[:most])

        with sealed(Level.QUIET):
            found = run_redacted(ask, PrivateArgs(query), IN_RETRIEVER)
        return run_redacted(self._sanitized, found)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        most = self._most(k)
        if not self.documents:
            return _listed(await self.retriever.ainvoke(query, {"callbacks": run_manager.get_child()}, **kwargs))[:most]
        check_environment()

        async def ask(query: str) -> PrivateArgs:
            return PrivateArgs(_listed(await self.retriever.ainvoke(query, {"callbacks": []}, **kwargs))[:most])

        with sealed(Level.QUIET):
            found = await arun_redacted(ask, PrivateArgs(query), IN_RETRIEVER)
        return await asyncio.to_thread(run_redacted, self._sanitized, found)

    def _told(self, query: object, user: str | None, config: RunnableConfig | None) -> PrivateArgs:
        """What the inner retriever is asked."""
        if not isinstance(query, str):
            raise InvalidParameter(f"Expected a query of type {type(query).__name__} to be a str.")
        if user is not None and not self.query:
            raise InvalidParameter(
                "Expected user= with query=True only: it says who asks. Documents are charged to whom their metadata "
                "name; give the sanitizer documents=DocumentRules(user_key=...)."
            )
        return PrivateArgs(self.sanitizer.sanitize(query, user=named_user(user, config)) if self.query else query)

    def _most(self, k: int | None) -> int | None:
        return self.k if k is None else validate.integer("k", k, at_least=1)

    def _sanitized(self, found: list[Document]) -> list[Document]:
        return self.sanitizer.sanitize(found) if found else []

    @safe_repr
    def __repr__(self) -> str:
        # The inner retriever's repr may hold its documents.
        return f"SanitizingRetriever(query={self.query}, documents={self.documents}, {self.sanitizer!r})"

    __str__ = __repr__

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("SanitizingRetriever holds an open account and cannot be pickled: build it anew.")


def _listed(found: Any) -> list[Document]:
    """What a retriever found; a text would come apart into its letters."""
    if isinstance(found, (str, bytes, Mapping, BaseModel)):
        raise InvalidParameter(
            f"Expected the inner retriever to return a list of documents, but it returned {type(found).__name__}."
        )
    return list(found)
