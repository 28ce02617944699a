"""The Presidio adapter: against a double of its analyzer, and against Presidio itself where that is installed."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest
from langchain_dp.integrations.presidio import PresidioEntities

from langchain_dp import Pseudonymizer
from langchain_dp.errors import InvalidParameter

TEXT = "ticket T-1234 of Bob, card 4111111111111111"


@dataclasses.dataclass
class Found:
    start: int
    end: int
    entity_type: str
    score: float = 0.9


class Analyzer:
    """Answers as an ``AnalyzerEngine`` does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def analyze(self, **asked: Any) -> list[Found]:
        self.asked.append(asked)
        return [Found(7, 13, "TICKET_ID"), Found(17, 20, "PERSON")]


def test_what_the_analyzer_finds_is_hidden() -> None:
    """If it breaks, entities are looked for with other settings than the caller's, or cut in the wrong places."""
    analyzer = Analyzer()
    made = Pseudonymizer(
        PresidioEntities(analyzer, entities=["PERSON", "TICKET_ID"], language="de", score_threshold=0.4)
    )
    hidden = made.invoke(TEXT)
    assert hidden == "ticket <TICKET_ID_1> of <PERSON_1>, card 4111111111111111"
    assert made.restore(hidden) == TEXT
    assert analyzer.asked == [
        {"text": TEXT, "entities": ["PERSON", "TICKET_ID"], "language": "de", "score_threshold": 0.4}
    ]
    assert "presidio (de; PERSON, TICKET_ID; score >= 0.4)" in made.certificate().mechanism
    assert made.certificate().private is False


@pytest.mark.parametrize(
    "bad",
    [
        {"analyzer": 7},
        {"entities": "PERSON"},
        {"entities": []},
        {"entities": [7]},
        {"language": ""},
        {"score_threshold": 2.0},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    """If it breaks, a mistyped setting finds nothing, and everything passes in clear."""
    with pytest.raises(InvalidParameter, match="Expected"):
        PresidioEntities(**({"analyzer": Analyzer()} | bad))


def test_one_argument_is_enough_and_the_certificate_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, nobody can tell which model looked for names, or texts of one language are read by another's."""

    class Engine(Analyzer):
        def __init__(self, nlp_engine: Any, supported_languages: list[str]) -> None:
            super().__init__()
            self.nlp_engine, self.languages = nlp_engine, supported_languages

    class Spacy:
        def __init__(self, models: list[dict[str, str]]) -> None:
            self.models = models

    engines = types.SimpleNamespace(SpacyNlpEngine=Spacy)
    monkeypatch.setitem(sys.modules, "presidio_analyzer", types.SimpleNamespace(AnalyzerEngine=Engine))  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setitem(sys.modules, "presidio_analyzer.nlp_engine", engines)  # type: ignore[arg-type]  # a stand-in
    made = Pseudonymizer(presidio="de", terms=["T-1234"])
    assert made.invoke(TEXT) == "ticket <TICKET_ID_1> of <PERSON_1>, card <CREDIT_CARD_1>"
    for presidio, model in (("de", "de_core_news_lg"), (True, "en_core_web_lg")):
        assert model in Pseudonymizer(presidio=presidio).certificate().mechanism
    with pytest.raises(InvalidParameter, match="language"):
        Pseudonymizer(presidio=3)  # type: ignore[arg-type]


def test_presidio_itself_with_recognizers_that_need_no_model() -> None:
    """If it breaks, the adapter fits its double and not Presidio."""
    presidio = pytest.importorskip("presidio_analyzer", reason="needs the extra presidio")
    spacy = pytest.importorskip("spacy")
    from presidio_analyzer import nlp_engine, predefined_recognizers

    class NoModel(nlp_engine.NlpEngine):  # type: ignore[misc,name-defined]  # no types
        """Cuts words and knows nothing."""

        def __init__(self) -> None:
            self.nlp = {"en": spacy.blank("en")}

        def load(self) -> None: ...

        def is_loaded(self) -> bool:
            return True

        def process_text(self, text: str, language: str) -> Any:
            tokens = self.nlp[language](text)
            words = [token.text for token in tokens]
            places = [token.idx for token in tokens]
            return nlp_engine.NlpArtifacts([], tokens, places, words, self, language)

        def process_batch(self, texts: Any, language: str, **_: Any) -> Any:
            return ((text, self.process_text(text, language)) for text in texts)

        def is_stopword(self, word: str, language: str) -> bool:
            return False

        def is_punct(self, word: str, language: str) -> bool:
            return False

        def get_supported_entities(self) -> list[str]:
            return []

        def get_supported_languages(self) -> list[str]:
            return ["en"]

    pattern = presidio.Pattern("ticket", r"T-\d{4}", 0.9)
    registry = presidio.RecognizerRegistry(supported_languages=["en"])
    registry.add_recognizer(presidio.PatternRecognizer(supported_entity="TICKET", patterns=[pattern]))
    registry.add_recognizer(predefined_recognizers.CreditCardRecognizer())
    analyzer = presidio.AnalyzerEngine(registry=registry, nlp_engine=NoModel(), supported_languages=["en"])
    made = Pseudonymizer(PresidioEntities(analyzer))
    assert made.invoke(TEXT) == "ticket <TICKET_1> of Bob, card <CREDIT_CARD_1>"
    assert made.restore(made.invoke(TEXT)) == TEXT
