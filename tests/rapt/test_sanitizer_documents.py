"""Documents on their way into an index: contents, metadata, and whose account pays."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest
from fakes.rapt import FAR, sanitizer
from langchain_core.documents import Document

from langchain_dp.errors import BudgetExceeded, InvalidParameter

RAW = "quetzal"
UUID = "0b6fe3ab-8c4f-4c41-9df5-0a1a6cf5b7f5"


def report(nth: int, **metadata: Any) -> Document:
    return Document(page_content=f"report {nth} : the patient {RAW} has pain", metadata=metadata)


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
