"""What the suites share: members, and what an engine says of itself."""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.canary import CANARY, reported

from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.ports import Continuation, MemberPrompt, Token

HEAD = "Read the text.\n"
TAIL = "Label:"
WORDS = ("good", "bad", "great", "dull", "positive", "negative")


def prompt(member: int, *, body: Any = None, tail: str = TAIL, head: str = HEAD, **more: str) -> MemberPrompt:
    """Member i has seen one word three times over."""
    text = f"Label: {WORDS[member % 6]}\n" * (3 + member // 6) if body is None else body
    return MemberPrompt(head=head, body=text, tail=tail, member=("member", member, text), **more)


def asked(
    members: Sequence[int | MemberPrompt], written: Sequence[Token] = (), draw: float = 0.5
) -> list[Continuation]:
    """Members with the same written tokens and coin."""
    prompts = [one if isinstance(one, MemberPrompt) else prompt(one) for one in members]
    return [Continuation(one, tuple(written), draw) for one in prompts]


class EngineContract:
    """What every suite asks of a subclass."""

    reads = True
    """The model repeats a pattern that its prompt shows. False for random weights."""
    remote = False
    """The model runs on a server, so that a release watches whether it answers."""
    exact = True
    """A member's numbers are the same bits in any company. False where that is a server's promise."""

    def clean(self, engine: Any) -> None:
        """Make the engine cold."""
        engine.forget(*(prompt(i).member for i in range(12)))

    def too_long(self, engine: Any) -> MemberPrompt:
        """A member that does not fit."""
        room = getattr(engine, "max_prompt_tokens", 2 * engine.max_tail_tokens)  # of engines that write tokens too
        return prompt(7, body="word " * (2 * room))

    def broken(self) -> MemberPrompt:
        """A member whose content no engine can evaluate."""
        return prompt(8, body=b"no text")

    def test_an_engine_is_not_pickled_and_not_copied(self, engine: Any) -> None:
        """If it breaks, private caches travel in a pickle to a worker or a disk."""
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(PrivateDataError):
                attempt(engine)

    def test_it_says_where_its_model_runs(self, engine: Any) -> None:
        """If it breaks, an outage of a server is answered by noise."""
        assert getattr(engine, "remote", False) is self.remote

    def test_a_public_text_that_has_no_tokens_is_refused(self, engine: Any) -> None:
        """If it breaks, a question that cannot be tokenized is called an outage."""
        for text in unreadable(engine):
            with contextlib.suppress(InvalidParameter):
                assert engine.count_tokens(text) > 0

    def test_texts_are_counted(self, engine: Any) -> None:
        """If it breaks, a length limit is checked against nonsense."""
        counts = [engine.count_tokens(text) for text in ("", "good", "good " * 20)]
        assert counts[0] == 0 < counts[1] < counts[2]


def unreadable(engine: Any) -> list[str]:
    """Public texts that no member has room for: a run of one mark, and many words."""
    most = getattr(engine, "max_prompt_tokens", 2 * engine.max_tail_tokens)  # of engines that write tokens too
    return ["!" * max(9_000, 20 * most), "word " * (2 * most)]


def without_trace(call: Callable[[], object], expected: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """``call`` raises, and neither its exception, nor a frame of an adapter, nor the log holds the canary."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(expected) as caught:
        call()
    error = caught.value
    assert (error.__cause__, error.__context__) == (None, None)
    assert not [text for text in reported(error) if CANARY in text]
    assert CANARY not in caplog.text
