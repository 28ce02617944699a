"""Attacks that show an operator what a release reveals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports

if TYPE_CHECKING:
    from langchain_dp.attacks.answer_membership import attack_answers
    from langchain_dp.attacks.embedding_inversion import (
        InversionResult,
        UnigramPrior,
        invert_vectors,
        invert_words,
        unigram_prior,
    )
    from langchain_dp.attacks.example_membership import attack_examples
    from langchain_dp.attacks.leak_report import LeakedSpan, LeakReport, NearestRow
    from langchain_dp.attacks.leakage import find_leaks
    from langchain_dp.attacks.membership import (
        MembershipResult,
        PortScorer,
        attack_prompt,
        infer_membership,
        lira_scores,
    )
    from langchain_dp.attacks.prompt_leaking import LeakingResult, leak_prompt
    from langchain_dp.attacks.result import AttackResult, plot_attacks
    from langchain_dp.attacks.sentence_embeddings import SentenceEmbeddings

__all__ = [
    "AttackResult",
    "InversionResult",
    "LeakReport",
    "LeakedSpan",
    "LeakingResult",
    "MembershipResult",
    "NearestRow",
    "PortScorer",
    "SentenceEmbeddings",
    "UnigramPrior",
    "attack_answers",
    "attack_examples",
    "attack_prompt",
    "find_leaks",
    "infer_membership",
    "invert_vectors",
    "invert_words",
    "leak_prompt",
    "lira_scores",
    "plot_attacks",
    "unigram_prior",
]

_HOME = {
    ".answer_membership": ("attack_answers",),
    ".embedding_inversion": ("InversionResult", "UnigramPrior", "invert_vectors", "invert_words", "unigram_prior"),
    ".example_membership": ("attack_examples",),
    ".leak_report": ("LeakReport", "LeakedSpan", "NearestRow"),
    ".leakage": ("find_leaks",),
    ".membership": ("MembershipResult", "PortScorer", "attack_prompt", "infer_membership", "lira_scores"),
    ".prompt_leaking": ("LeakingResult", "leak_prompt"),
    ".result": ("AttackResult", "plot_attacks"),
    ".sentence_embeddings": ("SentenceEmbeddings",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
