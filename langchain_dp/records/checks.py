"""Labels under one name each, and whether a record fits labels and a template."""

from __future__ import annotations

import enum
import numbers
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import TypeVar

from langchain_dp.errors import InvalidParameter

Label = TypeVar("Label", bound=str | int | enum.Enum, default=str)
"""Any label."""
TEXT_OR_NUMBER = (str, numbers.Number)
"""A template shows these unchanged."""
_LONG = 10**40
"""Python refuses to write numbers of more than 4,300 digits."""
_SHOWN = 300


def label_name(label: object) -> str | None:
    """Return a label's string: NFC text, a number as written, an Enum's value or name."""
    if isinstance(label, enum.Enum):
        label = label.value if isinstance(label.value, str) else label.name
    elif type(label).__module__ == "numpy" and getattr(label, "ndim", 1) == 0:  # a scalar out of a table
        label = label.item() if hasattr(label, "item") else None
    if isinstance(label, int):
        return str(int(label) if type(label) is not bool else label) if abs(label) < _LONG else None
    return unicodedata.normalize("NFC", exact(label)) if isinstance(label, str) and label else None


def named_words(words: object) -> dict[str, str]:
    if not isinstance(words, Mapping):
        raise InvalidParameter(f"Expected words of type {type(words).__name__} to map labels to words.")
    for label, word in words.items():
        text = word.strip() if isinstance(word, str) and encodable(word) else ""
        if label_name(label) is None or not text or "\n" in text:
            raise InvalidParameter(
                f"Expected words to be one line of text by label, not {label!r}: {word!r}. Write for example "
                "{'human': 'person'}."
            )
    if len({word.strip().casefold() for word in words.values()}) < len(words):
        raise InvalidParameter("Expected the words of labels to differ in more than case, but two labels share one.")
    return {str(label_name(label)): word.strip() for label, word in words.items()}


def label_words(given: Mapping[str, str], labels: Sequence[str]) -> list[str]:
    # A template may know more labels than are asked for. Another spelling is an error.
    written = {label.strip().casefold() for label in labels}
    unknown = [label for label in given if label not in labels]
    if unknown and (len(unknown) == len(given) or written & {label.strip().casefold() for label in unknown}):
        raise InvalidParameter(
            f"Expected words or names of labels alone, but {unknown} are not in labels={list(labels)}. Write them as "
            "the labels are written."
        )
    words = [given.get(label, label) for label in labels]
    if broken := [word for word in words if len(word.splitlines()) > 1]:
        raise InvalidParameter(
            f"Expected the words of the labels to be one line each, as an answer is, not {broken}. Rename them, or "
            "give words= of the template."
        )
    if len({" ".join(word.casefold().split()) for word in words}) < len(words):
        raise InvalidParameter(
            f"Expected the labels' words {words} to differ in more than case and blanks. Rename a label."
        )
    return words


def given_labels(labels: Iterable[Label], *, at_least: int = 2) -> dict[str, Label]:
    """Return name -> label, in the public order."""
    if isinstance(labels, Mapping):
        raise InvalidParameter(
            "Expected labels to be a list, not a mapping. Words that stand for labels in a prompt are words= of its "
            "template: give labels=list(labels)."
        )
    if isinstance(labels, (set, frozenset)):
        raise InvalidParameter(
            "Expected labels to be a list, not a set: their order is part of the release, and that of a set is another "
            "one in every process. Give labels=sorted(labels)."
        )
    listed = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)) else [None]
    names = [label_name(label) for label in listed]
    if (
        not all(name is not None and name.strip() and encodable(name) for name in names)
        or len({_kind(label) for label in listed}) > 1
    ):
        raise InvalidParameter(
            f"Expected labels{_shown(labels)} to be a list such as ['praise', 'complaint']: non-empty strings, or "
            "whole numbers, bools or members of an Enum."
        )
    _check_distinct(listed)
    if len(names) < at_least or len(set(names)) < len(names):
        many = "two labels" if at_least > 1 else "one label"
        raise InvalidParameter(f"Expected labels{_shown(listed)} to hold at least {many}, each once. Name them all.")
    return {str(name): _plain(label) for name, label in zip(names, listed, strict=True) if label is not None}


def _check_distinct(labels: Sequence[object]) -> None:
    met: dict[str, str] = {}
    for label in labels:
        written = exact(label.value if isinstance(label, enum.Enum) else label)
        if not isinstance(written, str):
            continue
        other = met.setdefault(as_seen(written), written)
        if other != written:
            pair = f": {other!a} and {written!a}" if len(repr(labels)) <= _SHOWN else ""  # as for _shown
            raise InvalidParameter(
                f"Expected labels that can be told apart, but two of them look alike{pair}. Remove one, or rename it."
            )


def as_seen(label: str) -> str:
    """Drop everything invisible from a label."""
    # Joiners, marks of direction, soft hyphens and other controls of format, and variation selectors.
    letters = unicodedata.normalize("NFC", label)
    seen = "".join(one for one in letters if unicodedata.category(one) != "Cf" and not "\ufe00" <= one <= "\ufe0f")
    return " ".join(unicodedata.normalize("NFC", seen).split())


def _plain(label: Label) -> Label:
    made: Label = label.item() if hasattr(label, "item") and not isinstance(label, enum.Enum) else label
    return made


def check_labels(labels: Iterable[Any], *, at_least: int = 2) -> tuple[str, ...]:
    return tuple(given_labels(labels, at_least=at_least))


def _kind(label: object) -> type:
    kinds: tuple[type, ...] = (str, enum.Enum, bool)
    return next((kind for kind in kinds if isinstance(label, kind)), int)


def _shown(labels: object) -> str:
    """Show labels, but not a private column given by mistake."""
    shown = repr(labels)
    return f"={shown}" if len(shown) <= _SHOWN else f" of type {type(labels).__name__}"


def row_fault(
    row: Mapping[str, Any],
    labels: Collection[str] | None,
    variables: Iterable[str],
    *,
    whose: str = "template",
    plain: bool = False,
) -> str:
    """Return why a record does not fit, or "". ``{where}`` stands for its position."""
    if labels is not None and row["label"] not in labels:
        known = f"Expected the label of {{where}} to be one of labels={list(labels)}"
        if isinstance(row["label"], str) and _plainly(row["label"]) in map(_plainly, labels):
            return (
                f"{known}, but it differs in capitals, in white space, or in characters that nobody sees. Make them "
                "alike."
            )
        if str(row["label"]).isdecimal() and not any(label.isdecimal() for label in labels):
            return f"{known}, but it is a number. Give the numbers as labels=, or their names as label."
        return f"{known}. Add it, repair the example, or name another key with label_key= of PrivateRecords."
    missing = [variable for variable in variables if variable not in row or is_missing(row[variable])]
    if missing:
        return f"Expected {{where}} to have the {whose}'s keys, but {missing} are missing. Add them."
    odd = [variable for variable in variables if plain and not isinstance(row[variable], TEXT_OR_NUMBER)]
    if odd:
        return f"Expected {odd} of {{where}} to be text or numbers. Convert them first."
    unfit = [variable for variable in variables if not _says(row[variable])]
    if unfit:
        return f"Expected {unfit} of {{where}} to be text that UTF-8 can hold. Convert it first."
    return ""


def _plainly(label: str) -> str:
    return as_seen(label).casefold()


_PEOPLE = re.compile(
    "(user|customer|client|patient|account|author|sender|e-?mail|member|person|owner)"
    "s?([ _-]?(id|uid|uuid|guid|name|key|number|num|no|code|ref|address|phone|hash|login))?$",
    re.IGNORECASE,
)


def column_of_people(columns: Iterable[object]) -> str | None:
    """Return the first column that may name a person, by its name alone."""
    return next((name for name in columns if isinstance(name, str) and _PEOPLE.search(name)), None)


def is_missing(value: object) -> bool:
    no_number = isinstance(value, numbers.Number) and value != value
    return value is None or bool(no_number) or type(value).__name__ in _NOTHING


_NOTHING = ("NAType", "NaTType")


def _says(value: object) -> bool:
    try:
        return encodable(str(value))
    except Exception:  # any error refuses it
        return False


def exact(value: Any) -> Any:
    """Return a plain string: an enum's may be written differently."""
    return str.__str__(value) if isinstance(value, str) else value


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
