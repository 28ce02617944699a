"""Attacks on what was released: tools by which an operator sees what a release betrays. Their output is private.

Every attack says how often it succeeded, with an interval, beside what succeeds without the release. An attack that
fails proves nothing: a better one may not. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.lazy import lazily

if TYPE_CHECKING:
    from langchain_dp.attacks.answer_membership import attack_answers
    from langchain_dp.attacks.attribute_inference import (
        AttributeResult,
        SentenceEmbeddings,
        infer_attribute,
        mean_embeddings,
    )
    from langchain_dp.attacks.context_inversion import (
        NeighborsMasked,
        PredictsMasked,
        TransformersMasked,
        invert_in_context,
    )
    from langchain_dp.attacks.embedding_inversion import (
        InversionResult,
        UnigramPrior,
        invert_vectors,
        invert_words,
        unigram_prior,
    )
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
    from langchain_dp.attacks.reconstruction import ReconstructionResult, reconstruct
    from langchain_dp.attacks.result import AttackResult, plot_attacks

__all__ = [
    "AttackResult",
    "AttributeResult",
    "InversionResult",
    "LeakReport",
    "LeakedSpan",
    "LeakingResult",
    "MembershipResult",
    "NearestRow",
    "NeighborsMasked",
    "PortScorer",
    "PredictsMasked",
    "ReconstructionResult",
    "SentenceEmbeddings",
    "TransformersMasked",
    "UnigramPrior",
    "attack_answers",
    "attack_prompt",
    "find_leaks",
    "infer_attribute",
    "infer_membership",
    "invert_in_context",
    "invert_vectors",
    "invert_words",
    "leak_prompt",
    "lira_scores",
    "mean_embeddings",
    "plot_attacks",
    "reconstruct",
    "unigram_prior",
]

_HOME = {
    "AttackResult": "langchain_dp.attacks.result",
    "AttributeResult": "langchain_dp.attacks.attribute_inference",
    "InversionResult": "langchain_dp.attacks.embedding_inversion",
    "LeakReport": "langchain_dp.attacks.leak_report",
    "LeakedSpan": "langchain_dp.attacks.leak_report",
    "LeakingResult": "langchain_dp.attacks.prompt_leaking",
    "MembershipResult": "langchain_dp.attacks.membership",
    "NearestRow": "langchain_dp.attacks.leak_report",
    "NeighborsMasked": "langchain_dp.attacks.context_inversion",
    "PortScorer": "langchain_dp.attacks.membership",
    "PredictsMasked": "langchain_dp.attacks.context_inversion",
    "ReconstructionResult": "langchain_dp.attacks.reconstruction",
    "SentenceEmbeddings": "langchain_dp.attacks.attribute_inference",
    "TransformersMasked": "langchain_dp.attacks.context_inversion",
    "UnigramPrior": "langchain_dp.attacks.embedding_inversion",
    "attack_answers": "langchain_dp.attacks.answer_membership",
    "attack_prompt": "langchain_dp.attacks.membership",
    "find_leaks": "langchain_dp.attacks.leakage",
    "infer_attribute": "langchain_dp.attacks.attribute_inference",
    "infer_membership": "langchain_dp.attacks.membership",
    "invert_in_context": "langchain_dp.attacks.context_inversion",
    "invert_vectors": "langchain_dp.attacks.embedding_inversion",
    "invert_words": "langchain_dp.attacks.embedding_inversion",
    "leak_prompt": "langchain_dp.attacks.prompt_leaking",
    "lira_scores": "langchain_dp.attacks.membership",
    "mean_embeddings": "langchain_dp.attacks.attribute_inference",
    "plot_attacks": "langchain_dp.attacks.result",
    "reconstruct": "langchain_dp.attacks.reconstruction",
    "unigram_prior": "langchain_dp.attacks.embedding_inversion",
}

__getattr__, __dir__ = lazily(__name__, _HOME)
