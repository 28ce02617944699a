"""How the local model is shown records, and asked for another one or for an answer. All is public but the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.ensemble.prompt_budget import PromptBudget
from langchain_dp.ensemble.questions import Question, check_template, check_text, question_texts, variables_of
from langchain_dp.errors import InvalidParameter


@dataclasses.dataclass(frozen=True)
class SynthesisPrompts:
    """Templates of one task. The public model sees the same prompt without a record.

    Args:
        record: Template of one record; its variables are keys of an example.
        head: What stands before the records; ``{description}`` is what is known of the label.
        before: What stands before each text, also before the one that is to be written.
        after: What stands after each text. A text that is written ends there.

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

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the record's variables, in order."""
        return variables_of(self.record)

    def described(self, description: str) -> str:
        """Public text before the records."""
        return self.head.format(description=description)

    def body(
        self, records: Sequence[Mapping[str, Any]], *, room: PromptBudget | None = None, tokens: int = 0
    ) -> str:  # fmt: skip
        """The private part: each record on a line of its own, as a text that is written ends with its line.

        Args:
            records: Those of one member. Private.
            room: Cuts long ones, so that together they have at most ``tokens``. None: nothing is cut.
            tokens: See ``room``.
        """
        texts = [self._filled(record) for record in records]
        return self._lines(texts if room is None else room.truncate(texts, whole=self._lines, tokens=tokens))

    def _lines(self, texts: Sequence[str]) -> str:
        return "".join(map(self.body_of, texts))

    def body_of(self, text: str) -> str:
        """One text as a record's stands there."""
        shown = " ".join(text.split()) if "\n" in self.after else text.strip()
        return f"{self.before}{shown}{self.after}"

    def _filled(self, record: Mapping[str, Any]) -> str:
        return self.record.format_map({name: str(record[name]) for name in self.variables})

    @property
    def tail(self) -> str:
        """The cue. The text follows it, with its blank."""
        return self.before.rstrip()


@dataclasses.dataclass(frozen=True)
class AnswerPrompts:
    """Templates of questions with their answers. The public model sees the same prompt without a record.

    Args:
        record: Template of one record; its variables are keys of an example.
        question: Template of the question, which ends where the answer begins; its variables are those of an input.
        head: Public text before the records.
        end: What ends an answer, beside the model's own end.

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

    def variables(self, template: str) -> tuple[str, ...]:
        """Names of the variables of ``record`` or ``question``, in order."""
        return variables_of(getattr(self, template))

    def shown(self, record: Mapping[str, Any], *, room: PromptBudget | None = None, tokens: int = 0) -> str:
        """One record. Private.

        Args:
            record: The record.
            room: Cuts long fields, so that the record has at most ``tokens``. None: nothing is cut.
            tokens: See ``room``.
        """
        names = self.variables("record")

        def whole(texts: Sequence[str]) -> str:
            return self.record.format_map(dict(zip(names, texts, strict=True)))

        texts = [str(record[name]).strip() for name in names]
        return whole(texts if room is None else room.truncate(texts, whole=whole, tokens=tokens))

    def asked(self, question: Question, *, text_key: str = "text") -> str:
        """The question as it stands before the answer."""
        names = self.variables("question")
        return self.question.format_map(question_texts(question, names, text_key=text_key))
