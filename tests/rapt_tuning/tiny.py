"""Backbones of two layers with random weights, their tokenizers, and a task that two words decide."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import Backbone, IdentitySanitizer, PlainTokens, RAPTPromptTuner, TuningSettings

torch.set_num_threads(1)  # two of them wait for each other where another process is busy

_LINES = """good great fine lovely bad awful dull poor movie film plot actor scene music story camera light sound ending
the was with and very quite rather it in of a negative positive"""
WORDS = _LINES.split()
LABELS = ["negative", "positive"]
VERBALIZER = {"negative": "bad", "positive": "good"}
FAMILIES = ("bert", "roberta")
CLOSE = 1e-6
"""An eta at which every word comes out at random."""
FAR = 1e6
"""An eta at which every word comes out unchanged."""

_SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}


def tokenizer(family: str) -> Any:
    """Whole words."""
    special = _SPECIAL[family]
    words = [*special.values(), *WORDS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=special["unk"]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{f"{k}_token": v for k, v in special.items()})


def model(family: str, *, seed: int = 0, words: bool = True) -> Any:
    """A model of random weights, 16 numbers wide."""
    size = len(_SPECIAL[family]) + len(WORDS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind = {"bert": "Bert", "roberta": "Roberta"}[family]
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=66, initializer_range=0.2, pad_token_id=0 if family == "bert" else 1,
        )  # fmt: skip
        return getattr(transformers, f"{kind}{'ForMaskedLM' if words else 'Model'}")(config)


def backbone(family: str = "bert", *, seed: int = 0, words: bool = True) -> Backbone:
    """A new one."""
    return Backbone(model(family, seed=seed, words=words), tokenizer=tokenizer(family))


def sanitizer(base: Backbone | None = None, **options: Any) -> RAPTSanitizer:
    """A sanitizer over a backbone's own tokens; by default every word passes unchanged."""
    return RAPTSanitizer((base or backbone()), **({"eta": FAR} | options))


def settings(**changes: Any) -> TuningSettings:
    """Small ones; with four fixed plain tokens."""
    small: dict[str, Any] = {
        "prompt_length": 3,
        "plain": PlainTokens(length=4, vocabulary=20),
        "reconstruction": True,
        "head_size": 6,
        "reconstruction_reduction": "mean",
        "learning_rate": 0.02,
        "batch_size": 8,
        "epochs": 2,
        "max_tokens": 12,
        "device": "cpu",
    }
    return TuningSettings(**(small | changes))


def tuner(
    base: Backbone | None = None,
    by: RAPTSanitizer | IdentitySanitizer | None = None,
    *,
    verbalized: bool = False,
    **changes: Any,
) -> RAPTPromptTuner:
    """A tuner of small settings."""
    base = base or backbone()
    return RAPTPromptTuner(
        by or sanitizer(base),
        labels=LABELS,
        backbone=base,
        settings=settings(**changes),
        verbalizer=VERBALIZER if verbalized else None,
    )


def examples(count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Texts whose label is that of the one opinion in them."""
    coins = random.Random(seed)
    rows = []
    for number in range(count):
        opinion = coins.choice(WORDS[:4] if number % 2 else WORDS[4:8])
        rows.append(
            {
                "text": f"the {coins.choice(WORDS[8:19])} was {coins.choice(['very', 'quite', 'rather'])} {opinion}",
                "label": LABELS[number % 2],
                "author": f"author {number % 3}",
            }
        )
    return rows
