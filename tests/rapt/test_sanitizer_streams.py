"""Streams: what leaves early, what is held back, and that the joined stream is one release."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.rapt import CLOSE, FAR, TABLE, WORDS, sanitizer
from fakes.styles import gathered, streamed
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda

from langchain_dp.errors import PlanError
from langchain_dp.rapt import Policies, TextPrivatizer, tokenize
from langchain_dp.rapt.tokenize import TextStream

MARKS = ["'", '"', "(", ")", ".", ",", "n't", "'s", "don't", "man's", "12 may 2020", "may 12th, 2020", "9", "-", "\n\n"]
EXACT = sanitizer(eta=FAR, cache=False)
PRIVATIZER = TextPrivatizer(TABLE, FAR)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def _every(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


def told(chunks: list[str], pieces: Any = PRIVATIZER.pieces) -> list[str]:
    """All that leaves of a text in chunks."""
    stream = TextStream(pieces)
    return [*(part for chunk in chunks for part in stream.push(chunk)), *stream.finish()]


@given(
    st.lists(st.sampled_from([*WORDS, *MARKS, "unknown", "12", "of"]), max_size=40),
    st.sampled_from([" ", "  ", "\n", ""]),
    st.lists(st.integers(0, 10_000), max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_the_joined_stream_is_one_release(words: list[str], space: str, places: list[int]) -> None:
    """If it breaks, a stream cuts a word or a date, or joins words otherwise than one release of the whole does."""
    text = space.join(words)
    drawn: list[int] = []

    def pieces(stretch: str) -> list[str]:
        drawn.append(len(TABLE.encode(stretch)))
        return PRIVATIZER.pieces(stretch)

    assert "".join(told(cut(text, places), pieces)) == PRIVATIZER.privatize([text])[0]
    assert sum(drawn) == len(TABLE.encode(text))


@pytest.mark.parametrize(
    "text",
    [
        "on 12 of may 2020 the old man has pain",
        "on may 12th , 2020 or on 1st september 2021 or on may 3 ten",
        "man ' s arm and ' t ' s ' red ' blue green one two",
        'the " old " man " has " pain " in " the arm',
    ],
)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 100])
def test_what_hangs_together_stays_together(text: str, width: int) -> None:
    """If it breaks, a date of four words, an apostrophe or a quotation falls apart where two chunks meet."""
    assert "".join(told(_every(text, width))) == PRIVATIZER.privatize([text])[0]


@pytest.mark.parametrize("width", [1, 3, 100])
def test_chunks_do_not_show_where_the_spaces_were(width: int) -> None:
    """If it breaks, whoever sees the chunks sees how many tokens each stretch between two spaces had."""
    seen = set()
    for text in ("red blue-green one two three", "red blue - green one two three", "red-blue-green one two"):
        seen.add(tuple(len(part.split()) for part in told(_every(text, width))))
    assert seen == {(1,) * 7}
    letters = streamed("red blue-green one two three four five")
    chunks = asyncio.run(gathered(sanitizer(eta=FAR, cache=False).atransform(letters)))
    assert list(map(str.strip, chunks)) == ["red", "blue", "-", "green", "one", "two", "three", "four", "five"]


@pytest.mark.parametrize("options", [{}, {"keep": ["pain"]}, {"policies": Policies(dates="keep", urls="keep")}])
def test_every_option_streams_alike(options: dict[str, Any]) -> None:
    """If it breaks, a policy is applied to half a date."""
    text = 'The old man said "no pain" on 12 May 2020, see www.example.org/a?b=1, then Left. The End'
    made = sanitizer(eta=FAR, cache=False, **options)
    for width in (1, 3, 7, 20):
        assert "".join(made.transform(iter(_every(text, width)))) == made.invoke(text)


def test_words_leave_before_the_text_is_complete() -> None:
    """If it breaks, a stream is only a slow call, or sync and async streams differ."""
    given_so_far = 0

    def source() -> Iterator[str]:
        nonlocal given_so_far
        for word in WORDS[:30]:
            given_so_far += 1
            yield f"{word} "

    made = EXACT.transform(source())
    first = next(made)
    assert first
    assert given_so_far <= 6
    assert len(list(made)) > 20
    parts = asyncio.run(gathered(EXACT.atransform(streamed(f"{word} " for word in WORDS[:30]))))
    assert len(parts) > 20
    assert "".join(parts) == EXACT.invoke(" ".join(WORDS[:30]))


def test_a_stream_is_charged_once_before_its_first_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every chunk of a stream is a release of its own, or the first is drawn before the charge."""
    made = sanitizer(eta=1.0)
    list(made.transform(iter(["the old ", "man has ", "severe pain ", "in the ", "left arm"]), user="u"))
    assert made.ledger.spent(user="u") == 1.0
    list(made.transform(iter(["the old ", "man"]), user="u", document="d"))
    list(made.transform(iter(["the old ", "man"]), user="u", document="d"))
    assert made.ledger.spent(document="d") == 2.0
    assert made.certificate().releases == 3


def test_a_stream_is_not_read_on_in_another_process() -> None:
    """If it breaks, a fork in the middle of a text draws its words twice for one charge."""
    made = sanitizer(eta=1.0)
    stream = made.transform(iter(["the old ", "man has ", "severe pain ", "in the ", "left arm"]), user="u")
    next(stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(PlanError, match="forked"):
            list(stream)  # what was drawn before may still come


def test_a_stream_of_one_chunk_is_a_whole_text() -> None:
    """If it breaks, `chain.stream(text)` composes where `chain.invoke(text)` does not."""
    made = sanitizer()
    text = "the patient has severe pain in the left arm"
    released = made.invoke(text)
    chain = made | RunnableLambda(lambda x: x)
    assert "".join(chain.stream(text)) == released
    assert made.certificate().releases == 1


@pytest.mark.parametrize(
    "options", [{"length": 9}, {"policies": Policies(code="keep")}, {"policies": Policies(code="placeholder")}]
)
def test_what_cannot_leave_early_is_gathered(options: dict[str, Any]) -> None:
    """If it breaks, a fixed length is not kept in a stream, or code between fences is cut."""
    made = sanitizer(eta=FAR, **options)
    text = "the old ```left arm``` man has pain today"
    parts = list(made.transform(iter(_every(text, 5))))
    assert len(parts) == 1
    assert parts[0] == made.invoke(text)
    assert made.certificate().releases == 1


def test_message_chunks_are_gathered_and_text_of_a_model_streams() -> None:
    """If it breaks, tool calls are sanitized in fragments, or a model's stream cannot be sanitized word by word."""

    def model(_: Any) -> Iterator[AIMessageChunk]:
        for word in WORDS[:20]:
            yield AIMessageChunk(f"{word} ")

    gathered = list((RunnableLambda(model) | sanitizer()).stream("x"))
    assert len(gathered) == 1
    assert isinstance(gathered[0], AIMessageChunk)
    streamed = list((RunnableLambda(model) | StrOutputParser() | EXACT).stream("x"))
    assert len(streamed) > 10
    assert "".join(streamed) == tokenize.join(WORDS[:20])


def test_empty_and_odd_streams() -> None:
    """If it breaks, a stream without chunks fails, or mixed chunks pass in clear."""
    made = sanitizer()
    assert list(made.transform(iter([]))) == []
    assert list(made.transform(iter([""]))) == [""]
    assert "".join(made.transform(iter(["", "", "quetzal"]))) in WORDS
    parts = list(made.transform(iter(["quetzal ", HumanMessage("quetzal")])))
    assert "quetzal" not in repr(parts)


def test_the_draws_of_a_stream_are_fresh() -> None:
    """If it breaks, two streams of one text come out alike, or words of one stream share their noise."""
    made = sanitizer(eta=CLOSE)
    chunks = ["old "] * 60
    first, second = ("".join(made.transform(iter(chunks))) for _ in range(2))
    assert first != second
    assert len(set(first.split())) > 10
