"""What travels with an answer, and what never does."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from typing import Any

import pytest
from fakes import voters
from fakes.canary import CANARY
from fakes.voters import LABELS, AsyncVotingChat, VotingChat, VotingEngine, classifier, left, private_examples
from langchain_core.load import dumpd, dumps
from langchain_core.runnables import RunnableConfig

from langchain_dp import ChatDPICL, Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.icl import NonPrivateICL

ONE_BY_ONE: RunnableConfig = {"max_concurrency": 1}


async def test_an_answer_brings_its_certificate() -> None:
    """The promise that goes with an answer is missing, or says another epsilon than was reserved."""
    chain = classifier(AsyncVotingChat())
    for answer in (chain.invoke_with_certificate("x"), await chain.ainvoke_with_certificate("y")):
        assert answer.label == "positive"
        certificate = answer.certificate
        assert (certificate.epsilon, certificate.delta) == (50.0, 1e-5)
        assert certificate.neighbors is Neighbors.REPLACE_ONE
        assert certificate.private is True
        assert certificate.model == "voting-chat-1"
        assert "noisy max" in certificate.mechanism
        assert certificate.parameters["sigma"] == chain.sigma
        assert certificate.parameters["groups"] == 8
        assert "the number of records is public" in certificate.notes
        assert "the model's operator sees the examples" in certificate.notes
        assert CANARY not in f"{certificate!r}{certificate}{certificate._repr_html_()}"


def test_certificates_count_what_was_spent_and_what_is_left() -> None:
    """Spent and left stand still, or run ahead of the releases."""
    chain = classifier(max_queries=2)
    seen = [chain.certificate()] + [chain.invoke_with_certificate(question).certificate for question in "xy"]
    assert [certificate.remaining for certificate in seen] == [2, 1, 0]
    assert seen[0].spent == (0.0, 0.0)
    assert 0 < seen[1].spent[0] < seen[2].spent[0] <= 50.0


def test_a_seed_repeats_answers_and_says_so_and_no_seed_does_not() -> None:
    """Noise is the same in every run: by subtraction all votes are known, and the certificate promises privacy."""

    def answers(**changes: Any) -> list[str]:  # four votes against four: noise decides
        reply = {"examples": private_examples(24, labels=LABELS), "shots": 1, "partitions": 24, "subsets": 24}
        return classifier(**reply, max_queries=40, **changes).batch([f"{each}" for each in range(40)], ONE_BY_ONE)

    assert answers(not_private_seed=7) == answers(not_private_seed=7)
    assert answers(not_private_seed=7) != answers(not_private_seed=8)
    assert answers() != answers()
    certificate = classifier(not_private_seed=7).invoke_with_certificate("x").certificate
    assert certificate.private is False
    assert "seed" in certificate.reason
    assert "NOT PRIVATE" in str(certificate)


@pytest.mark.parametrize("method", ["zero-shot", "few-shot", "vote"])
@pytest.mark.parametrize("make", [VotingChat, VotingEngine])
async def test_baselines_answer_and_say_that_they_are_not_private(method: Any, make: Any) -> None:
    """A number without privacy is taken for a private one, or a baseline spends budget."""
    chain = classifier(make())
    baseline = chain.baseline(method, private=False)
    assert isinstance(baseline, NonPrivateICL)
    expected = "positive"  # zero-shot: the doubles name no label, which falls back to the first
    assert baseline.invoke("x") == await baseline.ainvoke("y") == expected
    certificate = baseline.invoke_with_certificate("x").certificate
    assert certificate.private is False
    assert certificate.reason
    assert certificate.epsilon == (0.0 if method == "zero-shot" else float("inf"))
    assert json.dumps(certificate.to_dict(), allow_nan=False)
    assert left(chain) == 5


def test_the_vote_baseline_counts_every_subset_without_noise() -> None:
    """The comparison is against another vote than the private one."""
    examples = private_examples(24, labels=["negative", "negative", "positive"])
    model = VotingChat(reply=lambda shots, _: "negative" if shots else "")
    chain = classifier(model, examples=examples, budget=PrivacyBudget(0.1), max_queries=1)
    assert {chain.baseline("vote", private=False).invoke(f"q{i}") for i in range(20)} == {"negative"}
    assert len(model.asked) == 20 * 8


def test_few_shot_asks_one_subset_and_zero_shot_none() -> None:
    """The baselines are given more or fewer examples than their name says."""
    model = VotingChat()
    chain = classifier(model)
    chain.baseline("few-shot", private=False).invoke("x")
    assert [len(shots) for shots in model.asked.shots] == [3]
    chain.baseline("zero-shot", private=False).invoke("x")
    assert (len(model.asked), model.asked.companions) == (1, 1)


def test_few_shot_shows_all_labels_alike() -> None:
    """The opponent is a prompt of one label only, which any method beats."""
    model = VotingChat()
    examples = private_examples(90, labels=["negative"] * 8 + ["positive"])
    baseline = classifier(model, examples=examples, shots=4).baseline("few-shot", private=False)
    for number in range(10):
        baseline.invoke(f"q{number}")
    words = [sorted(shot[1] for shot in shots) for shots in model.asked.shots]
    assert all(each.count("positive") == 2 for each in words if len(each) == 4)
    assert all({"negative", "positive"} <= set(each) for each in words)


@pytest.mark.parametrize("private", [True, None, 0, "no"])
def test_a_baseline_is_only_made_by_saying_that_it_is_not_private(private: Any) -> None:
    """A raw vote is released by someone who thought it private."""
    with pytest.raises(InvalidParameter, match="to be False"):
        classifier().baseline("vote", private=private)
    with pytest.raises(InvalidParameter, match="method='majority'"):
        classifier().baseline("majority", private=False)  # type: ignore[arg-type]  # that it is refused is the point


HOLDERS = {
    "classifier": classifier,
    "chat": lambda: ChatDPICL(classifier=classifier()),
    "baseline": lambda: classifier().baseline("vote", private=False),
    "sequence": lambda: classifier() | str.upper,
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("show", [repr, str, ascii, dumps, dumpd])
def test_nothing_that_holds_examples_shows_them(holder: str, show: Any) -> None:
    """A print or a LangChain dump of a chain shows private examples."""
    chain = HOLDERS[holder]()
    chain.invoke("x")
    assert CANARY not in str(show(chain))


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy])
def test_nothing_that_holds_examples_can_be_pickled_or_deep_copied(holder: str, take: Any) -> None:
    """Private examples end up in a pickle on disk or in another process, or live twice."""
    with pytest.raises(PrivateDataError) as caught:
        take(HOLDERS[holder]())
    assert CANARY not in repr(caught.value)


def test_a_shallow_copy_of_a_classifier_is_refused_and_of_a_chat_model_shares_the_classifier() -> None:
    """A copy has a budget of its own."""
    with pytest.raises(PrivateDataError):
        copy.copy(classifier())
    chat = ChatDPICL(classifier=classifier())
    assert copy.copy(chat).classifier is chat.classifier
    assert CANARY not in chat.model_dump_json()
    assert CANARY not in str(chat.model_dump())


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (PrivacyBudget(3.0, 0.05), "delta=0.05 is not below one over the number of records"),
        (PrivacyBudget(100.0), "epsilon=100 is above 10"),
    ],
)
def test_a_weak_promise_says_so(budget: PrivacyBudget, said: str) -> None:
    """Hardly anything is promised, and nobody is told: neither who builds the chain, nor who reads its certificate."""
    ledger = PrivacyLedger(budget)
    with pytest.warns(UserWarning, match=f"The promise is weak: {said}") as warned:
        chain = classifier(ledger=ledger, examples=private_examples(24, labels=("positive", "negative")))
    assert [warning.filename for warning in warned] == [voters.__file__]  # where the chain was built
    assert f"WARNING      {said}" in str(chain.plan())
    assert [said in note for note in chain.certificate().notes].count(True) == 1
    assert any(said in note for note in ledger.certificate().notes) is (budget.epsilon == 100.0)


def test_a_promise_of_sense_is_not_warned_of() -> None:
    """A warning that everybody gets is read by nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain = classifier(
            budget=PrivacyBudget(10.0, 1e-5), examples=private_examples(24, labels=("positive", "negative"))
        )
    assert "promises hardly anything" not in f"{chain.plan()}{chain.certificate()}"
    assert "not below" not in f"{chain.plan()}{chain.certificate()}"


@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_where_the_number_of_records_is_private_no_warning_depends_on_it(sampling: Any) -> None:
    """Whether there is a warning, or what it says, tells how many records there are."""
    settings: dict[str, Any] = {
        "sampling": sampling,
        "partitions": 8 if sampling == "fixed" else None,
        "sampling_probability": 0.125,
    }
    found = set()
    for count in (4, 8, 24, 600):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            chain = classifier(
                examples=private_examples(count, labels=("positive", "negative")),
                budget=PrivacyBudget(20.0, 0.125, Neighbors.ADD_OR_REMOVE_ONE),
                **settings,
            )
        told = tuple(str(warning.message) for warning in caught)
        found.add((told, chain.certificate().notes, chain.plan().weak))
    [(told, notes, weak)] = found
    assert len(told) == len(weak) == 2
    assert "delta=0.125 is not below one over the number of" in told[1]
    assert set(weak) <= set(notes)
