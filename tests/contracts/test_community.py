"""Parts of langchain-community in their places: its llama.cpp model behind a private vote, its indexes behind RAPT."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.rapt import sanitizer
from fakes.voters import left, private_examples
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ModelCallOptions
from langchain_dp.rapt import SanitizingRetriever

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is no longer maintained, and still widely used
    community = pytest.importorskip("langchain_community", reason="langchain-community is not installed")
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.retrievers import BM25Retriever
    from langchain_community.vectorstores import FAISS

SHELF = ["alpha beta gamma", "delta epsilon", f"alpha {CANARY} omega"]


@pytest.fixture(scope="module")
def llama() -> Any:
    """The embedded model, as its users load it."""
    from langchain_dp.integrations.llama_cpp import embedded_model_path

    path = embedded_model_path()
    return ChatLlamaCpp(model_path=path, n_ctx=512, n_batch=256, max_tokens=3, temperature=0, verbose=False)


def private_vote(llama: Any, **changes: Any) -> DPICLClassifier[str]:
    settings: dict[str, Any] = {
        "examples": private_examples(16, labels=["positive", "negative"]),
        "labels": ["positive", "negative"],
        "budget": PrivacyBudget(50.0),
        "max_queries": 5,
        "shots": 1,
        "subsets": 4,
    }
    return DPICLClassifier(model=llama, **(settings | changes))


async def test_its_llama_answers_one_call_after_the_other(llama: Any) -> None:
    """If it breaks, threads enter one llama.cpp context together, which ends the process without a word of Python."""
    chain = private_vote(llama, model_calls=ModelCallOptions(max_concurrency=16))
    assert chain.invoke("a fine film") in chain.labels
    assert await chain.ainvoke("a dull film") in chain.labels
    assert left(chain) == 3
    assert "ChatLlamaCpp is one llama.cpp context that reuses the common start" in str(chain.certificate())


def test_its_llama_takes_no_time_limit(llama: Any) -> None:
    """If it breaks, one record's long prompt uses up the time of the others: it moves more than one vote."""
    with pytest.raises(InvalidParameter, match="ChatLlamaCpp answers one call after the other"):
        private_vote(llama, model_calls=ModelCallOptions(timeout=5.0))


def bm25() -> Any:
    found = BM25Retriever.from_documents([Document(text) for text in SHELF])
    found.k = 1
    return found


def faiss() -> Any:
    store = FAISS.from_texts(SHELF, DeterministicFakeEmbedding(size=8))
    return store.as_retriever(search_kwargs={"k": 1})


@pytest.mark.parametrize("make", [bm25, faiss])
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
async def test_an_index_gets_a_sanitized_query_and_its_documents_leave_sanitized(
    make: Any, style: str, tmp_path: Any
) -> None:
    """If it breaks, an index sees the raw query, or a tracer a raw document."""
    inner = make()
    asked: list[str] = []
    search = type(inner)._get_relevant_documents

    def seen(self: Any, query: str, **given: Any) -> Any:
        asked.append(query)
        return search(self, query, **given)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(type(inner), "_get_relevant_documents", seen)
        if style == "ainvoke" and make is faiss:
            patches.setattr(type(inner), "_aget_relevant_documents", _by_thread(seen))
        made = SanitizingRetriever(retriever=inner, sanitizer=sanitizer(), query=True, documents=True)
        with leak_surfaces(tmp_path) as surfaces:
            config: Any = {"callbacks": surfaces.handlers}
            query = f"omega {CANARY}"
            found = made.invoke(query, config) if style == "invoke" else await made.ainvoke(query, config)
            shown = surfaces.everything()
    assert len(asked) == len(found) == 1
    assert CANARY not in asked[0] + found[0].page_content + shown
    assert CANARY in repr(inner.invoke(CANARY)) + repr(SHELF)


def _by_thread(search: Any) -> Any:
    async def answered(self: Any, query: str, *, run_manager: Any, **given: Any) -> Any:
        return search(self, query, run_manager=run_manager.get_sync(), **given)

    return answered
