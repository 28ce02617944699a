"""Released texts: a list that may be shown to anybody, kept, and used in every place where LangChain takes examples."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.messages import SystemMessage
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_dp._util import validate
from langchain_dp._util.reprs import InNotebooks, safe_repr
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.accounting.provenance import ReleasedText, released
from langchain_dp.errors import InvalidParameter
from langchain_dp.parsing import label_parser
from langchain_dp.redact import PrivateArgs, run_redacted
from langchain_dp.synth.selecting import BalancedExampleSelector, SimilarExampleSelector, WordRetriever


@dataclasses.dataclass(frozen=True)
class SyntheticExample:
    """One released text.

    Args:
        text: What it says.
        label: Its label.
        dropped: Why it is not among the examples; empty for those that are.

    Examples:
        >>> SyntheticExample("The parcel is late.", "delivery").row()
        {'text': 'The parcel is late.', 'label': 'delivery'}
    """

    text: str
    label: str
    dropped: str = ""

    def row(self) -> dict[str, str]:
        """As a mapping with ``text`` and ``label``."""
        return {"text": self.text, "label": self.label}


class SyntheticExamples(InNotebooks, Sequence[SyntheticExample]):
    """Released examples with their certificate. Nothing in it is private: whatever is done with it costs nothing.

    A sequence of what was kept; :attr:`dropped` is what the filters left out, which has left all the same.

    Args:
        examples: Everything that was released, in the order of its release.
        certificate: Under which promise.
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
        """What the public filters left out, each with its reason."""
        return tuple(one for one in self._released if one.dropped)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the run, in its order; of a list made by hand, those of its examples."""
        named = self.settings.get("labels") or dict.fromkeys(one.label for one in self._released)
        return tuple(named)

    @property
    def descriptions(self) -> dict[str, str]:
        """Label -> what the model was told that it means; the label itself where it was told nothing."""
        named = self.settings.get("labels")
        return released(
            dict(named) if isinstance(named, Mapping) else {each: each for each in self.labels}, self._costs
        )

    @property
    def instruction(self) -> str:
        """A task in words that may be shown to any model: the labels, each with its description."""
        lines = [f"- {label}: {text}" if text != label else f"- {label}" for label, text in self.descriptions.items()]
        text = "\n".join(["Sort the text into one of these, and answer with its name alone:", *lines])
        return ReleasedText(text, self._costs)

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: object) -> dict[str, Any]:
        """What LangChain's schemas say of it: rows of text and label."""
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
        """Eight examples, the promise, and how many there are."""
        some = [f"{one.label}: {' '.join(one.text.split())}" for one in self.balanced(8)]
        why = ", ".join(f"{number} {reason}" for reason, number in Counter(one.dropped for one in self.dropped).items())
        counts = f"{len(self)} examples, {len(self.dropped)} left out by the filters{f' ({why})' if why else ''}"
        if lost := self.settings.get("lost"):
            counts += f", {lost} given up when the run was stopped"
        return "\n".join([*some, "", str(self.certificate), "", counts])

    def balanced(self, count: int) -> tuple[SyntheticExample, ...]:
        """The first ``count`` examples, the labels in turn."""
        validate.integer("count", count, at_least=0)
        queues = {label: [one for one in self._kept if one.label == label] for label in self.labels}
        turns = [one for turn in range(len(self._kept)) for queue in queues.values() for one in queue[turn : turn + 1]]
        return tuple(turns[:count])

    # ----------------------------------------------------------------------------------------------------- faces

    def rows(self) -> list[dict[str, str]]:
        """Mappings with ``text`` and ``label``."""
        return [one.row() for one in self._kept]

    def as_few_shot_prompt(self, count: int | None = None, *, selector: Any = None) -> FewShotChatMessagePromptTemplate:
        """Examples as turns of a chat: the text is the human's, the label the model's answer.

        Args:
            count: How many, the labels in turn; None is all. With ``selector`` it is not used.
            selector: An example selector that chooses for each input, such as that of :meth:`as_example_selector`; the
                input variable of another one is ``text``.
        """
        turn = ChatPromptTemplate.from_messages([("human", "{text}"), ("ai", "{label}")])
        if selector is not None:
            return FewShotChatMessagePromptTemplate(
                example_selector=selector,
                example_prompt=turn,
                input_variables=[getattr(selector, "variable", "text")],
            )
        chosen = self.balanced(len(self) if count is None else validate.integer("count", count, at_least=1))
        return FewShotChatMessagePromptTemplate(
            examples=[one.row() for one in chosen],
            example_prompt=turn,
            input_variables=[],
        )

    def as_chat_prompt(self, count: int | None = None, *, selector: Any = None) -> ChatPromptTemplate:
        """A whole prompt for any chat model: :attr:`instruction` as system message, examples as turns, then ``text``.

        Args:
            count: As in :meth:`as_few_shot_prompt`; 0 shows no example, so that the descriptions stand alone.
            selector: As there.
        """
        if count is not None:
            validate.integer("count", count, at_least=0)
        system = SystemMessage(str(self.instruction))
        turns: list[Any] = []
        if selector is not None:
            turns = [self.as_few_shot_prompt(count, selector=selector)]
        elif count != 0:  # as messages: LangChain serialises no few-shot prompt
            turns = self.as_few_shot_prompt(count).format_messages()
        template = ChatPromptTemplate.from_messages([system, *turns, ("human", "{text}")])
        template.metadata = {"dp": self.certificate.to_dict()}
        return template

    def chain(self, model: Runnable[Any, Any], count: int | None = None) -> Runnable[Any, str]:
        """A classifier on these examples: :meth:`as_chat_prompt`, the model, and the label that it named.

        Args:
            model: Any chat model. It sees what was released, and the text that is asked about.
            count: As in :meth:`as_few_shot_prompt`; 0 shows the descriptions alone.

        Returns:
            A Runnable from ``{"text": ...}`` to a label. An answer that names none, or several, is LangChain's
            ``OutputParserException``.
        """
        if not isinstance(model, Runnable):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to be a chat model, or another Runnable."
            )
        return self.as_chat_prompt(count) | model | label_parser({label: label for label in self.labels})

    def as_example_selector(
        self, embeddings: Embeddings | None = None, *, k: int = 4, variable: str = "text"
    ) -> BaseExampleSelector:
        """LangChain's example selector: the ``k`` most similar examples, or without embeddings the same balanced ones.

        For ``FewShotChatMessagePromptTemplate``; ``FewShotPromptTemplate`` formats what was formatted once more, and
        fails on a text with braces.

        Args:
            embeddings: Embed the examples, once, and every input.
            k: How many are chosen.
            variable: Variable of the prompt that holds the input.
        """
        validate.integer("k", k, at_least=1)
        _check_embeddings(embeddings)
        if embeddings is None:
            return BalancedExampleSelector([one.row() for one in self.balanced(len(self))], k)
        store = InMemoryVectorStore.from_texts([one.text for one in self._kept], embeddings, metadatas=self.rows())
        return SimilarExampleSelector(vectorstore=store, k=k, input_keys=["text"], variable=variable)

    def as_retriever(self, embeddings: Embeddings | None = None, *, k: int = 4) -> BaseRetriever:
        """A retriever over the examples: by similarity, or without embeddings by common words.

        Args:
            embeddings: Embed the documents, once, and every question.
            k: Documents that are returned.
        """
        validate.integer("k", k, at_least=1)
        _check_embeddings(embeddings)
        if embeddings is None:
            return WordRetriever(documents=self.to_documents(), k=k)
        store = InMemoryVectorStore.from_documents(self.to_documents(), embeddings)
        return store.as_retriever(search_kwargs={"k": k})

    def to_documents(self) -> list[Document]:
        """One document an example: its text, with ``label`` in the metadata."""
        return [Document(page_content=one.text, metadata={"label": one.label}) for one in self._kept]

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with the columns ``text`` and ``label``.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas  # here: nothing else needs it

        return pandas.DataFrame(self.rows(), columns=["text", "label"])

    # ------------------------------------------------------------------------------------------------------ file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON lines: first the certificate and the settings, then one released text a line. Whole or not at all.

        Readable by its owner only if it is not private.
        """
        write_whole(Path(path), "".join(self._lines()), owner_only=not self.certificate.private)

    def _lines(self) -> list[str]:
        first = {"certificate": self.certificate.to_dict(), "settings": self.settings}
        lines = [first, *(one.row() | ({"dropped": one.dropped} if one.dropped else {}) for one in self._released)]
        return [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SyntheticExamples:
        """Read what :meth:`save` wrote.

        Raises:
            InvalidParameter: The file is none of that kind.
            FileNotFoundError: There is no such file.
        """
        made: SyntheticExamples = run_redacted(cls._loaded, PrivateArgs(Path(path)), "while examples were read")
        return made

    @classmethod
    def _loaded(cls, path: Path) -> SyntheticExamples:
        try:
            first, *rest = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
            certificate = PrivacyCertificate.from_dict(first["certificate"])
            settings = dict(first["settings"])
            examples = [SyntheticExample(row["text"], row["label"], row.get("dropped", "")) for row in rest]
            values = [value for one in examples for value in dataclasses.astuple(one)]
            told = settings.get("labels")
            if not all(isinstance(text, str) for text in (*values, *(told.values() if isinstance(told, dict) else ()))):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InvalidParameter(
                f"Expected {path.name} to be synthetic examples that save() wrote, with their certificate in the "
                f"first line ({type(problem).__name__})."
            ) from None
        return cls(examples, certificate, settings)


def _check_embeddings(embeddings: object) -> None:
    if embeddings is not None and not isinstance(embeddings, Embeddings):
        raise InvalidParameter(
            f"Expected embeddings of type {type(embeddings).__name__} to be LangChain's Embeddings, such as "
            "OpenAIEmbeddings(), or None: by common words."
        )
