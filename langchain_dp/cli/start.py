"""``langchain-dp start``."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer import Argument, Option

from langchain_dp.cli.options import JsonOptions, LabelOptions
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.runs import check_folder
from langchain_dp.cli.show import columns, print_json
from langchain_dp.cli.spending import DataLedger
from langchain_dp.errors import InvalidParameter

TEXTS = ("text", "message", "body", "content", "description", "question", "comment", "note", "review", "subject")
LABELS = ("label", "category", "queue", "topic", "class", "intent", "tag", "type", "department", "sentiment")
FORECASTS = (0.5, 1.0, 3.0)
QUESTIONS, CHOICES, QUERIES = 5, 4, 100

_SCRIPT = '''\
"""Classify texts by private rows. Run it again at no cost: the ledger keeps the release."""

import sys
from pathlib import Path

from langchain_dp import DPPrototypeClassifier, PrivacyBudget, PrivacyLedger, PrivateRecords

HERE = Path(__file__).parent
LABELS = {labels!r}
rows = PrivateRecords(HERE / {data!r}, text_key={text!r}, label_key={label!r}, user_key={user!r})
share = PrivacyBudget({epsilon!r}, delta={delta!r})
print(DPPrototypeClassifier.plan(len(rows.users()), labels=LABELS, budget=share))  # spends nothing
with PrivacyLedger(PrivacyBudget({total!r}), HERE / {ledger!r}) as ledger:
    classifier = DPPrototypeClassifier.fit(rows, labels=LABELS, budget=share, ledger=ledger, name="prototypes")
classifier.save(HERE / {out!r})  # anybody may see it: DPPrototypeClassifier.load() answers any number of texts
print(classifier.certificate(), "\\nType a text to classify, and Ctrl-D to stop.", sep="\\n")
for text in filter(str.strip, sys.stdin):
    print(classifier.invoke(text))
'''


class Start(JsonOptions, LabelOptions):
    """Begins with own data."""

    path = "start"
    what = "Begin with your own CSV: forecasts, a ledger, a script."
    examples = """\
  langchain-dp start tickets.jsonl --labels praise,complaint --yes
  langchain-dp start tickets.jsonl --text-key body --labels praise,complaint --user-key customer --budget 3 --yes
"""
    notes = """\
It reads the file on this machine. Column names and the numbers of rows and users count as public from then on, so it
asks first. Name the labels yourself: a list made from the rows could disclose a record. Nothing is spent.
It writes DATA.ledger, and a Python script that fits a classifier.
--json: {"rows", "users", "columns", "forecasts": [{"use", "command", "by_epsilon"}], "script", "ledger"}.
"""
    data: Path = Argument(metavar="DATA", help="CSV, TSV or JSONL file of labelled rows")
    text_key: str | None = Option(None, metavar="NAME", help="column of the text (default: by its name)")
    label_key: str | None = Option(None, metavar="NAME", help="column of the label (default: by its name)")
    user_key: str | None = Option(
        None, metavar="NAME", help="column of the user: then the promise holds for all rows of one user"
    )
    out: Path | None = Option(None, help="script to write (default: private_DATA.py beside the data)")
    epsilon: float = Option(1.0, parser=positive, help="share of the classifier")
    budget: float = Option(3.0, parser=positive, help="total epsilon of all releases from this file")
    yes: bool = Option(False, "--yes", "-y", help="do not ask whether columns and numbers may count as public")

    def run(self) -> int:
        from langchain_dp.records import PrivateRecords, check_labels, check_records, read_file

        if not self.labels:
            raise WrongArguments(
                "Expected --labels to name the labels, as in --labels delivery,refund. A list made from the rows could "
                "disclose a record."
            )
        labels = check_labels(self.labels)
        script = self.out or self.data.parent / f"private_{re.sub(r'[^A-Za-z0-9]+', '_', self.data.stem)}.py"
        check_folder(script, "--out")
        if not self.data.is_file():
            raise InvalidParameter(f"There is no file {self.data}. Check the path.")
        if script.exists():
            raise InvalidParameter(f"Expected the script {script} to be new. Name another with --out, or run it.")
        self._ask()
        rows = read_file(self.data)
        if not rows:
            raise InvalidParameter(f"Expected {self.data} to hold at least one row, but it holds none.")
        names = list(rows[0])
        text = self.text_key or _column("text", TEXTS, names)
        label = self.label_key or _column("label", LABELS, names)
        records = PrivateRecords(rows, text_key=text, label_key=label, user_key=self.user_key)
        check_records(records, labels, ["text"], protects_users=True)
        users = len(records.users())
        forecasts = [_by_epsilon(use, command, users, labels) for use, command in USES]
        ledger = self._ledger()
        share = ledger.share(self.epsilon, "prototypes")
        with ledger.opened(records, quiet=True):
            pass
        kept: dict[str, Any] = {"labels": labels, "text": text, "label": label, "user": self.user_key}
        kept |= {"total": self.budget, "epsilon": self.epsilon, "delta": share.delta}
        beside: dict[str, str | Path] = {"data": self.data, "ledger": ledger.place, "out": script.with_suffix(".json")}
        kept |= {name: os.path.relpath(path, script.parent) for name, path in beside.items()}
        script.write_text(_SCRIPT.format(**kept), encoding="utf-8")
        if self.json:
            shown = {"rows": len(rows), "users": users, "columns": names, "forecasts": forecasts}
            print_json(shown | {"script": str(script), "ledger": ledger.place})
            return DONE
        print(f"{self.data}: {len(rows):,} rows. Texts are under {text!r}, labels under {label!r}.")
        print(self._about_users(users))
        print(f"\nForecasts. Nothing is spent by them.\n\n{_table(forecasts)}\n")
        print(
            "  The classifier's figures are those of the worst and the best public task with a like number of labels.\n"
            f"  A blind guess is right {round(100 / len(labels))} times in 100. {self._advice(users, labels)}\n"
            f"\nLedger:  {ledger.place}, total epsilon {self.budget:g}. All commands on {self.data.name} share it.\n"
            f"Script:  {script}, a classifier at epsilon {self.epsilon:g}.\n"
            f"Next:    {Path(sys.executable).name} {script}"
        )
        return DONE

    def _ask(self) -> None:
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise WrongArguments(
                "Expected --yes, which agrees that column names and the number of rows may count as public."
            )
        print(
            f"Column names of {self.data} and its numbers of rows and users will count as public. Continue? [y/N] ",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise InvalidParameter("Stopped before the file was read.")

    def _ledger(self) -> DataLedger:
        return DataLedger.at(f"{self.data}.ledger", self.data, [self.budget], "replace-one", ask=False)

    def _advice(self, users: int, labels: Sequence[str]) -> str:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.aggregate import DPPrototypeClassifier

        plan = DPPrototypeClassifier.plan(users, labels=labels, budget=PrivacyBudget(self.epsilon))
        if plan.mostly_noise:
            return f"At epsilon {self.epsilon:g} the rows are too few for a classifier. A survey needs fewer."
        return "Test yours on rows that you hold out: langchain-dp fit --test FILE."

    def _about_users(self, users: int) -> str:
        if self.user_key is not None:
            return f"{users:,} users under {self.user_key!r}: the promise holds for all rows of one user."
        return "The promise holds for one row. Where a person has several rows, name their column with --user-key."


def _column(what: str, usual: Iterable[str], names: Sequence[str]) -> str:
    lower = {name.lower(): name for name in names}
    for name in usual:
        if name in lower:
            return lower[name]
    raise InvalidParameter(
        f"Expected a column with a usual name for the {what}, but there are {list(names)}. Name it with --{what}-key."
    )


# -------------------------------------------------------------------------------------------------------- forecasts


def _table(forecasts: Sequence[Mapping[str, Any]]) -> str:
    head = {f"{epsilon:g}": f"epsilon {epsilon:g}" for epsilon in FORECASTS}
    rows = [("", head), *((each["use"], each["by_epsilon"]) for each in forecasts)]
    return columns((use, "".join(f"{cell:<24}" for cell in cells.values())) for use, cells in rows)


def _classifier(users: int, labels: Sequence[str], budget: Any) -> str:
    from langchain_dp.aggregate import DPPrototypeClassifier

    plan = DPPrototypeClassifier.plan(users, labels=labels, budget=budget)
    right = [with_noise for with_noise, _ in plan.tasks.values()]
    return f"{min(right)} to {max(right)} of 100 right"


def _names(users: int, labels: Sequence[str], budget: Any) -> str:
    from langchain_dp.aggregate import DPLabelNamer

    lead = DPLabelNamer().margin(budget)
    return f"a lead of {lead} rows wins"


def _survey(users: int, _: Sequence[str], budget: Any) -> str:
    from langchain_dp.aggregate.counts import VoteCounts, half_width

    noise = VoteCounts.of(budget, votes=QUESTIONS).deviation
    return _points(half_width(noise, QUESTIONS * CHOICES) / users)


def _score(users: int, _: Sequence[str], budget: Any) -> str:
    from langchain_dp.aggregate.counts import VoteCounts, half_width

    return _points(half_width(VoteCounts.of(budget, votes=1, yes_or_no=True).deviation, 1) / users)


def _points(share: float) -> str:
    points = math.ceil(100 * share)
    return f"within {points} point{'s' * (points > 1)}" if share < 0.5 else "too few rows"


def _vote(users: int, labels: Sequence[str], budget: Any) -> str:
    from langchain_dp.icl.report import planned_survival

    wins = planned_survival(
        budget, records=users, labels=len(labels), max_queries=QUERIES, shots=1, subsets=min(10, users)
    )
    return f"70% majority wins {wins:.0%}"


USES: Mapping[tuple[str, str], Any] = {
    ("classify any number of texts", "fit"): _classifier,
    ("name labels that are codes", "name"): _names,
    (f"a survey of {QUESTIONS} questions", "survey"): _survey,
    ("how often a chain is right", "score"): _score,
    (f"{QUERIES} labels by votes of a language model", "plan icl"): _vote,
}


def _by_epsilon(use: str, command: str, users: int, labels: Sequence[str]) -> dict[str, Any]:
    from langchain_dp.accounting import PrivacyBudget

    forecast = USES[use, command]
    said = {f"{epsilon:g}": forecast(users, labels, PrivacyBudget(epsilon)) for epsilon in FORECASTS}
    return {"use": use, "command": command, "by_epsilon": said}
