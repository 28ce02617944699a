"""Synthesizers and generators on an engine of a dozen words, with records for them."""

from __future__ import annotations

from typing import Any

from fakes.scorer import WordScorer
from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.synth import DPAnswerGenerator, DPExampleSynthesizer

LABELS = {"delivery": "complaints about late parcels", "billing": "questions about invoices"}
BUDGET = PrivacyBudget(3.0, 1e-5)
ANSWERS = PrivacyBudget(8.0, 1e-5)


def rows(count: int = 120) -> list[dict[str, str]]:
    """Records, the labels in turn."""
    texts = ("my parcel is late today", "please send the invoice paid")
    return [{"text": f"{texts[i % 2]} {i}", "label": list(LABELS)[i % 2]} for i in range(count)]


def synthesizer(engine: WordScorer | None = None, **changed: Any) -> DPExampleSynthesizer:
    settings: dict[str, Any] = {
        "model": engine or WordScorer(), "labels": LABELS, "count": 6, "max_new_tokens": 8, "members": 10,
        "candidates": 20, "allow_small_model": True,
    }  # fmt: skip
    if "ledger" not in changed:
        settings["budget"] = BUDGET
    return DPExampleSynthesizer(**{**settings, **changed})


def replies(count: int = 100) -> list[dict[str, str]]:
    """Messages with replies that always hold the same words."""
    return [{"text": f"where is it {i}", "label": "your refund was paid today"} for i in range(count)]


def generator(engine: WordScorer | None = None, **changed: Any) -> DPAnswerGenerator:
    settings: dict[str, Any] = {
        "model": engine or WordScorer(), "examples": replies(), "max_queries": 5, "max_new_tokens": 8, "members": 40,
        "candidates": 20, "allow_small_model": True,
    }  # fmt: skip
    if "ledger" not in changed:
        settings["budget"] = ANSWERS
    return DPAnswerGenerator(**{**settings, **changed})


def entries(ledger: PrivacyLedger) -> int:
    """Charges so far."""
    return sum(entry.count for entry in ledger.entries())
