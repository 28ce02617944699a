"""Reconstruction: a causal language model reads a privatized text and writes down a likely original.

The model sees released texts only; the attack is its knowledge of the language. Public pairs of texts before and after
privatizing may show it the changes. The count is of words; a reader must judge the meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from langchain_dp.attacks.result import AttackResult, Setting, ratio_interval
from langchain_dp.attacks.words import FUNCTION_WORDS, words_of
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, NextTokenVoter, Token

INSTRUCTION = (
    "In each text, many words were replaced by random other ones. Guess what the writer meant, and write down the "
    "whole original text in good English.\n\n"
)
"""Instruction to the model. Public."""

_TOGETHER = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReconstructionResult(AttackResult):
    """How many words of the originals a model wrote down. ``readable`` is their share in the released texts themselves.

    ``texts`` holds original, released text and reconstruction of each text. Private.
    """

    readable: float
    texts: tuple[tuple[str, str, str], ...] = dataclasses.field(repr=False)


def reconstruct(
    texts: Sequence[str],
    released: Sequence[str],
    *,
    model: NextTokenVoter | Callable[[str], str],
    examples: Sequence[tuple[str, str]] = (),
    max_new_tokens: int = 80,
    settings: dict[str, Setting] | None = None,
) -> ReconstructionResult:
    """Let a model rewrite released texts, and count the recovered words of the originals.

    ``examples`` are PUBLIC pairs (released, original). The rate is the share of the originals' words, without function
    words and repeats, in the reconstructions, with an interval over texts. The baseline compares every reconstruction
    with another text.
    """
    wanted = [_content(text) for text in texts]
    total = np.array([len(words) for words in wanted], dtype=float)
    head = INSTRUCTION + "".join(f"Changed: {_line(a)}\nOriginal: {_line(b)}\n\n" for a, b in examples)
    bodies = [f"Changed: {_line(text)}\n" for text in released]
    tail = "Original:"
    if isinstance(model, NextTokenVoter):
        written, writer = _write(model, head, bodies, tail, max_new_tokens), model.name
    else:
        written = [_first_line(model(head + body + tail)) for body in bodies]
        writer = getattr(model, "__name__", type(model).__name__)
    back = [_content(text) for text in written]
    hits = _overlap(wanted, back)
    readable = float(_overlap(wanted, [_content(text) for text in released]).sum() / total.sum())
    return ReconstructionResult(
        name="reconstruction (causal model)",
        rate=float(hits.sum() / total.sum()),
        interval=ratio_interval(hits, total),
        baseline=0.0 if len(back) < 2 else float(_overlap(wanted, back[1:] + back[:1]).sum() / total.sum()),
        n=int(total.sum()),
        measure="original words written",
        interval_method="over texts",
        settings={
            **(settings or {}), "model": writer, "texts": len(texts), "examples": len(examples), "readable": readable,
        },
        readable=readable,
        texts=tuple(zip(texts, released, written, strict=True)),
    )  # fmt: skip


def _write(model: NextTokenVoter, head: str, bodies: Sequence[str], tail: str, longest: int) -> list[str]:
    """Return the engine's continuation of each prompt, up to a line's end."""
    reconstructions: list[str] = []
    decoding = Decoding()
    for start in range(0, len(bodies), _TOGETHER):
        batch = bodies[start : start + _TOGETHER]
        keys = [("reconstruction", object()) for _ in batch]
        prompts = [MemberPrompt(head, body, tail, key) for body, key in zip(batch, keys, strict=True)]
        written: list[list[Token]] = [[] for _ in prompts]
        open_ = list(range(len(prompts)))
        try:
            for _ in range(longest):
                tokens = model.next_tokens([Continuation(prompts[i], tuple(written[i]), 0.0) for i in open_], decoding)
                still = []
                for i, token in zip(open_, tokens, strict=True):
                    if token is None or token in model.end_tokens:
                        continue
                    written[i].append(token)
                    if "\n" not in model.detokenize(written[i]).lstrip():
                        still.append(i)
                open_ = still
                if not open_:
                    break
        finally:
            model.forget(*keys)
        reconstructions += [_first_line(model.detokenize(tokens)) for tokens in written]
    return reconstructions


def _content(text: str) -> set[str]:
    return {word.folded for word in words_of(text)} - FUNCTION_WORDS


def _overlap(wanted: Sequence[set[str]], found: Sequence[set[str]]) -> np.ndarray:
    return np.array([len(a & b) for a, b in zip(wanted, found, strict=True)], dtype=float)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""


def _line(text: str) -> str:
    return " ".join(text.split())
