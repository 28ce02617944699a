"""DP-ICL as a Runnable: a private few-shot classifier around any model."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NoReturn

from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from pydantic import BaseModel

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.validate import reject_extra_kwargs, reject_unknown_arguments, shown
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyCertificate, Quotas
from langchain_dp.accounting.budget import warn_mostly_noise
from langchain_dp.accounting.events import SamplingName, count_is_public
from langchain_dp.accounting.pld import MOST_COUNTS
from langchain_dp.accounting.provenance import MadeWith, costs_of_inputs
from langchain_dp.ensemble.answers import KEPT
from langchain_dp.ensemble.questions import ChecksBatches, Question, question_texts, user_of, user_specs
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise
from langchain_dp.ensemble.scheme import SamplingOptions, Scheme, sampling_from
from langchain_dp.ensemble.tools import ExitBehavior, private_tool
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.icl import prompts
from langchain_dp.icl.baseline import BaselineMethod, NonPrivateICL
from langchain_dp.icl.model_calls import ModelCallOptions
from langchain_dp.icl.prompts import ICLPrompt, companion_text
from langchain_dp.icl.release import DPAnswer, Releaser
from langchain_dp.icl.replicas import Released, Replicas
from langchain_dp.icl.report import ICLPlanReport, noise_warning, report
from langchain_dp.icl.reservation import AnswerReservation, reserve
from langchain_dp.icl.subset_prompts import Shot, SubsetPrompts
from langchain_dp.icl.templates import prompt_from
from langchain_dp.icl.voters import Voter, make_voter
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.mechanisms import NotPrivateSeededRandomness, Randomness, SystemRandomness
from langchain_dp.ports import LabelScorer
from langchain_dp.records import (
    AUTOMATIC,
    Examples,
    FromDataFrame,
    Label,
    PrivateRecords,
    check_records,
    given_labels,
    id_of,
    label_words,
    row_fault,
    unknown_id,
)
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, redact_errors, run_redacted


class DPICLClassifier(FromDataFrame, ChecksBatches, Runnable[Question, Label], Generic[Label]):
    """Answers with one of ``labels``, by a private vote of few-shot prompts over private examples.

    The examples sit in subsets; each subset that takes part prompts the model once with its examples and the question;
    the votes go through report noisy max; only the winning label leaves.

    Args:
        model: Chat model, completion model or Runnable; or an engine that scores labels (``LabelScorer``), which is
            used directly and keeps each subset's caches. The model's operator sees the examples.
        examples: Private examples, mappings with ``text`` and ``label`` (and what else the prompt's template names),
            or whatever else ``PrivateRecords`` takes: a DataFrame, documents, a path. Of a ``PrivateRecords`` this
            chain takes its own copy: forget a record here, too.
        labels: The public labels, in the public order that breaks ties: strings, whole numbers, bools, or an Enum. An
            answer is one of them, as it stands here; traces and certificates show its name, a str.
        budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
        ledger: Ledger that is charged. Without ``budget``, all that is left of it is reserved. Or the path of a ledger
            that is opened here with the whole ``budget``; to share one, open it yourself.
        max_queries: Number of releases the noise is calibrated for; the next one is refused.
        shots: Examples per subset (expected number where subsets vary).
        subsets: Expected number of subsets that vote on one question.
        sampling: "fixed": subsets are cut once and each takes part by a coin (less noise, caches can be kept);
            "resample": subsets are dealt anew for every question, as in the paper. Number and rate of the subsets
            follow from the number of examples; under add/remove, where that is private, give a ``SamplingOptions``.
        prompt: Template; see :mod:`langchain_dp.icl.prompts`. None: a plain one. A str (the question, then the cue in a
            line of its own), ``ChatPromptTemplate`` or ``FewShotPromptTemplate`` is read as one.
        name: Name of the plan in the ledger. A restart under the same name goes on with what is left of its plan.
        structured_output: Ask a chat model for a JSON object with the label instead of text.
        calibrate: Divide an engine's label scores by those for questions without content (Zhao et al. 2021).
        vote_shares: Also release the noisy vote shares, at the same price (see :meth:`invoke_with_certificate`).
        model_calls: How the model is called: timeout, calls at a time, whether outages raise, response times.
        answer_cache_size: Released answers to keep, so that a repeated question costs nothing. A full cache drops the
            answer that was not used for longest. To answer its question again is a new release, which is charged.
        replicas: Other processes, here or on other machines, run this same chain under this ledger and name. What one
            has released costs nothing on any other, and what one forgets no other uses in its next release: both go
            through the ledger, under keyed hashes. It must have a path or be a ``postgresql://`` URL, and every
            example an id. Every replica must say so. Two that are asked the same question at the same moment are both
            charged, and give the same answer.
        quotas: Shares of ``max_queries`` for the users or tenants who ask. Every call then names one, in
            ``config={"configurable": {"user_id": "team-7"}}``; answers that were released stay free for all of them.
        trust_opaque_model: Accept a model with parts of your own (a function, a graph, a class), at your word that they
            keep nothing of their prompts. The certificate says so. A message history, a checkpointer or a store in a
            field is always refused. ``langchain_dp.isolation.accept`` lists what needs no trust.
        made_with: Certificate of a run whose released text stands in ``labels`` or ``prompt``, or several, where the
            text does not know it any more: it was read from a file, or formatted. The certificate adds up what was
            spent. What a run of this package hands over, and :func:`~langchain_dp.opt.load_prompt` reads, knows it by
            itself.
        not_private_seed: Reproducible coins and noise. The certificate says that the result is not private.

    Raises:
        InvalidParameter: A value is out of bounds, a label is unknown, or there are too few examples.
        BudgetExceeded: The ledger has no room for the plan.
        UnsafeEnvironment: The model has a memory, or is opaque and not trusted.
        PlanError: The ledger's plan of this name was made for other settings.

    Warns:
        WeakPromiseWarning: epsilon is above 10, or delta is not below one over the number of examples.

    Formal guarantee:
        Everything released over the life of the plan is (epsilon, delta)-differentially private in the examples, with
        the budget's neighbours (replace-one by default: the number of examples is public). The questions, the
        answers' times and the model's operator are outside of that promise. Source: Panda, Wang, Wu, Mittal 2023,
        Algorithm 1 and Theorem 2, with the accounting of :mod:`langchain_dp.accounting`, not the paper's.

    Examples:
        >>> chain = DPICLClassifier(model=model, examples=rows, labels=LABELS, budget=budget, max_queries=100)
        >>> print(chain.plan())
        >>> chain.invoke("Nobody called me back.")  # a noisy vote: it may come out otherwise
        'complaint'
    """

    @reject_unknown_arguments
    def __init__(
        self,
        *,
        model: Runnable[Any, Any] | LabelScorer,
        examples: Examples,
        labels: Iterable[Label],
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        max_queries: int = 10_000,
        shots: int = 4,
        subsets: int = 10,
        sampling: SamplingName | SamplingOptions = "fixed",
        prompt: ICLPrompt | str | BasePromptTemplate[Any] | None = None,
        name: str = "dp-icl",
        structured_output: bool = False,
        calibrate: bool = True,
        vote_shares: bool = False,
        model_calls: ModelCallOptions | None = None,
        answer_cache_size: int = KEPT,
        replicas: bool = False,
        quotas: Quotas | None = None,
        trust_opaque_model: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        held = PrivateArgs(examples)
        del examples  # error reporters read the locals of each frame
        self.name = name
        self._costs = costs_of_inputs(labels, prompt, made_with=made_with, budget=budget, ledger=ledger)
        self._given = given_labels(labels)
        self.labels = tuple(self._given)
        self.prompt = prompts.plain(self.labels) if prompt is None else prompt_from(prompt)
        check_promise(budget, ledger, not_private_seed)
        validate.integer("max_queries", max_queries, at_least=1, at_most=MOST_COUNTS)
        validate.integer("answer_cache_size", answer_cache_size, at_least=1)
        for flag, given in {
            "structured_output": structured_output,
            "calibrate": calibrate,
            "vote_shares": vote_shares,
            "replicas": replicas,
        }.items():
            validate.one_of(flag, given, (True, False))
        sampling = sampling_from(sampling)
        model_calls = validate.group("model_calls", model_calls, ModelCallOptions)
        words = label_words(self.prompt.words, self.labels)
        self._voter: Voter = make_voter(
            model,
            prompt=self.prompt,
            words=words,
            structured_output=structured_output,
            calibrate=calibrate,
            keep_caches=sampling.scheme == "fixed",
            model_calls=model_calls,
            trust_opaque_model=trust_opaque_model,
        )
        self._records = run_redacted(PrivateRecords, held, READING)
        check_records(self._records, self.labels, self.prompt.variables, whose="prompt", plain=True)
        self._not_private_seed = not_private_seed
        self._rng: Randomness = (
            SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed)
        )
        reservation = reserve(
            budget=budget,
            ledger=ledger,
            name=name,
            max_queries=max_queries,
            sampling=sampling,
            records=len(self._records),
            shots=shots,
            subsets=subsets,
            replicas=replicas,
            quotas=None if quotas is None else validate.group("quotas", quotas, Quotas),
            before=self._warned,
        )
        self._subset_prompts = SubsetPrompts(self._records, reservation.scheme, self._shot, self._rng)
        self._replicas: Replicas | None = None
        if replicas:
            self._replicas = Replicas(
                reservation.plan,
                self._records,
                self._drop,
                [self.labels, words, self.prompt.head(), self._voter.name, vote_shares, calibrate, structured_output],
            )
            self._subset_prompts.ask_first(self._replicas.catch_up)
        self._releaser = Releaser(
            labels=self.labels,
            subset_prompts=self._subset_prompts,
            voter=self._voter,
            reservation=reservation,
            rng=self._rng,
            model_calls=model_calls,
            vote_shares=vote_shares,
            answer_cache_size=answer_cache_size,
            replicas=self._replicas,
        )

    # ------------------------------------------------------------------------------------------------ Runnable

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Label:  # noqa: A002  # Runnable's name
        """Release one label.

        Args:
            input: The question: a string, a mapping with the template's variables, a message, a list of messages (the
                last human one is the question, the others are used where the template names ``history``), a graph's
                state with ``messages``, a prompt value, or a document.
            config: LangChain config. Its callbacks see the question and the label, never the examples.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The question is empty or too long. Nothing was spent.
            BudgetExceeded: The plan is used up, or the user's share of it (``QuotaExceeded``). No model was called.
            PlanError: The plan has accounts, and the config names nobody who has one. Nothing was spent.
            ModelUnavailable: The model failed on a public test question, before the release was charged; or on this
                question after invented examples, beside the subsets: then this release was charged, as the message
                says, and the same question is tried in public first when it comes again. See ``on_model_failure``.
            UnsafeEnvironment: A global setting would print prompts. Nothing was spent.

        Warns:
            BudgetLowWarning: 80% of the plan are used; once.
        """
        reject_extra_kwargs(kwargs)
        return self._given[self._run(input, config)]

    async def ainvoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Label:  # noqa: A002
        """Async twin of :meth:`invoke`."""
        reject_extra_kwargs(kwargs)
        return self._given[await self._arun(input, config)]

    def invoke_with_certificate(self, question: Question, config: RunnableConfig | None = None) -> DPAnswer[Label]:
        """Release one label with its certificate, and noisy vote shares if ``vote_shares`` was set."""
        released: list[Released] = []
        self._run(question, config, released)
        return self._certified(released[0])

    async def ainvoke_with_certificate(
        self, question: Question, config: RunnableConfig | None = None
    ) -> DPAnswer[Label]:
        """Async twin of :meth:`invoke_with_certificate`."""
        released: list[Released] = []
        await self._arun(question, config, released)
        return await asyncio.to_thread(self._certified, released[0])

    def as_tool(
        self,
        args_schema: type[BaseModel] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: Mapping[str, type] | None = None,
        exit_behavior: ExitBehavior = "continue",
    ) -> BaseTool:
        """A tool for an agent, which answers with the name of a label.

        A question that is refused is told to the model, in a tool message, and costs nothing.

        Args:
            args_schema: The arguments, with descriptions of your own; by default the template's variables, as texts.
            name: Name of the tool; by default that of the plan.
            description: What the model is told about it; by default what it decides, with the labels.
            arg_types: None are taken: the arguments are texts.
            exit_behavior: What a used-up plan does, named as in LangChain's own limits of calls. "continue": the model
                is told, in a tool message with the status of an error, and the agent goes on. "end": the same, and the
                message is the agent's last; make each agent a tool of its own, since ``create_agent`` must get it
                before its first call (the agents of other libraries go on). "error": BudgetExceeded is raised. The
                end of a user's share is the same for this user, and a config that names no user raises PlanError.

        Raises:
            InvalidParameter: A value is out of bounds.

        Examples:
            >>> tool = classifier.as_tool(name="sort_message", exit_behavior="end")
            >>> agent = create_agent(model, tools=[tool])
        """
        if arg_types is not None:
            raise InvalidParameter("Expected arg_types to be None: the arguments are texts. Give args_schema=.")
        return private_tool(
            self._run,
            self._arun,
            plan=self._reservation.plan,
            variables=self.prompt.variables,
            name=name or self._reservation.plan.name,
            description=description
            or f"Decides which label fits: {', '.join(self.labels)}. It has learned from many private examples.",
            exit_behavior=exit_behavior,
            args_schema=args_schema,
        )

    @property
    def OutputType(self) -> Any:  # Runnable's name
        """What an answer is: a str, where all labels are."""
        return str if all(isinstance(label, str) for label in self._given.values()) else Any

    def _run(self, question: Question, config: RunnableConfig | None, released: list[Released] | None = None) -> str:
        return str(self._call_with_config(self._label, question, config, released=released))  # type: ignore[arg-type]  # callbacks get the name

    async def _arun(
        self, question: Question, config: RunnableConfig | None, released: list[Released] | None = None
    ) -> str:
        return str(await self._acall_with_config(self._alabel, question, config, released=released))  # type: ignore[arg-type]  # the same

    # LangChain gives the config to an argument of this name.
    def _label(self, question: Question, config: RunnableConfig, released: list[Released] | None = None) -> str:
        user_id = user_of(self._releaser.reservation.plan, config)
        answer = self._releaser.release(self._checked_question(question), user_id)
        if released is not None:
            released.append(answer)
        return answer.label

    async def _alabel(self, question: Question, config: RunnableConfig, released: list[Released] | None = None) -> str:
        user_id = user_of(self._releaser.reservation.plan, config)
        # In a thread: a local model may be busy with another call, and the event loop must not wait for it.
        text = await in_own_thread(self._checked_question, question)
        answer = await self._releaser.arelease(text, user_id)
        if released is not None:
            released.append(answer)
        return answer.label

    def _checked_question(self, question: Question) -> str:
        text = self.prompt.ask(question_texts(question, self.prompt.variables, text_key=self._records.text_key))
        self._voter.check(text)
        return text

    # ------------------------------------------------------------------------------------------- the promise

    @property
    def _reservation(self) -> AnswerReservation:
        return self._releaser.reservation

    def certificate(self) -> PrivacyCertificate:
        """The promise under which this chain releases, with what is spent and left."""
        seeded = not self._rng.private
        made = self._reservation.certificate(self._voter.name, seeded=seeded, notes=self._voter.notes)
        return made.including(self._costs)

    def answers_left(self, *, user_id: str | None = None) -> int:
        """How many more answers the plan covers. The same question again takes none, while its answer is kept.

        Args:
            user_id: Whose share must cover them, too; None for the plan alone.

        Raises:
            PlanError: The plan has no account for the user.
        """
        return self._releaser.remaining.answers(user_id)

    @property
    def quotas(self) -> Quotas | None:
        """Shares of those who ask; None if whoever asks may use up the plan."""
        return self._reservation.plan.quotas

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What a config says for this chain: who asks, if there are ``quotas``."""
        return user_specs(self._reservation.plan)

    @property
    def certificate_model(self) -> str:
        """Name of the model, as certificates give it."""
        return self._voter.name

    def count_tokens(self, text: str) -> int:
        """Tokens of a public text by the model's tokenizer, or an estimate where there is none."""
        return self._voter.count_tokens(text)

    def _certified(self, released: Released) -> DPAnswer[Label]:
        shares = None
        if released.shares is not None:
            shares = {self._given[name]: share for name, share in released.shares.items()}
        return DPAnswer(self._given[released.label], self.certificate(), shares)

    @property
    def scheme(self) -> Scheme:
        """Sampling constants in force."""
        return self._reservation.scheme

    @property
    def sigma(self) -> float:
        """Noise per class count, in votes."""
        return self._reservation.event.sigma

    def plan(self, *, price_per_million_tokens: float | None = None) -> ICLPlanReport:
        """What all queries will cost and how often a majority survives the noise. Spends nothing.

        Args:
            price_per_million_tokens: Price of input tokens, in any currency.

        Raises:
            InvalidParameter: The price is no number, or below 0.
        """
        if price_per_million_tokens is not None:
            validate.number("price_per_million_tokens", price_per_million_tokens, at_least=0.0)
        words = label_words(self.prompt.words, self.labels)
        return report(
            self._reservation,
            labels=len(self.labels),
            records=len(self._records),
            head=self.prompt.head(),
            shot=self._subset_prompts.average_shot(),
            count_tokens=self._voter.count_tokens,
            price_per_million_tokens=price_per_million_tokens,
            companions=[companion_text(self.prompt, words)] * self._voter.companions,
        )

    # --------------------------------------------------------------------------------------------- the examples

    @redact_errors("while an example was added")
    def add(self, example: Any, *, record_id: str | None = None) -> str:
        """Add a private example; it joins one subset by its own coin. Returns the id to forget it by.

        Without an id it is numbered; under add/remove neighbours, where the number of records is private, its id is
        drawn at random.
        """
        row = self._records.read(example)
        if fault := row_fault(row, self.labels, self.prompt.variables, whose="prompt", plain=True):
            raise InvalidParameter(fault.replace("{where}", "the example"))
        given = id_of(row.get("id")) if record_id is None else record_id
        if given is None and (self._counts_are_private() or self._replicas is not None):
            given = record_id = secrets.token_hex(8)
        if self._replicas is not None:
            self._replicas.check_new(str(given))
        record_id, stale = self._subset_prompts.add(row, record_id)
        if stale is not None:
            self._voter.forget(stale)
        return record_id

    def forget(self, record_id: str) -> None:
        """Remove an example for good: the next release does not use it.

        Its subset's cached state is dropped, and so are the kept answers, which it may have helped to find: not so
        under add/remove neighbours, where their loss would show that there was such a record. The other subsets stay
        as they are. Nothing is refunded: what was released was released. With ``replicas`` the fact is in the ledger
        when this returns, and no replica uses the record in a release that begins later.

        Raises:
            InvalidParameter: There is no such record.
        """
        if not isinstance(record_id, str):
            raise unknown_id(record_id)
        if record_id.startswith(AUTOMATIC) and self._counts_are_private():
            raise InvalidParameter(
                f"Expected record_id{shown(record_id)} to be a given id under add/remove neighbours, where places "
                "shift when a record joins or leaves. Give every example an 'id'."
            )
        if self._replicas is not None:
            self._replicas.forget(record_id)
            return
        self._drop(record_id)

    def _drop(self, record_id: str) -> None:
        stale = self._subset_prompts.forget(record_id)
        if stale is not None:
            self._voter.forget(stale)

    def _counts_are_private(self) -> bool:
        return not count_is_public(self._reservation.budget.neighbors)

    def warm(self) -> None:
        """Build the caches of all fixed subsets, so that answer times do not show which were cold."""
        blank = self.prompt.content_free()[0]
        self._voter.warm(self._subset_prompts.everyone(blank))

    def with_budget(
        self,
        budget: PrivacyBudget,
        *,
        ledger: LedgerOrPath | None = None,
        name: str | None = None,
        max_queries: int | None = None,
        quotas: Quotas | None = None,
    ) -> DPICLClassifier[Label]:
        """A second chain over the same examples, subsets and caches, under a promise of its own.

        Somebody who sees the answers of both has seen the sum of the two budgets: share a ledger where that matters.

        Args:
            budget: The promise; its neighbours must be this chain's.
            ledger: Ledger to charge, or the path of one; None keeps one in memory.
            name: Name of the plan; this chain's by default.
            max_queries: Number of releases; this chain's by default.
            quotas: Shares of them; those of this chain by default.

        Raises:
            InvalidParameter, BudgetExceeded, PlanError: As at construction.
        """
        if self._replicas is not None:
            raise InvalidParameter("Expected replicas=False for with_budget(): build the second chain by itself.")
        check_promise(budget, ledger, self._not_private_seed)
        neighbors = self._reservation.budget.neighbors
        if budget.neighbors is not neighbors:
            raise InvalidParameter(
                f"Expected budget.neighbors={budget.neighbors.name} to be {neighbors.name}: its subsets were cut so."
            )
        if max_queries is not None:
            validate.integer("max_queries", max_queries, at_least=1, at_most=MOST_COUNTS)
        scheme = self.scheme
        partitions = scheme.groups if scheme.sampling == "fixed" else None
        reservation = reserve(
            budget=budget,
            ledger=ledger,
            name=name or self._reservation.plan.name,
            max_queries=self._reservation.max_queries if max_queries is None else max_queries,
            sampling=SamplingOptions(scheme.sampling, partitions, scheme.sampling_probability),
            records=len(self._records),
            shots=1,
            subsets=scheme.groups,
            settings=self._reservation.settings,
            quotas=self.quotas if quotas is None else validate.group("quotas", quotas, Quotas),
            before=self._warned,
        )
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.name = reservation.plan.name
        twin._releaser = self._releaser.with_reservation(reservation)
        return twin

    def baseline(self, method: BaselineMethod, *, private: bool) -> NonPrivateICL:
        """A non-private twin over the same examples and model, for comparison only.

        Args:
            method: "zero-shot" (no examples: free of charge), "few-shot" (as many examples as a subset has, of all
                labels alike) or "vote" (as many subsets as here, no noise).
            private: Must be False: the caller says that no promise covers these answers.
        """
        if private is not False:
            raise InvalidParameter(f"Expected private={private!r} to be False: a baseline releases raw votes.")
        return NonPrivateICL(
            method,
            labels=list(self._given.values()),
            prompt=self.prompt,
            voter=self._voter,
            subset_prompts=self._subset_prompts,
            check=self._checked_question,
            neighbors=self._reservation.budget.neighbors,
        )

    def _warned(self, scheme: Scheme, event: NoisyMaxEvent, queries: int) -> None:
        warn_mostly_noise(noise_warning(scheme, event, queries, labels=len(self.labels)))

    def _shot(self, example: Mapping[str, Any]) -> Shot:
        return self.prompt.ask(example), self.prompt.word(str(example["label"]))

    # ------------------------------------------------------------------------------------------ nothing leaks

    @safe_repr
    def __repr__(self) -> str:
        event = self._reservation.event
        return (
            f"DPICLClassifier(labels={list(self.labels)}, {self._reservation.budget}, sigma={event.sigma:g}, <private>)"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "DPICLClassifier holds private examples and cannot be pickled or copied: build it where it runs."
        )
