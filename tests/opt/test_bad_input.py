"""What is refused, before anything is spent or anybody is asked: each message names value, bound and remedy."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.models import Chat
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import ADD_OR_REMOVE, BUDGET, SENTENCE, ZERO_OUT, Looking, examples, optimizer
from fakes.scorer import WordScorer
from fakes.synthesizers import generator, synthesizer
from fakes.voters import VotingEngine

from langchain_dp import PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.errors import InvalidParameter, LangChainDPError
from langchain_dp.opt import DLNSettings, OptPrompts, PromptAlternative


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instruction": ""}, r"instruction='' to say what the task is"),
        ({"instruction": " \n"}, r"instruction=.* to say what the task is"),
        ({"instruction": None}, r"instruction=None"),
        ({"instruction": "Say \ud800."}, "instruction to be valid Unicode"),
        ({"instruction": "word " * 3000}, r"fit into the model's 2000 tokens.*lower shots="),
        ({"shots": 400}, r"shots=400.*needs more than.*more room \(max_tokens=\)"),
        ({"model": WordEngine(max_prompt_tokens=140)}, r"model's 140 tokens.*with 16 of each example"),
        ({"labels": ["yes"]}, r"labels=\['yes'\] to hold at least two"),
        ({"labels": ["yes", "yes"]}, r"each once"),
        ({"labels": "yes"}, r"labels='yes' to be a list"),
        ({"labels": ["yes", ""]}, r"list such as"),
        ({"prompts": OptPrompts(words={"postive": "good"})}, r"\['postive'\] are not in labels="),
        ({"labels": ["yes", "Yes"]}, r"\['yes', 'Yes'\] to differ in more than case"),
        ({"labels": ["yes", "no"], "prompts": OptPrompts(words={"no": "YES"})}, r"\['yes', 'YES'\] to differ"),
        ({"model": None}, r"model=NoneType to be a local engine that writes tokens and scores labels"),
        ({"model": Chat()}, r"model=Chat to be a local engine.*LlamaCppEnsemble"),
        ({"model": VotingEngine()}, r"model=VotingEngine"),
        ({"budget": None}, r"budget= or ledger= to be given.*PrivacyBudget\(3.0\)"),
        ({"budget": 3.0}, r"budget=3.0 to be a PrivacyBudget"),
        ({"ledger": PrivacyLedger(BUDGET), "not_private_seed": 1}, r"not_private_seed=1 without a shared ledger"),
        ({"ledger": PrivacyLedger(BUDGET), "budget": ADD_OR_REMOVE}, r"ADD_OR_REMOVE_ONE to be the ledger's"),
        ({"epsilon0": None}, r"delta0=0.001 together with epsilon0. Give both, or neither"),
        ({"epsilon0": 0.0}, r"epsilon0=0.0 to be above 0"),
        ({"epsilon0": math.nan}, r"epsilon0=nan to be a finite number"),
        ({"delta0": 1.0}, r"delta0=1.0 to be above 0 and below 1"),
        ({"kbar": 10**6}, r"kbar=1000000 to be below the model's \d+ tokens. Ten is plenty"),
        ({"temperature": math.nan}, r"temperature=nan to be a finite number"),
        ({"validation": 0.0}, r"validation=0.0 to be above 0 and below 1"),
        ({"num_prompts": "5"}, r"num_prompts='5' to be a number, got a str. Write 5"),
        ({"progress": "yes"}, r"progress='yes' to be one of"),
        ({"sampling": "some"}, r"sampling='some' to be one of"),
        ({"budget": ADD_OR_REMOVE, "sampling": "resample"}, r'partitions=16 to be absent: "resample"'),
        ({"sampling_probability": 0.0}, r"probability=0.0"),
        ({"sampling_probability": 1.1}, r"probability=1.1"),
        *(
            ({name: value}, rf"{name}={value}")
            for value, names in {
                0: ["kbar", "num_prompts", "max_new_tokens", "max_calls", "shots", "subsets", "partitions"],
                -1: ["max_retries", "temperature"], 0.9: ["repetition_penalty"], 1.0: ["validation"],
                1990: ["max_new_tokens"],
            }.items()
            for name in names
        ),
        ({"stop": "\n"}, r"stop='\\n' to be a list of non-empty strings"),
        ({"stop": ["\n", ""]}, r"stop=\['\\n', ''\] to be a list of non-empty strings"),
        ({"stop": [7]}, r"stop=\[7\] to be a list of non-empty strings"),
    ],
)  # fmt: skip
def test_a_setting_out_of_bounds_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    """If it breaks, a typing mistake is found after hours, or never."""
    with pytest.raises(InvalidParameter, match=f"(?s){message}"):
        optimizer(**changes)


def test_a_mistyped_argument_and_what_is_not_there_yet_are_refused() -> None:
    """If it breaks, a typing mistake is swallowed, a certificate printed for nothing, or a name breaks a ledger."""
    made = optimizer()
    with pytest.raises(InvalidParameter, match=r"a run to have started. Call invoke"):
        made.certificate()
    for name in ("", "two\nlines", "x" * 201, 5):
        with pytest.raises(LangChainDPError, match=r"name.* to be 1 to"):
            optimizer(name=name)
    with pytest.raises(InvalidParameter, match=r"no argument epsilon=\. Give budget=PrivacyBudget"):
        optimizer(epsilon=3.0)
    with pytest.raises(InvalidParameter, match=r"no further arguments, got \['stop'\]"):
        made.invoke(examples(), stop=["\n"])


ROWS: dict[str, tuple[Any, str]] = {
    "unknown label": (
        [*examples(39), {"text": CANARY, "label": f"neutral {CANARY}"}],
        r"label of example 39 .*one of",
    ),
    "no text": ([{"label": "positive"}], r"example 0 to have a non-empty str under 'text'"),
    "no label": ([{"text": CANARY}], r"example 0 to have a non-empty str under 'label'"),
    "no mapping": ([CANARY], r"example 0 to be a mapping with text and label, not str"),
    "half a letter": ([{"text": "\ud800", "label": "positive"}], r"valid Unicode under 'text'"),
    "same id": ([{"text": CANARY, "label": "positive", "id": CANARY}] * 2, r"id of example 1 to be new"),
    "none at all": ([], r"at least one example, but found 0"),
    "empty generator": (iter(()), r"at least one example, but found 0"),
    "no validation": (examples(2), r"validation=0.2 of 2 examples to be at least one.*another\s+share"),
}


@pytest.mark.parametrize("what", ROWS)
def test_bad_examples_are_refused_without_a_word_of_them(what: str) -> None:
    """If it breaks, a bad row costs budget, ends in a traceback, or is quoted in the message."""
    rows, message = ROWS[what]
    engine, ledger = Looking(), PrivacyLedger(BUDGET)
    made = optimizer(engine, ledger=ledger, shots=1, partitions=None, sampling_probability=None, subsets=1)
    with pytest.raises(InvalidParameter, match=f"(?s){message}") as caught:
        made.invoke(rows)
    assert CANARY not in repr(caught.value)
    assert caught.value.__context__ is None or CANARY not in repr(caught.value.__context__)
    assert (ledger.plans(), engine.shown) == ([], [])


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (3, {"shots": 5, "subsets": 1}, r"subsets \* shots = 1 \* 5 = 5 examples, but there are 2"),
        (40, {"shots": 2, "subsets": 17}, r"subsets \* shots = 17 \* 2 = 34 examples, but there are 32"),
        (40, {"shots": 2, "subsets": 16, "partitions": 15}, r"partitions=15 to be at least subsets=16"),
    ],
)
def test_too_few_examples_are_refused(count: int, changes: dict[str, Any], message: str) -> None:
    """If it breaks, subsets are smaller than the user believes, or q is above one."""
    engine, ledger = Looking(), PrivacyLedger(BUDGET)
    settings: dict[str, Any] = {"partitions": None, "sampling_probability": None} | changes
    made = optimizer(engine, ledger=ledger, validation=0.2 if count > 5 else 0.34, **settings)
    for ask in (made.invoke, made.plan):
        with pytest.raises(InvalidParameter, match=message):
            ask(examples(count))
    assert (ledger.plans(), engine.shown) == ([], [])


def test_a_template_whose_keys_are_missing_is_refused() -> None:
    """If it breaks, a missing key is a KeyError in the middle of a run, and every call of it is charged."""
    engine, ledger = Looking(), PrivacyLedger(BUDGET)
    made = optimizer(engine, ledger=ledger, prompts=OptPrompts("{title}: {text}"))
    rows = [{**row, "title": "t"} for row in examples(39)] + examples(1)
    for ask in (made.invoke, made.plan):
        with pytest.raises(InvalidParameter, match=r"example 39 to have the template's keys, but \['title'\]"):
            ask(rows)
    assert (ledger.plans(), engine.shown) == ([], [])
    made.invoke([{**row, "title": "t"} for row in examples()])


@pytest.mark.parametrize(
    "template",
    ["no variable", "{text:d}", "{text:{label}}", "{text.real}", "{text[0]}", "{}", "{0}", "{text", "{text!z}"],
)
def test_a_strange_template_is_refused(template: str) -> None:
    """If it breaks, a template that cannot be filled is found when records are at hand, or reads another field."""
    with pytest.raises(InvalidParameter, match=re.escape(f"text={template!r} to hold")):
        OptPrompts(template)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptPrompts(messages=()), r"messages=\(\) to be at least one request"),
        (lambda: OptPrompts(messages="Improve it."), r"messages='Improve it.' to be at least one request"),
        (lambda: OptPrompts(words={"a": "yes", "b": "Yes"}), r"two labels share one"),
        (lambda: OptPrompts(words={"a": "yes", "b": " "}), r"one line of text by label, not 'b': ' '"),
        (lambda: OptPrompts(words={"a": 5}), r"one line of text by label, not 'a': 5"),  # type: ignore[dict-item]
        (lambda: OptPrompts(meta=5), r"meta of type int to be a str"),  # type: ignore[arg-type]
        (lambda: OptPrompts(messages=[None]), r"messages of type NoneType to be a str"),  # type: ignore[list-item]
        (lambda: PromptAlternative("Say \ud800."), r"instruction of an alternative to be valid Unicode"),
        (lambda: DLNSettings(temperature=math.nan), r"temperature=nan"),
        *(
            (functools.partial(DLNSettings, **{name: 0}), f"{name}=0")
            for name in ("steps", "prompts_per_step", "demonstrations", "max_new_tokens")
        ),
    ],
)
def test_bad_templates_tasks_and_settings_are_refused(make: Any, message: str) -> None:
    """If it breaks, a bound of a public object is not checked."""
    with pytest.raises(InvalidParameter, match=message):
        make()


def least(message: str, name: str) -> float:
    """The number that a message names as enough."""
    found = re.search(rf"at least {name}=([0-9.e+-]+)", message)
    assert found, message
    return float(found[1])


@pytest.mark.parametrize(
    ("epsilon", "budget", "changes"),
    [
        (1e-2, BUDGET, {}),
        (1.0, BUDGET, {}),
        (0.1, BUDGET, {"partitions": 40, "sampling_probability": 0.3, "max_calls": 30}),
        (0.1, ADD_OR_REMOVE, {"partitions": 300, "sampling_probability": 0.17, "max_calls": 7}),
        (0.1, ZERO_OUT, {"partitions": 12}),
        (1.0, ADD_OR_REMOVE, {"sampling": "resample", "partitions": None, "subsets": 20, "sampling_probability": 0.5}),
    ],
)
def test_the_least_budget_that_is_named_is_enough(
    epsilon: float, budget: PrivacyBudget, changes: dict[str, Any]
) -> None:
    """If it breaks, a user who follows the message is refused again: rounded to three digits, it named too little."""
    settings: dict[str, Any] = {"epsilon0": None, "delta0": None} | changes

    def share(epsilon: float) -> PrivacyBudget:
        return PrivacyBudget(epsilon, 1e-4, budget.neighbors)

    ledger = PrivacyLedger(share(epsilon))
    engine = Looking()
    with pytest.raises(InvalidParameter, match=r"to be enough for one token: with \d+ calls a token needs") as caught:
        optimizer(engine, ledger=ledger, **settings).invoke(examples())
    assert (ledger.plans(), engine.shown) == ([], [])
    named = least(str(caught.value), "epsilon")
    report = optimizer(budget=share(named), **settings).plan(examples())
    assert report.votes_needed <= report.scheme.expected_subsets
    if epsilon == 1.0:
        with pytest.raises(InvalidParameter):
            optimizer(budget=share(0.98 * named), **settings).check(examples())


def test_the_least_epsilon0_that_is_named_is_enough() -> None:
    """If it breaks, the message sends a user with a fixed epsilon0 to a larger budget, which does not help."""
    with pytest.raises(InvalidParameter, match=r"epsilon0=0.5.*which costs epsilon=") as caught:
        optimizer(epsilon0=0.5).check(examples())
    named = least(str(caught.value), "epsilon0")
    assert optimizer(epsilon0=named).plan(examples()).votes_needed <= 16
    cost = re.search(r"which costs epsilon=([0-9.e+-]+)\)", str(caught.value))
    assert cost is not None
    assert optimizer(epsilon0=named, budget=PrivacyBudget(float(cost[1]), 0.1)).plan(examples()).votes_needed <= 16


@pytest.mark.parametrize("budget", [BUDGET, ZERO_OUT])
def test_two_voters_are_too_few_whatever_the_budget(budget: PrivacyBudget) -> None:
    """If it breaks, a division by zero, or a budget is named that does not help."""
    settings: dict[str, Any] = {"epsilon0": None, "delta0": None, "budget": budget}
    with pytest.raises(InvalidParameter, match=r"Give subsets= above [12]"):
        optimizer(**settings, partitions=2 if budget is BUDGET else 1).check(examples())


def test_noise_that_does_not_fit_is_refused() -> None:
    """If it breaks, a run is charged with more than its budget, or dies when that is gone."""
    ledger = PrivacyLedger(PrivacyBudget(20.0, 0.1))
    with pytest.raises(
        InvalidParameter,
        match=r"epsilon0=4, delta0=0.001 to fit into epsilon=20.* for 16 calls, but they cost epsilon=",
    ):
        optimizer(ledger=ledger).invoke(examples())
    assert ledger.plans() == []


@pytest.mark.parametrize("calls", [4, 16, 500])
def test_thresholds_that_miss_more_than_delta_are_refused(calls: int) -> None:
    """If it breaks, a large delta0 ends in an IndexError of a library instead of a remedy."""
    for delta0 in (0.09, 0.5, 0.999):
        with pytest.raises(InvalidParameter, match=r"but they cost epsilon=.*Lower epsilon0 or delta0"):
            optimizer(delta0=delta0, max_calls=calls).plan(examples())


def test_an_epsilon0_alone_chooses_its_delta0() -> None:
    """If it breaks, delta0 is left at nothing, or takes all of delta."""
    assert optimizer(delta0=None).plan(examples()).token.delta0 == pytest.approx(0.1 * 0.1 / 16)


def test_records_are_copied_when_a_run_starts() -> None:
    """If it breaks, what is added or forgotten during a run reaches it: it ends in a KeyError, and is paid for."""
    records = PrivateRecords(examples())

    def look(bodies: list[str]) -> None:
        if len(records) == 40 and "Student" not in bodies[0]:
            records.add({"text": "late comer", "label": "positive"})
            for name in records.ids()[:20]:
                records.forget(name)

    engine = Looking(look)
    optimizer(engine).invoke(records)
    assert len(records) == 21
    assert "late comer" not in "".join(engine.shown)
    assert optimizer(WordEngine(agreeing(SENTENCE))).invoke(iter(examples())) is not None


def test_the_embedded_model_writes_only_where_it_may() -> None:
    """If it breaks, a budget is spent on texts that helped in no trial, and nobody said so."""

    class Embedded(WordScorer):
        is_embedded = True

    for build in (synthesizer, generator):
        with pytest.raises(InvalidParameter, match="allow_small_model=True"):
            build(Embedded(), allow_small_model=False)
        assert build(Embedded()).name

    class Voter(WordEngine):
        is_embedded = True

    voter = Voter(agreeing(SENTENCE))
    with pytest.raises(InvalidParameter, match="allow_small_model=True"):
        optimizer(voter, allow_small_model=False)
    assert optimizer(voter).name
