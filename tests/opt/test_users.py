"""Users in written and selected prompts: one record stands for each user."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.optimizers import examples, optimizer

from langchain_dp import PrivateRecords
from langchain_dp.errors import InvalidParameter

LATER = "latercanary"


def of_users(per_user: int = 3) -> list[dict[str, Any]]:
    """Forty users; only the oldest record of each may be read."""
    first = [{**row, "user": f"u{number}"} for number, row in enumerate(examples(40))]
    later = [{**row, "text": f"{LATER} {row['text']}"} for row in first for _ in range(per_user - 1)]
    return [*first, *later]


def test_one_record_stands_for_each_user() -> None:
    """If it breaks, a user of many records moves many votes, and the certificate promises otherwise."""
    alone = optimizer(not_private_seed=7).invoke(examples(40))
    chosen = optimizer(not_private_seed=7)
    prompt = chosen.invoke(PrivateRecords(of_users(), user_key="user"))
    assert prompt.messages == alone.messages
    plan = chosen.plan(PrivateRecords(of_users(), user_key="user"))
    assert plan.to_dict() == optimizer().plan(examples(40)).to_dict()
    assert "the promise holds for all records of one user" in chosen.certificate().notes
    assert "the promise holds for all records of one user" in prompt.metadata["dp"]["notes"]
    assert CANARY not in repr(prompt)


def test_more_records_of_a_user_are_refused() -> None:
    """If it breaks, somebody asks for two records a user, and gets one without a word."""
    records = PrivateRecords(of_users(), user_key="user", records_per_user=2)
    with pytest.raises(InvalidParameter, match=r"records_per_user=2 to be 1"):
        optimizer().invoke(records)
