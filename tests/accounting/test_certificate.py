"""The papers that travel with an answer or a sanitized text: what they say, and that they cannot be forged."""

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
from langchain_dp.accounting.certificate import PUBLIC_COUNT, WHOLE_TEXTS, PrivacyCertificate
from langchain_dp.accounting.events import Neighbors
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger, Owner
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


def metric(**changes: Any) -> MetricCertificate:
    fields: dict[str, Any] = {
        "mechanism": "exponential",
        "eta": 14.0,
        "table": "minilm (30,522 x 384, 0011aabb)",
        "neighbor_distance": 0.5,
        "replaced": 0.5,
        "user_spent": 28.0,
        "document_spent": 14.0,
        "user_limit": 100.0,
        "releases": 2,
        "notes": ("The number of tokens of every text is in clear.",),
        "parameters": {"length": 12},
    }
    return MetricCertificate(**(fields | changes))


both = pytest.mark.parametrize("made", [paper, metric])


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


@given(
    eta=st.one_of(st.just(math.inf), st.floats(1e-9, 1e300)),
    numbers=st.tuples(*[st.none() | st.floats(0, 1e300)] * 4),
    replaced=st.none() | st.floats(0, 1),
    texts=st.tuples(st.text(), st.text(min_size=1)),
    notes=st.lists(st.text()).map(tuple),
)
def test_json_brings_back_an_equal_metric_certificate(
    numbers: tuple[float | None, ...], texts: tuple[str, str], **fields: Any
) -> None:
    """If it breaks, a stored certificate says something else than the one that was handed out."""
    names = ("neighbor_distance", "user_spent", "document_spent", "document_limit")
    before = metric(table=texts[0], private=False, reason=texts[1], **dict(zip(names, numbers, strict=True)), **fields)
    text = before.to_json()
    json.loads(text, parse_constant=pytest.fail)  # strict JSON has no Infinity
    assert MetricCertificate.from_json(text) == before


@both
def test_certificates_can_be_pickled_copied_and_hashed(made: Any) -> None:
    """If this fails, an answer that carries its certificate cannot be sent to another process or kept in a set."""
    before = made()
    assert pickle.loads(pickle.dumps(before)) == copy.deepcopy(before) == before
    assert len({before, made()}) == 1


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


@both
def test_what_is_not_private_says_so_first(made: Any) -> None:
    """If this fails, seeded, masked or otherwise non-private results look like private ones."""
    loss = {"epsilon": math.inf, "spent": (math.inf, 0.0)} if made is paper else {"eta": math.inf}
    open_book = made(private=False, reason="a seed was given", **loss)
    assert str(open_book).startswith("NOT PRIVATE")
    assert "a seed was given" in str(open_book)
    assert "nats per unit" not in str(open_book)
    assert repr(open_book).startswith(f"{type(open_book).__name__}(NOT PRIVATE: a seed was given")
    assert open_book._repr_html_().index("NOT PRIVATE") < open_book._repr_html_().index(open_book.mechanism)
    stored = open_book.to_dict()
    assert (stored["private"], stored.get("epsilon", stored.get("eta"))) == (False, "inf")


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
    assert rows["neighbors"].startswith(
        {
            Neighbors.REPLACE_ONE: "replace one",
            Neighbors.ADD_OR_REMOVE_ONE: "add or remove",
            Neighbors.REPLACE_SPECIAL: "zero-out",
        }[neighbors]
    )


@both
def test_a_name_cannot_forge_lines_or_markup(made: Any) -> None:
    """If this fails, a hostile name of a model or table runs a script in a notebook or writes lines of its own."""
    hostile = "m\n  reserved  epsilon = 0\u2028<script>alert(1)</script>&\"'"
    named = "model" if made is paper else "table"
    given_out, plain = (made(**{named: name}, notes=(name,), parameters={name: name}) for name in (hostile, "m"))
    assert len(str(given_out).splitlines()) == len(str(plain).splitlines())
    seen: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    Tags().feed(given_out._repr_html_())
    assert set(seen) == {"table", "caption", "tr", "th", "td"}
    assert len(repr(made(mechanism=hostile)).splitlines()) == 1
    assert "#" not in made()._repr_html_()  # its colours are those of the page, dark or light
    assert "color:inherit" in made()._repr_html_().lower()


def test_a_metric_certificate_is_no_epsilon_and_says_so() -> None:
    """If it breaks, somebody adds nats per unit of distance to an epsilon, or cannot tell what they mean."""
    for face in (str(metric()), metric()._repr_html_()):
        assert "not an epsilon" in face
        assert "delta" not in face
        assert "14 nats per unit of distance in minilm" in face
        assert "After one release the odds are at most 1,097 to 1: exp(7)." in face
        assert "average distance of ordinary English, 0.5" in face
        for part in (
            "probability 0.5",
            "eta = 28 so far (limit 100)",
            "eta = 14 so far (no limit)",
            "number of tokens",
        ):
            assert part in face
    rows = dict(line.strip().split("  ", 1) for line in str(metric()).splitlines()[1:])
    for row in ("protected from", "protected unit", "less protected", "not protected"):
        sentences = rows[row].split(". ")
        assert max(len(sentence.split()) for sentence in sentences) <= 20
    whole = str(metric(table=WHOLE_TEXTS, neighbor_distance=None, eta=2.0))
    assert "odds are at most 8 to 1" in whole
    assert "any other text could have been the original" in whole
    assert "similar word" not in whole
    assert "protected unit" not in str(metric(private=False, reason="seeded"))
    assert metric().word_loss == 7.0
    assert metric(neighbor_distance=None).word_loss is None
    stored = metric().to_dict()
    assert not {"epsilon", "delta", "neighbors"} & set(stored)
    assert stored["kind"] == "metric privacy"
    with pytest.raises(InvalidParameter):
        PrivacyCertificate.from_dict(stored)
    with pytest.raises(InvalidParameter):
        MetricCertificate.from_dict(stored | {"kind": "differential privacy"})


def test_a_metric_ledger_certifies_what_is_spent() -> None:
    """If it breaks, the certificate of a ledger hides the largest account, or shows whose it is."""
    ledger = MetricLedger(50.0)
    empty = ledger.certificate(mechanism="laplace", eta=2.0, table="t")
    assert (empty.releases, empty.user_spent, empty.document_spent) == (0, None, None)
    ledger.spend(2.0, [Owner("d", "alice"), Owner("d", "alice"), Owner("e")], table="t")
    full = ledger.certificate(mechanism="laplace", eta=2.0, table="t")
    assert (full.releases, full.user_spent, full.document_spent, full.user_limit) == (3, 4.0, 4.0, 50.0)
    assert "alice" not in str(full)


@pytest.mark.parametrize(
    ("made", "changes"),
    [
        *((paper, {"epsilon": value}) for value in (-1.0, math.nan, math.inf, "inf")),
        *((paper, {"delta": value}) for value in (1.5, -0.1)),
        *((paper, {"spent": value}) for value in ((1.0,), (-1.0, 0.0), (math.inf, 0.0), (0.0, 2.0))),
        *((paper, changes) for changes in ({"remaining": -1}, {"neighbors": "add"}, {"private": "no"})),
        *((metric, {"eta": value}) for value in (0.0, math.nan, math.inf)),
        *((metric, changes) for changes in ({"replaced": 1.1}, {"neighbor_distance": -1.0}, {"releases": -1})),
        *((made, {"private": False}) for made in (paper, metric)),
        *((made, {"reason": "but private"}) for made in (paper, metric)),
        *((made, {"parameters": {"sigma": value}}) for made in (paper, metric) for value in (math.nan, [1])),
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(made: Any, changes: dict[str, Any]) -> None:
    """If this fails, a certificate claims privacy with an infinite loss, or a number that is none."""
    with pytest.raises(InvalidParameter, match="Expected"):
        made(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"epsilon": 1}'])
def test_text_that_is_no_certificate_is_refused(text: str) -> None:
    """If this fails, a truncated certificate is read as one."""
    with pytest.raises(InvalidParameter, match="certificate"):
        PrivacyCertificate.from_json(text)
    fields = paper().to_dict()
    with pytest.raises(InvalidParameter, match="certificate"):
        PrivacyCertificate.from_dict(fields | {"more": 1})
