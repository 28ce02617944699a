"""Encoders of private texts: what one text holds moves no other's vector, ends no release and is seen by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.encoders import TogetherEncoder, WordEncoder, fitted, rows
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryByteStore

from langchain_dp import PrivacyBudget
from langchain_dp.aggregate import StaticEncoder, public_texts, public_topics
from langchain_dp.aggregate.encoders import encode_privately, encode_publicly
from langchain_dp.errors import InvalidParameter, ModelUnavailable, UnsafeEnvironment
from langchain_dp.isolation.accept import check_encoder

TEXTS = [f"a parcel and an invoice {i}" for i in range(9)]
POISON = "poison"
ODD = [
    "",
    "   ",
    "\n\t",
    "\U0001f600\U0001f469\u200d\U0001f467",
    "word " * 10_000,
    "a\0b",
    "\u202e",
    "x" * 30_000,
    "Nobody called me.",
]


def raising(error: BaseException) -> Callable[[str], None]:
    def before(text: str) -> None:
        if POISON in text:
            raise error

    return before


def spoiling(change: Callable[[list[Any], int], Any]) -> Callable[[list[str], list[Any]], Any]:
    def spoil(texts: list[str], rows: list[Any]) -> Any:
        place = next((place for place, text in enumerate(texts) if POISON in text), None)
        return rows if place is None else change(rows, place)

    return spoil


def replaced(row: Any) -> Callable[[list[Any], int], Any]:
    return lambda rows, place: [*rows[:place], row, *rows[place + 1 :]]


FAILURES: dict[str, dict[str, Any]] = {
    "an error": {"before": raising(ValueError("secret"))},
    "Ctrl-C": {"before": raising(KeyboardInterrupt())},
    "an exit": {"before": raising(SystemExit(3))},
    "a cancellation": {"before": raising(asyncio.CancelledError())},
    "NaN": {"spoil": spoiling(replaced([float("nan")] * 8))},
    "another dimension": {"spoil": spoiling(replaced([1.0] * 7))},
    "no row": {"spoil": spoiling(lambda rows, place: rows[:place] + rows[place + 1 :])},
    "one row more": {"spoil": spoiling(lambda rows, place: [*rows, rows[0]])},
    "nothing at all": {"spoil": spoiling(lambda rows, place: [])},
    "None": {"spoil": spoiling(lambda rows, place: None)},
    "another shape": {"spoil": spoiling(lambda rows, place: [row[:7] for row in rows])},
    "words": {"spoil": spoiling(replaced(["x"] * 8))},
}


@pytest.mark.parametrize("kind", [WordEncoder, TogetherEncoder])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_text_that_breaks_the_encoder_breaks_nothing_else(failure: str, kind: type[WordEncoder]) -> None:
    """If it breaks, one record silences others, or ends a release after its charge."""
    healthy = np.vstack(list(encode_privately(kind(), TEXTS, 8)))
    texts = [*TEXTS[:4], f"{POISON} parcel", *TEXTS[4:]]
    found = np.vstack(list(encode_privately(kind(**FAILURES[failure]), texts, 8)))
    assert np.isnan(found[4]).all()
    assert (np.delete(found, 4, axis=0) == healthy).all()


def test_texts_share_a_call_only_where_the_class_itself_says_that_it_is_safe() -> None:
    """If it breaks, an encoder whose batches round together gets texts of several records at once."""

    class Child(TogetherEncoder):
        """Declares nothing itself."""

    class Sometimes(WordEncoder):
        """Declares it with another value than True."""

        batch_invariant: ClassVar[Any] = 1

    instance = WordEncoder()
    instance.batch_invariant = True  # type: ignore[attr-defined]
    for encoder in (WordEncoder(), Child(), Sometimes(), instance):
        list(encode_privately(encoder, TEXTS, 8))
        assert sorted(encoder.calls) == [[text] for text in TEXTS]
    together = TogetherEncoder()
    list(encode_privately(together, TEXTS, 8))
    assert together.calls == [TEXTS]


def test_blocks_keep_the_order_of_the_texts() -> None:
    """If it breaks, vectors go to the labels of other records."""
    texts = [f"{'parcel ' * (i % 5)}{i}" for i in range(4500)]
    blocks = list(encode_privately(TogetherEncoder(), texts, 8))
    assert [len(block) for block in blocks] == [2000, 2000, 500]
    assert np.vstack(blocks).round()[:, 0].tolist() == [i % 5 for i in range(4500)]
    assert (np.vstack(list(encode_privately(WordEncoder(), texts[:300], 8))) == blocks[0][:300]).all()


def test_static_vectors_do_not_depend_on_their_company() -> None:
    """If it breaks, odd texts change the vectors of others, or come out as no numbers."""
    encoder = StaticEncoder()
    texts = [*ODD, *public_texts()[:50]]
    together = encoder.array(texts)
    assert np.isfinite(together).all()
    lengths = np.linalg.norm(together, axis=1)
    assert ((np.abs(lengths - 1) < 1e-12) | (lengths == 0)).all()
    assert not together[0].any()
    for place, text in enumerate(texts):
        assert (encoder.array([text])[0] == together[place]).all()
    order = np.random.default_rng(1).permutation(len(texts))
    assert (encoder.array([texts[place] for place in order]) == together[order]).all()
    assert encoder.embed_query(texts[-1]) == encoder.embed_documents([texts[-1]])[0] == together[-1].tolist()


def test_a_class_made_of_the_static_encoder_is_asked_itself() -> None:
    """If it breaks, an encoder that changes texts first is bypassed, and the classifier is made of other vectors."""

    class Shouting(StaticEncoder):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return super().embed_documents([f"football {text}" for text in texts])

    [row] = encode_publicly(Shouting(), ["late parcel"])
    assert (row == StaticEncoder().array(["football late parcel"])[0]).all()


@pytest.mark.parametrize(
    "encoder",
    [
        WordEncoder(before=lambda text: 1 / 0),
        WordEncoder(spoil=lambda texts, rows: rows[:-1]),
        WordEncoder(spoil=lambda texts, rows: [[float("nan")] * 8 for _ in rows]),
        WordEncoder(spoil=lambda texts, rows: [[] for _ in rows]),
    ],
)
def test_an_encoder_that_fails_on_public_texts_is_said_before_the_charge(encoder: WordEncoder) -> None:
    """If it breaks, a wrong key or address costs the whole budget, and gives a classifier of noise."""
    spent: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("langchain_dp.accounting.LedgerPlan.spend", lambda *args, **kwargs: spent.append(args))
        with pytest.raises((ModelUnavailable, InvalidParameter)):
            fitted(encoder=encoder)
    assert not spent


@pytest.mark.parametrize(
    "failing",
    [lambda texts, rows: 1 / 0, lambda texts, rows: [row[:5] for row in rows]],
    ids=["outage", "another dimension"],
)
def test_an_outage_in_the_middle_is_no_classifier(failing: Any) -> None:
    """If it breaks, a server that went away, or was exchanged, leaves pure noise that looks like an answer."""
    encoder = WordEncoder()

    def spoil(texts: list[str], vectors: list[Any]) -> Any:
        return failing(texts, vectors) if any(" 150" in text for call in encoder.calls for text in call) else vectors

    encoder.spoil = spoil
    with pytest.raises((ModelUnavailable, InvalidParameter)):
        fitted(encoder=encoder)


class Step(RunnableLambda[Any, Any]):
    """A chain of the user's, as an encoder that writes a text first has one."""

    def __init__(self) -> None:
        super().__init__(lambda text: text)


class Plain(WordEncoder):
    """A class of the user's that declares nothing itself."""


def test_an_encoder_that_stores_texts_is_refused_with_a_remedy() -> None:
    """If it breaks, CacheBackedEmbeddings, which has a store, writes the vectors of private texts to it."""
    caching = WordEncoder()
    vars(caching)["document_embedding_store"] = InMemoryByteStore()
    for trusted in (False, True):
        with pytest.raises(UnsafeEnvironment, match="Leave it out"):
            fitted(encoder=caching, trust_opaque_model=trusted)


def test_a_class_of_the_users_needs_a_declaration_or_trust() -> None:
    """If it breaks, an unknown class reads the records, and the certificate does not say so."""
    with pytest.raises(UnsafeEnvironment, match="trust_opaque_model"):
        fitted(encoder=Plain())
    assert (
        "the encoder Plain is trusted to keep no texts"
        in fitted(encoder=Plain(), trust_opaque_model=True).certificate().notes
    )
    assert "WordEncoder declares that it keeps no texts" in fitted().certificate().notes
    assert not [
        note for note in fitted(encoder=DeterministicFakeEmbedding(size=8)).certificate().notes if "texts" in note
    ]
    with pytest.raises(InvalidParameter, match="Embeddings"):
        fitted(encoder="text-embedding-3-small")


def test_an_encoder_inside_a_known_one_is_looked_at() -> None:
    """If it breaks, a class of the user's hides in one of LangChain's."""
    known = DeterministicFakeEmbedding(size=8)
    for inner, name in ((Plain(), "Plain"), (Step(), "Step")):
        vars(known)["inner"] = inner
        with pytest.raises(UnsafeEnvironment, match=name):
            check_encoder(known, trusted=False)
        check_encoder(known, trusted=True)


def test_update_looks_at_the_encoder_of_a_loaded_classifier(tmp_path: Any) -> None:
    """If it breaks, a classifier from a file shows further records to a class that nobody vouched for."""
    fitted(encoder=Plain(), trust_opaque_model=True).save(tmp_path / "c.json")
    loaded = type(fitted()).load(tmp_path / "c.json", encoder=Plain())
    with pytest.raises(UnsafeEnvironment, match="trust_opaque_model"):
        loaded.update(rows(20), budget=PrivacyBudget(1.0))


def test_the_public_texts_and_topics_are_well_formed() -> None:
    """If it breaks, a stray line shifts the components, or a topic cannot be chosen."""
    texts, topics = public_texts(), public_topics()
    assert len(texts) > 1000
    assert len(set(texts)) == len(texts)
    assert all(text == text.strip() and 3 <= len(text) <= 400 and text.isprintable() for text in texts)
    assert len(topics) > 150
    assert list(topics)[-1] == "none of these"
    assert len({name.casefold() for name in topics}) == len(topics)
    assert all(part == part.strip() and part for pair in topics.items() for part in pair)
    assert sum(len(line.encode()) + 1 for line in [*texts, *(f"{a}: {b}" for a, b in topics.items())]) <= 300_000
