"""The code of the README and of the pages in docs/, run as it stands, and the claims that can be checked here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import optimizers
from fakes.next_token import WordEngine, agreeing
from fakes.openai_server import OpenAIServer
from fakes.scorer import WordScorer
from fakes.voters import private_examples
from langchain_core.language_models import FakeListChatModel

from langchain_dp.accounting import Neighbors, PrivacyBudget, calibrate_noisy_max, calibrate_text_round
from langchain_dp.synth import SynthesisPrompts
from langchain_dp.synth.settings import SynthesisSettings

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
NOISY = {"survey", "score-a-chain", "choose-examples"}
"""Pages of test_counts.py: what they print is noisy."""
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```(?:text)?\n(.*?)```)?", re.DOTALL)
"""Code, and what it prints where the page shows it."""
EXTRAS = [
    "langchain", "langgraph", "llama_cpp", "matplotlib", "openai", "opentelemetry", "prometheus_client", "psycopg",
    "pyarrow", "sklearn", "starlette", "torch", "uvicorn",
]  # fmt: skip
BARE = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""An environment with the core dependencies and the extra `encoder` only."""


def blocks(name: str) -> list[tuple[str, str]]:
    """Every block of Python on a page, and the output that follows it."""
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


def without_changing(shown: str) -> list[str]:
    """Lines of an output, without the label, which is drawn, and without what another machine prints otherwise."""
    return [line for line in shown.splitlines()[1:] if not line.startswith(("  model", "  library"))]


def test_the_quickstart_runs_with_one_small_extra() -> None:
    """If it breaks, the first thing a new user types fails, needs another extra, or prints something else."""
    code, shown = blocks("README.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    done = subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert printed.splitlines()[0] in {"praise", "complaint"}
    assert without_changing(printed) == without_changing(shown)


def test_the_home_page_opens_as_the_readme_does() -> None:
    """If it breaks, the site and the repository begin with different claims."""
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    first = README[: README.index("With your own CSV")].replace("<!-- executed by tests/docs/test_readme.py -->\n", "")
    assert home.startswith(first)


def test_the_example_with_a_model_on_this_machine_runs(capsys: Any) -> None:
    """If it breaks, the first example with a real model fails, or prints something else than shown."""
    code, shown = blocks("docs/private-answers.md")[0]
    exec(compile(code, "private-answers.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] in {"praise", "complaint"}
    assert without_changing(printed) == without_changing(shown)


def test_the_chain_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it breaks, the example with a cloud model is wrong (here the cloud is a loopback server)."""
    code, _ = blocks("docs/private-answers.md")[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer("Positive") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        names = {"rows": private_examples(80, labels=["positive", "negative"])}
        exec(compile(code, "private-answers.md", "exec"), names)
    assert (tmp_path / "privacy.ledger").exists()
    assert names["classifier"].certificate().remaining == 9_999  # type: ignore[attr-defined]  # made by the block


def test_the_prompt_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the example that writes a prompt on this machine is wrong (here a small scripted model writes)."""
    (code, _), (target, _), (choice, _), (codes, _) = blocks("docs/private-prompts.md")
    names: dict[str, Any] = {}
    engine = WordEngine(agreeing(" Say yes or no."))
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: engine)
    exec(compile(code, "private-prompts.md", "exec"), names)
    assert names["prompt"].metadata["dp"]["private"] is True
    assert names["prompt"].input_variables == ["text"]
    out = capsys.readouterr().out
    assert out.startswith("DP-OPT plan: epsilon=8")
    assert "Thank you all!" in out
    monkeypatch.chdir(tmp_path)
    optimizers.optimizer().optimize(optimizers.examples()).save("prompt.json")
    names |= {"model": FakeListChatModel(responses=["positive"]), "public_rows": optimizers.examples(20)}
    exec(compile(target, "private-prompts.md", "exec"), names)
    assert names["chain"].invoke({"text": "Thank you all!"}) == "positive"
    assert capsys.readouterr().out.startswith("-> ")
    exec(compile(choice, "private-prompts.md", "exec"), names)
    assert names["chosen"].certificate.epsilon == 1.0
    assert len(names["chosen"].settings["alternatives"]) == 3
    assert names["chosen"].instruction in capsys.readouterr().out
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: WordScorer())
    exec(compile(codes, "private-prompts.md", "exec"), names)
    named = names["named"]
    assert (named.certificate.epsilon, named.certificate.delta) == (1.0, 5e-6)
    assert {"cancellation", "delivery", "returns"} < set(named.names.values())
    assert "queue D: delivery: my parcel is late" in capsys.readouterr().out


def test_the_examples_of_private_texts_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the page on synthetic examples and free text is wrong (here a model of a dozen words writes)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", lambda **_: WordScorer())
    (synthesis, _), (unlabelled, _), (described, _), (answers, _) = blocks("docs/private-examples.md")
    names: dict[str, Any] = {}
    exec(compile(synthesis, "private-examples.md", "exec"), names)
    assert "worth it?" in capsys.readouterr().out
    assert (tmp_path / "examples.jsonl").exists()
    assert len(names["examples"]) + len(names["examples"].dropped) == 8
    exec(compile(unlabelled, "private-examples.md", "exec"), names)
    capsys.readouterr()
    assert isinstance(names["texts"], list)
    assert {one.label for one in names["notes"].released().dropped} == {"note"}  # of a dozen words it writes none here
    exec(compile(described, "private-examples.md", "exec"), names)
    assert str(names["examples"].descriptions) in capsys.readouterr().out
    assert list(names["examples"].descriptions) == ["team A", "team B"]
    assert names["examples"].certificate.epsilon == pytest.approx(4.0)
    assert names["prompt"].input_variables == ["text"]
    exec(compile(answers, "private-examples.md", "exec"), names)
    assert capsys.readouterr().out.endswith("8.0 19\n")


def test_the_table_of_clips_is_what_calibration_gives() -> None:
    """If it breaks, the clips on the page are not the library's."""
    page = (ROOT / "docs" / "private-examples.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    assert len(rows) == 3
    for records, examples, *clips in rows:
        rate = 120 / int(records.replace(",", ""))
        for eps, clip in zip((1.0, 3.0, 8.0), clips, strict=True):
            fits = calibrate_text_round(
                PrivacyBudget(eps, 1e-6), rounds=int(examples) // 4, tokens=30, sampling_probability=rate
            )
            assert fits * 30 / 4 == pytest.approx(float(clip), rel=0.005)


def test_what_more_members_do_to_the_clip_is_what_calibration_gives() -> None:
    """If it breaks, the page says that more members raise the clip by less, or more, than they do."""
    page = (ROOT / "docs" / "private-examples.md").read_text(encoding="utf-8")
    (figures,) = re.findall(r"from (\d.\d+) with 30 members to (\d.\d+) with 150", page)
    settings = {"labels": {"a": "a", "b": "b"}, "count": 2, "max_new_tokens": 30, "prompts": SynthesisPrompts()}
    found = [
        SynthesisSettings(**settings, members=members)
        .design(PrivacyBudget(1.0, 1e-6), records=300, rounds=1, texts=2)
        .noise.clip
        for members in (30, 150)
    ]
    assert found == pytest.approx([float(each) for each in figures], rel=0.005)


def test_the_sanitizer_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, the examples that privatize a text are wrong (here a model of a dozen words rewrites it)."""
    (code, _), (paraphrase, _) = blocks("docs/private-text.md")
    exec(compile(code, "private-text.md", "exec"), {})
    assert "eta" in capsys.readouterr().out
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.LlamaCppEnsemble", WordScorer)
    exec(compile(paraphrase, "private-text.md", "exec"), {})
    assert capsys.readouterr().out.endswith("320.0\n")


@pytest.mark.parametrize("path", [path for path in HOW_TO if path.stem not in NOISY], ids=lambda path: path.stem)
def test_a_how_to_page_runs_and_prints_what_it_shows(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, who follows a page step by step gets an error, or reads an output that is made up."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    there = request.getfixturevalue("postgres").fresh(tmp_path) if path.stem == "several-machines" else ""
    for page, shown in blocks(path.relative_to(ROOT).as_posix()):
        code = re.sub(r"postgresql://[^\"]*", there, page)
        exec(compile(code, path.name, "exec", dont_inherit=True), names)
        assert capsys.readouterr().out == shown


def pages() -> Iterator[str]:
    """The README and all pages that are written by hand."""
    yield "README.md"
    yield from (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))


def test_no_block_is_left_out() -> None:
    """If it breaks, a page shows code that no test runs."""
    run = {"README.md": 1, "docs/private-answers.md": 2, "docs/private-prompts.md": 4, "docs/private-text.md": 2}
    run["docs/private-examples.md"] = 4
    run["docs/index.md"] = 1  # the one of README
    run["docs/prototypes.md"] = 3  # test_prototypes.py
    run["docs/start.md"] = 2  # tests/cli/test_start.py
    run["docs/support-agent.md"] = 1  # test_support_agent.py
    run |= {path.relative_to(ROOT).as_posix(): len(blocks(str(path))) for path in HOW_TO}
    assert all(run.values())
    shown = {name: (ROOT / name).read_text(encoding="utf-8").count("```python") for name in pages()}
    assert {name: count for name, count in shown.items() if count} == run


def test_the_noise_table_is_what_calibration_gives() -> None:
    """If it breaks, the noise figures of the page on the promise are not the library's."""
    page = (ROOT / "docs" / "promise.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| 1e-5 \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", page)
    assert len(rows) == 3
    for epsilon, *figures in rows:
        schemes = [("resample", Neighbors.ADD_OR_REMOVE_ONE), ("fixed", Neighbors.REPLACE_ONE),
                   ("fixed", Neighbors.REPLACE_SPECIAL)]  # fmt: skip
        for figure, (sampling, neighbors) in zip(figures, schemes, strict=True):
            budget = PrivacyBudget(float(epsilon), 1e-5, neighbors)
            rate: Any = {"sampling_probability": 40 / 6920, "sampling": sampling}
            assert calibrate_noisy_max(budget, queries=10_000, **rate) == pytest.approx(float(figure), rel=1e-3)
