"""``langchain-dp demo``."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Option

from langchain_dp._util.extras import install_hint
from langchain_dp._util.rounding import bound
from langchain_dp.cli.demo_prototypes import show_prototypes
from langchain_dp.cli.options import DeltaOptions, JsonOptions, ModelOptions
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.runs import check_folder
from langchain_dp.cli.show import Score, draw_scores, print_json, score_table

if TYPE_CHECKING:
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

_PICTURES = (".png", ".svg", ".pdf")

_QUESTIONS, _SHOTS, _SUBSETS = 20, 2, 10
"""Four shots would take twice as long."""

_SECONDS = 75.0
"""No query starts later."""

_DRAWS = 10_000

_TITLE = "Feedback to a clinic (invented)"

_INTRODUCTION = """\
3. A vote by a language model. {rows:,} messages with labels are private here. {name}.
A small model on this machine sees a few of them at a time and votes on each new message. Noise is added to the votes,
and only the winning label is released. The model is being loaded ...
"""

_LEFT = """\
Released: {asked} labels, one per message, and the certificate. The model ran in this process, so no message
went to anybody's server. The private messages and the votes stayed inside: you see votes above because everything here
is invented. With records of real people nobody sees them, not even in a log.
"""

_NEXT = """\
On messages of your own: langchain-dp fit --data FILE.jsonl --epsilon 1 --budget 3 --out classifier.json
What votes would cost: langchain-dp plan icl --help\
"""


class Demo(JsonOptions, ModelOptions, DeltaOptions):
    """Shows the cost of privacy."""

    path = "demo"
    what = "Show what privacy costs, on this machine."
    examples = """\
  langchain-dp demo
  langchain-dp demo --part prototypes
  langchain-dp demo --part votes --epsilon 1 4 --json
"""
    notes = """\
The samples come with the package. First: names for codes and private prototypes, in seconds, without a language
model. Then: votes, noise and answers, in less than two minutes.
--json: {"rows": [{"method", "epsilon", "accuracy", "n", ...}]}, one row per method. Without a promise
epsilon is null.
"""
    part: Literal["all", "prototypes", "votes"] = Option("all", help="what to show")
    epsilon: list[float] | None = Option(None, parser=positive, help="default: 1 3 8")
    picture: Path = Option(Path("accuracy_vs_epsilon.png"), help="of the votes; that of prototypes stands beside it")

    @property
    def epsilons(self) -> list[float]:
        return sorted(self.epsilon or (1.0, 3.0, 8.0))

    def run(self) -> int:
        began = time.monotonic()
        if not self.json:
            if self.picture.suffix.lower() not in _PICTURES:
                raise WrongArguments(f"Expected --picture {self.picture} to end in one of {', '.join(_PICTURES)}.")
            check_folder(self.picture, "--picture")
        scores: list[Score] = []
        if self.part != "votes":
            picture = None if self.json else self.picture.with_name(f"prototypes_{self.picture.name}")
            scores += show_prototypes(self.epsilons, picture)
        if self.part != "prototypes" and (self.part == "votes" or self._has_model()):
            scores += self._votes(began)
        if self.json:
            print_json({"rows": [dataclasses.asdict(score) for score in scores]})
        return DONE

    def _has_model(self) -> bool:
        there = importlib.util.find_spec("llama_cpp") is not None
        if not there and not self.json:
            print(f"The second part, votes of a language model on this machine: {install_hint('local')}")
        return there

    def _votes(self, began: float) -> list[Score]:
        from langchain_dp import sample

        train, test = sample.load()
        if not self.json:
            print(_INTRODUCTION.format(rows=len(train), name=_TITLE), flush=True)
        with self.engine() as engine:
            return self._ask(train, test[:_QUESTIONS], engine, began)

    def _ask(
        self, train: list[dict[str, Any]], test: list[dict[str, Any]], engine: LlamaCppEnsemble, began: float
    ) -> list[Score]:
        from langchain_dp import sample
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.icl import DPICLClassifier

        labels, epsilons = list(sample.LABELS), self.epsilons
        budgets = [PrivacyBudget(value, self.delta) for value in epsilons]
        chain = DPICLClassifier(
            model=engine, examples=train, labels=labels, budget=budgets[len(budgets) // 2], prompt=sample.PROMPT,
            max_queries=_QUESTIONS, shots=_SHOTS, subsets=_SUBSETS,
        )  # fmt: skip
        alone = chain.baseline("zero-shot", private=False)
        tell = (lambda _: None) if self.json else print
        promised = chain.certificate()
        tell(
            f"Epsilon = {bound(promised.epsilon)}, delta = {bound(promised.delta)} for {_QUESTIONS} messages together. "
            f"About {_SUBSETS} votes on each, noise of {chain.sigma:.2f} votes on every count.\n"
        )
        counts: list[list[int]] = []
        truths: list[int] = []
        right = 0
        for row in test:
            if counts and time.monotonic() - began > _SECONDS:
                break
            started, question = time.monotonic(), {"text": row["text"]}
            with _watching(engine) as votes:
                answer = chain.invoke(question)
            seconds = time.monotonic() - started
            counts.append([votes[i] for i in range(len(labels))])
            truths.append(labels.index(row["label"]))
            shown = "   ".join(f"{name} {'█' * votes[i]} {votes[i]}" for i, name in enumerate(labels))
            wrong = "" if answer == row["label"] else f" (it is {row['label']})"
            tell(f"{len(counts):>2}. {row['text']}")
            tell(f"    votes  {shown}   + noise  ->  {answer}{wrong}   {seconds:.1f} s")
            sys.stdout.flush()
            right += alone.invoke(question) == row["label"]
        asked = len(counts)
        noise = [chain.with_budget(budget, max_queries=_QUESTIONS).sigma for budget in budgets]
        kept = [_kept(counts, truths, sigma) for sigma in noise]
        scores = [
            Score("zero-shot", 0.0, right / asked, asked),
            *(Score("dp-icl", value, share, asked) for value, share in zip(epsilons, kept, strict=True)),
            Score("vote", None, _kept(counts, truths, 0.0), asked),
        ]
        tell(
            f"\n{_table(scores)}  Right answers among these {asked} messages; of DP-ICL the mean over {_DRAWS:,} draws "
            "of\n  the noise that each epsilon asks for, on the votes above. ± is one standard "
            f"error.\n\n{chain.certificate()}\n\n{_LEFT.format(asked=asked)}"
        )
        if not self.json:
            self._save(scores)
            print(_NEXT)
        return scores

    def _save(self, scores: Sequence[Score]) -> None:
        alone, *private, vote = scores
        others = [
            (alone, "zero-shot", "#999999", ":"),
            (vote, "vote without noise, not private", "#444444", "-"),
        ]
        label = f"DP-ICL, delta = {self.delta:g} (bars: one standard error)"
        axis = f"accuracy on {alone.n} questions"
        if draw_scores(self.picture, _TITLE, private, label, others, axis=axis):
            print(f"\nPicture of accuracy against epsilon: {self.picture}\n")


def _table(scores: Sequence[Score]) -> str:
    names = {"vote": "vote without noise", "dp-icl": "DP-ICL"}
    private = {"dp-icl": "yes", "zero-shot": "no example used"}
    return score_table(
        "private",
        [(names.get(s.method, s.method), s.epsilon, s.accuracy, s.error, private.get(s.method, "NO")) for s in scores],
    )


@contextlib.contextmanager
def _watching(engine: Any) -> Iterator[collections.Counter[int]]:
    """Count an engine's votes, which only a demonstration on invented rows may see."""
    votes: collections.Counter[int] = collections.Counter()
    ask = engine.score_labels

    def watched(*given: Any, **settings: Any) -> Any:
        scores = ask(*given, **settings)
        votes.update(max(range(len(row)), key=row.__getitem__) for row in scores if row is not None)
        return scores

    engine.score_labels = watched
    try:
        yield votes
    finally:
        del engine.score_labels


def _kept(counts: Sequence[Sequence[int]], truths: Sequence[int], sigma: float) -> float:
    import numpy as np

    noise = np.random.default_rng().normal(scale=sigma or 1e-9, size=(_DRAWS, len(counts), len(counts[0])))
    return float(((np.asarray(counts) + noise).argmax(axis=2) == np.asarray(truths)).mean())
