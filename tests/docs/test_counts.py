"""The how-tos of surveys, scores and chosen examples: their code runs, and their figures are true."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_server import OpenAIServer

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_candidates

from langchain_dp import DPSurvey, PrivacyBudget, Question, SyntheticExamples
from langchain_dp.aggregate.counts import VoteCounts

HOW_TO = Path(__file__).parent.parent.parent / "docs" / "how-to"


def page(name: str) -> str:
    return (HOW_TO / f"{name}.md").read_text(encoding="utf-8")


def ran(name: str, reply: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page's only block, run where every cloud call gets a reply."""
    [code] = re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    names: dict[str, Any] = {}
    with OpenAIServer(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        exec(compile(code, f"{name}.md", "exec"), names)
    return names


def test_the_survey_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a reader of the page gets an error, or another survey."""
    names = ran("survey", "", tmp_path, monkeypatch)
    assert names["result"].records == 617
    assert set(names["result"]["topic"].below["delivery"].shares) == {"late", "damaged", "wrong address", "no answer"}
    assert "What customers write about" in (tmp_path / "survey.html").read_text()


def test_the_comparison_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a reader of the page gets an error, or a wrong score. The reply is right on half of the rows."""
    names = ran("score-a-chain", "Praise.", tmp_path, monkeypatch)
    for score in (names["first"], names["second"]):
        assert score.accuracy == pytest.approx(0.5, abs=0.1)  # noise of 11 in 640
        assert score.certificate.epsilon == pytest.approx(0.5, rel=1e-3)


def test_the_choice_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a reader of the page gets an error, or examples without their promise."""
    reply = "\n".join(
        f"{number}. My {word} does not work, please help." for number, word in enumerate(["app", "tv", "ad"])
    )
    names = ran("choose-examples", reply, tmp_path, monkeypatch)
    assert len(names["candidates"]) == 3
    assert SyntheticExamples.load(tmp_path / "examples.jsonl").certificate.epsilon == pytest.approx(1.0, rel=1e-3)


def test_the_noise_is_what_the_pages_say() -> None:
    """If it breaks, a page promises narrower bars than a reader gets."""
    one = DPSurvey([Question("mood", ["calm", "angry"])]).plan(1000, budget=PrivacyBudget(1.0))
    five = [Question(f"mood {number}", ["calm", "angry"]) for number in range(5)]
    assert f"{100 * one.deviation / 1000:.1f} points" == "0.5 points"
    assert "is .5 points (one standard error) with one question and 1.2 with five" in page("survey")
    assert f"{100 * DPSurvey(five).plan(1000, budget=PrivacyBudget(1.0)).deviation / 1000:.1f}" == "1.2"
    score = VoteCounts.of(PrivacyBudget(1.0), votes=1, yes_or_no=True)
    assert f"standard error is {score.deviation:.1f} records" in page("score-a-chain")


def test_the_tables_are_those_of_the_results() -> None:
    """If it breaks, the page quotes figures that nobody measured."""
    assert bench_candidates.table() in page("choose-examples")
    assert bench_candidates.prompts("embedded") in page("choose-examples")
    assert bench_candidates.prompts("qwen15") in page("choose-examples")
    assert bench_candidates.beside_written() in page("choose-examples")
