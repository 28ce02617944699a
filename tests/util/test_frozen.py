"""What is frozen with its mappings can still be copied, pickled and sent to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger, Quotas
from langchain_dp.audit.watch.reading import figures
from langchain_dp.icl import TREC
from langchain_dp.opt import OptPrompts

MADE = [
    TREC,
    OptPrompts(words={1: "yes", 0: "no"}),
    Quotas(overrides={"team-7": 2}),
    figures(PrivacyLedger(PrivacyBudget(1.0))),
]
WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
@pytest.mark.parametrize("way", WAYS, ids=["copy", "deepcopy", "pickle"])
def test_a_copy_equals_what_was_copied(made: Any, way: Callable[[Any], Any]) -> None:
    again = way(made)
    assert type(again) is type(made)
    assert again == made


def test_shares_of_askers_cannot_be_changed_once_they_are_checked() -> None:
    shares = Quotas(overrides={"team-7": 2})
    with pytest.raises(TypeError):
        shares.overrides["team-7"] = 10**6  # type: ignore[index]  # which is the point
    assert shares.to_dict() == {"default": None, "overrides": {"team-7": 2}}
