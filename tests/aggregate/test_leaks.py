"""Records of a release against every surface: nobody but the encoder or the model sees one, nor what it voted for."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY, LeakSurfaces, leak_surfaces, reported
from fakes.encoders import PUBLIC, WordEncoder, fitted, named, rows
from fakes.readers import CHOICES, ReadingChat, colors
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langsmith import traceable

from langchain_dp import (
    DPExampleSelector,
    DPLabelNamer,
    DPPrototypeClassifier,
    DPSurvey,
    PrivacyBudget,
    private_accuracy,
)
from langchain_dp.mechanisms import Exponential, VectorSum

ROWS = rows(40, note=CANARY)
SAYS = [{"text": f"{CANARY} says {'rgx'[place % 3]}", "label": "red"} for place in range(9)]


class LoudEncoder(WordEncoder):
    """Traces, logs, warns of and prints what it is given, and fails on some texts with the text in its error."""

    keeps_no_prompts: ClassVar[bool] = True

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        logging.getLogger("encoder").warning("encoding %s", texts)
        warnings.warn(f"encoding {texts}", stacklevel=2)
        traceable(lambda text: text, name="encoder")(texts[0])
        RunnableLambda(lambda text: text).invoke(texts[0])
        if texts[0].endswith(" 7"):
            raise ValueError(f"cannot read {texts}")
        return super().embed_documents(texts)


class Chat(FakeListChatModel):
    """Names one topic for every text."""

    keeps_no_prompts: ClassVar[bool] = True
    responses: list[str] = ["delivery"]


LOUD: dict[str, Callable[[], Any]] = {
    "fit": lambda: fitted(list(ROWS), encoder=LoudEncoder()),
    "afit": lambda: asyncio.run(
        DPPrototypeClassifier.afit(
            list(ROWS), labels=["A", "B"], encoder=LoudEncoder(), texts=PUBLIC, budget=PrivacyBudget(1.0)
        )
    ),
    "update": lambda: fitted(rows(40), encoder=LoudEncoder()).update(list(ROWS), budget=PrivacyBudget(1.0)),
    "names": lambda: named(list(ROWS), encoder=LoudEncoder()),
    "survey": lambda: DPSurvey(colors(), model=ReadingChat()).run(list(SAYS), budget=PrivacyBudget(1.0)),
    "accuracy": lambda: private_accuracy(ReadingChat(), list(SAYS), labels=CHOICES, budget=PrivacyBudget(1.0)),
    "examples": lambda: DPExampleSelector(["a parcel", "an invoice"], encoder=LoudEncoder()).select(
        list(ROWS), labels=["A", "B"], budget=PrivacyBudget(1.0)
    ),
    "names by a model": lambda: DPLabelNamer(["delivery", "billing"], model=Chat()).fit(
        list(ROWS), labels=["A", "B"], budget=PrivacyBudget(1.0)
    ),
}


@pytest.mark.parametrize("way", LOUD)
def test_no_record_is_seen_by_anybody_else(way: str, tmp_path: Path) -> None:
    """If it breaks, private texts reach a tracer, a handler, a cache, a log, a warning or a terminal."""
    with leak_surfaces(tmp_path) as surfaces:
        seen = run_inside(LOUD[way], surfaces)
        assert surfaces.where(CANARY) == set()
        assert CANARY not in repr(seen)


def run_inside(work: Callable[[], Any], surfaces: LeakSurfaces) -> Any:
    """Work done within a run of the caller's, which callbacks see."""
    return RunnableLambda(lambda _: work() and "done").invoke("start", {"callbacks": surfaces.handlers})


def test_the_loud_encoder_can_be_heard(tmp_path: Path) -> None:
    """If it breaks, the test above could not fail."""
    with leak_surfaces(tmp_path) as surfaces:
        run_inside(lambda: LoudEncoder().embed_documents([CANARY]), surfaces)
        assert {"tracer", "handler", "log", "warnings"} <= surfaces.where(CANARY)


@pytest.mark.parametrize(("owner", "fit"), [(VectorSum, fitted), (Exponential, named)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(CANARY), RuntimeError(CANARY)])
def test_an_error_in_the_draw_shows_no_sum_and_no_vote(
    owner: Any, fit: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, Ctrl-C while noise is drawn sends the exact sums or counts to an error reporter."""
    private: list[str] = []

    def release(self: Any, total: Any, *, rng: Any = None) -> Any:
        private.append(repr(total))
        raise error

    monkeypatch.setattr(owner, "release", release)
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # whatever it is
        fit(list(ROWS))
    assert isinstance(caught.value, KeyboardInterrupt) is isinstance(error, KeyboardInterrupt)
    assert len(private) == 1
    kept = reported(caught.value)
    assert not [text for text in kept if private[0] in text or CANARY in text]
    assert not [text for text in kept if text.startswith(("votes =", "total =", "counts =", "rows ="))]


def test_no_thread_holds_a_record_afterwards() -> None:
    """If it breaks, a dump of all threads, as profilers and reporters take it, shows records that were read before."""
    fitted(list(ROWS))
    named(list(ROWS))
    for ident, frame in sys._current_frames().items():
        while frame is not None and ident != threading.get_ident():
            assert CANARY not in repr(frame.f_locals)
            frame = frame.f_back  # type: ignore[assignment]


def test_ctrl_c_passes_and_shows_no_record() -> None:
    """If it breaks, a fit waits for a server that hangs, or ending it sends records to an error reporter."""
    free, main = threading.Event(), threading.main_thread().ident

    def hang(text: str) -> None:
        if text.endswith(f"{CANARY} 5"):
            signal.pthread_kill(main or 0, signal.SIGINT)
            free.wait(60)

    with pytest.raises(KeyboardInterrupt) as caught:
        fitted(list(ROWS), encoder=WordEncoder(before=hang))
    assert not free.is_set()
    free.set()
    assert not [text for text in reported(caught.value) if CANARY in text]
