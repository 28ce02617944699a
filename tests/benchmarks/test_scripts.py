"""The benchmarks whose rows are published: what they ask of models, what they write down, and what they do not."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from fakes.canary import CANARY
from fakes.voters import VotingEngine

from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.opt import SST2, OptPrompts, OptTask
from langchain_dp.ports import MemberPrompt

sys.path.insert(0, str(Path(__file__).parent))
import made
import reproduce_rows
from reproduce import PAPERS


class OpenedEngine(VotingEngine):
    """An engine that counts how often one was opened, and leans to no label where nothing is asked."""

    opened = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        type(self).opened += 1

    def __enter__(self) -> OpenedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], **settings: Any
    ) -> list[list[float] | None]:
        rows = super().score_labels(prompts, words, **settings)
        return rows if CANARY in prompts[0].tail else [[-math.log(len(words))] * len(words) for _ in rows]


def write_sst2(folder: Path) -> None:
    """Forty private rows, all positive but one, and four questions, all but one."""
    (folder / "sst2").mkdir()
    for part, labels in (("train", ["positive"] * 39 + ["negative"]), ("test", ["positive"] * 3 + ["negative"])):
        rows = [{"text": f"{part} {i} {CANARY}", "label": label} for i, label in enumerate(labels)]
        (folder / "sst2" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_bench_accuracy_goes_on_where_it_stopped_and_keeps_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a finished arm is measured again, a row cannot be read, or results hold private text."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    OpenedEngine.opened = 0
    write_sst2(tmp_path)
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(bench_accuracy, "LlamaCppEnsemble", OpenedEngine)
    monkeypatch.setattr(bench_accuracy, "NOISE_RUNS", 3)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    command = ["bench_accuracy.py", "--tasks", "sst2", "--queries", "5", "--more-queries", "2", "--thin", "4"]
    command += ["--together", "3"]
    for seeds in (["1"], ["1", "2"]):
        monkeypatch.setattr(sys, "argv", [*command, "--seeds", *seeds, "--out", str(out)])
        bench_accuracy.main()
    assert OpenedEngine.opened == 2
    text = out.read_text(encoding="utf-8")
    assert CANARY not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["key"]["seed"] for row in rows] == [1, 2]
    assert all(row["made"] and row["commit"] for row in rows)
    found = {one.what["method"]: one for one in reproduce_rows._accuracy(rows[0])}
    # Every subset but one has positive examples only; three of four questions are positive.
    assert found["vote"].values["accuracy"] == 0.75
    assert {"zero-shot", "balanced", "single votes", "dp-icl 1", "dp-icl 3", "dp-icl 8"} < set(found)
    assert {"balanced, uncalibrated", "vote, uncalibrated", "dp-icl 3, uncalibrated"} < set(found)
    assert sum(rows[0]["winners"].values()) == 4
    assert 0.5 <= rows[0]["agreement"] <= 1.0
    sigmas = {name: one.values.get("sigma") for name, one in found.items()}
    assert sigmas["vote"] is None
    assert sigmas["dp-icl 3"] > sigmas["dp-icl 3, 2 queries"]
    assert sigmas["dp-icl 3"] > sigmas["dp-icl 3, 4 subsets"]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 3 * len(found)
    assert {"task", "method", "accuracy", "standard_error", "n", "sigma", "subsets"} <= set(printed[0])


def test_bench_accuracy_evaluates_once_what_it_counts_twice() -> None:
    """If it breaks, the calibrated column is another arithmetic than the classifier's, or takes twice as long."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
    from remembering import Calibrating

    words, free = [" negative", " positive"], ["Review: N/A\nSentiment:", "Review:\nSentiment:"]
    asked = [
        MemberPrompt("", f"Review: {text}\nSentiment: {label}\n\n", "Review: A joy.\nSentiment:", text)
        for text, label in (("dull", "negative"), ("a fine film, all in all", "positive"))
    ]
    with LlamaCppEnsemble(max_tokens=128, slots=4) as engine:
        once = Calibrating(engine)
        assert once.score_labels(asked, words) == engine.score_labels(asked, words)
        for found, row in zip(
            once.score_labels(asked, words, content_free=free),
            engine.score_labels(asked, words, content_free=free),
            strict=True,
        ):
            assert found == pytest.approx(row, abs=1e-5)
    assert once.score_labels(asked, words, content_free=free)  # of an engine that is closed: evaluated before


def test_a_second_target_answers_each_prompt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, prompts are scored on other rows or twice, or one without its words stands for the whole.

    The server, its model and the chat model are real.
    """
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    import bench_targets
    from langchain_dp.integrations.llama_cpp import embedded_model_path

    write_sst2(tmp_path)
    kept, other, withheld = (
        "Say whether a film was liked.",
        "Positive or negative?",
        "As in [7 words of a training row]:",
    )
    written = [("opt", 1, kept), ("dp-opt 8", 1, kept), ("dln-1", 1, withheld), ("dln-1", 2, other)]
    (tmp_path / "opt.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "key": ["smollm2", "gemma", "sst2", seed, arm],
                    "settings": {"rows": 400, "target_rows": 200},
                    "instruction": instruction,
                    "source_accuracy": 0.5,
                }
            )
            + "\n"
            for arm, seed, instruction in written
        ),
        encoding="utf-8",
    )
    out = tmp_path / "targets.jsonl"
    asked = []
    evaluate = bench_targets.evaluate_prompt

    def counting(template: Any, model: Any, rows: Any, *rest: Any, **more: Any) -> Any:
        asked.append((template.format_messages(text="x")[0].content, len(rows)))
        return evaluate(template, model, rows, *rest, **more)

    monkeypatch.setattr(bench_targets, "evaluate_prompt", counting)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    command = ["bench_targets.py", "--prompts", "opt.jsonl", "--model", str(embedded_model_path()), "--name", "third"]
    monkeypatch.setattr(sys, "argv", [*command, "--target-rows", "3", "--threads", "1", "--out", str(out)])
    bench_targets.main()
    left_out, *rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["key"] for row in (*rows, left_out)] == [
        ["smollm2", "third", "sst2", seed, arm] for arm, seed, _ in (written[0], written[1], written[3], written[2])
    ]
    assert "target_accuracy" not in left_out
    assert [one.left_out for one in reproduce_rows.READERS["bench_targets.py"](left_out)] == [left_out["left_out"]]
    assert [kept in asked[0][0], other in asked[1][0]] == [True, True]
    assert [number for _, number in asked] == [3, 3]
    assert all(row["target_answered"] == 1 and row["settings"]["target_rows"] == 3 for row in rows)
    assert rows[0]["target_accuracy"] == rows[1]["target_accuracy"]
    found = next(reproduce_rows.READERS["bench_targets.py"](rows[0]))
    assert (found.what["target"], found.rows) == ("third", 3)
    bench_targets.main()
    assert len(asked) == 2
    scores = tmp_path / "scores.jsonl"
    command = ["bench_targets.py", "--prompts", "opt.jsonl", "--name", "smollm2", "--scores", "--out", str(scores)]
    monkeypatch.setattr(sys, "argv", [*command, "--arms", "opt", "dln-1", "--target-rows", "3", "--threads", "1"])
    bench_targets.main()
    _, first, second = [json.loads(line) for line in scores.read_text(encoding="utf-8").splitlines()]
    assert len(asked) == 2  # no chat
    instruction = bench_targets.TASKS["sst2"].instruction
    written_here = {**first, "instruction": instruction, "key": [*first["key"][:4], "0-shot"]}
    (tmp_path / "opt.jsonl").write_text(json.dumps(written_here) + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [*command, "--target-rows", "3", "--threads", "1"])
    bench_targets.main()
    *_, initial = [json.loads(line) for line in scores.read_text(encoding="utf-8").splitlines()]
    assert initial["gain"] == {"plain": [0, 0], "calibrated": [0, 0]}
    assert max(initial["scored"].values()) > 0
    for row in (first, second):
        for how, (gain, error) in row["gain"].items():
            assert row["scored"][how] - initial["scored"][how] == pytest.approx(gain)
            assert 0 <= error <= 1
    assert CANARY not in out.read_text(encoding="utf-8") + scores.read_text(encoding="utf-8") + capsys.readouterr().out


def test_examples_of_a_prompt_are_of_all_labels_and_are_not_published() -> None:
    """If it breaks, what stands as ICL in the tables saw rows of one label, or its rows are in the results."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_opt

    rows = [{"text": f"{CANARY} {number}", "label": "positive"} for number in range(9)]
    rows += [{"text": f"bad {number}", "label": "negative"} for number in range(9)]
    shown = bench_opt.with_examples(SST2, rows, "Answer with one of: negative, positive.\n")
    assert shown.startswith(f"{SST2.instruction}\nAnswer with one of: negative, positive.\n\nInput: {CANARY} 0\n\n")
    assert [shown.count("Output: positive"), shown.count("Output: negative")] == [2, 3]
    assert shown.endswith("Output: negative")
    laid = "".join(dataclasses.replace(SST2.prompts, answer="").forward_parts(shown))
    assert laid.count("Output:") == 6
    assert "negative\n\nInput: {text}" in laid
    assert bench_opt.with_examples(SST2, rows, "").startswith(f"{SST2.instruction}\n\nInput: ")
    assert CANARY not in bench_opt.EXAMPLES


def test_rows_of_accuracy_are_those_that_the_tables_ask_for() -> None:
    """If it breaks, the benchmark writes rows that no cell takes: but for those that docs/benchmarks.md has."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    written = {"task", "seed", "shots", "subsets", "model", *bench_accuracy.SETTINGS}
    cells = [cell for paper in PAPERS for cell in paper.cells() if cell.run.out == "accuracy.jsonl"]
    assert {name for cell in cells for name in cell.where} == written - {"seed"} | {"method"}
    elsewhere = {"mpqa", "coded", "named", "coded trec", "coded trustpilot"}
    assert {cell.where["task"] for cell in cells} == set(bench_accuracy.TASKS) - elsewhere


def test_questions_that_share_a_draw_are_one_measurement() -> None:
    """If it breaks, ten questions that met the same subsets are shown with the error of ten independent ones."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    together, alone = bench_accuracy._line("vote", [[0, 0], [1, 1]], {}), bench_accuracy._line("vote", [[0], [1]], {})
    assert together["standard_error"] == alone["standard_error"] == 0.5
    assert (together["n"], alone["n"], together["accuracy"]) == (4, 2, 0.5)


@pytest.mark.parametrize(("together", "draws"), [(1, 4), (3, 2), (10, 1)])
def test_so_many_questions_share_a_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, draws: int
) -> None:
    """If it breaks, the results say how often subsets were drawn, and they were drawn more or less often."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    drawn = []
    draw = SubsetPrompts.draw
    monkeypatch.setattr(SubsetPrompts, "draw", lambda self, asked: drawn.append(asked) or draw(self, asked))
    monkeypatch.setattr(bench_accuracy, "LlamaCppEnsemble", OpenedEngine)
    monkeypatch.setattr(bench_accuracy, "NOISE_RUNS", 1)
    write_sst2(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["bench_accuracy.py", "--tasks", "sst2", "--together", str(together), "--queries", "5"]
    )
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bench_accuracy.main()
    assert len(drawn) == draws
    row = json.loads((tmp_path / "bench_accuracy.jsonl").read_text(encoding="utf-8"))
    assert row["key"]["together"] == together
    assert all(line["n"] == 4 for line in row["methods"])


@pytest.mark.statistical
def test_thinned_votes_are_a_share_of_all() -> None:
    """If it breaks, fewer subsets are accounted for than are counted. False alarms: below 1e-8."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    assert bench_accuracy._thinned([1, 0], 1) == [1, 0]
    assert abs(len(bench_accuracy._thinned([0] * 4_000, 0.25)) - 1_000) < 165  # six standard deviations


def test_a_commit_is_named_and_changes_are_marked(tmp_path: Path) -> None:
    """If it breaks, results name a commit that they were not made from."""
    assert made.commit_of(tmp_path) == made.UNKNOWN

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    source = tmp_path / "langchain_dp" / "a.py"
    source.parent.mkdir()
    source.write_text("A = 1\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--no-verify", "-m", "first")
    name = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "other.txt").write_text("none of the sources", encoding="utf-8")
    assert made.commit_of(tmp_path) == name
    source.write_text("A = 2\n", encoding="utf-8")
    assert made.commit_of(tmp_path) == f"{name}+"


def test_figures_of_speed_are_kept_whole_where_a_file_is_named(tmp_path: Path) -> None:
    """If it breaks, the README's speeds are copied by hand from a terminal, rounded, or of another run."""
    made.keep(None, "icl", {}, {"vote": 0.1})
    for vote in (1 / 3, 2 / 3):
        made.keep(tmp_path / "speed.jsonl", "icl", {"threads": 2}, {"vote": vote})
    one, other = made.so_far(tmp_path / "speed.jsonl")
    assert (one["figures"], other["figures"]) == ({"vote": 1 / 3}, {"vote": 2 / 3})
    assert (one["bench"], one["settings"]["threads"]) == ("icl", 2)
    assert {"made", "commit"} < set(one)


@pytest.mark.parametrize("name", ["bench_icl.py", "bench_writer.py", "bench_rapt.py"])
def test_every_benchmark_of_speed_keeps_its_figures(name: str) -> None:
    """If it breaks, --out is taken and nothing is written, after minutes of work."""
    source = (Path(made.__file__).parent / name).read_text(encoding="utf-8")
    assert 'parser.add_argument("--out"' in source
    assert source.count("keep(options.out,") == 1


# ---------------------------------------------------------------------------------------------------- comparators


def test_a_private_head_is_moved_by_one_row_as_far_as_its_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, DP-SGD stands in our tables with an epsilon that it does not keep, and looks better than it is."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from comparators import heads

    for name, value in {"STEPS": 1, "RATE": 1.0, "LEARNING": 1.0}.items():
        monkeypatch.setattr(heads, name, value)
    vectors = 10 * np.eye(3)[[0, 1, 2, 0]]  # long rows: their gradients are clipped to a length of one
    one, other = np.array([0, 1, 0, 0]), np.array([0, 1, 0, 1])
    settings = {"count": 2, "epsilon": math.inf, "delta": 1e-5, "seed": 1}
    moved = heads.dp_sgd(vectors, one, **settings) - heads.dp_sgd(vectors, other, **settings)
    assert np.linalg.norm(moved) * len(vectors) == pytest.approx(2.0)
    # One step, all rows, of which one moves the sum by two clips.
    sigma = heads.noise_multiplier(3.0, 1e-5, rate=1.0, steps=1)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(sigma / 2))
    assert 2.98 <= accountant.get_epsilon(1e-5) <= 3.0
    noisy = heads.dp_sgd(vectors, one, **settings | {"epsilon": 3.0}) - heads.dp_sgd(vectors, one, **settings)
    assert 0.3 * sigma < np.std(noisy * len(vectors)) < 3 * sigma


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A learner of prompts on a model of two small layers, whose tokens are letters."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    import transformers
    from comparators import soft_prompt

    class Letters:
        all_special_ids = (0,)

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 64 for letter in text.strip(" ")]}

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(100.0)  # gradients that are longer than the clip
    monkeypatch.setattr(soft_prompt, "from_gguf", lambda path: (model, Letters()))
    prompts = OptPrompts(text="{text}", words={"no": "a", "yes": "b"})
    return soft_prompt.PromptLearner("model.gguf", OptTask(("no", "yes"), "Say it.", 1, 1, prompts))


def test_a_private_soft_prompt_is_moved_by_one_row_as_far_as_its_noise_is_made_for(prompts: Any) -> None:
    """If it breaks, PromptDPSGD stands in our tables with an epsilon that it does not keep."""
    import torch
    from comparators.soft_prompt import RATE

    rows = prompts.asked([{"text": letter * (1 + at)} for at, letter in enumerate("xyzxyzxyzxyz")])
    classes = [at % 2 for at in range(len(rows))]
    start = prompts.started()
    alone = torch.cat([prompts.gradients(start, [row], [one]) for row, one in zip(rows, classes, strict=True)])
    torch.testing.assert_close(prompts.gradients(start, rows, classes), alone)  # whatever company a row has
    assert (alone.flatten(1).norm(dim=1) > 1.0).any()

    everyone = list(range(len(rows)))
    moved = []
    for turned in everyone:
        other = [1 - one if at == turned else one for at, one in enumerate(classes)]
        both = [prompts.released(start, everyone, rows, some, 0.0, torch.Generator()) for some in (classes, other)]
        moved.append(float((both[0] - both[1]).norm()) * len(rows) * RATE)
    assert 1.0 < max(moved) <= 2.0 + 1e-5
    noisy = prompts.released(start, [], rows, classes, 3.0, torch.Generator()) * len(rows) * RATE
    assert float(noisy.std()) == pytest.approx(3.0, rel=0.3)


def test_a_prompt_of_words_is_made_of_tokens_alone(prompts: Any) -> None:
    """If it breaks, PEZ hands over vectors that no other model can read, and its table is one of soft prompts."""
    rows = prompts.asked([{"text": "xy"}, {"text": "yx"}] * 10)
    text = prompts.written(rows, [0, 1] * 10, seed=1)
    assert text
    assert all(0 < ord(letter) < 64 for letter in text)


def test_noised_vectors_are_charged_for_all_their_coordinates() -> None:
    """If it breaks, vectors are noised for one coordinate and sent with all: the published slip."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from comparators import heads

    public = np.random.default_rng(0).normal(size=(50, 8))
    sent = heads.noised(np.zeros((4000, 8)), epsilon=2.0, kept=4, seed=1, public=public)
    assert sent.shape == (4000, 4)
    assert np.abs(sent - np.median(sent, axis=0)).mean() == pytest.approx(4 / 2.0, rel=0.1)
