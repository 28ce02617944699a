"""Do the error bars of a survey hold? A model answers each question once, and 200 surveys draw noise over its answers.

The records are the 1,003 tickets of the package. With more --rows each is there several times, by several users: a bar
covers the noise alone, whoever answered. Answers are kept in --answers FILE, so that the trial can go on after a pause.
A row of results says in how many surveys all bars held the true share.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from tqdm import tqdm

from langchain_dp import DPSurvey, PrivacyBudget, Question
from langchain_dp.aggregate.readers import EngineReader
from langchain_dp.sample import load_tickets

QUESTIONS = [
    Question("topic", ["account", "billing", "delivery", "technical"]),
    Question("mood", ["calm", "angry"]),
    Question("asks for", ["money", "help", "information"]),
    Question("channel", ["phone", "email", "web"]),
    Question("urgent", ["yes", "no"]),
]
SURVEYS, EPSILON, DELTA = 200, 1.0, 1e-5
RESULTS = Path(__file__).parent / "results" / "survey.jsonl"


class KeptAnswers:
    """A reader that returns answers which were read before."""

    name = "kept answers"

    def __init__(self, answers: dict[str, list[int | None]]) -> None:
        self._answers, self.notes = answers, list[str]()

    def probe(self, questions: Any) -> None:
        """Nothing to probe."""

    def choose(self, questions: Any, texts: list[str], advance: Any) -> list[list[int | None]]:
        """Place of each answer, a list per question."""
        return [[self._answers[text][place] for text in texts] for place in range(len(questions))]


def records(count: int) -> list[dict[str, Any]]:
    """Tickets with their users; beyond all of them, the same ones again by other users."""
    tickets = load_tickets()[0]
    return [
        {"text": row["text"], "customer": f"{turn} {row['customer']}"}
        for turn in range(-(-count // len(tickets)))
        for row in tickets
    ][:count]


def read(rows: list[dict[str, Any]], asked: argparse.Namespace) -> dict[str, list[int | None]]:
    """Answers of the model to all questions, by text."""
    known = {row["text"]: row["answers"] for row in so_far(asked.answers)}
    new = [text for text in dict.fromkeys(row["text"] for row in rows) if text not in known]
    options: dict[str, Any] = {"model_path": asked.model} if asked.model else {}
    with LlamaCppEnsemble(**options, max_tokens=512, n_threads=asked.threads) as engine:
        reader = EngineReader(engine)
        for start in tqdm(range(0, len(new), 20), desc="texts", unit="20"):
            part = new[start : start + 20]
            chosen = reader.choose(QUESTIONS, part, lambda done: None)
            with asked.answers.open("a", encoding="utf-8") as file:
                for place, text in enumerate(part):
                    known[text] = [answers[place] for answers in chosen]
                    file.write(json.dumps({"text": text, "answers": known[text]}) + "\n")
    return known


def true_shares(rows: list[dict[str, Any]], answers: dict[str, list[int | None]]) -> dict[str, dict[str, float]]:
    """Share of each answer among users, each of whom counts once."""
    users: dict[str, list[str]] = {}
    for row in rows:
        users.setdefault(row["customer"], []).append(row["text"])
    shares = {}
    for place, question in enumerate(QUESTIONS):
        names = [*question.described, "no answer"]
        total = dict.fromkeys(names, 0.0)
        for texts in users.values():
            for text in texts:
                answer = answers[text][place]
                total[names[-1 if answer is None else answer]] += 1 / len(texts)
        shares[question.name] = {name: value / len(users) for name, value in total.items()}
    return shares


def trial(rows: list[dict[str, Any]], answers: dict[str, list[int | None]]) -> dict[str, Any]:
    """Surveys in which all bars hold, and bars that do not."""
    truth, survey = true_shares(rows, answers), DPSurvey(QUESTIONS)
    survey._reader = KeptAnswers(answers)  # type: ignore[assignment]
    held = missed = bars = 0
    for seed in range(SURVEYS):
        found = survey.run(
            rows, budget=PrivacyBudget(EPSILON, DELTA), user_key="customer", not_private_seed=seed
        )  # fmt: skip
        wrong = [
            not share.low - 1e-4 <= truth[question.name][name] <= share.high + 1e-4
            for question in QUESTIONS
            for name, share in found[question.name].shares.items()
        ]
        held, missed, bars = held + (not any(wrong)), missed + sum(wrong), bars + len(wrong)
    users = len({row["customer"] for row in rows})
    return {"surveys": SURVEYS, "all_held": held, "bars": bars, "missed": missed, "users": users, "shares": truth}


def main() -> None:
    """Run one trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--answers", type=Path, required=True, help="file that keeps the answers")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    rows, began = records(asked.rows), time.perf_counter()
    answers = read(rows, asked)
    took = time.perf_counter() - began
    key = {"rows": len(rows), "model": asked.model and Path(asked.model).name, "questions": len(QUESTIONS)}
    row = {"key": key, **trial(rows, answers), "epsilon": EPSILON, "delta": DELTA, "seconds": round(took), **made()}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
