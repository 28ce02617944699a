"""The README's quickstart, run as it stands, and its claims that can be checked here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.openai_server import OpenAIServer
from fakes.voters import private_examples

from langchain_dp.accounting import Neighbors, PrivacyBudget, calibrate_noisy_max

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, the first thing a new user types fails, or prints something else than shown."""
    block = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    assert block
    code, shown = block.groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] in {"praise", "complaint"}
    changing = ("  model", "  library")
    assert [line for line in printed[1:] if not line.startswith(changing)] == [
        line for line in shown.splitlines()[1:] if not line.startswith(changing)
    ]


def test_the_chain_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it breaks, the example with a cloud model is wrong (here the cloud is a loopback server)."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer("Positive") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        names = {"rows": private_examples(80, labels=["positive", "negative"])}
        exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "privacy.ledger").exists()
    assert names["classifier"].certificate().remaining == 9_999  # type: ignore[attr-defined]  # made by the block


def test_the_prompt_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, the example that writes a prompt on this machine is wrong (here a small scripted model writes)."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[2]
    names: dict[str, Any] = {}
    engine = WordEngine(agreeing(" Say yes or no."))
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: engine)
    exec(compile(code, "README.md", "exec"), names)
    assert names["prompt"].metadata["dp"]["private"] is True
    assert names["prompt"].input_variables == ["text"]
    out = capsys.readouterr().out
    assert out.startswith("DP-OPT plan: epsilon=8")
    assert "Thank you all!" in out


def test_the_sanitizer_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, the example that privatises a text is wrong."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[3]
    exec(compile(code, "README.md", "exec"), {})
    assert "eta" in capsys.readouterr().out


def test_the_noise_table_is_what_calibration_gives() -> None:
    """If it breaks, the README's noise figures are not the library's."""
    rows = re.findall(r"\| 1e-5 \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", README)
    assert len(rows) == 3
    for epsilon, *figures in rows:
        for figure, (sampling, neighbors) in zip(
            figures,
            [
                ("resample", Neighbors.ADD_OR_REMOVE_ONE),
                ("fixed", Neighbors.REPLACE_ONE),
                ("fixed", Neighbors.REPLACE_SPECIAL),
            ],
            strict=True,
        ):
            sigma = calibrate_noisy_max(
                PrivacyBudget(float(epsilon), 1e-5, neighbors),
                queries=10_000,
                sampling_probability=40 / 6920,
                sampling=sampling,
            )
            assert sigma == pytest.approx(float(figure), rel=1e-3)
