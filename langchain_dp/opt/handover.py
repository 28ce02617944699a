"""The released instruction as a prompt for any chat model, as a file, and scored on a test set."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_dp._util import validate
from langchain_dp._util.documents import Form
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.ensemble.naming import label_parser, names_of, told_alike
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.opt.candidates import Candidate, PromptChoice, described_choices
from langchain_dp.opt.scores import PromptScore
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import Alternative
from langchain_dp.parsing import parse_label
from langchain_dp.ports import HasFile, VotesNextToken
from langchain_dp.quiet.model import CALLS, QuietModel
from langchain_dp.records import Examples, PrivateRecords, check_labels, label_name, label_words, named_words, row_fault
from langchain_dp.records.faults import placed
from langchain_dp.records.tables import fields_of, rows_of


@dataclasses.dataclass(frozen=True)
class OptimizedPrompt:
    """A released prompt with its certificate and how it came about. It holds no private value.

    Args:
        prompt: The forward prompt as an f-string template; its variables are those of an input. With ``system``, what
            of it stands in the human message.
        instruction: The selected instruction.
        certificate: Under which promise it was released; ``private`` is False for the methods that promise nothing.
        settings: Public settings of the run.
        model: ``name`` of the model that wrote it, and ``sha256`` of its file where it is one.
        created: Time of the release, ISO 8601, UTC.
        system: Template of the system message: instruction, and line that names the labels. Empty: there is none.
        candidates: Everything that was written and paid for, with why it was dropped. Empty for "dln-1".
        descriptions: Label -> what its texts have in common, of a glossary; a label whose description was dropped
            stands for itself. ``DPExampleSynthesizer(labels=...)`` takes them.
        words: Label -> word that the prompt asks for. :meth:`chain` puts the labels back.

    Examples:
        >>> optimized = optimizer.optimize(rows)
        >>> optimized.save("prompt.json")
        >>> chain = optimized.chain(model)  # answers with labels
        >>> chain.invoke({"text": "Thank you all!"})
    """

    prompt: str
    instruction: str
    certificate: PrivacyCertificate
    settings: Mapping[str, Any]
    model: Mapping[str, str]
    created: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    system: str = ""
    candidates: Sequence[Candidate] = ()
    descriptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __or__(self, other: Any) -> Runnable[Any, Any]:
        """As its :meth:`template` in a chain: ``prompt | model``. What answers says ``words``: see :meth:`chain`."""
        chain: Runnable[Any, Any] = self.template() | other
        return chain

    def __ror__(self, other: Any) -> Runnable[Any, Any]:
        """As its :meth:`template` in a chain: ``{"text": ...} | prompt``."""
        chain: Runnable[Any, Any] = other | self.template()
        return chain

    @property
    def names(self) -> dict[str, str]:
        """Label -> a name for it, from its description in a glossary; the label itself where there is none of use.

        For whatever asks a model about these labels: ``ICLPrompt(words=optimized.names)``. They are released: free.
        """
        said = {label: text for label, text in self.descriptions.items() if text != label}
        return names_of(list(self.words or self.descriptions), said)

    def alternatives(self) -> list[Alternative]:
        """The prompts that a glossary's descriptions make, as candidates of another run. They are released: free.

        So DP-OPT chooses among what it writes and what the labels mean: give both runs a share of one ledger.

        Raises:
            InvalidParameter: This is no glossary's prompt.

        Examples:
            >>> glossary = DPPromptOptimizer(method="glossary", labels=LABELS, ledger=ledger, ...).optimize(rows)
            >>> DPPromptOptimizer(labels=LABELS, alternatives=glossary.alternatives(), ledger=ledger, ...)
        """
        glossary = self.settings.get("glossary")
        if glossary is None:
            raise InvalidParameter(
                f'Expected a prompt by method="glossary", which describes labels, not by {self.settings["method"]!r}.'
            )
        labels, called = self.settings["labels"], self.settings["templates"]["words"]
        initial = PromptChoice(self.settings["instruction"], tuple(called.get(label, label) for label in labels))
        names_under = glossary["instruction"] if glossary["named"] else ""
        found = dict.fromkeys(described_choices(initial, labels, self.candidates, names_under=names_under))
        found.pop(initial, None)  # where every description is but its label's word
        return [Alternative(each.instruction, dict(zip(labels, each.words, strict=True))) for each in found]

    def template(self) -> ChatPromptTemplate:
        """The prompt, as one human message or after a system message; ``metadata["dp"]`` is the certificate.

        Where it asks for other words than the labels, ``metadata["words"]`` holds them by label.
        """
        before = [("system", self.system)] if self.system else []
        template = ChatPromptTemplate.from_messages([*before, ("human", self.prompt)])
        template.metadata = {"dp": self.certificate.to_dict()}
        if any(label != word for label, word in self.words.items()):
            template.metadata["words"] = dict(self.words)
        return template

    def chain(self, model: Runnable[Any, Any]) -> Runnable[Any, str]:
        """``template() | model``, and the label whose word was answered.

        Args:
            model: Any chat model. It sees the prompt and the input.

        Returns:
            A Runnable from the prompt's variables to a label. An answer that names none, or several, is LangChain's
            ``OutputParserException``.
        """
        if not self.words:
            raise InvalidParameter("Expected words= of this prompt: an older version saved it. Use template().")
        return self.template() | model | label_parser(self.words)

    def __str__(self) -> str:
        return "\n\n".join([self.instruction, *told_alike(self.descriptions), str(self.certificate)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "prompt": self.prompt,
            "instruction": self.instruction,
            "certificate": self.certificate.to_dict(),
            "settings": dict(self.settings),
            "model": dict(self.model),
            "created": self.created,
            "system": self.system,
            "candidates": [dataclasses.asdict(candidate) for candidate in self.candidates],
            "descriptions": dict(self.descriptions),
            "words": dict(self.words),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all; readable by its owner only if it is not private: it may hold rows."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_whole(Path(path), text, owner_only=not self.certificate.private)


def described(
    engine: VotesNextToken,
    settings: Settings,
    choice: PromptChoice,
    certificate: PrivacyCertificate,
    candidates: Sequence[Candidate] = (),
    **derived: float,
) -> OptimizedPrompt:
    """What a run hands over: the prompt under what was chosen, and how it came about."""
    model = {"name": engine.name}
    if isinstance(engine, HasFile):
        model["sha256"] = engine.file_sha256()
    head, rest = settings.prompts.forward_parts(choice.instruction, choice.words)
    system = settings.prompts.system
    return OptimizedPrompt(
        rest if system else head + rest,
        choice.instruction,
        certificate,
        {**settings.public(), **derived},
        model,
        system=head.rstrip("\n") if system else "",
        candidates=tuple(candidates),
        descriptions={each.label: each.label if each.dropped else each.text for each in candidates if each.label},
        words=dict(zip(settings.labels, choice.words, strict=True)),
    )


def load_prompt(path: str | os.PathLike[str]) -> OptimizedPrompt:
    """Read what :meth:`OptimizedPrompt.save` wrote.

    Args:
        path: The JSON file.

    Raises:
        InvalidParameter: The file is not such a JSON object, or its template or words were edited and are none now.
        FileNotFoundError: There is no such file.

    Examples:
        >>> optimized = load_prompt("prompt.json")
        >>> print(optimized.certificate)
        >>> chain = optimized.template() | model
    """
    name = Path(path).name
    try:
        found = _PromptForm.read(Path(path).read_bytes())
    except ValueError as error:
        fields = ", ".join(_PromptForm.model_fields)
        raise InvalidParameter(
            f"Expected {name} to be a JSON object with {fields}: this is no saved prompt ({error})."
        ) from None
    candidates = tuple(Candidate(**dict(each)) for each in found.candidates)
    certificate = PrivacyCertificate.from_dict(found.certificate)
    made = OptimizedPrompt(**{**dict(found), "certificate": certificate, "candidates": candidates})
    try:
        label_words(named_words(made.words), list(made.words))
        made.template()
    except ValueError as error:
        raise InvalidParameter(f"Expected {name} to hold a template and words as they were saved ({error}).") from None
    return made


class _CandidateForm(Form):
    text: str
    dropped: str = ""
    label: str = ""


class _PromptForm(Form):
    prompt: str
    instruction: str
    certificate: dict[str, Any]
    settings: dict[str, Any]
    model: dict[str, str]
    created: str
    system: str = ""
    candidates: tuple[_CandidateForm, ...] = ()
    descriptions: dict[str, str] = pydantic.Field(default_factory=dict)
    words: dict[str, str] = pydantic.Field(default_factory=dict)


def evaluate_prompt(
    prompt: ChatPromptTemplate | OptimizedPrompt,
    model: Runnable[Any, Any],
    rows: Examples,
    labels: Sequence[Any],
    *,
    words: Mapping[str, str] | None = None,
    max_concurrency: int = CALLS,
) -> PromptScore:
    """Score a prompt on test rows with any chat model.

    The rows go to the model, and to nobody else: no callback, cache or tracer sees them.

    Args:
        prompt: What :class:`DPPromptOptimizer` returned, or its result, whose template is taken.
        model: The model that the prompt was handed to.
        rows: Mappings with the prompt's variables and ``label``; or a DataFrame, a dataset or a path, as of examples.
        labels: The public labels.
        words: Label -> word that the model is asked for, as in ``OptPrompts.words``; by default what the prompt's own
            metadata say.
        max_concurrency: Most calls at a time.

    Raises:
        InvalidParameter: There are no rows, or one lacks a variable, a text or a known label; or words are given for
            other labels, or the result of an optimizer has others.
        ModelUnavailable: The model answered no row at all.

    Examples:
        >>> prompt = optimizer.invoke(rows)
        >>> score = evaluate_prompt(prompt, model, test_rows, LABELS)
        >>> print(score)
        >>> print(score.table())
    """
    labels = check_labels(labels)
    if isinstance(prompt, OptimizedPrompt):
        if prompt.words and set(prompt.words) != set(labels):
            raise InvalidParameter(f"Expected labels={list(labels)} to be those of the prompt: {list(prompt.words)}.")
        prompt = prompt.template()
    if not isinstance(prompt, ChatPromptTemplate):
        raise InvalidParameter(f"Expected prompt of type {type(prompt).__name__} to be a ChatPromptTemplate.")
    if isinstance(rows, PrivateRecords):
        rows = [rows.get(name) for name in rows.ids()]
    asked = [fields_of(row) or {} for row in rows_of(rows)]
    validate.integer("number of rows", len(asked), at_least=1)
    truths = [_truth(row, position, prompt.input_variables, labels) for position, row in enumerate(asked)]
    given = words if words is not None else (prompt.metadata or {}).get("words", {})
    shown = label_words(named_words(given), labels)
    messages = [prompt.format_messages(**{name: row[name] for name in prompt.input_variables}) for row in asked]
    # Accuracy on rows of one's own is no release, so the caller's word is enough.
    answers = QuietModel(model, max_concurrency=max_concurrency, accept_unchecked_model=True).batch(messages)
    if all(answer is None for answer in answers):
        new = QuietModel(model, accept_unchecked_model=True)  # one that has seen no row may say why
        new.probe(prompt.format_messages(**dict.fromkeys(prompt.input_variables, "A public test.")))
        raise ModelUnavailable(
            f"Expected the model to answer, but it failed on each of {len(asked):,} rows. Check it: it is asked by "
            "invoke(), not by ainvoke()."
        )
    named = [None if answer is None else parse_label(answer, shown) for answer in answers]
    return PromptScore.of(named, truths, labels)


def _truth(row: Mapping[str, Any], position: int, variables: Sequence[str], labels: Sequence[str]) -> str:
    """Label of a test row that fits."""
    if "label" not in row:
        raise InvalidParameter(f"Expected test row {position} to have its label under 'label'. Rename the field.")
    label = label_name(row.get("label"))
    if fault := row_fault({**row, "label": label}, labels, variables, whose="prompt"):
        raise InvalidParameter(placed(fault, f"test row {position}"))
    return str(label)
