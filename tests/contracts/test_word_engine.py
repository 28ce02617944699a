"""The contracts, kept by the fake that the optimizer is tested on."""

from __future__ import annotations

import pytest
from fakes.next_token import WordEngine

from contracts.labels import LabelContract
from contracts.next_token import NextTokenContract


class TestWordEngine(NextTokenContract, LabelContract):
    """A fake that breaks the contract would hide faults of what is tested on it."""

    @pytest.fixture
    def engine(self) -> WordEngine:
        return WordEngine(max_prompt_tokens=300)
