"""Voters: one call per subset, or an engine that scores all subsets.

A failed call abstains. A PUBLIC health probe reveals an outage.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from langchain_core.language_models import BaseLanguageModel, BaseLLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp._util import validate
from langchain_dp.ensemble.engine_calls import (
    LEAST,
    PromptBudget,
    ask_together,
    asked_publicly,
    beginning,
    count_or_estimate,
    count_publicly,
    forget_for_good,
    forget_members,
    is_remote,
    row_of,
)
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.icl.prompts import ICLPrompt, invented_prompts, public_question
from langchain_dp.icl.subset_prompts import SubsetPrompt, Vote
from langchain_dp.isolation.accept import decision_models
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.isolation.model import CALLS, Failure, IsolatedModel
from langchain_dp.isolation.worker import call_engine
from langchain_dp.parsing import parse_label
from langchain_dp.ports import ChecksPrompts, LabelScorer, MemberPrompt

_SHOWN = 200
_LABEL = "label"
_CHOICE = "Which label belongs to the last message? The messages before it are examples, each with its label."
_TEST = "a public test question"
_COMPANION = "this question after invented examples"
_ANSWER_NOTE = "nobody watches whether the model answers: an answer may be noise alone (on_model_failure='ignore')"
_RAISE_NOTE = (
    "each question is asked once more with invented examples; where that fails the release raises ModelUnavailable "
    "(on_model_failure='raise'). Where the examples use up a rate limit that all calls share, or bring the server "
    "down, whether it fails may depend on them: not accounted for"
)
_TIMEOUT_NOTE = (
    "with a timeout, a long example that slows down other calls may cost them their votes: not accounted for"
)

OnModelFailure = Literal["raise", "ignore"]


@dataclasses.dataclass(frozen=True)
class ModelCallOptions:
    """Public options for calls of the model.

    Args:
        timeout: Seconds for one model call. A slower call abstains, and may cost other calls their votes: the
            certificate notes it. Refused for models that answer one call at a time.
        max_concurrency: Model calls at a time over all queries. The first release sends this many public test queries
            at once. A server that takes fewer raises ``ModelUnavailable`` before the charge.
        on_model_failure: "raise": each query gets a health probe, except on a local engine. If it fails, the release
            raises ``ModelUnavailable`` and stays charged. "ignore": no probe, so an answer may be pure noise.
        max_question_chars: Longest query with its template, for models without a known limit.
        max_example_chars: Longest example for such models, cut at its end. A subset that does not fit the model's
            context abstains silently.
        min_response_seconds: Shortest time from a query to its new answer. It narrows a timing side channel.

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> patient = ModelCallOptions(timeout=120.0, max_concurrency=4)
        >>> dataclasses.replace(patient, on_model_failure="ignore").timeout
        120.0
    """

    timeout: float | None = None
    max_concurrency: int = CALLS
    on_model_failure: OnModelFailure = "raise"
    max_question_chars: int = 20_000
    max_example_chars: int = 20_000
    min_response_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            validate.number("timeout", self.timeout, above=0.0)
        validate.integer("max_concurrency", self.max_concurrency, at_least=1)
        validate.one_of("on_model_failure", self.on_model_failure, get_args(OnModelFailure))
        validate.integer("max_question_chars", self.max_question_chars, at_least=1)
        validate.integer("max_example_chars", self.max_example_chars, at_least=1)
        if self.min_response_seconds is not None:
            validate.number("min_response_seconds", self.min_response_seconds, above=0.0)


class ModelVoter:
    """Calls a model once per subset."""

    def __init__(
        self,
        model: Runnable[Any, Any],
        *,
        prompt: ICLPrompt,
        words: Sequence[str],
        model_calls: ModelCallOptions,
        trust_opaque_model: bool,
    ) -> None:
        # A completion model gets text. Everything else gets messages.
        self._chat = not isinstance(_innermost(model), BaseLLM)
        self._model = IsolatedModel(
            _choosing(model, words) if isinstance(_innermost(model), decision_models()) else model,
            max_concurrency=model_calls.max_concurrency,
            trust_opaque_model=trust_opaque_model,
            # A word alone is the usual answer, and need not be parsed.
            read=functools.partial(_read, words=list(words), known={word: parse_label(word, words) for word in words}),
        )
        self._options = model_calls
        self._model.check_timeout(model_calls.timeout)
        self.companions = int(model_calls.on_model_failure == "raise")
        notes = [_RAISE_NOTE if self.companions else _ANSWER_NOTE]
        if model_calls.timeout is not None:
            notes.append(_TIMEOUT_NOTE)
        self.notes: tuple[str, ...] = (*notes, *self._model.notes)
        self.name = self._model.name
        self._checker = _checker(model)
        self._prompt = prompt
        self._words = list(words)
        self._invented = invented_prompts(prompt, words)

    def _render(self, subset_prompt: SubsetPrompt) -> Any:
        prompt, limit = self._prompt, self._options.max_example_chars
        shots = [
            (text if len(text) <= limit else prompt.cued(beginning(prompt.input_of(text), limit)), word)
            for text, word in subset_prompt.shots
        ]
        if self._chat:
            return prompt.messages(shots, subset_prompt.question, self._words)
        return prompt.head() + prompt.body(shots) + subset_prompt.question

    def check(self, question: str) -> None:
        if len(question) > (limit := self._options.max_question_chars):
            raise InvalidParameter(
                f"Expected the question, {len(question)} characters with its template, to be at most "
                f"max_question_chars={limit}. Shorten it, or raise the limit in ModelCallOptions(...) if the model's "
                "context holds it beside the examples."
            )
        if (checker := self._checker) is not None:
            public = self._render(self._invented(question))
            messages = public if isinstance(public, list) else [HumanMessage(public)]
            asked_publicly(lambda: checker.check_prompt(messages))

    def probe(self) -> None:
        """Ask a public question as often at once as concurrency allows."""
        self._check_public(self._model.probe(**self._probe_arguments()), _TEST)

    async def aprobe(self) -> None:
        self._check_public(await self._model.aprobe(**self._probe_arguments()), _TEST)

    def _probe_arguments(self) -> dict[str, Any]:
        prompt = self._render(self._invented(public_question(self._prompt)))
        times = self._model.at_once if self.companions else 1
        return {"prompt": prompt, "timeout": self._options.timeout, "times": times}

    def ask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Ask per subset, and probe with ``beside``. Only a failed probe raises."""
        prompts, public = self._prompts(subset_prompts, beside, even_empty), self.companions if beside else 0
        answers = self._model.batch(prompts, timeout=self._options.timeout, public=public, checked=bool(subset_prompts))
        return self._votes(subset_prompts, answers, public, even_empty)

    async def aask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        prompts, public = self._prompts(subset_prompts, beside, even_empty), self.companions if beside else 0
        answers = await self._model.abatch(
            prompts, timeout=self._options.timeout, public=public, checked=bool(subset_prompts)
        )
        return self._votes(subset_prompts, answers, public, even_empty)

    def _prompts(self, subset_prompts: Sequence[SubsetPrompt], beside: str | None, even_empty: bool) -> list[Any]:
        prompts = [self._render(one) for one in subset_prompts if one.shots or even_empty]
        if beside and self.companions:
            prompts.insert(0, self._render(self._invented(beside)))
        return prompts

    def _votes(
        self, subset_prompts: Sequence[SubsetPrompt], answers: Sequence[Any], public: int, even_empty: bool
    ) -> list[Vote]:
        if public and not isinstance(answers[0], int):
            self._check_public(answers[0], _COMPANION)
        remaining = iter(answers[public:])
        votes = (next(remaining) if one.shots or even_empty else None for one in subset_prompts)
        return [vote if isinstance(vote, int) else None for vote in votes]

    def _check_public(self, answer: Any, prompt: str) -> None:
        if isinstance(answer, Failure):
            got = answer.reason
        elif not self.companions or isinstance(answer, int):
            return
        else:
            got = f"{answer!r}, which names none of {self._words[:20]}"
        raise ModelUnavailable(
            f"Expected model={self.name} to answer {prompt}, got {got}. Without answers a label would be noise alone. "
            "Check the model, or accept noise with model_calls=ModelCallOptions(on_model_failure='ignore')."
        )

    def forget(self, member: Hashable) -> None:
        """Do nothing."""

    def warm(self, subset_prompts: Sequence[SubsetPrompt]) -> None:
        """Do nothing."""

    def count_tokens(self, text: str) -> int:
        return -(-len(text) // 4)


class EngineVoter:
    """Scores the labels of all subsets on an engine, with cached prompts."""

    def __init__(
        self,
        engine: LabelScorer,
        *,
        prompt: ICLPrompt,
        words: Sequence[str],
        calibrate: bool,
        keep_caches: bool,
        model_calls: ModelCallOptions,
    ) -> None:
        self._engine = engine
        remote = is_remote(engine)
        self.companions = int(remote and model_calls.on_model_failure == "raise")
        self._keep_caches = keep_caches  # resampled subsets do not recur: their caches would only evict others
        self._prompt = prompt
        self._invented = invented_prompts(prompt, words)
        self._words = [f" {word}" for word in words]
        self._content_free = prompt.content_free() if calibrate else ()
        self._budget = PromptBudget(engine)
        self._stale: set[Hashable] = set()
        notes = (_RAISE_NOTE if self.companions else _ANSWER_NOTE,) if remote else ()
        self.notes: tuple[str, ...] = (*notes, *getattr(engine, "notes", ()))
        self.name = engine.name

    def check(self, question: str) -> None:
        if self._tokens < LEAST:
            raise InvalidParameter(
                f"Expected the prompt's instruction to leave at least {LEAST} tokens for examples, of the "
                f"{self._engine.max_tail_tokens} that the engine has beside a question, but it leaves "
                f"{max(self._tokens, 0)}: every answer would be noise. Shorten it, or give the engine a larger "
                "max_tokens. Nothing was spent."
            )
        tokens, limit = count_publicly(self._engine, question), self._engine.max_tail_tokens
        if tokens > limit:
            raise InvalidParameter(
                f"Expected the question, {tokens} tokens with its template, to be at most {limit} tokens. "
                "Shorten it, or give the engine a larger max_tokens."
            )

    def probe(self) -> None:
        if self.companions:
            self.ask((), beside=public_question(self._prompt))

    async def aprobe(self) -> None:
        if self.companions:
            await self.aask((), beside=public_question(self._prompt))

    def ask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Score empty subsets too: the call's size must not depend on them."""
        members = list(subset_prompts)
        if public := self.companions if beside else 0:
            members.insert(0, self._invented(beside or ""))
        if not members:
            return []
        try:
            rows = ask_together(self._scores, members)
        finally:
            # A member that was forgotten while it was being scored is in the engine's caches again.
            self._drop(subset_prompts, every=not self._keep_caches)
        votes = [_best(row, len(self._words)) for row in rows]
        if public and votes[0] is None:
            raise ModelUnavailable(
                f"Expected model={self.name} to answer {_COMPANION}, got no answer. Without answers a label would be "
                "noise alone. Check the server, or accept noise with "
                "model_calls=ModelCallOptions(on_model_failure='ignore')."
            )
        return votes[public:]

    def _scores(self, subset_prompts: Sequence[SubsetPrompt]) -> list[list[float] | None]:
        members = [self._member(subset_prompt) for subset_prompt in subset_prompts]
        return self._engine.score_labels(members, self._words, content_free=self._content_free)

    def _member(self, subset_prompt: SubsetPrompt) -> MemberPrompt:
        prompt, shots = self._prompt, subset_prompt.shots

        def body(texts: Sequence[str]) -> str:
            return prompt.body([(prompt.cued(text), word) for text, (_, word) in zip(texts, shots, strict=True)])

        texts = self._budget.truncate([prompt.input_of(text) for text, _ in shots], whole=body, tokens=self._tokens)
        return MemberPrompt(prompt.head(), body(texts), subset_prompt.question, subset_prompt.member)

    @functools.cached_property
    def _tokens(self) -> int:
        return self._budget.remaining(self._engine.max_tail_tokens, self._prompt.head(), max(self._words, key=len))

    async def aask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        work = functools.partial(self.ask, subset_prompts, beside=beside, even_empty=even_empty)
        return await in_own_thread(work)  # type: ignore[no-any-return]  # votes

    def forget(self, member: Hashable) -> None:
        self._stale.add(member)
        forget_for_good(self._engine, member)

    def warm(self, subset_prompts: Sequence[SubsetPrompt]) -> None:
        try:
            for one in subset_prompts:  # a subset stays cold if that fails
                call_engine(lambda one=one: self._engine.warm([self._member(one)]))  # type: ignore[misc]
        finally:
            self._drop(subset_prompts, every=False)

    def _drop(self, subset_prompts: Sequence[SubsetPrompt], *, every: bool) -> None:
        if gone := [one.member for one in subset_prompts if every or one.member in self._stale]:
            forget_members(self._engine, *gone)

    def count_tokens(self, text: str) -> int:
        return count_or_estimate(self._engine, text)


Voter: TypeAlias = ModelVoter | EngineVoter
"""``companions``: health probes of a release, 0 or 1."""


def make_voter(model: object, *, calibrate: bool, keep_caches: bool, trust_opaque_model: bool, **common: Any) -> Voter:
    if isinstance(model, LabelScorer):
        return EngineVoter(model, calibrate=calibrate, keep_caches=keep_caches, **common)
    if isinstance(model, Runnable):
        return ModelVoter(model, trust_opaque_model=trust_opaque_model, **common)
    if isinstance(model, str):
        raise InvalidParameter(
            "Expected model to be a model, but it is a str. Create the model first, as in "
            "model=init_chat_model(...) of langchain."
        )
    raise InvalidParameter(
        f"Expected model of type {type(model).__name__} to be a chat model, a completion model, a decision model, a "
        "Runnable or an engine that scores labels. Wrap a function in RunnableLambda, and set trust_opaque_model=True."
    )


def _read(answer: Any, words: Sequence[str], known: Mapping[str, int | None]) -> int | str:
    """Return the index of the named word, or the start of another answer."""
    plain = answer.content if type(answer) is AIMessage and not answer.tool_calls else answer
    index = known.get(plain) if type(plain) is str else None
    if index is not None or (index := parse_label(answer, words)) is not None:
        return index
    text = getattr(answer, "text", answer)
    return str(text if isinstance(text, str) else getattr(answer, "content", answer))[:_SHOWN]


def _best(scores: object, labels: int) -> Vote:
    row = row_of(scores, labels)
    return None if row is None or np.isnan(row).any() else int(np.argmax(row))


def _checker(model: Any) -> ChecksPrompts | None:
    while not isinstance(model, BaseLanguageModel):
        inner = getattr(model, "bound", None) or getattr(model, "first", None)
        if not isinstance(inner, Runnable):
            return None
        model = inner
    return model if isinstance(model, ChecksPrompts) else None


def _innermost(model: Any) -> Any:
    """Unwrap wrappers that keep the model's kind."""
    for field in ("bound", "runnable", "default"):
        if not isinstance(model, BaseLanguageModel) and isinstance(inner := getattr(model, field, None), Runnable):
            return _innermost(inner)
    return model


def _choosing(model: Runnable[Any, Any], words: Sequence[str]) -> Runnable[Any, Any]:
    """Make the words the criteria of one Choice."""
    from langchain_core.decisions import Choice

    choice = Choice(instructions=_CHOICE, criteria=dict.fromkeys(words))
    state: Runnable[Any, Any] = RunnableLambda(lambda prompt: {"state": prompt, "questions": {_LABEL: choice}})
    return state | model | RunnableLambda(_chosen)


def _chosen(response: Any) -> str:
    answer = response.choices[_LABEL]
    if not np.isfinite([*answer.probabilities.values()]).all():
        raise ValueError("a probability of the decision model is no finite number")
    return str(answer.choice)
