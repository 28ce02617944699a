"""``langchain-dp optimize`` on an engine without a model, also interrupted in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from fakes.commands import ENGINE, exit_code, write_rows
from fakes.next_token import ClosingEngine as Engine
from fakes.next_token import agreeing
from fakes.optimizers import ADD_OR_REMOVE, journals, optimizer

from langchain_dp import icl, opt
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.cli import main, optimize
from langchain_dp.cli import options as cli_options
from langchain_dp.cli.optimize import _before
from langchain_dp.opt import PromptScore, load_prompt

SAID = "Read the review."
TESTS = Path(__file__).parent.parent
ROWS = [{"text": f"note {i:03d} is {'good' if i % 2 else 'bad'}", "label": ["no", "yes"][i % 2]} for i in range(240)]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Every engine that the command makes, instead of a real one."""
    made: list[Engine] = []

    def make(**options: Any) -> Engine:
        made.append(Engine(agreeing(f" {SAID}")))
        made[-1].options = options
        return made[-1]

    monkeypatch.setattr(ENGINE, make)
    return made


Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path, engines: list[Engine]) -> Command:
    """The command with its usual options, some of them changed; None leaves one out, True is a flag."""
    data = write_rows(tmp_path / "train.jsonl", ROWS)

    def arguments(**changes: Any) -> list[str]:
        options: dict[str, Any] = {
            "data": data,
            "out": tmp_path / "prompt.json",
            "instruction": "Say yes or no.",
            "labels": ["no", "yes"],
            "epsilon": 8,
            "budget": 8,
            "shots": 3,
            "subsets": 40,
            "prompts": 2,
            "tokens": 6,
            **changes,
        }
        found = ["optimize", "--allow-small-model"]
        for name, value in options.items():
            if value is not None:
                found.append(f"--{name.replace('_', '-')}")
                found += [] if value is True else map(str, value) if isinstance(value, list | tuple) else [str(value)]
        return found

    return arguments


def without_time(err: str) -> list[str]:
    """Lines of stderr but those that say at the start what will be written, for how long, and what is charged."""
    begins = r"up to \d+ tokens, each by|: Made "
    return [line for line in err.strip().splitlines() if not re.search(begins, line)]


def one_line(capsys: Any) -> str:
    (line,) = without_time(capsys.readouterr().err)
    return line


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_leaves_prompt_and_certificate_and_repeats_at_no_cost(
    command: Command, engines: list[Engine], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, there is no artefact, or the same command pays, or releases, a second time."""
    assert main(command()) == 0
    out = capsys.readouterr().out
    saved = load_prompt(tmp_path / "prompt.json")
    assert saved.instruction in {SAID, "Say yes or no."}
    assert saved.instruction in out
    assert "Privacy certificate" in out
    assert saved.prompt.endswith("Output:")
    assert (saved.certificate.private, saved.certificate.epsilon) == (True, 8.0)
    asked = len(engines[0].calls)
    assert main(command()) == 0
    again = load_prompt(tmp_path / "prompt.json")
    assert (again.prompt, again.certificate) == (saved.prompt, saved.certificate)
    assert (asked > 0, len(engines[1].calls)) == (True, 0)
    assert engines[0].closed
    capsys.readouterr()
    assert main(command(json=True, test=write_rows(tmp_path / "test.jsonl", ROWS[:4]))) == 0
    shown = json.loads(capsys.readouterr().out)
    scores = shown.pop("test")
    assert all(score["rows"] == 4 and 0 <= score["accuracy"] <= 1 for score in scores.values())
    assert (shown.pop("left"), scores.keys()) == ({"epsilon": 0.0, "delta": 0.0}, {"before", "after"})
    assert shown == json.loads((tmp_path / "prompt.json").read_text(encoding="utf-8"))
    assert {"prompt", "certificate"} <= shown.keys()


@pytest.mark.parametrize(("before", "after"), [(0.75, 0.5), (0.5, 0.5), (0.5, 0.75)])
def test_a_prompt_that_does_worse_is_not_handed_over_in_silence(
    command: Command, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    """If it breaks, who reads the last lines alone takes a prompt that their own rows speak against."""
    right = {"before": round(4 * before), "after": round(4 * after)}
    scores = {name: PromptScore.of([0] * n + [1] * (4 - n), ["no"] * 4, ["no", "yes"]) for name, n in right.items()}
    monkeypatch.setattr(optimize, "_scores", lambda *_: scores)
    assert main(command(test=write_rows(tmp_path / "test.jsonl", ROWS[:4]))) == 0
    assert ("On these rows the initial instruction answers more right" in capsys.readouterr().out) == (after < before)


def test_the_model_is_the_one_that_was_named(command: Command, engines: list[Engine]) -> None:
    """If it breaks, private rows are shown to another model than the one that was chosen."""
    assert main(command(plan=True)) == 0
    assert main(command(plan=True, model="big.gguf", gpu_layers=-1, max_tokens=900)) == 0
    assert all(engine.options.pop("cache_bytes") >= 2**30 for engine in engines)
    assert [engine.options for engine in engines] == [
        {"model_path": None, "n_gpu_layers": 0},
        {"model_path": "big.gguf", "n_gpu_layers": -1, "max_tokens": 900},
    ]


def test_another_budget_for_a_run_that_was_started_is_explained(command: Command, capsys: Any) -> None:
    """If it breaks, who changes --epsilon or --shots reads about ledgers and plans, and not what to do."""
    assert main(command()) == 0
    capsys.readouterr()
    assert main(command(epsilon=4)) == 1
    line = one_line(capsys)
    assert "budget.epsilon was 8.0, now 4.0" in line
    assert "another --name" in line
    assert main(command(shots=2)) == 1
    line = one_line(capsys)
    assert "shots" in line
    assert "another --name" in line


SECRET = "secret words"


@pytest.mark.parametrize(
    ("changes", "rows", "says"),
    [
        ({"data": "no-such-file.jsonl"}, None, "no-such-file.jsonl"),
        ({}, [{"text": SECRET}], "'label'"),
        ({}, [{"text": SECRET, "label": "maybe"}] * 300, "labels"),
        ({}, [{"text": SECRET, "label": "yes"}] * 9, "at least subsets"),
        ({"labels": None}, [{"text": SECRET, "label": "yes"}] * 300, "2 different labels"),
        ({"out": "no-such-folder/prompt.json"}, None, "no-such-folder"),
        ({"out": "train.jsonl"}, None, "--out"),
        ({"out": "."}, None, "--out"),
        ({"ledger": "none/new.db"}, None, "folder of --ledger "),
        ({"ledger": "prompt.json"}, None, "to be another file than the ledger"),
        ({"epsilon": None}, None, "--epsilon"),
        ({"instruction": None}, None, "--instruction"),
        ({"instruction": ""}, None, "--instruction"),
    ],
)
def test_bad_input_is_one_line_before_a_model_is_loaded(
    changes: dict[str, Any], rows: list[dict[str, str]] | None, says: str, command: Command, engines: list[Engine],
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """If it breaks, a user gets a traceback or private text, or a prompt is written over its data or its ledger."""
    monkeypatch.chdir(tmp_path)
    if rows is not None:
        changes = {**changes, "data": write_rows(tmp_path / "bad.jsonl", rows)}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code = exit_code(command(**{"out": "prompt.json", **changes}))
    line = one_line(capsys)
    assert says in line
    assert SECRET not in line
    assert code == (2 if line.endswith("See langchain-dp optimize --help.") else 1)
    assert not engines or rows is not None
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_test_row_that_cannot_be_scored_is_found_before_anything_is_paid(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, a run of an hour ends in an error about row 1 of the test file."""
    test = write_rows(tmp_path / "test.jsonl", [ROWS[0], {"text": SECRET, "label": "maybe"}])
    assert main(command(test=test)) == 1
    line = one_line(capsys)
    assert "test row 1" in line
    assert SECRET not in line
    assert not (tmp_path / "train.jsonl.ledger").exists()
    assert main(command(test=write_rows(tmp_path / "test.jsonl", []))) == 1
    assert "test.jsonl to hold at least one row" in one_line(capsys)


def test_labels_read_off_the_rows_are_said_to_be(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the set of labels becomes public without a word."""
    assert main(command(labels=None, plan=True)) == 0
    assert "2 labels were read off the private rows" in one_line(capsys)
    assert main(command(labels=None, out=tmp_path / "read.json")) == 0
    notes = load_prompt(tmp_path / "read.json").certificate.notes
    assert any("read off the private records" in note for note in notes)
    capsys.readouterr()
    assert main(command(data=write_rows(tmp_path / "same.jsonl", [ROWS[0]] * 9), labels=None, plan=True)) == 1
    assert "at least 2 different labels in the private rows, but there is 1 in 9 rows" in one_line(capsys)
    rows = [{**row, "label": {"no": "negative", "yes": "positive"}[row["label"]]} for row in ROWS]
    task = {"task": "sst2", "labels": None, "instruction": None}
    assert main(command(data=write_rows(tmp_path / "films.jsonl", rows), **task, json=True)) == 0
    shown, settings = capsys.readouterr(), load_prompt(tmp_path / "prompt.json").settings
    assert "read off" not in shown.err
    assert (settings["labels"], settings["instruction"]) == (list(opt.SST2.labels), opt.SST2.instruction)
    assert settings["shots"] == 3  # what is given goes before the task's


def test_a_seed_repeats_the_run_and_takes_the_promise_away(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a run whose noise anybody can draw again is sold as private."""
    prompts = []
    for _ in range(2):
        assert main(command(seed_not_private=3, json=True)) == 0
        prompts.append(json.loads(capsys.readouterr().out))
    assert prompts[0]["instruction"] == prompts[1]["instruction"]
    assert not prompts[0]["certificate"]["private"]
    assert not (tmp_path / "train.jsonl.ledger").exists()


def test_the_choices_are_those_of_the_library() -> None:
    """If it breaks, the help offers a relation, a task or a template that does not exist, or hides one."""
    assert {name.replace("-", "_").upper() for name in cli_options.NEIGHBORS} == {each.name for each in Neighbors}
    tasks = {name.lower() for name, value in vars(opt).items() if isinstance(value, opt.OptTask)}
    assert set(get_args(cli_options.KnownTask)) == tasks == set(opt.templates.TASKS)
    shown = {name.lower() for name, value in vars(icl).items() if isinstance(value, icl.ICLPrompt)}
    assert set(get_args(cli_options.KnownPrompt)) == shown | {"plain"} == set(icl.prompts.TEMPLATES) | {"plain"}


PROGRAM = """
import json, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cli.test_optimize import SAID, Engine, agreeing
from langchain_dp.integrations import llama_cpp
from fakes.optimizers import ADD_OR_REMOVE, journals, optimizer
from langchain_dp.cli import main

ledger, calls = Path(sys.argv[2]), int(sys.argv[3])

def during():
    written = [each for text in journals(ledger) for each in json.loads(text)["written"]]
    if not calls or sum(each["calls"] for each in written) >= calls:
        print("now", flush=True)
        signal.pause()

llama_cpp.LlamaCppEnsemble = lambda **_: Engine(agreeing(f" {SAID}"), during=during)
raise SystemExit(main(sys.argv[4:]))
"""


def interrupted(calls: int, arguments: list[str], ledger: Path) -> tuple[int, list[str]]:
    """Exit code and error lines of a process that gets Ctrl-C once its journal holds so many calls."""
    program = [sys.executable, "-c", PROGRAM, str(TESTS), str(ledger), str(calls), *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert out == ""
    return process.returncode, without_time(err)


def test_ctrl_c_keeps_what_was_paid_for_and_the_same_command_goes_on(
    command: Command, engines: list[Engine], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, an interrupted run loses tokens that are paid for, or pays for them again."""
    ledger_file = tmp_path / "train.jsonl.ledger"
    code, lines = interrupted(2, command(), ledger_file)
    assert code == 130
    assert len(lines) == 1
    for part in ("interrupted", "2 tokens of 1 candidates", "train.jsonl.ledger", "same command"):
        assert part in lines[0]
    assert not (tmp_path / "prompt.json").exists()
    [kept] = [json.loads(text)["written"] for text in journals(ledger_file)]
    assert [len(each["tokens"]) for each in kept] == [2]
    assert main(command()) == 0
    [done] = [json.loads(text)["written"] for text in journals(ledger_file)]
    assert done[0]["tokens"][:2] == kept[0]["tokens"]
    calls = sum(each["calls"] for each in done)
    with PrivacyLedger(PrivacyBudget(8.0), ledger_file) as ledger:
        charged = sum(entry.count for entry in ledger.entries())
    assert charged == calls + 1 + 1  # the calls, the one that Ctrl-C took, and the selection
    assert sum(len(engine.calls) for engine in engines) < calls


def test_ctrl_c_while_candidates_are_compared_says_what_is_left(
    command: Command, engines: list[Engine], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, the command promises to go on with a choice that it may not make again, or hides what was paid."""
    code, lines = interrupted(10, command(), tmp_path / "train.jsonl.ledger")
    assert code == 130
    assert len(lines) == 1
    assert "same command" not in lines[0]
    for part in ("candidates were compared", "cannot be made again", "train.jsonl.ledger", repr(SAID)):
        assert part in lines[0]
    assert main(command()) == 1
    said = capsys.readouterr().err
    assert repr(SAID) in said
    assert "another --name" in said
    assert engines[0].calls == []


def test_ctrl_c_before_anything_is_charged_says_so(command: Command, tmp_path: Path) -> None:
    """If it breaks, somebody who stopped in time believes to have spent a budget, or the exit code is that of a bug."""
    code, lines = interrupted(0, command(), tmp_path / "none")
    assert code == 130
    assert len(lines) == 1
    assert "before anything was charged" in lines[0]


def test_what_was_written_and_dropped_is_shown_with_the_reason(command: Command, capsys: Any) -> None:
    """If it breaks, candidates that were paid for are nowhere to be seen, or nobody knows why none was taken."""
    assert main(command(instruction="Is it spam?", labels=["no", "yes"])) == 0
    shown = capsys.readouterr().out
    assert "written, and paid for:" in shown
    assert shown.count(repr(SAID)) == 2


def test_a_choice_among_public_prompts_from_the_command_line(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, prompts of a file are not tried, or something is written that nobody asked for."""
    sizes = dict.fromkeys(("shots", "subsets", "prompts", "tokens"))
    public = tmp_path / "prompts.jsonl"
    public.write_text('{"instruction": "Is it spam?"}\n{"words": {"no": "ham", "yes": "spam"}}\n', encoding="utf-8")
    assert main(command(method="choose", alternatives=public, **sizes)) == 0
    shown = capsys.readouterr()
    assert re.search(r"3 prompts, asked about \d+ records each", shown.err)
    assert "paid for" not in shown.out
    saved = load_prompt(tmp_path / "prompt.json")
    assert (saved.settings["writes"], len(saved.settings["alternatives"])) == (False, 2)
    assert main(command(method="choose", alternatives=public, plan=True, json=True, **sizes)) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["max_calls"], plan["epsilon0"], plan["choices"]) == (0, None, 3)
    for changes, said in (({"alternatives": None}, "--alternatives"), ({"shots": 3}, "--shots to be left out")):
        assert exit_code(command(**{"method": "choose", "alternatives": public, **sizes, **changes})) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    public.write_text('{"text": "Is it spam?"}\n', encoding="utf-8")
    assert main(command(method="choose", alternatives=public, out=tmp_path / "other.json", **sizes)) == 2
    assert "prompt 1 of --alternatives" in capsys.readouterr().err
    for wrong, said in (('{"instruction": null}', "Prompt 1 of --alternatives"), ("", "it is empty")):
        public.write_text(f"{wrong}\n", encoding="utf-8")
        assert main(command(method="choose", alternatives=public, out=tmp_path / "other.json", **sizes)) == 2
        assert said in capsys.readouterr().err
    public.write_text('{"instruction": "Is it spam?"}\n', encoding="utf-8")
    of_number = {"alternatives": public, "neighbors": "add-or-remove-one", "out": tmp_path / "third.json"}
    of_number["ledger"] = tmp_path / "third.ledger"
    assert main(command(method="choose", **of_number, **sizes)) == 0
    assert "records each" not in capsys.readouterr().err  # their number is private there


FITTING: dict[str, Any] = {"shots": None, "subsets": None, "prompts": None, "tokens": None}


def test_settings_fit_the_rows_where_none_is_given_and_the_time_is_said(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, the defaults take a night, or a user learns how long it takes by waiting."""

    class Timed(Engine):
        """Not Engine patched: that a class has a port is remembered for good."""

        def tokens_per_second(self) -> float:
            return 500.0

        def bytes_per_token(self) -> int:
            return 1

    made: list[Timed] = []

    def make(**_: Any) -> Timed:
        made.append(Timed(agreeing(f" {SAID}")))
        return made[-1]

    monkeypatch.setattr(ENGINE, make)
    monitored = command(**FITTING)
    assert main(monitored) == 0
    shown = capsys.readouterr()
    assert re.search(
        r"about \d+ (s|min) on this machine: up to 40 tokens, each by \d+ subsets of \d+ records", shown.err
    )
    assert "estimated from the private rows: keep it to yourself" in shown.err
    settings = load_prompt(tmp_path / "prompt.json").settings
    assert (settings["num_prompts"], settings["max_new_tokens"], settings["rows"]) == (2, 20, 240)
    assert main(monitored) == 0  # the same choice, and so the same run
    assert not made[-1].calls


def test_rows_too_few_for_the_budget_spend_nothing(command: Command, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a budget is gone for a prompt of which nothing was learned."""
    assert main(command(**FITTING, epsilon=0.5)) == 1
    assert "at least epsilon=" in one_line(capsys)
    assert main(command(epsilon=0.1)) == 1  # with sizes that were named
    assert "at least epsilon=" in one_line(capsys)
    assert files(tmp_path) == {"train.jsonl"}
    assert main(command(**FITTING, epsilon=0.5, plan=True)) == 0
    assert "verdict      not with 240 rows at epsilon 0.5: keep your instruction" in capsys.readouterr().out
    assert main(command(**FITTING, epsilon=0.5, plan=True, json=True)) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["rating"] == "no"
    assert main(command()) == 0  # no refused budget sticks to the file


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subsets": 400}, "or lower --subsets or --shots."),
        ({"epsilon": 0.5}, "or fewer calls (--prompts, --tokens), more votes (--subsets), or fewer --shots and"),
        ({"validation": 0.001}, "--validation 0.001 of 240 examples"),
    ],
)
def test_refusals_name_what_was_typed(changes: dict[str, Any], says: str, command: Command, capsys: Any) -> None:
    """If it breaks, the remedy is an argument of a library that the user has never seen."""
    assert main(command(**changes)) == 1
    line = one_line(capsys)
    assert says in line, line
    assert not re.search(r"\b(num_prompts|max_new_tokens|subsets|shots|validation)=", line)


def test_the_line_at_the_start_holds_no_private_number_of_rows() -> None:
    """If it breaks, a log shows under add/remove what the promise keeps private: how many rows there are."""
    made = optimizer(budget=ADD_OR_REMOVE)
    assert len({_before(made.plan(count)) for count in (40, 4_000)}) == 1
    public = optimizer()
    assert len({_before(public.plan(count)) for count in (40, 4_000)}) == 2
