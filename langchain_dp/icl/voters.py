"""How ballots are cast: by asking a LangChain model once per subset, or by an engine that scores all at once.

Whatever goes wrong with one subset's call, that subset abstains. Nothing here raises on private content.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.runnables import Runnable

from langchain_dp._company import ask_together, count_unseen
from langchain_dp._quiet_calls import in_own_thread
from langchain_dp._quiet_context import sealed
from langchain_dp._quiet_filters import Level
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.icl.votes import Ballot, Vote
from langchain_dp.parsing import parse_label
from langchain_dp.ports import MemberPrompt, ScoresLabels
from langchain_dp.quiet import QuietModel

_PROBE = "This is a test."
_TIMEOUT_NOTE = (
    "with a timeout, a long example that slows down other calls may cost them their votes: not accounted for"
)


class Voter(Protocol):
    """Casts one vote per ballot, in the same order."""

    name: str
    notes: tuple[str, ...]

    def check_environment(self) -> None:
        """Raise UnsafeEnvironment if a call now would be refused for what is set in this process. Before any spend."""

    def check(self, question: str) -> None:
        """Raise InvalidParameter if the question is too long for the model. Data-independent."""

    def probe(self) -> None:
        """Ask one public question, so that a dead model is found before any budget is spent."""

    async def aprobe(self) -> None:
        """Async twin of :meth:`probe`."""

    def ask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """Cast the votes; a subset without examples is asked only if ``even_empty`` (zero-shot)."""

    async def aask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """Async twin of :meth:`ask`."""

    def forget(self, member: Hashable) -> None:
        """Drop what is cached of a subset's former content."""

    def warm(self, ballots: Sequence[Ballot]) -> None:
        """Build caches."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, or an estimate."""


class ModelVoter:
    """One call of a chat model, completion model or Runnable per subset."""

    def __init__(
        self,
        llm: Runnable[Any, Any],
        *,
        prompt: ICLPrompt,
        words: Sequence[str],
        structured_output: bool,
        timeout: float | None,
        max_concurrency: int | None,
        max_question_chars: int,
        accept_unchecked_model: bool,
    ) -> None:
        # A completion model and a Runnable without chat roles get text; everything else gets messages.
        self._chat = not _takes_text(llm)
        inner = llm
        if structured_output:
            if not isinstance(llm, BaseChatModel):
                raise InvalidParameter(
                    f"Expected llm={type(llm).__name__} to be a chat model when structured_output=True. "
                    "Leave it off, or wrap the model in a chat class."
                )
            schema = {
                "title": "Label",
                "description": "The label of the last text.",
                "type": "object",
                "properties": {"label": {"type": "string", "enum": list(words)}},
                "required": ["label"],
            }
            inner = llm.with_structured_output(schema)
        self._model = QuietModel(inner, accept_unchecked_model=accept_unchecked_model)
        self._model.check_timeout(timeout)
        plain = QuietModel(llm, accept_unchecked_model=accept_unchecked_model) if structured_output else self._model
        self.name = plain.name
        self.notes: tuple[str, ...] = (*(() if timeout is None else (_TIMEOUT_NOTE,)), *self._model.notes)
        self._prompt = prompt
        self._words = list(words)
        self._timeout = timeout
        self._max_concurrency = max_concurrency
        self._max_question_chars = max_question_chars

    def check_environment(self) -> None:
        """A memory that the model made with its first call is found here, and not after the charge."""
        self._model.check_environment()

    def _render(self, ballot: Ballot) -> Any:
        if self._chat:
            return self._prompt.messages(ballot.shots, ballot.question, self._words)
        return self._prompt.head() + self._prompt.body(ballot.shots) + ballot.question

    def check(self, question: str) -> None:
        """Raise InvalidParameter if the question is longer than ``max_question_chars``."""
        if len(question) > self._max_question_chars:
            raise InvalidParameter(
                f"Expected the question, {len(question)} characters with its template, to be at most "
                f"max_question_chars={self._max_question_chars}. Shorten it, or raise the limit if the model's context "
                "holds it beside the examples."
            )

    def _public(self) -> Any:
        fields = dict.fromkeys(self._prompt.variables, _PROBE)
        return self._render(Ballot(None, (), self._prompt.ask(fields)))

    def probe(self) -> None:
        """One zero-shot call on a public text."""
        self._model.probe(self._public(), timeout=self._timeout)

    async def aprobe(self) -> None:
        """Async twin of :meth:`probe`."""
        await self._model.aprobe(self._public(), timeout=self._timeout)

    def ask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """One call per ballot that holds examples."""
        asked = [ballot for ballot in ballots if ballot.shots or even_empty]
        answers = self._model.batch(
            [self._render(ballot) for ballot in asked], max_concurrency=self._max_concurrency, timeout=self._timeout
        )
        return self._spread(ballots, answers, even_empty)

    async def aask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """Async twin of :meth:`ask`."""
        asked = [ballot for ballot in ballots if ballot.shots or even_empty]
        answers = await self._model.abatch(
            [self._render(ballot) for ballot in asked], max_concurrency=self._max_concurrency, timeout=self._timeout
        )
        return self._spread(ballots, answers, even_empty)

    def _spread(self, ballots: Sequence[Ballot], answers: Sequence[Any], even_empty: bool) -> list[Vote]:
        remaining = iter(answers)
        return [_read(next(remaining), self._words) if ballot.shots or even_empty else None for ballot in ballots]

    def forget(self, member: Hashable) -> None:
        """Nothing is kept here."""

    def warm(self, ballots: Sequence[Ballot]) -> None:
        """Nothing is kept here."""

    def count_tokens(self, text: str) -> int:
        """Four characters a token, the usual rule for English."""
        return -(-len(text) // 4)


class EngineVoter:
    """An engine that scores the labels of all subsets at once and keeps their key/value caches."""

    def __init__(
        self, engine: ScoresLabels, *, prompt: ICLPrompt, words: Sequence[str], calibrate: bool, keep_caches: bool
    ) -> None:
        self._engine = engine
        self._keep_caches = keep_caches  # resampled subsets never come back: their caches would only push others out
        self._prompt = prompt
        self._words = [f" {word}" for word in words]
        self._content_free = prompt.content_free() if calibrate else ()
        self._stale: set[Hashable] = set()
        self.notes: tuple[str, ...] = tuple(getattr(engine, "notes", ()))
        self.name = engine.name

    def check(self, question: str) -> None:
        """Raise InvalidParameter if the question has more tokens than the engine's public limit."""
        tokens, most = self.count_tokens(question), self._engine.max_tail_tokens
        if tokens > most:
            raise InvalidParameter(
                f"Expected the question, {tokens} tokens with its template, to be at most {most} tokens. "
                "Shorten it, or give the engine a larger max_tokens."
            )

    def probe(self) -> None:
        """The engine was loaded when it was built."""

    async def aprobe(self) -> None:
        """The engine was loaded when it was built."""

    def ask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """Score all ballots in one call; the best label is the vote, ties to the smaller index.

        Empty subsets are scored too and their vote is dropped later, so that who else is in the call does not depend
        on whether a subset has members.
        """
        if not ballots:
            return []
        try:
            rows = ask_together(self._scores, ballots)
        finally:
            # A member that was forgotten while it was being scored has come back into the engine's caches.
            self._drop(ballots, every=not self._keep_caches)
        return [_best(row, len(self._words)) for row in rows]

    def _scores(self, ballots: Sequence[Ballot]) -> list[list[float] | None]:
        members = [self._member(ballot) for ballot in ballots]
        return self._engine.score_labels(members, self._words, content_free=self._content_free)

    def _member(self, ballot: Ballot) -> MemberPrompt:
        return MemberPrompt(self._prompt.head(), self._prompt.body(ballot.shots), ballot.question, ballot.member)

    async def aask(self, ballots: Sequence[Ballot], *, even_empty: bool = False) -> list[Vote]:
        """Async twin of :meth:`ask`, in a worker thread."""
        return await in_own_thread(functools.partial(self.ask, ballots, even_empty=even_empty))  # type: ignore[no-any-return]  # votes

    def check_environment(self) -> None:
        """An engine is asked sealed, whatever is set."""

    def forget(self, member: Hashable) -> None:
        """Drop the subset's key/value cache and scores."""
        self._stale.add(member)
        self._engine.forget(member)

    def warm(self, ballots: Sequence[Ballot]) -> None:
        """Evaluate the examples of every subset once."""
        try:
            for ballot in ballots:
                # It stays cold if that fails; what it says, logs or traces may hold private text.
                with contextlib.suppress(Exception), sealed(Level.QUIET):
                    self._engine.warm([self._member(ballot)])
        finally:
            self._drop(ballots, every=False)

    def _drop(self, ballots: Sequence[Ballot], *, every: bool) -> None:
        gone = [ballot.member for ballot in ballots if every or ballot.member in self._stale]
        if gone:
            self._engine.forget(*gone)

    def count_tokens(self, text: str) -> int:
        """Tokens of the engine's model.

        Raises:
            ModelUnavailable: The engine could not count them.
        """
        return count_unseen(self._engine, text)


def make_voter(
    llm: object,
    *,
    prompt: ICLPrompt,
    words: Sequence[str],
    structured_output: bool,
    calibrate: bool,
    keep_caches: bool,
    timeout: float | None,
    max_concurrency: int | None,
    max_question_chars: int,
    accept_unchecked_model: bool,
) -> Voter:
    """An engine is used as an engine; any other Runnable is asked call by call.

    Raises:
        InvalidParameter: ``llm`` is neither.
        UnsafeEnvironment: ``llm`` keeps what it is told, or cannot be looked into.
    """
    if isinstance(llm, ScoresLabels):
        return EngineVoter(llm, prompt=prompt, words=words, calibrate=calibrate, keep_caches=keep_caches)
    if isinstance(llm, Runnable):
        return ModelVoter(
            llm,
            prompt=prompt,
            words=words,
            structured_output=structured_output,
            timeout=timeout,
            max_concurrency=max_concurrency,
            max_question_chars=max_question_chars,
            accept_unchecked_model=accept_unchecked_model,
        )
    raise InvalidParameter(
        f"Expected llm={type(llm).__name__} to be a chat model, a completion model, a Runnable or an engine that "
        "scores labels. Wrap a function in RunnableLambda."
    )


def _read(answer: Any, words: Sequence[str]) -> Vote:
    try:
        return None if answer is None else parse_label(answer, words)
    except Exception:  # whatever a model returns, the subset abstains
        return None


def _best(row: Sequence[float] | None, labels: int) -> Vote:
    try:
        if row is None or len(row) != labels or any(math.isnan(score) for score in row):
            return None
    except Exception:  # whatever an engine returns, the subset abstains
        return None
    return max(range(len(row)), key=lambda index: (row[index], -index))


def _takes_text(llm: Runnable[Any, Any]) -> bool:
    inner = getattr(llm, "bound", llm)  # model.bind(...) keeps the model's kind
    return isinstance(inner, BaseLLM)
