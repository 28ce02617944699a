"""How votes are cast: by asking a LangChain model once per subset, or by an engine that scores all at once.

Whatever goes wrong with one subset's call, that subset abstains. Nothing here raises on private content. A model that
is asked elsewhere may die, and then every subset abstains and the answer is noise: so one PUBLIC companion is asked
beside the subsets, the same question after invented examples, and what becomes of it may be said aloud.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from langchain_core.language_models import BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable

from langchain_dp.ensemble.engine_calls import (
    ask_together,
    asked_publicly,
    count_or_estimate,
    count_publicly,
    forget_for_good,
    forget_members,
    is_remote,
    row_of,
)
from langchain_dp.ensemble.prompt_budget import LEAST, PromptBudget, beginning
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.icl.model_calls import ModelCallOptions
from langchain_dp.icl.prompts import ICLPrompt, invented_prompts, public_question
from langchain_dp.icl.subset_prompts import SubsetPrompt, Vote
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.isolation.model import Failure, IsolatedModel
from langchain_dp.isolation.worker import call_engine
from langchain_dp.parsing import parse_label
from langchain_dp.ports import ChecksPrompts, LabelScorer, MemberPrompt

_SHOWN = 200
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


class Voter(Protocol):
    """Casts one vote per subset prompt, in the same order.

    ``companions`` is the number of PUBLIC calls beside the subsets of each release: 1, or 0 without a watch.
    """

    name: str
    notes: tuple[str, ...]
    companions: int

    def check(self, question: str) -> None:
        """Raise InvalidParameter if the question is too long for the model, or has no tokens. Data-independent."""

    def probe(self) -> None:
        """Ask a public question, so that a dead model is found before any budget is spent.

        A model that is watched is asked as often at once as calls may be under way: its server may refuse some.

        Raises:
            ModelUnavailable: It fails, or names no label.
        """

    async def aprobe(self) -> None:
        """Async twin of :meth:`probe`."""

    def ask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Cast the votes. The caller has checked the environment if there are subset prompts.

        Args:
            subset_prompts: Private.
            beside: The rendered question, for the public companion; None asks none.
            even_empty: Ask subsets without examples too (zero-shot).

        Raises:
            ModelUnavailable: The companion failed, or named no label. Never for what became of the subset prompts.
        """

    async def aask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Async twin of :meth:`ask`."""

    def forget(self, member: Hashable) -> None:
        """Drop what is cached of a subset's former content."""

    def warm(self, subset_prompts: Sequence[SubsetPrompt]) -> None:
        """Build caches."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, or an estimate."""


class ModelVoter:
    """One call of a chat model, completion model or Runnable per subset."""

    def __init__(
        self,
        model: Runnable[Any, Any],
        *,
        prompt: ICLPrompt,
        words: Sequence[str],
        structured_output: bool,
        model_calls: ModelCallOptions,
        trust_opaque_model: bool,
    ) -> None:
        # A completion model and a Runnable without chat roles get text; everything else gets messages.
        self._chat = not _takes_text(model)
        inner = model
        if structured_output:
            if not isinstance(model, BaseChatModel):
                raise InvalidParameter(
                    f"Expected model={type(model).__name__} to be a chat model when structured_output=True. "
                    "Leave it off; of a wrapped model give model.with_structured_output(...), whose schema has a field "
                    "'label', and wrap that."
                )
            schema = {
                "title": "Label",
                "description": "The label of the last text.",
                "type": "object",
                "properties": {"label": {"type": "string", "enum": list(words)}},
                "required": ["label"],
            }
            try:
                inner = model.with_structured_output(schema)
            except NotImplementedError:
                raise InvalidParameter(
                    f"Expected model={type(model).__name__} to support structured output with structured_output=True. "
                    "Leave it off."
                ) from None
        self._model = IsolatedModel(
            inner,
            max_concurrency=model_calls.max_concurrency,
            trust_opaque_model=trust_opaque_model,
            # A word alone is the usual answer, and need not be parsed.
            read=functools.partial(_read, words=list(words), known={word: parse_label(word, words) for word in words}),
        )
        self._options = model_calls
        self._model.check_timeout(model_calls.timeout)
        self.companions = int(model_calls.on_model_failure == "raise")
        watched = _RAISE_NOTE if self.companions else _ANSWER_NOTE
        self.notes: tuple[str, ...] = (
            watched, *(() if model_calls.timeout is None else (_TIMEOUT_NOTE,)), *self._model.notes
        )  # fmt: skip
        plain = IsolatedModel(model, trust_opaque_model=trust_opaque_model) if structured_output else self._model
        self.name = plain.name
        self._checker = _checker(model)
        self._prompt = prompt
        self._words = list(words)
        self._invented = invented_prompts(prompt, words)

    def _render(self, subset_prompt: SubsetPrompt) -> Any:
        prompt, most = self._prompt, self._options.max_example_chars
        shots = [
            (asked if len(asked) <= most else prompt.cued(beginning(prompt.input_of(asked), most)), word)
            for asked, word in subset_prompt.shots
        ]
        if self._chat:
            return prompt.messages(shots, subset_prompt.question, self._words)
        return prompt.head() + prompt.body(shots) + subset_prompt.question

    def check(self, question: str) -> None:
        """Raise InvalidParameter if the question is longer than ``max_question_chars``, or the model cannot read it.

        A model that can tell is shown the question after invented examples: ``ports.ChecksPrompts``.
        """
        if len(question) > (most := self._options.max_question_chars):
            raise InvalidParameter(
                f"Expected the question, {len(question)} characters with its template, to be at most "
                f"max_question_chars={most}. Shorten it, or raise the limit in ModelCallOptions(...) if the model's "
                "context holds it beside the examples."
            )
        if (checker := self._checker) is not None:
            public = self._render(self._invented(question))
            messages = public if isinstance(public, list) else [HumanMessage(public)]
            asked_publicly(lambda: checker.check_prompt(messages))

    def probe(self) -> None:
        """Ask a public text after invented examples."""
        self._named(self._model.probe(**self._probing()), _TEST)

    async def aprobe(self) -> None:
        """Async twin of :meth:`probe`."""
        self._named(await self._model.aprobe(**self._probing()), _TEST)

    def _probing(self) -> dict[str, Any]:
        prompt = self._render(self._invented(public_question(self._prompt)))
        return {
            "prompt": prompt,
            "timeout": self._options.timeout,
            "times": self._model.at_once if self.companions else 1,
        }

    def ask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """One call per subset prompt that holds examples, and one for the companion."""
        prompts, public = self._prompts(subset_prompts, beside, even_empty), self.companions if beside else 0
        answers = self._model.batch(prompts, timeout=self._options.timeout, public=public, checked=bool(subset_prompts))
        return self._votes(subset_prompts, answers, public, even_empty)

    async def aask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Async twin of :meth:`ask`."""
        prompts, public = self._prompts(subset_prompts, beside, even_empty), self.companions if beside else 0
        answers = await self._model.abatch(
            prompts, timeout=self._options.timeout, public=public, checked=bool(subset_prompts)
        )
        return self._votes(subset_prompts, answers, public, even_empty)

    def _prompts(self, subset_prompts: Sequence[SubsetPrompt], beside: str | None, even_empty: bool) -> list[Any]:
        asked = [subset_prompt for subset_prompt in subset_prompts if subset_prompt.shots or even_empty]
        if beside and self.companions:
            asked.insert(0, self._invented(beside))
        return [self._render(subset_prompt) for subset_prompt in asked]

    def _votes(
        self, subset_prompts: Sequence[SubsetPrompt], answers: Sequence[Any], public: int, even_empty: bool
    ) -> list[Vote]:
        if public:
            self._named(answers[0], _COMPANION)
        remaining = iter(answers[public:])
        votes = (next(remaining) if one.shots or even_empty else None for one in subset_prompts)
        return [vote if isinstance(vote, int) else None for vote in votes]

    def _named(self, answer: Any, asked: str) -> None:
        """Raise ModelUnavailable unless the answer to a PUBLIC prompt names a label."""
        if isinstance(answer, Failure):
            got = answer.reason
        elif not self.companions or isinstance(answer, int):
            return
        else:
            got = f"{answer!r}, which names none of {self._words[:20]}"
        raise ModelUnavailable(
            f"Expected model={self.name} to answer {asked}, got {got}. Without answers a label would be noise alone. "
            "Check the model; model_calls=ModelCallOptions(on_model_failure='ignore') answers all the same."
        )

    def forget(self, member: Hashable) -> None:
        """Do nothing: no state is kept."""

    def warm(self, subset_prompts: Sequence[SubsetPrompt]) -> None:
        """Do nothing: there are no caches."""

    def count_tokens(self, text: str) -> int:
        """Four characters a token, the usual rule for English."""
        return -(-len(text) // 4)


class EngineVoter:
    """An engine that scores the labels of all subsets at once and keeps their key/value caches."""

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
        self._keep_caches = keep_caches  # resampled subsets never come back: their caches would only push others out
        self._prompt = prompt
        self._invented = invented_prompts(prompt, words)
        self._words = [f" {word}" for word in words]
        self._content_free = prompt.content_free() if calibrate else ()
        self._room = PromptBudget(engine)
        self._stale: set[Hashable] = set()
        watched = () if not remote else (_RAISE_NOTE if self.companions else _ANSWER_NOTE,)
        self.notes: tuple[str, ...] = (*watched, *getattr(engine, "notes", ()))
        self.name = engine.name

    def check(self, question: str) -> None:
        """Raise InvalidParameter if question or instruction have more tokens than the engine's public limits."""
        if self._tokens < LEAST:
            raise InvalidParameter(
                f"Expected the prompt's instruction to leave at least {LEAST} tokens for examples, of the "
                f"{self._engine.max_tail_tokens} that the engine has beside a question, but it leaves "
                f"{max(self._tokens, 0)}: every answer would be noise. Shorten it, or give the engine a larger "
                "max_tokens. Nothing was spent."
            )
        tokens, most = count_publicly(self._engine, question), self._engine.max_tail_tokens
        if tokens > most:
            raise InvalidParameter(
                f"Expected the question, {tokens} tokens with its template, to be at most {most} tokens. "
                "Shorten it, or give the engine a larger max_tokens."
            )

    def probe(self) -> None:
        """One public question, where the engine asks a server; else it was loaded when it was built."""
        if self.companions:
            self.ask((), beside=public_question(self._prompt))

    async def aprobe(self) -> None:
        """Async twin of :meth:`probe`."""
        if self.companions:
            await self.aask((), beside=public_question(self._prompt))

    def ask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Score all subset prompts in one call; the best label is the vote, ties to the smaller index.

        Empty subsets are scored too, and their votes are dropped later: so the call's size is independent of them.
        """
        asked = list(subset_prompts)
        if public := self.companions if beside else 0:
            asked.insert(0, self._invented(beside or ""))
        if not asked:
            return []
        try:
            rows = ask_together(self._scores, asked)
        finally:
            # A member that was forgotten while it was being scored has come back into the engine's caches.
            self._drop(subset_prompts, every=not self._keep_caches)
        votes = [_best(row, len(self._words)) for row in rows]
        if public and votes[0] is None:
            raise ModelUnavailable(
                f"Expected model={self.name} to answer {_COMPANION}, got no answer. Without answers a label would be "
                "noise alone. Check the server; model_calls=ModelCallOptions(on_model_failure='ignore') answers all "
                "the same."
            )
        return votes[public:]

    def _scores(self, subset_prompts: Sequence[SubsetPrompt]) -> list[list[float] | None]:
        members = [self._member(subset_prompt) for subset_prompt in subset_prompts]
        return self._engine.score_labels(members, self._words, content_free=self._content_free)

    def _member(self, subset_prompt: SubsetPrompt) -> MemberPrompt:
        prompt, shots = self._prompt, subset_prompt.shots

        def body(texts: Sequence[str]) -> str:
            return prompt.body([(prompt.cued(text), word) for text, (_, word) in zip(texts, shots, strict=True)])

        texts = self._room.truncate([prompt.input_of(asked) for asked, _ in shots], whole=body, tokens=self._tokens)
        return MemberPrompt(prompt.head(), body(texts), subset_prompt.question, subset_prompt.member)

    @functools.cached_property
    def _tokens(self) -> int:
        """What examples may have: head and examples have the half of the context that no question takes. Public."""
        return self._room.remaining(self._engine.max_tail_tokens, self._prompt.head(), max(self._words, key=len))

    async def aask(
        self, subset_prompts: Sequence[SubsetPrompt], *, beside: str | None = None, even_empty: bool = False
    ) -> list[Vote]:
        """Async twin of :meth:`ask`, in a worker thread."""
        work = functools.partial(self.ask, subset_prompts, beside=beside, even_empty=even_empty)
        return await in_own_thread(work)  # type: ignore[no-any-return]  # votes

    def forget(self, member: Hashable) -> None:
        """Drop the subset's key/value cache and scores."""
        self._stale.add(member)
        forget_for_good(self._engine, member)

    def warm(self, subset_prompts: Sequence[SubsetPrompt]) -> None:
        """Evaluate the examples of every subset once."""
        try:
            for one in subset_prompts:  # a subset stays cold if that fails
                call_engine(lambda one=one: self._engine.warm([self._member(one)]))  # type: ignore[misc]
        finally:
            self._drop(subset_prompts, every=False)

    def _drop(self, subset_prompts: Sequence[SubsetPrompt], *, every: bool) -> None:
        if gone := [one.member for one in subset_prompts if every or one.member in self._stale]:
            forget_members(self._engine, *gone)

    def count_tokens(self, text: str) -> int:
        """Tokens of the engine's model.

        Raises:
            ModelUnavailable: The engine could not count them.
        """
        return count_or_estimate(self._engine, text)


def make_voter(
    model: object,
    *,
    prompt: ICLPrompt,
    words: Sequence[str],
    structured_output: bool,
    calibrate: bool,
    keep_caches: bool,
    model_calls: ModelCallOptions,
    trust_opaque_model: bool,
) -> Voter:
    """An engine is used as an engine; any other Runnable is asked call by call.

    Raises:
        InvalidParameter: ``model`` is neither.
        UnsafeEnvironment: ``model`` keeps its prompts, or is opaque and not trusted.
    """
    common: dict[str, Any] = {"prompt": prompt, "words": words, "model_calls": model_calls}
    if isinstance(model, LabelScorer):
        return EngineVoter(model, calibrate=calibrate, keep_caches=keep_caches, **common)
    if isinstance(model, Runnable):
        return ModelVoter(model, structured_output=structured_output, trust_opaque_model=trust_opaque_model, **common)
    raise InvalidParameter(
        f"Expected model={type(model).__name__} to be a chat model, a completion model, a Runnable or an engine that "
        "scores labels. Wrap a function in RunnableLambda, and set trust_opaque_model=True."
    )


def _read(answer: Any, words: Sequence[str], known: Mapping[str, int | None]) -> int | str:
    """Index of the word that an answer names; the beginning of one that names none."""
    plain = answer.content if type(answer) is AIMessage and not answer.tool_calls else answer
    index = known.get(plain) if type(plain) is str else None
    if index is not None or (index := parse_label(answer, words)) is not None:
        return index
    text = getattr(answer, "text", answer)
    return str(text if isinstance(text, str) else getattr(answer, "content", answer))[:_SHOWN]


def _best(scores: object, labels: int) -> Vote:
    """The label of the largest score, ties to the smaller index; None for what are no scores."""
    row = row_of(scores, labels)
    return None if row is None or np.isnan(row).any() else int(np.argmax(row))


def _checker(model: Any) -> ChecksPrompts | None:
    """The model itself, out of its bindings and of a chain that it begins, if it can check a prompt."""
    while not isinstance(model, BaseLanguageModel):
        inner = getattr(model, "bound", None) or getattr(model, "first", None)
        if not isinstance(inner, Runnable):
            return None
        model = inner
    return model if isinstance(model, ChecksPrompts) else None


def _takes_text(model: Any) -> bool:
    # model.bind(), .with_retry(), .with_fallbacks() and .configurable_fields() keep the model's kind
    for inside in ("bound", "runnable", "default"):
        if not isinstance(model, BaseLanguageModel) and isinstance(inner := getattr(model, inside, None), Runnable):
            return _takes_text(inner)
    return isinstance(model, BaseLLM)
