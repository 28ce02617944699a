"""``langchain-dp synthesize`` on an engine of a dozen words."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import ENGINE, exit_code, write_rows
from fakes.scorer import ClosingScorer as Engine
from fakes.scorer import WordScorer
from fakes.stops import press_ctrl_c
from fakes.synthesizers import rows

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.cli import main
from langchain_dp.synth import SyntheticExamples

Command = Callable[..., list[str]]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Every engine that the command makes, instead of a real one."""
    made: list[Engine] = []

    def make(**_: Any) -> Engine:
        made.append(Engine())
        return made[-1]

    monkeypatch.setattr(ENGINE, make)
    return made


@pytest.fixture
def command(tmp_path: Path, engines: list[Engine]) -> Command:
    """Arguments of a run that does."""
    data = write_rows(tmp_path / "train.jsonl", rows())

    def arguments(*more: str) -> list[str]:
        given = ["synthesize", "--data", str(data), "--epsilon", "3", "--out", str(tmp_path / "made.jsonl")]
        given += ["--allow-small-model"]
        more = more if "--alone" in more or "--budget" in more else (*more, "--budget", "3")
        return [*given, "--count", "6", "--tokens", "8", "--members", "10", "--labels", "delivery", "billing", *more]

    return arguments


def test_a_run_writes_examples_with_their_certificate(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the file is no private examples, or the user is not told what it takes."""
    assert main(command()) == 0
    shown = capsys.readouterr()
    made = SyntheticExamples.load(tmp_path / "made.jsonl")
    assert len(made) + len(made.dropped) == 6
    assert made.certificate.epsilon == 3.0
    assert "Worth it?" in shown.err
    released = re.findall(r"^langchain-dp: (delivery|billing):", shown.err, re.MULTILINE)
    assert released == ["delivery", "billing"] * 3  # as it comes: half an hour does not pass in silence
    assert "epsilon = 3" in shown.out
    ledger = PrivacyLedger(PrivacyBudget(3.0), tmp_path / "train.jsonl.ledger")
    assert sum(entry.count for entry in ledger.entries()) == 3


def test_a_certificate_says_that_labels_were_read_off_the_rows(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the file says of its labels that they were a constant, where they came from private rows."""
    asked = command()
    at = asked.index("--labels")
    for arguments, read in ((asked, False), ([*asked[:at], *asked[at + 3 :]], True)):
        assert main(arguments) == 0
        notes = SyntheticExamples.load(tmp_path / "made.jsonl").certificate.notes
        assert any("read off the private records" in note for note in notes) == read
        if read:  # the same run never counts as one whose labels are a constant
            assert main(asked) == 1
            assert "other settings: whether --labels are named changed" in capsys.readouterr().err
        for left in (*tmp_path.glob("made.jsonl*"), *tmp_path.glob("train.jsonl.ledger*")):
            left.unlink()


def test_texts_without_labels_take_the_one_that_is_named(engines: list[Engine], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a file of notes must be given labels by hand."""
    data = write_rows(tmp_path / "notes.jsonl", ({"text": row["text"]} for row in rows()))
    asked = ["synthesize", "--data", str(data), "--epsilon", "3", "--budget", "3", "--count", "3"]
    asked += ["--tokens", "8", "--members", "10", "--allow-small-model"]
    given = ["--describe", "note=notes of customers", "--out", str(tmp_path / "made.jsonl")]
    assert main([*asked, *given]) == 0
    assert "read off" not in capsys.readouterr().err
    made = SyntheticExamples.load(tmp_path / "made.jsonl")
    assert made.labels == ("note",)
    assert len(made) + len(made.dropped) == 3
    assert main([*asked, "--out", str(tmp_path / "other.jsonl")]) == 1
    said = capsys.readouterr().err
    assert "'label', but no example has it. Say what" in said
    assert "For texts without labels give one for all with --labels." in said
    assert main(["plan", "icl", "--data", str(data), "--epsilon", "3"]) == 1
    assert "one for all" not in capsys.readouterr().err, "a classifier takes two labels at least"
    heads = {one.prompt.head for asked_of in engines[0].asked for one in asked_of}
    assert any("notes of customers" in head for head in heads)


def test_the_model_alone_spends_nothing(command: Command, engines: list[Engine], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, what is there to be compared with costs something, or shows a row to the model."""
    assert main(command("--alone", "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["examples"]) + len(said["dropped"]) == 6
    assert (said["certificate"]["epsilon"], said["certificate"]["delta"]) == (0.0, 0.0)
    assert SyntheticExamples.load(tmp_path / "made.jsonl").rows() == said["examples"]
    assert not any(engines[0].asked)
    assert not list(tmp_path.glob("*.ledger*"))
    assert exit_code(command("--alone", "--plan")) == 2
    assert "--plan" in capsys.readouterr().err


def test_the_model_alone_needs_no_rows(engines: list[Engine], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, whoever has no rows yet must make some up, or name a budget that nothing is taken from."""
    asked = ["synthesize", "--out", str(tmp_path / "free.jsonl"), "--count", "4", "--tokens", "8"]
    assert main([*asked, "--labels", "delivery", "billing", "--alone"]) == 0
    free = SyntheticExamples.load(tmp_path / "free.jsonl")
    assert (free.certificate.epsilon, len(free) + len(free.dropped)) == (0.0, 4)
    for missing in (["--labels", "delivery", "billing"], ["--epsilon", "3"]):
        assert exit_code([*asked, *missing]) == 2
        assert "--alone" in capsys.readouterr().err
    assert exit_code([*asked, "--alone"]) == 2
    assert "--labels" in capsys.readouterr().err
    assert len(engines) == 1


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--describe", "delivery"], 2, "LABEL=TEXT"),
        (["--describe", "other=x"], 2, "are others"),
        (["--describe", "billing=x", "--describe", "billing=y"], 2, "say once what 'billing' means"),
        (["--labels", "billing", "billing"], 2, "--labels to name ['billing'] once"),
        (["--members", "100"], 1, "Lower --members,"),
        (["--count", "0"], 2, "--count"),
        (["--tokens", "2"], 1, "Expected --tokens 2 to hold the 3 words"),
    ],
)
def test_mistakes_end_in_one_line(
    command: Command, tmp_path: Path, capsys: Any, more: list[str], code: int,
    said: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """If it breaks, a mistake ends in a traceback, or in a ledger."""
    monkeypatch.chdir(tmp_path)
    assert exit_code(command(*more)) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert not list(tmp_path.glob("made*"))


def test_paid_examples_are_replaced_by_those_of_the_same_run_alone(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, examples that took a budget are gone, and nobody writes them a second time; or another file is."""
    (tmp_path / "made.jsonl").write_text("my thesis")
    assert main(command()) == 1
    assert "Name another file" in capsys.readouterr().err
    assert (tmp_path / "made.jsonl").read_text() == "my thesis"
    (tmp_path / "made.jsonl").unlink()
    assert main(command()) == 0
    saved = (tmp_path / "made.jsonl").read_text()
    free = ["synthesize", "--labels", "delivery", "billing", "--alone", "--out", str(tmp_path / "made.jsonl")]
    for other in (free, command("--ledger", str(tmp_path / "other.ledger"))):
        assert main([*other, "--count", "6", "--tokens", "8", "--members", "10"]) == 1
        assert "those in it are of another, which were paid for" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "made.jsonl").read_text() == saved
    assert not (tmp_path / "other.ledger").exists()
    assert PrivacyLedger(PrivacyBudget(3.0), tmp_path / "other.ledger").plans() == []
    assert main(command()) == 0  # the same run


def test_a_weak_promise_is_said_before_the_charge(command: Command, capsys: Any) -> None:
    """If it breaks, nobody is told that what is bought promises nothing."""
    assert main(command("--budget", "3", "0.5")) == 0
    said = capsys.readouterr().err
    assert "WARNING: delta=0.5" in said[: said.index("Made")]


def test_labels_that_hardly_differ_are_told(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, rows that were typed by hand make three labels of one, and the budget is cut in three."""
    data = tmp_path / "train.jsonl"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    asked = command("--plan")
    at = asked.index("--labels")
    asked = [*asked[:at], *asked[at + 3 :]]
    assert main(asked) == 0
    assert "case" not in capsys.readouterr().err
    for change, status, says in (
        (str.upper, 0, "differ from another one by case only"),
        (" {}".format, 1, "look like another one"),
        ("{}\u200b".format, 1, "look like another one"),
    ):
        changed = [
            {**row, "label": change(row["label"]) if place < 12 else row["label"]} for place, row in enumerate(lines)
        ]
        write_rows(data, changed)
        assert main(asked) == status
        said = capsys.readouterr().err
        assert says in said
        assert "delivery" not in said.casefold()


def test_an_interrupted_run_goes_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:  # fmt: skip
    """If it breaks, Ctrl-C loses what was paid for."""
    real, calls = WordScorer.score_next_token, iter(range(10**6))

    def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == 9:
            press_ctrl_c()
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(WordScorer, "score_next_token", stopped)
        assert main(command()) == 130
    assert "The same command continues." in capsys.readouterr().err
    assert not (tmp_path / "made.jsonl").exists()
    assert main(command()) == 0
    again = capsys.readouterr().err
    assert "was complete" not in again
    assert main(command()) == 0
    complete = capsys.readouterr().err
    assert "was complete" in complete
    assert "Nothing was charged" in complete
    again += complete
    assert "Made" not in again, "there is no second ledger"
    assert "Writes" not in again
    ledger = PrivacyLedger(PrivacyBudget(3.0), tmp_path / "train.jsonl.ledger")
    assert sum(entry.count for entry in ledger.entries()) == 3


def test_other_rows_go_on_where_the_round_is_given_up(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, who erases a row after a kill cannot go on with what is paid for, or is told of a method."""
    calls = itertools.count(1)
    score = Engine.score_next_token

    def killed(self: Engine, *given: Any, **named: Any) -> Any:
        if next(calls) == 6:
            press_ctrl_c()
        return score(self, *given, **named)

    monkeypatch.setattr(Engine, "score_next_token", killed)
    assert main(command()) == 130
    write_rows(tmp_path / "train.jsonl", rows()[:-1])
    assert main(command()) == 1
    assert "Or give --give-up-round, which loses the rest" in capsys.readouterr().err
    assert main(command("--give-up-round")) == 0
    assert "2 given up when the run was stopped" in capsys.readouterr().out


def test_what_is_wrong_with_rows_or_ledger_is_said_before_the_model_is_loaded(
    command: Command, engines: list[Engine], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, half a minute of loading goes before a message that needs no model."""
    with PrivacyLedger(PrivacyBudget(1.0), tmp_path / "old.db"):
        pass
    assert main(command("--ledger", str(tmp_path / "old.db"))) == 1
    assert "old.db" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": "billing"}\n', encoding="utf-8")
    assert main(command("--data", str(tmp_path / "bad.jsonl"))) == 1
    assert "label" in capsys.readouterr().err
    assert main(command("--ledger", str(tmp_path / "none" / "new.db"))) == 1
    assert f"folder of --ledger {tmp_path / 'none' / 'new.db'}" in capsys.readouterr().err
    assert main(command("--ledger", str(tmp_path / "new.db"), "--budget", "2")) == 1
    assert "Expected --epsilon 3 to be at most 2" in capsys.readouterr().err
    assert not (tmp_path / "new.db").exists()
    assert not engines
    assert not (tmp_path / "train.jsonl.ledger").exists()
