"""``langchain-dp fit`` and ``langchain-dp name``."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from langchain_dp.cli.options import ROWS, FileOptions, LabelOptions, made_with
from langchain_dp.cli.parser import DONE, positive
from langchain_dp.cli.runs import check_out, read_off
from langchain_dp.cli.show import note, print_json
from langchain_dp.cli.spending import DataLedger, SpendingOptions, show_forecast
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.records import PrivateRecords


class ChargedOptions(SpendingOptions):
    """One release over private rows, and its ledger."""

    data: Path = Option(help=f"{ROWS}: the private rows")
    out: Path = Option(help="JSON file to write: the result and its certificate")
    epsilon: float = Option(parser=positive, help="share of this release")
    user_key: str | None = Option(
        None, metavar="NAME", help="column of the user: then the promise holds for all rows of one user"
    )

    def own_account(self) -> DataLedger:
        return self.account(self.data, self.out)


class ReleaseOptions(ChargedOptions, FileOptions, LabelOptions):
    """One release over labelled rows."""

    def records(self) -> tuple[PrivateRecords, list[str]]:
        from langchain_dp.records import PrivateRecords, check_records

        rows = self.read(self.data)
        labels = self.labels
        if not labels:
            labels, told = read_off(rows)
            note(told)
        try:
            records = PrivateRecords(rows, user_key=self.user_key)
            check_records(records, labels, ["text"], protects_users=True)  # before the ledger is made
            return records, labels
        except InvalidParameter as error:
            raise InvalidParameter(f"{error} The file is {self.data}.") from None


class FitPrototypes(ReleaseOptions):
    """Releases prototypes."""

    path = "fit"
    what = "Release a private classifier: pay once, query without limit."
    examples = """\
  langchain-dp fit --data tickets.jsonl --labels praise complaint --epsilon 1 --budget 3 --out classifier.json
  langchain-dp fit --data tickets.jsonl --epsilon 1 --budget 3 --out classifier.json --user-key customer \\
      --test test.jsonl
  langchain-dp fit --data tickets.jsonl --epsilon 1 --out classifier.json --plan
"""
    notes = """\
The file holds the prototypes and their certificate, and may be shown to anybody:
DPPrototypeClassifier.load(FILE) answers any number of queries. The same command writes the same file again at no cost.
--json: {"labels", "certificate", "left"}, with {"accuracy"} under --test; the plan under --plan.
"""
    name: str = Option("prototypes", help="name of the release in the ledger")
    test: Path | None = Option(None, help="rows to score the classifier on")
    plan: bool = Option(False, "--plan", help="forecast the accuracy, and stop: nothing is spent")

    def run(self) -> int:
        from langchain_dp.aggregate import DPPrototypeClassifier

        check_out(self.out, lambda path: DPPrototypeClassifier.load(path), "a saved classifier")
        records, labels = self.records()
        test = self.read(self.test) if self.test else []
        account = self.own_account()
        share = account.share(self.epsilon, self.name, plan=self.plan)
        forecast = DPPrototypeClassifier.plan(len(records.users()), labels=labels, budget=share)
        if self.plan:
            return show_forecast(forecast, account.after(share, self.name), as_json=self.json)
        with account.opened(records, quiet=self.json) as ledger:
            classifier = DPPrototypeClassifier.fit(
                records, labels=labels, budget=share, ledger=ledger, name=self.name, made_with=made_with(self.data)
            )
        classifier.save(self.out)
        accuracy = None
        if test:
            answers = classifier.batch([row["text"] for row in test])
            accuracy = statistics.mean(answer == row["label"] for answer, row in zip(answers, test, strict=True))
        if self.json:
            shown: dict[str, Any] = {"labels": labels, "certificate": classifier.certificate().to_dict()}
            print_json(shown | ({} if accuracy is None else {"accuracy": accuracy}) | account.in_json())
            return DONE
        print(f"{forecast}\n\n{classifier.certificate()}\n")
        if accuracy is not None:
            print(f"right on {accuracy:.1%} of the {len(test):,} rows of {self.test}. This figure is exact: if they "
                  "are private, keep it to yourself, or use langchain-dp score.")  # fmt: skip
        print(f"Classifier and certificate: {self.out}\n{account}")
        return DONE


class NameLabels(ReleaseOptions):
    """Names labels."""

    path = "name"
    what = "Name labels that are codes, by counting public topics."
    examples = """\
  langchain-dp name --data tickets.jsonl --epsilon 0.5 --budget 3 --out names.json
  langchain-dp name --data tickets.jsonl --epsilon 0.5 --budget 3 --out names.json --words topics.txt
"""
    notes = """\
Without --words, the names come from some 200 topics of tickets, mail, news, medicine, law and finance. --words holds
"name" or "name: description" per line, and must be public.
--json: the contents of the file, {"names", "descriptions", "margin", "certificate"}, and {"left"}.
"""
    name: str = Option("label-names", help="name of the release in the ledger")
    words: Path | None = Option(None, help="public names to choose from, one a line")

    def run(self) -> int:
        from langchain_dp._util.whole_files import write_whole
        from langchain_dp.aggregate import DPLabelNamer
        from langchain_dp.aggregate.names import LabelNames
        from langchain_dp.cli.show import strict_json

        check_out(self.out, LabelNames.load, "saved names")
        records, labels = self.records()
        namer = DPLabelNamer(None if self.words is None else _words(self.words))
        account = self.own_account()
        share = account.share(self.epsilon, self.name)
        with account.opened(records, quiet=self.json) as ledger:
            found = namer.fit(
                records, labels=labels, budget=share, ledger=ledger, name=self.name, made_with=made_with(self.data)
            )
        write_whole(self.out, strict_json(found.to_dict()))
        if self.json:
            print_json(found.to_dict() | account.in_json())
            return DONE
        print(f"{found}\n\n{found.certificate}\n\nNames and certificate: {self.out}\n{account}")
        return DONE


def _words(path: Path) -> dict[str, str]:
    """Read names, with descriptions after colons."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = [line.partition(":")[::2] for line in lines]
    names = [name.strip() for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidParameter(f"Expected each name of --words {path} once, but these stand there twice: {twice[:5]}.")
    return {name.strip(): about.strip() for name, about in pairs}
