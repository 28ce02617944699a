"""``langchain-dp survey`` and ``langchain-dp score``."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from langchain_dp.cli.aggregate import ChargedOptions, ReleaseOptions
from langchain_dp.cli.options import ModelOptions, made_with
from langchain_dp.cli.parser import DONE
from langchain_dp.cli.runs import check_out
from langchain_dp.cli.show import print_json, strict_json
from langchain_dp.cli.spending import show_forecast
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.aggregate import DPSurvey, Question


class SurveyConversations(ChargedOptions, ModelOptions):
    """Asks conversations."""

    path = "survey"
    what = "Ask questions of private conversations: noisy tables."
    examples = """\
  langchain-dp survey --data chats.jsonl --ask "mood: calm, angry" --epsilon 1 --budget 3 --out survey.html \\
      --user-key user_id
  langchain-dp survey --data chats.jsonl --questions questions.json --epsilon 1 --budget 3 --out survey.html \\
      --reader model
  langchain-dp survey --data chats.jsonl --questions questions.json --epsilon 1 --out survey.html --plan
"""
    notes = """\
--data holds a conversation a line: a text, "messages", or a run of LangSmith. --questions is a JSON list of {"name",
"choices", "text", "below"}: choices are names, or names with descriptions; "below" has finer choices by choice. The
encoder suits topics. A model is slower, and suits moods and outcomes. Page and JSON file may be shown to anybody.
--json: the contents of that file, {"tables", "records", "unit", "certificate"}, and {"left"}; the plan under --plan.
"""
    out: Path = Option(help="HTML page to write; tables and certificate go to a JSON file beside it")
    ask: list[str] | None = Option(None, metavar='"NAME: A, B"', help="a question with its choices")
    questions: Path | None = Option(None, help="JSON file of questions")
    reader: str = Option("encoder", metavar="encoder|model", help="what reads the conversations")
    text_key: str = Option("text", metavar="NAME", help="column of the text in --data")
    title: str = Option("Survey", help="heading of the page")
    name: str = Option("survey", help="name of the release in the ledger")
    plan: bool = Option(False, "--plan", help="forecast the error bars, and stop: nothing is spent")

    def run(self) -> int:
        from langchain_dp.aggregate import Survey, conversations
        from langchain_dp.records import read_file

        if self.reader not in ("encoder", "model"):
            raise InvalidParameter(f"Expected --reader {self.reader!r} to be encoder or model.")
        saved = self.out.with_suffix(".json")
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise InvalidParameter(f"Expected --out {self.out} to end in .html. The JSON file is written beside it.")
        check_out(saved, Survey.load, "a saved survey")
        records = conversations(read_file(self.data), text_key=self.text_key, user_key=self.user_key)
        with self._asking() as survey:
            account = self.own_account()
            share = account.share(self.epsilon, self.name, plan=self.plan)
            if self.plan:
                forecast = survey.plan(len(records.users()), budget=share)
                return show_forecast(forecast, account.after(share, self.name), as_json=self.json)
            with account.opened(records, quiet=self.json) as ledger:
                result = survey.run(records, budget=share, ledger=ledger, name=self.name)
        result.save(saved)
        result.to_html(self.out, title=self.title)
        if self.json:
            print_json(result.to_dict() | account.in_json())
            return DONE
        print(f"{result}\n\n{result.certificate}\n\nPage: {self.out}\nTables and certificate: {saved}\n{account}")
        return DONE

    @contextlib.contextmanager
    def _asking(self) -> Any:
        from langchain_dp.aggregate import DPSurvey

        questions = self._questions()
        if self.reader == "encoder":
            yield DPSurvey(questions)
            return
        with self.engine() as engine:
            survey: DPSurvey = DPSurvey(questions, model=engine)
            yield survey

    def _questions(self) -> list[Question]:
        from langchain_dp.aggregate import Question

        listed = []
        for one in self.ask or ():
            name, colon, choices = one.partition(":")
            if not colon:
                raise InvalidParameter(f'Expected --ask {one!r} to be "NAME: A, B", with a colon after the name.')
            listed.append(Question(name.strip(), [choice.strip() for choice in choices.split(",") if choice.strip()]))
        if self.questions is not None:
            try:
                given = json.loads(self.questions.read_text(encoding="utf-8"))
                listed += [Question(**fields) for fields in given]
            except (OSError, ValueError, TypeError) as error:
                if isinstance(error, InvalidParameter):
                    raise
                raise InvalidParameter(
                    f"Expected --questions {self.questions} to be a JSON list of objects with name, choices, and "
                    f"perhaps text and below ({type(error).__name__}). Repair it."
                ) from None
        if not listed:
            raise InvalidParameter('Expected --ask "NAME: A, B" or --questions FILE. Give at least one question.')
        return listed


class ScoreChains(ReleaseOptions):
    """Scores chains."""

    path = "score"
    what = "Measure chains on private labelled rows, with error bars."
    examples = """\
  langchain-dp score --data tickets.jsonl --chain classifier.json --epsilon 0.5 --budget 3 --out score.json
  langchain-dp score --data tickets.jsonl --chain app:first_chain app:second_chain --epsilon 0.5 --budget 3 \\
      --out score.json
"""
    notes = """\
A chain is a file that `langchain-dp fit` wrote, or a LangChain Runnable in a module of this folder. Each row is an
isolated call. Several chains share one release.
--json: the contents of the file, {"scores": [{"chain", "accuracy", "low", "high", ...}]}, and {"left"}.
"""
    chain: list[str] = Option(metavar="CHAIN", help="a saved classifier, or MODULE:NAME of a chain in Python")
    name: str = Option("accuracy", help="name of the release in the ledger")
    trust_opaque_model: bool = Option(
        False, "--trust-opaque-model", help="accept chains of your own code: they keep no texts, at your word"
    )

    def run(self) -> int:
        from langchain_dp._util.whole_files import write_whole
        from langchain_dp.aggregate import private_accuracy

        check_out(self.out, lambda path: json.loads(path.read_text("utf-8"))["scores"], "saved scores")
        chains = [_chain(one) for one in self.chain]
        records, labels = self.records()
        account = self.own_account()
        share = account.share(self.epsilon, self.name)
        with account.opened(records, quiet=self.json) as ledger:
            scores = private_accuracy(
                chains, records, labels=labels, budget=share, ledger=ledger, name=self.name,
                trust_opaque_model=self.trust_opaque_model, made_with=made_with(self.data),
            )  # fmt: skip
        result = {
            "scores": [{**score.to_dict(), "chain": name} for name, score in zip(self.chain, scores, strict=True)]
        }
        write_whole(self.out, strict_json(result))
        if self.json:
            print_json(result | account.in_json())
            return DONE
        for name, score in zip(self.chain, scores, strict=True):
            print(f"{name}: {score}")
        print(f"\n{scores[0].certificate}\n\nScores and certificate: {self.out}\n{account}")
        return DONE


def _chain(given: str) -> Any:
    """Load or import it."""
    if Path(given).is_file():
        from langchain_dp.aggregate import DPPrototypeClassifier

        return DPPrototypeClassifier.load(given)
    module, _, name = given.partition(":")
    if not name:
        raise InvalidParameter(
            f"Expected --chain {given} to be a file of `langchain-dp fit`, or MODULE:NAME. There is no such file."
        )
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module.removesuffix(".py")), name)
    except (ImportError, AttributeError) as error:
        raise InvalidParameter(
            f"Expected --chain {given} to name an object of a module in this folder: {error}."
        ) from None
    finally:
        sys.path.remove(os.getcwd())
