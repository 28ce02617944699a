"""The paper that travels with sanitized text: its unit, its words, and that it passes for nothing else."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger, Owner
from langchain_dp.errors import InvalidParameter


def paper(**changes: Any) -> MetricCertificate:
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


@given(
    eta=st.one_of(st.just(math.inf), st.floats(1e-9, 1e300)),
    numbers=st.tuples(*[st.none() | st.floats(0, 1e300)] * 4),
    replaced=st.none() | st.floats(0, 1),
    texts=st.tuples(st.text(), st.text(min_size=1)),
    notes=st.lists(st.text()).map(tuple),
)
def test_json_brings_back_an_equal_certificate(
    numbers: tuple[float | None, ...], texts: tuple[str, str], **fields: Any
) -> None:
    """If it breaks, a stored certificate says something else than the one that was handed out."""
    names = ("neighbor_distance", "user_spent", "document_spent", "document_limit")
    before = paper(table=texts[0], private=False, reason=texts[1], **dict(zip(names, numbers, strict=True)), **fields)
    text = before.to_json()
    json.loads(text, parse_constant=pytest.fail)  # strict JSON has no Infinity
    assert MetricCertificate.from_json(text) == before
    assert pickle.loads(pickle.dumps(before)) == copy.deepcopy(before) == before


def test_it_is_no_epsilon_and_says_so() -> None:
    """If it breaks, somebody adds nats per unit of distance to an epsilon, or reads them as one."""
    for face in (str(paper()), paper()._repr_html_()):
        assert "not an epsilon" in face
        assert "delta" not in face
        assert "14 nats per unit of distance in minilm" in face
    assert not {"epsilon", "delta", "neighbors"} & set(paper().to_dict())
    assert paper().to_dict()["kind"] == "metric privacy"
    with pytest.raises(InvalidParameter):
        PrivacyCertificate.from_dict(paper().to_dict())
    with pytest.raises(InvalidParameter):
        MetricCertificate.from_dict(paper().to_dict() | {"kind": "differential privacy"})


def test_the_unit_is_said_in_plain_words() -> None:
    """If it breaks, a reader sees an eta and cannot tell what it means for a word."""
    text = str(paper())
    assert "7 nats apart on average over ordinary English (mean distance 0.5); rarer words" in text  # eta x distance
    assert "probability 0.5" in text
    assert "eta = 28 so far (limit 100)" in text
    assert "eta = 14 so far (no limit)" in text
    assert "number of tokens" in text
    assert paper().word_loss == 7.0
    assert paper(neighbor_distance=None).word_loss is None


def test_what_is_not_private_says_so_first() -> None:
    """If it breaks, seeded or merely masked text looks like private text."""
    masked = paper(private=False, reason="entities are found by a recognizer", eta=math.inf)
    assert str(masked).startswith("NOT PRIVATE")
    assert "entities are found" in str(masked)
    assert repr(masked).startswith("MetricCertificate(NOT PRIVATE: entities")
    assert masked._repr_html_().index("NOT PRIVATE") < masked._repr_html_().index("exponential")
    assert "nats per unit" not in str(masked)


def test_a_name_cannot_forge_lines_or_markup() -> None:
    """If it breaks, a hostile table name writes lines of its own or runs a script in a notebook."""
    hostile = "t\n  eta  0.001 <script>alert(1)</script>"
    given_out = paper(table=hostile, notes=(hostile,))
    assert len(str(given_out).splitlines()) == len(str(paper()).splitlines())
    assert "<script>" not in given_out._repr_html_()
    assert len(repr(given_out).splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"eta": 0.0},
        {"eta": math.nan},
        {"eta": math.inf},
        {"replaced": 1.1},
        {"neighbor_distance": -1.0},
        {"releases": -1},
        {"private": False},
        {"reason": "but private"},
        {"parameters": {"length": [1]}},
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    """If it breaks, a certificate claims privacy without a finite eta, or a number that is none."""
    with pytest.raises(InvalidParameter, match="Expected"):
        paper(**changes)


def test_a_ledger_certifies_what_is_spent() -> None:
    """If it breaks, the certificate of a ledger hides the largest account, or shows whose it is."""
    ledger = MetricLedger(50.0)
    empty = ledger.certificate(mechanism="laplace", eta=2.0, table="t")
    assert (empty.releases, empty.user_spent, empty.document_spent) == (0, None, None)
    ledger.spend(2.0, [Owner("d", "alice"), Owner("d", "alice"), Owner("e")], table="t")
    full = ledger.certificate(mechanism="laplace", eta=2.0, table="t")
    assert (full.releases, full.user_spent, full.document_spent, full.user_limit) == (3, 4.0, 4.0, 50.0)
    assert "alice" not in str(full)
