"""What do texts of one label have in common? Subsets show their records of one label, and describe it in a few words.

The released descriptions are a glossary: lines of the instruction that say what each label means. So a model learns
from private records what no model can know, such as which team the tickets of "team A" go to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from langchain_dp._util import validate
from langchain_dp.ensemble.subsets import Subset
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.filters import echoes
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.ports import MemberPrompt
from langchain_dp.records import PrivateRecords

_EMPTY = """
a an and are be been belong belongs folder folders following here in into it of or same sorted texts text that the there
these they this those to topic topics various different category categories was were which
"""
_META = frozenset(_EMPTY.split())
"""Words that describe no folder, however they are put together."""


@dataclasses.dataclass(frozen=True)
class Glossary:
    """How ``method="glossary"`` asks for descriptions. Public; ``dataclasses.asdict`` saves it.

    Args:
        show_labels: Tell the model the name of the label that it describes. Without, it sees a folder of texts: for
            names that mislead, or say nothing.
        opening: What stands before the texts. With ``show_labels``, ``{label}`` stands for the name.
        question: What stands after them.
        cue: After what the model goes on where it is asked in plain text; in a chat template it just answers.

    Raises:
        InvalidParameter: A text is empty.

    Examples:
        >>> Glossary(show_labels=True).show_labels
        True
    """

    show_labels: bool = False
    opening: str = "These texts were sorted into the same folder{label}:"
    question: str = "What kind of texts are in this folder? Answer with a short list of topics, not with a sentence."
    cue: str = "Answer:"

    def __post_init__(self) -> None:
        validate.one_of("show_labels", self.show_labels, (True, False))
        for name in ("opening", "question", "cue"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise InvalidParameter(f"Expected {name}={getattr(self, name)!r} to be a sentence.")

    def asking(self, word: str, *, chat: bool) -> LabelRequest:
        """The public texts around the records of one label, whose word is ``word``."""
        shown = f', "{word}"' if self.show_labels else ""
        tail = self.question if chat else f"{self.question}\n{self.cue}"
        return LabelRequest(self.opening.replace("{label}", shown) + "\n\n", tail)


@dataclasses.dataclass(frozen=True)
class LabelRequest:
    """Public texts around the records of one label.

    Args:
        head: What stands before them.
        tail: What stands after them.
    """

    head: str
    tail: str

    def body(self, texts: Sequence[str]) -> str:
        """The private part: one text a line. What breaks lines in a text becomes a blank."""
        return "".join(f"- {' '.join(text.split())}\n" for text in texts) + "\n"

    def whole(self, texts: Sequence[str]) -> str:
        """The whole prompt."""
        return self.head + self.body(texts) + self.tail


class LabelTexts:
    """Shows, of each subset, the records of one label. A subset without any is not asked.

    What a subset shows depends on its own records and on the public label alone.

    Args:
        records: All records.
        prompts: Templates.
        labels: Public labels; text number i of a run describes label i.
        asking: What stands around the records of each.
    """

    apart = True
    """Each text of a run shows other records: caches do not outlive it."""

    def __init__(
        self, records: PrivateRecords, prompts: OptPrompts, labels: Sequence[str], asking: Sequence[LabelRequest]
    ) -> None:
        self._records = records
        self._prompts = prompts
        self._labels = list(labels)
        self._asking = list(asking)

    def members(self, subsets: Sequence[Subset], message: int) -> list[MemberPrompt]:
        """Prompts of the subsets that hold records of label number ``message``. Private, as is their number."""
        asking = self._asking[message]
        found = []
        for subset in subsets:
            rows = [self._records.get(name) for name in subset.record_ids]
            texts = [self._prompts.render(row) for row in rows if str(row["label"]) == self._labels[message]]
            if texts:
                key = (subset.member, message)
                found.append(MemberPrompt(asking.head, asking.body(texts), asking.tail, key))
        return found


def description_fault(text: str, glossary: Glossary, *, complete: bool = True) -> str:
    """Why a released description does not go into a glossary; empty if it does. Of released text alone: free.

    Args:
        text: The description.
        glossary: How it was asked for.
        complete: Whether the model ended it; a text that ran into its last token is complete if more than one word
            of it stands.

    Examples:
        >>> description_fault("", Glossary())
        'it has no text'
    """
    words = re.findall(r"\w+", text)
    if not words:
        return "it has no text"
    if echoes(text, [glossary.opening, glossary.question]):
        return "it repeats the request"
    if {word.casefold() for word in words} <= _META:
        return "it says nothing of the texts"
    return "" if complete or len(words) > 1 else "it stops in mid-sentence"


def line_of(word: str, description: str) -> str:
    """One line of a glossary."""
    return f"{word}: {description}" if description else word


def with_glossary(instruction: str, words: Sequence[str], descriptions: Mapping[str, str]) -> str:
    """The instruction with a line for every label; a word without a description stands alone."""
    return "\n".join([instruction, *(line_of(word, descriptions.get(word, "")) for word in words)])
