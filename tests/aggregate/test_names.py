"""Names by counts: right on rows of news, of any public list, once per user; released with their price."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from fakes.encoders import WORDS, WordEncoder, named, rows
from langchain_core.language_models import FakeListChatModel

from langchain_dp import DPLabelNamer, Neighbors, PrivacyBudget
from langchain_dp.errors import InvalidParameter, ModelUnavailable

NEWS = {
    "A": ["The striker scored twice in the cup final", "The coach praised the team after the match"],
    "B": ["Shares fell as the central bank raised rates", "The company's profit rose in the third quarter"],
    "C": ["Scientists launched a telescope into orbit", "A faster processor for computers was unveiled"],
    "D": ["Voters go to the polls in the general election", "The minister resigned over the scandal in his party"],
}
TOPICS = {
    "sports": "games, teams, players and matches",
    "business": "companies, markets, profits and banks",
    "science": "research, computers, space and inventions",
    "politics": "governments, elections, ministers and parties",
    "cooking": "recipes and food",
    "gardening": "plants and soil",
}


def test_news_gets_its_names_by_the_default_encoder() -> None:
    """If it breaks, codes get wrong names at epsilon 3: sixty records lead, where six are enough 99 times in 100."""
    news = [{"text": NEWS[label][i % 2], "label": label} for label in NEWS for i in range(60)]
    found = DPLabelNamer(TOPICS).fit(news, labels=list(NEWS), budget=PrivacyBudget(3.0), not_private_seed=1)
    assert list(found.names.values()) == list(TOPICS)[:4]
    assert found.margin == 5
    assert "leads by 5 records" in str(found)
    default = DPLabelNamer().fit(news, labels=list(NEWS), budget=PrivacyBudget(3.0), not_private_seed=1)
    assert len(set(default.names.values())) == 4
    assert all(": " in text or text == label for label, text in default.descriptions.items())


def test_words_of_any_list_name_labels_by_the_records() -> None:
    """If it breaks, names depend on the order of the list, or descriptions are lost."""
    for words in (WORDS, dict(reversed(WORDS.items()))):
        found = named(words=words)
        assert found.names == {"A": "delivery", "B": "billing"}
        assert found.descriptions == {"A": "delivery: a parcel is late", "B": "billing: an invoice"}
        assert (found.certificate.epsilon, found.certificate.remaining) == (3.0, 0)
        assert any("delta 0" in note for note in found.certificate.notes)


def test_a_label_that_fits_nothing_keeps_its_own_name() -> None:
    """If it breaks, "none of these" becomes a label's name, or texts that the encoder fails on vote for a topic."""
    broken = WordEncoder(before=lambda text: 1 / 0 if "zqx" in text else None)
    found = named(rows(note="zqx"), encoder=broken)
    assert found.names == found.descriptions == {"A": "A", "B": "B"}
    few = named(words={"parcel": "", "invoice": ""}, labels=["A", "B", "C", "D", "E"])
    assert len({few.names[label] for label in "AB"}) == 2
    assert sum(name in ("parcel", "invoice") for name in few.names.values()) <= 2, "no name twice"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["one"],
        "a str",
        ["a", "A "],
        ["a", ""],
        ["a", 3],
        {"a": 3, "b": ""},
        ["none of these", "a"],
        [f"topic {i}" for i in range(600)],
    ],
)
def test_a_list_that_names_nothing_is_refused(words: Any) -> None:
    """If it breaks, a slip in the list costs the budget."""
    with pytest.raises(InvalidParameter, match="words"):
        DPLabelNamer(words, encoder=WordEncoder())


class Chat(FakeListChatModel):
    """Names the topic of a text by its word; fails on what it does not know."""

    keeps_no_prompts: ClassVar[bool] = True
    responses: list[str] = [""]
    asked: ClassVar[list[str]] = []

    def _call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self.asked.append(messages[0].content)
        text = messages[0].content.rpartition("Text: ")[2]
        known = {"parcel": "Delivery.", "invoice": "billing", "weather": "the weather", "test": "billing"}
        return next(name for word, name in known.items() if word in text)


def test_a_model_votes_on_each_record_alone() -> None:
    """If it breaks, a call sees two records, or one that fails ends the release after its charge."""
    Chat.asked.clear()
    examples = [*rows(60), {"text": "football 1", "label": "A"}, {"text": "weather 2", "label": "A"}]
    namer = DPLabelNamer(WORDS, model=Chat())
    assert namer.fit(examples, labels=["A", "B"], budget=PrivacyBudget(3.0)).names == {"A": "delivery", "B": "billing"}
    private = [text.rpartition("Text: ")[2] for text in Chat.asked if "This is a test." not in text]
    assert sorted(private) == sorted(row["text"] for row in examples)
    with pytest.raises(ModelUnavailable):
        DPLabelNamer(["a", "b"], model=FakeListChatModel(responses=[])).fit(
            examples, labels=["A", "B"], budget=PrivacyBudget(1.0)
        )


def test_add_remove_halves_the_price_of_a_vote() -> None:
    """If it breaks, lambda does not follow the neighbors, and a promise is broken or wasted."""
    namer = DPLabelNamer(WORDS, encoder=WordEncoder())
    lambdas = [
        namer.fit(rows(), labels=["A", "B"], budget=PrivacyBudget(1.0, 1e-5, relation)).certificate.parameters["lambda"]
        for relation in (Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE)
    ]
    assert lambdas == [0.5, 1.0]
    assert [namer.margin(PrivacyBudget(eps)) for eps in (0.5, 1.0, 3.0)] == [24, 12, 4]
