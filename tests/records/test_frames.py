"""What the frames of an error hold of records that were given as a plain list: nothing, in the package's own frames."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fakes.canary import CANARY, Reporting
from fakes.optimizers import optimizer
from fakes.rapt import sanitizer
from fakes.scorer import WordScorer
from fakes.synthesizers import generator, synthesizer
from fakes.voters import VotingChat, classifier

from langchain_dp import DPICLClassifier
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter, LangChainDPError, PrivateDataError
from langchain_dp.opt import DPPromptOptimizer
from langchain_dp.rapt import RAPTSanitizer, SanitizingRetriever
from langchain_dp.records import PrivateRecords

WRONG = [{"text": f"{CANARY} {number}", "label": "a label that nobody named"} for number in range(40)]


def _tuner_without_backbone() -> None:
    pytest.importorskip("torch", reason="needs the extra tuning")
    from langchain_dp.rapt.tuning import RAPTPromptTuner

    RAPTPromptTuner(None, labels=["a"])  # type: ignore[arg-type]


def stopping(_: object) -> None:
    raise KeyboardInterrupt(CANARY)


async def pieces(rows: list[Any]) -> AsyncIterator[list[Any]]:
    for row in rows:
        yield [row]


def written(call: Callable[[Any], Any]) -> Callable[[], Any]:
    """A run that stops in its middle."""
    return lambda: call([{"text": f"{CANARY} {number}", "label": "billing"} for number in range(120)])


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: PrivateRecords([{"text": CANARY}]), id="records"),
        pytest.param(lambda: classifier(VotingChat(), examples=list(WRONG)), id="votes"),
        pytest.param(lambda: optimizer().invoke(list(WRONG)), id="prompt"),
        pytest.param(lambda: optimizer().optimize(list(WRONG)), id="optimize"),
        pytest.param(lambda: asyncio.run(optimizer().ainvoke(list(WRONG))), id="aprompt"),
        pytest.param(lambda: asyncio.run(optimizer().aoptimize(list(WRONG))), id="aoptimize"),
        pytest.param(lambda: synthesizer().invoke(list(WRONG)), id="examples"),
        pytest.param(lambda: asyncio.run(synthesizer().ainvoke(list(WRONG))), id="aexamples"),
        pytest.param(written(synthesizer(progress=stopping).invoke), id="a run"),
        pytest.param(lambda: optimizer().plan(list(WRONG)), id="plan"),
        pytest.param(lambda: optimizer().check(list(WRONG)), id="check"),
        pytest.param(lambda: optimizer().invoke(list(WRONG), foo=1), id="further"),
        pytest.param(lambda: synthesizer().plan(list(WRONG)), id="plan of examples"),
        pytest.param(lambda: synthesizer().invoke(list(WRONG), foo=1), id="further for examples"),
        pytest.param(
            lambda: DPICLClassifier(model=VotingChat(), examples=list(WRONG), timeout=3), id="unknown argument"
        ),  # type: ignore[call-arg]
        pytest.param(lambda: PrivateRecords(list(WRONG), text_key="note"), id="another key"),
        pytest.param(lambda: PrivateRecords(list(WRONG), text_key=3), id="no key"),  # type: ignore[arg-type]
        pytest.param(lambda: DPPromptOptimizer.from_dataframe(list(WRONG), text_key="note"), id="of a DataFrame"),
        pytest.param(lambda: PrivateRecords().add({"text": CANARY}), id="add"),
        pytest.param(lambda: PrivateRecords().read({"text": CANARY}), id="read"),
        pytest.param(lambda: generator(WordScorer(), examples=[{"text": "", "said": CANARY}]), id="answers"),
    ],
)
def test_an_error_reporter_sees_no_record_of_a_list(call: Callable[[], Any]) -> None:
    """If it breaks, what reads the locals of each frame sends all the records that were given as a list."""
    reporter = Reporting()
    with pytest.raises((InvalidParameter, KeyboardInterrupt)) as caught:
        call()
    reporter.on_chain_error(caught.value, of="/langchain_dp/")
    assert len(reporter.kept) > 1
    assert not [kept for kept in reporter.kept if CANARY in kept]


NOBODY = {"configurable": {"user_id": 3}}


async def pulled(stream: AsyncIterator[Any]) -> list[Any]:
    return [part async for part in stream]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: sanitizer().invoke({"note": CANARY}), id="a kind"),
        pytest.param(lambda: sanitizer().invoke(CANARY, foo=1), id="further"),
        pytest.param(lambda: sanitizer().invoke(CANARY, NOBODY), id="nobody"),
        pytest.param(lambda: asyncio.run(sanitizer().ainvoke({"note": CANARY})), id="a kind, async"),
        pytest.param(lambda: asyncio.run(sanitizer().ainvoke(CANARY, NOBODY)), id="nobody, async"),
        pytest.param(lambda: sanitizer().batch([CANARY, {"note": CANARY}]), id="batch"),
        pytest.param(lambda: sanitizer().batch([CANARY], NOBODY), id="batch of nobody"),
        pytest.param(lambda: sanitizer().batch([CANARY], foo=1), id="batch with further"),
        pytest.param(lambda: asyncio.run(sanitizer().abatch([CANARY], NOBODY)), id="abatch"),
        pytest.param(lambda: list(sanitizer().stream({"note": CANARY})), id="stream"),
        pytest.param(lambda: list(sanitizer().stream(CANARY, NOBODY)), id="stream of nobody"),
        pytest.param(lambda: asyncio.run(pulled(sanitizer().astream({"note": CANARY}))), id="astream"),
        pytest.param(lambda: asyncio.run(pulled(sanitizer().astream(CANARY, NOBODY))), id="astream of nobody"),
    ],
)
def test_an_error_reporter_sees_no_text_that_was_to_be_sanitized(call: Callable[[], Any]) -> None:
    """If it breaks, what reads the locals of each frame sends the text that the sanitizer was to keep back."""
    reporter = Reporting()
    with pytest.raises(InvalidParameter) as caught:
        call()
    reporter.on_chain_error(caught.value, of="/langchain_dp/")
    assert len(reporter.kept) > 1
    assert not [kept for kept in reporter.kept if CANARY in kept]


RUNS = [
    pytest.param(lambda chain, rows: chain.batch([rows]), id="batch"),
    pytest.param(lambda chain, rows: asyncio.run(chain.abatch([rows])), id="abatch"),
    pytest.param(lambda chain, rows: list(chain.stream(rows)), id="stream"),
    pytest.param(lambda chain, rows: asyncio.run(pulled(chain.astream(rows))), id="astream"),
    pytest.param(lambda chain, rows: asyncio.run(pulled(chain.astream_events(rows, version="v2"))), id="events"),
    pytest.param(lambda chain, rows: list(chain.batch_as_completed([rows])), id="as completed"),
    pytest.param(lambda chain, rows: asyncio.run(pulled(chain.abatch_as_completed([rows]))), id="async as completed"),
    pytest.param(lambda chain, rows: list(chain.transform([row] for row in rows)), id="transform"),
    pytest.param(lambda chain, rows: asyncio.run(pulled(chain.atransform(pieces(rows)))), id="atransform"),
    pytest.param(lambda chain, rows: asyncio.run(pulled(chain.astream_log(rows))), id="log"),
]


def test_examples_that_come_in_pieces_are_taken_together() -> None:
    """If it breaks, a chain that streams its rows in writes from the last of them alone."""
    rows = [{"text": f"my parcel is late {n}", "label": ("delivery", "billing")[n % 2]} for n in range(120)]
    [made] = synthesizer().transform([row] for row in rows)
    assert len([*made, *made.dropped]) == 6


@pytest.mark.parametrize("make", [synthesizer, optimizer])
@pytest.mark.parametrize("call", RUNS)
def test_frames_of_langchain_hold_no_record_either(make: Callable[[], Any], call: Callable[[Any, Any], Any]) -> None:
    """If it breaks, what reads the locals of each frame sends the records that LangChain handed on."""
    reporter = Reporting()
    with pytest.raises(InvalidParameter) as caught:
        call(make(), list(WRONG))
    for of in ("/langchain_dp/", "/langchain_core/"):
        reporter.on_chain_error(caught.value, of=of)
    assert len(reporter.kept) > 1
    assert not [kept for kept in reporter.kept if CANARY in kept]


@pytest.mark.filterwarnings("ignore:astream_events version='v1'")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("make", [synthesizer, optimizer])
def test_an_event_tells_nothing_of_the_records(make: Callable[[], Any], version: str) -> None:
    """If it breaks, who passes a chain's events on to a page hands out the records with the first one."""
    label = next(iter(make().settings.labels))
    rows = [{"text": f"{CANARY} {number}", "label": label} for number in range(120)]
    events = asyncio.run(pulled(make().astream_events(rows, version=version)))
    assert events
    assert CANARY not in repr(events)
    with pytest.raises(PrivateDataError):
        pickle.dumps(events)


@pytest.mark.parametrize(
    "call",
    [
        lambda: DPICLClassifier(model=VotingChat(), examples=list(WRONG), labels=["a", "b"]),
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
