"""The released instruction as a prompt for any chat model, and as a file."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_dp._util.documents import Form
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.accounting.provenance import ReleasedText, released
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.candidates import Candidate, PromptChoice
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.parsing import label_parser
from langchain_dp.ports import HasFile, NextTokenVoter
from langchain_dp.records import label_words, named_words


@dataclasses.dataclass(frozen=True)
class OptimizedPrompt:
    """A released prompt with its certificate and history. It holds no private value.

    Args:
        prompt: The forward prompt as an f-string template. With ``system``, the human message.
        instruction: The selected instruction.
        certificate: The guarantee. ``private`` is False for non-private methods.
        settings: Public settings of the run.
        model: ``name`` of the writing model, and ``sha256`` of its file, if any.
        created: Time of the release, ISO 8601, UTC.
        system: Template of the system message, or "".
        candidates: All written texts, also dropped ones.
        words: Label -> word that the prompt asks for.

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
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        costs = self.certificate.as_sources()
        for name in ("prompt", "instruction", "system"):
            object.__setattr__(self, name, ReleasedText(getattr(self, name), costs))
        object.__setattr__(self, "words", released(self.words, costs))
        candidates = [dataclasses.replace(each, text=ReleasedText(each.text, costs)) for each in self.candidates]
        object.__setattr__(self, "candidates", tuple(candidates))

    def __or__(self, other: Any) -> Runnable[Any, Any]:
        chain: Runnable[Any, Any] = self.template() | other
        return chain

    def __ror__(self, other: Any) -> Runnable[Any, Any]:
        chain: Runnable[Any, Any] = other | self.template()
        return chain

    def choices(self) -> list[PromptChoice]:
        """Return the initial prompt, the selected one, and the other usable ones."""
        prompts, labels = OptPrompts(**self.settings["templates"]), self.settings["labels"]
        initial = PromptChoice(self.settings["instruction"], tuple(map(prompts.word, labels)))
        selected = PromptChoice(self.instruction, tuple(self.words.get(label, prompts.word(label)) for label in labels))
        others = [PromptChoice(each.text, initial.words) for each in self.candidates if not each.dropped]
        for each in self.settings.get("alternatives", ()):
            words = tuple(
                each.get("words", {}).get(label, word) for label, word in zip(labels, initial.words, strict=True)
            )
            others.append(PromptChoice(each.get("instruction") or initial.instruction, words))
        return list(dict.fromkeys([initial, selected, *others]))

    def with_choice(self, choice: PromptChoice) -> OptimizedPrompt:
        """Return this result with another of its :meth:`choices`, at no cost."""
        laid = _laid(OptPrompts(**self.settings["templates"]), self.settings["labels"], choice)
        return dataclasses.replace(self, **laid)

    def template(self) -> ChatPromptTemplate:
        """Return the prompt as a template. ``metadata["dp"]`` is the certificate."""
        before = [("system", self.system)] if self.system else []
        template = ChatPromptTemplate.from_messages([*before, ("human", self.prompt)])
        template.metadata = {"dp": self.certificate.to_dict()}
        if any(label != word for label, word in self.words.items()):
            template.metadata["words"] = dict(self.words)
        return template

    def chain(self, model: Runnable[Any, Any]) -> Runnable[Any, str]:
        """Return ``template() | model``, with answers translated to labels.

        Raises:
            OutputParserException: An answer names no label or several.
        """
        return self.template() | model | label_parser(self.words)

    def __str__(self) -> str:
        return f"{self.instruction}\n\n{self.certificate}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        mappings = {name: dict(fields[name]) for name in ("settings", "model", "words")}
        candidates = [dataclasses.asdict(candidate) for candidate in self.candidates]
        return {**fields, **mappings, "certificate": self.certificate.to_dict(), "candidates": candidates}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON atomically. Only its owner may read a non-private prompt, which may hold rows."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_whole(Path(path), text, owner_only=not self.certificate.private)


def described(
    engine: NextTokenVoter,
    settings: Settings,
    choice: PromptChoice,
    certificate: PrivacyCertificate,
    candidates: Sequence[Candidate] = (),
    **derived: float,
) -> OptimizedPrompt:
    model = {"name": engine.name}
    if isinstance(engine, HasFile):
        model["sha256"] = engine.file_sha256()
    return OptimizedPrompt(
        certificate=certificate,
        settings={**settings.public(), **derived},
        model=model,
        candidates=tuple(candidates),
        **_laid(settings.prompts, settings.labels, choice),
    )


def _laid(prompts: OptPrompts, labels: Sequence[str], choice: PromptChoice) -> dict[str, Any]:
    head, rest = prompts.forward_parts(choice.instruction, choice.words)
    return {
        "prompt": rest if prompts.system else head + rest,
        "instruction": choice.instruction,
        "system": head.rstrip("\n") if prompts.system else "",
        "words": dict(zip(labels, choice.words, strict=True)),
    }


def load_prompt(path: str | os.PathLike[str]) -> OptimizedPrompt:
    """Read the file ``path`` of :meth:`OptimizedPrompt.save`.

    Raises:
        InvalidParameter: The file is no saved prompt, or its template or words are invalid.
        FileNotFoundError: There is no such file.

    Examples:
        >>> optimized = load_prompt("prompt.json")
        >>> print(optimized.certificate)
        >>> chain = optimized.template() | model
    """
    name = Path(path).name
    try:
        form = _PromptForm.read(Path(path).read_bytes())
    except ValueError as error:
        fields = ", ".join(_PromptForm.model_fields)
        raise InvalidParameter(
            f"Expected {name} to be a JSON object with {fields}: this is no saved prompt ({error})."
        ) from None
    candidates = tuple(Candidate(**dict(each)) for each in form.candidates)
    certificate = PrivacyCertificate.from_dict(form.certificate)
    prompt = OptimizedPrompt(**{**dict(form), "certificate": certificate, "candidates": candidates})
    try:
        label_words(named_words(prompt.words), list(prompt.words))
        prompt.template()
    except ValueError as error:
        raise InvalidParameter(f"Expected {name} to hold a template and words as they were saved ({error}).") from None
    return prompt


class _CandidateForm(Form):
    text: str
    dropped: str = ""
    cut: str = ""


class _PromptForm(Form):
    prompt: str
    instruction: str
    certificate: dict[str, Any]
    settings: dict[str, Any]
    model: dict[str, str]
    created: str
    system: str
    candidates: tuple[_CandidateForm, ...]
    words: dict[str, str]
