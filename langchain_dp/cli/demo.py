"""``langchain-dp demo``: what privacy costs, shown with a model that runs on this machine."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Option

from langchain_dp._util.rounding import bound
from langchain_dp.cli.demo_prototypes import show_prototypes
from langchain_dp.cli.options import (
    ROWS,
    DeltaOptions,
    FileOptions,
    JsonOptions,
    LabelOptions,
    ModelOptions,
    VoteOptions,
    of_icl,
)
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.runs import check_folder, read_off
from langchain_dp.cli.show import Score, draw_scores, note, print_json, progress, score_table
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.icl import DPICLClassifier, ICLPrompt
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

_FULL = ("limit", "rows", "queries", "shots", "subsets")
"""Options that the short demonstration does not heed."""

_PICTURES = (".png", ".svg", ".pdf")

_QUESTIONS, _SHOTS, _SUBSETS = 20, 2, 10
"""Of the short demonstration. Two examples a subset: with four, an answer takes twice as long on one core."""

_SECONDS = 75.0
"""After so long it asks no further question: what comes then, also on a slow machine, takes some ten seconds."""

_DRAWS = 10_000


class Demo(JsonOptions, ModelOptions, VoteOptions, DeltaOptions, FileOptions, LabelOptions):
    """Shows it."""

    path = "demo"
    what = "What privacy costs, with a model that runs on this machine."
    examples = """\
  langchain-dp demo
  langchain-dp demo --part prototypes
  langchain-dp demo --full
  langchain-dp demo --data tickets.jsonl --json
  langchain-dp demo --data train.jsonl --test test.jsonl --prompt sst2 --queries 10000 --limit 200
"""
    notes = """\
Without options, on the samples that come with the package: first names for codes and private prototypes, in seconds and
without a language model; then votes, noise and answers, question by question, in less than two minutes.
--full: a table of accuracy against epsilon over 80 questions, some five minutes. Rows of --data: in full.
--json: {"rows": [{"method", "epsilon", "accuracy", "n", ...}]}, one row a method; epsilon is null where there is none.
"""
    part: Literal["all", "prototypes", "votes"] = Option("all", help="of the short demonstration")
    full: bool = Option(False, "--full", help="a longer table, on the sample")
    data: Path | None = Option(None, help=f"{ROWS}: the private rows (default: a sample)")
    test: Path | None = Option(None, help="rows to score (default: a held-out fifth of --data)")
    limit: int = Option(80, min=1, help="rows to score at most")
    rows: int = Option(8000, min=1, help="private rows at most")
    epsilon: list[float] | None = of_icl(None, parser=positive, help="default: 1 3 8")
    queries: int | None = of_icl(None, min=1, help="answers the noise is made for (default: the rows scored)")
    picture: Path = of_icl(Path("accuracy_vs_epsilon.png"))

    @property
    def epsilons(self) -> list[float]:
        """The budgets of DP-ICL, the strictest first."""
        return sorted(self.epsilon or (1.0, 3.0, 8.0))

    def run(self) -> int:
        """Run the command; returns the exit code."""
        began = time.monotonic()
        short = not self.full and self.data is None
        if short:
            given = self.given(_FULL)
            if given:
                raise WrongArguments(f"Expected {', '.join(given)} together with --full or --data.")
        _check(self)
        data = _data(self)
        shown: list[dict[str, Any]] = []
        if short and self.part != "votes":
            picture = None if self.json else self.picture.with_name(f"prototypes_{self.picture.name}")
            shown = [dataclasses.asdict(score) for score in show_prototypes(self.epsilons, picture)]
            if self.part == "prototypes" or not _has_model(self):
                if self.json:
                    print_json({"rows": shown})
                return DONE
        if short and not self.json:
            print(_INTRODUCTION.format(rows=len(data.train), name=data.name), flush=True)
        with self.engine() as engine:
            rows = _short(self, data, engine, began) if short else _icl(self, data, engine)
        if self.json:
            print_json({"rows": [*shown, *rows]})
        if data.said is not None:
            note(data.said)
        return DONE


def _has_model(options: Demo) -> bool:
    """Whether llama.cpp is there for the second part; says how to get it where it is not."""
    if importlib.util.find_spec("llama_cpp") is not None:
        return True
    if not options.json:
        print("The second part, votes of a language model on this machine, needs: pip install 'langchain-dp[local]'")
    return False


def _check(options: Demo) -> None:
    """Refuse options that would be ignored, and a picture that cannot be saved."""
    if options.full and options.data is not None:
        raise WrongArguments("Expected --full without --data: rows of your own are always shown in full.")
    if options.data is None and options.prompt != "plain":
        raise WrongArguments("Expected --prompt together with --data: the sample has its own template.")
    if not options.json:
        if options.picture.suffix.lower() not in _PICTURES:
            raise WrongArguments(f"Expected --picture {options.picture} to end in one of {', '.join(_PICTURES)}.")
        check_folder(options.picture, "--picture")


@dataclasses.dataclass(frozen=True, repr=False)
class _Data:
    """Private rows, rows to score, labels in public order, and the template (None: a plain one)."""

    name: str
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    labels: list[str]
    prompt: ICLPrompt | None
    said: str | None = None


def _data(options: Demo) -> _Data:
    from langchain_dp import sample
    from langchain_dp.icl.prompts import TEMPLATES

    if options.data is None:
        if options.test or options.labels:
            raise WrongArguments("Expected --test and --labels together with --data: the sample has its own.")
        train, test, labels = *sample.load(), list(sample.LABELS)
        name, said = "Feedback to a clinic (invented)", None
        prompt: ICLPrompt | None = sample.PROMPT
    else:
        train = options.read(options.data)
        train, test = (train, options.read(options.test)) if options.test else _split(train)
        labels, said = (options.labels, None) if options.labels else read_off(train)
        name, prompt = options.data.stem, TEMPLATES.get(options.prompt)
    if not test:
        raise InvalidParameter("Expected at least one row to score, but there is none. Give --test FILE or more rows.")
    return _Data(name, train[: options.rows], test[: options.limit], labels, prompt, said)


def _split(rows: list[dict[str, Any]], part: float = 0.2) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(private, held-out) rows: a fixed shuffle, so that two runs score the same rows."""
    order = list(rows)
    random.Random(0).shuffle(order)  # noqa: S311  # which rows are scored is no secret
    cut = len(order) - max(1, int(len(order) * part))
    return order[:cut], order[cut:]


def _chains(
    data: _Data, engine: LlamaCppEnsemble, epsilons: Sequence[float], delta: float, **sizes: Any
) -> list[DPICLClassifier]:
    """One chain a budget. The budgets are promises side by side: who sees all of the answers has seen the sum."""
    from langchain_dp.accounting import PrivacyBudget
    from langchain_dp.icl import DPICLClassifier

    budgets = [PrivacyBudget(value, delta) for value in epsilons]
    first = DPICLClassifier(
        model=engine, examples=data.train, labels=data.labels, budget=budgets[0], prompt=data.prompt, **sizes
    )
    return [first, *(first.with_budget(budget, max_queries=sizes["max_queries"]) for budget in budgets[1:])]


def _question(row: dict[str, Any], chain: DPICLClassifier) -> dict[str, Any]:
    return {key: row[key] for key in chain.prompt.variables if key in row}


def _scored(scores: Sequence[Score], shots: int) -> str:
    names = {"few-shot": f"{shots}-shot", "vote": "vote without noise", "dp-icl": "DP-ICL"}
    private = {"dp-icl": "yes", "zero-shot": "no example used"}
    return score_table(
        "private",
        [(names.get(s.method, s.method), s.epsilon, s.accuracy, s.error, private.get(s.method, "NO")) for s in scores],
    )


# --------------------------------------------------------------------------------------------------- in two minutes

_INTRODUCTION = """\
3. A vote by a language model. {rows:,} messages with labels are private here. {name}.
A small model on this machine sees a few of them at a time and votes on each new message. Noise is added to the votes,
and only the winning label comes out. The model is being loaded ...
"""

_LEFT = """\
What left the building: {asked} labels, one a message, and the certificate. The model ran in this process, so no message
went to anybody's server. The private messages and the votes stayed inside: you see votes above because everything here
is invented. With records of real people nobody sees them, not even in a log.
"""

_NEXT = """\
The same over 80 messages, some five minutes: langchain-dp demo --full
On messages of your own: langchain-dp demo --data FILE.jsonl    What it would cost: langchain-dp plan icl --help\
"""


def _short(options: Demo, data: _Data, engine: LlamaCppEnsemble, began: float) -> list[dict[str, Any]]:
    """Questions one by one with votes, noise and answer, until the time is over; then what another epsilon means."""
    from langchain_dp.accounting import PrivacyBudget

    epsilons = options.epsilons
    sizes = {"max_queries": _QUESTIONS, "shots": _SHOTS, "subsets": _SUBSETS}
    (chain,) = _chains(data, engine, [epsilons[len(epsilons) // 2]], options.delta, **sizes)
    alone = chain.baseline("zero-shot", private=False)
    tell = (lambda _: None) if options.json else print
    promised = chain.certificate()
    tell(
        f"Epsilon = {bound(promised.epsilon)}, delta = {bound(promised.delta)} for {_QUESTIONS} messages together. "
        f"About {_SUBSETS} votes on each, noise of {chain.sigma:.2f} votes on every count.\n"
    )
    asked: list[tuple[dict[str, Any], collections.Counter[int], str]] = []
    right = 0
    for row in data.test[:_QUESTIONS]:
        if asked and time.monotonic() - began > _SECONDS:
            break
        started = time.monotonic()
        with _watching(engine) as votes:
            answer = chain.invoke(_question(row, chain))
        seconds = time.monotonic() - started
        asked.append((row, votes, answer))
        shown = "   ".join(f"{name} {'█' * votes[i]} {votes[i]}" for i, name in enumerate(data.labels))
        wrong = "" if answer == row["label"] else f" (it is {row['label']})"
        tell(f"{len(asked):>2}. {row['text']}\n    votes  {shown}   + noise  ->  {answer}{wrong}   {seconds:.1f} s")
        sys.stdout.flush()
        right += alone.invoke(_question(row, chain)) == row["label"]
    truths = [data.labels.index(row["label"]) for row, _, _ in asked]
    counts = [[votes[i] for i in range(len(data.labels))] for _, votes, _ in asked]
    noise = {
        value: chain.with_budget(PrivacyBudget(value, options.delta), max_queries=_QUESTIONS).sigma
        for value in epsilons
    }
    scores = [
        Score("zero-shot", 0.0, right / len(asked), len(asked)),
        *(Score("dp-icl", value, _kept(counts, truths, noise[value]), len(asked)) for value in epsilons),
        Score("vote", None, _kept(counts, truths, 0.0), len(asked)),
    ]  # fmt: skip
    tell(
        f"\n{_scored(scores, _SHOTS)}  Right answers among these {len(asked)} messages; of DP-ICL the mean "
        f"over {_DRAWS:,} draws of\n  the noise that each epsilon asks for, on the votes above. ± is one standard "
        f"error.\n\n{chain.certificate()}\n\n{_LEFT.format(asked=len(asked))}"
    )
    if not options.json:
        _save(scores, data.name, options, _SHOTS)
        print(_NEXT)
    return [dataclasses.asdict(score) for score in scores]


@contextlib.contextmanager
def _watching(engine: Any) -> Iterator[collections.Counter[int]]:
    """Counts the votes that an engine casts. Nothing but a demonstration on invented rows may look at them."""
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
    """Share of right answers under noise of a scale, in the mean over many draws."""
    import numpy as np

    noise = np.random.default_rng().normal(scale=sigma or 1e-9, size=(_DRAWS, len(counts), len(counts[0])))
    return float(((np.asarray(counts) + noise).argmax(axis=2) == np.asarray(truths)).mean())


# ---------------------------------------------------------------------------------------------------------- in full


def _icl(options: Demo, data: _Data, engine: LlamaCppEnsemble) -> list[dict[str, Any]]:
    """Accuracy against epsilon. Every private answer is a real release, charged to a ledger of its own budget."""
    epsilons = options.epsilons
    sizes = {"max_queries": options.queries or len(data.test), "shots": options.shots, "subsets": options.subsets}
    chains = _chains(data, engine, epsilons, options.delta, **sizes)
    middle = chains[len(chains) // 2]
    if options.data is None and not options.json:  # rows of somebody's own file are not printed
        print(f"{_one_answer(middle, data)}\n\nNow the same for every question and method: some minutes.\n", flush=True)
    methods: list[tuple[str, float | None, Any]] = [
        ("zero-shot", 0.0, middle.baseline("zero-shot", private=False)),
        ("few-shot", None, middle.baseline("few-shot", private=False)),
        ("vote", None, middle.baseline("vote", private=False)),
        *(("dp-icl", value, chain) for value, chain in zip(epsilons, chains, strict=True)),
    ]
    scores = [_score(*method, [(_question(row, middle), row["label"]) for row in data.test]) for method in methods]
    if not options.json:
        plan = middle.plan()
        shots = round(len(data.train) / plan.scheme.groups)
        head = f"{data.name}: {len(data.train):,} private examples, {len(data.labels)} labels, {len(data.test)}"
        print(f"{head} questions scored\n\n{_scored(scores, shots)}\n{plan}\n\n{middle.certificate()}")
        _save(scores, data.name, options, shots)
    return [dataclasses.asdict(score) for score in scores]


def _one_answer(chain: DPICLClassifier, data: _Data) -> str:
    """The first question with its answer. It is asked again for the table, and answered from what was released."""
    row, started = data.test[0], time.perf_counter()
    answer = chain.invoke(_question(row, chain))
    seconds, promised, plan = time.perf_counter() - started, chain.certificate(), chain.plan()
    return (
        f"asked:    {row['text']}\n"
        f"answered: {answer}   (it is {row['label']}; {seconds:.0f} seconds)\n"
        f"promise:  epsilon = {bound(promised.epsilon)}, delta = {bound(promised.delta)} for {plan.queries:,} such "
        f"answers together: by a vote, with noise,\n          of about {plan.scheme.expected_subsets:.0f} subsets "
        f"of the {len(data.train):,} private examples. Only the label came out."
    )


def _score(name: str, value: float | None, chain: Any, rows: Sequence[tuple[dict[str, Any], str]]) -> Score:
    title, right = f"{name} at epsilon {value:g}" if name == "dp-icl" else name, 0
    with progress(f"{title:<22}", len(rows), "questions") as advance:
        for question, label in rows:
            right += chain.invoke(question) == label
            advance(1)
    return Score(name, value, right / len(rows), len(rows))


def _save(scores: Sequence[Score], title: str, options: Demo, shots: int) -> None:
    """Save accuracy against epsilon as an image."""
    private = [score for score in scores if score.method == "dp-icl"]
    lines = {
        "zero-shot": ("zero-shot", "#999999", ":"),
        "few-shot": (f"{shots}-shot, not private", "#c97b2a", "--"),
        "vote": ("vote without noise, not private", "#444444", "-"),
    }
    others = [(score, *lines[method]) for method in lines for score in scores if score.method == method]
    label = f"DP-ICL, delta = {options.delta:g} (bars: one standard error)"
    axis = f"accuracy on {scores[0].n} questions"
    if draw_scores(options.picture, title, private, label, others, axis=axis):
        print(f"\nPicture of accuracy against epsilon: {options.picture}\n")
