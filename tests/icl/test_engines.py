"""The vote through an engine that scores labels: one member's trouble stays its own."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.voters import LABELS, VotingEngine, classifier, left, private_examples

from langchain_dp.ensemble.engine_calls import ask_together
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.icl import SST2, ICLPrompt
from langchain_dp.ports import MemberPrompt


def test_one_call_scores_all_subsets_in_three_parts() -> None:
    """The engine is asked subset by subset, or cannot tell the cacheable parts from the question."""
    engine = VotingEngine()
    classifier(engine, prompt=SST2).invoke("how is it?")
    [prompts] = engine.calls
    assert len({prompt.member for prompt in prompts}) == 8
    assert {prompt.tail for prompt in prompts} == {"Review: how is it?\nSentiment:"}
    assert {prompt.head for prompt in prompts} == {""}
    assert all(prompt.body.count("Review: note") == 3 for prompt in prompts)
    assert engine.words == [[" Positive", " Negative"]]
    assert engine.content_free == [SST2.content_free()]
    classifier(engine, prompt=SST2, calibrate=False).invoke("x")
    assert engine.content_free[1] == ()


def test_members_keep_their_keys_and_no_other_chain_has_them() -> None:
    """A subset gets a new key for each question, so that no cache is used; or one chain reads another's cache."""
    engine = VotingEngine()
    chain = classifier(engine)
    chain.batch(["x", "y"])
    classifier(engine).invoke("x")
    first, second, other = ({prompt.member for prompt in call} for call in engine.calls)
    assert first == second
    assert not first & other


def test_an_engine_that_fails_altogether_abstains(histograms: list[list[int]]) -> None:
    """An engine's exception, with private text in it, reaches the caller after the spend."""

    def spoil(prompt: MemberPrompt) -> None:
        raise RuntimeError(prompt.body)

    assert classifier(VotingEngine(spoil=spoil)).invoke("x") in LABELS
    assert histograms == [[0, 0]]


class _Number:
    """A number that cannot be compared."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (lambda scores: None, [0, 0]),
        (lambda scores: [math.nan, 1.0], [0, 0]),
        (lambda scores: [1.0, math.nan], [0, 0]),
        (lambda scores: [-math.inf, -5.0], [0, 8]),
        (lambda scores: [-1.0, -1.0], [8, 0]),
        (lambda scores: [-3.0, -1.0], [0, 8]),
        (lambda scores: [_Number(), _Number()], [8, 0]),
    ],
)
def test_the_best_label_is_the_vote(row: Any, expected: list[int], histograms: list[list[int]]) -> None:
    """Ties, missing rows or broken numbers are counted for a label that the engine did not choose."""
    classifier(VotingEngine(row=row)).invoke("x")
    assert histograms == [expected]


def test_empty_subsets_are_scored_but_have_no_vote(histograms: list[list[int]]) -> None:
    """A subset without members votes, or its absence shows in the engine's work."""
    engine = VotingEngine(row=lambda scores: [1.0, 0.0])
    chain = classifier(engine)
    for record_id in [f"#{i}" for i in range(24)]:
        chain.forget(record_id)
    chain.invoke("x")
    assert len(engine.calls[0]) == 8
    assert histograms == [[0, 0]]


def test_a_question_over_the_engines_limit_is_refused_before_the_spend() -> None:
    """A long question is cut without a word, or costs budget."""
    engine = VotingEngine()
    chain = classifier(engine)
    with pytest.raises(InvalidParameter, match="the question, 102 tokens with its template, to be at most 50 tokens"):
        chain.invoke("word " * 100)
    assert engine.calls == []
    assert left(chain) == 5


def test_warm_builds_the_caches_of_all_subsets_and_spends_nothing() -> None:
    """Cold caches show in the time of the first answers although warm() was called."""
    engine = VotingEngine()
    chain = classifier(engine, sampling_probability=0.5)
    chain.warm()
    assert sorted(body.count("note") for body in engine.cache.values()) == [3] * 8
    assert engine.calls == []
    assert left(chain) == 5


def test_warming_and_planning_let_no_text_out(caplog: pytest.LogCaptureFixture) -> None:
    """An engine that logs, or fails on one member, shows that member's text: in a log, or in an exception."""

    class Broken(VotingEngine):
        def warm(self, prompts: Sequence[MemberPrompt]) -> None:
            logging.getLogger("engine").warning("warming %s", prompts[0].body)
            raise RuntimeError(prompts[0].body)

        def count_tokens(self, text: str) -> int:
            logging.getLogger("engine").warning("counting %s", text)
            if CANARY in text:
                raise RuntimeError(text)
            return len(text.split())

    chain = classifier(Broken())
    chain.warm()
    with pytest.raises(ModelUnavailable, match=r"count tokens \(RuntimeError\), text withheld") as caught:
        chain.plan()
    assert caught.value.__context__ is None
    assert CANARY not in caplog.text


@pytest.mark.parametrize("row", [[0.0, None], [], [1.0], [1.0, 0.0, 0.0], ["a", "b"], 7, [[1.0], [0.0]]])
def test_a_row_that_is_none_abstains(row: Any, histograms: list[list[int]]) -> None:
    """If it breaks, an engine's odd answer about one record ends a release that was charged."""
    rows = iter([row])
    classifier(VotingEngine(row=lambda scores: next(rows, scores))).invoke("x")
    assert histograms == [[7, 0]]


def test_an_engine_that_answers_too_little_is_asked_one_by_one() -> None:
    """If it breaks, the votes of subsets are mixed up, or lost, when an engine drops one."""
    assert ask_together(lambda members: list(members)[:1], ["a", "b", "c"]) == ["a", "b", "c"]
    assert ask_together(lambda members: [], ["a"]) == [None]


def test_a_certificate_carries_what_the_engine_has_to_say() -> None:
    """An engine that cannot keep members apart says so, and the certificate leaves it out."""
    engine = VotingEngine()
    assert "the server saw them" not in classifier(engine).certificate().notes
    engine.notes = ("the server saw them",)  # type: ignore[attr-defined]
    assert "the server saw them" in classifier(engine).invoke_with_certificate("x").certificate.notes


def test_subsets_of_long_examples_vote(histograms: list[list[int]]) -> None:
    """If it breaks, all abstain where notes are long, and the answer is noise alone at full price."""

    def full(prompt: MemberPrompt) -> None:
        if len(f"{prompt.head} {prompt.body}".split()) > engine.max_tail_tokens:
            raise RuntimeError("too long")

    engine = VotingEngine(spoil=full)
    records = [{**row, "text": f"{row['text']} {'and so on ' * 400}"} for row in private_examples(24)]
    classifier(engine, examples=records).invoke("x")
    assert histograms == [[8, 0]]
    for prompt in engine.calls[0]:
        assert prompt.body.count("Text: note ") == prompt.body.count("Label: positive\n\n") == 3


def test_an_instruction_that_leaves_no_room_for_examples_is_refused() -> None:
    """If it breaks, no example fits, every subset abstains or sees none, and noise is sold as an answer."""
    engine = VotingEngine()
    prompts = (ICLPrompt(instruction="word " * words, question="Text: {text}", answer="Label:") for words in (20, 40))
    fits, fills = (classifier(engine, prompt=prompt) for prompt in prompts)
    assert fits.invoke("q") == "positive"
    with pytest.raises(InvalidParameter, match=r"at least 16 tokens for examples, of the 50 .* it leaves 5: .* noise"):
        fills.invoke("q")
    assert left(fills) == 5
