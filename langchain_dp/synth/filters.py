"""What is left out of released texts, and why. Post-processing of what has left already: it costs nothing."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.words import pieces_of
from langchain_dp.ensemble.engine_calls import ask_together
from langchain_dp.ports import LabelScorer, MemberPrompt
from langchain_dp.synth.journal import WrittenText

Reason = Literal["", "empty", "short", "repeats the request", "twice", "another label"]

# What closes behind an end belongs to its sentence. Chinese and Japanese put no blank behind it.
_SENTENCE = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964][\"')\]\u2019\u201d\xbb]*(?=\s|$)|[\u3002\uff01\uff1f][\u300d\u300f\u201d\uff09]*"
)


@dataclasses.dataclass(frozen=True)
class Filters:
    """What a released text has to be to be kept. Public rules over public texts.

    Args:
        least_words: Words that it must have. In writing without spaces (Chinese, Japanese, Thai) a letter is one.
        whole_sentences: Cut a text that ran into the largest number of tokens back to its last whole sentence, where
            it has one.
        check_labels: Leave out what the public model, asked without any example, takes for another label. It needs
            descriptions that tell it what the labels mean, and an engine that scores labels. A warning says so where it
            tells the label of no text.

    Examples:
        >>> Filters(least_words=5).check_labels
        False
    """

    least_words: int = 3
    whole_sentences: bool = True
    check_labels: bool = False

    def __post_init__(self) -> None:
        validate.integer("least_words", self.least_words, at_least=1)
        validate.one_of("whole_sentences", self.whole_sentences, (True, False))
        validate.one_of("check_labels", self.check_labels, (True, False))


def judged(
    written: Sequence[WrittenText],
    filters: Filters,
    descriptions: Mapping[str, str],
    checker: LabelScorer | None,
    *,
    cue: str,
) -> list[tuple[WrittenText, Reason]]:
    """Each text as it is kept, with why it is left out; "" where it is not.

    Args:
        written: Released texts.
        filters: Rules.
        descriptions: What the model was told of each label.
        checker: Tells labels apart, for ``check_labels``.
        cue: What the next text of the prompt would begin with: a text that goes on with it is cut there.
    """
    seen: set[str] = set()
    found: list[tuple[WrittenText, Reason]] = []
    for one in written:
        text = _own(one.text, cue)
        if one.ended == "length" and filters.whole_sentences:
            text = _whole(text)
        one = dataclasses.replace(one, text=text)
        reason = _reason(text, filters, descriptions)
        if not reason and _folded(text) in seen:
            reason = "twice"
        seen.add(_folded(text))
        found.append((one, reason))
    if filters.check_labels and checker is not None:
        kept = [one for one, reason in found if not reason]
        wrong = {id(one) for one, label in zip(kept, _taken_for(kept, descriptions, checker), strict=True)
                 if label is not None and label != one.label}  # fmt: skip
        found = [(one, "another label" if id(one) in wrong else reason) for one, reason in found]
    return found


def counted(found: Sequence[tuple[WrittenText, Reason]]) -> dict[str, int]:
    """How many texts were left out, by reason."""
    return dict(Counter(reason for _, reason in found if reason))


def _reason(text: str, filters: Filters, descriptions: Mapping[str, str]) -> Reason:
    if not any(character.isalnum() for character in text):
        return "empty"
    if len(pieces_of(text)) < filters.least_words:
        return "short"
    if any(_folded(text) == _folded(description) for description in descriptions.values()):
        return "repeats the request"
    return ""


def _own(text: str, cue: str) -> str:
    """A text up to where it goes on with the prompt's own next turn, which begins with ``cue``."""
    return re.split(rf"(?<=\S)\s+{re.escape(cue)}", text, maxsplit=1)[0]


def _whole(text: str) -> str:
    """A text up to its last whole sentence; all of it if no sentence ends in it."""
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return text[: ends[-1]] if ends else text


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _taken_for(kept: Sequence[WrittenText], descriptions: Mapping[str, str], checker: LabelScorer) -> list[str | None]:
    """Label that the public model takes each text for; None where it does not answer."""
    labels = list(descriptions)
    words = [f" {letter}" for letter in _letters(len(labels))]
    kinds = "\n".join(f"{word.strip()}: {descriptions[label]}" for word, label in zip(words, labels, strict=True))
    head = f"Kinds of texts:\n{kinds}\n\n"
    answers = []
    for one in kept:
        prompt = MemberPrompt(head, "", f"Text: {one.text}\nKind:", ("public", head))
        (row,) = ask_together(
            lambda prompts: checker.score_labels(prompts, words, content_free=("Text: N/A\nKind:",)), [prompt]
        )
        answers.append(None if row is None else labels[max(range(len(row)), key=lambda at: (row[at], -at))])
    if kept and not any(answers):
        warn_caller(
            f"check_labels: the model told the label of none of {len(kept)} texts, so none was left out for it. See "
            "that it answers, and that the descriptions of all labels fit into its context, and call released().",
            UserWarning,
        )
    return answers


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + i) for i in range(count)] if count <= 26 else [str(i + 1) for i in range(count)]
