"""Placeholders: what is replaced, and what is put back."""

from __future__ import annotations

import asyncio
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.styles import gathered
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import RunnableLambda

from langchain_dp import Pseudonymizer, private_run
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt import DocumentRules
from langchain_dp.rapt.placeholders import PlaceholderMap


class Finder:
    """Finds names that it is told, and digits."""

    name = "a list of names"

    def __init__(self, *names: str) -> None:
        self._patterns = {"PERSON": "|".join(names), "NUMBER": r"\d+"}

    def find(self, text: str) -> list[tuple[int, int, str]]:
        return [
            (match.start(), match.end(), kind)
            for kind, pattern in self._patterns.items()
            for match in re.finditer(pattern, text)
        ]


def masker() -> Pseudonymizer:
    return Pseudonymizer(Finder("Alice Smith", "Alice", "Bob", CANARY))


def test_entities_become_placeholders_and_come_back() -> None:
    """If it breaks, a name passes in clear, two names share a placeholder, or an answer cannot be restored."""
    made = masker()
    text = "Alice Smith met Bob at 10, then Alice left. Bob called 10 times."
    hidden = made.invoke(text)
    assert hidden == (
        "<PERSON_1> met <PERSON_2> at <NUMBER_1>, then <PERSON_3> left. <PERSON_2> called <NUMBER_1> times."
    )
    assert made.restore(hidden) == text
    assert made.restore("<PERSON_2> and <PERSON_9>") == "Bob and <PERSON_9>"


def test_what_looks_like_a_placeholder_is_one_of_its_own() -> None:
    """If it breaks, a text that says <PERSON_1> is restored to somebody's name."""
    made = masker()
    assert made.invoke("Bob wrote <PERSON_1>") == "<PERSON_1> wrote <LITERAL_1>"
    assert made.restore("<PERSON_1> wrote <LITERAL_1>") == "Bob wrote <PERSON_1>"


@given(st.text(alphabet="ABob <>_12PERSON", max_size=60))
def test_every_text_comes_back_as_it_was(text: str) -> None:
    """If it breaks, a text that looks like a placeholder already is restored to something else."""
    made = masker()
    assert made.restore(made.invoke(text)) == text


def test_every_type_is_masked_and_restored() -> None:
    """If it breaks, restoring works for plain strings only."""
    made = Pseudonymizer(Finder("Alice", "Bob"), documents=DocumentRules(metadata_sanitize=["who"]))
    message = AIMessage("to Bob", tool_calls=[{"name": "f", "args": {"who": ["Alice"]}, "id": "c"}])
    inputs: list[Any] = [
        "Bob",
        message,
        [HumanMessage("Bob"), HumanMessage([{"type": "text", "text": "Alice"}])],
        StringPromptValue(text="Bob"),
        ChatPromptValue(messages=[HumanMessage("Bob")]),
        Document(page_content="Bob", metadata={"who": {"name": "Alice"}}),
        [Document(page_content="Alice")],
    ]
    for given_in in inputs:
        hidden = made.invoke(given_in)
        assert not {"Alice", "Bob"} & set(re.findall(r"\w+", repr(hidden)))
        back = made.restore(hidden)
        assert type(back) is type(given_in)
        for word in set(re.findall(r"Alice|Bob", repr(given_in))):
            assert word in repr(back)
    with pytest.raises(InvalidParameter, match="restore"):
        made.restore(object())


def test_a_chain_restores_its_answer_unseen(tmp_path: Path) -> None:
    """If it breaks, the step that puts the originals back hands them to a callback, or a stream cuts a placeholder."""
    made = masker()
    told: list[str] = []

    def model(text: str) -> str:
        told.append(text)
        return f"dear {text}"

    chain = made | RunnableLambda(model) | made.restorer()
    with leak_surfaces(tmp_path) as surfaces:
        config: Any = {"callbacks": surfaces.handlers}
        for answer in (
            lambda: made.restorer().invoke(made.invoke(CANARY, config), config),
            lambda: asyncio.run(made.restorer().ainvoke(made.invoke(CANARY, config), config)),
        ):
            assert answer() == CANARY
        assert surfaces.where(CANARY) == set()
        with private_run():
            assert chain.invoke(CANARY, config) == f"dear {CANARY}"
            assert "".join(chain.stream(CANARY, config)) == f"dear {CANARY}"
            assert asyncio.run(chain.ainvoke(CANARY, config)) == f"dear {CANARY}"
            assert asyncio.run(gathered(chain.astream(CANARY, config))) == [f"dear {CANARY}"]
        assert surfaces.where(CANARY) == set()
    assert CANARY not in "".join(told)


def test_overlapping_entities_leave_no_end_in_clear() -> None:
    """If it breaks, the second half of a name that two recognizers saw differently stays."""

    class Overlaps:
        name = "overlaps"

        def find(self, text: str) -> list[tuple[int, int, str]]:
            return [(0, 5, "A"), (3, 12, "B-c d"), (12, 13, "9"), (3, 4, "E")]

    made = Pseudonymizer(Overlaps())
    assert made.invoke("0123456789abcde") == "<B_C_D_1><ENTITY_9_1>de"
    assert made.restore("<B_C_D_1><ENTITY_9_1>de") == "0123456789abcde"


@pytest.mark.parametrize("span", [(0, 99, "A"), (-1, 2, "A"), (3, 3, "A"), (5, 2, "A")])
def test_entities_outside_the_text_are_refused(span: tuple[int, int, str]) -> None:
    """If it breaks, a faulty recognizer shifts what is hidden."""

    class Faulty:
        name = "faulty"

        def find(self, text: str) -> list[tuple[int, int, str]]:
            return [span]

    with pytest.raises(InvalidParameter, match="inside the text"):
        Pseudonymizer(Faulty()).invoke("0123456789")


def test_an_error_of_the_recognizer_says_nothing() -> None:
    """If it breaks, the exception of a recognizer carries the text out."""

    class Broken:
        name = "broken"

        def find(self, text: str) -> list[tuple[int, int, str]]:
            raise ValueError(f"cannot read {text}")

    with pytest.raises(RuntimeError, match="ValueError") as caught:
        Pseudonymizer(Broken()).invoke(CANARY)
    link: BaseException | None = caught.value
    while link is not None:
        assert CANARY not in str(link)
        link = link.__cause__ or link.__context__


def test_the_map_stays_here() -> None:
    """If it breaks, the map of originals can be printed, pickled or carried off in a dump."""
    kept = PlaceholderMap()
    kept.placeholder("PERSON", "Bob")
    assert len(kept) == 1
    assert "Bob" not in repr(kept)
    with pytest.raises(PrivateDataError):
        pickle.dumps(kept)
