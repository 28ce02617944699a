"""A server that dies under a private run is loud: its silence is not released as votes, and what was paid for stays."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import SENTENCE, examples, optimizer, used

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.opt.templates import CONTENT_FREE


class Served(WordEngine):
    """An engine that asks a server, which is gone after so many calls on records: all its members abstain then."""

    remote = True

    def __init__(self, calls: int) -> None:
        super().__init__(agreeing(SENTENCE))
        self.left = calls
        self.scored: list[str] = []

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        self.left -= bool(asked[0].prompt.body)
        return super().next_tokens(asked, decoding) if self.left > 0 else [None] * len(asked)

    def score_labels(self, prompts: Any, words: Any, *, content_free: Any = ()) -> Any:
        self.scored += [prompt.body for prompt in prompts]
        if self.left > 0:
            return super().score_labels(prompts, words, content_free=content_free)
        return [None] * len(prompts)


@pytest.mark.parametrize("calls", [1, 4, 9])
def test_a_server_that_dies_costs_one_token_and_the_run_goes_on_later(calls: int) -> None:
    """The rest of the plan is spent on votes that nobody cast, and the prompt is made of noise."""
    engine = Served(calls)
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1))
    made = optimizer(engine, ledger=ledger)
    with pytest.raises(ModelUnavailable, match="invoke this optimizer again to go on"):
        made.invoke(examples())
    assert used(ledger) == {"training": calls, "validation": 0}
    before = made.released()
    engine.left = 1000
    made.invoke(examples())
    assert made.released() == [SENTENCE, SENTENCE]
    assert all(SENTENCE.startswith(text) for text in before)
    assert used(ledger) == {"training": 13, "validation": 1}


class Broken(WordEngine):
    """An engine that scores labels, and writes nothing: it lacks the chat template that it is asked to use, say."""

    def __init__(self, how: str) -> None:
        super().__init__(agreeing(SENTENCE))
        self.how = how

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        if self.how == "refuses":
            raise InvalidParameter("Expected the GGUF file to hold a chat template.")
        if self.how == "raises":
            raise RuntimeError(SENTENCE)
        return [None] * len(asked)


@pytest.mark.parametrize(
    ("how", "said"),
    [("refuses", "hold a chat template"), ("raises", "RuntimeError"), ("abstains", "wrote no token")],
)
def test_an_engine_that_writes_nothing_costs_nothing(how: str, said: str) -> None:
    """If it breaks, every subset abstains, the budget is spent on noise, and the initial prompt comes back unsaid."""
    ledger = PrivacyLedger(PrivacyBudget(200.0, 0.1))
    with pytest.raises((InvalidParameter, ModelUnavailable), match=said) as caught:
        optimizer(Broken(how), ledger=ledger).invoke(examples())
    assert SENTENCE not in str(caught.value)
    assert used(ledger) == {"training": 0, "validation": 0}


def test_a_local_engine_is_not_watched() -> None:
    """Every token costs one more evaluation where nothing can die."""
    engine = Served(1000)
    engine.remote = False  # type: ignore[misc]
    optimizer(engine).invoke(examples())
    assert sum(CONTENT_FREE[0] in body for body in engine.scored) <= 3
