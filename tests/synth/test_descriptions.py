"""Labels that are described first: what is charged, who is asked, what the texts are told, and what a restart does."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.fair_semaphore import on_both
from fakes.scorer import Draws, of_records, stop_at
from fakes.synthesizers import BUDGET, LABELS, rows, synthesizer

from langchain_dp.accounting import ClippedSumRoundEvent, Neighbors, PrivacyBudget, PrivacyLedger, epsilon
from langchain_dp.cli import main
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.synth import LabelDescriptionOptions, SyntheticExamples
from langchain_dp.synth.describing import useful
from langchain_dp.synth.settings import DESCRIBED, Design

SCHEMES = ["rounds", "groups"]
SMALL = LabelDescriptionOptions(members=10, max_new_tokens=3)
REQUEST = LabelDescriptionOptions().task


def test_nothing_is_described_unless_it_is_asked_for() -> None:
    """If it breaks, a part of the budget goes to descriptions that nobody wanted."""
    assert synthesizer(describe=False).settings.describe is None
    assert synthesizer(describe=True).settings.describe == LabelDescriptionOptions()
    assert synthesizer(describe=SMALL).settings.describe == SMALL
    for odd in (None, "yes", 1):
        with pytest.raises(
            InvalidParameter, match=r"describe of type \w+ to be True, False or LabelDescriptionOptions"
        ):
            synthesizer(describe=odd)


def charges(ledger: PrivacyLedger) -> list[dict[str, Any]]:
    return [json.loads(entry.event) for entry in ledger.entries() for _ in range(entry.count)]


class Heads(Draws):
    """Notes the public text of every text that begins."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.heads: list[str] = []

    def score_next_token(self, public: Any, members: Any, **rest: Any) -> Any:
        if (of_records(members) or not self.draws_only) and not public.written:
            self.heads.append(public.prompt.head)
            assert {one.prompt.head for one in members} <= {public.prompt.head}
        return super().score_next_token(public, members, **rest)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_descriptions_are_charged_once_and_stand_before_every_text(scheme: str) -> None:
    """If it breaks, descriptions are free, or the model is not told what was paid for."""
    ledger, engine = PrivacyLedger(BUDGET), Heads(length=2)
    made = synthesizer(engine, ledger=ledger, scheme=scheme, describe=SMALL).invoke(rows())
    first, *others = charges(ledger)
    assert len(others) == 3
    assert (first["event"], first["tokens"]) == ("ClippedSumRoundEvent", 3)
    assert {each.get("of", each)["tokens"] for each in others} == {8}
    assert [head.startswith(REQUEST) for head in engine.heads] == [True] * 2 + [False] * 6
    assert all(made.descriptions.values())
    for number, head in enumerate(engine.heads[2:]):
        label = list(LABELS)[number % 2]
        assert f"The kind: {made.descriptions[label]}." in head
        assert LABELS[label] not in head, "what is given of a label is withheld"
    assert not any(given in head for head in engine.heads for given in [*LABELS, *LABELS.values()])
    assert len([*made, *made.dropped]) == 6
    assert ledger.spent()[0] <= BUDGET.epsilon


def test_the_model_alone_is_told_what_was_released() -> None:
    """If it breaks, free texts are compared under other words, or texts that hold the records' claim to say nothing."""
    ledger, engine = PrivacyLedger(BUDGET), Heads(length=2)
    engine.draws_only = False
    chain = synthesizer(engine, ledger=ledger, describe=SMALL)
    assert chain.public_examples().certificate.epsilon == 0.0
    assert set(engine.heads) == {chain.settings.prompts.described(given) for given in LABELS.values()}
    made = chain.invoke(rows())
    spent, engine.heads, engine.asked = ledger.spent(), [], []
    free = chain.public_examples()
    assert not any(engine.asked), "a member took part"
    assert set(engine.heads) == {chain.settings.prompts.described(what) for what in made.descriptions.values()}
    assert free.descriptions == made.descriptions
    assert free.certificate == made.certificate, "descriptions are of the records"
    assert ledger.spent() == spent


def test_what_is_released_meanwhile_is_not_in_texts_that_cost_nothing() -> None:
    """If it breaks, texts or settings hold descriptions of the records under a certificate that says epsilon 0."""
    ledger = PrivacyLedger(BUDGET)
    other = synthesizer(Draws(length=2), ledger=ledger, describe=SMALL)

    class Overtaken(Draws):
        def score_next_token(self, *asked: Any, **rest: Any) -> Any:
            if ledger.plan("synthesis") is None:
                assert all(other.invoke(rows()).descriptions.values())
            return super().score_next_token(*asked, **rest)

    chain = synthesizer(Overtaken(length=2), ledger=ledger, describe=SMALL)
    free = chain.public_examples()
    assert free.certificate.epsilon == 0.0
    assert free.descriptions == {}
    assert chain.public_examples().certificate.epsilon == BUDGET.epsilon


def test_without_it_nothing_changes() -> None:
    """If it breaks, runs that were started before cannot be taken up, or pay for what they do not ask for."""
    chain = synthesizer(Draws())
    assert "describe" not in chain.settings.public()
    made = chain.invoke(rows())
    assert made.descriptions == {}
    assert "descriptions" not in made.settings
    assert not any(name.startswith("description") for name in made.certificate.parameters)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_drawn_is_what_is_charged(scheme: str) -> None:
    """If it breaks, descriptions are drawn with another noise, or at another rate, than they are charged for."""
    chain = synthesizer(Draws(), scheme=scheme, describe=SMALL)
    design = chain.plan(120).design
    assert design.describing is not None
    assert design.charged(DESCRIBED) == design.describing.event
    assert design.describing.event.sampling_probability == pytest.approx(10 * 2 / 120)
    assert design.describing.clip == pytest.approx(2.5 * design.noise.clip)
    assert epsilon(design.events(), 1e-5) <= 3.0
    paid = Counter()
    for number in design.numbers:
        paid[design.charged(number)] += 1
        assert design.due(number) == paid[design.charged(number)]
    assert dict(design.events()) == paid


def test_descriptions_that_cost_what_a_text_costs_are_a_round_more() -> None:
    """If it breaks, two equal events are taken for one, and a round is free."""
    alike = LabelDescriptionOptions(members=10, max_new_tokens=8, clip_ratio=1.0, temperature=1.0)
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(Draws(), ledger=ledger, describe=alike)
    [(_, count)] = chain.plan(120).design.events()
    assert count == 4
    assert len([*chain.invoke(rows())]) > 0
    assert len(charges(ledger)) == 4


@on_both
@pytest.mark.parametrize("at", [2, 4, 6, 9, 14])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_kill_loses_no_description_and_pays_none_twice(place: str, at: int, scheme: str) -> None:
    """If it breaks, a restart describes anew, for nothing or for another charge."""
    first = synthesizer(Heads(stop_at(at)), ledger=PrivacyLedger(BUDGET, place), scheme=scheme, describe=SMALL)
    with pytest.raises(KeyboardInterrupt):
        first.invoke(rows())
    before = first._runs.described()
    ledger, engine = PrivacyLedger(BUDGET, place), Heads()
    second = synthesizer(engine, ledger=ledger, scheme=scheme, describe=SMALL)
    made = second.invoke(rows())
    assert before.items() <= made.descriptions.items()
    assert first._runs._opened is not None
    under_way = first._runs._opened.journal.under_way
    begun = len(before) + (under_way is not None and under_way.number == DESCRIBED and not under_way.blank)
    assert sum(head.startswith(REQUEST) for head in engine.heads) == 2 - begun, "what had begun is not begun again"
    assert len(charges(ledger)) == 4
    assert len([*made, *made.dropped]) == 6


def test_a_run_without_descriptions_is_not_gone_on_with_as_one_with(tmp_path: Path) -> None:
    """If it breaks, descriptions are drawn under a plan that has no room for them."""
    synthesizer(Draws(), ledger=PrivacyLedger(BUDGET, tmp_path / "ledger.db")).invoke(rows())
    ledger = PrivacyLedger(BUDGET, tmp_path / "ledger.db")
    with pytest.raises(PlanError, match="describe changed"):
        synthesizer(Draws(), ledger=ledger, describe=True).invoke(rows())
    assert len(charges(ledger)) == 3


def test_a_description_that_broke_off_is_not_drawn_again() -> None:
    """If it breaks, an engine that fails late gives many descriptions for one charge."""

    class Fails(Heads):
        def score_next_token(self, public: Any, members: Any, **rest: Any) -> Any:
            if public.prompt.head.startswith(REQUEST) and len(public.written) == 1:
                raise ModelUnavailable("The server does not answer.")
            return super().score_next_token(public, members, **rest)

    ledger, engine = PrivacyLedger(BUDGET), Fails()
    chain = synthesizer(engine, ledger=ledger, describe=SMALL)
    for _ in LABELS:  # the second time the first one is given up
        with pytest.raises(ModelUnavailable):
            chain.invoke(rows())
    made = chain.invoke(rows())
    assert sum(head.startswith(REQUEST) for head in engine.heads) == 2
    assert set(made.descriptions.values()) == {""}
    assert all(any(given in head for given in LABELS.values()) for head in engine.heads[2:]), "what was given is told"
    assert len(charges(ledger)) == 4


def test_descriptions_come_from_the_records_of_their_label() -> None:
    """If it breaks, a label is described by what others hold, and a record is in two descriptions."""
    made = synthesizer(
        Draws(length=6),
        budget=PrivacyBudget(8.0, 1e-5),
        describe=LabelDescriptionOptions(members=100, max_new_tokens=8),
    ).invoke(rows(600))
    delivery, billing = (Counter(made.descriptions[label].split()) for label in LABELS)
    assert delivery["parcel"] + delivery["late"] + delivery["today"] > delivery.total() / 2
    assert billing["invoice"] + billing["paid"] + billing["please"] > billing.total() / 2


@pytest.mark.parametrize("neighbors", list(Neighbors))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_relation_is_accounted_for_or_refused(neighbors: Neighbors, scheme: str) -> None:
    """If it breaks, a relation is promised that nobody has proven."""
    budget = PrivacyBudget(3.0, 1e-5, neighbors)
    counted = neighbors is not Neighbors.ADD_OR_REMOVE_ONE
    rate = None if counted or scheme == "groups" else 0.2
    chain = synthesizer(Draws(), budget=budget, scheme=scheme, describe=SMALL, sampling_probability=rate)
    if scheme == "groups" and not counted:
        with pytest.raises(InvalidParameter, match="number of records is private"):
            chain.plan(120)
        return
    design = chain.plan(120).design
    assert design.describing is not None
    assert 0.98 * 3.0 < epsilon(design.events(), 1e-5, neighbors=neighbors) <= 3.0
    if not counted:  # the rate of the texts' members is the only public word on how many records there are
        assert design.describing.event.sampling_probability == pytest.approx(0.2)
        assert chain.plan(5_000).design == design


NEUTRAL = (math.log(0.5), math.log(0.5))
UP, DOWN = (0.0, -60.0), (-60.0, 0.0)
Record = tuple[int, tuple[float, float]]


def token(noise: ClippedSum, public: tuple[float, float], row: tuple[float, float] | None) -> tuple[float, float]:
    """Law of one token of two, where at most one record takes part and is as sure of one as can be."""
    moved = [0.0 if row is None else math.copysign(noise.event.epsilon0 / 4, row[i] - public[i]) for i in range(2)]
    weights = [math.exp(public[i] + moved[i]) for i in range(2)]
    return weights[0] / sum(weights), weights[1] / sum(weights)


def chain_law(design: Design, record: Record | None) -> dict[tuple[int, ...], float]:
    """Law of one token each: the descriptions of two labels, then the texts of both that the record's group writes."""
    describing, found = design.noise_of(DESCRIBED), Counter[tuple[int, ...]]()
    rate = describing.event.sampling_probability
    for taken, chance in ((True, rate), (False, 1 - rate)):
        rows = [record[1] if record is not None and record[0] == label else None for label in range(2)]
        for said in itertools.product(range(2), repeat=4):
            likely = chance
            for label, row in enumerate(rows):
                public = (math.log(0.8), math.log(0.2))[:: 1 if said[label] else -1]  # a description is told
                likely *= token(describing, NEUTRAL, row if taken else None)[said[label]]
                likely *= token(design.noise, public, row)[said[2 + label]]
            found[said] += likely
    return dict(found)


def test_one_record_moves_descriptions_and_texts_by_what_both_are_charged_and_not_by_less() -> None:
    """If it breaks, the promise is wrong where texts follow descriptions. All outcomes of a small chain."""
    design = Design(
        "groups", 2, ClippedSum(ClippedSumRoundEvent(0.7, 1), 1), 2, ClippedSum(ClippedSumRoundEvent(0.9, 1, 0.4), 1)
    )
    replaced = [((0, UP), (0, DOWN)), ((0, UP), (1, DOWN)), ((0, UP), (1, UP))]  # the label may be replaced too
    laws = [
        (chain_law(design, one), chain_law(design, other)) for pair in replaced for one, other in (pair, pair[::-1])
    ]
    refuted = 0
    for loss in (0.1, 0.3, 0.5, 0.6):
        lost = max(sum(max(0.0, p[at] - math.exp(loss) * q[at]) for at in p) for p, q in laws)
        assert epsilon(design.events(), lost * 0.999) >= loss
        refuted += epsilon([(design.charged(0), 1)], lost * 0.999) < loss
    assert refuted, "the texts alone would be too little"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Sports", "Sports"),
        ("Sports, football,", "Sports, football"),
        ("", ""),
        ("...", ""),
        ("The same topic", ""),
        ("2018", ""),
        ("business Text: The book is about the", "business"),
        ("Text: sports", "Text: sports"),
        ("same topic Text: football", ""),
    ],
)
def test_a_description_that_says_nothing_is_not_told(text: str, kept: str) -> None:
    """If it breaks, "the same topic" stands before every text."""
    assert useful(text) == kept


def test_a_description_that_repeats_the_kind_is_not_told() -> None:
    """If it breaks, "the same mood" stands before every text where moods are asked for."""
    how = LabelDescriptionOptions(members=10, max_new_tokens=1, kind="parcel", shown=(("A text.", "rose"),))
    found: set[str] = set()
    for seed in range(20):
        made = synthesizer(describe=how, budget=PrivacyBudget(50.0), not_private_seed=seed, count=2).invoke(rows())
        found.add(made.descriptions["delivery"])
    assert "parcel" not in found
    assert {"", "late"} <= found


def test_a_chat_template_is_asked_a_question_and_shown_no_answers() -> None:
    """If it breaks, a chat model answers with the answers that it was shown."""
    engine = Heads()
    synthesizer(engine, describe=SMALL, chat=True).invoke(rows())
    assert [head.startswith(SMALL.opening) for head in engine.heads[:3]] == [True, True, False]
    assert not any(answer in head for head in engine.heads for _, answer in SMALL.shown)


@pytest.mark.parametrize(
    ("answers", "tokens", "said"),
    [(("LATE", "paid"), 1, "late"), (("late parcel", "Parcel"), 2, "late parcel"), (("rose",), 1, None)],
)
def test_no_description_is_one_of_the_answers_that_the_model_was_shown(
    answers: tuple[str, ...], tokens: int, said: str | None
) -> None:
    """If it breaks, labels are named after the public examples, which a model likes to repeat."""

    def described(*shown: str, chat: bool = False) -> set[str]:
        how = LabelDescriptionOptions(
            members=10, max_new_tokens=tokens, kind="mood", shown=tuple(("A text.", one) for one in shown)
        )
        found: set[str] = set()
        for seed in range(40):
            # The public model likes all words alike, and every record of a label the same two or three of them.
            made = synthesizer(describe=how, chat=chat, budget=PrivacyBudget(50.0), not_private_seed=seed, count=2)
            found |= set(made.invoke(rows()).descriptions.values())
        return found

    without = described("rose")
    assert (said in without) is (said is not None)
    assert said not in described(*answers)
    assert described(*answers, chat=True) == without, "a chat model is shown none"


def test_a_larger_budget_makes_descriptions_surer_and_not_wilder() -> None:
    """If it breaks, the budget goes into a clip that cuts nothing, and words are drawn that hardly any record means."""
    few, many = (synthesizer(describe=True, budget=PrivacyBudget(each)).plan(2_000).design for each in (1.0, 8.0))
    assert few.describing is not None
    assert many.describing is not None
    assert many.describing.clip == pytest.approx(5.0)
    assert many.describing.temperature < few.describing.temperature <= 0.5


def test_the_given_description_can_be_shown_too() -> None:
    """If it breaks, what a user knows of a label is lost where something is added to it."""
    engine = Heads()
    how = LabelDescriptionOptions(members=10, max_new_tokens=3, show_labels=True)
    made = synthesizer(engine, describe=how).invoke(rows())
    assert LABELS["delivery"] in engine.heads[0]
    assert f"{LABELS['delivery']}: {made.descriptions['delivery']}." in engine.heads[2]


def test_descriptions_are_kept_with_the_examples_and_instruct_a_model(tmp_path: Path) -> None:
    """If it breaks, what was paid for is lost in the file, or cannot be used."""
    made = synthesizer(Draws(), describe=SMALL).invoke(rows())
    made.save(tmp_path / "made.jsonl")
    back = SyntheticExamples.load(tmp_path / "made.jsonl")
    assert back.descriptions == made.descriptions
    assert made.descriptions["delivery"] in repr(back)
    assert f"- delivery: {made.descriptions['delivery']}" in back.instruction
    system, *turns, question = back.as_chat_prompt(2).invoke({"text": "Where is {it}?"}).to_messages()
    assert (system.type, system.content) == ("system", back.instruction)
    assert [turn.type for turn in turns] == ["human", "ai"] * 2
    assert question.content == "Where is {it}?"
    assert len(back.as_chat_prompt(0).invoke({"text": "x"}).to_messages()) == 2
    first, *rest = (tmp_path / "made.jsonl").read_text().split("\n")
    fields = json.loads(first)
    fields["settings"]["descriptions"] = {"delivery": 3}
    (tmp_path / "made.jsonl").write_text("\n".join([json.dumps(fields), *rest]))
    with pytest.raises(InvalidParameter, match=r"made\.jsonl"):
        SyntheticExamples.load(tmp_path / "made.jsonl")


def test_the_plan_and_the_certificate_say_both() -> None:
    """If it breaks, nobody sees what descriptions take from the texts."""
    chain = synthesizer(Draws(), describe=SMALL)
    plan = chain.plan(rows())
    assert "described" in str(plan)
    found = plan.to_dict()
    assert found["description_clip"] == pytest.approx(2.5 * found["clip"])
    assert 0 < found["description_epsilon"] < 3.0
    assert found["clip"] < synthesizer(Draws()).plan(rows()).to_dict()["clip"]
    paper = chain.invoke(rows()).certificate
    assert paper.parameters["description_tokens"] == 3
    assert any("description of each label was released first" in note for note in paper.notes)


def test_the_page_on_a_ledger_charges_every_group_for_the_descriptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, the page says of a record that it paid for its group alone."""
    with PrivacyLedger(BUDGET, tmp_path / "ledger.db") as ledger:
        synthesizer(Draws(), ledger=ledger, scheme="groups", describe=SMALL).invoke(rows())
        spent = ledger.spent()[0]
    assert main(["ledger", str(tmp_path / "ledger.db"), "--json"]) == 0
    [plan] = json.loads(capsys.readouterr().out)["plans"]
    assert len(plan["parts"]) == 3
    assert list(plan["parts"].values()) == pytest.approx([spent] * 3)


def test_other_records_are_not_read_by_descriptions_that_were_begun() -> None:
    """If it breaks, one round of descriptions reads two data sets."""
    ledger = PrivacyLedger(BUDGET)
    with pytest.raises(KeyboardInterrupt):
        synthesizer(Draws(stop_at(5), length=9), ledger=ledger, describe=SMALL).invoke(rows())
    chain = synthesizer(Draws(), ledger=ledger, describe=SMALL)
    with pytest.raises(PlanError, match="its round has begun"):
        chain.invoke(rows(118))
    assert all(chain.invoke(rows()).descriptions.values())
    assert len(charges(ledger)) == 4


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"max_new_tokens": 0}, "max_new_tokens"), ({"members": 1}, "members"), ({"clip_ratio": 0.0}, "clip_ratio"),
     ({"temperature": 0.0}, "temperature"), ({"show_labels": 2}, "show_labels"), ({"task": " "}, "task"),
     ({"shown": (("a text", ""),)}, "shown")],
)  # fmt: skip
def test_bad_values_are_named(wrong: dict[str, Any], named: str) -> None:
    """If it breaks, a mistake ends in a traceback, or in a charge."""
    with pytest.raises(InvalidParameter, match=named):
        LabelDescriptionOptions(**wrong)


def test_what_is_no_group_is_refused() -> None:
    """If it breaks, a number of tokens is taken for True."""
    with pytest.raises(InvalidParameter, match=r"LabelDescriptionOptions\(\.\.\.\)"):
        synthesizer(Draws(), describe=12)


def test_a_description_that_could_not_fit_is_refused_before_anything_is_drawn() -> None:
    """If it breaks, long descriptions fail and short ones do not, and a failure tells which it was."""
    engine, ledger = Draws(), PrivacyLedger(BUDGET)
    engine.max_prompt_tokens = 60
    with pytest.raises(InvalidParameter, match="longest prompt"):
        synthesizer(engine, ledger=ledger, describe=LabelDescriptionOptions(max_new_tokens=50, members=10)).invoke(
            rows()
        )
    assert not engine.asked
    assert not charges(ledger)
