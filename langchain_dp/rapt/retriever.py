"""Sanitizes the queries and documents of a retriever, and the examples of a selector."""

# LangChain names the parameter ``input``:
# ruff: noqa: A002

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector
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
from langchain_dp.rapt.messages import json_container
from langchain_dp.rapt.restore import each_text
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import HeldInputs, PrivateArgs, arun_redacted, hold_arguments, redact_errors, run_redacted

IN_RETRIEVER = "in the inner retriever"


class SanitizingRetriever(HeldInputs, BaseRetriever):
    """Wraps a retriever and sanitizes the query that leaves, the documents that come back, or both.

    With ``query=True``, tracers see the sanitized query only. With ``documents=True``, the inner retriever runs without
    callbacks, tracing and logs.

    Args:
        retriever: Inner retriever, or any Runnable from a str to documents.
        sanitizer: Sanitizer of both.
        query: Sanitize the query, for a search engine outside the trust boundary.
        documents: Sanitize the documents of a private index.
        k: Largest number of documents to return and pay for.

    Raises:
        InvalidParameter: Neither is to be sanitized, or no document could ever reach the sanitizer's limit: without
            ``user_key`` and ``document_key`` each is charged once.
        UnsafeEnvironment: With ``documents=True``, a global setting would print them.

    Formal guarantee:
        That of the sanitizer: one release per query and per document. Which documents come back, in which order and how
        many, is NOT covered. For untrusted users, sanitize first and index the result.

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
        # Checked before pydantic, whose errors print values: a retriever may hold its documents.
        validate.instance("retriever", retriever, Runnable, "a retriever")
        validate.instance("sanitizer", sanitizer, RAPTSanitizer, "a RAPTSanitizer")
        if not (isinstance(query, bool) and isinstance(documents, bool) and (query or documents)):
            raise InvalidParameter(
                f"Expected query={query!r} or documents={documents!r} to be True, or nothing would be sanitized."
            )
        if k is not None:
            validate.integer("k", k, at_least=1)
        rules = sanitizer._core.rules.documents
        if documents and not query and rules.user_key is rules.document_key is None:
            remedy = "Give the sanitizer DocumentRules with user_key= or document_key=, or no limit."
            sanitizer.check_limit("document that comes back", remedy, user=False)
        validate.reject_extra_kwargs(
            kwargs.keys() - BaseRetriever.model_fields, remedy="Set them on the inner retriever."
        )
        kwargs |= {"retriever": retriever, "sanitizer": sanitizer, "query": query, "documents": documents, "k": k}
        super().__init__(**kwargs)

    @hold_arguments("input")
    def invoke(  # type: ignore[override]  # one more keyword
        self, input: str, config: RunnableConfig | None = None, *, user: str | None = None, **kwargs: Any
    ) -> list[Document]:
        """Retrieve documents. ``user`` is charged for the query. ``k`` holds for this call.

        Raises:
            InvalidParameter: The query is no str, or there is a user and no query to charge.
            BudgetExceeded: An account has too little left.
        """
        query = run_redacted(self._outgoing_query, PrivateArgs(*PrivateArgs.of(input).values, user, config))
        retrieve: Callable[..., list[Document]] = super().invoke
        if self.query:
            return retrieve(*query.values, config, **kwargs)
        return run_redacted(lambda raw: retrieve(raw, config, **kwargs), query, IN_RETRIEVER)

    @hold_arguments("input")
    async def ainvoke(  # type: ignore[override]
        self, input: str, config: RunnableConfig | None = None, *, user: str | None = None, **kwargs: Any
    ) -> list[Document]:
        """Async twin of :meth:`invoke`."""
        private = PrivateArgs(*PrivateArgs.of(input).values, user, config)
        retrieve: Callable[..., Awaitable[list[Document]]] = super().ainvoke
        query = await asyncio.to_thread(run_redacted, self._outgoing_query, private)
        if self.query:
            return await retrieve(*query.values, config, **kwargs)
        return await arun_redacted(lambda raw: retrieve(raw, config, **kwargs), query, IN_RETRIEVER)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        most = self._most(k)
        if not self.documents:
            return _document_list(self.retriever.invoke(query, {"callbacks": run_manager.get_child()}, **kwargs))[:most]
        check_environment()

        def retrieve(query: str) -> PrivateArgs:
            return PrivateArgs(_document_list(self.retriever.invoke(query, {"callbacks": []}, **kwargs))[:most])

        with sealed(Level.QUIET):
            raw = run_redacted(retrieve, PrivateArgs(query), IN_RETRIEVER)
        return run_redacted(self._sanitized, raw)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        most = self._most(k)
        if not self.documents:
            config = {"callbacks": run_manager.get_child()}
            return _document_list(await self.retriever.ainvoke(query, config, **kwargs))[:most]
        check_environment()

        async def retrieve(query: str) -> PrivateArgs:
            return PrivateArgs(_document_list(await self.retriever.ainvoke(query, {"callbacks": []}, **kwargs))[:most])

        with sealed(Level.QUIET):
            raw = await arun_redacted(retrieve, PrivateArgs(query), IN_RETRIEVER)
        return await asyncio.to_thread(run_redacted, self._sanitized, raw)

    def _outgoing_query(self, query: object, user: str | None, config: RunnableConfig | None) -> PrivateArgs:
        if not isinstance(query, str):
            raise InvalidParameter(f"Expected a query of type {type(query).__name__} to be a str.")
        if user is not None and not self.query:
            raise InvalidParameter(
                "Expected user= with query=True only: it says who asks. Documents are charged to the user in "
                "their metadata. Give the sanitizer documents=DocumentRules(user_key=...)."
            )
        return PrivateArgs(self.sanitizer.sanitize(query, user=named_user(user, config)) if self.query else query)

    def _most(self, k: int | None) -> int | None:
        return self.k if k is None else validate.integer("k", k, at_least=1)

    def _sanitized(self, documents: list[Document]) -> list[Document]:
        return self.sanitizer.sanitize(documents) if documents else []

    @safe_repr
    def __repr__(self) -> str:
        # The inner retriever's repr may hold its documents.
        return f"SanitizingRetriever(query={self.query}, documents={self.documents}, {self.sanitizer!r})"

    __str__ = __repr__

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("SanitizingRetriever holds an open account and cannot be pickled: build another.")


def _document_list(documents: Any) -> list[Document]:
    if isinstance(documents, (str, bytes, Mapping, BaseModel)):  # a str would become a list of letters
        raise InvalidParameter(
            f"Expected the inner retriever to return a list of documents, but it returned {type(documents).__name__}."
        )
    return list(documents)


class SanitizingExampleSelector(BaseExampleSelector):
    """Wraps a selector or a list of examples, and sanitizes the selected examples before they enter a prompt.

    An example that was selected before is returned again at no cost. Braces outside JSON become parentheses.

    Args:
        examples: A selector, or a list of examples, all of which are selected.
        sanitizer: Sanitizes all values of an example as one release.
        keep: Keys whose values pass in clear, such as the label.
        user_key: Key of the example's user. It is not passed on.

    Raises:
        InvalidParameter: No example has a key of ``keep``, or none could ever reach the sanitizer's limit: without a
            user, each is charged once.

    Formal guarantee:
        That of the sanitizer for each example. The choice of a selector that compares contents is not covered.

    Examples:
        >>> selector = SanitizingExampleSelector(examples, sanitizer, keep=["label"])
        >>> selector.select_examples({"text": "Where is my parcel?"})  # the labels are in clear
    """

    def __init__(
        self,
        examples: BaseExampleSelector | Sequence[Mapping[str, Any]],
        sanitizer: RAPTSanitizer,
        *,
        keep: Sequence[str] = (),
        user_key: str | None = None,
    ) -> None:
        validate.instance("sanitizer", sanitizer, RAPTSanitizer, "a RAPTSanitizer")
        if isinstance(keep, str) or not all(isinstance(key, str) for key in keep):
            raise InvalidParameter(f"Expected keep={keep!r} to be a list of keys.")
        sanitizer.check_limit("example", "Give user_key=, or a sanitizer without a limit.", user=user_key is not None)
        self._inner = examples if isinstance(examples, BaseExampleSelector) else None
        self._examples = [] if isinstance(examples, BaseExampleSelector) else [_checked(one) for one in examples]
        unknown = [key for key in keep if not any(key in one for one in self._examples)]
        if unknown and self._examples:
            raise InvalidParameter(f"Expected keep={list(keep)} to be keys of the examples, but none has {unknown}.")
        self._sanitizer = sanitizer
        self._keep = tuple(keep)
        self._user_key = user_key

    @redact_errors("while examples were selected")
    def add_example(self, example: dict[str, str]) -> Any:
        """Add a raw example."""
        return self._examples.append(_checked(example)) if self._inner is None else self._inner.add_example(example)

    @redact_errors("while examples were selected")
    async def aadd_example(self, example: dict[str, str]) -> Any:
        """Async twin of :meth:`add_example`."""
        return await asyncio.to_thread(self.add_example, example)

    @redact_errors("while examples were selected")
    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Select examples and sanitize them. BudgetExceeded: nothing was charged."""
        examples = self._examples if self._inner is None else self._inner.select_examples(input_variables)
        released = self._sanitizer.sanitize_mappings(examples, keep=self._keep, user_key=self._user_key)
        return [
            {key: value if key in self._keep else _without_braces(value) for key, value in one.items()}
            for one in released
        ]

    @redact_errors("while examples were selected")
    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Async twin of :meth:`select_examples`."""
        return await asyncio.to_thread(self.select_examples, input_variables)

    @safe_repr
    def __repr__(self) -> str:
        return f"SanitizingExampleSelector(<private>, {self._sanitizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("SanitizingExampleSelector holds private examples and cannot be pickled or copied.")


_BRACES = str.maketrans("{}", "()")


def _without_braces(value: Any) -> Any:
    def replace(text: Any) -> Any:
        return text.translate(_BRACES) if isinstance(text, str) and json_container(text) is None else text

    return each_text(value, replace)


def _checked(example: object) -> Mapping[str, Any]:
    if not isinstance(example, Mapping):
        raise InvalidParameter(f"Expected examples to be mappings, not {type(example).__name__}.")
    return example
