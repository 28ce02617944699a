"""The sanitizer as a Runnable: every type, every call style, its promise, and what it refuses."""

from __future__ import annotations

import asyncio
import copy
import pickle
import warnings
from operator import itemgetter
from typing import Any

import pytest
from fakes.rapt import CLOSE, FAR, TABLE, WORDS, sanitizer
from fakes.styles import STYLES, gathered, streamed
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.prompt_values import ChatPromptValue, ImagePromptValue, StringPromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PrivateDataError
from langchain_dp.rapt import CalibrationTarget, Policies, calibrate, runnable
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import Redacted

RAW = "quetzal"  # no word of the table: it must never be seen again
TEXT = f"the patient {RAW} has severe pain"


CALLS = STYLES | {
    "events": lambda chain, given, config: asyncio.run(gathered(chain.astream_events(given, config, version="v2")))[-1][
        "data"
    ]["output"]
}
INPUTS: dict[str, Any] = {
    "str": TEXT,
    "message": HumanMessage(TEXT),
    "messages": [HumanMessage(TEXT), AIMessage(TEXT)],
    "text prompt": StringPromptValue(text=TEXT),
    "chat prompt": ChatPromptTemplate.from_messages([("human", "{x}")]).invoke({"x": TEXT}),
    "other chat prompt": ChatPromptValue(messages=[HumanMessage(TEXT)]),
    "document": Document(page_content=TEXT),
    "documents": [Document(page_content=TEXT), Document(page_content=TEXT)],
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("style", CALLS)
def test_every_type_comes_back_as_itself_in_every_style(style: str, kind: str) -> None:
    """If it breaks, a call style of LangChain lets a raw word through, or changes the type of what passes."""
    given = copy.deepcopy(INPUTS[kind])
    released = CALLS[style](sanitizer(), given, None)
    assert type(released) is (ChatPromptValue if kind == "other chat prompt" else type(given))
    if isinstance(given, list):
        assert [type(one) for one in released] == [type(one) for one in given]
    assert RAW not in repr(released)
    assert repr(given) == repr(INPUTS[kind]), "the input itself must not be changed"


@pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
def test_only_words_of_the_table_come_out(mechanism: str) -> None:
    """If it breaks, an unknown word, a number or an address passes in clear; or all is lost but by the mechanism."""
    text = "Señor Quetzal, born 1987-03-12, pays $450.20: q@example.org `rm -rf /` 東京 🎉 \ud800 naïve"
    released = sanitizer(mechanism=mechanism).invoke(text)
    for mark in sorted(filter(None, WORDS), key=len, reverse=True):
        released = released.replace(mark, " ")
    assert released.split() == []
    known = "the old man has severe pain, often."
    assert sanitizer(eta=FAR, mechanism=mechanism).invoke(known) == known
    assert sanitizer(eta=CLOSE, mechanism=mechanism).invoke(known) != known


def test_a_batch_is_one_charge_and_may_tolerate_refusals() -> None:
    """If it breaks, a refused input of a batch is half paid, or keeps the others back although it was asked not to."""
    made = sanitizer(eta=1.0, limit=2.0)
    with pytest.raises(BudgetExceeded):
        made.batch(["one", "two", "three"], user="u")
    with pytest.raises(InvalidParameter):
        made.batch(["one", 7], user="u")  # type: ignore[list-item]
    assert made.ledger.spent(user="u") == 0.0
    outcomes = made.batch(["one", 7, "two", "three"], user="u", return_exceptions=True)  # type: ignore[list-item]
    assert [type(outcome) for outcome in outcomes] == [str, InvalidParameter, str, BudgetExceeded]
    assert made.ledger.spent(user="u") == 2.0
    assert asyncio.run(made.abatch(["one", "four"], user="u", return_exceptions=True))[0] == outcomes[0]
    assert made.batch([]) == []


def test_equal_texts_of_a_batch_stay_two_where_another_is_refused() -> None:
    """If it breaks, one refused input of a batch shows which of the others are equal, and charges them once."""
    made = sanitizer()
    text = " ".join(["the old man has pain in his left arm"] * 4)
    one, refused, other = made.batch([text, 7, text], return_exceptions=True)  # type: ignore[list-item]
    assert isinstance(refused, InvalidParameter)
    assert one != other
    assert made.certificate().releases == 2
    assert made.batch([text, text]) == [one, other]  # as they would have been released together


@pytest.mark.parametrize(
    "bad",
    [
        7,
        None,
        b"bytes",
        {"question": TEXT},
        [TEXT],
        [HumanMessage(TEXT), TEXT],
        [("human", TEXT, TEXT)],
        [{"content": TEXT}],
        [{"role": RAW, "content": "the"}],
        [Document(page_content="x"), HumanMessage("x")],
        {TEXT},
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_what_cannot_be_sanitized_is_refused_without_its_content(bad: Any) -> None:
    """If it breaks, something unknown passes in clear, or an error message quotes it."""
    made = sanitizer()
    for call in (made.invoke, lambda given: list(made.stream(given)), made.sanitize):
        with pytest.raises(InvalidParameter, match="Expected") as caught:
            call(bad)
        assert RAW not in str(caught.value)
    assert made.certificate().releases == 0


@pytest.mark.parametrize("form", [("user", "the old man"), {"role": "user", "content": "the old man"}])
def test_messages_may_be_pairs_and_mappings(form: Any) -> None:
    """If it breaks, what every model of LangChain takes has to be converted for the sanitizer alone."""
    released = sanitizer(eta=FAR).invoke([form, AIMessage("it is pain")])
    assert [message.text for message in released] == ["the old man", "it is pain"]


def test_what_the_refusal_of_a_mapping_advises_works() -> None:
    """The advice leads to the same refusal: a chain passes the whole mapping to each of its parts."""
    made = sanitizer()
    with pytest.raises(InvalidParameter, match=r'first: \{"question": itemgetter\("question"\) \| sanitizer\}\.'):
        RunnableParallel(question=made).invoke({"question": TEXT})
    advised = RunnableParallel({"question": itemgetter("question") | made})
    assert isinstance(advised.invoke({"question": TEXT})["question"], str)


def test_keys_and_typos_are_refused() -> None:
    """If it breaks, a mistyped option is swallowed, or a release is charged to nobody."""
    made = sanitizer()
    for bad in ({"user": ""}, {"user": 7}, {"document": b"d"}, {"usr": "u"}):
        with pytest.raises(InvalidParameter):
            made.invoke(TEXT, **bad)
        with pytest.raises(InvalidParameter):
            list(made.transform(iter(["a ", "b"]), **bad))
    assert made.certificate().releases == 0


def test_a_limit_that_a_text_never_reaches_is_told_once_before_the_charge() -> None:
    """If it breaks, somebody who gives a limit and names nobody believes that it holds."""
    made = sanitizer(limit=20.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.invoke("late", user="ann")
        made.invoke("good", document="letter 7")
        sanitizer().invoke("late")
        sanitizer(limit=20.0, cache=False).invoke("late")  # equal texts add up, as one document
        sanitizer(ledger=MetricLedger(document_limit=20.0), documents=None).invoke("late", document="letter 7")
        before = len(list(made.ledger.entries()))
        with pytest.raises(Redacted, match="UserWarning"):
            made.invoke("late")
        assert len(list(made.ledger.entries())) == before
        made.invoke("late")
    streamed = sanitizer(limit=20.0)
    with pytest.warns(UserWarning, match="limit=20") as heard:
        "".join(streamed.transform(iter(["late", " good"])))
    assert [one.filename for one in heard] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamed.invoke("good")


def test_a_stream_is_gathered_and_is_one_release() -> None:
    """If it breaks, every chunk is a release of its own, or what is in no chunk's type passes in clear."""
    made = sanitizer()
    chunks = ["the patient ", RAW, " has severe pain"]
    released = list(made.transform(iter(chunks), user="u"))
    assert released == [made.invoke(TEXT, user="u")]
    assert released == asyncio.run(gathered(made.atransform(streamed(chunks), user="u")))
    assert made.certificate().releases == 1
    (message,) = made.transform(iter([AIMessageChunk(chunk) for chunk in chunks]))
    assert type(message) is AIMessageChunk
    assert list(made.transform(iter([]))) == []
    assert RAW not in repr([message, *made.transform(iter([RAW, HumanMessage(RAW)]))])


def test_a_very_long_text_is_one_release() -> None:
    """If it breaks, a book is refused, loses its end, or takes memory without bound."""
    made, text = sanitizer(eta=FAR), "the patient has pain. " * 40_000
    assert made.invoke(text) == text.strip()
    assert made.certificate().releases == 1


def test_the_certificate_says_what_is_promised_and_what_is_not() -> None:
    """If it breaks, a reader takes eta for an epsilon, or is not told what passes in clear."""
    made = sanitizer(
        eta=2.0, limit=10.0, policies=Policies(numbers="keep"), metadata_keep=("source",), texts=[" ".join(WORDS)]
    )
    before = made.certificate()
    made.invoke(HumanMessage(TEXT), user="u")
    paper = made.certificate()
    assert (before.releases, paper.releases) == (0, 1)
    assert (paper.eta, paper.mechanism, paper.private) == (2.0, "exponential", True)
    assert paper.table.startswith("small (")
    assert paper.word_loss == pytest.approx(2.0 * made.calibration().neighbor_distance)
    for said in ("Numbers", "number of tokens", "System messages", "source", "Images, audio and files in messages"):
        assert said in str(paper)
    assert RAW not in str(paper) + repr(made)


def test_a_named_table_is_calibrated_once_for_each_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every sanitizer of a process looks for the same eta for seconds; or one is given another's."""
    asked: list[Any] = []

    def counted(*args: Any, **options: Any) -> Any:
        asked.append(options)
        return calibrate(*args, **options | {"texts": [" ".join(WORDS)]})

    monkeypatch.setattr(runnable, "load", lambda name: TABLE)
    monkeypatch.setattr(runnable, "calibrate", counted)
    monkeypatch.setattr(runnable, "_CALIBRATED", {})
    found = [RAPTSanitizer("glove", target_replacement=share).certificate().eta for share in (0.3, 0.6, 0.3, 0.6)]
    assert found[:2] == found[2:]
    assert found[0] != found[1]
    assert len(asked) == 2
    RAPTSanitizer("glove", target_replacement=0.3, mechanism="laplace")
    RAPTSanitizer("glove", target_replacement=0.3, target=CalibrationTarget(texts=[" ".join(WORDS)]))
    RAPTSanitizer(TABLE, target_replacement=0.3)
    assert len(asked) == 5


def test_a_table_without_the_calibration_words_still_certifies() -> None:
    """If it breaks, a certificate of an own table in another language cannot be had."""
    made = RAPTSanitizer(type(TABLE)(["uno", "dos", "tres"], TABLE.vectors[:3], name="tiny"), eta=1.0)
    assert made.invoke("uno dos")
    assert made.certificate().replaced is None
    with pytest.raises(InvalidParameter, match="words"):
        made.calibration()


def test_a_seed_is_not_private_and_says_so() -> None:
    """If it breaks, reproducible noise is taken for private noise."""
    made = [sanitizer(not_private_seed=7) for _ in range(2)]
    first, second = (one.invoke(HumanMessage(TEXT)) for one in made)
    assert first.content == second.content
    assert first.response_metadata["rapt"]["private"] is False
    paper = made[0].certificate()
    assert paper.private is False
    assert "seed" in paper.reason
    assert str(paper).startswith("NOT PRIVATE")
    assert sanitizer().invoke(TEXT * 5) != sanitizer().invoke(TEXT * 5)


def test_a_copy_is_the_same_and_a_pickle_is_refused() -> None:
    """If it breaks, a copied chain has an account of its own, or an open account travels in a pickle."""
    made = sanitizer()
    assert copy.deepcopy(made) is copy.copy(made) is made
    with pytest.raises(PrivateDataError):
        pickle.dumps(made)


def test_it_can_be_bound_configured_and_drawn_but_is_no_tool() -> None:
    """If it breaks, what every Runnable can do fails, or an agent gets a tool that it had to show the raw text."""
    made = sanitizer()
    chain = made.bind(user="u").with_config(tags=["t"]) | RunnableLambda(str)
    chain.invoke(TEXT)
    list(chain.stream(TEXT))
    assert made.ledger.spent(user="u") == CLOSE
    assert (made.get_name(), sanitizer(name="mail").get_name()) == ("RAPTSanitizer", "mail")
    assert "RAPTSanitizer" in str(chain.get_graph().to_json())
    assert made.get_input_jsonschema()
    assert made.get_output_jsonschema()
    with pytest.raises(InvalidParameter, match="an agent that calls one has already read the text"):
        made.as_tool(name="clean")


def test_an_image_prompt_passes_only_where_media_do() -> None:
    """If it breaks, an image prompt passes unnoticed."""
    image: Any = ImagePromptValue(image_url={"url": "data:image/png;base64,AAAA"})
    assert sanitizer().invoke(image) is image
    with pytest.raises(InvalidParameter, match="media"):
        sanitizer(media="drop").invoke(image)
