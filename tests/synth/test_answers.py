"""Private answers in free text: each is charged once, leaves piece by piece, and is given again for nothing."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.scorer import WORDS, WordScorer
from fakes.stops import press_ctrl_c
from fakes.synthesizers import ANSWERS as BUDGET
from fakes.synthesizers import entries, generator
from fakes.synthesizers import replies as rows
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger, Quotas
from langchain_dp.errors import (
    BudgetExceeded,
    InvalidParameter,
    ModelUnavailable,
    MostlyNoiseWarning,
    PlanError,
    PrivateDataError,
    QuotaExceeded,
)
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.synth import AnswerPrompts, DPAnswerGenerator

ADD_OR_REMOVE = PrivacyBudget(8.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)


async def asked(chain: DPAnswerGenerator, face: str, questions: list[str], user_id: str | None = None) -> list[str]:
    config: RunnableConfig = {"configurable": {"user_id": user_id}} if user_id else {}
    if face == "batch":
        return chain.batch(questions, config)
    if face == "abatch":
        return await chain.abatch(questions, config)
    if face == "invoke":
        return [chain.invoke(question, config) for question in questions]
    if face == "ainvoke":
        return [await chain.ainvoke(question, config) for question in questions]
    if face == "stream":
        return ["".join(chain.stream(question, config)) for question in questions]
    if face == "tool":
        tool = chain.as_tool(exit_behavior="error")
        return [str(tool.invoke({"text": question}, config)) for question in questions]
    return ["".join([piece async for piece in chain.astream(question, config)]) for question in questions]


@pytest.mark.asyncio
@pytest.mark.parametrize("face", ["invoke", "batch", "stream", "ainvoke", "abatch", "astream"])
async def test_every_answer_is_charged_once_on_every_face(face: str) -> None:
    """If it breaks, one face answers for nothing, or the same question is paid for twice."""
    ledger = PrivacyLedger(BUDGET)
    engine = WordScorer()
    chain = generator(engine, ledger=ledger)
    first = await asked(chain, face, ["one?", "two?", "three?"])
    assert entries(ledger) == 3
    calls = len(engine.asked)
    assert await asked(chain, face, ["three?", "one?", "two?"]) == [first[2], first[0], first[1]]
    assert (entries(ledger), len(engine.asked)) == (3, calls)
    assert chain.answers_left() == 2


def test_the_charge_comes_before_any_record_is_shown() -> None:
    """If it breaks, a crash has leaked what nobody paid for, or streaming waits for the end, or loses a piece."""
    ledger = PrivacyLedger(BUDGET)
    seen: list[int] = []
    chain = generator(WordScorer(lambda bodies: seen.extend([entries(ledger)] * len(bodies[:1]))), ledger=ledger)
    stream = chain.stream("one?")
    pieces = [next(stream)]
    assert seen == [1]
    pieces += stream
    assert len(pieces) >= 3
    assert "".join(pieces) == chain.invoke("one?")


def test_the_manner_of_the_records_comes_through() -> None:
    """If it breaks, the answer is the public model's."""
    words = " ".join(generator(max_queries=3, examples=rows(2000)).batch(["one?", "two?", "three?"])).split()
    assert sum(word in {"refund", "paid", "today"} for word in words) > len(words) / 2


def test_who_takes_part_is_drawn_anew_for_each_answer() -> None:
    """If it breaks, two answers share their coins: the composition is not that of fresh draws."""
    engine = WordScorer()
    generator(engine).batch(["one?", "two?", "three?"])
    drawn = [frozenset(one.prompt.member for one in members) for members in engine.asked if members]
    assert len(set(drawn)) == 3
    assert all(drawn)


def test_the_budget_ends() -> None:
    """If it breaks, answers go on without budget."""
    engine = WordScorer()
    chain = generator(engine, max_queries=1)
    chain.invoke("one?")
    calls = len(engine.asked)
    with pytest.raises(BudgetExceeded):
        chain.invoke("two?")
    assert len(engine.asked) == calls


def test_a_restart_shares_the_plan_and_refuses_another_one(tmp_path: Path) -> None:
    """If it breaks, a restart gets a fresh budget."""
    path = tmp_path / "ledger.db"
    generator(ledger=PrivacyLedger(BUDGET, path)).invoke("one?")
    again = generator(ledger=PrivacyLedger(BUDGET, path))
    assert again.answers_left() == 4
    with pytest.raises(PlanError, match="max_new_tokens was 8, now 9"):
        generator(ledger=PrivacyLedger(BUDGET, path), max_new_tokens=9)
    with pytest.raises(PlanError, match="members was 40, now 30"):
        generator(ledger=PrivacyLedger(BUDGET, path), members=30)
    with pytest.raises(PlanError, match="candidates was 20, now 30"):
        generator(ledger=PrivacyLedger(BUDGET, path), candidates=30)
    rate = 40 / len(rows())
    with pytest.raises(PlanError, match=f"sampling_probability was {rate}, now 0.05"):
        generator(ledger=PrivacyLedger(BUDGET, path), sampling_probability=0.05)
    assert generator(ledger=PrivacyLedger(BUDGET, path), sampling_probability=rate).answers_left() == 4
    assert generator(ledger=PrivacyLedger(BUDGET, path), examples=rows(450)).answers_left() == 4, "the plan's own rate"


def test_a_model_that_scores_no_member_answers_nothing() -> None:
    """If it breaks, an engine without memory for its members answers from the public model alone, for the budget."""

    class Full(WordScorer):
        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            if members and full:
                raise RuntimeError("out of memory")
            return super().score_next_token(public, members, **settings)

    full = True
    chain = generator(Full())
    with pytest.raises(ModelUnavailable, match="that show an invented record"):
        chain.invoke("one?")
    assert chain.answers_left() == 5
    full = False
    assert chain.invoke("one?")
    assert chain.answers_left() == 4


def test_an_answer_forgets_nobody() -> None:
    """If it breaks, a local model moves everybody out of its memory after each answer, also those of other answers."""
    engine, calls = WordScorer(), []
    engine.forget = lambda *members: calls.append(members)  # type: ignore[method-assign]
    generator(engine).batch(["one?", "two?"])
    assert not [member for members in calls for member in members if member[0] != "invented"]


def test_a_forgotten_record_is_gone() -> None:
    """If it breaks, a forgotten record speaks on, or moves another one's slot."""
    engine = WordScorer()
    chain = generator(engine, examples=[*rows(40), {"text": "SECRET", "label": "SECRET", "id": "x"}], members=41)
    chain.invoke("one?")
    [key] = {one.prompt.member for one in engine.asked[-1] if "SECRET" in one.prompt.body}
    slots = dict(chain._slots)
    chain.forget("x")
    chain.invoke("one?")
    assert not any("SECRET" in one.prompt.body for one in engine.asked[-1])
    assert key in engine.forgotten
    assert chain._slots.items() <= slots.items()
    assert chain.answers_left() == 3


@pytest.mark.parametrize("kind", [ModelUnavailable, ConnectionError])
def test_a_model_that_is_gone_raises_and_costs_nothing(kind: type[Exception]) -> None:
    """If it breaks, an outage is an answer, or uses all of them up."""

    def gone(bodies: list[str]) -> None:
        raise kind("The server does not answer.")

    chain = generator(WordScorer(gone))
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            chain.invoke("one?")
    assert chain.answers_left() == 5


@pytest.mark.asyncio
async def test_the_same_question_at_the_same_time_is_one_answer() -> None:
    """If it breaks, a batch with a question twice pays twice, for two different answers."""
    chain = generator()
    together = [*chain.batch(["one?"] * 4), *await chain.abatch(["one?"] * 4)]
    assert len(set(together)) == 1
    assert chain.answers_left() == 4
    first, other = chain.stream("two?"), chain.stream("two?")
    begun = next(first)
    assert chain.invoke("two?"), "who reads slowly keeps nobody waiting"
    assert next(other)
    first.close()
    assert begun
    assert chain.answers_left() == 2


def test_who_waits_for_an_answer_that_fails_asks_for_one() -> None:
    """If it breaks, one failure is everybody's, or all of them hang."""
    ready, calls = threading.Barrier(2), []

    def once(bodies: list[str]) -> None:
        calls.append(bodies)
        if bodies and len(calls) == 2:
            ready.wait(30)
        if len(calls) in (2, 3):  # also without a record: the model is gone
            raise RuntimeError

    chain = generator(WordScorer(once))
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(chain.invoke, "one?")
        waiting = pool.submit(lambda: (ready.wait(30), chain.invoke("one?"))[1])
        assert isinstance(failing.exception(60), ModelUnavailable)
        assert waiting.result(60)
    assert chain.answers_left() == 4, "who waited goes on with what was paid for"


def down(kind: type[BaseException]) -> None:
    """A server that is gone."""
    raise kind


@pytest.mark.parametrize("broken", [GeneratorExit, ConnectionError, KeyboardInterrupt])
def test_what_broke_off_goes_on_for_nothing(broken: type[BaseException]) -> None:
    """If it breaks, a closed connection or a model that stumbles loses a paid answer, or a token is drawn twice."""
    whole = list(generator(not_private_seed=7).stream("one?"))
    assert len(whole) > 3
    for read in range(1, len(whole) + 1):
        failing: list[type[BaseException]] = []

        def stumbles(bodies: list[str], failing: list[type[BaseException]] = failing) -> None:
            if failing:
                press_ctrl_c() if failing[0] is KeyboardInterrupt else down(failing[0])

        engine = WordScorer(stumbles)
        chain = generator(engine, not_private_seed=7)
        stream = chain.stream("one?")
        said = [next(stream) for _ in range(read)]
        if broken is GeneratorExit:
            stream.close()
        else:
            failing.append(broken)
            with pytest.raises((broken if broken is KeyboardInterrupt else ModelUnavailable, StopIteration)) as caught:
                next(stream)
            if caught.type is ModelUnavailable:
                assert str(caught.value).endswith("the answer goes on, at no further cost.")
            failing.clear()
        assert said == whole[:read]
        assert list(chain.stream("one?")) in (["".join(said), *whole[read:]], ["".join(whole)])
        assert chain.answers_left() == 4
        assert len({frozenset(one.prompt.member for one in members) for members in engine.asked if members}) == 1


@pytest.mark.asyncio
async def test_an_async_stream_that_is_closed_goes_on_for_nothing_at_once() -> None:
    """If it breaks, a client that hangs up and asks again at once pays twice."""
    chain = generator(max_queries=20)
    for question in map(str, range(10)):
        stream = chain.astream(question)
        said = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert (await chain.ainvoke(question)).startswith(said)
    assert chain.answers_left() == 10


def test_what_broke_off_is_gone_with_a_forgotten_record_and_in_a_child(tmp_path: Path) -> None:
    """If it breaks, a forgotten record's words are given out, or two processes go on with one charge."""
    chain = generator(ledger=PrivacyLedger(BUDGET, tmp_path / "ledger"))
    said = next(stream := chain.stream("one?"))
    stream.close()
    child = os.fork()
    if child == 0:
        try:
            chain.invoke("one?")
            os._exit(chain.answers_left())
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, "the child pays for one of its own"
    chain.forget("#3")
    assert chain.invoke("one?")
    assert chain.answers_left() == 2
    assert said


def test_what_broke_off_is_not_finished_in_two_processes() -> None:
    """If it breaks, a fork after the beginning that is said again gives two ends of an answer for one charge."""
    chain = generator(not_private_seed=7)
    stream = chain.stream("one?")
    said = next(stream)
    stream.close()
    again = chain.stream("one?")
    assert next(again) == said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(PlanError, match="forked"):
            next(again)


def test_a_long_question_is_refused_before_long_records_fall_out() -> None:
    """If it breaks, the question leaves records no room, all of them abstain, and noise is sold at full price."""
    engine = WordScorer()
    engine.max_prompt_tokens = 100
    long = [{"text": "where is it " * 40, "label": "your refund was paid today"} for _ in range(100)]
    chain = generator(engine, examples=long)
    longest = "now " * 34
    chain.invoke(longest)
    shown = [one.prompt for members in engine.asked for one in members]
    assert shown
    assert all(len((one.head + one.body + one.tail).split()) + 8 <= 100 for one in shown)
    with pytest.raises(InvalidParameter, match=r"at most 50, the longest prompt of this model less 50 that are kept"):
        chain.invoke(longest + "now " * 10)
    assert chain.answers_left() == 4


def test_under_add_remove_a_forgotten_record_leaves_no_trace_in_prices() -> None:
    """If it breaks, whoever asks again learns from the charge that a record was there."""
    chain = generator(budget=ADD_OR_REMOVE, sampling_probability=0.4)
    answer = chain.invoke("one?")
    chain.forget("#3")
    assert chain.invoke("one?") == answer
    assert chain.answers_left() == 4


def test_nothing_private_is_shown_or_copied() -> None:
    """If it breaks, records leave by repr, pickle or copy."""
    chain = generator(examples=[{"text": "SECRET", "label": "SECRET"}] * 50)
    assert "SECRET" not in repr(chain) + str(chain.certificate())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivateDataError):
            copied(chain)


def test_the_certificate_says_what_holds() -> None:
    """If it breaks, an auditor reads another promise."""
    chain = generator()
    chain.invoke("one?")
    paper = chain.certificate()
    assert (paper.epsilon, paper.private, paper.remaining) == (8.0, True, 4)
    assert "text of few records does not" in str(paper)
    assert not generator(not_private_seed=3).certificate().private


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("  ", "it is blank"),
        ({"other": "x"}, "mapping with"),
        ({"text": ["x"]}, "to be text or numbers"),
        ("\ud800", "lone surrogate"),
        (HumanMessage(["x", {"type": "image", "url": "http://127.0.0.1/x.png"}]), "text alone"),
    ],
)
def test_a_question_that_is_none_costs_nothing(question: Any, message: str) -> None:
    """If it breaks, a mistake is paid for."""
    chain = generator()
    with pytest.raises(InvalidParameter, match=message):
        chain.invoke(question)
    assert chain.answers_left() == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": object()}, "score next tokens"),
        ({"members": 1}, "members"),
        ({"members": 400}, "Lower members="),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        (
            {"examples": [{"text": "a", "label": "b"}], "prompts": AnswerPrompts(record="{reply}"), "members": 2},
            "reply",
        ),
        ({"budget": ADD_OR_REMOVE}, "sampling_probability= to be given"),
        *(({"budget": ADD_OR_REMOVE, "sampling_probability": p}, "sampling_probability") for p in (0.0, False, 2.0)),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], message: str) -> None:
    """If it breaks, a mistake ends in a traceback, or under add/remove a rate follows a private number."""
    with pytest.raises(InvalidParameter, match=message):
        generator(**changed)
    for fields in ({"record": "{"}, {"question": "none"}, {"end": ""}):
        with pytest.raises(InvalidParameter):
            AnswerPrompts(**fields)


def test_a_batch_of_questions_is_looked_at_before_any_is_charged() -> None:
    """If it breaks, what stands before a bad question is charged, or a str is asked letter by letter."""
    chain = generator()
    for questions in ("one?", ["one?", " "]):
        with pytest.raises(InvalidParameter, match="Nothing was spent"):
            chain.batch(questions)  # type: ignore[arg-type]
    assert chain.answers_left() == 5


def test_an_answer_under_way_forgets_at_once() -> None:
    """If it breaks, a forgotten record speaks on in an answer that is being written, or that answer is given again."""
    engine = WordScorer(length=6)
    chain = generator(engine, examples=[*rows(40), {"text": "SECRET", "label": "SECRET", "id": "x"}], members=41)
    steps = chain.stream("one?")
    first = next(steps)
    chain.forget("x")
    before = len(engine.asked)
    keys = {one.prompt.member for one in engine.asked[-1] if "SECRET" in one.prompt.body}
    engine.forgotten.clear()
    rest = "".join(steps)
    assert engine.forgotten == keys != set(), "what was being scored when it was forgotten is dropped too"
    assert not any("SECRET" in one.prompt.body for asked in engine.asked[before:] for one in asked)
    assert chain.answers_left() == 4
    chain.invoke("one?")
    assert chain.answers_left() == 3, f"{first + rest!r} is not given again"


def test_an_end_of_several_tokens_is_never_shown_in_part() -> None:
    """If it breaks, a stream shows the beginning of the mark that ends it."""
    writer = generator(prompts=AnswerPrompts(end=". please"))._writer
    place = {word: i for i, word in enumerate(WORDS)}
    assert writer.begun([place[" late"], place["."]]) == "late"
    assert writer.begun([place[" late"], place["."], place[" today"]]) == "late. today"
    assert writer.begun([place[" late"], place["."], place[" please"]]) == "late"


@pytest.mark.parametrize("face", ["invoke", "stream", "ainvoke", "astream", "tool"])
async def test_every_face_charges_the_share_of_who_asks(face: str) -> None:
    """If it breaks, one face answers at somebody else's cost, for nobody's, or beyond a share."""
    ledger, engine = PrivacyLedger(BUDGET), WordScorer()
    chain = generator(engine, ledger=ledger, quotas=Quotas(default=1))

    with pytest.raises(PlanError, match="Say who asks"):
        await asked(chain, face, ["one?"])
    assert (entries(ledger), engine.asked) == (0, [])
    first = await asked(chain, face, ["one?"], "a")
    with pytest.raises(QuotaExceeded, match="This user's share of the plan 'answers' is 1 releases, and 0 are left"):
        await asked(chain, face, ["two?"], "a")
    await asked(chain, face, ["two?"], "b")
    assert await asked(chain, face, ["one?"], "b") == first
    assert (entries(ledger), chain.answers_left(), chain.answers_left(user_id="b")) == (2, 3, 0)
    assert "users can pool their answers: the promise is the whole plan's" in chain.certificate().notes
    with pytest.raises(PlanError, match="quotas was"):
        generator(engine, ledger=ledger, quotas=Quotas(default=5))


def test_a_plan_says_what_answers_cost_and_spends_nothing() -> None:
    """If it breaks, who plans pays for it, or plans for another number of members, tokens or answers than are used."""
    ledger = PrivacyLedger(BUDGET)
    chain = generator(ledger=ledger)
    plan = chain.plan()
    assert entries(ledger) == 0
    assert (plan.answers, plan.design.noise.members) == (chain.answers_left(), 40)
    head, (shown, *_) = chain.prompts.head, (chain.prompts.shown(row) for row in rows())
    assert plan.tokens == len(head.split()) + 41 * (2 * len(shown.split()) + 8)
    said = str(plan)
    assert f"{plan.design.noise.clip:.3g} nats" in said
    assert f"worth it?    {plan.verdict}" in said
    assert plan.to_dict()["answers"] == 5
    assert not plan.verdict.startswith("not worth it")
    with pytest.warns(MostlyNoiseWarning):
        poor = generator(budget=PrivacyBudget(0.1), max_queries=1_000, max_new_tokens=50).plan()
    assert poor.verdict.startswith("not worth it")
    assert "Ask the model alone" in poor.verdict


def test_a_head_leaves_room_for_records() -> None:
    """If it breaks, every answer is charged, and no record has a part in it."""
    engine, ledger = WordScorer(), PrivacyLedger(BUDGET)
    engine.max_prompt_tokens = 100
    with pytest.raises(InvalidParameter, match=r"head of 45 tokens to leave room for 16 tokens of a record in 50"):
        generator(engine, ledger=ledger, prompts=AnswerPrompts(head="word " * 45))
    assert ledger.reserved() == (0.0, 0.0)


@pytest.mark.parametrize("at", [1, 2])
def test_a_token_that_was_drawn_and_not_noted_is_not_drawn_again(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, Ctrl-C at the right moment gives two draws for one charge."""
    ledger, draws, release = PrivacyLedger(BUDGET), itertools.count(1), ClippedSum.release

    def stopped(self: ClippedSum, *given: Any, **named: Any) -> Any:
        found = release(self, *given, **named)
        if next(draws) == at:
            press_ctrl_c()
        return found

    monkeypatch.setattr(ClippedSum, "release", stopped)
    chain = generator(ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        chain.invoke("where is it")
    assert chain.invoke("where is it")
    assert sum(entry.count for entry in ledger.entries()) == 2
