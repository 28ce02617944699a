"""What a release costs, what is given out again, and what remains after a kill."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fakes.canary import reported
from fakes.rapt import CLOSE, TABLE, refusing, sanitizer, vocabulary
from fakes.styles import STYLES
from langchain_core.runnables import Runnable, RunnableLambda
from numpy.typing import NDArray

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.accounting.store.releases import ReleasedTexts
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerMismatch, LedgerUnwritable, PlanError
from langchain_dp.rapt import Policies, TextPrivatizer
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.vocabulary import Vocabulary, WordTokenizer

TEXT = "the patient has severe pain in the left arm and a mild fever today , often at work"
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")


class Letters(WordTokenizer):
    """Another way to cut."""

    def __init__(self) -> None:
        super().__init__(TABLE.words, TABLE.index)


class Watched(MetricLedger):
    """Says, in order, what was asked of the ledger."""

    def __init__(self, steps: list[str], **options: float) -> None:
        super().__init__(**options)
        self.steps = steps

    def spend(self, *args: object, **options: object) -> None:
        self.steps.append("spend")
        super().spend(*args, **options)  # type: ignore[arg-type]


def watch(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    prepare = TextPrivatizer.written

    def spy(self: TextPrivatizer, texts: Sequence[str]) -> object:
        draw = prepare(self, texts)

        def drawn() -> object:
            steps.append(f"draw {len(texts)}")
            return draw()

        return drawn

    monkeypatch.setattr(TextPrivatizer, "written", spy)


def test_a_release_is_charged_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a crash between the two releases a text that no account knows of."""
    steps: list[str] = []
    watch(monkeypatch, steps)
    made = sanitizer(ledger=Watched(steps))
    made.invoke(TEXT)
    made.batch(["one", "two", "three"])
    assert steps == ["spend", "draw 1", "spend", "draw 3"]


def test_a_text_that_cannot_be_cut_costs_nothing_and_keeps_no_other_back() -> None:
    """If it breaks, one bad text is charged, or all of its batch is and nothing comes out, or an error holds a word."""
    made = refusing("zanzibar", cache=False)
    with pytest.raises(InvalidParameter, match="it raised KeyError") as refused:
        made.batch(["pain", "zanzibar"], user="u")
    assert not [kept for kept in reported(refused.value, lambda file: False) if "zanzibar" in kept]
    assert made.certificate().releases == 0
    found = made.batch(["pain", "zanzibar", "fever"], user="u", return_exceptions=True)
    assert [type(one) for one in found] == [str, InvalidParameter, str]
    assert made.certificate().releases == 2


def test_a_ledger_that_failed_is_not_charged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a full disk costs a batch its price and then the price of each text."""
    made = sanitizer()

    def full(self: object, texts: object) -> object:
        raise LedgerUnwritable("the disk is full")

    monkeypatch.setattr(type(made.ledger.released()), "put", full)
    found = made.batch(["one", "two", "three"], return_exceptions=True)
    assert [type(one) for one in found] == [LedgerUnwritable] * 3
    assert made.certificate().releases == 3


@pytest.mark.parametrize("cache", [True, False])
def test_the_same_text_again_is_free_with_the_cache_and_adds_up_without(cache: bool) -> None:
    """If it breaks, ingesting an archive once more composes, or a hundred releases show as one; or that is unsaid."""
    made = sanitizer(eta=0.25, cache=cache)
    released = {made.invoke(TEXT * 5, user="u", document="report 7") for _ in range(4)}
    assert len(released) == (1 if cache else 4)
    assert made.ledger.spent(document="report 7") == made.ledger.spent(user="u") == (0.25 if cache else 1.0)
    made.invoke(TEXT)
    made.invoke(TEXT)
    assert (made.certificate().document_spent, made.certificate().releases) == ((0.25, 2) if cache else (1.0, 6))
    assert any("released before" in note for note in made.certificate().notes) is cache


@pytest.mark.parametrize("of", ["user", "document"])
def test_users_and_named_documents_do_not_share_releases(of: str) -> None:
    """If it breaks, outputs of two users, or under two public names, are equal exactly if their texts are."""
    made = sanitizer()
    outcomes = [made.invoke(TEXT, **{of: name}) for name in ("a", "b", None)]  # type: ignore[arg-type]
    assert len(set(outcomes)) == 3
    assert made.invoke(TEXT, **{of: "a"}) == outcomes[0]  # type: ignore[arg-type]
    assert made.ledger.spent(**{of: "a"}) == made.ledger.spent(**{of: "b"}) == CLOSE


def test_other_settings_make_another_release() -> None:
    """If it breaks, a text is given out as sanitized at an eta, a table or a policy at which it was not."""
    ledger = MetricLedger()
    options = [
        {},
        {"eta": 2 * CLOSE},
        {"mechanism": "laplace"},
        {"policies": Policies(numbers="placeholder")},
        {"keep": ("patient",)},
        {"keep": ("fever",)},
        {"length": 15},
    ]
    outcomes = [sanitizer(ledger=ledger, **changes).invoke(TEXT) for changes in options]
    assert len(set(outcomes)) == len(options)
    assert sanitizer(ledger=ledger).invoke(TEXT) == outcomes[0]
    with pytest.raises(PlanError, match="another table"):
        RAPTSanitizer(vocabulary(seed=1), eta=CLOSE, ledger=ledger)


@pytest.mark.parametrize(
    "change",
    [{"never": [3]}, {"unknown": np.ones(2)}, {"pad": np.ones(2)}, {"tokenizer": Letters()}],
    ids=lambda change: next(iter(change)),
)
def test_another_table_of_the_same_words_makes_another_release(change: dict[str, Any]) -> None:
    """If it breaks, a word that is never to be written is given out again from before, or other noise than is said."""
    ledger = MetricLedger()
    released = sanitizer(ledger=ledger).invoke(TEXT)
    other = Vocabulary(TABLE.words, TABLE.vectors, name=TABLE.name, **change)
    assert RAPTSanitizer(other, eta=CLOSE, ledger=ledger).invoke(TEXT) != released
    same = Vocabulary(TABLE.words, TABLE.vectors, name=TABLE.name)
    assert RAPTSanitizer(same, eta=CLOSE, ledger=ledger).invoke(TEXT) == released


def test_a_restart_finds_what_was_released(tmp_path: pathlib.Path) -> None:
    """If it breaks, every restart of a service composes; or its file can be read by others, or shows raw text."""
    path = tmp_path / "metric.db"
    with MetricLedger(1.0, path) as ledger:
        released = sanitizer(ledger=ledger).batch(["Zanzibar " + TEXT, TEXT], user="bob@example.org")
    with MetricLedger(1.0, path) as ledger:
        again = sanitizer(ledger=ledger)
        assert again.batch(["Zanzibar " + TEXT, TEXT], user="bob@example.org") == released
        assert again.certificate().releases == 2
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        content = file.read_bytes().lower()
        assert not [word for word in (b"zanzibar", b"bob", b"severe pain in the left") if word in content]
    path.unlink()
    with pytest.raises(LedgerMismatch):
        MetricLedger(1.0, path)


def test_blank_texts_cost_nothing_unless_they_are_filled_up() -> None:
    """If it breaks, an empty message uses up an account, its blanks leave in clear, or padding leaves it empty."""
    for made in (sanitizer(), sanitizer(cache=False)):
        assert made.batch(["", "  \n"]) == ["", ""]
    assert made.certificate().releases == 0
    padded = sanitizer(length=6, policies=Policies(punctuation="keep"))
    assert padded.invoke("").split()
    assert padded.certificate().releases == 1


def test_threads_that_ask_for_one_text_share_one_release() -> None:
    """If it breaks, a burst of equal requests pays for each, or hands out several draws of one text."""
    made = sanitizer(eta=1.0, limit=2.0)
    line = threading.Barrier(8)

    def ask(number: int) -> dict[str, str]:
        line.wait()
        # Overlapping requests in opposite orders: nobody may wait for somebody who waits for him.
        texts = [TEXT, "another"] if number % 2 else ["another", TEXT]
        return dict(zip(texts, made.batch(texts, user="u"), strict=True))

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(ask, range(8)))
    assert outcomes == [outcomes[0]] * 8
    assert made.ledger.spent(user="u") == 2.0


def test_who_waits_for_a_failed_release_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, one failure leaves everybody who waited for the same text hanging, or without an answer."""
    made = sanitizer()
    started, go = threading.Event(), threading.Event()
    draw = TextPrivatizer.release

    def fail_once(self: TextPrivatizer, ids: NDArray[np.int64]) -> object:
        if not started.is_set():
            started.set()
            go.wait(30)
            raise MemoryError(TEXT)
        return draw(self, ids)

    monkeypatch.setattr(TextPrivatizer, "release", fail_once)
    failures: list[BaseException] = []

    def first() -> None:
        try:
            made.invoke(TEXT)
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait(30)
    answers: list[str] = []
    second = threading.Thread(target=lambda: answers.append(made.invoke(TEXT)))
    second.start()
    second.join(0.3)  # it waits by now; if not, the test only shows less
    go.set()
    thread.join()
    second.join()
    assert len(answers) == len(failures) == 1
    assert not [kept for kept in reported(failures[0], lambda file: False) if "patient" in kept]
    assert made.certificate().releases == 2  # the one that failed is not refunded


@pytest.mark.parametrize("moment", ["looked up", "charged"])
def test_two_processes_that_ask_for_one_text_give_out_one_draw(
    moment: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one text leaves as two draws and is charged once, or is paid for when it was there already."""
    path, others, inside = tmp_path / "metric.db", [], []
    prepare = TextPrivatizer.written

    def elsewhere() -> None:
        if not inside:
            inside.append(True)
            with MetricLedger(path=path) as ledger:  # as another process opens it
                others.append(sanitizer(ledger=ledger).invoke(TEXT, document="d"))

    def raced(self: TextPrivatizer, texts: Sequence[str]) -> object:
        draw = prepare(self, texts)
        if moment == "looked up":
            elsewhere()

        def drawn() -> object:
            elsewhere()
            return draw()

        return drawn

    monkeypatch.setattr(TextPrivatizer, "written", raced)
    with MetricLedger(path=path) as ledger:
        assert [sanitizer(ledger=ledger).invoke(TEXT, document="d")] == others
        assert ledger.spent(document="d") == (CLOSE if moment == "looked up" else 2 * CLOSE)


@forks
def test_a_kill_between_charge_and_text_is_charged_again(tmp_path: pathlib.Path) -> None:
    """If it breaks, whoever kills the process after each draw gets any number of draws of a text for one charge."""
    path, steps = tmp_path / "metric.db", ["prepared", "drawn", "kept"]
    for charges, step in enumerate(steps):
        pid = os.fork()
        if pid == 0:
            try:
                with MetricLedger(path=path) as ledger, pytest.MonkeyPatch.context() as patch:
                    made = sanitizer(ledger=ledger)
                    _die_at(step, patch)
                    made.invoke(TEXT, document="d")
            finally:
                os._exit(1)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        with MetricLedger(path=path) as ledger:
            assert ledger.spent(document="d") == pytest.approx(CLOSE * charges)
    with MetricLedger(path=path) as ledger:  # the last one was kept
        first = sanitizer(ledger=ledger).invoke(TEXT, document="d")
        assert sanitizer(ledger=ledger).invoke(TEXT, document="d") == first
        assert ledger.spent(document="d") == pytest.approx(CLOSE * 2)


def _die_at(step: str, patch: pytest.MonkeyPatch) -> None:
    prepare, put = TextPrivatizer.written, ReleasedTexts.put

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def prepared(self: TextPrivatizer, texts: Sequence[str]) -> object:
        draw = prepare(self, texts)
        if step == "prepared":
            die()
        return lambda: (draw(), die()) if step == "drawn" else draw()

    def kept(self: ReleasedTexts, released: Any) -> object:
        put(self, released)
        return die()

    patch.setattr(TextPrivatizer, "written", prepared)
    patch.setattr(ReleasedTexts, "put", kept)


@pytest.mark.parametrize("face", ["invoke", "stream", "ainvoke", "astream", "batch", "abatch", "inside"])
def test_a_config_says_whose_account_is_charged_anywhere_in_a_chain(face: str) -> None:
    """If it breaks, a limit for each user does not hold in a chain, where no step gets arguments of its own."""
    made = sanitizer(eta=1.0, limit=2.0)
    chain: Runnable[Any, Any] = RunnableLambda(str) | made | RunnableLambda(str)
    ann, bob = ({"configurable": {"user_id": name}} for name in ("ann", "bob"))
    asked: list[tuple[str, Any]] = [("the", ann), ("the", bob), ("of", ann)]
    texts, configs = [text for text, _ in asked], [config for _, config in asked]
    if face == "batch":
        chain.batch(texts, configs)
    elif face == "abatch":
        asyncio.run(chain.abatch(texts, configs))
    for text, config in asked if "batch" not in face else ():
        if face == "inside":
            RunnableLambda(lambda text: made.invoke(text)).invoke(text, config)
        else:
            STYLES[face](chain, text, config)
    assert [made.ledger.spent(user=name) for name in ("ann", "bob")] == [2.0, 1.0]
    with pytest.raises(BudgetExceeded):
        chain.invoke("and", configs[0])
    assert made.invoke("and", configs[0], user="cyd")
    with pytest.raises(InvalidParameter, match="of type int to be a str"):
        chain.invoke("the", {"configurable": {"user_id": 7}})
    assert [spec.id for spec in chain.config_specs] == ["user_id"]
