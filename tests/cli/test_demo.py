"""The command line and its demonstrations, with the real embedded model on a few rows, or with an engine of words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from audit_tools import report_noisy_max
from fakes.commands import ENGINE, no_model, write_rows
from fakes.next_token import ClosingEngine as Engine
from fakes.next_token import agreeing
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import sample
from langchain_dp.cli import demo, main


@pytest.fixture(scope="module")
def real() -> Iterator[LlamaCppEnsemble]:
    """The embedded model, loaded once: it takes most of the time of these tests."""
    with LlamaCppEnsemble() as engine:
        yield engine


@pytest.fixture
def embedded(real: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands load is the model that is loaded already."""
    monkeypatch.setattr(ENGINE, lambda **_: nullcontext(real))


@pytest.mark.usefixtures("embedded")
def test_the_short_demo_shows_votes_answers_and_what_left(
    real: LlamaCppEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
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
    assert out.index("epsilon = 3") < out.index("Released: 2 labels")
    assert out.count("DP-ICL  ") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 1), (1e9, 20)])
def test_the_short_demo_ends_in_time(seconds: float, asked: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, the demonstration takes many minutes on a slow machine, or shows no answer at all."""
    monkeypatch.setattr(demo, "_SECONDS", seconds)
    monkeypatch.setattr(ENGINE, lambda **_: Engine(agreeing(f" {SAID}")))
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


SAID = "Read the message."


@pytest.mark.usefixtures("embedded")
def test_optimize_runs_on_the_embedded_model(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the command works on a fake only."""
    rows, test = sample.load()
    data = str(write_rows(tmp_path / "train.jsonl", rows[:16]))
    arguments = ["optimize", "--allow-small-model", "--data", data, "--labels", *sample.LABELS]
    arguments += ["--out", str(tmp_path / "prompt.json"), "--instruction", "Is the message praise or complaint?"]
    arguments += [
        "--epsilon",
        "90",
        "--budget",
        "90",
        "--shots",
        "2",
        "--subsets",
        "6",
        "--prompts",
        "1",
        "--tokens",
        "2",
        "--json",
    ]
    assert main([*arguments, "--test", str(write_rows(tmp_path / "test.jsonl", test[:2]))]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["certificate"]["parameters"]["prompts"] == 1
    assert shown["model"]["name"].startswith("SmolLM2")
    assert shown["test"]["after"]["rows"] == 2


def test_the_first_part_needs_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, the first minute of a new user ends in an error, or shows no names, no accuracy or no promise."""
    no_model(monkeypatch)
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
