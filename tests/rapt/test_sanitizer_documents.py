"""Documents on their way into an index: contents, metadata, and whose account pays."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
import warnings
from typing import Any

import pytest
from fakes.rapt import FAR, sanitizer
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.runnables import RunnableLambda

from langchain_dp.errors import BudgetExceeded, InvalidParameter
from langchain_dp.rapt import SanitizingRetriever

RAW = "quetzal"
UUID = "0b6fe3ab-8c4f-4c41-9df5-0a1a6cf5b7f5"


def report(nth: int, **metadata: Any) -> Document:
    return Document(page_content=f"report {nth} : the patient {RAW} has pain", metadata=metadata)


def test_documents_are_transformed_and_metadata_dropped() -> None:
    """If it breaks, names in metadata go into the index beside the sanitized text."""
    made = sanitizer()
    assert isinstance(made, BaseDocumentTransformer)
    given = [report(1, author=RAW, nested={"path": RAW}), report(2)]
    for released in (made.transform_documents(given), asyncio.run(made.atransform_documents(given))):
        assert [type(one) for one in released] == [Document, Document]
        assert [one.metadata for one in released] == [{}, {}]
        assert RAW not in repr(released)
    assert given[0].metadata["author"] == RAW


def test_named_metadata_pass_or_are_sanitized() -> None:
    """If it breaks, a name catches too much or too little, or names that are keys inside metadata leave in clear."""
    made = sanitizer(
        keys_keep=["today"], metadata_keep=["source", "ward"], metadata_sanitize=["title", "notes", "tags"]
    )
    given = report(
        1, source="archive", title=f"about {RAW}", tags=[RAW, {RAW: RAW, "n": 12345}], notes={"today": RAW},
        ward={"number": 3}, other={"source": RAW}, **{"source.name": RAW},
    )  # fmt: skip
    released = made.transform_documents([given])[0]
    assert RAW not in repr(released)
    assert "12345" not in repr(released)
    assert released.metadata.keys() == {"source", "title", "tags", "notes", "ward"}
    assert (released.metadata["source"], released.metadata["ward"]) == ("archive", {"number": 3})
    assert released.metadata["notes"].keys() == {"today"}
    assert len(released.metadata["tags"]) == 2
    noted = " ".join(made.certificate().notes)
    assert "Of metadata that are sanitized, keys are in clear: title, notes, tags." in noted
    exact = sanitizer(eta=FAR, metadata_sanitize=["title"])
    kept = exact.transform_documents([Document(page_content="severe pain", metadata={"title": ["old man"]})])[0]
    assert (kept.page_content, kept.metadata) == ("severe pain", {"title": ["old man"]})


def test_what_comes_out_of_a_set_has_an_order_of_its_own() -> None:
    """If it breaks, the place of each word tells how its raw word compares with the others; or a retry is charged."""
    made = sanitizer(metadata_sanitize=["tags"])
    tags = ["patient", "doctor", "pain", "fever", "heart", "lung", "arm", "leg", "woman", "city"]
    released = [made.invoke(report(1, tags=set(order))).metadata["tags"] for order in (tags, tags[::-1])]
    assert released[0] == sorted(released[0])
    assert len(set(released[0])) > 2  # all of ten alike: 1e-17
    assert released[1] == released[0]
    assert made.certificate().releases == 1
    nested = [frozenset(tags[:3]), frozenset(tags[3:6]), (frozenset(tags[6:8]), 7)]
    again = [frozenset(sorted(each, reverse=True)) if isinstance(each, frozenset) else each for each in nested[::-1]]
    first, second = (made.invoke(report(2, tags=frozenset(each))).metadata["tags"] for each in (nested, again))
    assert first == second == sorted(first, key=str)


def test_every_user_has_an_account() -> None:
    """If it breaks, one patient's many reports are charged to another, or to nobody."""
    made = sanitizer(eta=1.0, limit=2.0, user_key="patient", document_key="number")
    first = [report(number, number=number, patient=7) for number in range(2)]
    released = made.transform_documents(first)
    assert made.ledger.spent(user="7") == 2.0
    assert made.ledger.spent(document="1") == 1.0
    with pytest.raises(BudgetExceeded, match="user at position 1"):
        made.transform_documents([report(8, number=8, patient=9), report(9, number=9, patient=7)])
    assert made.ledger.spent(user="9") == 0.0
    assert made.transform_documents(first) == released, "what was released stays free"
    assert not released[0].metadata
    with pytest.raises(InvalidParameter, match="document 1"):
        made.transform_documents([report(1, number=1, patient=3), report(2, number=2)])
    made.transform_documents([report(3, number=3)], user="given")
    assert made.ledger.spent(user="given") == 1.0


def test_a_new_version_of_a_document_is_charged_to_the_same_account() -> None:
    """If it breaks, every edit of a document gets a fresh account, or metadata cost more than one eta."""
    made = sanitizer(eta=1.0, document_key="id", metadata_sanitize=["title"])
    for text in ("first version", "second version", "first version"):
        made.transform_documents([Document(page_content=text, id="report 7", metadata={"title": "severe pain"})])
    assert made.ledger.spent(document="report 7") == 2.0


@pytest.mark.parametrize(
    ("given", "options", "left"),
    [
        (UUID, {}, UUID),
        (f"{RAW}.pdf", {}, "new"),
        (str(uuid.uuid5(uuid.NAMESPACE_URL, RAW)), {}, "new"),
        (hashlib.md5(RAW.encode()).hexdigest(), {}, "new"),
        (f"{RAW}.pdf", {"metadata_keep": ["id"]}, f"{RAW}.pdf"),
        (None, {}, None),
    ],
)
def test_only_random_ids_stay(given: str | None, options: dict[str, Any], left: str | None) -> None:
    """If it breaks, a file name, or a digest that confirms a guess, goes into the index as the id of a document."""
    documents = [Document(page_content="a", id=given)] * 2
    ids = [one.id for one in sanitizer(**options).invoke(documents)]
    if left == "new":
        assert [uuid.UUID(one).version for one in ids] == [4, 4]
        assert len({given, *ids}) == 3, "two that were equal must not show it"
    else:
        assert ids == [left, left]


def test_the_ids_of_langchains_index_do_not_confirm_a_guess() -> None:
    """If it breaks, whoever gets a sanitized document hashes a guess at its content and compares it with the id."""
    from langchain_core.indexing import InMemoryRecordManager, index
    from langchain_core.indexing.in_memory import InMemoryDocumentIndex

    manager = InMemoryRecordManager(namespace="records")
    manager.create_schema()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a store that may change, and SHA-1, which is the point
        store = InMemoryDocumentIndex()
        index([Document(page_content=f"the patient {RAW}")], manager, store)
    (stored,) = store.store.values()
    assert uuid.UUID(str(stored.id)).version == 5, "LangChain makes other ids now: look at them anew"
    made = SanitizingRetriever(
        retriever=RunnableLambda(lambda _: [stored]), sanitizer=sanitizer(), query=False, documents=True
    )
    assert uuid.UUID(made.invoke("question")[0].id).version == 4


def test_equal_documents_do_not_come_out_equal_and_empty_ones_are_free() -> None:
    """If it breaks, the index shows which documents are copies, or a blank page stops an ingestion."""
    text = "the patient has severe pain in the left arm and a mild fever"
    released = sanitizer().transform_documents([Document(page_content=text)] * 4)
    assert len({one.page_content for one in released}) == 4
    made = sanitizer()
    assert made.transform_documents([]) == []
    assert made.transform_documents([Document(page_content="")])[0].page_content == ""
    assert made.certificate().releases == 0


@pytest.mark.parametrize("bad", [None, "text", b"x", Document(page_content="x"), 7, [7], [report(1), "text"], {"a": 1}])
def test_what_are_no_documents_is_refused(bad: Any) -> None:
    """If it breaks, something else than a document is iterated, or passes in clear."""
    made = sanitizer()
    with pytest.raises(InvalidParameter, match="Expected"):
        made.transform_documents(bad)
    with pytest.raises(InvalidParameter, match="Expected"):
        asyncio.run(made.atransform_documents(bad))
    odd = Document.model_construct(page_content=b"raw", metadata={})
    with pytest.raises(InvalidParameter, match="document 0"):
        made.transform_documents([odd])
    assert made.certificate().releases == 0
