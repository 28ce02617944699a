"""The ledger of a data file, which all commands that spend share."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import exit_code, small_models, write_rows

from langchain_dp import cli
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.aggregate import DPPrototypeClassifier
from langchain_dp.cli.spending import SpendingOptions

ROWS = [{"text": f"note {n}", "label": ["praise", "complaint"][n % 2]} for n in range(120)]
TINY = "--allow-small-model --instruction x --subsets 9 --shots 2 --prompts 1 --tokens 2"
COMMANDS = {
    "fit": "fit --out classifier.json",
    "name": "name --out names.json --words topics.txt",
    "survey": "survey --ask mood:calm,angry --out survey.html",
    "score": "score --chain classifier.json --out score.json",
    "optimize": f"optimize {TINY} --out prompt.json",
    "synthesize": "synthesize --allow-small-model --count 4 --members 10 --out synthetic.jsonl",
}


def write_chain() -> None:
    """A module with a chain."""
    sys.modules.pop("app", None)
    Path("app.py").write_text(
        "from langchain_core.language_models import FakeListChatModel\n"
        "chain = FakeListChatModel(responses=['praise'])\n"
    )


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with private rows, and models of a few words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANGCHAIN_DP_STATE", str(tmp_path / "state"))
    write_rows("tickets.jsonl", ROWS)
    Path("topics.txt").write_text("thanks\nanger\nmoney\n")
    small_models(monkeypatch)
    return tmp_path


def run(line: str, epsilon: float = 1.0, data: str = "tickets.jsonl") -> int:
    return exit_code([*line.split(), "--epsilon", str(epsilon), "--data", data])


def ledger_of(data: str = "tickets.jsonl", *budget: float) -> PrivacyLedger:
    return PrivacyLedger(PrivacyBudget(*budget or (30.0,)), f"{data}.ledger")


def test_every_command_that_spends_is_run_here() -> None:
    """If it breaks, a new command makes a ledger of its own, and nothing says that it adds up."""
    assert {each.path for each in cli.COMMANDS if issubclass(each, SpendingOptions)} == {*COMMANDS}
    takes = [each.path for each in cli.COMMANDS if hasattr(each, "epsilon") and hasattr(each, "out")]
    assert takes == ["start", *COMMANDS], "start writes a script, and spends nothing"


def test_all_commands_share_one_ledger_and_say_what_is_left(capsys: Any) -> None:
    """If it breaks, 168 rows lie behind epsilons that add up to 29, and nothing says so."""
    assert run(f"{COMMANDS['fit']} --budget 30", 3) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "epsilon 27 of 30 left for tickets.jsonl"
    assert "Made tickets.jsonl.ledger of epsilon=30" in shown.err
    left = 27.0
    for name, epsilon in (("name", 0.5), ("survey", 1), ("score", 0.5), ("synthesize", 3), ("optimize", 20)):
        assert run(COMMANDS[name], epsilon) == 0
        left -= epsilon
        shown = capsys.readouterr()
        assert shown.out.splitlines()[-1] == f"epsilon {left:g} of 30 left for tickets.jsonl", name
        assert "Made" not in shown.err
    assert {path.name for path in Path().glob("*.ledger")} == {"tickets.jsonl.ledger"}
    with ledger_of() as ledger:
        assert ledger.reserved() == pytest.approx((28.0, 28 / 30 * 1e-5))
        assert len(ledger.plans()) == len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_more_than_is_left_is_refused_before_any_work(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a command goes over the total, or loads a model first, or its refusal invites a new ledger."""
    assert run(f"{COMMANDS['fit']} --budget 3", 2.5) == 0
    capsys.readouterr()
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", None)
    more = " --name another" if name == "fit" else ""
    assert run(f"{COMMANDS[name]}{more}", 1) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if "read off" not in line and "loading" not in line]
    assert "Expected --epsilon 1 to be at most 0.5: that is left of 3 for tickets.jsonl." in line
    assert "A second ledger over these rows would add its epsilon" in line


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_the_first_command_names_the_total(name: str, capsys: Any) -> None:
    """If it breaks, a script makes a ledger of a total that nobody chose."""
    line = COMMANDS[name].replace("classifier.json", "app:chain") if name == "score" else COMMANDS[name]
    write_chain()
    assert run(line) == 1
    assert "Expected --budget: tickets.jsonl has no ledger yet." in capsys.readouterr().err
    assert not list(Path().glob("*ledger*"))


class Terminal:
    """Standard input of somebody who types."""

    def __init__(self, typed: str) -> None:
        self.typed = typed

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.typed


@pytest.mark.parametrize(("typed", "code"), [("3\n", 0), ("three\n", 2), ("\n", 2), ("", 2), ("0.5\n", 1)])
def test_on_a_terminal_the_total_is_asked_for_once(
    typed: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, a new user must know an option first; or a slip of the finger makes a ledger."""
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(COMMANDS["name"]) == code
    asks = "Total epsilon that all commands on tickets.jsonl may ever spend: "
    assert asks in capsys.readouterr().err
    assert Path("tickets.jsonl.ledger").exists() == (code == 0)
    if code == 0:
        monkeypatch.setattr(sys, "stdin", Terminal("this is not read"))
        assert run(f"{COMMANDS['fit']}") == 0
        assert asks not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "code"), [("3", 0), ("3 1e-6", 0), ("4", 1), ("3 1e-5", 1), ("2 1e-6", 1), ("3 1e-6 1", 2), ("3 2", 2)]
)
def test_the_total_never_changes(budget: str, code: int, capsys: Any) -> None:
    """If it breaks, a second command raises the total of the first, or is refused for the same one."""
    assert run(f"{COMMANDS['fit']} --budget 3 1e-6") == 0
    assert run(f"{COMMANDS['name']} --budget {budget}") == code
    said = capsys.readouterr().err
    if code == 1:
        assert f"Expected no --budget {float(budget.split()[0]):g}" in said
        assert "tickets.jsonl.ledger was made with epsilon 3 and delta 1e-06, for good" in said
        assert len(ledger_of("tickets.jsonl", 3.0, 1e-6).plans()) == 1


@pytest.mark.parametrize("name", ["fit", "survey", "optimize", "synthesize"])
def test_a_plan_spends_and_makes_nothing_and_says_what_would_be_left(name: str, place: Path, capsys: Any) -> None:
    """If it breaks, a look costs something, or shows other noise than the run will have."""
    files = {path.name for path in place.iterdir()}
    assert run(f"{COMMANDS[name]} --plan", 2) == 0
    assert "It would leave: no ledger yet for tickets.jsonl: --budget names" in capsys.readouterr().out
    assert run(f"{COMMANDS[name]} --plan --budget 3", 2) == 0
    assert "Nothing was spent. It would leave: epsilon 1 of 3 left for tickets.jsonl" in capsys.readouterr().out
    assert run(f"{COMMANDS[name]} --plan --budget 3 --json", 2) == 0
    assert json.loads(capsys.readouterr().out)["left"] == pytest.approx({"epsilon": 1.0, "delta": 1e-5 / 3})
    assert {path.name for path in place.iterdir()} == files
    assert run(f"{COMMANDS[name]} --plan --budget 1", 2) == 1
    assert "at most 1: that is left of" in capsys.readouterr().err


def test_the_same_command_gives_out_the_same_at_no_cost(capsys: Any) -> None:
    """If it breaks, to repeat a command is to pay once more, or is refused where the total is used up."""
    for _ in range(2):
        assert run(f"{COMMANDS['fit']} --budget 1") == 0
        assert "epsilon 0 of 1 left" in capsys.readouterr().out
    assert run(f"{COMMANDS['fit']} --plan") == 0
    assert "epsilon 0 of 1 left" in capsys.readouterr().out


def test_a_second_release_takes_a_name_of_its_own(capsys: Any) -> None:
    """If it breaks, whoever asks for more of the same reads of ledgers and plans, and not what to do."""
    assert run(f"{COMMANDS['fit']} --budget 3") == 0
    capsys.readouterr()
    assert run(COMMANDS["fit"], 2) == 1
    said = capsys.readouterr().err
    assert "Another --name starts a new one, and both epsilons are taken from the total" in said
    assert run(f"{COMMANDS['fit']} --name second", 2) == 0
    assert "epsilon 0 of 3 left" in capsys.readouterr().out


def test_two_files_of_one_stem_and_a_link_have_the_right_ledgers(capsys: Any) -> None:
    """If it breaks, other rows pay for these, or a link to the rows has a budget of its own."""
    Path("link.jsonl").symlink_to("tickets.jsonl")
    Path("tickets.csv").write_text("text,label\n" + "".join(f"other {n},{'ab'[n % 2]}\n" for n in range(40)))
    assert run(f"{COMMANDS['fit']} --budget 3") == 0
    assert run(f"{COMMANDS['name']}", data="link.jsonl") == 0
    assert "epsilon 1 of 3 left for link.jsonl" in capsys.readouterr().out
    assert run("name --out csv.json --budget 2", data="tickets.csv") == 0
    assert "epsilon 1 of 2 left for tickets.csv" in capsys.readouterr().out


def test_only_the_private_rows_have_a_ledger(capsys: Any) -> None:
    """If it breaks, rows to test on or a result get a ledger, or a result takes the place of one."""
    write_rows("test.jsonl", ROWS[:4])
    assert run(f"{COMMANDS['fit']} --budget 3 --test test.jsonl") == 0
    assert {path.name for path in Path().glob("*.ledger")} == {"tickets.jsonl.ledger"}
    for line in ("score --chain classifier.json --out tickets.jsonl", "survey --ask a:b,c --out tickets.jsonl"):
        before = Path("tickets.jsonl").read_text()
        assert run(line, 0.1) == 1
        assert Path("tickets.jsonl").read_text() == before


def test_a_named_ledger_is_shared_by_files_and_others_are_refused(capsys: Any) -> None:
    """If it breaks, two halves of one data set cannot share a budget, or a ledger of another kind is charged."""
    write_rows("half.jsonl", ROWS[:60])
    assert run(f"{COMMANDS['fit']} --ledger both.ledger --budget 3") == 0
    assert run(f"{COMMANDS['name']} --ledger both.ledger", data="half.jsonl") == 0
    assert "epsilon 1 of 3 left for half.jsonl" in capsys.readouterr().out
    MetricLedger(9.0, "texts.ledger").close()
    assert run(f"{COMMANDS['name']} --ledger texts.ledger") == 1
    assert "counts in eta" in capsys.readouterr().err
    assert run(f"{COMMANDS['optimize']} --ledger both.ledger --neighbors add-or-remove-one --partitions 60 "
               "--sampling-probability 0.1") == 1  # fmt: skip
    assert "promises for two relations do not add up" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fit", "name", "score", "optimize", "synthesize"])
@pytest.mark.parametrize("suffix", ["", ".key", "-journal"])
def test_a_result_never_takes_the_place_of_the_ledger(name: str, suffix: str, capsys: Any) -> None:
    """If it breaks, what was spent is overwritten by what was released."""
    write_chain()
    line = COMMANDS[name].split(" --out ")[0].replace("classifier.json", "app.py:chain")
    assert run(f"{line} --budget 3 --out tickets.jsonl.ledger{suffix}") == 2
    assert "to be another file than the ledger tickets.jsonl.ledger" in capsys.readouterr().err
    assert not list(Path().glob("*.ledger*"))


OTHERS = [{**row, "text": f"another {n}"} for n, row in enumerate(ROWS)]


@pytest.mark.parametrize("rows", [ROWS[30:], [*ROWS, {"text": "new", "label": "praise"}], OTHERS])
def test_rows_that_changed_go_on_with_their_ledger(rows: list[dict[str, str]], capsys: Any) -> None:
    """If it breaks, a row more opens a second budget over all others, or new data pays for old data's releases."""
    assert run(f"{COMMANDS['fit']} --budget 3") == 0
    write_rows("tickets.jsonl", rows)
    capsys.readouterr()
    assert run(COMMANDS["name"]) == 0
    shown = capsys.readouterr()
    assert "epsilon 1 of 3 left" in shown.out
    assert ("Warning" in shown.err) == (rows is OTHERS)
    told = "tickets.jsonl.ledger was charged for other rows, and for none of tickets.jsonl"
    assert (told in shown.err) == (rows is OTHERS)
    assert run(COMMANDS["fit"]) == 1  # what is kept is of other rows, and is not given out for these
    assert "a release 'prototypes' from other records. To release these, give another --name" in capsys.readouterr().err


def test_a_ledger_of_python_that_used_up_delta_is_refused(capsys: Any) -> None:
    """If it breaks, the refusal comes after the model was loaded, in terms of reserve()."""
    with ledger_of("tickets.jsonl", 3.0) as ledger:
        DPPrototypeClassifier.fit(
            ROWS, labels=["praise", "complaint"], budget=PrivacyBudget(1.0, 1e-5), ledger=ledger, name="python"
        )
    assert run(COMMANDS["name"]) == 1
    assert "No delta is left in tickets.jsonl.ledger" in capsys.readouterr().err


KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE filler (x)")
connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * 200)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_charge_that_a_crash_left_unfinished_is_taken_back(capsys: Any) -> None:
    """If it breaks, after a crash no command can be run again on the data file."""
    assert run(f"{COMMANDS['fit']} --budget 3") == 0
    died = subprocess.run([sys.executable, "-c", KILLED, "tickets.jsonl.ledger"], check=False).returncode
    assert died == -signal.SIGKILL
    assert os.path.exists("tickets.jsonl.ledger-journal")
    capsys.readouterr()
    assert run(COMMANDS["name"]) == 0
    assert "epsilon 1 of 3 left" in capsys.readouterr().out
    with sqlite3.connect("tickets.jsonl.ledger") as connection:
        assert "filler" not in {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def test_a_tenth_taken_ten_times_is_all(capsys: Any) -> None:
    """If it breaks, rounding of sums refuses the last share, or shows what is no budget."""
    for number in range(10):
        assert run(f"{COMMANDS['name']} --name n{number} --budget 1", 0.1) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "epsilon 0 of 1 left for tickets.jsonl"


MADE = {
    "rows": ("synthesize", "fit --out made.json", "synthetic.jsonl"),
    "rows to score on": ("synthesize", "score --chain app:chain --out made.json", "synthetic.jsonl"),
    "a classifier": ("fit", "score --chain classifier.json --out made.json", "tickets.jsonl"),
    "names": (
        "name",
        "synthesize --allow-small-model --describe names.json --count 4 --members 10 --out made.json",
        "tickets.jsonl",
    ),
    "a prompt": (
        "optimize",
        "optimize --instruction y --method choose --alternatives prompt.json --name second --out made.json",
        "tickets.jsonl",
    ),
}  # fmt: skip


def certificate_in(path: str) -> dict[str, object]:
    """The certificate of a file that a command wrote."""
    text = Path(path).read_text()
    found = json.loads(text.splitlines()[0] if text.startswith('{"certificate"') else text)
    return found["scores"][0]["certificate"] if "scores" in found else found["certificate"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("made", MADE)
def test_what_is_made_with_a_file_of_another_command_names_the_sum(made: str) -> None:
    """If it breaks, the certificate of a last step is shown as that of the result, which went through two."""
    first, second, data = MADE[made]
    write_chain()
    assert run(f"{COMMANDS[first]} --budget 30", 13 if first == "optimize" else 3) == 0
    before = certificate_in(COMMANDS[first].split("--out ")[1].split()[0])
    budget = " --budget 2" if data == "synthetic.jsonl" else ""
    assert run(f"{second}{budget}", 2, data) == 0
    after = certificate_in("made.json")
    assert after["epsilon"] == pytest.approx(before["epsilon"] + 2)  # type: ignore[operator]
    assert before["sources"][0] in after["sources"]  # type: ignore[index,operator]
    assert len(after["sources"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--ask mood", "Expected --ask 'mood' to be \"NAME: A, B\", with a colon after the name."),
        ("--questions questions.json", "Expected --questions questions.json to be a JSON list of objects"),
        ("", 'Expected --ask "NAME: A, B" or --questions FILE.'),
    ],
)
def test_a_survey_says_how_its_questions_are_written(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a question without choices ends in a traceback, or charges a ledger."""
    Path("questions.json").write_text('{"name": "mood"}')
    assert run(f"survey {given} --out survey.html --budget 3") == 1
    assert said in " ".join(capsys.readouterr().err.split())
    assert not [*Path().glob("*.ledger")]
