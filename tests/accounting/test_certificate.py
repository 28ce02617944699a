"""The paper that travels with an answer: what it says, that it survives storage, and that it cannot be forged."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.certificate import PUBLIC_COUNT, PrivacyCertificate
from langchain_dp.accounting.events import Neighbors
from langchain_dp.errors import InvalidParameter


def paper(**changes: Any) -> PrivacyCertificate:
    fields: dict[str, Any] = {
        "mechanism": "report noisy max",
        "epsilon": 2.99,
        "delta": 1e-5,
        "neighbors": Neighbors.REPLACE_ONE,
        "spent": (0.5, 1e-5),
        "remaining": 9_999,
        "model": "smollm2",
        "notes": ("temperature 0",),
        "parameters": {"sigma": 1.25, "subsets": 10, "sampling": "fixed"},
    }
    return PrivacyCertificate(**(fields | changes))


def test_what_is_printed_is_a_bound() -> None:
    """If it breaks, a certificate prints an epsilon, or a delta, below the true one."""
    said = str(paper(epsilon=1.0000049, delta=1.0049e-5, spent=(0.1000001, 1 / 9_000)))
    assert "epsilon = 1.00001, delta = 1.01e-05" in said
    assert "epsilon = 0.100001, delta = 0.000112" in said
    assert "epsilon=1.00001, delta=1.01e-05" in repr(paper(epsilon=1.0000049, delta=1.0049e-5))
    assert str(PrivacyBudget(1.0000049, 1e-5)).startswith("epsilon=1.00001, delta=1e-05")


losses = st.one_of(st.just(math.inf), st.floats(0, 1e300))
numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.text())


@given(
    epsilon=losses,
    spent=st.tuples(losses, st.floats(0, 1)),
    delta=st.floats(0, 1),
    neighbors=st.sampled_from(Neighbors),
    remaining=st.none() | st.integers(0),
    texts=st.tuples(st.text(), st.text(min_size=1)),
    notes=st.lists(st.text()).map(tuple),
    parameters=st.dictionaries(st.text(), numbers),
)
def test_json_brings_back_an_equal_certificate(texts: tuple[str, str], **fields: Any) -> None:
    """If this fails, a stored certificate says something else than the one that was handed out."""
    before = paper(private=False, model=texts[0], reason=texts[1], **fields)
    text = before.to_json()
    json.loads(text, parse_constant=pytest.fail)  # strict JSON has no Infinity
    for after in (
        PrivacyCertificate.from_json(text),
        PrivacyCertificate.from_dict(json.loads(json.dumps(before.to_dict()))),
    ):
        assert after == before
        assert after.to_json() == text


def test_certificates_can_be_pickled_copied_and_hashed() -> None:
    """If this fails, an answer that carries its certificate cannot be sent to another process or kept in a set."""
    before = paper()
    assert pickle.loads(pickle.dumps(before)) == copy.deepcopy(before) == before
    assert len({before, paper()}) == 1


def test_a_certificate_cannot_be_changed() -> None:
    """If this fails, the promise can be edited after it was given."""
    parameters = {"sigma": 1.25}
    given_out = paper(parameters=parameters)
    parameters["sigma"] = 99.0
    assert given_out.parameters["sigma"] == 1.25
    with pytest.raises(TypeError):
        given_out.parameters["sigma"] = 2.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        given_out.epsilon = 0.1  # type: ignore[misc]


def test_both_claims_stand_in_every_face() -> None:
    """If this fails, a reader sees only what was spent, or only what is guaranteed."""
    text, line, table = str(paper()), repr(paper()), paper()._repr_html_()
    for face in (text, line, table):
        assert "2.99" in face
        assert "0.5" in face
        assert "NOT PRIVATE" not in face
    assert "replace one record" in text
    assert "9,999" in text
    assert "sigma" in text
    assert len(text.splitlines()) > 8
    assert len(line.splitlines()) == 1


def test_what_is_not_private_says_so_first() -> None:
    """If this fails, a seeded or non-private answer looks like a private one."""
    open_book = paper(private=False, reason="a seed was given", epsilon=math.inf, spent=(math.inf, 0.0))
    assert str(open_book).startswith("NOT PRIVATE")
    assert "a seed was given" in str(open_book)
    assert repr(open_book).startswith("PrivacyCertificate(NOT PRIVATE: a seed was given")
    assert open_book._repr_html_().index("NOT PRIVATE") < open_book._repr_html_().index("report noisy max")
    assert open_book.to_dict()["private"] is False
    assert open_book.to_dict()["epsilon"] == "inf"


@pytest.mark.parametrize("neighbors", Neighbors)
def test_the_relation_is_named_and_its_condition_too(neighbors: Neighbors) -> None:
    """If this fails, zero-out passes for add/remove, or nobody is told that the number of records is public."""
    for notes in ((), (PUBLIC_COUNT,), ("other",)):
        given_out = paper(neighbors=neighbors, notes=notes)
        assert given_out.notes.count(PUBLIC_COUNT) == (
            neighbors is not Neighbors.ADD_OR_REMOVE_ONE or PUBLIC_COUNT in notes
        )
        for face in (str(given_out), repr(given_out), given_out._repr_html_(), given_out.to_json()):
            assert neighbors.name.lower() in face.lower()
            if neighbors is Neighbors.REPLACE_SPECIAL:
                assert "add_or_remove" not in face.lower()
    rows = dict(paper(neighbors=neighbors)._rows())
    assert rows["neighbours"].startswith(
        {
            Neighbors.REPLACE_ONE: "replace one",
            Neighbors.ADD_OR_REMOVE_ONE: "add or remove",
            Neighbors.REPLACE_SPECIAL: "zero-out",
        }[neighbors]
    )


def test_the_name_of_a_model_cannot_forge_lines_or_markup() -> None:
    """If this fails, a hostile model name runs a script in a notebook or writes lines of its own."""
    hostile = "m\n  reserved  epsilon = 0\u2028<script>alert(1)</script>&\"'"
    given_out = paper(model=hostile, notes=(hostile,), parameters={hostile: hostile})
    assert len(str(given_out).splitlines()) == len(
        str(paper(model="m", notes=("m",), parameters={"m": "m"})).splitlines()
    )
    seen: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    Tags().feed(given_out._repr_html_())
    assert set(seen) == {"table", "caption", "tr", "th", "td"}
    assert len(repr(paper(mechanism=hostile)).splitlines()) == 1


def test_the_table_takes_its_colours_from_the_page() -> None:
    """If this fails, the certificate cannot be read on a dark page or on a light one."""
    table = paper()._repr_html_().lower()
    assert "#" not in table
    assert "color:inherit" in table


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "inf"},
        {"delta": 1.5},
        {"delta": -0.1},
        {"spent": (1.0,)},
        {"spent": (-1.0, 0.0)},
        {"spent": (math.inf, 0.0)},
        {"spent": (0.0, 2.0)},
        {"remaining": -1},
        {"neighbors": "add"},
        {"private": False},
        {"reason": "but private"},
        {"private": "no"},
        {"parameters": {"sigma": math.nan}},
        {"parameters": {"sigma": [1]}},
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    """If this fails, a certificate claims privacy with an infinite epsilon, or a number that is none."""
    with pytest.raises(InvalidParameter, match="Expected"):
        paper(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"epsilon": 1}'])
def test_text_that_is_no_certificate_is_refused(text: str) -> None:
    """If this fails, a truncated certificate is read as one."""
    with pytest.raises(InvalidParameter, match="certificate"):
        PrivacyCertificate.from_json(text)
    fields = paper().to_dict()
    with pytest.raises(InvalidParameter, match="certificate"):
        PrivacyCertificate.from_dict(fields | {"more": 1})
