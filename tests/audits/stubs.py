"""Worst-case models for audits of whole chains: they do what their examples say. No model library."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from audits.laws import attendance, coins
from langchain_dp.accounting import PrivacyLedger
from langchain_dp.audit import NamingEngine
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token

LABELS = ("first", "second")
RECORD = re.compile(r"record (\d+)")


def examples(number: int) -> list[dict[str, str]]:
    """Records that a witness knows again, with labels at odds, and every third of them mute."""
    return [
        {"id": f"r{k}", "text": f"record {k}{' mute' if k % 3 == 2 else ''}", "label": LABELS[label_of(k)]}
        for k in range(number)
    ]


def label_of(record: int) -> int:
    """Place of a record's label: three in four have the first."""
    return int(record % 4 == 3)


class LogRecorder(logging.Handler):
    """Keeps every log line of the process, of every level."""

    def __init__(self) -> None:
        super().__init__(level=1)
        self.lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.levelno, record.getMessage()))

    def __enter__(self) -> LogRecorder:
        root = logging.getLogger()
        names = [name for name in logging.root.manager.loggerDict if name.startswith("langchain_dp")]
        self._levels = {logger: logger.level for logger in (root, *map(logging.getLogger, names))}
        for logger in self._levels:
            logger.setLevel(1)
        root.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        for logger, level in self._levels.items():
            logger.setLevel(level)


@dataclasses.dataclass(frozen=True)
class SeenPrompt:
    """A private prompt as a model saw it."""

    question: Hashable  # the public end of the prompt, and what was written after it
    records: tuple[int, ...]
    body: str
    head: str
    said: Any
    charged: int  # releases that were charged by then


def charges(ledger: PrivacyLedger) -> int:
    """Releases that a ledger holds."""
    return sum(entry.count for entry in ledger.entries())


def who_was_asked(rounds: Iterable[Sequence[SeenPrompt]], *, fixed: bool, q: float) -> float:
    """P-value of who took part in each release: each subset, or record if none is fixed, by a coin of its own."""
    rows = [[unit for one in asked for unit in ([one.records] if fixed else one.records)] for asked in rounds]
    return coins(attendance(rows), q)


def mixed_up(rounds: Iterable[Sequence[SeenPrompt]], *, fixed: bool) -> list[str]:
    """Records that were shown twice in one release or, if subsets are fixed, in two of them."""
    wrong, seats = [], dict[int, tuple[int, ...]]()
    for asked in rounds:
        records = [record for each in asked for record in each.records]
        if len(set(records)) < len(records):
            wrong.append("a record was shown twice in one release")
        if fixed and any(
            seats.setdefault(record, each.records) != each.records for each in asked for record in each.records
        ):
            wrong.append("a record was asked in two subsets")
    return wrong


def at_once(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """What calls give that run beside each other."""

    async def together() -> list[Any]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(together())


class Witness(NamingEngine):
    """A stub model that keeps what it was asked, prompt by prompt, in the order of asking.

    A prompt is private if it holds a record, wherever it stands; others are public, and not kept. Labels are its
    parent's, but a member with a mute record abstains. A token is what the member's first record votes for in a call,
    by the number of calls so far. A single record under an instruction is answered right, or not.
    """

    vocabulary_size = 64
    end_tokens: frozenset[Token] = frozenset({0})
    max_prompt_tokens = 100_000

    def __init__(
        self,
        charged: Callable[[], int] = lambda: 0,
        *,
        vote: Callable[[int, int], int | None] = lambda record, calls: 1,
        right: Callable[[int, str], bool] = lambda record, head: True,
        public: str = "first",
    ) -> None:
        super().__init__()
        self._public = public
        self.shown: list[SeenPrompt] = []
        self.rounds: list[list[SeenPrompt]] = []
        self.charged = charged
        self._vote = vote
        self._right = right

    def see(self, question: Hashable, body: str, head: str, said: Any, charged: int) -> SeenPrompt | None:
        """Keep a prompt that holds a record."""
        records = tuple(map(int, RECORD.findall(f"{head}{body}{question}")))
        if not records:
            return None
        self.shown.append(SeenPrompt(question, records, body, head, said, charged))
        return self.shown[-1]

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """Scores of the labels: of examples in a prompt as the parent says, of a single input as ``right`` says."""
        rows, charged = super().score_labels(prompts, words), self.charged()
        for place, prompt in enumerate(prompts):
            if prompt.body.startswith("Input:"):  # a single record under an instruction
                rows[place] = self._answer(prompt, len(words))
            elif "mute" in prompt.body:
                rows[place] = None
            row = rows[place]
            said = None if row is None else words[row.index(max(row))].strip()
            self.see(prompt.tail, prompt.body, prompt.head, said, charged)
        return rows

    def _answer(self, prompt: MemberPrompt, labels: int) -> list[float]:
        own = RECORD.search(prompt.body)
        if own is None:
            return [0.0] * labels
        right = self._right(int(own[1]), prompt.head)
        return [float((place == label_of(int(own[1]))) == right) for place in range(labels)]

    def say(self, messages: Sequence[BaseMessage]) -> str:
        """The same as a chat model: the label of the last example."""
        *turns, question = (str(message.content) for message in messages)
        shots = turns[1:]
        said = "nothing" if any("mute" in turn for turn in shots) else shots[-1] if shots else self._public
        self.see(question, "\n".join(shots), turns[0], said, self.charged())
        return said

    def detokenize(self, tokens: Sequence[Token]) -> str:
        return "".join(f" word{token}" for token in tokens)

    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """What each member's first record votes for."""
        if not any(one.prompt.body for one in asked):  # first, whether it is there
            return [1] * len(asked)
        kept, charged = [], self.charged()
        for one in asked:
            own = RECORD.search(one.prompt.body)
            said = None if own is None else self._vote(int(own[1]), len(self.rounds))
            kept.append(self.see((one.prompt.tail, one.written), one.prompt.body, one.prompt.head, said, charged))
        self.rounds.append([each for each in kept if each is not None])
        return [None if each is None else each.said for each in kept]
