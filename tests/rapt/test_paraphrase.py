"""Paraphrases: the law of whole chains against what their ledger was charged, and what every face charges."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY
from fakes.rapt import CLOSE, TABLE
from fakes.scorer import END, NEWLINE, WORDS, WordScorer
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.audit.report import report
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LangChainDPError, PlanError
from langchain_dp.ports import Continuation
from langchain_dp.rapt import DocumentRules, ParaphraseOptions, RAPTParaphraser, RAPTSanitizer, SanitizingRetriever

SHORT = ParaphraseOptions(clip=1.0, max_new_tokens=6)


def paraphraser(engine: Any = None, **options: Any) -> RAPTParaphraser:
    return RAPTParaphraser(engine or WordScorer(), **{"paraphrasing": SHORT, **options})


class Swayed(WordScorer):
    """One rare word that a text with "yes" makes all but certain and one with "no" impossible."""

    def _row(self, one: Continuation) -> np.ndarray:
        logits = np.zeros(self.vocabulary_size)
        logits[0], logits[NEWLINE], logits[END] = -10.0, -60.0, -60.0
        said = one.prompt.body.split()
        logits[0] += 90.0 * ("yes" in said) - 90.0 * ("no" in said)
        return np.asarray(logits - np.log(np.exp(logits).sum()))


def law(text: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Fraction], float]:
    """The exact law of what a chain answers, by all draws that there are; and what it was charged."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    charged = 0.0
    places = len(WORDS)  # no text of this engine ends by itself, but for chances below 1e-20, which are left out
    for path in itertools.product(range(places), repeat=tokens):
        steps, share = iter(path), Fraction(1)

        def drawn(rng: object, base: Fraction, exponents: list[int], factors: list[int], steps: Any = steps) -> int:
            nonlocal share
            weights = [f * base ** (x - min(exponents)) for x, f in zip(exponents, factors, strict=True)]
            at = next(steps)
            share *= weights[at] / sum(weights)
            return at

        with monkeypatch.context() as patch:
            patch.setattr("langchain_dp.mechanisms.clipped_sum.draw", drawn)
            how = ParaphraseOptions(clip=1.0, max_new_tokens=tokens)
            chain = paraphraser(Swayed(), paraphrasing=how)
            found[chain.invoke(text)] += share
            charged = chain.certificate().document_spent or 0.0
    return found, charged


@pytest.mark.parametrize("tokens", [1, 2])
def test_no_two_texts_are_told_apart_by_more_than_was_charged(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a paraphrase says more of its text than was charged; half the charge would be too little."""
    (yes, charged), (no, _), (other, _) = (law(text, tokens, monkeypatch) for text in ("yes", "no", "a b c d"))
    for first, second in itertools.permutations((yes, no, other), 2):
        assert sum(first.values()) == pytest.approx(1.0, abs=1e-9)
        assert first.keys() == second.keys()
        assert max(math.log(share / second[text]) for text, share in first.items()) <= charged + 1e-9
    seen = max(math.log(share / no[text]) for text, share in yes.items())
    assert charged == pytest.approx(4.0 * tokens)
    assert seen > 0.7 * charged


def test_a_text_is_charged_before_it_is_read_and_once() -> None:
    """If it breaks, a text reaches the model unpaid, or a repeated one is drawn anew."""
    ledger = MetricLedger(None)
    seen: list[int] = []

    def look(bodies: list[str]) -> None:
        if bodies:
            seen.append(chain.certificate().releases)

    engine = WordScorer(look)
    chain = paraphraser(engine, ledger=ledger)
    first = chain.invoke("my parcel is late")
    asked = len(seen)
    assert chain.invoke("my parcel is late") == first
    assert len(seen) == asked > 0
    assert set(seen) == {1}
    assert chain.certificate().document_spent == chain.certificate().eta == SHORT.epsilon == pytest.approx(6 * 4.0)
    assert ParaphraseOptions(clip=2.0, temperature=0.5, max_new_tokens=30).epsilon == pytest.approx(30 * 4 * 2.0 / 0.5)
    assert "pure, local epsilon" in str(chain.certificate())
    assert chain.certificate().releases == 1
    assert engine.forgotten == {("paraphrase", " my parcel is late")}


def test_every_face_charges_each_text() -> None:
    """If it breaks, a way of calling is free of charge, or gives another type back."""
    chain = paraphraser(cache=False)
    assert isinstance(chain.invoke("late"), str)
    assert [type(one) for one in chain.invoke([HumanMessage("late"), AIMessage("paid")])] == [HumanMessage, AIMessage]
    (document,) = chain.transform_documents([Document("late", metadata={"ward": CANARY})])
    assert not document.metadata
    assert len(chain.batch(["late", "paid"])) == 2
    assert len(list(chain.stream("late parcel"))) == 1
    inner = RunnableLambda(lambda _: [Document("late")])
    SanitizingRetriever(retriever=inner, sanitizer=chain, query=False, documents=True).invoke("x")
    assert chain.certificate().releases == 8
    assert chain.invoke(" ") == ""
    assert chain.certificate().releases == 8


def test_each_text_of_a_document_is_charged() -> None:
    """If it breaks, a document of five texts is charged as one, though another document may differ in all five."""
    rules = DocumentRules(metadata_sanitize=["title", "blank"])
    chain = paraphraser(documents=rules)
    document = Document("late", metadata={"title": "parcel", "blank": " "})
    (first,) = chain.transform_documents([document])
    assert chain.certificate().document_spent == pytest.approx(2 * SHORT.epsilon)
    assert chain.transform_documents([document]) == [first]
    assert chain.certificate().document_spent == pytest.approx(2 * SHORT.epsilon)
    limited = paraphraser(limit=30.0, cache=False)
    limited.invoke("late parcel", document="a")
    with pytest.raises(BudgetExceeded):
        limited.invoke("late parcel", document="a")
    with pytest.raises(BudgetExceeded):
        paraphraser(documents=rules, limit=1.5 * SHORT.epsilon).transform_documents([document])


def test_words_and_whole_texts_have_accounts_of_their_own() -> None:
    """If it breaks, distances of words and of texts are added up."""
    ledger = MetricLedger(None)
    paraphraser(ledger=ledger).invoke("late")
    with pytest.raises(PlanError):
        RAPTSanitizer(TABLE, eta=CLOSE, ledger=ledger)
    with pytest.raises(InvalidParameter, match="replaces no word"):
        paraphraser().calibration()


def test_the_report_speaks_of_whole_texts(tmp_path: Path) -> None:
    """If it breaks, an auditor reads of words and their distances where whole texts were rewritten."""
    with MetricLedger(2000.0, tmp_path / "texts.ledger") as ledger:
        paraphraser(ledger=ledger).invoke("late")
    found = report(tmp_path / "texts.ledger")
    assert found.neighbors == "any two texts"
    (released,) = found.plans[0].releases
    assert (released.mechanism, released.parameters) == (
        "Paraphrases of whole texts",
        "eta 24 nats between any two texts",
    )
    assert "word" not in f"{found.meaning} {released} {found.limits}"
    assert "word" not in str(paraphraser().certificate()).split("note")[0]


MISTAKES: dict[str, Any] = {
    "a chat model": lambda: paraphraser(RunnableLambda(str)),
    "a clip of none": lambda: ParaphraseOptions(clip=0.0),
    "too large a clip": lambda: ParaphraseOptions(clip=8.0),
    "a dict of settings": lambda: paraphraser(paraphrasing={"clip": 1.0}),
    "a limit beside a ledger": lambda: paraphraser(ledger=MetricLedger(None), limit=3.0),
    "a text that does not fit": lambda: paraphraser().invoke(f"{CANARY} " * 10_000),
    "a number": lambda: paraphraser().invoke(3),
}


@pytest.mark.parametrize("wrong", MISTAKES)
def test_mistakes_are_named_and_cost_nothing(wrong: str) -> None:
    """If it breaks, a slip ends in an error of a library, or in one that holds the text."""
    with pytest.raises(LangChainDPError) as caught:
        MISTAKES[wrong]()
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_how_long_a_text_is_stays_private() -> None:
    """If it breaks, an error that costs nothing tells two long texts apart."""
    said = set()
    for words in (10_000, 10_001, 20_000):
        chain = paraphraser()
        with pytest.raises(InvalidParameter, match="Expected every text to be at most") as caught:
            chain.invoke("late " * words)
        said.add(str(caught.value))
        assert chain.certificate().releases == 0
    assert len(said) == 1


def test_a_text_that_breaks_the_model_is_in_no_error() -> None:
    """If it breaks, an engine's error carries the text, or its failure is told apart from another text."""
    chain = paraphraser(WordScorer(poison=CANARY))
    assert isinstance(chain.invoke(f"late {CANARY}"), str)
    assert chain.certificate().releases == 1
