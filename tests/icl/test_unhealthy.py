"""A model that no longer answers is loud: nobody pays for answers that are noise alone, and no record shows in it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from fakes._http import Answer, RecordingServer
from fakes.canary import CANARY
from fakes.openai_server import OpenAIServer
from fakes.voters import (
    LABELS,
    AsyncVotingChat,
    Shots,
    VotingChat,
    VotingEngine,
    VotingLLM,
    classifier,
    failing,
    is_invented,
    left,
    private_examples,
)
from langchain_core.messages import BaseMessage
from langchain_openai import ChatOpenAI

from langchain_dp import DPICLClassifier
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.icl.chat_model import ChatDPICL

Ask = Callable[[DPICLClassifier, list[str]], Awaitable[list[Any]]]


def model_of(server: RecordingServer) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="sk-none", model="m", max_retries=0)


async def each(call: Callable[[str], Awaitable[Any]], questions: list[str]) -> list[Any]:
    """What each question got, one after the other: its label, or the kind of its error."""
    got: list[Any] = []
    for question in questions:
        try:
            got.append(await call(question))
        except Exception as error:
            got.append(type(error))
    return got


def in_thread(call: Callable[..., Any]) -> Callable[[str], Awaitable[Any]]:
    return lambda question: asyncio.to_thread(call, question)


async def streamed(chain: DPICLClassifier, question: str) -> str:
    return "".join([part async for part in chain.astream(question)])


def kinds(answers: list[Any]) -> list[Any]:
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]


async def batch(chain: DPICLClassifier, questions: list[str]) -> list[Any]:
    return kinds(await asyncio.to_thread(chain.batch, questions, return_exceptions=True))


async def abatch(chain: DPICLClassifier, questions: list[str]) -> list[Any]:
    return kinds(await chain.abatch(questions, return_exceptions=True))


FACES: dict[str, Ask] = {
    "invoke": lambda chain, questions: each(in_thread(chain.invoke), questions),
    "ainvoke": lambda chain, questions: each(chain.ainvoke, questions),
    "stream": lambda chain, questions: each(in_thread(lambda q: "".join(chain.stream(q))), questions),
    "astream": lambda chain, questions: each(lambda q: streamed(chain, q), questions),
    "chat": lambda chain, questions: each(in_thread(lambda q: ChatDPICL(classifier=chain).invoke(q).text), questions),
    "batch": batch,
    "abatch": abatch,
}


@pytest.fixture(params=FACES)
def ask(request: pytest.FixtureRequest) -> Ask:
    return FACES[request.param]


@pytest.fixture
def charged(ask: Ask) -> int:
    """Most that an outage after one answer may cost, that answer included.

    One at a time it is one more. At once, two releases share 16 places with 9 calls each, so two more.
    """
    return 3 if ask in (batch, abatch) else 2


async def test_after_a_server_stopped_nothing_is_answered_and_no_more_than_one_question_charged(
    ask: Ask, charged: int
) -> None:
    """39 questions are charged and answered by noise."""
    with OpenAIServer("positive") as server:
        chain = classifier(model_of(server), max_queries=50)
        assert await ask(chain, ["question 0"]) == ["positive"]
    assert await ask(chain, [f"question {i}" for i in range(1, 40)]) == [ModelUnavailable] * 39
    assert 50 - left(chain) <= charged
    assert await ask(chain, ["question 0"]) == ["positive"]  # released before: free


async def test_a_server_that_starts_to_refuse_costs_one_answer(ask: Ask, charged: int) -> None:
    """A key that expires, or a quota that is used up, goes on charging."""
    refuses: list[bool] = []

    def answer(path: str, body: bytes) -> Answer:
        if refuses:
            return 429, {"Content-Type": "application/json"}, b'{"error": {"message": "Used 29500 of 30000"}}'
        message = {"role": "assistant", "content": "positive"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        fields = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return 200, {"Content-Type": "application/json"}, json.dumps(fields).encode()

    with RecordingServer(answer) as server:
        chain = classifier(model_of(server), max_queries=50)
        assert await ask(chain, ["question 0"]) == ["positive"]
        refuses.append(True)
        assert await ask(chain, [f"question {i}" for i in range(1, 10)]) == [ModelUnavailable] * 9
        assert 50 - left(chain) <= charged
        with pytest.raises(ModelUnavailable, match=r"RateLimitError \(status 429\), text withheld") as caught:
            chain.invoke("question 10")
        assert "29500" not in str(caught.value)
        refuses.clear()
        before = left(chain)
        assert await ask(chain, ["question 11"]) == ["positive"]
        assert left(chain) == before - 1


@pytest.mark.parametrize("make", [VotingChat, VotingLLM])
def test_a_model_that_never_names_a_label_is_refused_before_any_charge(make: Any) -> None:
    """A model that always says "I cannot help" is paid for noise."""
    chain = classifier(make(reply=lambda shots, question: "I cannot help with that.", helpful=False))
    for question in ("x", "y"):
        with pytest.raises(
            ModelUnavailable,
            match=r"got 'I cannot help with that\.', which names none of \['positive'.*This attempt was not charged",
        ):
            chain.invoke(question)
    assert left(chain) == 5


async def test_a_model_that_stops_to_name_labels_costs_one_answer() -> None:
    """A model behind which another one was put, or a filter, goes on charging."""
    said = ["positive"]

    def reply(shots: Shots, question: str) -> str:
        return said[-1]

    chain = classifier(VotingChat(reply=reply, helpful=False))
    assert chain.invoke("a") == "positive"
    said.append("As a language model I have no opinion.")
    for question in ("b", "c"):
        with pytest.raises(ModelUnavailable, match="no opinion"):
            chain.invoke(question)
        with pytest.raises(ModelUnavailable, match="no opinion"):
            await chain.ainvoke(question)
    assert left(chain) == 3
    said.append("negative")
    assert chain.invoke("c") == "negative"
    assert left(chain) == 2


async def test_a_question_that_the_model_refuses_is_charged_once_however_often_it_is_asked() -> None:
    """If it breaks, a content filter and with_retry use up the plan, and no message says that anything was charged."""

    def reply(shots: Shots, question: str) -> str:
        if "FILTERED" in question:
            raise RuntimeError("content filter")
        return "positive"

    model = VotingChat(reply=reply, helpful=False)
    chain = classifier(model)
    with pytest.raises(ModelUnavailable, match=r"This answer was charged. The same question is asked in public first"):
        chain.with_retry(stop_after_attempt=1).invoke("FILTERED")
    for _ in range(2):
        with pytest.raises(ModelUnavailable) as caught:
            chain.with_retry(stop_after_attempt=2).invoke("FILTERED")
        assert str(caught.value).endswith(" This attempt was not charged.")
        with pytest.raises(ModelUnavailable):
            await chain.ainvoke("FILTERED")
    assert left(chain) == 4
    assert chain.invoke("x") == "positive"
    with pytest.raises(ModelUnavailable, match="This answer was charged"):
        await chain.ainvoke("also FILTERED")
    assert left(chain) == 2


def test_the_companion_asks_the_same_question_and_shows_no_record() -> None:
    """The companion asks something else than the members, or private examples are in what may be said aloud."""
    with OpenAIServer("positive") as server:
        chain = classifier(model_of(server), examples=private_examples(24))
        chain.invoke("is it good?")
        requests = [json.loads(body.split(b"\n", 1)[1])["messages"] for body in server.bodies]
    public = [asked for asked in requests if not any(CANARY in turn["content"] for turn in asked)]
    assert len(requests) == 16 + 8 + 1
    tests, companion = public[:16], public[16]
    assert len(public) == 17
    assert [any("This is a test." in turn["content"] for turn in asked) for asked in public] == [True] * 16 + [False]
    assert all(asked == tests[0] for asked in tests)
    members = [asked for asked in requests if asked not in public]
    assert {asked[-1]["content"] for asked in members} == {companion[-1]["content"]}
    assert {asked[0]["content"] for asked in members} == {companion[0]["content"]}
    assert all(is_invented(turn["content"]) for turn in companion[1:-1] if turn["role"] == "user")


class Slots(OpenAIServer):
    """Answers so many calls at once, and refuses others while these are under way, as gateways with a limit do.

    Args:
        count: Calls at once.
        crowds: Calls of the first crowds: each is there as a whole before one of it is answered.
    """

    def __init__(self, count: int, *crowds: int) -> None:
        super().__init__("positive")
        inner, seen, taken, change = self._answer, 0, 0, threading.Condition()
        whole = list(itertools.accumulate(crowds))

        def answer(path: str, body: bytes) -> Answer:
            nonlocal seen, taken
            with change:
                seen += 1
                change.notify_all()
                if taken >= count:
                    return 429, {"Content-Type": "application/json"}, b'{"error": {"message": "too many at once"}}'
                taken += 1
                there = next((number for number in whole if number >= seen), 0)
                change.wait_for(lambda: seen >= there, 60)
                taken -= 1
            return inner(path, body)

        self._answer = answer


@pytest.mark.parametrize("ask", ["invoke", "ainvoke"])
def test_a_server_that_refuses_some_calls_at_once_is_found_before_the_spend(ask: str) -> None:
    """If it breaks, most votes of every answer are lost in silence, and noise is paid for."""
    with Slots(3, 16, 13) as server:
        chain = classifier(model_of(server), examples=private_examples(24))
        with pytest.raises(
            ModelUnavailable, match=r"16 public test questions at once.*answered 3; .*max_concurrency=3"
        ):
            chain.invoke("x") if ask == "invoke" else asyncio.run(chain.ainvoke("x"))
        assert left(chain) == 5
        assert CANARY not in server.text()
        fewer = classifier(model_of(server), examples=private_examples(24), max_concurrency=3)
        assert fewer.invoke("x") == "positive"
        assert len(server.bodies) == 16 + 13 + 3 + 9  # none was refused


@pytest.mark.parametrize("ask", ["invoke", "ainvoke"])
def test_a_test_question_that_fails_by_chance_is_asked_again(ask: str) -> None:
    """If it breaks, a provider that fails once in twenty calls blocks every second chain."""
    with OpenAIServer("positive") as server:
        inner, first = server._answer, iter([True, True])
        server._answer = lambda path, body: (500, {}, b"") if next(first, False) else inner(path, body)
        chain = classifier(model_of(server), examples=private_examples(24))
        assert (chain.invoke("x") if ask == "invoke" else asyncio.run(chain.ainvoke("x"))) == "positive"
        assert len(server.bodies) == 16 + 2 + 9


@pytest.mark.parametrize("many", [1, 8])
def test_what_becomes_of_private_calls_never_raises(many: int, histograms: list[list[int]]) -> None:
    """A release that stops because records make their own calls fail has released them."""

    def reply(shots: Shots, question: str) -> str:
        if shots and (many == 8 or any("note 000" in text for text, _ in shots)):
            raise RuntimeError(f"too long: {shots}")
        return "positive"

    chain = classifier(VotingChat(reply=reply))
    assert chain.invoke("x") in LABELS
    assert histograms == [[8 - many, 0]]


@pytest.mark.parametrize("error", [ConnectionError, ConnectionRefusedError, BrokenPipeError, OSError])
def test_of_the_network_the_systems_own_words_are_told_and_no_others(error: type[OSError]) -> None:
    """If it breaks, what a client says of other calls, or quotes of them, is in the error of a public one."""
    alive = [True]

    def reply(shots: Shots, question: str) -> str:
        if not alive:
            raise error(f"after {shots}: 29,500 of 30,000") if error is ConnectionError else error(111, str(shots))
        return "positive"

    chain = classifier(VotingChat(reply=reply))
    assert chain.invoke("a") == "positive"
    alive.clear()
    with pytest.raises(ModelUnavailable, match="text withheld") as caught:
        chain.invoke("b")
    assert "29,500" not in str(caught.value)
    assert "note" not in str(caught.value)
    assert (os.strerror(111) in str(caught.value)) is (error is not ConnectionError)


def test_on_unhealthy_answer_answers_all_the_same_and_says_so() -> None:
    """Who asks for answers whatever happens gets none, or the certificate hides that nobody watched."""
    alive = [True]

    def reply(shots: Shots, question: str) -> str:
        if not alive:
            raise ConnectionError("gone")
        return "positive"

    model = VotingChat(reply=reply)
    chain = classifier(model, on_model_failure="ignore")
    assert chain.invoke("a") == "positive"
    alive.clear()
    assert chain.invoke("b") in LABELS
    assert model.asked.companions == 0
    assert any("on_model_failure='ignore'" in note for note in chain.certificate().notes)
    assert any("on_model_failure='raise'" in note for note in classifier().certificate().notes)
    assert chain.plan().calls_per_query == 8
    assert classifier().plan().calls_per_query == 9
    assert "1 of them public" in str(classifier().plan())
    with pytest.raises(InvalidParameter, match="on_model_failure='answer'"):
        classifier(on_model_failure="answer")


class ServedEngine(VotingEngine):
    """An engine that asks a server."""

    remote = True


async def test_an_engine_that_asks_a_server_is_watched_and_one_in_this_process_is_not() -> None:
    """A dead completions server is answered for by noise; or every local vote costs one more evaluation."""
    alive = [True]
    engine = ServedEngine(row=lambda scores: scores if alive else None)
    chain = classifier(engine)
    assert chain.invoke("a") == "positive"
    assert [sum(is_invented(member.body) for member in call) for call in engine.calls] == [1, 1]
    alive.clear()
    for call in (lambda: chain.invoke("b"), lambda: asyncio.run(chain.ainvoke("c"))):
        with pytest.raises(ModelUnavailable, match="got no answer"):
            await asyncio.to_thread(call)
    assert left(chain) == 3
    assert chain.plan().calls_per_query == 9

    local = VotingEngine()
    chain = classifier(local)
    chain.invoke("a")
    assert not [member for call in local.calls for member in call if is_invented(member.body)]
    assert chain.plan().calls_per_query == 8
    assert not [note for note in chain.certificate().notes if "on_model_failure" in note]


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_an_outage_is_held_back_as_an_answer_is(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With min_response_seconds, how long the members took shows in when the error comes."""
    held: list[float] = []

    async def hold(seconds: float) -> None:
        held.append(seconds)

    chain = classifier(VotingChat(reply=failing, helpful=False), min_response_seconds=60.0)
    monkeypatch.setattr(
        "langchain_dp.icl.release.time", types.SimpleNamespace(monotonic=time.monotonic, sleep=held.append)
    )
    monkeypatch.setattr(asyncio, "sleep", hold)
    with pytest.raises(ModelUnavailable):
        _ = chain.invoke("x") if run == "sync" else await chain.ainvoke("x")
    assert len(held) == 1


class Counting:
    """How many calls are under way at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1


@pytest.mark.parametrize(("most", "settings"), [(16, {}), (5, {"max_concurrency": 5})])
async def test_sixty_four_questions_at_once_keep_to_the_cap(most: int, settings: dict[str, Any]) -> None:
    """64 questions put hundreds of calls in flight: time-outs, hence lost votes."""
    count = Counting()
    chain = classifier(AsyncVotingChat(before=count), max_queries=64, **settings)
    assert await chain.abatch([f"q{i}" for i in range(64)]) == ["positive"] * 64
    assert most // 2 <= count.most <= most
    assert left(chain) == 0


@pytest.mark.parametrize("most", [4, 16])
def test_a_model_that_asks_the_same_classifier_waits_for_no_place_of_its_own(most: int) -> None:
    """A tool of the model asks the classifier that asks the model: the inner question waits for the outer for ever."""

    class ModelCallOptions(VotingChat):
        keeps_no_prompts: ClassVar[bool] = True

        def vote(self, messages: list[BaseMessage]) -> str:
            if not inner:
                inner.append(None)
                inner.append(chain.invoke("an inner question"))
            return super().vote(messages)

    inner: list[Any] = []
    chain = classifier(ModelCallOptions(), max_concurrency=most)
    outer: list[Any] = []
    model_calls = threading.Thread(target=lambda: outer.append(chain.invoke("a question")), daemon=True)
    model_calls.start()
    model_calls.join(20)
    assert outer == ["positive"]
    assert inner == [None, "positive"]


def test_what_one_classifier_used_up_is_not_told_by_another() -> None:
    """Two classifiers share an account; the first question of the second quotes what the first one's records used."""

    class Limited(Exception):
        def __str__(self) -> str:
            return f"used {len(used)} of 1 tokens"

    class Sharing(VotingChat):
        keeps_no_prompts: ClassVar[bool] = True

        def vote(self, messages: list[BaseMessage]) -> str:
            if not open_to:
                raise Limited
            used.append(None)
            return super().vote(messages)

    used: list[None] = []
    open_to = [True]
    model = Sharing()
    assert classifier(model).invoke("a question") == "positive"
    open_to.clear()
    with pytest.raises(ModelUnavailable) as caught:
        classifier(model).invoke("a question")
    assert "text withheld" in str(caught.value)
    assert str(len(used)) not in str(caught.value).replace("voting-chat-1", "")
