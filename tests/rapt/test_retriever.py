"""A retriever whose query leaves sanitized, whose documents come back sanitized, or both."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, Reporting, leak_surfaces
from fakes.rapt import CLOSE, sanitizer
from fakes.styles import STYLES as ALL_STYLES
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.globals import set_debug
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_dp.accounting import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PrivateDataError, UnsafeEnvironment
from langchain_dp.rapt.retriever import SanitizingRetriever

QUERY = f"pain of patient {CANARY}"


class Shelf(BaseRetriever):
    """Gives back documents, and keeps what it was asked and whom it could have told."""

    text: str = f"report of {CANARY}"
    count: int = 5
    fails: bool = False
    asked: list[str] = []
    handlers: list[int] = []

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.asked.append(query)
        self.handlers.append(len(run_manager.handlers))
        if self.fails:
            raise ValueError(f"cannot read {self.text}")
        return [
            Document(page_content=f"{self.text} number {i}", metadata={"patient": "p1", "name": self.text})
            for i in range(self.count)
        ]


def shelf(**options: Any) -> Shelf:
    return Shelf(asked=[], handlers=[], **options)


STYLES = {name: ALL_STYLES[name] for name in ("invoke", "ainvoke", "batch", "stream")}


def documents_of(inner: Any, **options: Any) -> SanitizingRetriever:
    return SanitizingRetriever(retriever=inner, sanitizer=sanitizer(**options), query=False, documents=True)


@pytest.mark.parametrize("style", STYLES)
def test_a_query_leaves_sanitized_and_is_seen_by_nobody(style: str, tmp_path: Path) -> None:
    """If it breaks, the search engine outside, a tracer or a callback gets the raw query."""
    inner = shelf(text="public page")
    with leak_surfaces(tmp_path) as surfaces:
        made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer())
        found = STYLES[style](made, QUERY, {"callbacks": surfaces.handlers})
        assert surfaces.where(CANARY) == set()
        assert repr(inner.asked[0]) in surfaces.by_name()["handler"]
    assert CANARY not in repr(inner.asked)
    assert len(found) == 5
    assert found[0].page_content == "public page number 0"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("query", [True, False])
def test_documents_come_back_sanitized_and_are_seen_by_nobody(style: str, query: bool, tmp_path: Path) -> None:
    """If it breaks, raw documents of a private index reach a tracer, a callback or the model."""
    inner = shelf()
    asked = "public question"
    with leak_surfaces(tmp_path) as surfaces:
        made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(), query=query, documents=True)
        found = STYLES[style](made, asked, {"callbacks": surfaces.handlers})
        assert surfaces.where(CANARY) == set()
        assert "on_retriever_end" in surfaces.by_name()["handler"]
    assert CANARY not in repr(found)
    assert [one.metadata for one in found] == [{}] * 5
    assert inner.handlers == [0]
    assert (inner.asked == [asked]) is not query
    assert isinstance(inner.asked[0], str)


def test_a_bare_retriever_shows_its_documents_and_set_debug_is_refused(tmp_path: Path) -> None:
    """If it breaks, the tests above could not fail; or set_debug(True) prints raw documents."""
    with leak_surfaces(tmp_path) as surfaces:
        shelf().invoke("question", {"callbacks": surfaces.handlers})
        assert {"tracer", "handler"} <= surfaces.where(CANARY)
    set_debug(True)
    try:
        with pytest.raises(UnsafeEnvironment):
            documents_of(shelf()).invoke("question")
    finally:
        set_debug(False)


def test_only_what_is_given_back_is_paid_for() -> None:
    """If it breaks, documents that nobody gets are released, and charged."""
    made = documents_of(shelf(), user_key="patient")
    made.k = 2
    assert len(made.invoke("question")) == 2
    assert made.sanitizer.ledger.spent(user="p1") == pytest.approx(2 * CLOSE)
    assert len(made.invoke("question", k=3)) == 3
    assert made.sanitizer.ledger.spent(user="p1") == pytest.approx(3 * CLOSE)


def test_who_asks_is_not_whose_the_documents_are() -> None:
    """If it breaks, whoever asks gets a fresh release of a record, and the account of whom it is about stays empty."""
    found = [Document(page_content="the patient has pain", metadata={"patient": "john"})]
    inner = RunnableLambda(lambda _: list(found))
    ledger = MetricLedger(2.0, document_limit=2.0)
    named = SanitizingRetriever(
        retriever=inner, sanitizer=sanitizer(eta=1.0, user_key="patient", ledger=ledger, cache=False), documents=True
    )
    for number in range(2):
        named.invoke(f"question {number}", user=f"doctor {number}")
    with pytest.raises(BudgetExceeded):
        named.invoke("question 2", user="doctor 2")
    assert ledger.spent(user="john") == 2.0
    assert ledger.spent(user="doctor 0") == 1.0
    unnamed = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(eta=1.0, limit=2.0, cache=False), documents=True)
    for number in range(2):
        asyncio.run(unnamed.ainvoke(f"question {number}", user=f"doctor {number}"))
    with pytest.raises(BudgetExceeded):
        unnamed.invoke("question 2", user="doctor 2")
    # In a chain a config names who asks.
    ledger = MetricLedger(2.0, document_limit=2.0)
    made = sanitizer(eta=1.0, user_key="patient", ledger=ledger, cache=False)
    asked = SanitizingRetriever(retriever=RunnableLambda(lambda _: list(found)), sanitizer=made)
    configs: list[Any] = [{"configurable": {"user_id": name}} for name in ("ann", "bob", "cyd")]
    for config in configs[:2]:
        (asked | made).invoke("question", config)
    asyncio.run(asked.ainvoke("question", configs[2]))
    assert [ledger.spent(user=name) for name in ("john", "ann", "bob", "cyd")] == [2.0, 1.0, 1.0, 1.0]
    with pytest.raises(BudgetExceeded):
        list(made.stream(list(found), configs[0]))
    with pytest.raises(BudgetExceeded):
        made.batch([list(found)], configs[0])


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("answer", ["a text", {"text": "a"}, []])
def test_only_a_list_of_documents_is_an_answer(answer: object, documents: bool) -> None:
    """If it breaks, a text comes back letter by letter, or nothing found is an error."""
    inner = RunnableLambda(lambda _: answer)
    made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(), documents=documents)
    if answer == []:
        assert made.invoke("question") == []
        return
    with pytest.raises(InvalidParameter, match=rf"but it returned {type(answer).__name__}"):
        made.invoke("question")


def test_a_limit_that_no_document_could_reach_is_refused() -> None:
    """If it breaks, who sets a limit, or passes user=, believes that it holds, and every document leaves."""
    with pytest.raises(InvalidParameter, match=r"`limit` \(30\) .*user_key= or document_key="):
        documents_of(shelf(), limit=30.0)
    for options in ({"user_key": "patient"}, {"document_key": "name"}, {"cache": False}):
        documents_of(shelf(), limit=30.0, **options)
    SanitizingRetriever(retriever=shelf(), sanitizer=sanitizer(limit=30.0), documents=True)
    for call in ("invoke", "ainvoke"):
        with pytest.raises(InvalidParameter, match="user= with query=True only"):
            STYLES[call](documents_of(shelf()).bind(user="u"), "question", None)


@pytest.mark.parametrize("style", STYLES)
def test_an_error_tells_a_reporter_no_document(style: str, tmp_path: Path) -> None:
    """If it breaks, an error, or what serializes its frames, sends documents: an empty account is enough."""
    for inner, options, error, said in (
        (shelf(), {"limit": CLOSE / 2}, BudgetExceeded, ""),
        (shelf(fails=True), {}, RuntimeError, "ValueError in the inner retriever"),
        (shelf(), {"document_key": "none"}, InvalidParameter, "under document_key='none'"),
    ):
        made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(**options), query=False, documents=True)
        reporter = Reporting()
        with leak_surfaces(tmp_path) as surfaces:
            with pytest.raises(error, match=said):
                STYLES[style](made.bind(), "question", {"callbacks": [reporter, *surfaces.handlers]})
            assert "report of" not in surfaces.everything()
        assert reporter.kept
        assert not [each for each in reporter.kept if CANARY in each]


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
def test_a_user_is_charged_for_the_query(call: str) -> None:
    """If it breaks, queries are charged to nobody, or go out when the account is empty."""
    inner = shelf()
    made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(eta=1.0, limit=1.0)).bind(user="u")
    STYLES[call](made, "one question", None)
    with pytest.raises(BudgetExceeded):
        STYLES[call](made, "another question", None)
    assert len(inner.asked) == 1


class Lazily(Runnable[str, Any]):
    """Yields documents as it is read, after a model was asked about each."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    def invoke(self, input: str, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        model = FakeListChatModel(responses=["fine"])

        def found() -> Iterator[Document]:
            for document in shelf().invoke(input):
                model.invoke(f"Is this of use: {document.page_content}")
                yield document
                if self.fails:
                    raise ValueError(document.page_content)

        return found()


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_list_that_is_made_as_it_is_read_is_read_unseen(call: str, fails: bool, tmp_path: Path) -> None:
    """If it breaks, a retriever that yields documents one by one shows callbacks those of a private index."""
    made = documents_of(Lazily(fails=fails))
    with leak_surfaces(tmp_path) as surfaces:
        if fails:
            with pytest.raises(RuntimeError, match="ValueError in the inner retriever"):
                STYLES[call](made, QUERY, {"callbacks": surfaces.handlers})
        else:
            assert len(STYLES[call](made, QUERY, {"callbacks": surfaces.handlers})) == 5
        assert "report" not in surfaces.everything()


def test_bad_parts_are_refused() -> None:
    """If it breaks, a wrapper that sanitizes nothing looks like one that does."""
    good = {"retriever": shelf(), "sanitizer": sanitizer()}
    for bad in ({"query": False}, {"k": 0}, {"retriever": 7}, {"sanitizer": shelf()}, {"quiet": True}):
        with pytest.raises(InvalidParameter, match="Expected"):
            SanitizingRetriever(**(good | bad))
    made = SanitizingRetriever(**good)
    for query in (7, None, b"x"):
        with pytest.raises(InvalidParameter, match="str"):
            made.invoke(query)
    with pytest.raises(PrivateDataError):
        pickle.dumps(made)
    assert CANARY not in repr(made) + str(made)


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own suite."""

    @property
    def retriever_constructor(self) -> type[SanitizingRetriever]:
        return SanitizingRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": shelf(), "sanitizer": sanitizer(), "documents": True}

    @property
    def retriever_query_example(self) -> str:
        return "severe pain"


def test_a_certificate_says_that_the_choice_of_documents_is_not_covered() -> None:
    """If it breaks, an auditor takes an index over raw documents for covered by eta: guesses at words find them."""
    assert any("compares texts is not covered" in note for note in sanitizer().certificate().notes)
