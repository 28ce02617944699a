"""Type hints as a user's type checker sees them: a small program against the installed wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RIGHT = """
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp import BudgetExceeded, DPICLClassifier, Neighbors, PrivacyBudget, PrivacyLedger, RAPTSanitizer
from langchain_dp import DPPromptOptimizer, PrivacyCertificate, private_run
from langchain_dp.accounting import NoisyMaxEvent, calibrate_noisy_max
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble


def spend(path: str) -> tuple[float, float]:
    with PrivacyLedger(PrivacyBudget(3.0, delta=1e-5, neighbors=Neighbors.REPLACE_ONE), path) as ledger:
        plan = ledger.reserve([(NoisyMaxEvent(2.0, 0.1), 100)], name="answers")
        plan.spend(NoisyMaxEvent(2.0, 0.1))
        return ledger.spent()


def classify(rows: list[dict[str, str]], question: str) -> str | None:
    chain: DPICLClassifier = DPICLClassifier(
        model=RunnableLambda(lambda prompt: "a"),
        trust_opaque_model=True,
        examples=rows,
        labels=["a", "b"],
        budget=PrivacyBudget(1.0),
        max_queries=10,
    )
    held: PrivacyCertificate = chain.certificate()
    print(held.epsilon)
    try:
        with private_run():
            return chain.invoke(question)
    except BudgetExceeded as refused:
        print(refused.fits + 1)
        return None


def write(rows: list[dict[str, str]]) -> Runnable[dict[str, str], BaseMessage]:
    model = LlamaCppEnsemble(max_tokens=64)
    optimizer = DPPromptOptimizer(model=model, labels=["a", "b"], instruction="Say a or b.", budget=PrivacyBudget(8.0))
    prompt: ChatPromptTemplate = optimizer.invoke(rows)
    return prompt | RunnableLambda(lambda value: value.to_messages()[-1])


sigma: float = calibrate_noisy_max(PrivacyBudget(1.0), queries=10)
text: str = RAPTSanitizer("glove", eta=5.0).sanitize("a text")
"""

WRONG = [
    ("sigma: str = calibrate_noisy_max(PrivacyBudget(1.0), queries=10)", "assignment"),
    ('PrivacyBudget("1.0")', "arg-type"),
    ("PrivacyBudget(1.0, epsilon_total=3)", "call-arg"),
    ("PrivacyLedger(PrivacyBudget(1.0)).refund(1)", "attr-defined"),
    ('DPICLClassifier(model=3, examples=[], labels=["a"], budget=PrivacyBudget(1.0), max_queries=1)', "arg-type"),
    ('RAPTSanitizer("glove", eta=5.0, media="drop")', "call-arg"),
    ('NoisyMaxEvent(2.0, 0.1, sampling="poisson")', "arg-type"),
    ('number: int = RAPTSanitizer("glove", eta=5.0).sanitize("a text")', "assignment"),
]


def test_a_type_checker_reads_the_installed_package(bare: Path, tmp_path: Path) -> None:
    """If it breaks, users get no types, errors in right programs, or no errors in wrong ones."""
    head = RIGHT[: RIGHT.index("def spend")].strip().splitlines()
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text("\n".join([*head, *(line for line, _ in WRONG)]), encoding="utf-8")
    options = ["--strict", "--no-error-summary", "--show-error-codes", "--hide-error-context", "--no-color-output"]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", str(bare), "--config-file="]
    done = subprocess.run([*command, "right.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    assert not done.stderr
    errors = {}
    for line in done.stdout.splitlines():
        place, kind, text = line.split(": ", 2)
        if kind == "error":
            errors[place] = text
    assert {place: text.rpartition("[")[2].rstrip("]") for place, text in errors.items()} == {
        f"wrong.py:{len(head) + number}": code for number, (_, code) in enumerate(WRONG, 1)
    }, done.stdout
