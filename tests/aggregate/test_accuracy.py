"""The private accuracy of chains: what counts as right, what the bars promise, and what a caller may get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.encoders import WordEncoder
from fakes.models import Chat
from fakes.readers import CHOICES, ReadingChat, colors
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from pydantic import Field

from langchain_dp import DPExampleSelector, DPSurvey, PrivacyBudget, PrivacyLedger, private_accuracy
from langchain_dp.accounting import Neighbors
from langchain_dp.aggregate import aprivate_accuracy
from langchain_dp.aggregate.counts import VoteCounts
from langchain_dp.errors import BudgetExceeded, InvalidParameter, ModelUnavailable, PlanError, UnsafeEnvironment

BUDGET, MANY = PrivacyBudget(1.0), PrivacyBudget(400.0)
ROWS = [{"text": f"{place} says {'rgbx'[place % 4]}", "label": "red", "who": f"u{place // 20}"} for place in range(100)]


def scored(chain: Any = None, rows: Any = ROWS, **options: Any) -> Any:
    settings: dict[str, Any] = {"budget": MANY, "labels": CHOICES} | options
    return private_accuracy(ReadingChat() if chain is None else chain, rows, **settings)


def test_right_answers_are_counted() -> None:
    """If it breaks, failures count as right, or a message is not read."""
    found = scored()
    assert found.accuracy == pytest.approx(0.25, abs=0.01)
    assert found.low <= 0.25 <= found.high
    assert found.chain == "ReadingChat"
    assert "25." in str(found) or "24." in str(found)


def test_chains_are_compared_in_one_release_whose_noise_grows_with_the_root_of_their_number() -> None:
    """If it breaks, comparing chains costs a budget each, or is charged as one."""
    prompt = ChatPromptTemplate.from_messages([("system", "Sort."), ("human", "color 0: {text}")])
    wrong = FakeListChatModel(responses=["green"])
    ledger = PrivacyLedger(MANY)
    found = scored([prompt | ReadingChat() | StrOutputParser(), wrong], budget=None, ledger=ledger)
    assert [round(score.accuracy, 1) for score in found] == [pytest.approx(0.25, abs=0.06), 0.0]
    assert len(ledger.plans()) == 1
    single = VoteCounts.of(BUDGET, votes=1, yes_or_no=True).deviation
    assert single == pytest.approx(3.73, abs=0.01)
    assert VoteCounts.of(BUDGET, votes=4, yes_or_no=True).deviation == pytest.approx(2 * single, rel=1e-3)


def test_without_a_public_number_of_records_it_is_released_too() -> None:
    """If it breaks, the private number of records is used as it is."""
    budget = PrivacyBudget(60.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)
    ledger = PrivacyLedger(budget)
    found = scored(budget=None, ledger=ledger)
    assert found.accuracy == pytest.approx(0.25, abs=0.05)
    assert found.sampling_error is None
    counts = VoteCounts.of(budget, votes=2, yes_or_no=True)
    assert counts.event == ledger.plans()[0].events[0][0]
    assert found.noise_error == pytest.approx(counts.deviation / 100 * 1.03, rel=0.1)


def test_own_inputs_and_judges() -> None:
    """If it breaks, chains of several variables or free answers cannot be scored."""
    prompt = ChatPromptTemplate.from_template("color {number}: {text}")
    found = scored(
        prompt | ReadingChat(),
        input_of=lambda record: {"number": "0", "text": record["text"]},
        is_right=lambda answer, record: answer.text.lower().startswith(record["label"]),
    )
    assert found.accuracy == pytest.approx(0.25, abs=0.01)
    assert scored(input_of=lambda record: f"{record['who']} {record['text']}").accuracy == pytest.approx(0.25, abs=0.01)


def test_a_judge_or_input_that_fails_is_wrong_for_that_record_alone() -> None:
    """If it breaks, one record ends the release."""

    def fails(answer: Any, record: Any) -> bool:
        return bool(1 / (not record["text"].startswith("0 ")))

    assert scored(is_right=fails).accuracy == pytest.approx(0.74, abs=0.01)  # every fourth call of the model fails
    broken = lambda record: record["text"] if record["text"] != "0 says r" else 1 / 0  # noqa: E731
    assert scored(input_of=broken).accuracy == pytest.approx(0.24, abs=0.01)


def test_labels_that_are_no_strings() -> None:
    """If it breaks, stars from 1 to 5 are never right."""
    rows = [{"text": "good", "label": 5}, {"text": "bad", "label": 1}] * 20
    found = scored(FakeListChatModel(responses=["5"]), rows, labels=[1, 2, 3, 4, 5])
    assert found.accuracy == pytest.approx(0.5, abs=0.02)


def test_a_chain_with_a_memory_is_refused() -> None:
    """If it breaks, one record is shown beside the next."""
    chain = RunnableWithMessageHistory(FakeListChatModel(responses=["red"]), lambda session: None)  # type: ignore[arg-type, return-value]
    for ask in (lambda: scored(chain), lambda: DPSurvey(colors(), model=chain)):
        with pytest.raises(UnsafeEnvironment, match="RunnableWithMessageHistory"):
            ask()
    with pytest.raises(UnsafeEnvironment, match="trust_opaque_model"):
        scored(RunnableLambda(lambda text: "red"))


WRONG: dict[str, tuple[Any, str]] = {
    "no chains": (lambda: scored([]), "1 to 100 chains"),
    "a function": (lambda: scored(lambda text: "red"), "RunnableLambda"),
    "no records": (lambda: scored(rows=[]), "at least one"),
    "an unknown label": (lambda: scored(rows=[{"text": "x", "label": "mauve"}]), "mauve|labels"),
    "one label": (lambda: scored(labels=["red"]), "labels"),
    "a judge that is none": (lambda: scored(is_right="red"), "is_right='red'"),
    "an input that is none": (lambda: scored(input_of="text"), "input_of='text'"),
    "no budget": (lambda: scored(budget=None), "budget"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_refused_by_name(case: str) -> None:
    """If it breaks, a mistake costs budget, or its message helps nobody."""
    make, match = WRONG[case]
    with pytest.raises(InvalidParameter, match=match):
        make()


def dead_encoder(ledger: PrivacyLedger) -> None:
    selector = DPExampleSelector(["a parcel", "an invoice"], encoder=(encoder := WordEncoder()))
    encoder.before = lambda text: 1 / 0
    selector.select(ROWS, labels=[*CHOICES], ledger=ledger)


DEAD: dict[str, Any] = {"model": RunnableLambda(lambda prompt: 1 / 0), "trust_opaque_model": True}


@pytest.mark.parametrize(
    "ask",
    [
        lambda ledger: scored(DEAD["model"], trust_opaque_model=True, budget=None, ledger=ledger),
        lambda ledger: DPSurvey(colors(), **DEAD).run(ROWS, ledger=ledger),
        dead_encoder,
    ],
    ids=["accuracy", "survey", "examples"],
)
def test_what_is_dead_is_refused_before_the_charge(ask: Any) -> None:
    """If it breaks, an outage costs the budget and looks like an accuracy of zero, or a table of "no answer"."""
    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(ModelUnavailable):
        ask(ledger)
    assert ledger.spent()[0] == 0.0


def test_a_chain_that_dies_is_no_accuracy_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """If it breaks, a server that stops halfway gives a low score, or the next attempt is charged again."""
    state = {"dies": True, "dead": False}

    def answer(prompt: str) -> None:
        state["dead"] |= state["dies"] and "99" in prompt
        if state["dead"]:
            raise ConnectionError

    chain = Chat(act=answer)
    with pytest.raises(ModelUnavailable):
        scored(chain, budget=BUDGET, ledger=tmp_path / "ledger", max_concurrency=1)
    spent = PrivacyLedger(BUDGET, tmp_path / "ledger").spent()
    assert spent[0] > 0.9
    state.update(dies=False, dead=False)
    chain.calls.clear()
    chain.threads.clear()
    scored(chain, budget=BUDGET, ledger=tmp_path / "ledger")
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent() == spent


class SerializableChat(FakeListChatModel):
    """Shows its settings, as models of providers do."""

    keeps_no_prompts: ClassVar[bool] = True
    i: int = Field(default=0, exclude=True)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_attributes(self) -> dict[str, Any]:
        return {"i": 0}


def test_a_ledger_keeps_the_accuracy_of_a_chain_that_it_can_tell_apart(tmp_path: Path) -> None:
    """If it breaks, another prompt gets the accuracy of the old one, or the same chain pays twice."""
    first, second = (ChatPromptTemplate.from_template(text) for text in ("Sort: {text}", "Please sort: {text}"))
    ledger = {"budget": BUDGET, "ledger": tmp_path / "ledger"}
    model = SerializableChat(responses=["red"])
    found = scored(first | model, **ledger)
    assert scored(first | model, **ledger) == found
    with pytest.raises(PlanError, match="settings"):
        scored(second | model, **ledger)
    opaque = RunnableLambda(lambda text: "red")
    other = {"ledger": PrivacyLedger(BUDGET), "budget": None, "trust_opaque_model": True}
    scored(opaque, **other)
    with pytest.raises(PlanError, match="nothing shows that it is this one"):
        scored(opaque, **other)
    with pytest.raises(BudgetExceeded):
        scored(opaque, **other, name="again")


async def test_the_async_twin_is_the_same() -> None:
    """If it breaks, async code counts otherwise."""
    found = await aprivate_accuracy(ReadingChat(), ROWS, labels=CHOICES, budget=MANY, not_private_seed=1)
    assert found.accuracy == scored(not_private_seed=1).accuracy
