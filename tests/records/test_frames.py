"""What the frames of an error hold of records that were given as a plain list: nothing, in the package's own frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.synthesizers import generator, synthesizer
from fakes.voters import VotingChat

from langchain_dp import DPICLClassifier
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import LangChainDPError
from langchain_dp.opt import DPPromptOptimizer
from langchain_dp.rapt import RAPTSanitizer, SanitizingRetriever

WRONG = [{"text": f"{CANARY} {number}", "label": "a label that nobody named"} for number in range(40)]


def _tuner_without_backbone() -> None:
    pytest.importorskip("torch", reason="needs the extra tuning")
    from langchain_dp.rapt.tuning import RAPTPromptTuner

    RAPTPromptTuner(None, labels=["a"])  # type: ignore[arg-type]


def test_examples_that_come_in_pieces_are_taken_together() -> None:
    """If it breaks, a chain that streams its rows in writes from the last of them alone."""
    rows = [{"text": f"my parcel is late {n}", "label": ("delivery", "billing")[n % 2]} for n in range(120)]
    [made] = synthesizer().transform([row] for row in rows)
    assert len([*made, *made.dropped]) == 6


@pytest.mark.parametrize(
    "call",
    [
        lambda: DPICLClassifier(model=VotingChat(), examples=list(WRONG), labels=["a", "b"], max_queries=1),
        lambda: DPPromptOptimizer(model=None, labels=["a", "b"]),  # type: ignore[arg-type]
        lambda: synthesizer(members=0),
        lambda: generator(max_queries=0),
        lambda: RAPTSanitizer(eta=-1.0),
        lambda: PrivacyLedger(PrivacyBudget(1.0), "no such folder/ledger.db"),
        lambda: MetricLedger(-1.0),
        lambda: _tuner_without_backbone(),
        lambda: SanitizingRetriever(retriever=None, sanitizer=None),  # type: ignore[arg-type]
    ],
)
def test_an_object_that_was_refused_prints(call: Callable[[], Any]) -> None:
    """If it breaks, a log that shows the locals of each frame loses the error in another one, or ends the program."""
    with pytest.raises((LangChainDPError, TypeError, ValueError)) as caught:
        call()
    at, frames = caught.tb, 0
    while at is not None:
        me = at.tb_frame.f_locals.get("self")
        if type(me).__module__.startswith("langchain_dp"):
            assert CANARY not in repr(me)
            frames += 1
        at = at.tb_next  # type: ignore[assignment]
    assert frames or isinstance(caught.value, TypeError)
