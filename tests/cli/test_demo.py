"""The command line and its demonstrations, with the real embedded model on a few rows, or with an engine of words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import ClosingEngine as Engine
from fakes.next_token import agreeing
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import sample
from langchain_dp.cli import demo, main
from langchain_dp.mechanisms import report_noisy_max
from langchain_dp.ports import MemberPrompt


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
    assert main(["demo", "--part", "votes", "--json", "--epsilon", "1", "5"]) == 0
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
    assert real.n_threads >= 1


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


SAID = "Read the message."


def test_in_full_the_demo_shows_an_answer_before_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, `langchain-dp demo --full` is silent for minutes, or pays for its first answer twice."""
    extra = " Is the message praise or complaint?"
    monkeypatch.setattr(
        "langchain_dp.integrations.llama_cpp.LlamaCppEnsemble",
        lambda **_: Engine(agreeing(f" {SAID}"), extra=extra + f" {SAID}"),
    )
    arguments = ["demo", "--full", "--rows", "120", "--limit", "2", "--epsilon", "3"]
    assert main([*arguments, "--picture", str(tmp_path / "picture.png")]) == 0
    text = capsys.readouterr().out
    question = sample.load()[1][0]["text"]
    assert text.startswith(f"asked:    {question}\nanswered: ")  # long before the tables are done
    assert "epsilon = 3, delta = 1e-05 for 2 such answers together" in text
    assert "releases left                   0" in text  # it was not paid for twice
    assert main([*arguments, "--json"]) == 0
    methods = [row["method"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert methods == ["zero-shot", "few-shot", "vote", "dp-icl"]


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


def test_the_first_part_needs_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, the first minute of a new user ends in an error, or shows no names, no accuracy or no promise."""

    def loaded(**_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", loaded)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--part", "prototypes"]) == 0
    out = capsys.readouterr().out
    for part in ("queue 4  ->  delivery", "prototypes", "without noise", "Privacy certificate", "73 of 100"):
        assert part in out
    assert Path("prototypes_accuracy_vs_epsilon.png").read_bytes().startswith(b"\x89PNG")
    assert main(["demo", "--part", "prototypes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["method"], row["epsilon"]) for row in rows] == [
        ("prototypes", 1.0),
        ("prototypes", 3.0),
        ("prototypes", 8.0),
        ("without noise", None),
    ]
    assert rows[2]["accuracy"] > 0.6
