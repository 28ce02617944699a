"""``langchain-dp demo`` without a language model."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_dp.cli.show import Score, draw_scores, score_table
from langchain_dp.errors import WeakPromiseWarning

HELD_OUT = 160
SHOWN = 6
REPEATS = 5
"""Releases per epsilon."""
_ALMOST_NO_NOISE = 50.0
NAMING_EPSILON = 1.0

INTRODUCTION = """\
1. Names for codes. {tickets:,} support tickets of an invented shop are private, and their queues are only codes.
   Each ticket is compared with {words} public topics; noisy counts choose a topic per queue, at epsilon = {epsilon:g}.
"""
PROTOTYPES = """
2. A classifier without limit. {train:,} private messages to an invented clinic, praise or complaint, become two noisy
   vectors, at epsilon = {epsilon:g}. After that, queries cost nothing. Some of {test} held-out messages:
"""
NOTE = """\
  Right answers to {test} held-out messages, mean of {repeats} releases; ± is the standard error of a mean over the
  messages. "Without noise" is epsilon 50, which is hardly any. An attacker who knows everything but which of two
  texts a record holds guesses it right in at most {low} of 100 cases at epsilon 1, and in {high} at epsilon 3. A blind
  guess is right in 50.
"""


def show_prototypes(epsilons: Sequence[float], picture: Path | None) -> list[Score]:
    """Return scores of both steps. ``picture=None`` prints nothing."""
    from langchain_dp import DPLabelNamer, DPPrototypeClassifier, PrivacyBudget, sample
    from langchain_dp.aggregate import public_topics

    tell: Callable[..., None] = print if picture is not None else lambda *_, **__: None
    tickets, _ = sample.load_tickets()
    tell(INTRODUCTION.format(tickets=len(tickets), words=len(public_topics()), epsilon=NAMING_EPSILON), flush=True)
    queues = sorted({row["label"] for row in tickets})
    codes = {queue: f"queue {place}" for place, queue in enumerate(queues, 1)}
    coded = [{"text": row["text"], "label": codes[row["label"]]} for row in tickets]
    names = DPLabelNamer().fit(coded, labels=list(codes.values()), budget=PrivacyBudget(NAMING_EPSILON)).names
    for queue, code in codes.items():
        tell(f"   {code}  ->  {names[code]:<22} (it is {queue})")

    rows, _ = sample.load()
    train, test = rows[:-HELD_OUT], rows[-HELD_OUT:]
    texts, truths = [row["text"] for row in test], [row["label"] for row in test]
    first = min(epsilons, key=lambda value: abs(value - 1))
    tell(PROTOTYPES.format(train=len(train), test=len(test), epsilon=first), flush=True)

    def right(epsilon: float, shown: bool) -> tuple[float, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakPromiseWarning)
            classifier = DPPrototypeClassifier.fit(train, labels=sample.LABELS, budget=PrivacyBudget(epsilon))
        answers = classifier.batch(texts)
        if shown:
            for text, answer, truth in list(zip(texts, answers, truths, strict=True))[:SHOWN]:
                wrong = "" if answer == truth else f"   (it is {truth})"
                tell(f"   {text[:88]:<88} -> {answer}{wrong}")
        return statistics.mean(answer == truth for answer, truth in zip(answers, truths, strict=True)), classifier

    scores, certificate, started = [], None, time.monotonic()
    for epsilon in epsilons:
        trials = [right(epsilon, epsilon == first and not trial) for trial in range(REPEATS)]
        mean = statistics.mean(accuracy for accuracy, _ in trials)
        scores.append(Score("prototypes", epsilon, mean, len(test)))
        if epsilon == first:
            certificate = trials[0][1].certificate()
    scores.append(Score("without noise", None, right(_ALMOST_NO_NOISE, shown=False)[0], len(test)))
    private = {"prototypes": "yes", "without noise": "NO"}
    table = score_table("private", [(s.method, s.epsilon, s.accuracy, s.error, private[s.method]) for s in scores])
    seconds = time.monotonic() - started
    guess = {epsilon: round(100 / (1 + math.exp(-epsilon))) for epsilon in (1, 3)}
    remark = NOTE.format(test=len(test), repeats=REPEATS, low=guess[1], high=guess[3])
    tell(f"\n{table}{remark}\n{certificate}\n\n   {(len(scores) - 1) * REPEATS + 1} releases and "
         f"{len(test) * ((len(scores) - 1) * REPEATS + 1):,} answers took {seconds:.1f} seconds.\n")  # fmt: skip
    if picture is not None:
        *noisy, clean = scores
        others = [(clean, "the same without noise, not private", "#444444", "-")]
        axis, title = f"accuracy on {clean.n} held-out messages", "Feedback to a clinic (invented)"
        if draw_scores(picture, title, noisy, "private prototypes", others, axis=axis, bottom=0.4):
            print(f"   Picture of accuracy against epsilon: {picture}\n")
    return scores
