"""What an attack is given by mistake: one line that names the remedy, and no private text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes.canary import reported
from fakes.vocabularies import small

from langchain_dp import Neighbors
from langchain_dp.attacks import (
    PortScorer,
    SentenceEmbeddings,
    attack_answers,
    attack_examples,
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
from langchain_dp.rapt.posterior import UnigramPrior

SECRET = "Zebedee had gout"
ROWS: list[Any] = [{"text": SECRET, "label": SECRET}]
OTHERS: list[Any] = [{"text": f"{SECRET} {place}", "label": SECRET} for place in range(2)]
SMALL = small()
MODEL: Any = object()
NAME: Any = "minilm"
LOAD = r'Vocabulary\. Give langchain_dp\.rapt\.load\("minilm"\)'


def members(prompt: str = "prompt", **changes: Any) -> object:
    given: dict[str, Any] = {"members": ROWS, "others": ROWS, "candidates": {}, "references": ["first"]} | changes
    return attack_prompt(prompt, **given)


def examples(given: Any = ROWS, **changes: Any) -> object:
    return attack_examples(given, **{"members": ROWS, "others": ROWS, **changes})


def answers(build: Any = lambda data: str, *, rows: Any = ROWS, **changes: Any) -> object:
    return attack_answers(build, rows, **{"neighbor": [], "questions": ["q"], "runs": 10, **changes})


def leaks(prompt: Any = "words that nobody wrote", rows: Any = (SECRET,), **options: Any) -> object:
    return find_leaks(prompt, list(rows) if isinstance(rows, tuple) else rows, **options)


def asked(rows: Any = (SECRET,), answer: Any = "", **options: Any) -> object:
    return leak_prompt(lambda question: answer, list(rows) if isinstance(rows, tuple) else rows, **options)


def words(texts: Any = ("the dog",), **changes: Any) -> object:
    given: dict[str, Any] = {"vocabulary": SMALL, "eta": 1.0} | changes
    return invert_words(list(texts) if isinstance(texts, tuple) else texts, **given)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: words((SECRET,), vocabulary=NAME), LOAD),
    (lambda: words("one text"), "list of str"),
    (lambda: words([]), "at least 1"),
    (lambda: words(["zyzzyva"]), "word of the table"),
    (lambda: words(prior=MODEL), "unigram_prior"),
    (lambda: words(prior=UnigramPrior(np.array([9999]), np.zeros(1))), "another one"),
    (lambda: words(mechanism="gauss"), "mechanism"),
    (lambda: words(eta=0.0), "eta"),
    (lambda: words(draws=-1, prior=unigram_prior(SMALL, ["the dog"])), "draws"),
    (lambda: invert_vectors([SECRET], vocabulary=NAME, eta=1.0), LOAD),
    (lambda: unigram_prior(NAME, [SECRET]), LOAD),
    (lambda: unigram_prior(SMALL, ["zyzzyva"]), "word of the table"),
    (lambda: SentenceEmbeddings(MODEL), "folder.s path"),
    (lambda: leak_prompt(MODEL, [SECRET]), "chain.invoke"),
    (lambda: asked(answer=ROWS[0]), "answer to return a str, but it returned dict.*content"),
    (lambda: asked("one text"), "examples"),
    (lambda: asked(questions=[]), "questions"),
    (lambda: asked(repeats=0), "repeats"),
    (lambda: leaks(ROWS[0]), "message.content"),
    (lambda: leaks(rows=MODEL), "rows to be a list of str"),
    (lambda: leaks(rows=SECRET), "list of str"),
    (lambda: leaks(rows=[{"note": SECRET}]), "list of str"),
    (lambda: leaks(rows=[]), "rows to hold at least 1"),
    (lambda: leaks(shortest=1), "shortest"),
    (lambda: leaks(embed=lambda texts: texts), "embed returned"),
    (lambda: leaks(embed=lambda texts: np.zeros((7, 2))), "one finite vector"),
    (lambda: leaks(embed=lambda texts: np.full((len(texts), 2), np.nan)), "one finite vector"),
    (lambda: leaks(embed=MODEL), "embed of type object"),
    (lambda: infer_membership({}), "at least one"),
    (lambda: infer_membership({"m": ([SECRET], [1.0])}), "'m' to hold numbers"),
    (lambda: infer_membership({"m": ([], [1.0])}), "'m'"),
    (lambda: infer_membership({"m": ([math.nan], [1.0])}), "'m'"),
    (lambda: infer_membership({"m": 1.0}), r"\{name: \(members, others\)\}"),  # type: ignore[dict-item]
    (lambda: lira_scores([SECRET], [[1.0]]), "target to hold numbers"),
    (lambda: lira_scores([1.0, 2.0], [[1.0]]), "one figure for each"),
    (lambda: lira_scores([1.0, math.inf], [[1.0, 2.0]]), "finite"),
    (lambda: members(" "), "not empty"),
    (lambda: members(members=[]), "members"),
    (lambda: members(references="a"), "references"),
    (lambda: members(candidates=[MODEL]), "PortScorer"),
    (lambda: members(candidates={"m": MODEL}), "'m' of type object"),
    (lambda: members(candidates={"m": lambda prompt, rows: [SECRET] * 2}), "'m' returned to hold numbers"),
    (lambda: members(candidates={"m": lambda prompt, rows: [0.0]}), "each of 2 rows"),
    (lambda: members(members=[SECRET]), "row of members to be a mapping"),
    (lambda: examples([]), "examples"),
    (lambda: examples([SECRET]), "Expected"),
    (lambda: examples(members=[]), "members"),
    (lambda: examples(members=[{"text": 1, "label": SECRET}]), "Expected"),
    (lambda: examples(others=[{"text": SECRET}]), "Expected"),
    (lambda: examples(candidates={"m": lambda prompt, some: [1.0]}), "'m'"),
    (lambda: PortScorer(MODEL, {"a": "A", "b": "B"}), "to be an engine that scores labels"),
    (lambda: PortScorer(NamingEngine(), ["a", "b"]), "mapping from labels"),  # type: ignore[arg-type]
    (lambda: PortScorer(NamingEngine(), {"a": "A", "b": "B"})("p", ROWS), "1 have another"),
    (lambda: PortScorer(NamingEngine(), {"a": "A", "b": "B"})("p", [{"label": "a"}]), "that body names"),
    (lambda: answers(MODEL), "build of type object"),
    (lambda: answers(lambda data: MODEL), "what build returns of type object.*chain.invoke"),
    (lambda: answers(lambda data: lambda question: ROWS[0]), "to return a str"),
    (lambda: answers(rows=[SECRET]), "row of rows to be a mapping"),
    (lambda: answers(neighbor=[*ROWS, *OTHERS]), "0 are missing and 2 are new"),
    (lambda: answers(neighbor=ROWS), "0 are missing and 0 are new"),
    (lambda: answers(rows=[*ROWS, *OTHERS], neighbor=[]), "3 are missing"),
    (lambda: answers(runs=9), "runs"),
    (lambda: answers(runs=11), "even"),
    (lambda: answers(questions=[]), "questions"),
    (lambda: answers(questions="one"), "questions"),
    (lambda: answers(epsilon=-1.0, neighbors=Neighbors.ADD_OR_REMOVE_ONE), "epsilon"),
    (lambda: answers(epsilon=1.0), "neighbors=REPLACE_ONE, which epsilon is about, but 1 records are missing and 0"),
    (lambda: answers(epsilon=1.0, neighbors=Neighbors.REPLACE_SPECIAL), "neighbors=REPLACE_SPECIAL"),
    (lambda: plot_attacks([MODEL], "x.png"), "results of attacks"),
    (lambda: plot_attacks([], "x.png"), "at least one attack"),
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
    kept = reported(caught.value, lambda file: False)  # whoever keeps the error keeps what it was raised in
    assert not [word for word in ("Zebedee", "gout") if word in repr(kept)]


def test_every_attack_can_be_named() -> None:
    """If it breaks, two attacks of one kind cannot be told apart in a picture or a report."""
    named = [
        leak_prompt(str, ["one two three"], name="n"),
        invert_words(["the dog"], vocabulary=SMALL, eta=1.0, name="n"),
        invert_vectors(["the dog"], vocabulary=SMALL, eta=1.0, name="n"),
        find_leaks("one", ["two"], name="n"),
    ]  # fmt: skip
    assert {result.name for result in named} == {"n"}
