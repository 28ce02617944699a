"""DP-ICL as a Runnable."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NoReturn, Self

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
from langchain_dp.ensemble.reservation import LedgerOrPath, about_run, check_promise, ledger_for
from langchain_dp.ensemble.splits import note_ledger
from langchain_dp.ensemble.subsets import SamplingOptions, Scheme, sampling_from
from langchain_dp.ensemble.tools import ExitBehavior, private_tool
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.icl import prompts
from langchain_dp.icl.baseline import BaselineMethod, NonPrivateICL
from langchain_dp.icl.prompts import ICLPrompt, companion_text, prompt_from
from langchain_dp.icl.release import DPAnswer, Releaser
from langchain_dp.icl.replicas import Replicas
from langchain_dp.icl.report import ICLPlanReport, noise_warning, report, votes_for
from langchain_dp.icl.reservation import AnswerReservation, reserve
from langchain_dp.icl.subset_prompts import Shot, SubsetPrompts
from langchain_dp.icl.voters import ModelCallOptions, Voter, make_voter
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
    """A classifier that answers with one of ``labels``, by a private vote over private examples.

    Each participating subset of the examples prompts the model once. Report noisy max releases one label.

    Args:
        model: Chat model, completion model, Runnable with a ``label`` in its output, decision model, or engine
            (``LabelScorer``). Its operator sees the examples.
        examples: Private mappings with ``text``, ``label`` and other variables of the prompt, or any source that
            ``PrivateRecords`` takes. The chain copies a ``PrivateRecords``: forget a record in both.
        labels: Public labels: strings, whole numbers, bools, or an Enum. Their order breaks ties.
        budget: The promise. With ``ledger``, the share to reserve.
        ledger: Ledger to charge, or the path of one to open with the whole ``budget``. Without ``budget``, its rest is
            reserved. None: a ledger in memory.
        max_queries: Number of releases that the noise is calibrated for. The next one is refused.
        shots: Examples per subset, or their expected number.
        subsets: Expected number of subsets that vote on one question.
        sampling: "fixed": subsets are cut once, and each takes part by a coin (less noise, reusable caches).
            "resample": new subsets for every question, as in the paper. Add/remove neighbors need ``SamplingOptions``.
        prompt: Template, or a str: the question, then the cue on its own line.
        name: Name of the plan. A restart under this name continues it.
        calibrate: Divide an engine's label scores by those of questions without content (Zhao et al. 2021).
        model_calls: Timeout, concurrency, outages and response times.
        answer_cache_size: Number of released answers to cache. Cached answers are free.
        replicas: Share answers and forgotten records with other processes under this ledger and name. The ledger needs
            a path or a ``postgresql://`` URL, and every example an id. All replicas must set this. If two get a
            question at once, both are charged and give the same answer.
        quotas: Shares of ``max_queries`` per user. Every call then names a user in ``config={"configurable":
            {"user_id": "team-7"}}``.
        trust_opaque_model: Trust parts of the model that cannot be inspected to keep no prompts. The certificate says
            so. ``langchain_dp.isolation.accept`` lists the parts that need no trust.
        made_with: Certificates of released text in ``labels`` or ``prompt`` that lost its cost.
        not_private_seed: Reproducible coins and noise. The result is then not private.

    Raises:
        InvalidParameter: A value is out of bounds, a label is unknown, or there are too few examples.
        BudgetExceeded: The plan does not fit into the ledger.
        UnsafeEnvironment: The model has a memory, or is opaque and not trusted.
        PlanError: The ledger's plan of this name has other settings.

    Warns:
        WeakPromiseWarning: epsilon is above 10, or delta is not below one over the number of examples.

    Formal guarantee:
        All releases over the life of the plan together are (epsilon, delta)-differentially private in the examples,
        with the budget's neighbors. Questions, response times and data that the model's operator sees are not covered.
        Source: Panda, Wang, Wu, Mittal 2023, Algorithm 1 and Theorem 2, accounted by :mod:`langchain_dp.accounting`.

    Examples:
        >>> chain = DPICLClassifier(model=model, examples=rows, labels=LABELS, budget=budget, max_queries=100)
        >>> print(chain.plan())
        >>> chain.invoke("Nobody called me back.")  # a noisy vote: results can vary
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
        max_queries: int,
        shots: int = 4,
        subsets: int = 10,
        sampling: SamplingName | SamplingOptions = "fixed",
        prompt: ICLPrompt | str | None = None,
        name: str = "dp-icl",
        calibrate: bool = True,
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
        self._labels_by_name = given_labels(labels)
        self.labels = tuple(self._labels_by_name)
        self.prompt = prompts.plain(self.labels) if prompt is None else prompt_from(prompt)
        check_promise(budget, ledger, not_private_seed)
        validate.integer("max_queries", max_queries, at_least=1, at_most=MOST_COUNTS)
        validate.integer("answer_cache_size", answer_cache_size, at_least=1)
        for flag, value in {"calibrate": calibrate, "replicas": replicas}.items():
            validate.one_of(flag, value, (True, False))
        sampling = sampling_from(sampling)
        model_calls = validate.group("model_calls", model_calls, ModelCallOptions)
        words = label_words(self.prompt.words, self.labels)
        self._voter: Voter = make_voter(
            model,
            prompt=self.prompt,
            words=words,
            calibrate=calibrate,
            keep_caches=sampling.scheme == "fixed",
            model_calls=model_calls,
            trust_opaque_model=trust_opaque_model,
        )
        self._records = run_redacted(PrivateRecords, held, READING)
        check_records(
            self._records, self.labels, self.prompt.variables, whose="prompt", plain=True, protects_users=not replicas
        )
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
            about=functools.partial(about_run, self._voter.name, self._records),
            records=self._records.count_users(),
            shots=shots,
            subsets=subsets,
            replicas=replicas,
            quotas=None if quotas is None else validate.group("quotas", quotas, Quotas),
            before=self._warn_if_noisy,
        )
        if self._rng.private:
            note_ledger(self._records, reservation.plan)
        self._subset_prompts = SubsetPrompts(self._records, reservation.scheme, self._shot, self._rng)
        self._replicas: Replicas | None = None
        if replicas:
            self._replicas = Replicas(
                reservation.plan,
                self._records,
                self._drop,
                [self.labels, words, self.prompt.head(), self._voter.name, calibrate],
            )
            self._subset_prompts.catch_up = self._replicas.catch_up
        self._releaser = Releaser(
            labels=self.labels,
            subset_prompts=self._subset_prompts,
            voter=self._voter,
            reservation=reservation,
            rng=self._rng,
            model_calls=model_calls,
            answer_cache_size=answer_cache_size,
            replicas=self._replicas,
        )

    @classmethod
    def auto(
        cls,
        *,
        model: Runnable[Any, Any] | LabelScorer,
        examples: Examples,
        labels: Iterable[Label],
        max_queries: int,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "dp-icl",
        **settings: Any,
    ) -> Self:
        """Build a classifier, with ``shots`` and ``subsets`` chosen by public numbers.

        They are the fewest subsets, then the most shots, at which a 70% majority wins 85 times in 100. A plan of this
        name keeps its own. All arguments are those of the class.

        Raises:
            InvalidParameter: As in the class. Also for ``shots``, ``subsets`` or ``sampling``, and for add/remove
                neighbors.

        Formal guarantee:
            That of the class. The choice does not depend on the content of an example.
        """
        held = PrivateArgs(examples)
        del examples  # error reporters read the locals of each frame
        if both := sorted({"shots", "subsets", "sampling"} & settings.keys()):
            raise InvalidParameter(f"Expected {both[0]}= to be left out of auto(), which chooses it.")
        check_promise(budget, ledger, settings.get("not_private_seed"))
        validate.integer("max_queries", max_queries, at_least=1, at_most=MOST_COUNTS)
        known, opened = list(given_labels(labels).values()), None if ledger is None else ledger_for(budget, ledger)
        records = run_redacted(PrivateRecords, held, READING)
        votes = votes_for(budget, opened, name, len(records.users()), len(known), max_queries)
        common: dict[str, Any] = {"budget": budget, "ledger": opened, "name": name, **votes, **settings}
        return cls(model=model, examples=records, labels=known, max_queries=max_queries, **common)

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Label:  # noqa: A002  # Runnable's name
        """Release one label.

        Args:
            input: The question: a string, a mapping of the template's variables, a message, messages (the last human
                one), a graph's state with ``messages``, a prompt value, or a document.
            config: LangChain config. Its callbacks see the question and the label, never the examples.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The question is empty or too long. Nothing was spent.
            BudgetExceeded: The plan is used up, or the user's quota (``QuotaExceeded``). No model was called.
            PlanError: The plan has quotas, and the config names no user with one. Nothing was spent.
            ModelUnavailable: A public test question or health probe failed. The message says if the release was
                charged.
            UnsafeEnvironment: A global setting would print prompts. Nothing was spent.

        Warns:
            BudgetLowWarning: 80% of the plan is used.
        """
        reject_extra_kwargs(kwargs)
        return self._labels_by_name[self._run(input, config)]

    async def ainvoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Label:  # noqa: A002
        """Async twin of :meth:`invoke`."""
        reject_extra_kwargs(kwargs)
        return self._labels_by_name[await self._arun(input, config)]

    def invoke_with_certificate(self, question: Question, config: RunnableConfig | None = None) -> DPAnswer[Label]:
        """Release one label with its certificate."""
        return DPAnswer(self.invoke(question, config), self.certificate())

    async def ainvoke_with_certificate(
        self, question: Question, config: RunnableConfig | None = None
    ) -> DPAnswer[Label]:
        """Async twin of :meth:`invoke_with_certificate`."""
        label = await self.ainvoke(question, config)
        return DPAnswer(label, await asyncio.to_thread(self.certificate))

    def as_tool(
        self,
        args_schema: type[BaseModel] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: Mapping[str, type] | None = None,
        exit_behavior: ExitBehavior = "continue",
    ) -> BaseTool:
        """Return a tool for an agent, which answers with the name of a label. A refused question costs nothing.

        Args:
            args_schema: The arguments. By default the template's variables.
            name: Name of the tool. By default that of the plan.
            description: Description for the model.
            arg_types: None are taken.
            exit_behavior: Behavior of a used-up plan or quota. "continue": a tool message with error status. "end": the
                same message ends the agent, which must get the tool in ``create_agent`` before the tool's first call.
                "error": BudgetExceeded is raised.

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
        """Type of an answer: str, if all labels are."""
        return str if all(isinstance(label, str) for label in self._labels_by_name.values()) else Any

    def _run(self, question: Question, config: RunnableConfig | None) -> str:
        return str(self._call_with_config(self._label, question, config))  # type: ignore[arg-type]  # callbacks get the name

    async def _arun(self, question: Question, config: RunnableConfig | None) -> str:
        return str(await self._acall_with_config(self._alabel, question, config))  # type: ignore[arg-type]  # the same

    # LangChain gives the config to an argument of this name.
    def _label(self, question: Question, config: RunnableConfig) -> str:
        user_id = user_of(self._releaser.reservation.plan, config)
        return self._releaser.release(self._checked_question(question), user_id)

    async def _alabel(self, question: Question, config: RunnableConfig) -> str:
        user_id = user_of(self._releaser.reservation.plan, config)
        # In a thread: a local model may be busy, and the event loop must not wait for it.
        text = await in_own_thread(self._checked_question, question)
        return await self._releaser.arelease(text, user_id)

    def _checked_question(self, question: Question) -> str:
        text = self.prompt.ask(question_texts(question, self.prompt.variables, text_key=self._records.text_key))
        self._voter.check(text)
        return text

    @property
    def _reservation(self) -> AnswerReservation:
        return self._releaser.reservation

    def certificate(self) -> PrivacyCertificate:
        """Return the promise that covers this chain's releases, with its spent part."""
        certificate = self._reservation.certificate(
            self._voter.name, seeded=not self._rng.private, notes=(*self._records.unit_notes(), *self._voter.notes)
        )
        return certificate.including(self._costs)

    def answers_left(self, *, user_id: str | None = None) -> int:
        """Return the number of new releases that the plan, and the user's quota if any, still covers.

        Raises:
            PlanError: The plan has no quota for the user.
        """
        return self._releaser.remaining.answers(user_id)

    @property
    def quotas(self) -> Quotas | None:
        """Quotas per user, or None."""
        return self._reservation.plan.quotas

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """Config fields of this chain: the user, if any."""
        return user_specs(self._reservation.plan)

    @property
    def certificate_model(self) -> str:
        """Name of the model in certificates."""
        return self._voter.name

    def count_tokens(self, text: str) -> int:
        """Count a public text's tokens, or estimate them."""
        return self._voter.count_tokens(text)

    @property
    def scheme(self) -> Scheme:
        """Sampling constants in force."""
        return self._reservation.scheme

    @property
    def sigma(self) -> float:
        """Noise per class count, in votes."""
        return self._reservation.event.sigma

    def plan(self, *, price_per_million_tokens: float | None = None) -> ICLPlanReport:
        """Forecast cost and accuracy of all queries. Spends nothing.

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
            records=self._records.count_users(),
            head=self.prompt.head(),
            shot=self._subset_prompts.average_shot(),
            count_tokens=self._voter.count_tokens,
            price_per_million_tokens=price_per_million_tokens,
            companions=[companion_text(self.prompt, words)] * self._voter.companions,
        )

    @redact_errors("while an example was added")
    def add(self, example: Any, *, record_id: str | None = None) -> str:
        """Add a private example, which joins one subset by its own coin. Return its id.

        Without an id it is numbered. Under add/remove neighbors, where the number of records is private, or with
        ``replicas`` its id is random.
        """
        row = self._records.read(example)
        if fault := row_fault(row, self.labels, self.prompt.variables, whose="prompt", plain=True):
            raise InvalidParameter(fault.replace("{where}", "the example"))
        own_id = id_of(row.get("id")) if record_id is None else record_id
        if own_id is None and (self._counts_are_private() or self._replicas is not None):
            own_id = record_id = secrets.token_hex(8)
        if self._replicas is not None:
            self._replicas.check_new(str(own_id))
        record_id, stale = self._subset_prompts.add(row, record_id)
        if stale is not None:
            self._voter.forget(stale)
        return record_id

    def forget(self, record_id: str) -> None:
        """Remove an example for good. With ``replicas``, no replica uses it in a later release.

        This drops its subset's caches and all cached answers. Under add/remove neighbors the answers stay, because
        their loss would reveal that the record existed.

        Raises:
            InvalidParameter: There is no such record.
        """
        if not isinstance(record_id, str):
            raise unknown_id(record_id)
        if record_id.startswith(AUTOMATIC) and self._counts_are_private():
            raise InvalidParameter(
                f"Expected record_id{shown(record_id)} to be a given id under add/remove neighbors, where places "
                "shift when a record joins or leaves. Give every example an 'id'."
            )
        (self._drop if self._replicas is None else self._replicas.forget)(record_id)

    def _drop(self, record_id: str) -> None:
        stale = self._subset_prompts.forget(record_id)
        if stale is not None:
            self._voter.forget(stale)

    def _counts_are_private(self) -> bool:
        return not count_is_public(self._reservation.budget.neighbors)

    def warm(self) -> None:
        """Build the caches of all fixed subsets, so that response times do not show cold ones."""
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
        """Return a second chain over the same examples, subsets and caches, under another promise.

        A user of both chains has seen the sum of the two budgets. To prevent that, share a ledger.

        Args:
            budget: The promise. Its neighbors must be this chain's.
            ledger: Ledger to charge, or the path of one. None: a new one in memory.
            name: Name of the plan. This chain's by default, like the next two.
            max_queries: Number of releases.
            quotas: Quotas per user.

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
            about=functools.partial(about_run, self._voter.name, self._records),
            records=self._records.count_users(),
            shots=1,
            subsets=scheme.groups,
            settings=self._reservation.settings,
            quotas=self.quotas if quotas is None else validate.group("quotas", quotas, Quotas),
            before=self._warn_if_noisy,
        )
        if self._rng.private:
            note_ledger(self._records, reservation.plan)
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.name = reservation.plan.name
        twin._releaser = self._releaser.with_reservation(reservation)
        return twin

    def baseline(self, method: BaselineMethod, *, private: bool) -> NonPrivateICL:
        """Return a non-private twin over the same examples and model, for comparison only.

        Args:
            method: "zero-shot" (free), "few-shot" (one subset's number of examples, balanced labels) or "vote" (the
                same subsets, no noise).
            private: Must be False: you accept that no promise covers these answers.
        """
        if private is not False:
            raise InvalidParameter(f"Expected private={private!r} to be False: a baseline releases raw votes.")
        return NonPrivateICL(
            method,
            labels=list(self._labels_by_name.values()),
            prompt=self.prompt,
            voter=self._voter,
            subset_prompts=self._subset_prompts,
            check=self._checked_question,
            neighbors=self._reservation.budget.neighbors,
        )

    def _warn_if_noisy(self, scheme: Scheme, event: NoisyMaxEvent, queries: int) -> None:
        warn_mostly_noise(noise_warning(scheme, event, queries, labels=len(self.labels)))

    def _shot(self, example: Mapping[str, Any]) -> Shot:
        return self.prompt.ask(example), self.prompt.word(str(example["label"]))

    @safe_repr
    def __repr__(self) -> str:
        return (
            f"DPICLClassifier(labels={list(self.labels)}, {self._reservation.budget}, sigma={self.sigma:g}, <private>)"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "DPICLClassifier holds private examples and cannot be pickled or copied: build it where it runs."
        )
