"""Released examples with their certificate."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from langchain_core.messages import SystemMessage
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.runnables import Runnable

from langchain_dp._util import validate
from langchain_dp._util.reprs import InNotebooks, safe_repr
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.accounting.provenance import ReleasedText, released
from langchain_dp.errors import InvalidParameter
from langchain_dp.parsing import label_parser
from langchain_dp.redact import PrivateArgs, run_redacted


@dataclasses.dataclass(frozen=True)
class SyntheticExample:
    """One released text.

    Args:
        text: The text.
        label: Its label.
        dropped: Why a filter left it out.

    Examples:
        >>> SyntheticExample("The parcel is late.", "delivery").row()
        {'text': 'The parcel is late.', 'label': 'delivery'}
    """

    text: str
    label: str
    dropped: str = ""

    def row(self) -> dict[str, str]:
        """Return ``text`` and ``label``."""
        return {"text": self.text, "label": self.label}


class SyntheticExamples(InNotebooks, Sequence[SyntheticExample]):
    """Released examples with their certificate. They are no longer private: every use is free.

    A sequence of the examples that the filters kept.

    Args:
        examples: All released texts, in the order of their release.
        certificate: Their promise.
        settings: Public settings of the run.

    Examples:
        >>> made = SyntheticExamples([SyntheticExample("The parcel is late.", "delivery")], certificate)
        >>> made[0].label
        'delivery'
        >>> made.as_few_shot_prompt().invoke({}).to_messages()
    """

    def __init__(
        self,
        examples: Sequence[SyntheticExample],
        certificate: PrivacyCertificate,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._costs = certificate.as_sources()
        self._released = tuple(
            dataclasses.replace(one, text=ReleasedText(one.text, self._costs)) if self._costs else one
            for one in examples
        )
        self._kept = tuple(one for one in self._released if not one.dropped)
        self.certificate = certificate
        self.settings = dict(settings or {})

    @property
    def dropped(self) -> tuple[SyntheticExample, ...]:
        """Released texts that filters left out."""
        return tuple(one for one in self._released if one.dropped)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the run."""
        named = self.settings.get("labels") or dict.fromkeys(one.label for one in self._released)
        return tuple(named)

    @property
    def descriptions(self) -> dict[str, str]:
        """Description of each label."""
        named = self.settings.get("labels")
        return released(
            dict(named) if isinstance(named, Mapping) else {each: each for each in self.labels}, self._costs
        )

    @property
    def instruction(self) -> str:
        """The task in words."""
        lines = [f"- {label}: {text}" if text != label else f"- {label}" for label, text in self.descriptions.items()]
        text = "\n".join(["Sort the text into one of these, and answer with its name alone:", *lines])
        return ReleasedText(text, self._costs)

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: object) -> dict[str, Any]:
        names = ("text", "label")
        row = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}
        return {"title": cls.__name__, "type": "array", "items": row}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[SyntheticExample]:
        return iter(self._kept)

    def __eq__(self, other: object) -> bool:
        return self._lines() == other._lines() if isinstance(other, SyntheticExamples) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._released)

    @overload
    def __getitem__(self, index: int) -> SyntheticExample: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SyntheticExample, ...]: ...

    def __getitem__(self, index: int | slice) -> SyntheticExample | tuple[SyntheticExample, ...]:
        return self._kept[index]

    @safe_repr
    def __repr__(self) -> str:
        return f"SyntheticExamples({len(self)} kept, {len(self.dropped)} dropped, {self.certificate!r})"

    def __str__(self) -> str:
        some = [f"{one.label}: {' '.join(one.text.split())}" for one in self.balanced(8)]
        why = ", ".join(f"{number} {reason}" for reason, number in Counter(one.dropped for one in self.dropped).items())
        counts = f"{len(self)} examples, {len(self.dropped)} left out by the filters{f' ({why})' if why else ''}"
        if lost := self.settings.get("lost"):
            counts += f", {lost} given up when the run was stopped"
        return "\n".join([*some, "", str(self.certificate), "", counts])

    def balanced(self, count: int) -> tuple[SyntheticExample, ...]:
        """Return examples, labels in turn."""
        validate.integer("count", count, at_least=0)
        queues = {label: [one for one in self._kept if one.label == label] for label in self.labels}
        turns = [one for turn in range(len(self._kept)) for queue in queues.values() for one in queue[turn : turn + 1]]
        return tuple(turns[:count])

    def rows(self) -> list[dict[str, str]]:
        """Return texts and labels."""
        return [one.row() for one in self._kept]

    def as_few_shot_prompt(self, count: int | None = None) -> FewShotChatMessagePromptTemplate:
        """Return ``count`` examples, or all, as turns of a chat."""
        count = len(self) if count is None else validate.integer("count", count, at_least=1)
        return FewShotChatMessagePromptTemplate(
            examples=[one.row() for one in self.balanced(count)],
            example_prompt=ChatPromptTemplate.from_messages([("human", "{text}"), ("ai", "{label}")]),
            input_variables=[],
        )

    def as_chat_prompt(self, count: int | None = None) -> ChatPromptTemplate:
        """Return a chat prompt: :attr:`instruction`, ``count`` examples as turns, then ``text``."""
        count = len(self) if count is None else validate.integer("count", count, at_least=0)
        # As messages: LangChain serializes no few-shot prompt.
        turns = self.as_few_shot_prompt(count).format_messages() if count else []
        system = SystemMessage(str(self.instruction))
        template = ChatPromptTemplate.from_messages([system, *turns, ("human", "{text}")])
        template.metadata = {"dp": self.certificate.to_dict()}
        return template

    def chain(self, model: Runnable[Any, Any], count: int | None = None) -> Runnable[Any, str]:
        """Return a classifier on these examples. An answer that names no one label raises ``OutputParserException``."""
        if not isinstance(model, Runnable):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to be a chat model, or another Runnable."
            )
        return self.as_chat_prompt(count) | model | label_parser({label: label for label in self.labels})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON lines, with certificate and settings first."""
        write_whole(Path(path), "".join(self._lines()), owner_only=not self.certificate.private)

    def _lines(self) -> list[str]:
        first = {"certificate": self.certificate.to_dict(), "settings": self.settings}
        lines = [first, *(one.row() | ({"dropped": one.dropped} if one.dropped else {}) for one in self._released)]
        return [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SyntheticExamples:
        """Read a saved file."""
        examples: SyntheticExamples = run_redacted(cls._loaded, PrivateArgs(Path(path)), "while examples were read")
        return examples

    @classmethod
    def _loaded(cls, path: Path) -> SyntheticExamples:
        try:
            first, *rest = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
            certificate = PrivacyCertificate.from_dict(first["certificate"])
            settings = dict(first["settings"])
            examples = [SyntheticExample(row["text"], row["label"], row.get("dropped", "")) for row in rest]
            values = [value for one in examples for value in dataclasses.astuple(one)]
            if isinstance(labels := settings.get("labels"), dict):
                values += labels.values()
            if not all(isinstance(value, str) for value in values):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InvalidParameter(
                f"Expected {path.name} to be synthetic examples that save() wrote, with their certificate in the "
                f"first line ({type(problem).__name__})."
            ) from None
        return cls(examples, certificate, settings)
