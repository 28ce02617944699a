"""Prompt leaking against a chain that repeats its examples, one that does not, and DP-ICL."""

from __future__ import annotations

import pytest
from fakes.voters import LABELS, classifier

from langchain_dp.attacks import leak_prompt
from langchain_dp.attacks.prompt_leaking import QUESTIONS
from langchain_dp.errors import BudgetExceeded, InvalidParameter

EXAMPLES = ["Nurse Bram woke me gently at dawn.", "The soup was cold and nobody came.", "Parking cost nine crowns."]
OTHERS = ["A tram line ends behind the mill.", "Rain fell into the open piano.", "Two keys hung on one nail."]


def test_a_chain_that_repeats_its_examples_is_caught() -> None:
    """If it breaks, a leak of examples goes unseen, or is not named after the examples that leaked."""

    def chain(question: str) -> str:
        return f"Sure: {EXAMPLES[0].upper()} and {EXAMPLES[2]}" if "word for word" in question else "I cannot."

    done = leak_prompt(chain, EXAMPLES, held_out=OTHERS)
    assert done.rate == 1 / len(QUESTIONS)
    assert (done.examples_leaked, done.answers, done.baseline, done.n) == (2, 2, 0.0, len(QUESTIONS))
    assert "NURSE BRAM" in str(done.reports[0])
    assert not any("bram" in shown.lower() for shown in (repr(done), str(done), str(done.to_dict())))


def test_asking_again_is_no_further_evidence() -> None:
    """If it breaks, a hundred equal answers to each of five questions narrow the interval as 500 questions would."""

    def chain(question: str) -> str:
        return EXAMPLES[0] if question == "a" else "I cannot."

    once, often = (leak_prompt(chain, EXAMPLES, questions=list("abcde"), repeats=repeats) for repeats in (1, 100))
    assert (once.rate, once.n, often.n) == (0.2, 5, 500)
    assert once.interval == often.interval == pytest.approx((0.00505, 0.71642), abs=1e-5)


def test_what_strangers_have_in_common_is_chance() -> None:
    """If it breaks, a phrase that held-out rows hold too counts as a leak without a baseline beside it."""
    done = leak_prompt(lambda question: OTHERS[0] + EXAMPLES[0], EXAMPLES, held_out=OTHERS)
    assert done.rate == done.baseline == 1.0


def test_a_question_that_quotes_is_not_a_leak() -> None:
    """If it breaks, a chain that repeats the question is accused of what the attacker itself wrote."""
    question = f"Is this an example: {EXAMPLES[1]}"
    assert leak_prompt(lambda asked: asked, EXAMPLES, questions=[question]).rate == 0.0
    assert leak_prompt(lambda asked: EXAMPLES[1], EXAMPLES, questions=["?"]).rate == 1.0
    assert leak_prompt(lambda asked: EXAMPLES[1], EXAMPLES, questions=["?"], public=[EXAMPLES[1]]).rate == 0.0


def test_dp_icl_answers_with_labels_and_spends_for_every_question() -> None:
    """If it breaks, DP-ICL repeats text, or the attack gets answers that nobody paid for."""
    chain = classifier()
    examples = [f"note {i:03d}" for i in range(24)]
    done = leak_prompt(chain.invoke, examples)
    assert (done.rate, done.answers) == (0.0, 1)
    assert done.interval[1] < 0.6
    with pytest.raises(BudgetExceeded):
        leak_prompt(chain.invoke, examples, questions=["One more question?"])
    assert all(report.prompt in LABELS for report in done.reports)


def test_bad_input_is_named() -> None:
    """If it breaks, no questions give a rate of nothing, or an odd answer ends in another error."""
    with pytest.raises(InvalidParameter, match="questions"):
        leak_prompt(lambda asked: "", EXAMPLES, questions=[])
    with pytest.raises(InvalidParameter, match="examples"):
        leak_prompt(lambda asked: "", "one text")
    with pytest.raises(InvalidParameter, match="repeats"):
        leak_prompt(lambda asked: "", EXAMPLES, repeats=0)
    with pytest.raises(InvalidParameter, match="NoneType"):
        leak_prompt(lambda asked: None, EXAMPLES)  # type: ignore[arg-type, return-value]  # wrong on purpose
