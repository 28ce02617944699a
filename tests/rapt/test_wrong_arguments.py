"""What sanitizers and pseudonymizers are given by mistake: refused at once, by name, and without a private text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.fernet import Fernet
from fakes import vocabularies
from fakes.rapt import sanitizer
from langchain_core.documents import Document
from langgraph.store.memory import InMemoryStore

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import Policies, SanitizingExampleSelector, TextPrivatizer, Vocabulary, calibrate
from langchain_dp.rapt.pseudonyms import (
    PatternEntities,
    PseudonymizeBatches,
    Pseudonymizer,
    PseudonymStore,
    TermEntities,
)

SMALL = vocabularies.small()
EYE = np.eye(3)
NAME = "Zoe Quill"
ROWS = [{"text": NAME, "label": NAME}]
KEY = Fernet.generate_key()
TEXTS = ["the doctor and the nurse was at the house. the dog, the cat and the bird in the garden of paris!"] * 3
REMEDY = "Expected .*Calibrate it with langchain_dp.rapt.calibrate"


def privatizer(vocabulary: Any = SMALL, eta: float = 2.0, **options: Any) -> TextPrivatizer:
    return TextPrivatizer(vocabulary, eta, **options)


def batches(build: Any = Pseudonymizer, columns: Any = ("text",), **options: Any) -> object:
    return PseudonymizeBatches(build, list(columns), **{"map_column": "map", "key": lambda: KEY, **options})


def sanitizing() -> Pseudonymizer:
    return Pseudonymizer(remaining_text_sanitizer=sanitizer())


def target(**options: Any) -> object:
    return calibrate(SMALL, **{"texts": TEXTS, **options})


def selector(examples: Any = ROWS, by: Any = None, **options: Any) -> SanitizingExampleSelector:
    return SanitizingExampleSelector(examples, by or sanitizer(), **options)


def found(start: int, end: int) -> object:
    return Pseudonymizer(lambda _: [(start, end, "A")]).invoke("0123456789")


def table(words: Any = ("a", "b", "c"), vectors: Any = EYE, **options: Any) -> object:
    return Vocabulary(list(words), vectors, **options)


NO_DOCUMENTS: list[Any] = [None, "text", b"x", Document("x"), 7, [7], [Document("x"), "text"], {"a": 1}]
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: sanitizer(eta=None), "Expected"),
    (lambda: sanitizer(target_replacement=0.5), "Expected"),
    (lambda: sanitizer(eta="big"), "Expected"),
    *((lambda eta=eta: sanitizer(eta=eta), REMEDY) for eta in (-1.0, 0.0, 1e9, float("nan"))),
    (lambda: sanitizer(mechanism="magic"), "Expected"),
    (lambda: sanitizer(policies={"numbers": "keep"}), "Expected"),
    (lambda: sanitizer(keep="patient"), "Expected"),
    (lambda: sanitizer(length=0), "Expected"),
    (lambda: sanitizer(cache="no"), "Expected"),
    (lambda: sanitizer(system="drop"), "Expected"),
    (lambda: sanitizer(media="blur"), "Expected"),
    (lambda: sanitizer(keys_keep="rows"), "Expected"),
    (lambda: sanitizer(metadata_keep="source"), "Expected"),
    (lambda: sanitizer(metadata_keep=["a"], metadata_sanitize=["a", "b"]), "Expected"),
    (lambda: sanitizer(metadata_sanitize=[7]), "Expected"),
    (lambda: sanitizer(user_key=""), "Expected"),
    (lambda: sanitizer(document_key=3), "Expected"),
    (lambda: sanitizer(ledger=PrivacyLedger(PrivacyBudget(1.0))), "Expected"),
    (lambda: sanitizer(ledger=MetricLedger(), limit=3.0), "Expected"),
    (lambda: sanitizer(ledger=MetricLedger(), not_private_seed=1), "Expected"),
    (lambda: sanitizer(not_private_seed="a"), "Expected"),
    (lambda: sanitizer(limit=-1.0), "Expected"),
    (lambda: sanitizer(only="PERSON", eta=None), "has no argument"),
    (lambda: sanitizer().sanitize_mappings("x"), "list of mappings"),
    (lambda: sanitizer().sanitize_mappings(None), "list of mappings"),
    (lambda: sanitizer().sanitize_mappings([NAME]), "list of mappings"),
    *((lambda keep=keep: sanitizer().sanitize_mappings(ROWS, keep=keep), "list of keys") for keep in ("text", 3, [3])),
    (lambda: selector([NAME]), "mappings"),
    (lambda: selector(by=7), "RAPTSanitizer"),
    (lambda: selector(keep="label"), "list of keys"),
    (lambda: selector(keep=["label", "labl"]), r"none has \['labl'\]"),
    (lambda: selector(user_key="p").select_examples({}), "mapping 0"),
    *((lambda bad=bad: sanitizer().transform_documents(bad), "Expected") for bad in NO_DOCUMENTS),
    (lambda: asyncio.run(sanitizer().atransform_documents([7])), "Expected"),  # type: ignore[list-item]
    (lambda: sanitizer().transform_documents([Document.model_construct(page_content=NAME.encode())]), "document 0"),
    (lambda: table("ab"), "2 words and 3 vectors"),
    (lambda: table("aba"), "'a' among them"),
    (lambda: table(["a", "b", 3]), "type int"),
    (lambda: table(vectors=[[1.0], [float("nan")], [2.0]]), r"row 1 \('b'\)"),
    (lambda: table(vectors=[[1.0], [2.0], [float("inf")]]), r"row 2 \('c'\)"),
    (lambda: table(vectors=[[1.0], [2.0], [1e20]]), r"row 2 \('c'\)"),
    (lambda: table(vectors=np.zeros(3)), r"shape \(3,\)"),
    (lambda: table(vectors=np.zeros((3, 0))), r"shape \(3, 0\)"),
    (lambda: table("ab", [[1.0], [1.0, 2.0]]), "differ in length"),
    (lambda: table("ab", [["x"], ["y"]]), "matrix of floats"),
    (lambda: table(never=[0, 1]), "got 1 of 3"),
    (lambda: table(never=[3]), "never=3"),
    (lambda: table(never=[-1]), "never=-1"),
    (lambda: table(unknown=np.zeros(2)), r"unknown of shape \(2,\)"),
    (lambda: table(pad=np.full(3, np.nan)), "pad of shape"),
    (lambda: table("", np.zeros((0, 3))), "got 0 of 0"),
    (lambda: privatizer(eta=0.0), "eta=0.0"),
    (lambda: privatizer(eta=-1.0), "eta=-1.0"),
    (lambda: privatizer(eta=float("nan")), "eta=nan"),
    (lambda: privatizer(mechanism="gauss"), "mechanism='gauss'"),
    (lambda: privatizer(length=0), "length=0"),
    (lambda: privatizer(length=2.5), "length=2.5"),
    (lambda: privatizer(threads=0), "threads=0"),
    *((lambda keep=keep: privatizer(keep=keep), "keep= to be a list of words") for keep in ("word", 5, [3])),
    *((lambda keep=keep: privatizer(keep=keep), "one word each") for keep in (["two words"], [" "])),
    (lambda: privatizer("glove"), "type str to be a Vocabulary"),
    *((lambda texts=texts: privatizer().privatize(texts), "list of strings") for texts in ("one text", b"x", 5, None)),
    (lambda: privatizer().privatize(["the", {NAME: 1}]), r"texts\[1\] of type dict"),
    *(
        (lambda field=field: Policies(**{field: "hide"}), f"{field}='hide'")
        for field in ("numbers", "dates", "urls", "punctuation", "code")
    ),
    (lambda: target(target_replacement=0.999), r"reachable .* between \d.* and 0\.\d+"),
    (lambda: target(inversion=0.01), "reachable"),
    (lambda: target(target_replacement=1.0), "target_replacement=1.0"),
    (lambda: target(target_replacement=0.0), "target_replacement=0.0"),
    (lambda: target(inversion=float("nan")), "inversion=nan"),
    (lambda: target(eta=-1.0), "eta=-1.0"),
    (lambda: target(), "got none"),
    (lambda: target(eta=1.0, inversion=0.5), r"\['eta', 'inversion'\]"),
    (lambda: target(eta=1.0, mechanism="gauss"), "mechanism='gauss'"),
    (lambda: target(eta=1.0, texts="the doctor"), "list of strings"),
    (lambda: target(eta=1.0, texts=["Zebulon " * 50]), "got 0 of 50"),
    (lambda: target(eta=1.0, texts=[]), "got 0 of 0"),
    (lambda: target(eta=1.0, texts=["the " * 50]), "at least 20 running words"),
    *(
        (lambda hosts=hosts: Pseudonymizer(allowed_hosts=hosts), "`allowed_hosts`")
        for hosts in ("example.org", ["https://example.org"], ["a/b"], [3], ["a:80"])
    ),
    (lambda: Pseudonymizer(3), "recognizer 0 of type int"),  # type: ignore[arg-type]
    (lambda: Pseudonymizer([]), "at least one recognizer"),
    (lambda: Pseudonymizer(remaining_text_sanitizer="x"), "RAPTSanitizer"),  # type: ignore[arg-type]
    (lambda: Pseudonymizer(remaining_text_sanitizer=sanitizer(limit=3.0)), "a sanitizer without a limit"),
    (lambda: PatternEntities(["NAME"]), "kinds="),
    (lambda: PatternEntities(patterns={"A": "("}), "regular expressions"),
    (lambda: PatternEntities(regions=["XX"]), "regions"),
    (lambda: TermEntities(NAME), "list of texts"),
    (lambda: TermEntities([" "]), "list of texts"),
    *(
        (lambda terms=terms: TermEntities(terms), "map each text to its kind")
        for terms in ({"PERSON": [NAME]}, {"PERSON": NAME}, {NAME: ""})
    ),
    *((lambda ends=ends: found(*ends), "inside the text") for ends in ((0, 99), (-1, 2), (3, 3), (5, 2))),
    (lambda: PseudonymStore({}), "store of LangGraph"),  # type: ignore[arg-type]
    (lambda: PseudonymStore(InMemoryStore(), key="short"), "32 bytes"),
    (lambda: PseudonymStore(InMemoryStore(), "names"), "pseudonymizer"),  # type: ignore[arg-type]
    (lambda: batches(columns=[]), "at least one to work on"),
    (lambda: batches(columns=["text", "text"]), "each once"),
    (lambda: batches(keep_columns="id"), "at least one to work on"),
    (lambda: batches(keep_columns=["text"]), "passes in clear"),
    (lambda: batches(map_column="text"), "name of a new column"),
    (lambda: batches(map_column=None), "key= and map_column= together"),
    (lambda: batches(key=None), "key= and map_column= together"),
    (lambda: batches(key=KEY), "a function that reads the key"),
    (lambda: batches(key=lambda: "short"), "32 bytes"),
    (lambda: batches(lambda: 5), "of type int to be a Pseudonymizer"),
    (lambda: batches(sanitizing), "without remaining_text_sanitizer="),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_a_wrong_argument_is_refused_by_name(at: int) -> None:
    """If it breaks, a slip runs for hours under a promise that nobody chose, hides nothing, or is a foreign error."""
    make, says = WRONG[at]
    with pytest.raises(InvalidParameter, match=says) as refused:
        make()
    assert "Quill" not in str(refused.value)
