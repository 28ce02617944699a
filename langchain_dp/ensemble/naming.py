"""Names for labels that mean nothing, such as "team A": taken from what was released of their texts.

A model that has to answer "team A" must remember which topic that stands for; a small one does not. Asked for the topic
itself it answers as well as under the true names, and the label is put back afterwards. Names are functions of public
and released text alone: they cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp._util.words import ENDS
from langchain_dp.ensemble.describing import telling
from langchain_dp.parsing import parse_label

_PHRASE = re.compile(r"[,;:.()\[\]/\n\u3001\u3002\uff0c\uff1b\uff1a\uff08\uff09]|\s(?:including|such as|like|e\.g)\b")
_EDGES = " \t\"'`*_-"
_SHORT, _LONG = 4, 8
"""Words of a name at most, and of one that a shorter one would not tell from another."""


def names_of(labels: Sequence[str], descriptions: Mapping[str, str]) -> dict[str, str]:
    """Label -> name: the first words of its description, or more of them where two begin alike, or the label itself.

    Args:
        labels: The public labels.
        descriptions: What was released of them; a label may be missing, or its description empty.

    Returns:
        Names that differ in more than case.

    Examples:
        >>> names_of(["A", "B", "C"], {"A": "Sports news, including soccer", "B": "money", "C": ""})
        {'A': 'Sports news', 'B': 'money', 'C': 'C'}
    """
    choices = {label: _choices(label, descriptions.get(label, "")) for label in labels}
    names = {label: next(found) for label, found in choices.items()}
    while twice := [label for label, name in names.items() if _is_taken(label, name, names)]:
        names |= {label: next(choices[label]) for label in twice}
    return names


def _choices(label: str, description: str) -> Iterator[str]:
    """Names of a label, the best one first; the last one is its own."""
    phrase, whole = _PHRASE.split(f"{description.strip(_EDGES)} ", maxsplit=1)[0], description
    for text, most in ((phrase, _SHORT), (whole, _LONG)):
        name = " ".join(text.split()[:most]).strip(_EDGES + ",;:.!?")
        if re.search(r"[^\W\d_]", name):
            yield name
    while True:
        yield label


def _is_taken(label: str, name: str, names: Mapping[str, str]) -> bool:
    """Whether another label has this name, or is called so, or has one that this one begins with.

    Of two names that begin alike a model never says the longer one with more certainty. A label that stands for itself
    keeps its own.
    """
    if name == label:
        return False
    own, others = name.casefold(), [found.casefold() for other, found in names.items() if other != label]
    called = [other.casefold() for other in names if other != label]
    return own in [*others, *called] or any(re.match(re.escape(other) + ENDS, own) for other in [*others, *called])


def told_alike(descriptions: Mapping[str, str]) -> list[str]:
    """A line for every group of labels of which the same was said, and what to do; none where all are told apart.

    Args:
        descriptions: Label -> what was released of it. One that has no word which another lacks says nothing of its
            own. A label that has none, or stands for itself, is like no other.

    Examples:
        >>> told_alike({"A": "shopping", "B": "Online shopping", "C": "travel"})[0].split(":")[0]
        "'A' and 'B' were described alike"
    """
    said = {label: own for label, text in descriptions.items() if text != label and (own := telling(text))}
    groups: list[list[str]] = []
    for label, own in said.items():
        like = (group for group in groups if all(own <= said[one] or said[one] <= own for one in group))
        group = next(like, None)
        if group is None:
            groups.append([label])
        else:
            group.append(label)
    return [
        f"{', '.join(map(repr, group[:-1]))} and {group[-1]!r} were described alike: nothing there tells them apart. "
        "Ask for another kind of description than this, or say in your own words what they mean."
        for group in groups
        if len(group) > 1
    ]


def label_parser(words: Mapping[str, str]) -> Runnable[Any, str]:
    """A Runnable from a model's answer to the label whose word it names.

    Args:
        words: Label -> word that the model was asked for.

    Returns:
        A Runnable that takes a message or a text. It raises LangChain's ``OutputParserException`` where no label is
        named, or several; the error repeats no answer.

    Examples:
        >>> label_parser({"team A": "sports", "team B": "business"}).invoke("Sports.")
        'team A'
    """
    labels, shown = list(words), list(words.values())

    def label(answer: Any) -> str:
        place = parse_label(answer, shown)
        if place is None:
            raise OutputParserException(f"Expected the answer to name one of {shown}. Ask again, or take it for none.")
        return labels[place]

    return RunnableLambda(label, name="label_parser")
