"""Names from descriptions, and labels back from answers."""

from __future__ import annotations

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage

from langchain_dp.ensemble.naming import label_parser, names_of, told_alike


@pytest.mark.parametrize(
    ("descriptions", "names"),
    [
        ({"A": "sports", "B": "money"}, ["sports", "money"]),
        ({"A": "Sports news, including soccer and tennis", "B": "Money: banks"}, ["Sports news", "Money"]),
        ({"A": " *Late parcels.* ", "B": "'thanks'!"}, ["Late parcels", "thanks"]),
        ({"A": "one two three four five six", "B": "x"}, ["one two three four", "x"]),
        ({"A": "", "B": "money"}, ["A", "money"]),
        ({"A": "2018", "B": "- ..."}, ["A", "B"]),
        # two that begin alike take more words, and two that are alike keep their labels
        ({"A": "sports, football", "B": "Sports, tennis"}, ["sports, football", "Sports, tennis"]),
        ({"A": "news", "B": "News"}, ["A", "B"]),
        ({"A": "sports, football", "B": "sports"}, ["A", "sports"]),
        # a name that another label has as its own would send its answers there
        ({"A": "B", "B": ""}, ["A", "B"]),
        ({"A": "b", "B": "money"}, ["A", "money"]),
        ({}, ["A", "B"]),
        # a name that begins with another one: "sports" is always at least as likely as "sports betting"
        ({"A": "sports", "B": "sports betting, and odds"}, ["sports", "B"]),
        ({"A": "sports", "B": "sportswear"}, ["sports", "sportswear"]),
        ({"A": "体育", "B": "体育新闻"}, ["体育", "B"]),
        ({"A": "体育新闻\uff0c包括足球", "B": "财经、银行"}, ["体育新闻", "财经"]),
    ],
)
def test_names_are_short_and_all_different(descriptions: dict[str, str], names: list[str]) -> None:
    """If it breaks, an answer stands for two labels, or for one that it does not name."""
    found = names_of(["A", "B"], descriptions)
    assert found == dict(zip(["A", "B"], names, strict=True))
    assert len({name.casefold() for name in found.values()}) == 2


def test_three_that_collide_end_with_names_of_their_own() -> None:
    """If it breaks, falling back from one name meets another one for ever, or leaves two alike."""
    labels = ["A", "B", "C", "D"]
    said = {"A": "x, y", "B": "x, z", "C": "x", "D": "X, Y"}
    found = names_of(labels, said)
    assert list(found) == labels
    assert len({name.casefold() for name in found.values()}) == 4


@pytest.mark.parametrize(
    ("descriptions", "groups"),
    [
        ({"A": "shopping", "B": "Shopping."}, ["'A' and 'B' "]),
        ({"A": "shopping", "B": "travel", "C": "online shopping"}, ["'A' and 'C' "]),
        ({"A": "shoes, clothes", "B": "clothes and shoes", "C": "x", "D": "X"}, ["'A' and 'B' ", "'C' and 'D' "]),
        ({"A": "sport", "B": "news", "C": "sport news"}, ["'A' and 'C' "]),
        ({"A": "sport", "B": "sport", "C": "sport news"}, ["'A', 'B' and 'C' "]),
        ({"A": "shopping travel", "B": "shopping", "C": "travel"}, ["'A' and 'B' "]),
        ({"A": "sports", "B": "sportswear"}, []),
        ({"A": "", "B": "2018", "C": "money"}, []),
        ({"team A": "team A", "team B": "a team of players"}, []),  # the first was dropped
        ({}, []),
    ],
)
def test_labels_that_were_described_alike_are_named(descriptions: dict[str, str], groups: list[str]) -> None:
    """If it breaks, two labels of which the same was said go on as if the descriptions told a model what they mean."""
    found = told_alike(descriptions)
    assert len(found) == len(groups)
    assert all(line.startswith(f"{group}were described alike") for line, group in zip(found, groups, strict=True))


def test_an_answer_gives_its_label_back() -> None:
    """If it breaks, whoever asks by names gets names, or another label."""
    parser = label_parser({"team A": "sports", "team B": "sports business"})
    assert parser.invoke(AIMessage("Sports.")) == "team A"
    assert parser.invoke("Topic: sports business") == "team B"


@pytest.mark.parametrize("answer", ["cooking SECRET", "", "sports or money SECRET"])
def test_an_answer_that_names_none_is_an_error_without_it(answer: str) -> None:
    """If it breaks, a guess stands for a label, or an answer is repeated in a log."""
    with pytest.raises(OutputParserException, match="sports") as caught:
        label_parser({"team A": "sports", "team B": "money"}).invoke(answer)
    assert "SECRET" not in str(caught.value)
