"""An engine that fails on one record: its member abstains, whatever was raised, and the release ends as it always does.

A ``CancelledError`` or ``SystemExit`` of an engine looks like one of the caller's. If it passed, a release would end
after its charge where a record makes its engine fail, and go on where it does not: two neighboring data sets would be
told apart. The caller's own Ctrl-C and cancellation must pass all the same.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.optimizers import Looking, examples, optimizer
from fakes.scorer import Panic, WordScorer
from fakes.stops import press_ctrl_c
from fakes.synthesizers import generator, replies, rows, synthesizer
from fakes.voters import VotingEngine, classifier, left, private_examples

from langchain_dp.ensemble.engine_calls import ask_together
from langchain_dp.errors import ModelUnavailable
from langchain_dp.isolation.filters import Level, level
from langchain_dp.isolation.worker import call_engine
from langchain_dp.mechanisms import ClippedSum, LimitedDomain, ReportNoisyMax
from langchain_dp.ports import call_abandoned
from langchain_dp.rapt import ParaphraseOptions, RAPTParaphraser

KINDS = [ValueError, asyncio.CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt, Panic]
POISON = "the record that no engine reads"


def raising(kind: type[BaseException]) -> Callable[[Sequence[str]], None]:
    """Fail, in the given way, on any call that shows one record."""

    def look(bodies: Sequence[str]) -> None:
        if any(POISON in body for body in bodies):
            raise kind(CANARY)

    return look


def poisoned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fifth of the records cannot be read."""
    return [{**one, "text": POISON} if place == 4 else one for place, one in enumerate(rows)]


def seen(monkeypatch: pytest.MonkeyPatch, mechanism: type, note: Callable[..., Any]) -> list[Any]:
    """What ``note`` makes of the private arguments of each release."""
    found: list[Any] = []
    release = mechanism.release  # type: ignore[attr-defined]

    def spied(self: Any, *args: Any, **named: Any) -> Any:
        found.append(note(*args))
        return release(self, *args, **named)

    monkeypatch.setattr(mechanism, "release", spied)
    return found


@pytest.mark.parametrize("call", ["invoke", "ainvoke", "batch", "warm"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vote_of_a_member_that_breaks_its_engine_is_an_abstention(
    kind: type[BaseException], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one record ends the release after its charge, or silences the votes of all others."""
    look, counts = raising(kind), seen(monkeypatch, ReportNoisyMax, lambda histogram: sum(histogram))
    engine = VotingEngine(spoil=lambda prompt: look([prompt.body]))
    engine.warm = lambda prompts: look([prompt.body for prompt in prompts])  # type: ignore[method-assign]
    chain = classifier(engine, examples=poisoned(private_examples(24)))
    if call == "warm":
        chain.warm()
    answer = {
        "invoke": lambda: chain.invoke("a question"),
        "ainvoke": lambda: asyncio.run(chain.ainvoke("a question")),
        "batch": lambda: chain.batch(["a question"])[0],
        "warm": lambda: chain.invoke("a question"),
    }[call]()
    assert (answer, counts, left(chain)) == ("positive", [7], 4)


@pytest.mark.parametrize("call", ["optimize", "aoptimize"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_written_without_the_member_that_breaks_its_engine(
    kind: type[BaseException], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one record ends the run after its charge, or silences all others."""
    voted = seen(monkeypatch, LimitedDomain, lambda histogram: sum(histogram.values()))
    given, chain = poisoned(examples()), optimizer(Spoilt(raising(kind)))
    prompt = chain.optimize(given) if call == "optimize" else asyncio.run(chain.aoptimize(given))
    assert prompt.instruction
    assert min(voted) >= 10


class Spoilt(Looking):
    """Calls ``look`` with all bodies, whatever they hold."""

    def _seen(self, bodies: list[str]) -> None:
        self.look(bodies)


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_written_without_the_member_that_breaks_its_engine(
    kind: type[BaseException], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one record ends the run after its charge, or silences all others."""
    added = seen(monkeypatch, ClippedSum, lambda public, members: [row is not None for row in members])
    given, chain = poisoned(rows()), synthesizer(WordScorer(raising(kind)))
    made = chain.invoke(given) if call == "invoke" else asyncio.run(chain.ainvoke(given))
    assert len([*made, *made.dropped]) == 6
    assert all(sum(row) >= len(row) - 1 for row in added)
    assert any(len(row) > 1 for row in added)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_breaks_its_engine_is_paraphrased_as_by_the_public_model(kind: type[BaseException]) -> None:
    """If it breaks, whether a text breaks the engine is told after it was charged."""
    chain = RAPTParaphraser(WordScorer(raising(kind)), paraphrasing=ParaphraseOptions(clip=1.0, max_new_tokens=6))
    assert isinstance(chain.invoke(POISON), str)
    assert chain.certificate().releases == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_engine_raises_when_it_counts_or_forgets_ends_no_release(kind: type[BaseException]) -> None:
    """If it breaks, a record whose tokens cannot be counted, or that cannot be dropped, ends the release."""
    look = raising(kind)
    engine = VotingEngine()
    engine.count_tokens = lambda text: (look([text]), 10**6)[1]  # type: ignore[method-assign, func-returns-value]
    engine.forget = lambda *members: look([POISON])  # type: ignore[method-assign]
    records = [{**one, "text": POISON * 9} if place == 5 else one for place, one in enumerate(private_examples(24))]
    engine.max_tail_tokens = 10**7
    chain = classifier(engine, examples=records, sampling="resample", partitions=None, subsets=8)
    assert chain.invoke("a question") in chain.labels


def test_ctrl_c_of_the_caller_passes_while_an_engine_works() -> None:
    """If it breaks, a run cannot be stopped: what the caller caused is taken for a failure of the engine."""
    chain = classifier(VotingEngine(during=press_ctrl_c))
    with pytest.raises(KeyboardInterrupt):
        chain.invoke("a question")
    assert left(chain) == 4
    with pytest.raises(KeyboardInterrupt):
        synthesizer(WordScorer(lambda bodies: press_ctrl_c() if bodies else None)).invoke(rows())


def test_a_cancelled_caller_is_cancelled_while_an_engine_works() -> None:
    """If it breaks, a cancelled request waits for the engine, or its cancellation is an abstention."""
    go_on = threading.Event()

    async def cancelled() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def during() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(60)

        task = asyncio.ensure_future(classifier(VotingEngine(during=during)).ainvoke("a question"))
        await begun.wait()
        task.cancel()
        try:
            await task
        finally:
            go_on.set()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_member_that_breaks_a_joint_call_silences_nobody_else() -> None:
    """If it breaks, all that are asked beside a record which breaks its engine abstain with it: many votes move."""

    def ask(some: Sequence[str]) -> list[int | None]:
        raising(SystemExit)(some)
        return [len(one) for one in some]

    assert ask_together(ask, ["a", POISON, "ccc"]) == [1, None, 3]
    assert ask_together(ask, [POISON]) == [None]


def test_one_thread_of_a_caller_asks_in_one_worker() -> None:
    """If it breaks, each call starts a thread, and an engine's library builds a team of threads for each of them."""
    first, second = (call_engine(threading.get_ident).answer for _ in range(2))
    assert first == second != threading.get_ident()
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(call_engine(threading.get_ident).answer))
    thread.start()
    thread.join()
    assert other[0] not in (first, threading.get_ident())
    inner = call_engine(lambda: call_engine(threading.get_ident).answer).answer
    assert inner not in (first, threading.get_ident())  # or it would wait for itself


def test_a_call_that_nobody_waits_for_knows_it() -> None:
    """If it breaks, an engine computes on after Ctrl-C, and whoever asks next waits for it."""
    marks: list[Any] = []

    def work() -> None:
        marks.append(call_abandoned.get())
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        call_engine(work)
    assert marks[0].is_set()
    assert call_engine(lambda: 3).answer == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_asks_in_a_worker_of_its_own() -> None:
    """If it breaks, a child waits for ever for a thread that its parent has."""
    assert call_engine(lambda: 3).answer == 3
    if (child := os.fork()) == 0:
        os._exit(call_engine(lambda: 7).answer or 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("chain", ["examples", "answers"])
def test_what_an_engine_keeps_members_under_tells_nothing_of_them(chain: str) -> None:
    """If it breaks, the keys that an engine logs hold the ids of those who were drawn, or the key of their coins."""
    sealed: list[Any] = []
    engine = Forgetting(sealed)
    if chain == "examples":
        given = [{**one, "id": f"{CANARY} {place}"} for place, one in enumerate(rows())]
        synthesizer(engine).invoke(given)
    else:
        given = [{**one, "id": f"{CANARY} {place}"} for place, one in enumerate(replies())]
        made = generator(engine, examples=given, sampling_probability=1.0)
        assert made.invoke("where is it?")
        made.forget(f"{CANARY} 3")
    keys = {one.prompt.member for asked in engine.asked for one in asked} | engine.forgotten
    private = {key for key in keys if not isinstance(key, tuple)}  # the others are of public and invented prompts
    assert len(private) > 10
    assert all(isinstance(key, str) and len(key) == 32 for key in private)
    assert CANARY not in repr(keys)
    assert sealed
    assert all(sealed)


class Forgetting(WordScorer):
    """Notes whether it is asked to forget where nothing is logged."""

    def __init__(self, sealed: list[bool]) -> None:
        super().__init__()
        self._sealed = sealed

    def forget(self, *members: Any) -> None:
        self._sealed.append(level.get() is not Level.OPEN)
        super().forget(*members)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_cannot_forget_a_record_says_so(kind: type[BaseException]) -> None:
    """If it breaks, a record that was taken out stays in an engine, and nobody knows."""
    engine = VotingEngine()
    chain = classifier(engine)
    assert chain.invoke("a question")
    engine.forget = lambda *members: raising(kind)([POISON])  # type: ignore[method-assign]
    with pytest.raises(ModelUnavailable, match="failed to forget") as caught:
        chain.forget("#3")
    assert CANARY not in str(caught.value)
