"""Replicas of a chain, in processes of their own or as good as that: what one releases or forgets, the others know."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes._http import RecordingServer
from fakes.fair_semaphore import on_both
from fakes.voters import VotingChat, VotingEngine, VotingLLM, classifier, left, majority, private_examples, read_text

from langchain_dp import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import Quotas
from langchain_dp.errors import InvalidParameter, LedgerError, PlanError, QuotaExceeded
from langchain_dp.icl.replicas import Replicas

BUDGET = PrivacyBudget(50.0)


def named(count: int = 24) -> list[dict[str, str]]:
    return [{**row, "id": f"case-{i}"} for i, row in enumerate(private_examples(count))]


def replica(place: str, model: Any = None, **changes: Any) -> Any:
    """A chain with a ledger object of its own, as another process has one."""
    budget = changes.pop("budget", BUDGET)
    ledger = PrivacyLedger(budget, place)
    return classifier(model, **{"ledger": ledger, "examples": named(), "replicas": True, **changes})


def charges(place: str) -> int:
    with PrivacyLedger(BUDGET, place) as ledger:
        return sum(entry.count for entry in ledger.entries())


@on_both
async def test_the_same_question_is_charged_once_on_all(place: str) -> None:
    """If it breaks, a question costs once for each machine, or two machines give different answers to it."""
    tellers = [VotingChat() for _ in range(3)]
    one, two = replica(place, tellers[0]), replica(place, tellers[1])
    said = one.invoke("Where is my parcel?")
    assert two.invoke("Where is my parcel?") == await two.ainvoke("Where is my parcel?") == said
    late = replica(place, tellers[2])  # as after a restart
    assert await late.ainvoke("Where is my parcel?") == said
    assert (charges(place), left(two), len(tellers[1].asked), len(tellers[2].asked)) == (1, 4, 0, 0)
    assert await two.ainvoke("Another one?") == one.invoke("Another one?")
    assert (charges(place), len(tellers[1].asked)) == (2, 8)


@on_both
def test_two_at_the_same_moment_are_both_charged_and_give_one_answer(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a question has two answers, or one of two releases is free."""
    line = threading.Barrier(2)
    keep = Replicas.keep
    seen: list[str] = []

    def together(self: Replicas, question: str, epoch: int, answer: Any) -> Any:
        line.wait(30)
        # Each would give an answer of its own: noise does so, at random.
        seen.append(["positive", "negative"][len(seen)])
        return keep(self, question, epoch, seen[-1])

    monkeypatch.setattr(Replicas, "keep", together)
    chains = [replica(place), replica(place)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda chain: chain.invoke("x"), chains))
    assert sorted(seen) == ["negative", "positive"]
    assert answers[0] == answers[1] == replica(place).invoke("x")
    assert charges(place) == 2


@on_both
@pytest.mark.parametrize("sampling", ["fixed", "resample"])
async def test_a_forgotten_record_is_in_no_later_prompt_of_any(place: str, sampling: Any) -> None:
    """If it breaks, somebody who asked to be forgotten is shown to a model by another machine, or after a restart."""
    changes = {"sampling": sampling, "partitions": 8 if sampling == "fixed" else None, "max_queries": 20}
    models = [VotingChat(), VotingChat(), VotingChat()]
    one, two = (replica(place, model, **changes) for model in models[:2])
    one.invoke("x")
    await two.ainvoke("y")
    one.forget("case-5")
    three = replica(place, models[2], **changes)  # begins with all records, as its file holds them
    for model in models:
        model.asked.clear()
    for chain in (one, two, three):
        for number in range(2):
            chain.invoke(f"{chain is two} {chain is three} {number}")
            await chain.ainvoke(f"async {chain is two} {chain is three} {number}")
    two.warm()
    for model in models:
        assert len(model.asked) >= 20
        assert not any("note 005" in prompt for prompt in model.asked.prompts)
        assert any("note 006" in prompt for prompt in model.asked.prompts)
    with pytest.raises(InvalidParameter, match="known id"):
        two.forget("case-5")
    for id_of in ({"record_id": "case-5"}, {}):
        row = private_examples(1)[0] | ({} if id_of else {"id": "case-5"})
        with pytest.raises(InvalidParameter, match="was forgotten"):
            two.add(row, **id_of)
    assert not two.add(private_examples(1)[0]).startswith("#")


def test_caches_of_a_record_that_another_forgot_go(tmp_path: Path) -> None:
    """If it breaks, an engine of another machine keeps evaluated what was forgotten."""
    engine = VotingEngine()
    one, two = replica(str(tmp_path / "l.db")), replica(str(tmp_path / "l.db"), engine)
    two.invoke("x")
    assert any("note 005" in body for body in engine.cache.values())
    one.forget("case-5")
    two.invoke("x")
    assert not any("note 005" in body for body in engine.cache.values())


@on_both
def test_answers_from_before_are_not_given_out_again(place: str) -> None:
    """If it breaks, an answer that a forgotten record helped to find is given again, by this replica or another."""
    one, two = replica(place), replica(place)
    one.invoke("x")
    two.invoke("x")  # kept by both
    one.forget("case-5")
    two.invoke("x")
    assert charges(place) == 2
    one.invoke("x")
    replica(place).invoke("x")
    assert charges(place) == 2


def test_under_add_or_remove_the_answers_stay(tmp_path: Path) -> None:
    """If it breaks, that a question costs again shows that there was such a record."""
    budget = PrivacyBudget(50.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)
    one, two = (replica(str(tmp_path / "l.db"), budget=budget) for _ in range(2))
    one.invoke("x")
    one.forget("case-5")
    two.invoke("x")
    one.invoke("x")
    assert left(two) == 4


def test_a_release_under_way_while_a_record_is_forgotten_is_not_given_out_later(tmp_path: Path) -> None:
    """If it breaks, an answer drawn with the record stands for the time after it was forgotten."""
    place = str(tmp_path / "l.db")
    two = replica(place)

    def forget(shots: Any, question: str) -> str:
        if shots and "case-5" in two._records.ids():
            with contextlib.suppress(InvalidParameter):
                two.forget("case-5")
        return majority(shots, question)

    one = replica(place, VotingChat(reply=forget))
    one.invoke("x")
    two.invoke("x")
    one.invoke("x")
    assert charges(place) == 2


def test_a_record_forgotten_before_the_draw_is_not_drawn(tmp_path: Path) -> None:
    """If it breaks, what is forgotten while a release waits, or asks whether the model is healthy, is still shown."""
    place = str(tmp_path / "l.db")
    two, lock = replica(place), threading.Lock()

    def forget(shots: Any, question: str) -> str:
        with lock:
            if not shots and "case-5" in two._records.ids():
                two.forget("case-5")
        return majority(shots, question)

    model = VotingChat(reply=forget)
    replica(place, model).invoke("x")
    assert "case-5" not in two._records.ids()
    assert any("note 006" in prompt for prompt in model.asked.prompts)
    assert not any("note 005" in prompt for prompt in model.asked.prompts)


def test_what_two_chains_say_differently_is_no_one_answer(tmp_path: Path) -> None:
    """If it breaks, a chain with other labels or another template gives answers of this one."""
    place = str(tmp_path / "l.db")
    replica(place).invoke("x")
    for _ in range(2):
        replica(place, prompt="Text: {text}\nMood:").invoke("x")
        assert charges(place) == 2


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    """If it breaks, replicas lose one another without a word, or drop the wrong record."""
    place = str(tmp_path / "l.db")
    with pytest.raises(InvalidParameter, match="that others can open"):
        classifier(examples=named(), budget=BUDGET, replicas=True)
    with pytest.raises(InvalidParameter, match="24 have none"):
        replica(str(tmp_path / "other.db"), examples=private_examples(24))
    chain = replica(place)
    with pytest.raises(InvalidParameter, match="with_budget"):
        chain.with_budget(BUDGET)
    with pytest.raises(PlanError, match="replicas was True, now False"):
        replica(place, replicas=False)


@on_both
def test_no_text_is_in_the_ledger_and_nothing_there_can_be_taken_back(place: str) -> None:
    """If it breaks, whoever reads the database reads questions or ids, or a forgotten record can come back."""
    chain = replica(place)
    chain.invoke("Where is Zebedee?")
    chain.forget("case-5")
    ledger = chain._reservation.plan._account.store
    with ledger.read() as connection:
        rows = [
            [bytes(value) if isinstance(value, memoryview) else value for value in row]
            for table in ("answers", "forgotten", "plans", "entries", "items")
            for row in connection.execute(f"SELECT * FROM {table}").fetchall()  # names only
        ]
    assert "Zebedee" not in repr(rows)
    assert "case-5" not in repr(rows)
    for statement in (
        "DELETE FROM forgotten",
        "UPDATE forgotten SET time = ''",
        "DELETE FROM answers",
        "UPDATE answers SET answer = ''",
    ):
        with pytest.raises(LedgerError), ledger.backend.transaction(write=True) as connection:
            connection.execute(statement)


class Loopback(VotingLLM):
    """A completion model behind a server on this machine."""

    keeps_no_prompts: ClassVar[bool] = True
    url: str = ""

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        request = urllib.request.Request(self.url, prompt.encode())  # the loopback
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())


@contextlib.contextmanager
def processes(place: str, url: str, count: int) -> Iterator[list[Any]]:
    """Replicas in processes of their own; each reads a command a line and says what came of it."""
    made: list[Any] = []
    try:
        for _ in range(count):
            orders, results = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(orders[1])
                    chain = replica(place, Loopback(url=url), max_queries=20)
                    with os.fdopen(orders[0]) as heard, os.fdopen(results[1], "w") as told:
                        for line in heard:
                            verb, what = json.loads(line)
                            print(json.dumps(getattr(chain, verb)(what)), file=told, flush=True)
                finally:
                    os._exit(0)
            os.close(orders[0])
            os.close(results[1])
            made.append((pid, os.fdopen(orders[1], "w"), os.fdopen(results[0])))
        yield made
    finally:
        for pid, orders_to, results_of in made:
            os.kill(pid, signal.SIGKILL)
            orders_to.close()
            os.waitpid(pid, 0)
            results_of.close()


def tell(process: Any, verb: str, what: str) -> None:
    print(json.dumps([verb, what]), file=process[1], flush=True)


def ask(process: Any, verb: str, what: str) -> Any:
    tell(process, verb, what)
    return json.loads(process[2].readline())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its replicas")
@on_both
def test_two_processes_behind_one_model(place: str) -> None:
    """If it breaks, the same question is charged twice, or a forgotten record's text reaches the model once more."""

    def answer(_: str, body: bytes) -> Any:
        shots, question = read_text(body.decode())
        said = shots[0][1] if shots else majority(shots, question)
        return 200, {}, said.encode()

    with RecordingServer(answer) as model, processes(place, model.url, 2) as (one, two):
        said = ask(one, "invoke", "x")
        asked = len(model.bodies)
        assert ask(two, "invoke", "x") == said
        assert charges(place) == 1
        assert len(model.bodies) == asked
        for each, question in ((one, "y"), (two, "z")):
            ask(each, "invoke", question)
        assert model.text().count("note 005") == 3
        ask(one, "forget", "case-5")
        before = len(model.bodies)
        for number in range(3):
            for each in (one, two):
                tell(each, "invoke", f"together {number}")  # both at the same moment
            assert len({each[2].readline() for each in (one, two)}) == 1
        assert 3 + 3 <= charges(place) <= 3 + 6
        later = "\n".join(body.decode() for body in model.bodies[before:])
        assert "note 006" in later
        assert "note 005" not in later


@on_both
async def test_what_one_asker_was_told_is_free_for_every_asker(place: str) -> None:
    """If it breaks, what one user was told on one machine costs another's share on the next."""
    one, two = (replica(place, quotas=Quotas(default=2)) for _ in range(2))
    a, b = ({"configurable": {"user_id": user_id}} for user_id in "ab")
    one.batch(["x", "y"], a)
    assert await two.ainvoke("x", b) == two.invoke("y", a) == "positive"
    with pytest.raises(QuotaExceeded):
        await two.ainvoke("z", a)
    assert (charges(place), two.answers_left(user_id="a"), two.answers_left(user_id="b")) == (2, 0, 2)
