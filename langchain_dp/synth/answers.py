"""Private answers in free text: each one is a round of one text."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NoReturn

from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool
from pydantic import BaseModel

from langchain_dp._util import forks
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.validate import group, integer, reject_extra_kwargs, reject_unknown_arguments
from langchain_dp.accounting import ClippedSumRoundEvent, LedgerPlan, PrivacyBudget, PrivacyCertificate, Quotas
from langchain_dp.accounting.budget import warn_small_clip, warn_weak_promise
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.provenance import MadeWith, costs_of_inputs
from langchain_dp.ensemble.answers import KEPT, AnswerCache
from langchain_dp.ensemble.engine_calls import (
    LEAST,
    PromptBudget,
    count_publicly,
    forget_for_good,
    forget_members,
    opaque,
)
from langchain_dp.ensemble.questions import ChecksBatches, Question, user_of, user_specs, variables_of
from langchain_dp.ensemble.reservation import (
    LedgerOrPath,
    about_run,
    affordable,
    check_promise,
    check_same,
    ledger_for,
    reserved_once,
)
from langchain_dp.ensemble.runs import secret_key
from langchain_dp.ensemble.splits import note_ledger
from langchain_dp.ensemble.subsets import KeyedCoins
from langchain_dp.ensemble.text_writer import INVENTED, check_scores, check_writer, public_prompt
from langchain_dp.ensemble.tools import BudgetMonitor, ExitBehavior, private_tool
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError, PrivateDataError
from langchain_dp.isolation.run import check_environment
from langchain_dp.mechanisms import ClippedSum, NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.ports import MemberPrompt, NextTokenScorer, Token
from langchain_dp.records import Examples, FromDataFrame, PrivateRecords, check_records
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, run_redacted
from langchain_dp.synth.prompts import AnswerPrompts
from langchain_dp.synth.report import AnswersPlan, certified, planned_answers, weak
from langchain_dp.synth.settings import MOST_ROUNDS, Design, WritingSettings, coin_names

_WHEN = "while an answer was written"


@dataclasses.dataclass(repr=False)
class _PartialAnswer:
    """A charged answer that is not whole. Its number draws the same members again.

    While ``drawing``, it never continues: the token would be drawn twice.
    """

    number: int
    tokens: list[Token]
    process: tuple[int, int]
    drawing: bool = False

    def draw(self) -> None:
        self.drawing = True

    def add(self, token: Token) -> None:
        self.tokens.append(token)
        self.drawing = False


class DPAnswerGenerator(FromDataFrame, ChecksBatches, Runnable[Question, str]):
    """Answers questions in free text, in the manner of private examples.

    Every record takes part by a secret coin, and moves the model's guess of the next token by no more than a clip.
    Style and common knowledge come through. A fact that few records hold CANNOT. ``budget``, ``ledger``, ``name``,
    ``candidates``, ``temperature``, ``chat`` and ``made_with`` are as of :class:`DPExampleSynthesizer`.

    Args:
        model: Engine that scores next tokens, inside the trust boundary: it sees the records.
        examples: Private records, as ``PrivateRecords`` takes them, with ``label`` as reply.
        max_queries: Answers that the noise is made for. The same question again is free.
        members: Records expected in one answer.
        max_new_tokens: Tokens of an answer, at most 512.
        sampling_probability: Rate of the records. None: ``members`` over their number, where that is public.
        prompts: Templates.
        answer_cache_size: Answers to keep, partial ones too.
        allow_small_model: Write with the embedded model, although its texts did not help in our trials.
        quotas: Shares of ``max_queries`` per user, named by ``config={"configurable": {"user_id": "team-7"}}``.

    Raises:
        InvalidParameter: The engine does not score next tokens.
        BudgetExceeded: The ledger has no room for the plan.
        PlanError: The ledger holds another plan under this name.

    Formal guarantee:
        All answers together are (epsilon, delta)-differentially private in the records, with the budget's neighbors,
        for any questions in any order. Each answer is charged one
        :class:`~langchain_dp.accounting.ClippedSumRoundEvent` before its members are drawn. Its time is not covered.

    Examples:
        >>> replies = DPAnswerGenerator(model=LlamaCppEnsemble(), examples=tickets, budget=PrivacyBudget(3.0))
        >>> replies.invoke("My parcel has not come.")
        >>> for piece in replies.stream("How do I get a refund?"):
        ...     print(piece, end="")
    """

    @reject_unknown_arguments
    def __init__(
        self,
        *,
        model: NextTokenScorer,
        examples: Examples,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        max_queries: int = 100,
        name: str = "answers",
        members: int = 30,
        max_new_tokens: int = 50,
        sampling_probability: float | None = None,
        prompts: AnswerPrompts | None = None,
        candidates: int = 512,
        temperature: float = 1.0,
        chat: bool = False,
        answer_cache_size: int = KEPT,
        quotas: Quotas | None = None,
        allow_small_model: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        held = PrivateArgs(examples)
        del examples  # error reporters read the locals of each frame
        self._costs = costs_of_inputs(prompts, made_with=made_with, budget=budget, ledger=ledger)
        check_scores(model)
        check_writer(getattr(model, "is_embedded", False), allow_small_model)
        self.name, self._name, self._engine = name, name, model
        check_promise(budget, ledger, not_private_seed)
        integer("max_queries", max_queries, at_least=1, at_most=MOST_ROUNDS)
        self._answers = AnswerCache[str](integer("answer_cache_size", answer_cache_size, at_least=0))
        self._broken_off = AnswerCache[_PartialAnswer](answer_cache_size)
        self.prompts = group("prompts", prompts, AnswerPrompts)
        self._settings = WritingSettings(
            prompts=self.prompts, max_new_tokens=max_new_tokens, members=members, candidates=candidates,
            sampling_probability=sampling_probability, temperature=temperature, chat=chat,
        )  # fmt: skip
        self._records = run_redacted(PrivateRecords, held, READING)
        check_records(self._records, None, self.prompts.variables)
        self._rng = SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed)
        self._key = secret_key(self._rng)
        self._secret = secrets.token_bytes(32)  # of the names under which the engine keeps records
        self._room = PromptBudget(self._engine)
        # Half of the prompt is for records, so that every question shows a record alike.
        self._half = half = self._engine.max_prompt_tokens // 2
        head = count_publicly(self._engine, self.prompts.head)
        if self._room.remaining(half, self.prompts.head, self.prompts.shown_as("")) < LEAST:
            raise InvalidParameter(
                f"Expected prompts.head of {head} tokens to leave room for {LEAST} tokens of a record in {half}, half "
                "of the longest prompt of this model. Shorten it, or raise the engine's max_tokens=."
            )
        self._ledger = ledger_for(budget, ledger)
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._forgotten = 0  # records, so far
        quotas = None if quotas is None else group("quotas", quotas, Quotas)
        self._plan, self._design = reserved_once(
            self._ledger,
            name,
            new=lambda: self._reserve(affordable(self._ledger, budget), max_queries, quotas),
            resumed=lambda plan: self._resume(plan, budget, max_queries, quotas),
        )
        self._remaining = BudgetMonitor(self._plan, self._design.noise.event, max_queries)
        self._slots = coin_names(self._records, self._ledger.budget.neighbors)
        self._writer = self._settings.writer(model, self._design.noise, self._rng)
        warn_weak_promise(weak(self._design, self._plan))
        warn_small_clip(self._design.noise.clip)
        if self._rng.private:
            note_ledger(self._records, self._ledger)

    def _reserve(self, share: PrivacyBudget, max_queries: int, quotas: Quotas | None) -> tuple[LedgerPlan, Design]:
        settings = self._settings
        design = settings.design(share, records=len(self._records), rounds=max_queries)
        kept = {
            "members": settings.members, "temperature": float(settings.temperature), "candidates": settings.candidates,
            **about_run(self._engine.name, self._records, self._ledger.budget.neighbors),
        }  # fmt: skip
        plan = self._ledger.reserve(
            [(design.noise.event, max_queries)], name=self._name, epsilon=share.epsilon, delta=share.delta,
            settings=kept, quotas=quotas,
        )  # fmt: skip
        return plan, design

    def _resume(
        self, plan: LedgerPlan, budget: PrivacyBudget | None, max_queries: int, quotas: Quotas | None
    ) -> tuple[LedgerPlan, Design]:
        kept, settings = plan.settings or {}, self._settings
        names = ("members", "temperature", "candidates")
        event, most = plan.events[0]
        known = isinstance(event, ClippedSumRoundEvent) and len(plan.events) == 1 and set(names) <= kept.keys()
        if not known:
            raise PlanError(f"The ledger's plan {self.name!r} is not one of answers. Give this chain another name=.")
        old_and_new = {
            "max_queries": (most, max_queries),
            "max_new_tokens": (event.tokens, settings.max_new_tokens),
            "quotas": (plan.quotas, quotas),
            **{name: (kept[name], getattr(settings, name)) for name in names},
        }
        if settings.sampling_probability is not None:  # the number of records may have changed since
            old_and_new["sampling_probability"] = event.sampling_probability, settings.sampling_probability
        check_same(plan, old_and_new, budget, "chain")
        counted = count_is_public(self._ledger.budget.neighbors)
        noise = ClippedSum(event, settings.members, float(settings.temperature))
        return plan, Design(most, noise, len(self._records) if counted else None)

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> str:  # noqa: A002  # Runnable's name
        """Release one answer. Callbacks see question and answer, never the records.

        Raises:
            InvalidParameter: The question is empty or too long. Nothing was spent.
            BudgetExceeded: The plan, or the user's share of it (``QuotaExceeded``), is used up.
            PlanError: The plan has quotas, and the config names no user of them. Nothing was spent.
            ModelUnavailable: The model does not answer public text, and nothing was spent. Or it failed within the
                answer, which continues free when the same question is asked again.
        """
        reject_extra_kwargs(kwargs)
        return "".join(self._streamed(input, config, whole=True))

    def stream(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[str]:  # noqa: A002
        """Release one answer, each piece as soon as it is drawn. Meanwhile, the same question is charged.

        A stream closed early continues free when the question is asked.
        """
        reject_extra_kwargs(kwargs)
        yield from self._streamed(input, config, whole=False)

    def _streamed(self, question: Question, config: RunnableConfig | None, *, whole: bool) -> Iterator[str]:
        pieces = functools.partial(self._pieces, whole=whole)
        return self._transform_stream_with_config(iter([question]), pieces, config)  # type: ignore[arg-type]  # it passes a config to functions that take one

    async def ainvoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> str:  # noqa: A002
        """Async twin of :meth:`invoke`."""
        reject_extra_kwargs(kwargs)
        return await run_in_executor(config, self.invoke, input, config)

    async def astream(
        self,
        input: Question,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """Async twin of :meth:`stream`."""
        pieces = self.stream(input, config, **kwargs)
        try:
            while (piece := await run_in_executor(config, next, pieces, None)) is not None:
                yield piece
        finally:
            with contextlib.suppress(ValueError):  # cancelled while a token is drawn: its thread closes it
                await run_in_executor(config, pieces.close)  # type: ignore[attr-defined]  # it is a generator

    def as_tool(
        self,
        args_schema: type[BaseModel] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: Mapping[str, type] | None = None,
        exit_behavior: ExitBehavior = "continue",
    ) -> BaseTool:
        """Return a tool, as :meth:`langchain_dp.icl.DPICLClassifier.as_tool`."""
        if arg_types is not None:
            raise InvalidParameter("Expected arg_types to be None: the arguments are texts. Give args_schema=.")
        return private_tool(
            self.invoke,
            self.ainvoke,
            plan=self._plan,
            variables=variables_of(self.prompts.question),
            name=name or self._name,
            description=description
            or "Answers a message in the manner of many private examples. It looks up no facts.",
            exit_behavior=exit_behavior,
            args_schema=args_schema,
        )

    # LangChain gives the config to functions with this argument.
    def _pieces(self, questions: Iterator[Question], config: RunnableConfig, *, whole: bool) -> Iterator[str]:
        user_id = user_of(self._plan, config)
        for question in questions:
            asked, epoch = self._asked(question), self._cache_epoch()
            pieces: list[str] = []
            partial, done, owner = None, False, object()
            try:
                cached = self._answers.claim(asked, epoch, owner) if whole else self._answers.kept(asked, epoch)
                if cached is not None:
                    yield cached
                    continue
                partial = self._begun(asked, user_id, epoch)
                steps = self._written(asked, partial)
                while (piece := run_redacted(next, PrivateArgs(steps, None), _WHEN)) is not None:
                    pieces.append(piece)
                    yield piece
                done = True
            except ModelUnavailable as error:
                if partial is None:
                    raise
                raise ModelUnavailable(f"{error} Ask the same again: the answer goes on, at no further cost.") from None
            finally:
                if partial is not None and not done:
                    self._broken_off.settle(asked, partial, epoch)
                self._answers.settle(asked, "".join(pieces) if done else None, epoch, owner)

    def _cache_epoch(self) -> int:
        """Return an epoch that forgetting raises, unless that showed the record."""
        return self._forgotten if count_is_public(self._ledger.budget.neighbors) else 0

    def _begun(self, asked: str, user_id: str | None, epoch: int) -> _PartialAnswer:
        """Return a partial answer, or a new one: checked, then charged."""
        check_environment()
        partial = self._broken_off.take(asked, epoch)
        # A forked parent continues it, too.
        if partial is not None and not partial.drawing and partial.process == forks.process():
            return partial
        self._remaining.warn_if_low(user_id)
        self._check_room(asked)
        if self._remaining.answers(user_id):
            # Once also with as many members, without records.
            self._writer.check_answers(public_prompt(self.prompts.head, asked), self.prompts.shown_as(INVENTED))
        self._plan.spend(self._design.noise.event, caller=self._name, user_id=user_id)
        with self._lock:
            return _PartialAnswer(self._rng.randbelow(2**128), [], forks.process())

    def _written(self, asked: str, answer: _PartialAnswer) -> Iterator[str]:
        """Draw members, then tokens: after the charge."""
        most = self._room.remaining(self._half, self.prompts.head)
        with self._lock:
            drawn = KeyedCoins(self._key, self._slots).drawn(answer.number, self._design.rate)
            names = {opaque(self._secret, name): name for name in drawn}
            bodies = {
                key: self.prompts.shown(self._records.get(name), room=self._room, tokens=most)
                for key, name in names.items()
            }
        head, tokens, shown = self.prompts.head, answer.tokens, ""
        steps = self._writer.continued(
            public_prompt(head, asked),
            lambda: [MemberPrompt(head, body, asked, key) for key, body in bodies.items() if names[key] in self._slots],
            before=tokens,
            mark=answer.draw,
        )

        def texts() -> Iterator[str]:
            yield self._writer.begun(tokens)
            for token in steps:
                answer.add(token)
                yield self._writer.begun(tokens)
            yield self._writer.text(tokens)

        try:
            for text in texts():
                if text.startswith(shown) and text != shown:  # a letter of several tokens is shown when it is whole
                    yield text[len(shown) :]
                    shown = text
        finally:
            if gone := [key for key, name in names.items() if name not in self._slots]:
                forget_members(self._engine, *gone)  # also values computed after it was forgotten

    def _checked_question(self, question: Question) -> str:
        asked = self._asked(question)
        with contextlib.suppress(ModelUnavailable):  # cached answers need no model
            self._check_room(asked)
        return asked

    def _check_room(self, asked: str) -> None:
        self._writer.check_room("", asked, kept=self._half)

    def _asked(self, question: Question) -> str:
        return self.prompts.asked(question, text_key=self._records.text_key)

    def plan(self) -> AnswersPlan:
        """Forecast cost and worth. Spends nothing.

        A new generator has reserved its budget already. Token counts come from the records: do not publish them.

        Examples:
            >>> print(replies.plan())
        """
        budget = PrivacyBudget(self._plan.epsilon, self._plan.delta, self._ledger.budget.neighbors)
        return planned_answers(self._engine, self.prompts, budget, self._design, self._records)

    def certificate(self) -> PrivacyCertificate:
        """Return the promise now."""
        return certified(
            self._plan, self._design, self._engine, self._rng,
            "the local model sees the records and the questions. The answers alone leave", round_up=True,
        ).including(self._costs)  # fmt: skip

    @property
    def quotas(self) -> Quotas | None:
        return self._plan.quotas

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        return user_specs(self._plan)

    @property
    def certificate_model(self) -> str:
        return self._engine.name

    def count_tokens(self, text: str) -> int:
        """Count public tokens."""
        return count_publicly(self._engine, text)

    def answers_left(self, *, user_id: str | None = None) -> int:
        """Count answers that the plan, or a user's share, still covers."""
        return self._remaining.answers(user_id)

    def forget(self, record_id: str) -> None:
        """Remove a record from later answers, and earlier answers from the cache.

        Under add/remove these stay: a question that costs again would show that the record existed. InvalidParameter:
        It is unknown.
        """
        with self._lock:
            self._records.forget(record_id)
            self._forgotten += 1
            del self._slots[record_id]  # the others keep theirs
            self._answers.invalidate_before(self._cache_epoch())
        forget_for_good(self._engine, opaque(self._secret, record_id))

    @safe_repr
    def __repr__(self) -> str:
        return f"DPAnswerGenerator(<private>, model={self._engine.name!r}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "A DPAnswerGenerator holds private records and cannot be pickled or copied. Build another one."
        )
