"""What an attack is given by mistake: one line that names the remedy, and no private text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes.vocabularies import small

from langchain_dp.attacks import (
    PortScorer,
    SentenceEmbeddings,
    attack_answers,
    attack_prompt,
    find_leaks,
    infer_membership,
    invert_vectors,
    invert_words,
    leak_prompt,
    lira_scores,
    plot_attacks,
    unigram_prior,
)
from langchain_dp.audit import NamingEngine, audit_mechanism, audit_pipeline, canary_pair
from langchain_dp.errors import InvalidParameter

SECRET = "Zebedee had gout"
ROWS: list[Any] = [{"text": SECRET, "label": SECRET}]
SMALL = small()
MODEL: Any = object()
NAME: Any = "minilm"
LOAD = r'Vocabulary\. Give langchain_dp\.rapt\.load\("minilm"\)'


def members(**changes: Any) -> object:
    given: dict[str, Any] = {"members": ROWS, "others": ROWS, "candidates": {}, "references": ["first"]} | changes
    return attack_prompt("prompt", **given)


def answers(**changes: Any) -> object:
    given: dict[str, Any] = {"build": lambda data: str, "rows": ROWS, "neighbor": [], "questions": ["q"]} | changes
    return attack_answers(**given, runs=10)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: invert_words([SECRET], vocabulary=NAME, eta=1.0), LOAD),
    (lambda: invert_vectors([SECRET], vocabulary=NAME, eta=1.0), LOAD),
    (lambda: unigram_prior(NAME, [SECRET]), LOAD),
    (lambda: invert_words(["the dog"], vocabulary=SMALL, eta=1.0, prior=MODEL), "unigram_prior"),
    (lambda: SentenceEmbeddings(MODEL), "folder.s path"),
    (lambda: leak_prompt(MODEL, [SECRET]), "chain.invoke"),
    (lambda: leak_prompt(lambda question: ROWS[0], [SECRET]), "answer to return a str, but it returned dict.*content"),
    (lambda: find_leaks(ROWS[0], [SECRET]), "message.content"),
    (lambda: find_leaks("a prompt", MODEL), "rows to be a list of str"),
    (lambda: find_leaks("one two three", [SECRET], embed=lambda texts: texts), "embed returned"),
    (lambda: find_leaks("one two three", [SECRET], embed=MODEL), "embed of type object"),
    (lambda: infer_membership({"m": ([SECRET], [1.0])}), "'m' to hold numbers"),
    (lambda: infer_membership({"m": 1.0}), r"\{name: \(members, others\)\}"),  # type: ignore[dict-item]
    (lambda: lira_scores([SECRET], [[1.0]]), "target to hold numbers"),
    (lambda: members(candidates=[MODEL]), "PortScorer"),
    (lambda: members(candidates={"m": MODEL}), "'m' of type object"),
    (lambda: members(candidates={"m": lambda prompt, rows: [SECRET] * 2}), "'m' returned to hold numbers"),
    (lambda: members(members=[SECRET]), "row of members to be a mapping"),
    (lambda: PortScorer(MODEL, {"a": "A", "b": "B"}), "to be an engine that scores labels"),
    (lambda: PortScorer(NamingEngine(), ["a", "b"]), "mapping from labels"),  # type: ignore[arg-type]
    (lambda: PortScorer(NamingEngine(), {"a": "A", "b": "B"})("p", ROWS), "1 have another"),
    (lambda: PortScorer(NamingEngine(), {"a": "A", "b": "B"})("p", [{"label": "a"}]), "that body names"),
    (lambda: answers(build=MODEL), "build of type object"),
    (lambda: answers(build=lambda data: MODEL), "what build returns of type object.*chain.invoke"),
    (lambda: answers(build=lambda data: lambda question: ROWS[0]), "to return a str"),
    (lambda: answers(rows=[SECRET]), "row of rows to be a mapping"),
    (lambda: plot_attacks([MODEL], "x.png"), "results of attacks"),
    (lambda: audit_mechanism(MODEL, [1], [2], epsilon=1.0, delta=0.0), "mechanism of type object"),
    (
        lambda: audit_mechanism(str, [1], [2], epsilon=1.0, delta=0.0, runs=100, statistic=lambda made: SECRET),  # type: ignore[arg-type, return-value]
        "statistic returned to hold numbers",
    ),
    (
        lambda: audit_pipeline(MODEL, lambda made, at: 1.0, canaries=99, epsilon=1.0, delta=0.0),
        "pipeline of type object",
    ),
    (lambda: audit_pipeline(list, MODEL, canaries=99, epsilon=1.0, delta=0.0), "score of type object"),
    (
        lambda: audit_pipeline(list, lambda made, at: SECRET, canaries=99, epsilon=1.0, delta=0.0),  # type: ignore[arg-type, return-value]
        "one is of type str",
    ),
    (lambda: canary_pair("ab", [0, 1]), "labels of type str to be a list"),
    (lambda: canary_pair(["a", "b"], {"a": 0, "b": 1}), "votes of type dict to be a list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_a_wrong_type_is_one_line_with_a_remedy_and_without_the_text(at: int) -> None:
    """If it breaks, a mistake prints a private text, or ends in a message about something else."""
    call, says = WRONG[at]
    with pytest.raises(InvalidParameter, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:  # whoever keeps the error keeps what it was raised in
        assert not [word for word in ("Zebedee", "gout") if word in repr(error)]
        error = error.__cause__ or error.__context__


def test_every_attack_can_be_named() -> None:
    """If it breaks, two attacks of one kind cannot be told apart in a picture or a report."""
    named = [
        leak_prompt(str, ["one two three"], name="n"),
        invert_words(["the dog"], vocabulary=SMALL, eta=1.0, name="n"),
        invert_vectors(["the dog"], vocabulary=SMALL, eta=1.0, name="n"),
        find_leaks("one", ["two"], name="n"),
    ]  # fmt: skip
    assert {result.name for result in named} == {"n"}
