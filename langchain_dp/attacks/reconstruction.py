"""Reconstruction: a causal language model reads a privatized text and writes down a likely original.

The model sees released texts only; the attack is its knowledge of the language. Public pairs of texts before and after
privatizing may show it the changes. The count is of words; a reader must judge the meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from langchain_dp._util import validate
from langchain_dp.attacks import checks
from langchain_dp.attacks.result import AttackResult, Setting, ratio_interval
from langchain_dp.attacks.words import FUNCTION_WORDS, words_of
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, NextTokenVoter, Token

INSTRUCTION = (
    "In each text, many words were replaced by random other ones. Guess what the writer meant, and write down the "
    "whole original text in good English.\n\n"
)
"""Instruction to the model. Public."""

_TOGETHER = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReconstructionResult(AttackResult):
    """How many words of the originals a model wrote down. PRIVATE inside: ``side_by_side`` shows the texts.

    Args:
        readable: Share of the originals' words in the released texts themselves, without a model.
        texts: Original, released text and reconstruction, for each text. Private.

    Examples:
        >>> found = reconstruct(texts, sanitizer.batch(texts), model=engine)
        >>> found.rate, found.baseline, found.readable
    """

    readable: float
    texts: tuple[tuple[str, str, str], ...] = dataclasses.field(repr=False)

    def side_by_side(self, count: int = 5) -> str:
        """Return the first originals, their releases and their reconstructions. PRIVATE."""
        lines = (map(_line, text) for text in self.texts[:count])
        return "\n\n".join(f"original  {a}\nreleased  {b}\nrewritten {c}" for a, b, c in lines)


def reconstruct(
    texts: Sequence[str],
    released: Sequence[str],
    *,
    model: NextTokenVoter | Callable[[str], str],
    examples: Sequence[tuple[str, str]] = (),
    instruction: str = INSTRUCTION,
    max_new_tokens: int = 80,
    settings: dict[str, Setting] | None = None,
    name: str = "reconstruction (causal model)",
) -> ReconstructionResult:
    """Let a model rewrite released texts, and count the recovered words of the originals.

    Args:
        texts: Originals. The model does not see them.
        released: The release of each, for example of ``RAPTSanitizer.invoke``.
        model: An engine that writes tokens (the likeliest one each time), or a function from a prompt to its
            continuation.
        examples: PUBLIC pairs (released, original) that show the changes.
        instruction: Instruction to the model.
        max_new_tokens: Longest reconstruction.
        settings: Public facts to store with the result, such as eta.
        name: Name of the result.

    Returns:
        The share of the originals' words, without function words and repeats, in the reconstructions, with an interval
        over texts. The baseline compares every reconstruction with another text: words of any text; 0 for a single
        text. A rate below ``readable`` means that the model lost more than it recovered.

    Raises:
        InvalidParameter: There is no text, not one release each, or no word to count; the model is none, or answers
            with something else than text.

    Examples:
        >>> found = reconstruct(texts, sanitizer.batch(texts), model=engine)
        >>> found.rate, found.baseline  # words of the originals in the reconstructions; of another text
    """
    originals, seen = checks.texts("texts", texts), checks.texts("released", released)
    validate.integer("max_new_tokens", max_new_tokens, at_least=1)
    if len(originals) != len(seen):
        raise InvalidParameter(
            f"Expected released to hold one text for each of {len(originals)} texts, got {len(seen)}. Give "
            "them in order."
        )
    for pair in examples:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise InvalidParameter("Expected examples to be pairs of str. Give [(released, original), ...].")
    wanted = [_content(text) for text in originals]
    total = np.array([len(words) for words in wanted], dtype=float)
    if not total.sum():
        raise InvalidParameter("Expected texts to hold a word that is no function word, got none.")
    head = instruction + "".join(f"Changed: {_line(a)}\nOriginal: {_line(b)}\n\n" for a, b in examples)
    bodies = [f"Changed: {_line(text)}\n" for text in seen]
    tail = "Original:"
    if isinstance(model, NextTokenVoter):
        written, writer = _write(model, head, bodies, tail, max_new_tokens), model.name
    else:
        validate.function("model", model, of="a prompt, or an engine that writes tokens")
        written = [_first_line(checks.answer("model", model(head + body + tail))) for body in bodies]
        writer = getattr(model, "__name__", type(model).__name__)
    back = [_content(text) for text in written]
    hits = _overlap(wanted, back)
    readable = float(_overlap(wanted, [_content(text) for text in seen]).sum() / total.sum())
    return ReconstructionResult(
        name=name,
        rate=float(hits.sum() / total.sum()),
        interval=ratio_interval(hits, total),
        baseline=0.0 if len(back) < 2 else float(_overlap(wanted, back[1:] + back[:1]).sum() / total.sum()),
        n=int(total.sum()),
        measure="original words written",
        interval_method="over texts",
        settings={
            **(settings or {}),
            "model": writer,
            "texts": len(originals),
            "examples": len(examples),
            "readable": readable,
        },
        readable=readable,
        texts=tuple(zip(originals, seen, written, strict=True)),
    )


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
