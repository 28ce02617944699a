"""Private answers in free text: each one a round of one text, written from private examples."""

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
from langchain_dp._util.validate import group, integer, number, one_of, reject_extra_kwargs, reject_unknown_arguments
from langchain_dp.accounting import ClippedSumRoundEvent, LedgerPlan, PrivacyBudget, PrivacyCertificate, Quotas
from langchain_dp.accounting.budget import warn_small_clip, warn_weak_promise
from langchain_dp.accounting.events import MOST_TOKENS, count_is_public
from langchain_dp.accounting.provenance import MadeWith, costs_of_inputs
from langchain_dp.ensemble.answers import KEPT, AnswerCache
from langchain_dp.ensemble.engine_calls import count_publicly, forget_for_good, forget_members, opaque
from langchain_dp.ensemble.prompt_budget import LEAST, PromptBudget
from langchain_dp.ensemble.questions import ChecksBatches, Question, user_of, user_specs
from langchain_dp.ensemble.reservation import LedgerOrPath, affordable, check_promise, check_same, ledger_for
from langchain_dp.ensemble.runs import secret_key
from langchain_dp.ensemble.text_writer import INVENTED, TextWriter, check_scores, public_prompt
from langchain_dp.ensemble.tools import BudgetMonitor, ExitBehavior, private_tool
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError, PrivateDataError
from langchain_dp.isolation.run import check_environment
from langchain_dp.mechanisms import ClippedSum, NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.ports import MemberPrompt, NextTokenScorer, Token
from langchain_dp.records import Examples, FromDataFrame, PrivateRecords, check_records
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, run_redacted
from langchain_dp.synth.members import Members, slots_of
from langchain_dp.synth.promise import certified, weak
from langchain_dp.synth.prompts import AnswerPrompts
from langchain_dp.synth.report import AnswersPlan, planned_answers
from langchain_dp.synth.settings import MOST_ROUNDS, Design, in_rounds

_WHEN = "while an answer was written"


@dataclasses.dataclass(repr=False)
class _Begun:
    """An answer that is paid for and not whole. Its number draws the same members whenever it goes on."""

    number: int
    tokens: list[Token]
    process: tuple[int, int]
    drawing: bool = False
    """A token is drawn and not in ``tokens`` yet: such an answer does not go on, or it would be drawn again."""

    def draw(self) -> None:
        self.drawing = True

    def add(self, token: Token) -> None:
        self.tokens.append(token)
        self.drawing = False


class DPAnswerGenerator(FromDataFrame, ChecksBatches, Runnable[Question, str]):
    """Answers questions in free text, in the manner of private examples: support replies, summaries, descriptions.

    Every record takes part in an answer by a secret coin. Those that do move the model's own guess of the next token,
    each by no more than a clip. So style and common knowledge of the records come through; a fact that few of them hold
    CANNOT: this is no search over documents.

    Args:
        model: Engine that scores next tokens. It sees the records: it must run inside the trust boundary.
        examples: Private records: mappings with ``text`` and ``label`` (here the reply), and what else the template
            names; or whatever else ``PrivateRecords`` takes: a DataFrame, documents, a path. Where text and reply have
            other names: ``PrivateRecords(rows, text_key="question", label_key="answer")``, which the template then
            names by these.
        budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
        ledger: Ledger that is charged, or the path of one that is opened here with the whole ``budget``.
        max_queries: Answers that the noise is made for. The same question again costs nothing.
        name: Name of the plan in the ledger.
        members: Records that are expected to take part in one answer.
        max_new_tokens: Tokens of an answer at most; no more than 512.
        sampling_probability: Rate of the records. None: ``members`` over their number, where that is public; of a
            plan that is taken up, the rate that it was reserved with.
        prompts: Templates.
        candidates: Tokens of the public model's that are considered at each step.
        temperature: Of the distribution that a token is drawn from.
        chat: Ask in the model's chat template.
        answer_cache_size: Answers that are kept, so that the same question costs nothing; those not asked for longest
            go. One that broke off is kept as far as it came, and goes on when the same question is asked again.
        max_question_chars: Longest question, in characters.
        quotas: Shares of ``max_queries`` for the users or tenants who ask. Every call then names one, in
            ``config={"configurable": {"user_id": "team-7"}}``; answers that are kept stay free for all of them.
        made_with: Certificate of a run whose released text stands in ``prompts``, or several, where the text does not
            know it any more: it was read from a file, or formatted. The certificate adds up what was spent. What a run
            of this package hands over, and :func:`~langchain_dp.opt.load_prompt` reads, knows it by itself.
        not_private_seed: Reproducible coins and noise. The certificate says that the result is not private.

    Raises:
        InvalidParameter: A value is out of bounds, or the engine does not score next tokens.
        BudgetExceeded: The ledger has no room for the plan.
        PlanError: The ledger holds another plan under this name.

    Formal guarantee:
        All answers together are (epsilon, delta)-differentially private in the records, with the budget's neighbours,
        whatever is asked and in whatever order. Each answer is charged one
        :class:`~langchain_dp.accounting.ClippedSumRoundEvent` before its members are drawn. How long an answer takes is
        outside of it.

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
        max_question_chars: int = 4_000,
        quotas: Quotas | None = None,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        held = PrivateArgs(examples)
        del examples  # error reporters read the locals of each frame
        self._costs = costs_of_inputs(prompts, made_with=made_with, budget=budget, ledger=ledger)
        check_scores(model)
        self.name, self._name, self._engine = name, name, model
        check_promise(budget, ledger, not_private_seed)
        integer("max_queries", max_queries, at_least=1, at_most=MOST_ROUNDS)
        one_of("chat", chat, (True, False))
        integer("members", members, at_least=2, at_most=10_000)
        integer("candidates", candidates, at_least=2, at_most=100_000)
        integer("max_new_tokens", max_new_tokens, at_least=1, at_most=MOST_TOKENS)
        self._answers = AnswerCache[str](integer("answer_cache_size", answer_cache_size, at_least=0))
        self._broken_off = AnswerCache[_Begun](answer_cache_size)
        self._longest = integer("max_question_chars", max_question_chars, at_least=1)
        number("temperature", temperature, at_least=0.05, at_most=100.0)
        self.prompts = group("prompts", prompts, AnswerPrompts)
        self._records = run_redacted(PrivateRecords, held, READING)
        check_records(self._records, None, self.prompts.variables("record"))
        self._rng = SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed)
        self._key = secret_key(self._rng)
        self._members = secrets.token_bytes(32)  # of the names under which the engine keeps records
        self._room = PromptBudget(self._engine)
        self._check_record_fits()
        self._ledger = ledger_for(budget, ledger)
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._forgotten = 0  # records, so far
        self._plan, self._design = self._reserved(
            budget, max_queries, members, max_new_tokens, temperature, sampling_probability, candidates,
            None if quotas is None else group("quotas", quotas, Quotas),
        )  # fmt: skip
        self._remaining = BudgetMonitor(self._plan, self._design.charged(0), max_queries)
        self._slots = slots_of(self._records, self._ledger.budget.neighbors)
        self._writer = TextWriter(
            model, self.prompts.end, self._design.noise, candidates=candidates, chat=chat, rng=self._rng
        )
        warn_weak_promise(weak(self._design, self._plan.epsilon, self._plan.delta))
        warn_small_clip(self._design.noise.clip)

    def _reserved(
        self, budget: PrivacyBudget | None, queries: int, members: int, tokens: int, temperature: float,
        rate: float | None, candidates: int, quotas: Quotas | None,
    ) -> tuple[LedgerPlan, Design]:  # fmt: skip
        found = self._ledger.plan(self._name)
        if found is None:
            share = affordable(self._ledger, budget)
            design = in_rounds(
                share, records=len(self._records), texts=1, rounds=queries, members=members, tokens=tokens,
                temperature=temperature, rate=rate,
            )  # fmt: skip
            settings = {"members": members, "temperature": float(temperature), "candidates": candidates}
            plan = self._ledger.reserve(
                design.events(), name=self._name, epsilon=share.epsilon, delta=share.delta, settings=settings,
                quotas=quotas,
            )  # fmt: skip
            return plan, design
        kept, events = found.settings or {}, found.events
        expected = {"members", "temperature", "candidates"}
        if len(events) != 1 or not isinstance(events[0][0], ClippedSumRoundEvent) or not expected <= kept.keys():
            raise PlanError(f"The ledger's plan {self.name!r} is not one of answers. Give this chain another name=.")
        (event, most) = events[0]
        asked = {
            "max_queries": (most, queries),
            "max_new_tokens": (event.tokens, tokens),
            "members": (kept["members"], members),
            "temperature": (kept["temperature"], float(temperature)),
            "quotas": (found.quotas, quotas),
            "candidates": (kept["candidates"], candidates),
            # Not given, it is what the plan has: the number of records may have changed since.
            "sampling_probability": (event.sampling_probability, event.sampling_probability if rate is None else rate),
        }
        check_same(found, asked, budget, "chain")
        counted = count_is_public(self._ledger.budget.neighbors)
        noise = ClippedSum(event, members, float(temperature))
        return found, Design("rounds", most, noise, len(self._records) if counted else None)

    # ------------------------------------------------------------------------------------------------ Runnable

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> str:  # noqa: A002  # Runnable's name
        """Release one answer.

        Args:
            input: The question: a string, or a mapping with the template's variables.
            config: LangChain config. Its callbacks see question and answer, never the records.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The question is empty or too long. Nothing was spent.
            BudgetExceeded: The plan is used up, or the user's share of it (``QuotaExceeded``). Nothing was asked.
            PlanError: The plan has accounts, and the config names nobody who has one. Nothing was spent.
            ModelUnavailable: The model does not answer public text. Nothing was spent; or it failed in mid-answer,
                which goes on for nothing when the same question is asked again.
        """
        reject_extra_kwargs(kwargs)
        return "".join(self._streamed(input, config, whole=True))

    def stream(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[str]:  # noqa: A002
        """Release one answer piece by piece, each as soon as it is drawn: it has left then, and is paid for.

        While it lasts the same question is another one, and paid for: nobody can wait for whoever reads it slowly. A
        stream that is closed before its end goes on where it stopped, for nothing, when the same question is asked.
        """
        reject_extra_kwargs(kwargs)
        yield from self._streamed(input, config, whole=False)

    def _streamed(self, question: Question, config: RunnableConfig | None, *, whole: bool) -> Iterator[str]:
        pieces = functools.partial(self._pieces, whole=whole)
        return self._transform_stream_with_config(iter([question]), pieces, config)  # type: ignore[arg-type]  # it gives a config to all that take one

    async def ainvoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> str:  # noqa: A002
        """Async twin of :meth:`invoke`, in a worker thread."""
        reject_extra_kwargs(kwargs)
        return await run_in_executor(config, self.invoke, input, config)

    async def astream(
        self,
        input: Question,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """Async twin of :meth:`stream`: every token is drawn in a worker thread."""
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
        """A tool for an agent; arguments and errors as of :meth:`langchain_dp.icl.DPICLClassifier.as_tool`."""
        if arg_types is not None:
            raise InvalidParameter("Expected arg_types to be None: the arguments are texts. Give args_schema=.")
        return private_tool(
            self.invoke,
            self.ainvoke,
            plan=self._plan,
            variables=self.prompts.variables("question"),
            name=name or self._name,
            description=description
            or "Answers a message in the manner of many private examples. It looks up no facts.",
            exit_behavior=exit_behavior,
            args_schema=args_schema,
        )

    # LangChain gives the config to what has an argument of this name.
    def _pieces(self, questions: Iterator[Question], config: RunnableConfig, *, whole: bool) -> Iterator[str]:
        """Pieces of answers. Who takes them ``whole`` waits for another who asks the same, and shares the answer."""
        user_id = user_of(self._plan, config)
        for question in questions:
            asked, epoch = self._asked(question), self._cache_epoch()
            pieces: list[str] = []
            begun, done, owner = None, False, object()
            try:
                kept = self._answers.claim(asked, epoch, owner) if whole else self._answers.kept(asked, epoch)
                if kept is not None:
                    yield kept
                    continue
                begun = self._begun(asked, user_id, epoch)
                steps = self._written(asked, begun)
                while (piece := run_redacted(next, PrivateArgs(steps, None), _WHEN)) is not None:
                    pieces.append(piece)
                    yield piece
                done = True
            except ModelUnavailable as error:
                if begun is None:
                    raise
                raise ModelUnavailable(f"{error} Ask the same again: the answer goes on, at no further cost.") from None
            finally:
                if begun is not None and not done:
                    self._broken_off.keep(asked, begun, epoch)
                answer = "".join(pieces) if done else None
                if whole:
                    self._answers.settle(asked, answer, epoch, owner)
                elif answer is not None:
                    self._answers.keep(asked, answer, epoch)

    def _cache_epoch(self) -> int:
        """A forgotten record turns the page: what it may have helped to write is not given out again.

        Not where the promise covers whether a record is there at all: that a question costs again would show it.
        """
        return self._forgotten if count_is_public(self._ledger.budget.neighbors) else 0

    def _begun(self, asked: str, user_id: str | None, epoch: int) -> _Begun:
        """The answer that broke off, or a new one: checked and charged, in this order."""
        check_environment()
        found = self._broken_off.take(asked, epoch)
        # Of a fork the parent goes on with it, too.
        if found is not None and not found.drawing and found.process == forks.process():
            return found
        self._remaining.warn_if_low(user_id)
        self._check_room(asked)
        if self._remaining.answers(user_id):
            self._check_model(public_prompt(self.prompts.head, asked))
        self._plan.spend(self._design.charged(0), caller=self._name, user_id=user_id)
        with self._lock:
            return _Begun(self._rng.randbelow(2**128), [], forks.process())

    def _check_model(self, public: MemberPrompt) -> None:
        """See that the model answers, once also as many members, before anything is charged: it sees no record."""
        invented = dict.fromkeys(self.prompts.variables("record"), INVENTED)
        self._writer.check_answers(public, self.prompts.shown(invented))

    def _kept_for_records(self) -> int:
        """Half is for the records, whatever is asked: what is shown of one never changes, and none is left out."""
        return self._engine.max_prompt_tokens // 2

    def _check_record_fits(self) -> None:
        """Refuse public text beside which records would be cut to nothing, whatever is asked."""
        empty = self.prompts.shown(dict.fromkeys(self.prompts.variables("record"), ""))
        half, head = self._kept_for_records(), count_publicly(self._engine, self.prompts.head)
        if self._room.remaining(half, self.prompts.head, empty) < LEAST:
            raise InvalidParameter(
                f"Expected prompts.head of {head} tokens to leave room for {LEAST} tokens of a record in {half}, half "
                "of the longest prompt of this model. Shorten it, or raise the engine's max_tokens=."
            )

    def _written(self, asked: str, answer: _Begun) -> Iterator[str]:
        """The order of every release that is charged: draw who takes part, ask, draw a token."""
        most = self._room.remaining(self._kept_for_records(), self.prompts.head)
        with self._lock:
            drawn = Members(self._key, self._slots).drawn(answer.number, self._design.noise.event.sampling_probability)
            names = {opaque(self._members, name): name for name in drawn}
            bodies = {
                key: self.prompts.shown(self._records.get(name), room=self._room, tokens=most)
                for key, name in names.items()
            }
        head, tokens, said = self.prompts.head, answer.tokens, ""
        steps = self._writer.continued(
            public_prompt(head, asked),
            lambda: [MemberPrompt(head, body, asked, key) for key, body in bodies.items() if names[key] in self._slots],
            before=tokens,
            mark=answer.draw,
        )
        try:
            if said := self._writer.begun(tokens):
                yield said
            for token in steps:
                answer.add(token)
                text = self._writer.begun(tokens)
                if text.startswith(said) and text != said:  # a letter of several tokens is shown when it is whole
                    yield text[len(said) :]
                    said = text
            if (text := self._writer.text(tokens)).startswith(said) and text != said:
                yield text[len(said) :]
                said = text
        finally:
            if gone := [key for key, name in names.items() if name not in self._slots]:
                forget_members(self._engine, *gone)  # also what was evaluated after it was forgotten

    def _checked_question(self, question: Question) -> str:
        asked = self._asked(question)
        with contextlib.suppress(ModelUnavailable):  # answers that are kept need no model
            self._check_room(asked)
        return asked

    def _check_room(self, asked: str) -> None:
        self._writer.check_room("", asked, kept=self._kept_for_records())

    def _asked(self, question: Question) -> str:
        asked = self.prompts.asked(question, text_key=self._records.text_key)
        if len(asked) > self._longest:
            raise InvalidParameter(
                f"Expected a question of {len(asked)} characters to have at most max_question_chars={self._longest}. "
                "Shorten it."
            )
        return asked

    # ------------------------------------------------------------------------------------------------- promise

    def plan(self) -> AnswersPlan:
        """What all answers will cost and whether they are worth it. Spends nothing.

        The budget is reserved when a generator is made. To look before that, make one without ``ledger=``, whose ledger
        is in memory alone, or use ``langchain-dp plan answers``.

        Token counts come from the records: do not publish them.

        Examples:
            >>> print(replies.plan())
        """
        budget = PrivacyBudget(self._plan.epsilon, self._plan.delta, self._ledger.budget.neighbors)
        return planned_answers(self._engine, self.prompts, budget, self._design, self._records)

    def certificate(self) -> PrivacyCertificate:
        """The promise of all answers, as it stands."""
        return certified(
            self._plan, self._design, self._engine, self._rng,
            "the local model sees the records and the questions; the answers alone leave", round_up=True,
        ).including(self._costs)  # fmt: skip

    @property
    def quotas(self) -> Quotas | None:
        """The shares of those who ask, if the plan has any."""
        return self._plan.quotas

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What a config says for this chain: who asks, if there are ``quotas``."""
        return user_specs(self._plan)

    @property
    def certificate_model(self) -> str:
        """The model as certificates name it."""
        return self._engine.name

    def count_tokens(self, text: str) -> int:
        """Tokens of a public text, as the model counts them."""
        return count_publicly(self._engine, text)

    def answers_left(self, *, user_id: str | None = None) -> int:
        """How many more answers the plan covers; with ``user_id``, also the share of that user.

        Raises:
            PlanError: The plan has no account for the user.
        """
        return self._remaining.answers(user_id)

    def forget(self, record_id: str) -> None:
        """Remove a record: it is in no later answer, and what was released before it went is not given again.

        (Under add/remove it is: that a question costs again would show that the record was there.)

        Raises:
            InvalidParameter: There is no such record.
        """
        with self._lock:
            self._records.forget(record_id)
            self._forgotten += 1
            del self._slots[record_id]  # the others keep theirs
            self._answers.invalidate_before(self._cache_epoch())
        forget_for_good(self._engine, opaque(self._members, record_id))

    @safe_repr
    def __repr__(self) -> str:
        return f"DPAnswerGenerator(<private>, model={self._engine.name!r}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "A DPAnswerGenerator holds private records and cannot be pickled or copied. Build it anew."
        )
