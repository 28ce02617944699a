"""What is made with released text promises the sum of both releases: no epsilon of a step stands for the whole."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, by_text
from fakes.optimizers import BUDGET, examples, optimizer
from fakes.scorer import WordScorer
from fakes.synthesizers import generator, rows, synthesizer
from fakes.voters import VotingEngine, classifier
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate

from langchain_dp import DPLabelNamer
from langchain_dp.accounting import Neighbors, NoisyMaxEvent, PrivacyBudget, PrivacyCertificate, PrivacyLedger
from langchain_dp.accounting.provenance import ReleasedText, costs_in
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ICLPrompt
from langchain_dp.opt import OptimizedPrompt, OptPrompts, PromptAlternative, load_prompt
from langchain_dp.synth import AnswerPrompts, SynthesisPrompts, SyntheticExample, SyntheticExamples

DELTA = 5e-6
LABELS = ["delivery", "billing"]
SAID = {"delivery": "complaints about late parcels", "billing": "questions about invoices"}


def ledger(path: Path | None = None, epsilon: float = 500.0) -> PrivacyLedger:
    return PrivacyLedger(PrivacyBudget(epsilon, 0.3), path)


def spent(account: PrivacyLedger, name: str = "names", epsilon: float = 5.0) -> PrivacyCertificate:
    """The certificate of a run that is over."""
    return account.reserve([(NoisyMaxEvent(20.0), 1)], name=name, epsilon=epsilon, delta=DELTA).certificate()


def handed(certificate: PrivacyCertificate, **changed: Any) -> OptimizedPrompt:
    """What a run whose labels have words of their own hands over."""
    fields: dict[str, Any] = {
        "prompt": "{text}", "instruction": "Sort the complaints.", "certificate": certificate, "model": {"name": "m"},
        "settings": {"labels": LABELS}, "words": SAID,
    }  # fmt: skip
    return OptimizedPrompt(**fields | changed)


def share(account: PrivacyLedger, epsilon: float = 3.0) -> dict[str, Any]:
    return {"ledger": account, "budget": PrivacyBudget(epsilon, DELTA)}


def icl(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    records = [{"text": f"note {i}", "label": LABELS[i % 2]} for i in range(24)]
    settings: dict[str, Any] = {"labels": LABELS, "examples": records} | share(account) | changed
    return classifier(VotingEngine(), **settings).certificate()


def opt(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    given = [{**one, "label": LABELS[i % 2]} for i, one in enumerate(examples())]
    settings: dict[str, Any] = {"labels": LABELS, "ledger": account, "budget": BUDGET} | changed
    made = optimizer(**settings).optimize(given)
    metadata = made.template().metadata
    assert metadata is not None
    assert metadata["dp"] == made.certificate.to_dict()
    return made.certificate


def choosing(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    given = [{**one, "label": LABELS[i % 2]} for i, one in enumerate(examples())]
    made = optimizer_for_choice(account, **changed).optimize(given)
    return made.certificate


def optimizer_for_choice(account: PrivacyLedger, **changed: Any) -> Any:
    from langchain_dp.opt import DPPromptSelector

    return DPPromptSelector(
        model=WordEngine(by_text({})), labels=LABELS, instruction="Sort.", progress=False,
        **{"alternatives": ["Sort well."]} | share(account) | changed,
    )  # fmt: skip


def synth(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    settings: dict[str, Any] = share(account) | changed
    return synthesizer(WordScorer(), **settings).invoke(rows()).certificate


def free(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    return synthesizer(WordScorer(), **share(account) | changed).public_examples().certificate


def answers(account: PrivacyLedger, **changed: Any) -> PrivacyCertificate:
    settings: dict[str, Any] = share(account) | changed
    return generator(WordScorer(), **settings).certificate()


OPT = BUDGET.epsilon
TAKERS: dict[str, tuple[Callable[..., PrivacyCertificate], Callable[[OptimizedPrompt], dict[str, Any]], float]] = {
    "the labels of examples": (synth, lambda made: {"labels": made.words}, 3.0),
    "a copy of the labels": (synth, lambda made: {"labels": dict(made.words.items())}, 3.0),
    "the head of examples": (
        synth,
        lambda made: {"prompts": SynthesisPrompts(head=made.instruction + " {description}")},
        3.0,
    ),
    "declared for examples": (synth, lambda made: {"made_with": made.certificate}, 3.0),
    "the labels of public examples": (free, lambda made: {"labels": made.words}, 0.0),
    "the words of votes": (icl, lambda made: {"prompt": ICLPrompt("{text}", "Label:", words=made.words)}, 3.0),
    "the instruction of votes": (icl, lambda made: {"prompt": ICLPrompt("{text}", "Label:", made.instruction)}, 3.0),
    "the labels of votes": (
        icl,
        lambda made: {
            "labels": made.words.values(),
            "examples": [{"text": f"note {i}", "label": list(made.words.values())[i % 2]} for i in range(24)],
        },
        3.0,
    ),
    "a text of votes": (icl, lambda made: {"prompt": made.instruction + "\n\n{text}\nLabel:"}, 3.0),
    "declared for votes": (icl, lambda made: {"made_with": [made.certificate]}, 3.0),
    "the instruction of a prompt": (opt, lambda made: {"instruction": made.instruction}, OPT),
    "the words of a prompt": (opt, lambda made: {"prompts": OptPrompts(words=made.words)}, OPT),
    "an alternative instruction": (choosing, lambda made: {"alternatives": [made.instruction]}, 3.0),
    "declared for a prompt": (opt, lambda made: {"made_with": made}, OPT),
    "the words of a choice": (
        choosing,
        lambda made: {"alternatives": [PromptAlternative(words=made.words), PromptAlternative(made.instruction)]},
        3.0,
    ),
    "the head of answers": (answers, lambda made: {"prompts": AnswerPrompts(head=made.instruction)}, 3.0),
    "declared for answers": (answers, lambda made: {"made_with": made.certificate}, 3.0),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["one ledger", "two ledgers"])
@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_made_with_released_text_promises_the_sum(taker: str, elsewhere: bool) -> None:
    """If it breaks, a certificate prints the epsilon of the last step as that of all that went in."""
    make, given, own = TAKERS[taker]
    account = ledger()
    made = handed(spent(ledger() if elsewhere else account))
    certificate = make(account, **given(made))
    assert certificate.epsilon == pytest.approx(own + 5.0)
    assert certificate.delta == pytest.approx({0.0: 0.0, 3.0: DELTA, OPT: BUDGET.delta}[own] + DELTA)
    assert certificate.spent[0] >= 5.0
    assert [round(source.epsilon, 6) for source in certificate.sources] == [own, 5.0][not own :]
    assert certificate.sources[-1].plan == "names"
    if not elsewhere:
        assert account.reserved()[0] == pytest.approx(own + 5.0)
    assert f"epsilon = {own + 5:g}, " in str(certificate)
    assert "plan 'names'" in str(certificate) or not own
    assert PrivacyCertificate.from_json(certificate.to_json()) == certificate
    assert make(ledger()).epsilon == own, "text of one's own costs nothing"


def test_the_recipe_of_the_docs_says_what_its_ledger_says() -> None:
    """If it breaks, examples that were written from paid descriptions say that these cost nothing."""
    account = ledger()
    words = {"parcels": "complaints about late parcels", "invoices": "questions about invoices"}
    namer = DPLabelNamer(words, encoder=DeterministicFakeEmbedding(size=16), trust_opaque_model=True)
    named = namer.fit(rows(), labels=LABELS, **share(account, 1.0))
    made = synthesizer(labels=named.descriptions, **share(account)).invoke(rows())
    assert made.certificate.epsilon == pytest.approx(account.reserved()[0]) == pytest.approx(1.0 + 3.0)


def test_a_release_that_is_used_twice_counts_once() -> None:
    """If it breaks, words and certificate of one run cost twice what was spent."""
    account = ledger()
    made = handed(spent(account))
    both = synth(account, labels=made.words, made_with=[made.certificate, made.certificate])
    assert both.epsilon == pytest.approx(8.0)
    again = handed(both)
    other = spent(account, "other", 1.0).including(costs_in(again.words, made.words, both))
    assert other.epsilon == pytest.approx(9.0)
    assert [source.plan for source in other.sources] == ["other", "synthesis", "names"]


def test_a_run_that_takes_its_own_release_pays_for_it_once() -> None:
    """If it breaks, a run that is taken up again with what it has released counts itself twice."""
    account = ledger()
    certificate = spent(account)
    assert certificate.including(costs_in(handed(certificate).words)) == certificate


@pytest.mark.parametrize(
    "carried",
    [
        copy.copy,
        copy.deepcopy,
        lambda text: pickle.loads(pickle.dumps(text)),
        lambda text: {"a": text} | {},
        lambda text: text.strip(),
        lambda text: text + "!",
        lambda text: "The " + text,
        lambda text: dataclasses.replace(SyntheticExample(text, "a"), label="b"),
    ],
)  # fmt: skip
def test_a_released_text_knows_its_cost_through_ordinary_use(carried: Callable[[Any], Any]) -> None:
    """If it breaks, a copy of what was released counts as public text."""
    text = handed(spent(ledger())).instruction
    assert isinstance(text, ReleasedText)
    assert costs_in([carried(text)]) == text.costs != ()


def test_a_file_knows_what_its_text_cost(tmp_path: Path) -> None:
    """If it breaks, text that was read back counts as public."""
    account = ledger()
    certificate = spent(account, "second", 3.0).including(costs_in(handed(spent(account)).words))
    handed(certificate).save(tmp_path / "prompt.json")
    read = load_prompt(tmp_path / "prompt.json")
    assert read.certificate == certificate
    assert costs_in(read.words) == costs_in(read.instruction) == certificate.sources
    settings = {"labels": SAID}
    SyntheticExamples([SyntheticExample("late", "delivery")], certificate, settings).save(tmp_path / "made.jsonl")
    made = SyntheticExamples.load(tmp_path / "made.jsonl")
    for text in (made.descriptions, made.instruction, made.rows(), made[0], made, made.as_chat_prompt()):
        assert costs_in(text) == certificate.sources
    assert json.loads((tmp_path / "made.jsonl").read_text().splitlines()[0])["certificate"]["epsilon"] == 8.0


def test_metadata_of_answers_and_prompts_hold_the_sum() -> None:
    """If it breaks, a trace shows the epsilon of a step as that of the whole."""
    account = ledger()
    made = handed(spent(account))
    certificate = choosing(account, alternatives=[PromptAlternative(words=made.words)])
    template = handed(certificate).template()
    assert isinstance(template, ChatPromptTemplate)
    assert template.metadata is not None
    assert template.metadata["dp"]["epsilon"] == pytest.approx(8.0)
    assert len(template.metadata["dp"]["sources"]) == 2


def test_text_that_is_not_private_makes_nothing_private() -> None:
    """If it breaks, a prompt of a method without noise is laundered by a private step behind it."""
    account = ledger()
    seeded = account.reserve([(NoisyMaxEvent(20.0), 1)], name="seeded", epsilon=1.0, delta=DELTA).certificate(
        private=False, reason="drawn from a seed"
    )
    certificate = synth(account, labels=handed(seeded).words)
    assert not certificate.private
    assert "drawn from a seed" in certificate.reason


def test_text_for_other_neighbors_is_refused() -> None:
    """If it breaks, promises for different neighbors are added up as if they were one."""
    other, account = PrivacyLedger(PrivacyBudget(9.0, 1e-4, Neighbors.ADD_OR_REMOVE_ONE)), ledger()
    text = handed(spent(other)).words
    for make in (synth, answers, icl, choosing):
        with pytest.raises(InvalidParameter, match="released for neighbors ADD_OR_REMOVE_ONE"):
            make(account, made_with=handed(spent(other)))
    with pytest.raises(InvalidParameter, match="released for neighbors ADD_OR_REMOVE_ONE"):
        spent(account).including(costs_in(text))
    assert [plan.name for plan in account.plans()] == ["names"], "nothing was reserved, charged or released"


@pytest.mark.parametrize("wrong", ["text", 3, {"epsilon": 5.0}, [None]])
def test_what_is_declared_is_a_certificate(wrong: Any) -> None:
    """If it breaks, a slip declares nothing, silently."""
    with pytest.raises(InvalidParameter, match="made_with"):
        synthesizer(made_with=wrong)
