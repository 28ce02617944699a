"""Whole runs of the synthesizer on an engine of a dozen words: charges, members, restarts, and what leaves."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import os
import pickle
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.scorer import Draws, Panic, WordScorer, stop_at
from fakes.stops import press_ctrl_c
from fakes.synthesizers import BUDGET, LABELS, entries, generator, rows, synthesizer

from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.ensemble.runs import record_digests
from langchain_dp.ensemble.subsets import KeyedCoins
from langchain_dp.errors import (
    BudgetExceeded,
    InvalidParameter,
    ModelUnavailable,
    MostlyNoiseWarning,
    NoTextKeptWarning,
    PlanError,
    PrivateDataError,
    WeakPromiseWarning,
)
from langchain_dp.records import PrivateRecords
from langchain_dp.synth import SynthesisPrompts, SyntheticExample, SyntheticExamples

CANARY = "Zbigniew Kowalczyk 4929"


@pytest.mark.parametrize("face", ["invoke", "ainvoke", "batch", "pipe"])
def test_every_round_is_charged_once_and_writes_a_text_a_label(face: str) -> None:
    """If it breaks, texts leave that nobody paid for, or a round is paid for twice."""
    ledger = PrivacyLedger(BUDGET)
    engine = Draws()
    made = synthesizer(engine, ledger=ledger)
    if face == "invoke":
        examples = made.invoke(rows())
    elif face == "ainvoke":
        examples = asyncio.run(made.ainvoke(rows()))
    elif face == "batch":
        [examples] = made.batch([rows()])
    else:
        examples = (made | (lambda released: released)).invoke(PrivateRecords(rows()))
    released = [*examples, *examples.dropped]
    assert entries(ledger) == 3
    assert Counter(one.label for one in released) == {"delivery": 3, "billing": 3}
    assert ledger.spent()[0] <= BUDGET.epsilon
    calls = len(engine.asked)
    assert [one.text for one in made.invoke(rows())] == [one.text for one in examples], "a complete run is free"
    assert (entries(ledger), len(engine.asked)) == (3, calls)


def test_a_complete_run_is_there_after_a_restart_and_for_its_own_records_and_settings_alone(tmp_path: Path) -> None:
    """If it breaks, what was released is out of reach without records or model, or is given for other ones."""
    path = tmp_path / "ledger.db"
    made = synthesizer(Draws(), ledger=PrivacyLedger(BUDGET, path)).invoke(rows())
    engine, ledger = Draws(), PrivacyLedger(BUDGET, path)
    again = synthesizer(engine, ledger=ledger)
    assert "clip" in str(again.plan(120))
    engine.score_next_token = engine.score_labels = engine.count_tokens = None  # type: ignore[method-assign, assignment]
    assert again.released().rows() == again.invoke(rows()).rows() == made.rows()
    assert again.certificate().spent == made.certificate.spent
    with pytest.raises(PlanError, match=r"in another order: released\(\) has its texts"):
        again.invoke(rows(118))
    assert again.released().rows() == made.rows()
    with pytest.raises(PlanError, match="max_new_tokens changed"):
        synthesizer(Draws(), ledger=ledger, max_new_tokens=9).invoke(rows())
    assert entries(ledger) == 3


def test_a_round_is_charged_before_any_record_is_shown() -> None:
    """If it breaks, a crash between question and charge has leaked something."""
    ledger = PrivacyLedger(BUDGET)
    seen: list[tuple[int, bool]] = []
    engine = Draws(lambda bodies: seen.append((entries(ledger), bool(bodies))))
    synthesizer(engine, ledger=ledger).invoke(rows())
    assert any(private for _, private in seen)
    assert all(charged >= 1 for charged, private in seen if private)


def test_members_are_of_the_texts_own_label_and_stay_for_the_round() -> None:
    """If it breaks, a record is in more texts than the one of its label, or coins are flipped for every token."""
    engine = Draws(length=6)
    synthesizer(engine).invoke(rows())
    by_text: dict[tuple[str, int], set[frozenset[Any]]] = {}
    number, last = -1, 99
    for members in engine.asked:
        written = len(members[0].written) if members else last + 1
        number += written == 0
        last = written
        by_text.setdefault(("text", number), set()).add(frozenset(one.prompt.member for one in members))
        assert len({"parcel" in one.prompt.body for one in members}) <= 1
    assert all(len(seen) == 1 for seen in by_text.values())
    assert len({next(iter(seen)) for seen in by_text.values()}) == len(by_text) == 6


def test_a_round_is_not_paid_for_by_what_another_charges_to_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it breaks, a run makes one release more than its plan holds, and its certificate says too little."""
    ledger, drawn = PrivacyLedger(BUDGET), []
    draw = KeyedCoins.drawn

    def looked(self: KeyedCoins, number: int, rate: float) -> list[str]:
        drawn.append(number)
        return draw(self, number, rate)

    def another(_: Any) -> None:
        plan = ledger.plan("synthesis")
        assert plan is not None
        event = plan.events[-1][0]
        if not any(entry.caller == "another" for entry in plan.entries()):
            plan.spend(event, caller="another")

    monkeypatch.setattr(KeyedCoins, "drawn", looked)
    made = synthesizer(Draws(), ledger=ledger, budget=None, name="synthesis", progress=another)
    with pytest.raises(BudgetExceeded):
        made.invoke(rows())
    assert len(set(drawn)) == 2
    assert entries(ledger) == 3


class Odd(Draws):
    """Panics over one member's text, or answers it oddly, or cannot count it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.max_prompt_tokens = 60  # long texts are counted, and cut

    def count_tokens(self, text: str) -> int:
        if self.how == "count" and "POISON" in text:
            raise Panic(text)
        return super().count_tokens(text)

    def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
        spoilt = [i for i, one in enumerate(members) if "POISON" in one.prompt.body]
        if spoilt and self.how == "panic":
            raise Panic(members[spoilt[0]].prompt.body)
        scores = super().score_next_token(public, members, **settings)
        if self.how in ("panic", "count"):
            return scores
        odd = {"text": ["a"] * len(scores.tokens), "ragged": [[1.0], [1.0, 2.0]], "short": [1.0], "none": None}[
            self.how
        ]
        rows = tuple(odd if i in spoilt else row for i, row in enumerate(scores.members))
        return dataclasses.replace(scores, members=rows)


@pytest.mark.parametrize("how", ["panic", "count", "text", "ragged", "short", "none"])
def test_a_member_that_panics_silences_itself_alone(how: str) -> None:
    """If it breaks, one record decides between texts and an error, without noise, and at every restart again."""
    poisoned = [{**row, "text": "POISON " + "x " * 200} if i == 4 else row for i, row in enumerate(rows())]
    examples = synthesizer(Odd(how), sampling_probability=1.0).invoke(poisoned)
    assert len([*examples, *examples.dropped]) == 6


def test_a_value_that_is_no_text_is_refused_before_any_coin_is_flipped() -> None:
    """If it breaks, a run ends in an error, after its charge, whenever this record takes part: its coin shows."""
    odd = Path(os.fsdecode(b"caf\xe9.txt"))
    records = [{**row, "source": odd if i == 7 else "a.txt"} for i, row in enumerate(rows())]
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(ledger=ledger, prompts=SynthesisPrompts(record="{source}: {text}"))
    with pytest.raises(InvalidParameter, match=r"\['source'\] of example 7 to be text that UTF-8 can hold"):
        chain.invoke(records)
    assert ledger.reserved() == (0.0, 0.0)


def test_a_prompt_without_room_is_found_before_the_budget_is_reserved() -> None:
    """If it breaks, a run that cannot write a text holds the whole ledger, and no other one can begin."""
    engine, ledger = Draws(), PrivacyLedger(BUDGET)
    engine.max_prompt_tokens = 46
    long = synthesizer(engine, ledger=ledger, max_new_tokens=30)
    for call in (long.plan, long.invoke):
        with pytest.raises(InvalidParameter, match="lower max_new_tokens="):
            call(rows())
    engine.max_prompt_tokens = 60
    headed = synthesizer(engine, ledger=ledger, prompts=SynthesisPrompts(head="word " * 43 + "{description}\n"))
    for call in (headed.plan, headed.invoke):
        with pytest.raises(InvalidParameter, match="less 17 that are kept for the records"):
            call(rows())
    assert ledger.reserved() == (0.0, 0.0)
    engine.max_prompt_tokens = 46
    assert len(synthesizer(engine, ledger=ledger).invoke(rows())) > 0


@pytest.mark.parametrize("kind", [ModelUnavailable, ConnectionError])
def test_a_model_that_is_gone_raises_and_costs_nothing(kind: type[Exception]) -> None:
    """If it breaks, a wrong address takes the whole budget, or an outage is written over with noise."""
    up = [False]

    def gone(bodies: list[str]) -> None:
        if not up[0]:
            raise kind("The server does not answer.")

    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(WordScorer(gone), ledger=ledger)
    for _ in range(2):
        with pytest.raises(ModelUnavailable):
            chain.invoke(rows())
    assert ledger.reserved() == (0.0, 0.0)
    up[0] = True
    chain.invoke(rows(), {"callbacks": []})
    assert entries(ledger) == 3


def test_a_model_that_goes_away_costs_no_round_that_had_not_begun() -> None:
    """If it breaks, each try while the server is away costs a round, until there is none."""
    down = [False]

    def gone(bodies: list[str]) -> None:
        if down[0]:
            raise ModelUnavailable("The server does not answer.")

    def told(example: SyntheticExample) -> None:
        down[0] = example.label == list(LABELS)[-1]  # a round is complete

    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(WordScorer(gone), ledger=ledger, progress=told)
    for _ in range(3):
        down[0] = entries(ledger) > 0
        with pytest.raises(ModelUnavailable):
            chain.invoke(rows())
    assert entries(ledger) == 1


def test_what_another_run_released_is_not_given_out_under_this_ones_name(tmp_path: Path) -> None:
    """If it breaks, a certificate names a model that wrote nothing, or labels that were never asked for."""
    ledger = PrivacyLedger(BUDGET, tmp_path / "ledger")
    synthesizer(Draws(), ledger=ledger).invoke(rows())

    class Other(Draws):
        name = "another"

    other = synthesizer(Other(), ledger=ledger, count=100)
    for call in (other.released, other.certificate, lambda: other.plan(rows())):
        with pytest.raises(PlanError, match="other settings: count, model changed"):
            call()


def test_fields_that_nobody_is_shown_do_not_count() -> None:
    """If it breaks, a set beside the text makes other records of the same ones in every process, and a run is lost."""
    key = b"k" * 32
    first, second = (
        record_digests(PrivateRecords([{**row, "tags": tags} for row in rows()]), key, ["text"])
        for tags in ("a b", {"a", "b"})
    )
    assert first == second
    assert first != record_digests(PrivateRecords(rows()[::-1]), key, ["text"])


def test_the_records_come_through_and_a_single_one_does_not() -> None:
    """If it breaks, the texts are those of the public model, or of one record."""
    one = [*rows(600), {"text": CANARY, "label": "delivery"}]
    examples = synthesizer(Draws(), members=40, budget=PrivacyBudget(8.0, 1e-5)).invoke(one)
    words = Counter(word for example in examples if example.label == "delivery" for word in example.text.split())
    assert words["parcel"] + words["late"] + words["today"] > sum(words.values()) / 2
    assert not any(name in example.text for example in examples for name in CANARY.split())


def test_nothing_private_is_shown_or_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If it breaks, a record stands in a repr, a log, a ledger or a saved file."""
    engine = Draws()
    private = [{"text": f"{CANARY} {i}", "label": row["label"]} for i, row in enumerate(rows())]
    chain = synthesizer(engine, ledger=PrivacyLedger(BUDGET, tmp_path / "ledger.db"))
    examples = chain.invoke(private)
    examples.save(tmp_path / "made.jsonl")
    shown = repr((chain, examples, chain._runs, engine.asked[0])) + caplog.text + str(chain.plan(private))
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "Kowalczyk" not in shown
    assert b"Kowalczyk" not in kept
    assert engine.forgotten >= {one.prompt.member for members in engine.asked for one in members}


def test_two_cannot_be_at_one_run() -> None:
    """If it breaks, two processes draw for the same charge."""
    ledger = PrivacyLedger(BUDGET)
    inner: list[Exception] = []

    def other(bodies: list[str]) -> None:
        if not inner:
            inner.append(ValueError())
            try:
                synthesizer(Draws(), ledger=ledger).invoke(rows())
            except PlanError as problem:
                inner[0] = problem

    synthesizer(Draws(other), ledger=ledger).invoke(rows())
    assert "another chain is at it" in str(inner[0])


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("share", [PrivacyBudget(1.0, 1e-6), PrivacyBudget(2.0, 1e-6)])
def test_another_share_is_refused(complete: bool, share: PrivacyBudget, tmp_path: Path) -> None:
    """If it breaks, a new budget= is ignored without a word, and texts are written with the noise of the old one."""
    path, first = tmp_path / "ledger.db", PrivacyBudget(2.0, 5e-6)

    def stop(_: object) -> None:
        if not complete:
            press_ctrl_c()

    with contextlib.suppress(KeyboardInterrupt):
        synthesizer(Draws(), ledger=PrivacyLedger(BUDGET, path), budget=first, progress=stop).invoke(rows())
    ledger = PrivacyLedger(BUDGET, path)
    before = entries(ledger)
    other = synthesizer(Draws(), ledger=ledger, budget=share)
    for use in (other.plan, other.invoke):
        with pytest.raises(PlanError, match=r"budget\.(epsilon|delta) was"):
            use(rows())
    assert entries(ledger) == before
    assert len(synthesizer(Draws(), ledger=ledger, budget=first).invoke(rows())) > 0


def test_the_certificate_says_what_holds() -> None:
    """If it breaks, an auditor reads another noise than was drawn."""
    chain = synthesizer(Draws())
    with pytest.raises(InvalidParameter, match="a run to have started"):
        chain.certificate()
    paper = chain.invoke(rows()).certificate
    assert paper.private
    assert (paper.epsilon, paper.delta) == (3.0, 1e-5)
    assert paper.parameters["rounds"] == 3
    assert paper.parameters["sampling_probability"] == pytest.approx(20 / 120)
    seeded = synthesizer(Draws(), not_private_seed=1).invoke(rows())
    again = synthesizer(Draws(), not_private_seed=1).invoke(rows())
    assert not seeded.certificate.private
    assert [one.text for one in seeded] == [one.text for one in again]


def test_texts_of_the_public_model_alone_are_not_sold_without_a_word() -> None:
    """If it breaks, plan() says that nothing should be spent, and a run spends it in silence."""
    poor = synthesizer(budget=PrivacyBudget(0.05, 1e-5), count=2)
    assert "worth it?    no: the records" in str(poor.plan(rows()))
    with pytest.warns(MostlyNoiseWarning, match=r"a clip of 0\.\d+ nats lets the records hardly move"):
        poor.invoke(rows())
    with pytest.warns(MostlyNoiseWarning, match="a clip of"):
        generator(budget=PrivacyBudget(0.05, 1e-5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MostlyNoiseWarning)
        synthesizer().invoke(rows())
        generator()


def test_a_synthesizer_is_shown_and_is_not_copied() -> None:
    """If it breaks, a copy would go on with the same run, or its records leave with it."""
    chain = synthesizer()
    assert repr(chain) == "DPExampleSynthesizer(labels=['delivery', 'billing'], name='synthesis')"
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivateDataError, match="Construct it again"):
            copied(chain)


def test_the_plan_costs_nothing_and_says_whether_it_is_worth_it() -> None:
    """If it breaks, somebody spends an epsilon on what the public model writes by itself."""
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(Draws(), ledger=ledger, count=8, members=30)
    assert "nine tenths" in str(chain.plan(20_000))
    assert "another model may gain less or more" in chain.plan(20_000).verdict
    assert "no budget    as many by the model alone" in str(chain.plan(20_000))
    poor = synthesizer(Draws(), budget=PrivacyBudget(0.1, 1e-5), count=200, members=30)
    assert "worth it?    no: the records" in str(poor.plan(500))
    assert (poor.plan(500).is_worth_it, chain.plan(20_000).is_worth_it) == (False, True)
    assert poor.plan(500).clip < 0.35 < chain.plan(20_000).clip
    assert poor.plan(500).members == 30
    assert entries(ledger) == 0
    assert ledger.reserved() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "records", "message"),
    [
        ({"labels": []}, 120, "at least one label"),
        ({"labels": ["delivery"]}, 120, "the label of examples 1, 3, 5"),
        ({"labels": {"a": "", "b": "x"}}, 120, "the description of label 'a'"),
        ({"members": 1}, 120, "members"),
        ({"count": 0}, 120, "count"),
        ({"temperature": 0.0}, 120, "temperature"),
        ({"model": object()}, 120, "score next tokens"),
        ({"name": ""}, 120, "Expected name to be 1 to"),
        ({"chat": "yes"}, 120, r"chat='yes' to be one of \[False, True\]"),
        ({"model": Draws}, 120, r"Expected model=Draws to be made. Write Draws\(...\)"),
        ({"members": 100}, 120, "Lower members="),
        ({"budget": None}, 120, "budget= or ledger="),
        ({"budget": PrivacyBudget(3.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)}, 120, "sampling_probability= to be given"),
    ],
)
def test_bad_input_is_named_and_costs_nothing(changed: dict[str, Any], records: int, message: str) -> None:
    """If it breaks, a mistake ends in a traceback, or in a charge."""
    with pytest.raises(InvalidParameter, match=message):
        synthesizer(Draws(), **changed).invoke(rows(records))


@pytest.mark.parametrize(
    "row", [{"text": "SECRET", "label": "SECRET"}, {"text": "SECRET"}, {"label": "billing"}, "SECRET"]
)
def test_bad_records_are_named_by_position_only(row: Any) -> None:
    """If it breaks, an error shows a record."""
    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(InvalidParameter, match="example 120") as caught:
        synthesizer(Draws(), ledger=ledger).invoke([*rows(), row])
    assert "SECRET" not in str(caught.value)
    assert entries(ledger) == 0


def test_a_weak_promise_is_said_before_anything_is_charged() -> None:
    """If it breaks, texts leave under a delta at which every record might as well be published, and nobody says so."""
    ledger = PrivacyLedger(PrivacyBudget(3.0, 0.5))
    with pytest.warns(WeakPromiseWarning, match=r"delta=0\.5"), pytest.raises(KeyboardInterrupt):
        synthesizer(Draws(stop_at(1)), ledger=ledger, budget=None).invoke(rows())


def test_a_fault_of_what_shows_progress_ends_no_run() -> None:
    """If it breaks, a slip in the user's own line looks like a fault of the model, and bars the way to the texts."""
    seen = []

    def told(example: SyntheticExample) -> None:
        seen.append(example)
        raise ValueError("my own slip")

    with pytest.warns(RuntimeWarning, match="progress= failed, and was told no more .ValueError: my own slip"):
        examples = synthesizer(progress=told).invoke(rows())
    assert len([*examples, *examples.dropped]) == 6
    assert len(seen) == 1


def test_a_ledger_without_room_refuses() -> None:
    """If it breaks, two chains share one budget twice."""
    ledger = PrivacyLedger(BUDGET)
    synthesizer(Draws(), ledger=ledger).invoke(rows())
    with pytest.raises(BudgetExceeded):
        synthesizer(Draws(), ledger=ledger, name="another").invoke(rows())


def test_a_label_of_which_nothing_is_kept_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a few-shot prompt lacks a label, and nobody hears of it."""
    first = next(iter(LABELS))
    chain = synthesizer(Draws())
    kept = chain.__class__._run

    def without(self: Any, *given: Any) -> Any:
        found = kept(self, *given)
        dropped = [dataclasses.replace(one, dropped="short" if one.label == first else "") for one in found]
        return SyntheticExamples(dropped, found.certificate, found.settings)

    monkeypatch.setattr(chain.__class__, "_run", without)
    with pytest.warns(NoTextKeptWarning, match=f"No text of .*{first}.* is kept"):
        assert {one.label for one in chain.invoke(rows())} == set(LABELS) - {first}


def test_a_run_that_keeps_nothing_says_so() -> None:
    """If it breaks, a budget is spent on nothing, and nobody hears of it."""
    with pytest.raises(InvalidParameter, match=r"max_new_tokens=2 to hold the 3 words "):
        synthesizer(max_new_tokens=2)
    chain = synthesizer(Draws(length=2), min_words=8)
    with pytest.warns(NoTextKeptWarning, match=r"\d x 'short'"):
        assert len(chain.invoke(rows())) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoTextKeptWarning)
        with pytest.raises(NoTextKeptWarning, match="dropped"):
            chain.invoke(rows())
    assert chain.released().dropped


def test_members_of_long_records_write() -> None:
    """If it breaks, the public model alone writes where records are long, and the whole budget is spent on it."""
    engine = Draws()
    long = [{**row, "text": f"{row['text']} {'and so on ' * 9_000}"} for row in rows()]
    synthesizer(engine).invoke(long)
    prompts = [one.prompt for call in engine.asked for one in call]
    assert len(prompts) > 100
    for prompt in prompts:
        assert prompt.body.startswith("Text: my parcel is late") or prompt.body.startswith("Text: please send the")
        needed = sum(map(engine.count_tokens, (prompt.head, prompt.body, prompt.tail)))
        assert engine.max_prompt_tokens // 2 < needed + 8 <= engine.max_prompt_tokens


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
@pytest.mark.parametrize("taken_up", [False, True])
def test_a_model_that_scores_no_member_is_found_before_anything_is_charged(
    kind: type[BaseException], taken_up: bool
) -> None:
    """If it breaks, an engine without memory for its members spends the whole budget on texts of the public model."""
    ledger = PrivacyLedger(BUDGET)

    class Full(Draws):
        def score_next_token(self, public: Any, members: Any, **settings: Any) -> Any:
            if members:
                raise kind("out of memory")
            return super().score_next_token(public, members, **settings)

    if taken_up:
        with pytest.raises(KeyboardInterrupt):
            synthesizer(Draws(stop_at(1)), ledger=ledger).invoke(rows())
        plan = ledger.plan("synthesis")
        assert plan is not None
    before = entries(ledger)
    with pytest.raises(ModelUnavailable, match="0 of 10 that show an invented record"):
        synthesizer(Full(), ledger=ledger).invoke(rows())
    assert entries(ledger) == before
    assert len(synthesizer(Draws(), ledger=ledger).invoke(rows())) > 0


@pytest.mark.parametrize("given", [str, dict, PrivateRecords])
def test_texts_without_labels_are_of_the_one_label(given: type) -> None:
    """If it breaks, who has notes, and nothing to sort them by, cannot have synthetic ones."""
    texts = [f"my parcel is late today {i}" for i in range(120)]
    examples: Any = {
        str: texts,
        dict: [{"text": text} for text in texts],
        PrivateRecords: PrivateRecords(texts, label="message"),
    }[given]
    engine, ledger = Draws(), PrivacyLedger(BUDGET)
    chain = synthesizer(engine, labels={"message": "messages of customers"}, count=3, ledger=ledger)
    made = chain.invoke(examples)
    assert {one.label for one in made} == {"message"}
    assert len([*made, *made.dropped]) == 3
    assert any(any("my parcel is late" in one.prompt.body for one in asked) for asked in engine.asked)
    assert "of each of" not in str(chain.plan(examples))
    assert ledger.spent()[0] <= BUDGET.epsilon
    assert len(made.as_few_shot_prompt(2).invoke({}).to_messages()) == 4


def test_the_model_alone_writes_as_many_texts_for_nothing() -> None:
    """If it breaks, a record has a part in what is said to cost nothing, or the free texts are paid for."""
    ledger, engine, seen = PrivacyLedger(BUDGET), WordScorer(), []
    chain = synthesizer(engine, ledger=ledger, progress=seen.append)
    free = chain.public_examples()
    assert engine.asked
    assert not any(engine.asked), "a member took part"
    assert len(free) + len(free.dropped) == len(seen) == 6
    assert free.labels == tuple(chain.settings.labels)
    assert (free.certificate.epsilon, free.certificate.delta, free.certificate.private) == (0.0, 0.0, True)
    assert ledger.plan("synthesis") is None
    assert entries(ledger) == 0
    private = chain.invoke(rows())
    assert private.certificate.epsilon == BUDGET.epsilon
    assert chain.public_examples().certificate.epsilon == 0.0, (
        "no description was released: nothing of the run is in it"
    )


def test_the_model_alone_may_be_asked_while_a_run_goes_on() -> None:
    """If it breaks, who looks at the free texts beside those that come waits for ever."""
    asked, found = threading.Event(), list[int]()

    def look(_: object) -> None:
        if not asked.is_set():
            asked.set()
            found.append(len(made.public_examples()))

    made = synthesizer(progress=look)
    run = threading.Thread(target=made.invoke, args=[rows()], daemon=True)
    run.start()
    run.join(60)
    assert found
    assert found[0] > 0
    assert not run.is_alive()


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_a_bar_is_shown_where_it_is_asked_for(
    progress: bool | None, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, long work in a notebook shows nothing, or fills a log."""
    synthesizer(Draws(), progress=progress).invoke(rows())
    assert ("writing" in capsys.readouterr().err) is shown


def test_the_model_alone_is_not_asked_for_what_has_no_room() -> None:
    """If it breaks, the free texts break off where the private ones are refused, or the error names no remedy."""
    engine = Draws()
    engine.max_prompt_tokens = 12
    with pytest.raises(InvalidParameter, match="max_new_tokens"):
        synthesizer(engine).public_examples()
    assert not engine.asked

    class Away(Draws):
        def score_next_token(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError

    with pytest.raises(ModelUnavailable):
        synthesizer(Away()).public_examples()
