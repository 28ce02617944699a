"""The rare settings, in groups: made, saved and shared; unknown arguments are refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import INSTRUCTION, SENTENCE, examples
from fakes.rapt import TABLE
from fakes.synthesizers import generator, synthesizer
from fakes.voters import LABELS, VotingChat, private_examples

from langchain_dp import (
    DPICLClassifier,
    DPLabelNamer,
    DPPromptOptimizer,
    DPPrototypeClassifier,
    DPSurvey,
    PrivacyBudget,
    PrivacyLedger,
    PrivateRecords,
    RAPTSanitizer,
    private_accuracy,
)
from langchain_dp.errors import InvalidParameter, WeakPromiseWarning
from langchain_dp.icl import ModelCallOptions, SamplingOptions
from langchain_dp.opt import CandidateOptions, Decoding
from langchain_dp.rapt import CalibrationTarget, DocumentRules, MessageRules, Policies

GROUPS = [
    SamplingOptions("fixed", 8, 0.5),
    ModelCallOptions(timeout=5.0, on_model_failure="ignore"),
    CandidateOptions(stop=["END"], epsilon0=0.5, delta0=1e-3),
    Decoding(0.7, 1.2, frozenset({"#"}), chat=True),
    MessageRules(system="sanitize", media="drop", keys_keep=["rows"]),
    DocumentRules(["source"], ["title"], "patient", "id"),
    CalibrationTarget(inversion=0.2, texts=["a text"]),
    Policies(numbers="keep"),
]


def classifier(**settings: Any) -> DPICLClassifier:
    return DPICLClassifier(
        model=VotingChat(), examples=private_examples(24), labels=LABELS, shots=3, subsets=4, max_queries=5,
        **({} if "ledger" in settings else {"budget": PrivacyBudget(5.0)}) | settings,
    )  # fmt: skip


def optimizer(**settings: Any) -> DPPromptOptimizer:
    return DPPromptOptimizer(
        model=WordEngine(agreeing(SENTENCE)), labels=["negative", "positive"], instruction=INSTRUCTION,
        **{"budget": PrivacyBudget(200.0, 0.1), "shots": 2, "subsets": 16} | settings,
    )  # fmt: skip


def sanitizer(**settings: Any) -> RAPTSanitizer:
    return RAPTSanitizer(TABLE, **({"eta": 1.0} | settings))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group).__name__)
def test_a_group_is_saved_and_comes_back(group: Any) -> None:
    """If it breaks, settings that were kept as JSON are others when they are read again."""
    fields = json.loads(json.dumps(dataclasses.asdict(group), default=list))
    assert type(group)(**fields) == group
    assert hash(group) == hash(type(group)(**fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(group, dataclasses.fields(group)[0].name, None)


def test_what_no_argument_ever_was_called_is_refused() -> None:
    """If it breaks, a slip is swallowed, and its default used."""
    for made in (classifier, optimizer, sanitizer, synthesizer, generator):
        with pytest.raises(InvalidParameter, match=r"has no argument timeot=\. Remove it"):
            made(timeot=5)


@pytest.mark.parametrize(
    ("made", "given", "meant"),
    [
        (classifier, "epsilon", "DPICLClassifier has no argument epsilon=.* Give budget=PrivacyBudget"),
        (classifier, "llm", "Give model=."),
        (optimizer, "llm", "DPPromptOptimizer has no argument llm=.* Give model=."),
        (synthesizer, "llm", "DPExampleSynthesizer has no argument llm=.* Give model=."),
        (generator, "max_querys", "Give max_queries=."),
        (functools.partial(PrivacyLedger, PrivacyBudget(1.0)), "ledger_path", "PrivacyLedger has no .* Give path=."),
        (sanitizer, "epsilon", "RAPTSanitizer has no argument epsilon=.* Give eta="),
        (DPPrototypeClassifier.fit, "epsilon", "fit has no argument epsilon=.* Give budget=PrivacyBudget"),
        (DPLabelNamer.fit, "epsilon", "fit has no argument epsilon=.* Give budget=PrivacyBudget"),
        (DPSurvey.run, "records", "run has no argument records="),
        (private_accuracy, "llm", "private_accuracy has no argument llm="),
        (PrivateRecords, "id_key", "PrivateRecords has no argument id_key=.*the key 'id' for ids: rename the column"),
    ],
)  # fmt: skip
def test_an_argument_by_another_name_is_answered_with_its_own(made: Callable[..., Any], given: str, meant: str) -> None:
    """If it breaks, a new user reads of an unexpected keyword and has to search for the one that is meant."""
    with pytest.raises(InvalidParameter, match=meant) as caught:
        made(**{given: "a private text"})
    assert "private text" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (classifier, {"model_calls": {"timeout": 5}}),
        (classifier, {"sampling": {"scheme": "fixed"}}),
        (optimizer, {"candidate_options": 5}),
        (optimizer, {"decoding": CandidateOptions()}),
        (sanitizer, {"messages": DocumentRules()}),
        (sanitizer, {"documents": ["id"]}),
        (sanitizer, {"target": 0.5}),
    ],
)
def test_something_else_than_the_group_is_refused(made: Callable[..., Any], wrong: dict[str, Any]) -> None:
    """If it breaks, a dict in place of a group ends in an AttributeError, after a plan was reserved."""
    with pytest.raises(InvalidParameter, match=f"Expected {next(iter(wrong))}"):
        made(**wrong)


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -0.1}, {"temperature": float("inf")}, {"temperature": float("nan")}, {"repetition_penalty": 0.9},
     {"repetition_penalty": float("inf")}, {"banned": "abc"}],
)  # fmt: skip
def test_a_decoding_out_of_bounds_is_refused(bad: dict[str, Any]) -> None:
    """If it breaks, a text in place of a list bans its letters, or votes are drawn at a negative temperature."""
    with pytest.raises(InvalidParameter, match=f"Expected {next(iter(bad))}"):
        Decoding(**bad)


def test_texts_of_a_target_are_a_list() -> None:
    """If it breaks, eta is calibrated on the letters of one text."""
    with pytest.raises(InvalidParameter, match="Expected texts to be a list of strings"):
        CalibrationTarget(texts="one text")


def test_a_weak_promise_is_said_at_the_line_of_the_user() -> None:
    """If it breaks, the warning points into this package, and Python shows it once for all chains or not at all."""
    weak = PrivacyBudget(20.0)
    with PrivacyLedger(PrivacyBudget(60.0, 1e-4)) as ledger:
        for spend in (
            lambda: classifier(budget=weak, name="a", ledger=ledger),
            lambda: classifier().with_budget(weak),
            lambda: optimizer(shots=1).plan(40),
            lambda: optimizer().optimize(examples()),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                spend()
            places = {warning.filename for warning in caught if warning.category is WeakPromiseWarning}
            assert places == {__file__}
