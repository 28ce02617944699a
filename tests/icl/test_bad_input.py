"""What users get wrong: each is refused before anything is spent, in words that help and hold nothing private."""

from __future__ import annotations

import asyncio
import dataclasses
import traceback
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY
from fakes.voters import VotingChat, VotingLLM, classifier, left, private_examples

from langchain_dp import ChatDPICL, DPICLClassifier, Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter, LangChainDPError
from langchain_dp.icl import AGNEWS, AMAZON

HALF: dict[str, Any] = {"partitions": None, "sampling_probability": 0.5}
DERIVED: dict[str, Any] = {"partitions": None, "sampling_probability": None}
ADD_REMOVE = {"budget": PrivacyBudget(3.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE)}


def clean(error: BaseException | None) -> None:
    """No example in the exception, in what it drags along, or in the printed traceback."""
    assert error is not None
    assert CANARY not in "".join(traceback.format_exception(error))
    while error is not None:
        assert CANARY not in f"{error!s} {error!r} {error.args!r} {vars(error)!r}"
        error = error.__cause__ or error.__context__


def refused(message: str, **changes: Any) -> None:
    """The configuration is refused with this message, which is clean, and nothing was reserved."""
    ledger = PrivacyLedger(PrivacyBudget(50.0))
    if "budget" not in changes:
        changes.setdefault("ledger", ledger)
    with pytest.raises(InvalidParameter, match=message) as caught:
        classifier(**changes)
    clean(caught.value)
    assert ledger.plans() == []


ROWS = private_examples(24)
ROW = {"text": f"odd {CANARY}", "label": "positive"}


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"at least one example, but found 0\. Give examples=", {"examples": [], **DERIVED}),
        (r"at least one example, but found 0", {"examples": []}),
        (r"subsets \* shots = 8 \* 4 = 32 examples, but there are 24\. Give more", {"shots": 4} | DERIVED),
        (r"subsets \* shots = 8 \* 4 = 32 examples", {"shots": 4, "sampling": "resample"} | DERIVED),
        (r"subsets \* shots = 1 \* 30 = 30 examples, but there are 24", {"shots": 30, "partitions": None}),
        (r"partitions=4 to be at least subsets=8\. Raise", {"partitions": 4, "sampling_probability": None}),
        (r"label of example 24 to be one of labels=", {"examples": [*ROWS, {**ROW, "label": CANARY}]}),
        (r"example 24 to have a non-empty str under 'text'", {"examples": [*ROWS, {**ROW, "text": ""}]}),
        (r"example 0 to be a mapping", {"examples": [CANARY]}),
        (r"prompt to name keys of the examples, but no .* has \['title'\]. Write \{text\} for", {"prompt": AMAZON}),
        (r"labels=\['positive'\] to hold at least two labels", {"labels": ["positive"]}),
        (r"labels=\[\] to hold at least two", {"labels": []}),
        (r"trust_opaque_model='false' to be one of \[False, True\]", {"trust_opaque_model": "false"}),
        (r"calibrate='no' to be one of", {"calibrate": "no"}),
        (r"replicas='no' to be one of", {"replicas": "no"}),
        (r"each once", {"labels": ["positive", "positive"]}),
        (r"a list, not a set", {"labels": {"positive", "negative"}}),
        (r"\['Positive'\] are not in labels=", {"prompt": dataclasses.replace(AGNEWS, words={"Positive": "good"})}),
        (r"labels='positive' to be a list", {"labels": "positive"}),
        (r"to be a list such as", {"labels": ["positive", " "]}),
        (r"to be a list such as", {"labels": ["positive", 1]}),
        (r"\['positive', 'Positive'\] to differ in more than case", {"labels": ["positive", "Positive"]}),
        (r"one line each, as an answer is, not \['a\\nb'\]", {"labels": ["positive", "a\nb"]}),
        (r"max_queries=0 to be a whole number from 1 to 10000000", {"max_queries": 0}),
        (r"max_queries=10000001 to be a whole number from 1 to 10000000", {"max_queries": 10_000_001}),
        (r"max_queries=2.5 to be a whole number", {"max_queries": 2.5}),
        (r"shots=0 ", {"shots": 0}),
        (r"subsets=-1 ", {"subsets": -1}),
        (r"partitions=0 ", {"partitions": 0}),
        (r"probability=0 to be above 0 and at most 1", {"sampling_probability": 0}),
        (r"probability=1.5 to be", {"sampling_probability": 1.5}),
        (r"sampling='poisson' to be one of", {"sampling": "poisson"}),
        (r'partitions=8 to be absent: "resample" uses subsets=', {"sampling": "resample"}),
        (r"timeout=0 to be above 0", {"timeout": 0}),
        (r"max_concurrency=0 to be a whole number of at least 1", {"max_concurrency": 0}),
        (r"max_question_chars=0 to be a whole number", {"max_question_chars": 0}),
        (r"budget= or ledger= to be given, but both are None", {"budget": None}),
        (r"budget=3.0 to be a PrivacyBudget\. Give PrivacyBudget\(3.0\)", {"budget": 3.0}),
        (r"model to be a model, but it is a str.*init_chat_model", {"model": "gpt"}),
        (r"model of type function to be a chat model.*RunnableLambda", {"model": lambda prompt: "positive"}),
        (r"a list, not a mapping.*words= of its template", {"labels": {"positive": "good", "negative": "bad"}}),
        # Under add/remove nothing may follow the private number of records.
        (r"partitions=None and probability=None of sampling= to be given under add/remove", DERIVED | ADD_REMOVE),
        (r"partitions=None and probability=0.5 of sampling= to be given", HALF | ADD_REMOVE),
        (r"partitions=8 and probability=None of sampling= to be given", {"sampling_probability": None, **ADD_REMOVE}),
        (r"probability=None of sampling= to be given", {"sampling": "resample", **DERIVED, **ADD_REMOVE}),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_refused_before_anything_is_reserved(message: str, changes: dict[str, Any]) -> None:
    """A wrong parameter is found late, after a plan took its share of the ledger, or in words that help nobody."""
    refused(message, **changes)


def test_under_add_remove_no_examples_are_as_good_as_some() -> None:
    """An error says that there are no records, where their number is private."""
    assert classifier(examples=[], max_queries=1, **ADD_REMOVE).invoke("x") in ("positive", "negative")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0}, "epsilon=0 to be"),
        ({"epsilon": -1.0}, "epsilon=-1.0 to be"),
        ({"epsilon": float("inf")}, "epsilon=inf"),
        ({"epsilon": 1.0, "delta": 0}, r"delta=0 to be above 0 and below 1"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta=1.0 to be"),
        ({"epsilon": 1.0, "neighbors": "next_door"}, r"neighbors='next_door' to be one of \['add_or_remove_one'"),
        ({"epsilon": 1.0, "neighbors": None}, "neighbors=None"),
    ],
)
def test_a_bad_budget_is_refused(arguments: dict[str, Any], message: str) -> None:
    """A budget without meaning reaches the noise."""
    with pytest.raises(InvalidParameter, match=message):
        PrivacyBudget(**arguments)


def test_a_typing_mistake_in_an_argument_is_an_error() -> None:
    """A misspelt argument is swallowed, and its default used."""
    with pytest.raises(InvalidParameter, match=r"DPICLClassifier has no argument subset=\. Give subsets=\."):
        classifier(subset=3)
    with pytest.raises(TypeError, match="max_queries"):
        DPICLClassifier(model=VotingChat(), examples=private_examples(24), labels=["a", "b"], budget=PrivacyBudget(1.0))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ChatDPICL()  # type: ignore[call-arg]  # that it is refused is the point
    with pytest.raises(InvalidParameter, match="classifier=str to be a DPICLClassifier"):
        ChatDPICL(classifier="none")  # type: ignore[arg-type]  # that it is refused is the point


async def test_unknown_arguments_of_a_call_are_refused() -> None:
    """invoke(temperature=0) looks as if it did something."""
    chain = classifier()
    for call in (chain.invoke, lambda *a, **k: list(chain.stream(*a, **k)), lambda q, **k: chain.batch([q], **k)):
        with pytest.raises(InvalidParameter, match=r"no further arguments, got \['temperature'\]"):
            call("x", temperature=0)
    with pytest.raises(InvalidParameter, match="temperature"):
        await chain.ainvoke("x", temperature=0)
    assert left(chain) == 5


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "the question to be a non-empty text, but it is blank. Nothing was spent"),
        (" \n\t", "blank"),
        ({"text": ""}, "blank"),
        ({"other": "x"}, r"mapping with \['text'\]; missing: \['text'\]"),
        (7, "question to be a str or a mapping, not int"),
        (None, "not NoneType"),
        (["x"], "question|message"),
        ("x" * 200, r"213 characters with its template, to be at most max_question_chars=100"),
    ],
)
async def test_a_bad_question_says_what_is_wrong_and_spends_nothing(question: Any, message: str) -> None:
    """A refused question costs budget or is shown to the model, or its error leaves the user guessing."""
    chain = classifier(model := VotingChat(), max_question_chars=100)
    for ask in (chain.invoke, lambda asked: asyncio.run(chain.ainvoke(asked))):
        with pytest.raises(InvalidParameter, match=message) as caught:
            await asyncio.to_thread(ask, question)
        clean(caught.value)
    assert (left(chain), len(model.asked), model.asked.probes) == (5, 0, 0)


@pytest.mark.parametrize("questions", ["fire downtown", b"ab", {"text": "x"}, 5, ["x", "y", None], ["x", " "]])
async def test_a_batch_is_looked_at_before_any_of_it_is_charged(questions: Any) -> None:
    """If it breaks, a slip costs an answer a letter, or what stands before a bad question, and is told to be free."""
    chain = classifier()
    calls = [chain.batch, lambda asked: list(chain.batch_as_completed(asked))]
    for call in calls:
        with pytest.raises(InvalidParameter, match=r"a list of questions|Question \d of a batch.*Nothing was spent"):
            call(questions)
    with pytest.raises(InvalidParameter, match="Nothing was spent"):
        await chain.abatch(questions)
    with pytest.raises(InvalidParameter, match="Nothing was spent"):
        [one async for one in chain.abatch_as_completed(questions)]
    assert left(chain) == 5
    found: list[Any] = chain.batch(["x", None, "y"], return_exceptions=True)  # type: ignore[list-item]
    assert [type(one).__name__ for one in found] == ["str", "InvalidParameter", "str"]
    assert left(chain) == 3


@pytest.mark.parametrize("kind", [VotingChat, VotingLLM])
@pytest.mark.parametrize("raises", [True, False])
async def test_a_broken_model_abstains_and_shows_no_example_in_any_exception(kind: Any, raises: bool) -> None:
    """A model's failure brings private text to the caller, or its spend is given back."""

    def answer(shots: Any, question: str) -> str:
        if raises and shots:
            raise ValueError(f"bad request: {shots}")
        return f"{CANARY} {shots}"

    model = kind(reply=answer)
    chain = classifier(model, max_queries=2)
    assert {chain.invoke("x"), await chain.ainvoke("y")} <= set(chain.labels)
    assert (len(model.asked), left(chain)) == (16, 0)
    with pytest.raises(LangChainDPError) as caught:
        chain.invoke("z")
    clean(caught.value)


def test_a_seed_beside_a_ledger_is_refused() -> None:
    """A ledger certifies as private what was released with a known seed."""
    with pytest.raises(InvalidParameter, match="not_private_seed=1 without a shared ledger"):
        classifier(ledger=PrivacyLedger(PrivacyBudget(50.0)), not_private_seed=1)
    seeded = classifier(not_private_seed=1)
    with pytest.raises(InvalidParameter, match="not_private_seed=1 without a shared ledger"):
        seeded.with_budget(PrivacyBudget(1.0), ledger=PrivacyLedger(PrivacyBudget(50.0)))
    assert seeded.with_budget(PrivacyBudget(1.0)).certificate().private is False


def test_a_field_that_is_no_text_is_refused() -> None:
    """An object's own text conversion runs, and its exception carries private text."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError(CANARY)

    examples = [{**example, "title": Odd()} for example in private_examples(24)]
    with pytest.raises(InvalidParameter, match=r"\['title'\] of examples 0, 1, .* to be text or numbers"):
        classifier(examples=examples, prompt=AMAZON)


def test_a_timeout_on_a_model_that_serializes_calls_is_refused() -> None:
    """One long record lets the calls behind it expire, and moves many votes."""

    class OneByOne(VotingChat):
        keeps_no_prompts: ClassVar[bool] = True
        serializes_calls: ClassVar[bool] = True

    with pytest.raises(InvalidParameter, match=r"timeout=5.0 to be None: OneByOne"):
        classifier(OneByOne(), timeout=5.0)
    noted = classifier(timeout=5.0).certificate().notes
    assert any("timeout" in note for note in noted)
    assert not any("timeout" in note for note in classifier().certificate().notes)


def test_small_slips_are_refused_for_nothing() -> None:
    """If it breaks, a wrong type ends in an AttributeError, is taken for "no value", or costs a release of noise."""
    chain = classifier()
    for price in (-1.0, float("nan"), "a"):
        with pytest.raises(InvalidParameter, match="price_per_million_tokens"):
            chain.plan(price_per_million_tokens=price)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidParameter, match="record_id=7 to be a str"):
        chain.forget(7)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidParameter, match=r"max_queries=0 to be a whole number from 1"):
        chain.with_budget(PrivacyBudget(1.0), max_queries=0)
    with pytest.raises(InvalidParameter, match="lone surrogate") as caught:
        chain.invoke(f"{CANARY} \ud800")
    assert CANARY not in str(caught.value)
    with pytest.raises(InvalidParameter, match="differ in more than case and blanks"):
        classifier(labels=["New York", "new  york"], examples=private_examples(24, labels=["New York"]))
    assert left(chain) == 5
