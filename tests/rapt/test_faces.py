"""One account behind every face: what it was charged is what left, to the last release, and no limit is passed by."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes.models import Chat
from fakes.rapt import sanitizer
from fakes.styles import gathered, streamed
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import RunnableLambda

from langchain_dp import RAPTSanitizer
from langchain_dp.errors import BudgetExceeded
from langchain_dp.rapt import SanitizingExampleSelector, SanitizingRetriever


class Counting:
    """Stands in for what draws words, and counts how often each document was drawn: texts are named "d17 ..."."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self.drawn: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        def draw() -> list[str]:
            with self._lock:
                self.drawn.update(re.findall(r"\bd\d+\b", " ".join(texts)))
            return ["word"] * len(texts)

        return draw


def counted(**options: Any) -> tuple[RAPTSanitizer, Counting]:
    made = sanitizer(**({"eta": 1.0} | options))
    releases: Any = made._core.releases
    stub = Counting(releases.engine)
    releases.engine = stub
    return made, stub


def text(number: int) -> str:
    return f"d{number} has severe pain today, and more of it than yesterday"


def _pieces(whole: str) -> list[str]:
    return [whole[i : i + 3] for i in range(0, len(whole), 3)]


def _model(whole: str) -> Iterator[AIMessageChunk]:
    for piece in _pieces(whole):
        yield AIMessageChunk(piece)


async def _amodel(whole: str) -> AsyncIterator[AIMessageChunk]:
    for piece in _pieces(whole):
        yield AIMessageChunk(piece)


def _chain(made: RAPTSanitizer) -> Any:
    return RunnableLambda(_model, afunc=_amodel) | StrOutputParser() | made


def _documents(made: RAPTSanitizer, *texts: str) -> SanitizingRetriever:
    inner = RunnableLambda(lambda _: [Document(page_content=one) for one in texts])
    return SanitizingRetriever(retriever=inner, sanitizer=made, query=False, documents=True)


def _query(made: RAPTSanitizer) -> SanitizingRetriever:
    return SanitizingRetriever(retriever=RunnableLambda(lambda _: []), sanitizer=made)


def _examples(made: RAPTSanitizer, *texts: str) -> SanitizingExampleSelector:
    return SanitizingExampleSelector([{"text": one} for one in texts], made)


Face = Callable[[RAPTSanitizer, str], Any]
FACES: dict[str, Face] = {
    "sanitize": lambda made, whole: made.sanitize(whole),
    "invoke": lambda made, whole: made.invoke(whole),
    "ainvoke": lambda made, whole: asyncio.run(made.ainvoke(whole)),
    "batch": lambda made, whole: made.batch([whole]),
    "abatch": lambda made, whole: asyncio.run(made.abatch([whole])),
    "as completed": lambda made, whole: list(made.batch_as_completed([whole])),
    "stream": lambda made, whole: list(made.stream(whole)),
    "astream": lambda made, whole: asyncio.run(gathered(made.astream(whole))),
    "transform": lambda made, whole: list(made.transform(iter(_pieces(whole)))),
    "atransform": lambda made, whole: asyncio.run(gathered(made.atransform(streamed(_pieces(whole))))),
    "chain": lambda made, whole: _chain(made).invoke(whole),
    "chain stream": lambda made, whole: list(_chain(made).stream(whole)),
    "chain astream": lambda made, whole: asyncio.run(gathered(_chain(made).astream(whole))),
    "message": lambda made, whole: made.invoke(HumanMessage(whole)),
    "messages": lambda made, whole: made.invoke([HumanMessage(whole)]),
    "message chunks": lambda made, whole: list(made.transform(iter([AIMessageChunk(p) for p in _pieces(whole)]))),
    "prompt": lambda made, whole: made.invoke(StringPromptValue(text=whole)),
    "chat prompt": lambda made, whole: made.invoke(ChatPromptValue(messages=[HumanMessage(whole)])),
    "document": lambda made, whole: made.invoke(Document(page_content=whole)),
    "documents": lambda made, whole: made.transform_documents([Document(page_content=whole)]),
    "adocuments": lambda made, whole: asyncio.run(made.atransform_documents([Document(page_content=whole)])),
    "retriever": lambda made, whole: _documents(made, whole).invoke("q"),
    "aretriever": lambda made, whole: asyncio.run(_documents(made, whole).ainvoke("q")),
    "query": lambda made, whole: _query(made).invoke(whole),
    "aquery": lambda made, whole: asyncio.run(_query(made).ainvoke(whole)),
    "selector": lambda made, whole: _examples(made, whole).select_examples({}),
    "aselector": lambda made, whole: asyncio.run(_examples(made, whole).aselect_examples({})),
    "mappings": lambda made, whole: made.sanitize_mappings([{"text": whole}]),
}
try:
    from langchain.agents import create_agent

    from langchain_dp.rapt.middleware import RAPTMiddleware
except ImportError:  # they need the extra agents
    pass
else:

    def _agent(made: RAPTSanitizer) -> Any:
        return create_agent(Chat(), middleware=[RAPTMiddleware(made)])

    FACES |= {
        "agent": lambda made, whole: _agent(made).invoke({"messages": [HumanMessage(whole)]}),
        "aagent": lambda made, whole: asyncio.run(_agent(made).ainvoke({"messages": [HumanMessage(whole)]})),
        "agent stream": lambda made, whole: list(_agent(made).stream({"messages": [HumanMessage(whole)]})),
    }


MANY: dict[str, Callable[[RAPTSanitizer, list[str]], Any]] = {
    "batch": lambda made, texts: made.batch(texts),
    "abatch": lambda made, texts: asyncio.run(made.abatch(texts)),
    "tolerant": lambda made, texts: made.batch([*texts, 7], return_exceptions=True),
    "as completed": lambda made, texts: list(made.batch_as_completed(texts)),
    "chain": lambda made, texts: _chain(made).batch(texts),
    "messages": lambda made, texts: made.invoke([HumanMessage(one) for one in texts]),
    "documents": lambda made, texts: made.transform_documents([Document(page_content=one) for one in texts]),
    "retriever": lambda made, texts: _documents(made, *texts).invoke("q"),
    "queries": lambda made, texts: _query(made).batch(texts),
    "selector": lambda made, texts: _examples(made, *texts).select_examples({}),
    "mappings": lambda made, texts: made.sanitize_mappings([{"text": one} for one in texts]),
}


def entries(made: RAPTSanitizer) -> int:
    return len(list(made.ledger.entries()))


@pytest.mark.parametrize("options", [{}, {"cache": False}, {"limit": 1.0, "cache": False}], ids=str)
def test_the_account_holds_every_release_of_every_face_to_the_last_one(options: dict[str, Any]) -> None:
    """If it breaks, a face releases what nobody was charged for, or charges for what never left."""
    made, stub = counted(**options)
    faces, many = list(FACES.values()), list(MANY.values())
    for number in range(500):
        faces[number % len(faces)](made, text(number))
    for number, first in enumerate(range(500, 1000, 10)):
        many[number % len(many)](made, [text(one) for one in range(first, first + 10)])
    assert stub.drawn == Counter({f"d{number}": 1 for number in range(1000)})
    assert entries(made) == made.certificate().releases == 1000
    assert made.certificate().document_spent == 1.0


def test_a_text_that_comes_again_by_another_face_is_charged_as_often_as_it_is_drawn() -> None:
    """If it breaks, the same text costs nothing on a face that draws it anew, or is drawn where it should be reused."""
    for cache in (True, False):
        made, stub = counted(cache=cache)
        for face in FACES.values():
            face(made, text(0))
        assert entries(made) == stub.drawn["d0"]
        assert stub.drawn["d0"] == (1 if cache else len(FACES))


@pytest.mark.parametrize("face", FACES)
def test_no_face_gets_around_the_limit_of_a_document(face: str) -> None:
    """If it breaks, a text leaves more often than its limit allows, while the certificate still shows the limit."""
    made, stub = counted(limit=2.0, cache=False)
    refused = 0
    for _ in range(5):
        try:
            FACES[face](made, text(0))
        except BudgetExceeded:
            refused += 1
    assert (stub.drawn["d0"], entries(made), refused) == (2, 2, 3)
    assert made.certificate().document_spent == 2.0


def test_threads_that_use_all_faces_at_once_stay_under_the_limit() -> None:
    """If it breaks, two faces that are used at the same time release one text above its limit."""
    made, stub = counted(limit=7.0, cache=False)

    def use(first: int) -> None:
        faces = list(FACES.values())
        for face in faces[first:] + faces[:first]:
            for number in range(3):
                with contextlib.suppress(BudgetExceeded):
                    face(made, text(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(0, 20, 5)))
    assert stub.drawn == {"d0": 7, "d1": 7, "d2": 7}
    assert entries(made) == 21


@pytest.mark.parametrize("cache", [True, False])
def test_equal_texts_of_one_call_do_not_pass_the_limit_together(cache: bool) -> None:
    """If it breaks, a text leaves as often as somebody puts it into a list, each time as a document of its own."""
    calls: list[Callable[[RAPTSanitizer], Any]] = [
        lambda made: made.batch([text(0)] * 3),
        lambda made: made.invoke([HumanMessage(text(0))] * 3),
        lambda made: made.transform_documents([Document(page_content=text(0))] * 3),
        lambda made: made.sanitize_mappings([{"text": text(0)}] * 3),
    ]
    for call in calls:
        made, stub = counted(limit=2.0, cache=cache)
        with pytest.raises(BudgetExceeded, match="document at position 2"):
            call(made)
        assert not stub.drawn
    made, stub = counted(limit=2.0, cache=cache)
    found = made.batch([text(0)] * 5, return_exceptions=True)
    assert [type(one) for one in found] == [str, str, *[BudgetExceeded] * 3]
    assert stub.drawn["d0"] == entries(made) == 2


@pytest.mark.parametrize("cache", [True, False])
def test_streams_of_one_text_are_one_document_under_a_limit(cache: bool) -> None:
    """If it breaks, every stream of a text is a new document, and what leaves adds up to thirty times the limit."""
    made, stub = counted(eta=0.001, limit=0.001, cache=cache)
    passed = 0
    for _ in range(30):
        try:
            assert "".join(_chain(made).stream(text(0)))
            passed += 1
        except BudgetExceeded:
            pass
    assert passed == (30 if cache else 1)
    assert stub.drawn["d0"] == entries(made) == 1
    assert made.certificate().document_spent == 0.001
