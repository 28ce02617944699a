"""The command line and its demonstrations, with the real embedded model on a few rows, or with an engine of words."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import sample
from langchain_dp.cli import demo, leaks, main
from langchain_dp.mechanisms import report_noisy_max
from langchain_dp.opt import DLNSettings
from langchain_dp.ports import Continuation, MemberPrompt


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def real() -> Iterator[LlamaCppEnsemble]:
    """The embedded model, loaded once: it takes most of the time of these tests."""
    with LlamaCppEnsemble() as engine:
        yield engine


@pytest.fixture
def embedded(real: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands load is the model that is loaded already."""
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: nullcontext(real))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    train, _ = sample.load()
    return write(tmp_path / "tickets.jsonl", train[:30])


@pytest.mark.usefixtures("embedded")
def test_demo_prints_rows_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a script cannot read the demo: one row per method, in order, scored on the held-out part."""
    assert main(["demo", "--data", str(data), "--shots", "2", "--subsets", "4", "--json", "--limit", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["zero-shot", "few-shot", "vote", "dp-icl", "dp-icl", "dp-icl"]
    assert [row["epsilon"] for row in rows] == [0.0, None, None, 1.0, 3.0, 8.0]
    assert all(row["n"] == 3 and 0 <= row["accuracy"] <= 1 for row in rows)


@pytest.mark.usefixtures("embedded")
def test_demo_shows_a_table_and_saves_a_picture(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a person sees no table, no certificate or no picture."""
    picture = tmp_path / "picture.png"
    test = write(tmp_path / "test.jsonl", sample.load()[1][:2])
    arguments = ["demo", "--data", str(data), "--test", str(test), "--shots", "3", "--subsets", "3"]
    assert main([*arguments, "--epsilon", "3", "--picture", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "read off the private rows" in err
    for part in (
        "DP-ICL",
        "vote without noise",
        "Privacy certificate",
        "epsilon = 3",
        "replace one record",
    ):
        assert part in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "asked:" not in out  # rows of one's own are not printed


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"text": "secret", "label": "a"}] * 3, "at least"),
        ([{"text": "secret"}], "'label'"),
        ([], "at least"),
    ],
)
def test_bad_data_is_one_line(
    rows: list[dict[str, str]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a user gets a traceback, or private text on the terminal."""
    path = write(tmp_path / "bad.jsonl", rows)
    assert main(["demo", "--data", str(path)]) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert says in error[0]
    assert "secret" not in error[0]


@pytest.mark.usefixtures("embedded")
def test_the_short_demo_shows_votes_answers_and_what_left(
    real: LlamaCppEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, `make demo` shows no vote or no promise, or the engine goes on being watched."""
    monkeypatch.setattr(demo, "_QUESTIONS", 2)
    picture = tmp_path / "picture.png"
    assert main(["demo", "--picture", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "score_labels" not in vars(real)
    for row in sample.load()[1][:2]:
        assert row["text"] in out
    for line in (line for line in out.splitlines() if "+ noise" in line):
        cast = re.match(r" +votes  praise █* (\d+)   complaint █* (\d+)   \+ noise  ->  (praise|complaint)", line)
        assert cast
        assert 0 < int(cast[1]) + int(cast[2]) == line.count("█")
    assert out.index("epsilon = 3") < out.index("What left the building: 2 labels")
    assert out.count("DP-ICL  ") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 1), (1e9, 20)])
def test_the_short_demo_ends_in_time(
    seconds: float, asked: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, the demonstration takes many minutes on a slow machine, or shows no answer at all."""
    monkeypatch.setattr(demo, "_SECONDS", seconds)
    monkeypatch.setattr(
        "langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: Engine(agreeing(f" {SAID}"))
    )
    assert main(["demo", "--json", "--epsilon", "1", "5"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert not err
    assert [(row["method"], row["epsilon"], row["n"]) for row in rows] == [
        ("zero-shot", 0.0, asked),
        ("dp-icl", 1.0, asked),
        ("dp-icl", 5.0, asked),
        ("vote", None, asked),
    ]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)


def test_shares_under_noise_are_those_of_the_mechanism() -> None:
    """If it breaks, the table of the short demonstration shows another accuracy than answers have (1e-6)."""
    counts, sigma = [[6, 4], [3, 7], [5, 5]], 1.5
    shown = demo._kept(counts, [0, 0, 1], sigma)
    draws = 4000
    drawn = sum(
        report_noisy_max(each, sigma).winner == truth
        for each, truth in zip(counts, [0, 0, 1], strict=True)
        for _ in range(draws)
    )
    assert abs(shown - drawn / (3 * draws)) < 0.027  # 5 times sqrt(1 / (4 * 12,000) + 1 / (4 * 30,000))
    assert demo._kept([[3, 2], [0, 4]], [0, 0], 0.0) == 0.5


def test_another_number_of_threads_changes_no_bit(real: LlamaCppEnsemble) -> None:
    """If it breaks, an answer depends on what else ran on the machine when it was given."""
    prompts = [
        MemberPrompt("Praise or complaint?\n", f"A note {i}: praise\n" * 9, "It hurt:", ("m", i)) for i in range(3)
    ]
    found = []
    for threads in (1, 2):
        real._context.threads.use(threads)
        real.forget(*(("m", i) for i in range(3)))
        found.append(real.score_labels(prompts, [" praise", " complaint"]))
    assert found[0] == found[1]
    assert real.measure_threads() == real.n_threads >= 1
    assert real.score_labels(prompts, [" praise", " complaint"]) == found[0]


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a typo in a path ends in a traceback."""
    assert main(["demo", "--data", "no-such-file.jsonl"]) == 1
    assert "no-such-file.jsonl" in capsys.readouterr().err


def test_ctrl_c_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a script takes an interrupted command for a refused one."""

    def stopped(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", stopped)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "langchain-dp: interrupted\n"


# -------------------------------------------------------------------------------------------------- the demo of DP-OPT

SAID = "Read the message."


class Engine(WordEngine):
    """A word engine that closes like the real one."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def copying(place: int, asked: Continuation) -> str:
    """DLN-1's prompts show four rows: they are answered with the first of them. The votes say what they are told."""
    rows = re.findall("^Input: (.*)$", asked.prompt.body, re.MULTILINE)
    return f" {rows[0]}\nOutput: praise\nOutput: complaint\n" if len(rows) == 4 else f" {SAID}"


@pytest.fixture(scope="module")
def shown() -> leaks.Result:
    rows, test = sample.load()
    # It answers "praise" to everything, so any candidate does better on 50 rows, whichever the coins choose.
    biased = "Output: praise\nOutput: praise\nOutput: praise\nIs the message praise or complaint?"
    task = dataclasses.replace(
        leaks.own_task("Feedback", rows[:200], test[:6], list(sample.LABELS)), instruction=biased
    )
    words = " ".join(f" {row['text']} {row['text']}" for row in rows[:200])
    engine = WordEngine(copying, extra=f" {words} {SAID}\nOutput: praise\nOutput: complaint\n")
    sizes = leaks.Sizes(
        num_prompts=2,
        max_new_tokens=6,
        opt_subsets=4,
        dln_validation=0.25,
        dln=DLNSettings(steps=1, prompts_per_step=2, demonstrations=4, max_new_tokens=60),
    )
    return leaks.run(task, engine, epsilon=30.0, delta=1e-5, quiet=True, sizes=sizes)


def test_the_demo_marks_what_leaked(shown: leaks.Result) -> None:
    """If it breaks, the demonstration hides the leak of DLN-1, or sees one where none is."""
    by_method = {each.method: each for each in shown.shown}
    assert list(by_method) == ["start", "DLN-1", "OPT", "DP-OPT"]
    span = by_method["DLN-1"].leaks.spans[0]
    assert span.whole
    assert not by_method["DP-OPT"].leaks.spans
    assert by_method["DP-OPT"].instruction in {SAID, shown.task.instruction}
    text = leaks.table(shown, color=False)
    assert f"all of it of row {span.rows[0]}" in text
    marked = [line for line in text.splitlines() if ">>" in line and line.startswith("  | ")]
    assert marked
    assert all(line.count(">>") == line.count("<<") for line in marked)
    for part in ("NOT PRIVATE", "Privacy certificate", "not resolved", "epsilon 30", "a token needs"):
        assert part in text


def test_the_demo_shows_what_could_have_leaked(shown: leaks.Result) -> None:
    """If it breaks, a run in which DLN-1's best prompt is clean by luck shows no leak, or claims one."""
    assert len(shown.sampled) == 2
    start, dln, *rest = shown.shown
    clean = dataclasses.replace(dln, instruction=SAID, leaks=start.leaks)
    lucky = dataclasses.replace(shown, shown=[start, clean, *rest])
    text = leaks.table(lucky, color=False)
    assert "but 2 of the 2 prompts it sampled did" in text
    assert "all of it of row" in text
    none = leaks.table(dataclasses.replace(lucky, sampled=[start.leaks]), color=False)
    assert "None of the 1 prompts it sampled" in none
    assert "all of it of row" not in none


def test_colours_end_on_their_line_and_models_cannot_steer_the_terminal(shown: leaks.Result) -> None:
    """If it breaks, half of the screen turns red, or a prompt with control characters rewrites it."""
    text = leaks.table(shown, color=True)
    red, plain = leaks.RED
    coloured = [line for line in text.splitlines() if "\x1b" in line]
    assert coloured
    assert all(line.startswith("  | ") and line.count(red) == line.count(plain) for line in coloured)
    steering = leaks._printable("a\x1b[2Jb\x07")
    assert steering == "a [2Jb "


def test_rows_of_the_demo_hold_no_prompt_that_is_not_private(shown: leaks.Result) -> None:
    """If it breaks, --json writes private rows into a file that looks harmless."""
    rows = [each.to_dict() for each in shown.shown]
    assert [row["epsilon"] for row in rows] == [0.0, None, None, 30.0]
    assert [row["instruction"] is None for row in rows] == [False, True, True, False]
    assert rows[1]["leaked_spans"] > 0
    assert "Input" not in repr(shown)


def test_in_full_the_demo_shows_both_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, `langchain-dp demo --full` shows one system and hides the other."""
    extra = " Is the message praise or complaint?"
    monkeypatch.setattr(
        "langchain_dp.integrations.llama_cpp.LlamaCppEnsemble",
        lambda **_: Engine(agreeing(f" {SAID}"), extra=extra + f" {SAID}"),
    )
    arguments = ["demo", "--full", "--rows", "120", "--limit", "2", "--epsilon", "3", "--opt-epsilon", "60"]
    assert main([*arguments, "--picture", str(tmp_path / "picture.png")]) == 0
    text = capsys.readouterr().out
    assert text.index("DP-ICL") < text.index("DLN-1") < text.index("DP-OPT: LimitedDomain")
    question = sample.load()[1][0]["text"]
    assert text.startswith(f"asked:    {question}\nanswered: ")  # long before the tables are done
    assert "epsilon = 3, delta = 1e-05 for 2 such answers together" in text
    assert "releases left                   0" in text  # it was not paid for twice
    assert main([*arguments, "--json"]) == 0
    methods = [row["method"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert methods == ["zero-shot", "few-shot", "vote", "dp-icl", "start", "DLN-1", "OPT", "DP-OPT"]


def test_the_demo_of_prompts_runs_on_the_embedded_model(real: LlamaCppEnsemble) -> None:
    """If it breaks, the demonstration works on a fake only."""
    rows, test = sample.load()
    task = leaks.own_task("Feedback", rows[:24], test[:2], list(sample.LABELS))
    sizes = leaks.Sizes(
        subsets=8,
        num_prompts=1,
        max_new_tokens=3,
        opt_subsets=2,
        dln=DLNSettings(steps=1, prompts_per_step=1, demonstrations=2, max_new_tokens=5),
    )
    result = leaks.run(task, real, epsilon=60.0, delta=1e-5, quiet=True, sizes=sizes)
    assert result.certificate.private
    assert result.certificate.parameters["prompts"] == 1
    assert [each.score.rows for each in result.shown] == [2] * 4


@pytest.mark.usefixtures("embedded")
def test_optimize_runs_on_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, the command works on a fake only."""
    rows, test = sample.load()
    arguments = ["optimize", "--data", str(write(tmp_path / "train.jsonl", rows[:16])), "--labels", *sample.LABELS]
    arguments += ["--out", str(tmp_path / "prompt.json"), "--instruction", "Is the message praise or complaint?"]
    arguments += ["--epsilon", "90", "--shots", "2", "--subsets", "6", "--prompts", "1", "--tokens", "2", "--json"]
    assert main([*arguments, "--test", str(write(tmp_path / "test.jsonl", test[:2]))]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["certificate"]["parameters"]["prompts"] == 1
    assert shown["model"]["name"].startswith("SmolLM2")
    assert shown["test"]["after"]["rows"] == 2
