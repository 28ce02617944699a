"""Users in synthetic examples: a member is a user, shown by the oldest record."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.scorer import WordScorer
from fakes.synthesizers import rows, synthesizer

from langchain_dp import PrivateRecords
from langchain_dp.errors import InvalidParameter


def of_users() -> list[dict[str, Any]]:
    """120 users of three records; only the oldest one of each may be read."""
    first = [{**row, "user": f"u{number}"} for number, row in enumerate(rows())]
    return [*first, *({**row, "text": f"later {row['text']}"} for row in first for _ in range(2))]


def test_a_member_is_a_user() -> None:
    """If it breaks, a user of many records is several members, or the certificate does not say what the unit is."""
    bodies: list[str] = []
    made = synthesizer(WordScorer(before=bodies.extend))
    found = made.invoke(PrivateRecords(of_users(), user_key="user"))
    assert bodies
    assert not [body for body in bodies if "later" in body.replace("is late", "")]
    assert len({body for body in bodies if "parcel" in body or "invoice" in body}) <= 121
    assert "the promise holds for all records of one user" in found.certificate.notes
    assert made.plan(PrivateRecords(of_users(), user_key="user")).to_dict() == made.plan(rows()).to_dict()


def test_more_records_of_a_user_are_refused() -> None:
    """If it breaks, somebody asks for two records a user, and gets one without a word."""
    records = PrivateRecords(of_users(), user_key="user", records_per_user=2)
    with pytest.raises(InvalidParameter, match=r"records_per_user=2 to be 1"):
        synthesizer().invoke(records)
