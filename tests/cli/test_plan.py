"""What a run would need: the same figures as the library's, without a model, and at no cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.commands import ENGINE, no_model, write_rows
from fakes.next_token import WordEngine
from fakes.scorer import WordScorer
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPExampleSynthesizer, DPICLClassifier, DPPromptOptimizer, Neighbors, PrivacyBudget
from langchain_dp.cli import main
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.synth import DPAnswerGenerator

LABELS = ["praise", "complaint"]
ROWS = [{"text": f"note {i:03d} with some words", "label": LABELS[i % 2]} for i in range(120)]
SECRET = "Zebedee Quillfeather"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_rows(tmp_path / "tickets.jsonl", ROWS))


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model(monkeypatch)


def planned(capsys: Any, *arguments: object) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_icl_says_what_the_library_says(data: str, capsys: Any) -> None:
    """If it breaks, the plan of the command is not that of the chain: in noise, calls, tokens, money or survival."""
    chain = DPICLClassifier(
        model=RunnableLambda(lambda _: "praise"),
        trust_opaque_model=True,
        examples=ROWS,
        labels=LABELS,
        budget=PrivacyBudget(2.0, 1e-6),
        max_queries=50,
        shots=2,
        subsets=8,
    )
    wanted = chain.plan(price_per_million_tokens=3.0)
    asked = ["icl", "--data", data, "--labels", *LABELS, "--epsilon", 2, "--delta", 1e-6, "--queries", 50]
    asked += ["--shots", 2, "--subsets", 8, "--price", 3]
    found = planned(capsys, *asked)
    assert (found["epsilon"], found["delta"], found["neighbors"]) == (2.0, 1e-6, "replace_one")
    assert (found["sigma"], found["groups"], found["queries"]) == (wanted.event.sigma, 60, 50)
    assert (found["calls"], found["tokens"]) == ((8 + 1) * 50, wanted.tokens_per_query * 50)
    assert found["price"] == pytest.approx(wanted.tokens_per_query * 50 * 3 / 1e6)
    assert found["survival"] == {str(share): chance for share, chance in wanted.survival.items()}
    assert main(["plan", *map(str, asked)]) == 0
    said, meant, warning = capsys.readouterr().out, str(wanted), wanted.warning
    for name, option in (("max_queries=", "--queries"), ("shots=", "--shots"), ("subsets=", "--subsets")):
        assert name in warning
        meant, warning = (each.replace(f"({name}", f"({option}") for each in (meant, warning))  # as they are typed
    assert meant in said
    assert found["warning"] == warning


def test_icl_needs_only_the_number_of_records(data: str, capsys: Any) -> None:
    """If it breaks, a plan before there are data has another noise than the one with them."""
    common = ["--labels", *LABELS, "--epsilon", 3, "--queries", 40]
    known = planned(capsys, "icl", "--data", data, *common)
    guessed = planned(capsys, "icl", "--records", len(ROWS), *common)
    differing = {name for name in known if known[name] != guessed[name]}
    assert differing <= {"tokens_per_query", "tokens", "tokens_counted_by"}
    assert ["keep these figures to yourself" in each["tokens_counted_by"] for each in (known, guessed)] == [True, False]
    shorter = planned(capsys, "icl", "--records", len(ROWS), *common, "--characters", 20)
    assert shorter["tokens"] < guessed["tokens"]


def test_icl_takes_constants_prompts_and_relations(capsys: Any) -> None:
    """If it breaks, an option of the plan is ignored, and the noise it shows is that of another run."""
    common = ["icl", "--records", 400, "--labels", "positive", "negative", "--epsilon", 3, "--queries", 40]
    constants = ["--neighbors", "add-or-remove-one", "--partitions", 90, "--sampling-probability", 0.125]
    found = planned(capsys, *common, *constants)
    assert (found["neighbors"], found["groups"], found["sampling_probability"]) == ("add_or_remove_one", 90, 0.125)
    assert found["price"] is None
    titled = planned(capsys, *common, "--sampling", "resample", "--subsets", 7, "--prompt", "amazon")
    assert titled["groups"] == 7
    assert titled["tokens_per_query"] != pytest.approx(found["tokens_per_query"] * 7 / found["calls_per_query"])


def test_opt_says_what_the_library_says(data: str, capsys: Any) -> None:
    """If it breaks, the plan of the command is not that of the run: in noise, calls, or votes that a token needs."""
    wanted = DPPromptOptimizer(
        model=WordEngine(),
        labels=LABELS,
        instruction="Praise or complaint?",
        budget=PrivacyBudget(8.0, neighbors=Neighbors.REPLACE_SPECIAL),
        shots=3,
        subsets=24,
        num_prompts=2,
        max_new_tokens=6,
        validation=0.2,
    ).plan(len(ROWS))
    asked = ["--labels", *LABELS, "--instruction", "Praise or complaint?", "--epsilon", 8, "--shots", 3]
    asked += ["--subsets", 24, "--prompts", 2, "--tokens", 6, "--validation", 0.2, "--neighbors", "replace-special"]
    for rows in (["--data", data], ["--records", len(ROWS)]):
        found = planned(capsys, "opt", *rows, *asked)
        assert (found["epsilon0"], found["delta0"]) == (wanted.token.epsilon0, wanted.token.delta0)
        assert (found["votes_needed"], found["max_calls"]) == (wanted.votes_needed, 12)
        assert (found["groups"], found["training"]) == (wanted.scheme.groups, 96)
        assert found["warm_tokens"] > 0
        assert "no model" in found["tokens_counted_by"]


def test_answers_are_planned_as_by_the_library(data: str, capsys: Any) -> None:
    """If it breaks, the plan of the command is not that of the generator, which has reserved its budget by then."""
    chain = DPAnswerGenerator(
        model=WordScorer(), examples=ROWS, budget=PrivacyBudget(3.0, 1e-6), max_queries=20, members=10,
        max_new_tokens=12,
    )  # fmt: skip
    wanted = chain.plan().to_dict()
    asked = ["--epsilon", 3, "--delta", 1e-6, "--queries", 20, "--members", 10, "--tokens", 12]
    found = planned(capsys, "answers", "--data", data, *asked)
    own = {"tokens_per_answer", "seconds_per_answer", "tokens_counted_by"}
    assert {name: value for name, value in found.items() if name not in own} == {
        name: value for name, value in wanted.items() if name not in own
    }
    assert found["tokens_per_answer"] > 0
    of_number = planned(capsys, "answers", "--records", len(ROWS), *asked)
    assert (of_number["clip"], of_number["verdict"]) == (found["clip"], found["verdict"])


def test_rows_may_be_a_table_with_names_of_its_own(data: str, tmp_path: Path, capsys: Any) -> None:
    """If it breaks, whoever has a CSV file, or calls its text "review", is told to repair every line."""
    table = tmp_path / "reviews.csv"
    table.write_text("review,stars\n" + "".join(f"{row['text']},{row['label']}\n" for row in ROWS))
    asked = ["--epsilon", 2, "--queries", 50]
    named = planned(capsys, "icl", "--data", table, "--text-key", "review", "--label-key", "stars", *asked)
    assert named == planned(capsys, "icl", "--data", data, *asked)
    assert main(["plan", "icl", "--data", str(table), *map(str, asked)]) == 1
    assert "are called with --text-key and --label-key." in capsys.readouterr().err


def test_opt_plans_a_choice(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a choice cannot be planned without a model, or is planned as if it wrote prompts."""
    asked = ["--records", 1000, "--labels", *LABELS, "--instruction", "Praise or complaint?", "--epsilon", 3]
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"instruction": "Glad or cross?"}])
    chosen = planned(capsys, "opt", *asked, "--method", "choose", "--alternatives", prompts)
    assert (chosen["choices"], chosen["max_calls"]) == (2, 0)
    assert planned(capsys, "opt", *asked)["max_calls"] > 0


def test_opt_counts_by_a_model_that_is_named(data: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, tokens are guessed although a model that counts them was given."""
    made: list[dict[str, Any]] = []

    class Engine(WordEngine):
        name = "big"

        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def make(**options: Any) -> Engine:
        made.append(options)
        return Engine()

    monkeypatch.setattr(ENGINE, make)
    asked = ["opt", "--data", data, "--instruction", "x", "--epsilon", 8, "--subsets", 20, "--shots", 2]
    found = planned(capsys, *asked, "--tokens", 3, "--model", "big.gguf", "--max-tokens", 900)
    assert made == [{"model_path": "big.gguf", "max_tokens": 900}]
    assert found["tokens_counted_by"] == "big, on the private rows: keep these figures to yourself"


def test_examples_are_planned_as_the_library_plans_them(data: str, capsys: Any) -> None:
    """If it breaks, the plan of the command is not that of the run: in members or clip."""
    wanted = DPExampleSynthesizer(
        model=WordScorer(), labels=LABELS, budget=PrivacyBudget(3.0, 1e-6), count=12, max_new_tokens=20, members=9,
    ).plan(len(ROWS))  # fmt: skip
    asked = ["--epsilon", 3, "--delta", 1e-6, "--count", 12, "--tokens", 20, "--members", 9]
    by_number = planned(capsys, "synthesize", "--records", len(ROWS), "--labels", *LABELS, *asked)
    by_rows = planned(capsys, "synthesize", "--data", data, *asked)
    for found in (by_number, by_rows):
        for name in ("clip", "members", "sampling_probability", "rounds", "verdict"):
            assert found.get(name) == wanted.to_dict().get(name), name
        assert found["tokens_to_evaluate"] > 0
    assert "keep these figures to yourself" in by_rows["tokens_counted_by"]
    assert "keep" not in by_number["tokens_counted_by"]


@pytest.mark.parametrize("system", ["icl", "opt", "synthesize"])
@pytest.mark.parametrize(("rows", "words"), [(5, 12), (101, 1)])
def test_texts_in_place_of_labels_are_not_shown(
    system: str, rows: int, words: int, tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, a file with text and label exchanged has all of its texts printed as labels."""
    texts = [f"{CANARY} {number} {'waited ' * words}" for number in range(rows)]
    path = write_rows(tmp_path / "exchanged.jsonl", ({"text": "praise", "label": text} for text in texts))
    task = ["--instruction", "Say which."] if system == "opt" else []
    assert main(["plan", system, "--data", str(path), "--epsilon", "3", *task]) == 1
    shown = "".join(capsys.readouterr())
    assert "name the labels with --labels" in shown
    assert CANARY not in shown


def test_rapt_says_what_an_eta_means(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, the plan shows another eta than a sanitizer would use, or a limit that holds fewer texts."""
    words = ["the", "of", "and", "to", "a", "in", "is", "was", "it", "for", "doctor", "patient"]
    table = tmp_path / "words.vec"
    table.write_text("".join(f"{word} {place % 4} {place // 4}\n" for place, word in enumerate(words)))
    options = ["--table", table, "--target-replacement", 0.3]
    found = planned(capsys, "rapt", *options, "--releases", 40)
    assert found["eta"] == RAPTSanitizer(str(table), target_replacement=0.3).calibration().eta
    assert found["target"] == "target_replacement=0.3"
    assert planned(capsys, "rapt", "--table", table, "--inversion", "0.6")["target"] == "inversion=0.6"
    assert found["limit"] == pytest.approx(40 * found["eta"])
    for releases in range(1_001, 1_011):
        assert main(["plan", "rapt", *map(str, options), "--releases", str(releases)]) == 0
        shown = capsys.readouterr().out
        limit = float(shown.partition("need --limit ")[2].split()[0])
        needed = releases * found["eta"]
        assert needed <= limit < needed * 1.00002, "a limit that was rounded down holds one text fewer"
    assert f"more than {math.exp(found['neighbor_loss']):,.4g} times" in shown


@pytest.mark.parametrize("system", ["icl", "opt", "synthesize"])
def test_plans_leave_no_file_and_show_no_row(
    system: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, to ask for the price is to pay it, or a plan that is passed around holds a row."""
    monkeypatch.chdir(tmp_path)
    write_rows("rows.jsonl", ({"text": f"{SECRET} {i}", "label": LABELS[i % 2]} for i in range(120)))
    asked = ["plan", system, "--data", "rows.jsonl", "--epsilon", "8"]
    asked += {
        "icl": ["--queries", "5", "--subsets", "20", "--shots", "2"],
        "opt": ["--instruction", "x", "--tokens", "3", "--subsets", "20", "--shots", "2"],
        "synthesize": ["--count", "4"],
    }[system]
    for more in ([], ["--json"]):
        assert main([*asked, *more]) == 0
        out, err = capsys.readouterr()
        assert "Zebedee" not in out + err
        assert len(err.splitlines()) == 1
    write_rows("rows.jsonl", [{"text": SECRET}])
    assert main(asked) == 1
    assert "Zebedee" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
