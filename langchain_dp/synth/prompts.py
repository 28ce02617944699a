"""Prompts that show the local model one record. All other text is public."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.ensemble.engine_calls import PromptBudget
from langchain_dp.ensemble.questions import Question, check_template, check_text, question_texts, variables_of
from langchain_dp.errors import InvalidParameter


class _ShowsRecord:
    """Base of the templates."""

    record: str

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of variables."""
        return variables_of(self.record)

    def shown(self, record: Mapping[str, Any], *, room: PromptBudget | None = None, tokens: int = 0) -> str:
        """Fill in a record. Private. ``room`` cuts long fields."""
        texts = [str(record[name]).strip() for name in self.variables]
        return self._filled(texts if room is None else room.truncate(texts, whole=self._filled, tokens=tokens))

    def shown_as(self, text: str) -> str:
        """Fill in public text."""
        return self.shown(dict.fromkeys(self.variables, text))

    def _filled(self, texts: Sequence[str]) -> str:
        return self.record.format_map(dict(zip(self.variables, texts, strict=True)))


@dataclasses.dataclass(frozen=True)
class SynthesisPrompts(_ShowsRecord):
    """Templates of one synthesis. The public model sees the same prompt without a record.

    Args:
        record: Template of one record. Its variables are keys of an example.
        head: Text before the record. ``{description}`` is the label's.
        before: Text before each record, and before the model's text.
        after: End of each record and text.

    Raises:
        InvalidParameter: ``record`` holds no plain variable, or ``head`` another one than ``description``.

    Examples:
        >>> SynthesisPrompts().tail
        'Text:'
    """

    record: str = "{text}"
    head: str = "Below are texts of one kind, one a line. The kind: {description}.\n\n"
    before: str = "Text: "
    after: str = "\n"

    def __post_init__(self) -> None:
        check_template("record", self.record)
        check_template("head", self.head, known=("description",))
        for name in ("before", "after"):
            check_text(name, getattr(self, name))
        if not self.before.strip() or not self.after:
            raise InvalidParameter(
                f"Expected before={self.before!r} to hold a cue and after={self.after!r} an end. See the defaults."
            )

    def _filled(self, texts: Sequence[str]) -> str:
        text = super()._filled(texts)
        return self.before + (" ".join(text.split()) if "\n" in self.after else text.strip()) + self.after

    def described(self, description: str) -> str:
        """Return the public head."""
        return self.head.format(description=description)

    @property
    def tail(self) -> str:
        """The cue."""
        return self.before.rstrip()

    @property
    def end(self) -> str:
        """End of a text."""
        return self.after


@dataclasses.dataclass(frozen=True)
class AnswerPrompts(_ShowsRecord):
    """Templates of questions with their answers. The public model sees the same prompt without a record.

    Args:
        record: Template of one record. Its variables are keys of an example.
        question: Template of the question, which ends where the answer begins.
        head: Public text before the record.
        end: End of an answer.

    Raises:
        InvalidParameter: A template holds no plain variable.

    Examples:
        >>> prompts = AnswerPrompts(record="Q: {question} A: {answer} ", question="Q: {question} A:")
        >>> prompts.asked({"question": "Where is my parcel?"})
        'Q: Where is my parcel? A:'
    """

    record: str = "Message: {text}\nReply: {label}\n\n"
    question: str = "Message: {text}\nReply:"
    head: str = "Below are messages with the replies they got. Reply to the last message in the same manner.\n\n"
    end: str = "\n"

    def __post_init__(self) -> None:
        for name in ("record", "question"):
            check_template(name, getattr(self, name))
        for name in ("head", "end"):
            check_text(name, getattr(self, name))
        if not self.end:
            raise InvalidParameter("Expected end='' to be a string that ends an answer. Take a line break.")

    def asked(self, question: Question, *, text_key: str = "text") -> str:
        """Fill in the question."""
        texts = question_texts(question, variables_of(self.question), text_key=text_key)
        return self.question.format_map(texts)
