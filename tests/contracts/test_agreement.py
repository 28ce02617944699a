"""Two engines that share no line of arithmetic, on the same float32 weights, write the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fakes.gguf_model import gguf_engine
from fakes.tiny_model import one_thread

from langchain_dp.ports import Continuation, Decoding, MemberPrompt

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from langchain_dp.integrations.transformers import TransformersEnsemble

HEAD = "Review: cold soup, and we waited 45 minutes\nSentiment: negative\n\n"
SHOTS = (
    "Review: a joy from the first minute to the last\nSentiment: positive\n\n",
    "Review: flat jokes and a tired cast of 12\nSentiment: negative\n\n",
    "Review: naïve, but I'd watch it again\nSentiment: positive\n\n",
)
TAIL = "An instruction for such labels:"
MEMBERS = [MemberPrompt(HEAD, SHOTS[i % 3] + SHOTS[(i + 1 + i // 3) % 3] * (i % 2), TAIL, i) for i in range(8)]
WRITTEN = 10
TIE = 0.01
"""Logits of the two best tokens that are nearer than this are a tie: llama.cpp keeps keys and values in half
precision, which moved label scores by up to 0.0034 here."""


@pytest.fixture(scope="module")
def on_torch(float32_gguf: Path) -> Iterator[TransformersEnsemble]:
    with one_thread(), gguf_engine(str(float32_gguf), max_tokens=256) as engine:
        yield engine


@pytest.fixture(scope="module")
def on_ggml(float32_gguf: Path) -> Iterator[LlamaCppEnsemble]:
    with LlamaCppEnsemble(model_path=str(float32_gguf), slots=4, max_tokens=256, n_threads=1) as engine:
        yield engine


def test_both_read_the_same_tokens(on_torch: TransformersEnsemble, on_ggml: LlamaCppEnsemble) -> None:
    """If it breaks, the tokenizer that is rebuilt from a GGUF file is another one than the model was trained with."""
    texts = [
        HEAD + SHOTS[2] + TAIL,
        "1,234.56 and 3½ of x²\t\ttabs  two  spaces\r\n\r\n\n end ",
        "don't WE'LL they've 漢字 日本 😀 \u00a0nbsp ß <|im_end|> <file_sep> <|im_start|>user\n",
        " leading",
        "",
    ]
    for text in texts:
        assert on_torch._texts.plain(text) == on_ggml._context.tokenize(text)
        assert on_torch.count_tokens(text) == on_ggml.count_tokens(text)
        assert on_torch.detokenize(on_torch._texts.plain(text)) == text
    assert on_torch.vocabulary_size == on_ggml.vocabulary_size
    assert on_torch.end_tokens <= on_ggml.end_tokens
    assert on_torch.name == on_ggml.name


def test_both_write_the_same_tokens(
    on_torch: TransformersEnsemble, on_ggml: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one of the engines evaluates another prompt, other positions or another model than it says."""
    margins: list[float] = []
    inner = on_torch._members.logits

    def noted(*args: Any) -> npt.NDArray[np.float32]:
        row = inner(*args)
        second, first = np.sort(row[on_torch._texts.allowed])[-2:]
        margins.append(float(first - second))
        return row

    monkeypatch.setattr(on_torch._members, "logits", noted)
    compared = 0
    written: list[tuple[Any, ...]] = [()] * len(MEMBERS)
    for _ in range(WRITTEN):
        asked = [Continuation(one, before, 0.5) for one, before in zip(MEMBERS, written, strict=True)]
        mine, theirs = (engine.next_tokens(asked, Decoding()) for engine in (on_torch, on_ggml))
        for margin, token, other in zip(margins[-len(MEMBERS) :], mine, theirs, strict=True):
            if margin > TIE:
                compared += 1
                assert token == other
        # Both go on from the same text: one tie must not spoil all that follows it.
        written = [(*before, token) for before, token in zip(written, mine, strict=True)]
    asked = [Continuation(one, (), 0.5) for one in MEMBERS[:2]]
    mine, theirs = (engine.next_tokens(asked, Decoding(chat=True)) for engine in (on_torch, on_ggml))
    agreed = [a == b for a, b, margin in zip(mine, theirs, margins[-2:], strict=True) if margin > TIE]
    assert agreed
    assert all(agreed)
    assert compared >= 0.9 * len(MEMBERS) * WRITTEN
    assert len(set(written)) > 3


def test_both_score_labels_alike(on_torch: TransformersEnsemble, on_ggml: LlamaCppEnsemble) -> None:
    """If it breaks, first tokens, whole labels or calibration are computed in two ways."""
    members = [MemberPrompt(HEAD, one.body, "Review: so so\nSentiment:", one.member) for one in MEMBERS[:2]]
    for words, free in (((" positive", " negative"), ()), ((" very good", " very bad"), ("N/A\nSentiment:",))):
        mine, theirs = (engine.score_labels(members, words, content_free=free) for engine in (on_torch, on_ggml))
        assert np.array(mine) == pytest.approx(np.array(theirs), abs=0.02)
