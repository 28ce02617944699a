"""Models that really read their prompt: each votes for the majority label of its own shots.

What is asked is kept, so that a test can say who was asked what. ``reply`` replaces the majority vote: it may raise,
block or talk nonsense. A public prompt, with invented examples only, comes to it without shots; unless ``helpful`` is
False its answer is then a label, as a healthy model's would be.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from fakes.canary import CANARY
from fakes.groups import grouped, with_sampling
from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.icl import ModelCallOptions
from langchain_dp.icl.prompts import INVENTED, TEST_QUESTION
from langchain_dp.ports import MemberPrompt

LABELS = ["positive", "negative"]
Shots = list[tuple[str, str]]
Reply = Callable[[Shots, str], str]


def private_examples(count: int, *, labels: Sequence[str] = ("positive",), start: int = 0) -> list[dict[str, str]]:
    """Examples with the canary in every text; labels in turn. One label only makes every vote the same."""
    return [{"text": f"note {i:03d} {CANARY}", "label": labels[i % len(labels)]} for i in range(start, start + count)]


def majority(shots: Shots, question: str) -> str:
    """Most frequent label of the shots, ties to the alphabet; a word that is no label without any shots."""
    counts = Counter(word for _, word in shots)
    return max(sorted(counts), key=lambda word: counts[word], default="unknown")


def failing(shots: Shots, question: str) -> str:
    """Raise with the whole prompt in the message, on every prompt that holds examples."""
    if shots:
        raise RuntimeError(f"rejected: {shots}")
    return "fine"


def nonsense(shots: Shots, question: str) -> str:
    """Say nothing that could be a label."""
    return "I would rather talk about the weather."


def classifier(model: Any = None, **changes: Any) -> DPICLClassifier:
    """A small classifier: 8 subsets of 3 shots that all vote, on noise far below their 8 votes.

    Its 24 examples have one label, so the answer is "positive" but for a chance below 1e-9.
    """
    settings: dict[str, Any] = {
        "model": VotingChat() if model is None else model,
        "labels": LABELS,
        "max_queries": 5,
        "shots": 3,
        "subsets": 8,
        "partitions": 8,
        "sampling_probability": 1.0,
    } | changes
    if "examples" not in settings:
        settings["examples"] = private_examples(24)
    if "budget" not in settings and "ledger" not in settings:
        settings["budget"] = PrivacyBudget(50.0)
    return DPICLClassifier(**grouped(with_sampling(settings), model_calls=ModelCallOptions))


def left(chain: DPICLClassifier) -> int:
    """How many more releases the chain's plan covers."""
    remaining = chain.certificate().remaining
    assert remaining is not None
    return remaining


def private_part(shots: Shots) -> Shots:
    """The shots without invented ones."""
    return [(text, word) for text, word in shots if not is_invented(text)]


def is_invented(text: str) -> bool:
    """Whether a rendered text is one of those that public prompts show."""
    return any(invented in text for invented in INVENTED)


class Asked:
    """What a double was asked so far, public prompts apart. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.probes = 0
        self.companions = 0
        self.prompts: list[str] = []
        self.shots: list[Shots] = []
        self.questions: list[str] = []

    def note(self, prompt: str, shots: Shots, question: str) -> None:
        """Keep one prompt; one without shots is public: a probe, or the companion of a question."""
        with self._lock:
            if shots:
                self.prompts.append(prompt)
                self.shots.append(shots)
                self.questions.append(question)
            elif TEST_QUESTION in question:
                self.probes += 1
            else:
                self.companions += 1

    def clear(self) -> None:
        """Forget what was asked."""
        with self._lock:
            self.prompts.clear()
            self.shots.clear()
            self.questions.clear()

    def __len__(self) -> int:
        return len(self.prompts)


class VotingChat(BaseChatModel):
    """A chat model that votes by ``reply``. Sync only: its async calls run in threads."""

    keeps_no_prompts: ClassVar[bool] = True
    model_name: str = "voting-chat-1"
    reply: Reply = majority
    helpful: bool = True
    asked: Any = Field(default_factory=Asked)

    @property
    def _llm_type(self) -> str:
        return "voting-chat"

    def vote(self, messages: list[BaseMessage]) -> str:
        """Read the conversation and answer its last turn."""
        turns = [message for message in messages if message.type != "system"]
        shots = [(str(q.content), str(a.content)) for q, a in zip(turns[:-1:2], turns[1::2], strict=True)]
        assert isinstance(turns[-1], HumanMessage)
        question = str(turns[-1].content)
        private = private_part(shots)
        self.asked.note("\n".join(f"{message.type}: {message.content}" for message in messages), private, question)
        said = self.reply(private, question)
        return shots[0][1] if self.helpful and shots and not private else said

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.vote(messages)))])


class AsyncVotingChat(VotingChat):
    """The same with async methods; ``before`` is awaited first by each call that holds examples."""

    keeps_no_prompts: ClassVar[bool] = True
    before: Callable[[], Any] | None = None

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        if self.before is not None and not any(is_invented(str(message.content)) for message in messages):
            await self.before()
        return self._generate(messages)


def read_text(prompt: str) -> tuple[Shots, str]:
    """Shots and question of a plain text prompt, whatever its cue; the word of a shot follows the cue."""
    *blocks, question = prompt.split("\n\n")
    shots = [match.groups() for block in blocks if (match := re.fullmatch(r"(.*\n[^:\n]+:) (\S.*)", block, re.DOTALL))]
    return [(str(asked), str(word)) for asked, word in shots], question


class VotingLLM(LLM):
    """A completion model that votes by ``reply``."""

    keeps_no_prompts: ClassVar[bool] = True
    reply: Reply = majority
    helpful: bool = True
    asked: Any = Field(default_factory=Asked)

    @property
    def _llm_type(self) -> str:
        return "voting-llm"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        shots, question = read_text(prompt)
        private = private_part(shots)
        self.asked.note(prompt, private, question)
        said = self.reply(private, question)
        return shots[0][1] if self.helpful and shots and not private else said


class VotingEngine:
    """An engine that scores labels by their share among a member's shots, and keeps what it was given.

    ``spoil(prompt)`` may raise for one member; ``row(scores)`` may replace a row; ``during()`` runs inside each call.
    """

    name = "voting-engine-1"
    max_tail_tokens = 50

    def __init__(
        self,
        *,
        spoil: Callable[[MemberPrompt], object] = lambda prompt: None,
        row: Callable[[list[float]], list[float] | None] = lambda scores: scores,
        during: Callable[[], object] = lambda: None,
    ) -> None:
        self.calls: list[list[MemberPrompt]] = []
        self.words: list[list[str]] = []
        self.content_free: list[tuple[str, ...]] = []
        self.cache: dict[Hashable, str] = {}
        self.forgotten: list[Hashable] = []
        self._spoil, self._row, self._during = spoil, row, during

    def count_tokens(self, text: str) -> int:
        """Words."""
        return len(text.split())

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """Share of each word among the member's shots."""
        self.calls.append(list(prompts))
        self.words.append(list(words))
        self.content_free.append(tuple(content_free))
        self._during()
        rows = []
        for prompt in prompts:
            self._spoil(prompt)
            self.cache[prompt.member] = prompt.body
            rows.append(self._row([float(prompt.body.count(f":{word}\n")) for word in words]))
        return rows

    def forget(self, *members: Hashable) -> None:
        """Drop what is cached of the members."""
        for member in members:
            self.forgotten.append(member)
            self.cache.pop(member, None)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Cache these members."""
        self.cache.update({prompt.member: prompt.body for prompt in prompts})
