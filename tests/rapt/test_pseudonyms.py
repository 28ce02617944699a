"""Pseudonyms of one conversation: what is found, what shares a placeholder, and what comes back from any pieces."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import pickle
import random
import re
import sys
import time
import types
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces, reported
from fakes.rapt import sanitizer
from fakes.styles import STYLES, gathered, streamed
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnableParallel, add
from langchain_dp.integrations.gliner import GlinerEntities
from pydantic import BaseModel

from langchain_dp import private_run
from langchain_dp.errors import InvalidParameter, MissingExtra, PrivateDataError
from langchain_dp.rapt import DocumentRules
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.placeholders import PlaceholderMap
from langchain_dp.rapt.pseudonyms import PatternEntities, Pseudonymizer, TermEntities
from langchain_dp.rapt.restore import ChunkRestorer, TextRestorer
from langchain_dp.redact import Redacted


def finding(spans: dict[str, list[tuple[int, int, str]]]) -> Any:
    """A recognizer that knows whole texts."""
    return lambda text: spans.get(text, [])


def test_one_person_is_one_placeholder_and_two_are_two() -> None:
    """If it breaks, spellings of one entity come apart, or two entities are one: an answer names the wrong person."""
    made = Pseudonymizer([PatternEntities()], terms={"Ann Smith": "PERSON", "Ann": "PERSON", "weiß": "PERSON"})
    assert made.invoke("Ann  SMITH, Ann, ann smith") == "<PERSON_1>, <PERSON_2>, <PERSON_1>"
    assert made.invoke("DE89 3704 0044 0532 0130 00") == made.invoke("DE89370400440532013000") == "<IBAN_1>"
    assert made.invoke("http://a.org/B http://a.org/b") == "<URL_1> <URL_2>"
    assert made.invoke("weiß") == "<PERSON_3>"
    assert Pseudonymizer(terms={"weiß": "PERSON", "weiss": "PERSON"}).invoke("weiß weiss") == "<PERSON_1> <PERSON_2>"
    assert made.report().counts == {"PERSON": 3, "IBAN": 1, "URL": 2}


@pytest.mark.parametrize(
    ("met", "then", "hidden"),
    [
        ("Ann Smith", "ANN SMITH, ann  smith, Ann SMITH", "<PERSON_1>, <PERSON_1>, <PERSON_1>"),
        ("Will", "WILL and Will will", "<PERSON_1> and <PERSON_1> will"),
        ("Jose\u0301", "JOSÉ, JOSE\u0301", "<PERSON_1>, <PERSON_1>"),
        ("Weiß", "WEISS", "<PERSON_2>"),
        ("ann@a.org", "Ann@A.org", "<PERSON_1>"),
        ("İıſ K9", "iis k9", "<PERSON_2>"),
        ("王芳", "请转告王芳", "请转告<PERSON_1>"),
        ("Bo", "tell Bo", "tell Bo"),
    ],
)
def test_what_was_hidden_once_is_hidden_in_other_letters(met: str, then: str, hidden: str) -> None:
    """If it breaks, a name in the capitals of a heading is given away, or every "will" is hidden after a Will."""
    made = Pseudonymizer(lambda text: [(0, len(text), "person")] if text == met else [])
    made.invoke(met)
    assert made.invoke(then) == hidden


def test_hundreds_of_entities_take_no_time() -> None:
    """If it breaks, each new entity of a conversation, or each term, takes longer than the one before."""
    began = time.process_time()
    made = Pseudonymizer(terms=[f"Person{i} Name{i}" for i in range(300)])
    hidden = [made.invoke(f"mail user{i}@example.org of Person{i} Name{i}") for i in range(150)]
    assert hidden[-1] == "mail <EMAIL_150> of <TERM_150>"
    assert made.invoke("USER7@example.org") == "<EMAIL_8>"
    assert time.process_time() - began < 5.0


def test_originals_of_blanks_in_each_other_and_overlapping_are_hidden() -> None:
    """If it breaks, a recognizer that finds blanks stops every later text, or an end of a name is left in clear."""
    spans = {
        "a   b": [(1, 4, "gap")], "Ann Smith": [(0, 9, "person")], "Ann": [(0, 3, "person")],
        "0123456789abcde": [(0, 5, "A"), (3, 12, "B-c d"), (12, 13, "9"), (3, 4, "E")], "so Bob": [(3, 6, "person")],
    }  # fmt: skip
    made = Pseudonymizer(finding(spans))
    hidden = [made.invoke(text) for text in spans]
    assert hidden == ["a<GAP_1>b", "<PERSON_1>", "<PERSON_2>", "<B_C_D_1><ENTITY_9_1>de", "so <PERSON_3>"]
    assert made.restore(hidden[3]) == "0123456789abcde"
    assert made.invoke("So Ann Smith - and Ann") == "So <PERSON_1> - and <PERSON_2>"
    assert made.invoke("Bob, not Bobby") == "<PERSON_3>, not Bobby", "what was hidden once is hidden again"
    assert made.invoke(r"so\nBob") == r"so\n<PERSON_3>"
    assert "the function <lambda>" in str(made.report())


def test_a_text_cannot_name_a_placeholder() -> None:
    """If it breaks, who writes <PERSON_1> is answered with somebody's name."""
    made = Pseudonymizer(terms={"Bob": "PERSON", "Eve": "literal"})
    hidden = made.invoke("Bob and Eve said <PERSON_1> and <LITERAL_1>")
    assert made.restore(hidden) == "Bob and Eve said <PERSON_1> and <LITERAL_1>"
    assert made.sanitize("<PERSON_1> <PERSON_9>", hidden=True).startswith("<PERSON_1> <LITERAL_")


@given(st.text(alphabet="ABob <>_12PERSON", max_size=60))
def test_every_text_comes_back_as_it_was(text: str) -> None:
    """If it breaks, a text that looks like a placeholder already is restored to something else."""
    made = Pseudonymizer(lambda text: [(m.start(), m.end(), "person") for m in re.finditer(r"Bob|\d+", text)])
    assert made.restore(made.invoke(text)) == text


def test_every_type_goes_through_and_conversations_are_apart() -> None:
    """If it breaks, a type changes on its way, or one conversation knows another's people."""
    made = Pseudonymizer(terms={"Bob": "PERSON", "Al": "PERSON"}, documents=DocumentRules(metadata_sanitize=["who"]))
    calls = [{"name": "f", "args": {"who": ["Al"]}, "id": "c"}]
    for given_in in (
        "Bob",
        AIMessage("to Bob", tool_calls=calls),
        [HumanMessage("Bob"), HumanMessage([{"type": "text", "text": "Al"}])],
        StringPromptValue(text="Bob"),
        ChatPromptValue(messages=[HumanMessage("Bob")]),
        Document(page_content="Bob", metadata={"who": {"name": "Al"}}),
        [Document(page_content="Al")],
    ):
        hidden: Any = made.invoke(given_in)
        assert type(hidden) is type(given_in)
        assert not {"Al", "Bob"} & set(re.findall(r"\w+", repr(hidden)))
        back = made.restore(hidden)
        assert type(back) is type(given_in)
        assert not [word for word in ("Al", "Bob") if (word in repr(given_in)) > (word in repr(back))]
    assert made.batch(["Bob", "Bob"]) == asyncio.run(made.abatch(["Bob", "Bob"])) == ["<PERSON_1>"] * 2
    assert list(made.stream("Bob")) == ["<PERSON_1>"]
    assert made.new_conversation().restore("<PERSON_1>") == "<PERSON_1>"


@pytest.mark.statistical
def test_10_000_random_cuts_are_restored_and_little_is_held_back() -> None:
    """If it breaks, a placeholder that a chunk's end cuts stays, or a reader waits for longer than a placeholder."""
    coins, kept = random.Random(19), PlaceholderMap()
    made = [kept.placeholder(kind, f'{kind} "<{i}') for i in range(120) for kind in ("PERSON", "IBAN")]
    parts = [*made, " < ", "<PERSON", "<<", "<PERSON_1", "word", "\n", "<PERSON_999>", ">"]
    texts = ["".join(coins.choices(parts, k=8)) + coins.choice(made) for _ in range(200)]
    longest = max(map(len, made))
    for number in range(10_000):
        text = texts[number % 200]
        cuts = sorted(coins.sample(range(1, len(text)), coins.randint(1, 12)))
        restorer, said = TextRestorer(kept), ""
        for start, end in itertools.pairwise([0, *cuts, len(text)]):
            said += restorer.push(text[start:end])
            assert len(restorer._rest) < longest
            assert said + restorer._rest == kept.restore(text[:end])
        assert said + restorer.finish() == kept.restore(text)


def test_chunks_of_messages_and_calls_are_restored() -> None:
    """If it breaks, arguments of a call are broken JSON, blocks stay as they are, or the last chunk loses its rest."""
    kept = PlaceholderMap()
    name = kept.placeholder("PERSON", 'Ann "A" Smith')
    text = f'{{"who": "{name}"}}'
    for cut in range(1, len(text)):
        restorer, whole = ChunkRestorer(kept), AIMessageChunk([])
        for place, piece in enumerate((text[:cut], text[cut:])):
            call = {"name": None if place else "f", "id": None if place else "c", "index": 0, "args": piece}
            block = {"type": "text", "text": f"to {name}"[:5] if not place else f"to {name}"[5:], "index": 0}
            whole += restorer.push(AIMessageChunk(content=[block], tool_call_chunks=[call]))
        assert whole.tool_calls[0]["args"] == {"who": 'Ann "A" Smith'}
        assert whole.content == [{"type": "text", "text": 'to Ann "A" Smith', "index": 0}]
    last = ChunkRestorer(kept).push(AIMessageChunk("a <PERS", chunk_position="last"))
    assert last.content == "a <PERS"


def test_structured_answers_are_restored_as_they_come() -> None:
    """If it breaks, a stream of JSON or of parallel steps ends with placeholders, or loses what was held back."""
    made = Pseudonymizer(terms={"Bob": "PERSON"})
    made.invoke("Bob")

    cut = ['{"to": "<PER', 'SON_1>", "others": ["<PERSON', '_1>", "a <"]', "}"]

    def pieces(_: object) -> Iterator[str]:
        yield from cut

    model = RunnableGenerator(pieces, lambda _: streamed(cut))
    shown = list((model | JsonOutputParser() | made.restorer()).stream("hi"))
    assert shown[-1] == {"to": "Bob", "others": ["Bob", "a <"]}
    assert {whole.get("to") for whole in shown} <= {None, "<PER", "Bob"}
    parallel = RunnableParallel(said=model, again=model) | made.restorer()
    joined = add(parallel.stream("hi"))
    assert joined == dict.fromkeys(("said", "again"), '{"to": "Bob", "others": ["Bob", "a <"]}')
    assert asyncio.run(gathered((model | JsonOutputParser() | made.restorer()).astream("hi")))[-1] == shown[-1]
    other = object()  # such as an array of numbers under another key
    beside = RunnableParallel(said=model, other=lambda _: other) | made.restorer()
    assert add(beside.stream("hi")) == {"said": joined["said"], "other": other}
    with pytest.raises(InvalidParameter, match="to restore, not object"):
        list(made.restorer().transform(iter([other])))


class Contact(BaseModel):
    """A structured answer."""

    name: str
    others: list[tuple[str, int]] = []
    raw: Any = None
    left: str | None = None


def test_structured_answers_are_restored() -> None:
    """If it breaks, a chain with with_structured_output ends in an error, or its answer holds placeholders."""
    made = Pseudonymizer(terms={"Bob": "PERSON"})
    hidden = made.invoke("Bob")
    answer = Contact(name=hidden, others=[(hidden, 1)], raw={"message": AIMessage(hidden), "parsed": None})
    back = (made | (lambda _: answer) | made.restorer()).invoke("Bob")
    assert back == Contact(name="Bob", others=[("Bob", 1)], raw={"message": AIMessage("Bob"), "parsed": None})
    assert back.model_fields_set == answer.model_fields_set
    assert list(made.restorer().stream({"who": [hidden]})) == [{"who": ["Bob"]}]
    counted = AIMessage("", tool_calls=[{"name": "count", "id": "1", "args": {"each": {hidden: 2}}}])
    assert made.restore(counted).tool_calls[0]["args"] == {"each": {"Bob": 2}}
    for scalar in (None, True, 5, 3.5, datetime.date(2026, 1, 2), re.RegexFlag.A):  # None: the model called no tool
        assert made.restore(scalar) is scalar
    assert list((JsonOutputParser() | made.restorer()).stream("5")) == [5]
    with pytest.raises(InvalidParameter, match="to restore, not object"):
        made.restore(object())
    assert answer.name == hidden


@pytest.mark.parametrize("style", ["invoke", "ainvoke", "stream", "astream"])
def test_nothing_shows_the_map_and_no_recognizer_the_text(style: str, tmp_path: Path) -> None:
    """If it breaks, a name is in a trace, of the chain, of its restorer, or of a model that a recognizer asks."""
    model = FakeListChatModel(responses=["none"])

    def find(text: str) -> list[tuple[int, int, str]]:
        model.invoke(f"Which person is named in: {text}")
        return [(m.start(), m.end(), "person") for m in re.finditer(CANARY, text)]

    def broken(text: str) -> list[tuple[int, int, str]]:
        raise ValueError(text)

    made, told = Pseudonymizer(find), []
    chain = made | RunnableLambda(lambda text: told.append(text) or f"dear {text}") | made.restorer()
    with leak_surfaces(tmp_path) as surfaces:
        config: Any = {"callbacks": surfaces.handlers}
        assert STYLES[style](made, f"{CANARY} called", config) == "<PERSON_1> called"
        assert STYLES[style](made.restorer(), "<PERSON_1>", config) == CANARY
        assert "Pseudonymizer" in surfaces.by_name()["handler"]
        with private_run():
            assert STYLES[style](chain, CANARY, config) == f"dear {CANARY}"
        with pytest.raises(Redacted, match="ValueError") as caught:
            STYLES[style](Pseudonymizer(broken), CANARY, config)
        assert surfaces.where(CANARY) == set()
    assert not [kept for kept in reported(caught.value, lambda file: False) if CANARY in kept]
    shown = [made, TermEntities([CANARY]), made.placeholders, str(made.report()), made.certificate()]
    assert CANARY not in repr(shown) + "".join(told)
    for private in (made, made.placeholders):
        with pytest.raises(PrivateDataError):
            pickle.dumps(private)


def test_it_says_what_it_is_not() -> None:
    """If it breaks, pseudonyms pass for formal privacy, or a report hides what nobody looked for."""
    made = Pseudonymizer(PatternEntities(["EMAIL"], {"ticket": r"T-\d+"}))
    assert made.invoke("T-7 of a@b.org") == "<TICKET_1> of <EMAIL_1>"
    report = made.report()
    assert (report.private, made.certificate().private) == (False, False)
    assert str(report).startswith("NOT PRIVATE: pseudonyms, no epsilon. Hidden: 1 EMAIL, 1 TICKET.")
    assert report.not_looked_for[:2] == ("PERSON", "LOCATION")
    assert "IBAN" in report.not_looked_for
    assert "EMAIL" not in report.not_looked_for


def test_system_messages_are_hidden_in_or_the_report_says_that_they_are_not() -> None:
    """If it breaks, the context of a question leaves in clear, and the report blames the recognizers."""
    given_in = [SystemMessage("Answer from: Ann Smith is ill."), HumanMessage("Who is ill?")]
    hiding, keeping = (
        Pseudonymizer(terms=["Ann Smith"], messages=rules) for rules in (None, MessageRules(system="keep"))
    )
    assert [message.content for message in hiding.invoke(given_in)] == ["Answer from: <TERM_1> is ill.", "Who is ill?"]
    assert "System" not in str(hiding.report())
    assert keeping.invoke(given_in)[0].content == given_in[0].content
    assert "System messages passed in clear" in str(keeping.report())
    assert keeping.report().to_dict()["system_in_clear"]
    assert Pseudonymizer(remaining_text_sanitizer=sanitizer()).report().system_in_clear


def test_the_words_between_can_be_sanitized() -> None:
    """If it breaks, ``remaining_text_sanitizer=`` leaves words in clear, loses placeholders, or hides its cost."""
    rapt = sanitizer()
    made = Pseudonymizer(terms={"Ann Smith": "PERSON"}, remaining_text_sanitizer=rapt)
    hidden = made.invoke("Ann Smith has severe pain; xyzzy calls Ann Smith")
    assert re.findall(r"<\w+>", hidden) == ["<PERSON_1>", "<PERSON_1>"]
    assert "xyzzy" not in hidden
    report = made.report()
    assert report.remaining_text_sanitizer.releases == rapt.certificate().releases == 1
    assert report.private is False
    assert "All other words passed" not in str(report)


class Gliner:
    """Predicts as a GLiNER model does."""

    def predict_entities(self, text: str, labels: list[str], threshold: float) -> list[dict[str, Any]]:
        return [{"start": 0, "end": 3, "label": labels[0], "score": threshold}]


def test_gliner_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a model's labels become other kinds, or its absence is a foreign error."""
    made = Pseudonymizer([GlinerEntities(Gliner()), PatternEntities()])
    assert made.invoke("Ann has a@b.org") == "<PERSON_1> has <EMAIL_1>"
    assert made.report().not_looked_for == ()
    assert "Gliner" in made.certificate().mechanism
    load = types.SimpleNamespace(from_pretrained=lambda name, local_files_only: Gliner())
    monkeypatch.setitem(sys.modules, "gliner", types.SimpleNamespace(GLiNER=load))  # type: ignore[arg-type]  # a stand-in
    for gliner, name in ((True, "urchade/gliner_multi_pii-v1"), ("/home/ann/models/small", "; small)")):
        one = Pseudonymizer(gliner=gliner, terms=["Bob"])
        assert one.invoke("Ann has a@b.org, Bob") == "<PERSON_1> has <EMAIL_1>, <TERM_1>"
        assert name in one.certificate().mechanism
        assert "/home" not in one.certificate().mechanism
    monkeypatch.setitem(sys.modules, "gliner", None)
    with pytest.raises(MissingExtra, match="gliner"):
        GlinerEntities("folder")
    for wrong in ({"model": 3}, {"model": Gliner(), "entities": "person"}, {"model": Gliner(), "score_threshold": 2}):
        with pytest.raises(InvalidParameter):
            GlinerEntities(**wrong)


class ShortGliner(Gliner):
    """Reads eight words of a text, as a real one reads some hundred."""

    config = types.SimpleNamespace(max_len=8)

    def predict_entities(self, text: str, labels: list[str], threshold: float) -> list[dict[str, Any]]:
        read = " ".join(text.split(" ")[:8])
        return [{"start": m.start(), "end": m.end(), "label": labels[0]} for m in re.finditer("Ann Lee|Lee", read)]


def test_gliner_finds_what_stands_late_in_a_long_text() -> None:
    """If it breaks, all names behind the first words that a model reads pass in clear."""
    for words in range(30):
        text = f"{'so ' * words}Ann Lee went home"
        assert Pseudonymizer([GlinerEntities(ShortGliner())]).invoke(text) == text.replace("Ann Lee", "<PERSON_1>")
    assert GlinerEntities(ShortGliner()).find(" ") == []


@pytest.mark.parametrize(
    ("term", "text"),
    [("王小明", "我是王小明你好"), ("田中", "田中さんから電話"), ("สมชาย", "คุณสมชายโทรมา"),
     ("Ann Smith", "我是Ann Smith的朋友"),
     ("José", unicodedata.normalize("NFD", "José called")), (unicodedata.normalize("NFD", "José"), "José called")],
)  # fmt: skip
def test_terms_are_found_in_every_writing(term: str, text: str) -> None:
    """If it breaks, a name passes in clear since no space stands beside it, or as its accent is coded otherwise."""
    made = Pseudonymizer(terms={term: "PERSON"})
    hidden = made.invoke(text)
    assert "<PERSON_1>" in hidden
    assert unicodedata.normalize("NFC", term) not in unicodedata.normalize("NFC", hidden)
    assert made.restore(hidden) == text
    assert Pseudonymizer(terms={"Ann": "PERSON"}).invoke("Anna and Joann") == "Anna and Joann"


def test_names_in_markdown_and_with_any_apostrophe_are_found() -> None:
    """If it breaks, a name passes in clear where it is in italics, or where an editor bent its apostrophe."""
    made = Pseudonymizer(terms={"Ann Smith": "PERSON", "Pat O'Neil": "PERSON"})
    assert made.invoke("_Ann Smith_ and **Ann Smith** of ann_smith") == "_<PERSON_1>_ and **<PERSON_1>** of ann_smith"
    assert made.invoke("Pat O'Neil, Pat O\u2019Neil") == "<PERSON_2>, <PERSON_2>"
    assert Pseudonymizer(terms=["D\u2019Arcy"]).invoke("D'Arcy") == "<TERM_1>"


def test_what_is_written_as_in_json_is_hidden_too() -> None:
    """If it breaks, a name or a number behind an escaped end of line passes in clear."""
    made = Pseudonymizer(terms={"Ann Smith": "PERSON"})
    text = r'"Office:\n046-8275895\nAnn Smith\tbob@example.org"'
    assert made.invoke(text) == r'"Office:\n<PHONE_1>\n<PERSON_1>\t<EMAIL_1>"'
