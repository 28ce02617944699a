"""Public candidates chosen by private votes: what a record adds, which ones win, and what a caller may get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.encoders import TogetherEncoder, WordEncoder, failing_after
from langchain_core.language_models import FakeListChatModel

from langchain_dp import DPExampleSelector, PrivacyBudget, PrivacyLedger, SyntheticExamples
from langchain_dp.aggregate.counts import VoteCounts
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError
from langchain_dp.synth import write_candidates
from langchain_dp.synth.candidates import _leading

CANDIDATES = [f"{word} {number}" for word in ("parcel", "invoice", "nurse") for number in range(4)]
ROWS = [
    {"text": f"my {('parcel', 'invoice')[i % 2]} {i}", "label": "AB"[i % 2], "who": f"u{i // 8}"} for i in range(80)
]


def selected(
    rows: Any = ROWS, candidates: Any = CANDIDATES, *, labels: Any = "AB", **options: Any
) -> SyntheticExamples:
    own = {name: options.pop(name) for name in ("encoder", "per_label", "nearest") if name in options}
    selector = DPExampleSelector(candidates, **{"encoder": WordEncoder(), "per_label": 2, "nearest": 2} | own)
    return selector.select(rows, labels=[*labels], **{"budget": PrivacyBudget(60.0)} | options)


def test_each_label_gets_the_candidates_that_its_records_are_nearest_to() -> None:
    """If it breaks, examples are of another label, or of none."""
    found = selected()
    assert [(one.label, one.text.split()[0]) for one in found] == [("A", "parcel")] * 2 + [("B", "invoice")] * 2
    assert len({one.text for one in found}) == 4


def totals_of(monkeypatch: pytest.MonkeyPatch, *sides: Any, **options: Any) -> list[Any]:
    totals: list[Any] = []
    real = VoteCounts.release
    monkeypatch.setattr(VoteCounts, "release", lambda self, total, rng: totals.append(total) or real(self, total, rng))
    for rows in sides:
        selected(rows, **options)
    return totals


def test_a_text_that_breaks_the_encoder_does_not_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, one record silences others, or its failure shows."""

    def before(text: str) -> None:
        if "unreadable" in text:
            raise ValueError(text)

    broken = [*ROWS, {"text": "unreadable parcel", "label": "A"}]
    totals = totals_of(monkeypatch, ROWS, broken, encoder=WordEncoder(before=before))
    assert (totals[0] == totals[1]).all()


def test_a_candidate_stands_for_the_label_where_it_leads() -> None:
    """If it breaks, one text is an example of two labels."""
    assert _leading(np.array([[9.0, 5.0, 1.0], [8.0, 6.0, 2.0]]), 2) == [[0], [1, 2]]
    assert _leading(np.array([[9.0, 9.0], [1.0, 2.0]]), 3) == [[0, 1], [1]]  # every label gets one


def test_the_model_writes_topics_and_then_texts() -> None:
    """If it breaks, candidates are list markers, headings, or the same text many times."""
    answers = ["1. delivery\n2. billing\n", "- My parcel is late.\n- My parcel is late.\n* Where is it now?\nOK\n"]
    model = FakeListChatModel(responses=[*answers, '"I want my money back."'])
    found = write_candidates(model, "support tickets")
    assert found == ["My parcel is late.", "Where is it now?", "I want my money back."]
    with pytest.raises(ModelUnavailable, match="one per line"):
        write_candidates(FakeListChatModel(responses=["no"]), "support tickets")


WRONG: dict[str, tuple[Any, str]] = {
    "no task": (lambda: write_candidates(FakeListChatModel(responses=["x"]), " "), "task"),
    "no model": (lambda: write_candidates("gpt", "tickets"), "chat model"),  # type: ignore[arg-type]
    "one candidate": (lambda: selected(candidates=["parcel"]), "different candidates"),
    "the same candidate": (lambda: selected(candidates=["parcel", "parcel"]), "different candidates"),
    "a string": (lambda: selected(candidates="parcel"), "different candidates"),
    "an empty candidate": (lambda: selected(candidates=["parcel", " "]), "non-empty texts"),
    "none per label": (lambda: selected(per_label=0), "per_label"),
    "none nearest": (lambda: selected(nearest=0), "nearest"),
    "no records": (lambda: selected([]), "at least one example"),
    "an unknown label": (lambda: selected(labels="AC"), "labels"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_refused_by_name(case: str) -> None:
    """If it breaks, a mistake costs budget, or its message helps nobody."""
    make, match = WRONG[case]
    with pytest.raises(InvalidParameter, match=match):
        make()


def test_a_ledger_keeps_the_examples(tmp_path: Path) -> None:
    """If it breaks, running a script twice costs twice, or counts of other votes are shown as these."""
    ledger = {"budget": PrivacyBudget(1.0), "ledger": tmp_path / "ledger"}
    assert selected(**ledger) == selected(**ledger)
    others: list[dict[str, Any]] = [{"candidates": CANDIDATES[1:]}, {"encoder": TogetherEncoder()}, {"nearest": 1}]
    for changed in others:
        with pytest.raises(PlanError, match=next(iter(changed))):
            selected(**changed, **ledger)


def test_an_outage_is_no_choice(tmp_path: Path) -> None:
    """If it breaks, examples after an outage are noise."""
    rows = [{**row, "text": f"seen {row['text']}"} for row in ROWS]
    ledger = tmp_path / "ledger"
    with pytest.raises(ModelUnavailable):
        selected(rows, encoder=failing_after("seen"), budget=PrivacyBudget(1.0), ledger=ledger)
    spent = PrivacyLedger(PrivacyBudget(1.0), ledger).spent()
    selected(rows, budget=PrivacyBudget(1.0), ledger=ledger)
    assert PrivacyLedger(PrivacyBudget(1.0), ledger).spent() == spent


def test_the_examples_carry_their_cost_into_a_chain(tmp_path: Path) -> None:
    """If it breaks, a chain made of them claims to cost nothing."""
    found = selected()
    assert found.certificate.mechanism == "noisy votes for public candidates"
    assert found.certificate.epsilon == pytest.approx(60.0, rel=1e-3)
    found.save(tmp_path / "examples.jsonl")
    assert SyntheticExamples.load(tmp_path / "examples.jsonl") == found
    assert found.chain(FakeListChatModel(responses=["A"])).invoke({"text": "my parcel"}) == "A"
