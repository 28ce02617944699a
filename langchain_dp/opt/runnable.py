"""DP-OPT as a Runnable: private examples in, a prompt for any chat model out."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import run_in_executor

from langchain_dp._util import forks, validate
from langchain_dp._util.reprs import also_unmade
from langchain_dp._util.validate import group, no_further, reject_unknown_arguments
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyCertificate, PrivacyLedger
from langchain_dp.accounting.budget import warn_of, weak_points
from langchain_dp.accounting.events import SamplingName
from langchain_dp.accounting.provenance import MadeWith, ReleasedText, costs_of_inputs
from langchain_dp.ensemble.asking import count_publicly
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise, ledger_for, unreserved
from langchain_dp.ensemble.scheme import Sampling, sampling_from
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.mechanisms import NotPrivateSeededRandomness, Randomness, SystemRandomness
from langchain_dp.opt import checks
from langchain_dp.opt.data import scheme_for
from langchain_dp.opt.dln import DLNSettings
from langchain_dp.opt.fit import Effort, Fit, fit, rows_to_choose_by
from langchain_dp.opt.glossary import Glossary
from langchain_dp.opt.handover import OptimizedPrompt
from langchain_dp.opt.plain import run_dln, run_opt
from langchain_dp.opt.private import PrivateRuns
from langchain_dp.opt.report import OptPlanReport, report
from langchain_dp.opt.settings import METHODS, PRIVATE, Decoder, Method, Settings, Writing
from langchain_dp.opt.templates import Alternative, OptPrompts
from langchain_dp.opt.verdict import NEARLY_ALL
from langchain_dp.ports import Decoding, VotesNextToken
from langchain_dp.quiet.run import check_environment
from langchain_dp.records import Examples, KeepsExamples, PrivateRecords, check_labels, label_words
from langchain_dp.records.files import READING
from langchain_dp.redact import Held, hold_arguments, redacted

_INSTRUCTION, _DESCRIPTION = 50, 12
"""Tokens of a candidate, and of a label's description, unless told otherwise."""
_SHOTS, _SUBSETS, _PROMPTS, _VALIDATION = 5, 205, 5, 0.1
_SHOWN = "<private examples>"
"""What callbacks see of the input."""


class DPPromptOptimizer(KeepsExamples, Runnable[Examples | None, ChatPromptTemplate]):
    """Writes an instruction from private examples on a local model, and hands it over as a prompt.

    The examples sit in subsets; for each token every subset that takes part shows its examples to the local model and
    votes for the next token; LimitedDomain releases the token with most votes, or nothing; several candidates are
    written, and the exponential mechanism selects one by its correct answers on validation records.

    Args:
        model: Engine that writes tokens and scores labels (``LlamaCppEnsemble``, ``TransformersEnsemble``, ...). It
            sees the examples: it must run inside the trust boundary.
        labels: The public labels.
        instruction: What to start from, public. It is always among the candidates.
        budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
        ledger: Ledger that is charged. Without ``budget``, all that is left of it is reserved. Or the path of a ledger
            that is opened here with the whole ``budget``.
        name: Name of the plan in the ledger. A ledger with a file keeps the run's journal beside it, and a run under
            the same name is taken up where it stopped.
        prompts: Templates; see :mod:`langchain_dp.opt.templates`.
        shots: Demonstrations of one subset (expected number where subsets vary), 5 by default. Of a glossary: texts of
            each label, if labels are equally frequent; by clipped sums every member shows one.
        subsets: Expected number of subsets that vote on one token, or that write one text together.
        num_prompts: Candidates at most. A glossary has one description a label.
        max_new_tokens: Tokens of one candidate at most, 50 by default; of one description, 12 by default: each label
            has so many calls of its own, whatever becomes of them.
        method: "dp-opt"; "glossary", which describes label by label what the texts of one label have in common, and
            puts the descriptions into the instruction; "choose", which writes nothing, and chooses between the initial
            instruction and ``alternatives`` by all examples, of which it needs far fewer; or, for comparison and NOT
            private, "opt" (votes without noise) or "dln-1".
        decoder: "votes": every subset votes for each next token, and one is released that has votes enough beyond the
            noise. "clip": every subset moves the public model's distribution, each by no more than a clip, and every
            token is drawn from what results; it needs fewer records, and a smaller epsilon. Replace-one only. None:
            "clip" for a glossary, where engine, neighbours and the other settings admit it, since it needs far fewer
            rows; else "votes".
        sampling: "fixed": subsets are cut once and each takes part by a coin, so that caches are kept; "resample":
            dealt anew for every token, as in the paper (add/remove neighbours only). Number and rate of the subsets
            follow from the number of training records; under add/remove, where that is private, give a ``Sampling``.
        validation: Share of the examples that select, in (0, 1), a tenth by default; the others teach. With "choose"
            all select.
        rows: Examples that take part at most, drawn by coins; None is all. More of them than the votes need cost time.
            Not under add/remove, where their number is private.
        alternatives: Public prompts that may be handed over, too, each an instruction or an
            :class:`~langchain_dp.opt.Alternative` with words of its own for the labels: what is chosen among. They cost
            no epsilon, and the time of answering the validation records once more each.
        writing: Which tokens are released, and when a candidate ends: stop strings, calls, retries, noise of one call.
        decoding: How each member takes the token it votes for. At the temperature of 0, the default, that is its most
            probable one: small models agree on hardly anything at the 1.1 of the paper. ``chat=None``, the default,
            presents the request in the chat template of a model that carries one, and that of a glossary as plain text;
            ``chat=False`` any as plain text.
        calibrate: Divide label scores by those of texts without content (Zhao et al. 2021).
        dln: Settings of "dln-1".
        glossary: How "glossary" asks, and whether the model is told the labels' names.
        progress: Show progress; None shows it on a terminal only. It shows released values only.
        labels_read: The labels were read off the examples. No epsilon counts that: the certificate says so.
        made_with: Certificate of a run whose released text stands in ``labels``, ``instruction``, ``prompts``
            or ``alternatives``, or several, where the text does not know
            it any more: it was read from a file, or formatted. The certificate adds up what was spent. What a run of
            this package hands over, and :func:`~langchain_dp.opt.load_prompt` reads, knows it by itself.
        not_private_seed: Reproducible coins and noise. The certificate says that the result is not private.

    Raises:
        InvalidParameter: A value is out of bounds, or the engine lacks a port.

    Formal guarantee:
        The prompt, every candidate and every count in the certificate are together (epsilon, delta)-differentially
        private in the examples, with the budget's neighbours (replace-one by default: their number is public). The
        claim is the preset budget of the plan, whatever was used of it. Times, the initial instruction and the local
        model are outside of it. Source: Hong et al. 2024, Algorithms 1, 2 and 4, with the noise scale, threshold
        and accounting of :class:`langchain_dp.mechanisms.LimitedDomain` and :mod:`langchain_dp.accounting`, not the
        paper's. A glossary is cut from one partition of all records, whatever their labels; a record that is replaced
        moves a vote in the descriptions of two labels at most, and pays for those: see
        :class:`langchain_dp.accounting.LabelPartEvent`. With ``decoder="clip"`` every candidate, and a glossary as a
        whole, costs one :class:`langchain_dp.accounting.TextRoundEvent`: see
        :class:`langchain_dp.mechanisms.ClippedSum`.

    Examples:
        >>> optimizer = DPPromptOptimizer(
        ...     model=engine, labels=LABELS, instruction="Is it praise or a complaint?", budget=budget
        ... )
        >>> print(optimizer.plan(20_000))  # a few hundred records need fewer subsets=
        >>> chain = optimizer.invoke(records) | model  # any chat model, wherever it runs
    """

    @reject_unknown_arguments
    def __init__(
        self,
        *,
        model: VotesNextToken,
        labels: Sequence[str],
        instruction: str,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "dp-opt",
        prompts: OptPrompts | None = None,
        shots: int | None = None,
        subsets: int = _SUBSETS,
        num_prompts: int = _PROMPTS,
        max_new_tokens: int | None = None,
        method: Method = "dp-opt",
        decoder: Decoder | None = None,
        sampling: SamplingName | Sampling = "fixed",
        validation: float | None = None,
        rows: int | None = None,
        alternatives: Sequence[str | Alternative] = (),
        writing: Writing | None = None,
        decoding: Decoding | None = None,
        calibrate: bool = True,
        dln: DLNSettings | None = None,
        glossary: Glossary | None = None,
        progress: bool | None = None,
        labels_read: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        checks.check_model(model)
        validate.one_of("method", method, METHODS)
        if method in PRIVATE:
            check_promise(budget, ledger, not_private_seed)
        elif budget is not None or ledger is not None:
            raise InvalidParameter(
                f'Expected method={method!r} without budget= or ledger=: it promises nothing. Use "dp-opt" for a '
                "private prompt."
            )
        validate.short_text("name", name, at_least=1)
        if dln is not None and method != "dln-1":
            raise InvalidParameter(f'Expected dln= with method="dln-1" only, not with method={method!r}. Leave it out.')
        self.name = name
        describes = method == "glossary"
        if method == "choose":
            checks.check_unused(
                shots=shots, max_new_tokens=max_new_tokens, writing=writing, decoding=decoding,
                subsets=None if subsets == _SUBSETS else subsets,
                num_prompts=None if num_prompts == _PROMPTS else num_prompts,
                sampling=None if sampling in ("fixed", Sampling()) else sampling,
            )  # fmt: skip
        decoding, writing = group("decoding", decoding, Decoding), group("writing", writing, Writing)
        sampling = sampling_from(sampling)
        if decoder is None:
            decoder = checks.decoder_for(method, model, budget or ledger, writing, decoding, sampling, shots=shots)
        if decoding.chat is None:  # no template has a place for the public examples that a glossary shows
            decoding = dataclasses.replace(decoding, chat=not describes and bool(getattr(model, "chats", False)))
        self.settings = Settings(
            method=method,
            instruction=checks.check_instruction(instruction),
            labels=check_labels(labels),
            prompts=prompts or OptPrompts(),
            shots=(1 if describes and decoder == "clip" else _SHOTS) if shots is None else shots,
            subsets=subsets,
            sampling=sampling,
            validation=(_VALIDATION if method != "choose" else 1.0) if validation is None else validation,
            rows=rows,
            alternatives=checks.alternatives(alternatives),
            num_prompts=num_prompts,
            max_new_tokens=(_DESCRIPTION if describes else _INSTRUCTION) if max_new_tokens is None else max_new_tokens,
            writing=writing,
            decoding=decoding,
            calibrate=calibrate,
            glossary=group("glossary", glossary, Glossary) if describes or glossary is not None else None,
            decoder=decoder,
            labels_read=labels_read,
        )
        checks.check_decoder(model, decoder)
        label_words(self.settings.prompts.words, self.settings.labels)
        if decoder == "votes" and self.settings.writes:
            checks.check_kbar(model, self.settings.writing.kbar)
        checks.check_room(model, self.settings)
        self._engine = model
        self._dln = dln or DLNSettings()
        self._progress = validate.one_of("progress", progress, (None, True, False))
        self._seed = not_private_seed
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._sampled: list[str] = []
        self._private: PrivateRuns | None = None
        if method in PRIVATE:
            self._private = PrivateRuns(
                model,
                self.settings,
                ledger=ledger_for(budget, ledger),
                budget=budget,
                name=name,
                progress=progress,
                rng=self._randomness(),
                costs=costs_of_inputs(
                    labels,
                    instruction,
                    prompts,
                    alternatives,
                    glossary,
                    made_with=made_with,
                    budget=budget,
                    ledger=ledger,
                ),
            )

    @classmethod
    def auto(
        cls,
        *,
        model: VotesNextToken,
        labels: Sequence[str],
        instruction: str,
        examples_count: int,
        effort: Effort = "light",
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "dp-opt",
        method: Method = "dp-opt",
        decoder: Decoder | None = None,
        **settings: Any,
    ) -> Self:
        """An optimizer whose settings fit the number of examples and the budget.

        As many candidates, tokens and demonstrations as leave a token with 70% of the votes a chance of a half, of as
        many examples as a model evaluates in bounded time: the number of examples alone never makes a run longer.
        Where no settings do, ``plan()`` says so in its verdict, and ``invoke`` refuses before anything is spent.

        Args:
            model: As in the class.
            labels: As in the class.
            instruction: As in the class.
            examples_count: Number of examples; public.
            effort: "light" evaluates some 330,000 tokens at most (seven minutes of the embedded model on two cores);
                "full" ten times as many.
            budget: As in the class.
            ledger: As in the class.
            name: As in the class.
            method: "dp-opt", "glossary" or "choose".
            decoder: As in the class.
            **settings: The other arguments of the class; not those that are chosen here.

        Raises:
            InvalidParameter: A value is out of bounds, or was left to be chosen here.
            BudgetExceeded: The ledger has no room.

        Formal guarantee:
            That of the class. The settings are functions of public numbers: not of what an example holds.

        Examples:
            >>> optimizer = DPPromptOptimizer.auto(
            ...     model=engine, labels=LABELS, instruction="Praise or complaint?", examples_count=2_000, budget=budget
            ... )
            >>> print(optimizer.plan(2_000).verdict)
        """
        check_promise(budget, ledger, settings.get("not_private_seed"))
        chosen = {field.name for field in dataclasses.fields(Fit)} | {"sampling"}
        if both := sorted(chosen & set(settings)):
            raise InvalidParameter(
                f"Expected {both[0]}= to be left out of auto(), which chooses it. Leave it out, or make the optimizer "
                "by DPPromptOptimizer(...) with all of them."
            )
        if isinstance(model, VotesNextToken) and ledger is not None:
            ledger = ledger_for(budget, ledger)
        share = budget
        if share is None:
            assert isinstance(ledger, PrivacyLedger)  # check_promise
            plan = ledger.plan(name)
            share = (
                unreserved(ledger) if plan is None else PrivacyBudget(plan.epsilon, plan.delta, ledger.budget.neighbors)
            )
        tokens = 0
        if isinstance(model, VotesNextToken):
            tokens = count_publicly(model, checks.check_instruction(instruction))
        writing = group("writing", settings.get("writing"), Writing)
        if decoder is None:
            decoding = group("decoding", settings.get("decoding"), Decoding)
            decoder = checks.decoder_for(method, model, share, writing, decoding)
        settings["alternatives"] = checks.alternatives(settings.get("alternatives", ()))
        public = len(settings["alternatives"])
        if method == "choose":
            prompts = public + 1
            fitted: dict[str, Any] = {"rows": rows_to_choose_by(examples_count, share, prompts=prompts, effort=effort)}
        else:
            fitted = fit(
                examples_count, share, labels=len(check_labels(labels)), method=method, effort=effort,
                instruction=tokens, clip_temperature=writing.clip_temperature if decoder == "clip" else None,
                alternatives=public,
            ).arguments()  # fmt: skip
        made = cls(
            model=model,
            labels=labels,
            instruction=instruction,
            budget=budget,
            ledger=ledger,
            name=name,
            method=method,
            decoder=decoder,
            **fitted,
            **settings,
        )
        assert made._private is not None  # fit takes private methods alone
        made._private.agreement = NEARLY_ALL
        return made

    def _randomness(self) -> Randomness:
        return SystemRandomness() if self._seed is None else NotPrivateSeededRandomness(self._seed)

    # ------------------------------------------------------------------------------------------------ Runnable

    @hold_arguments("input")
    def invoke(self, input: Examples | None, config: RunnableConfig | None = None, **kwargs: Any) -> ChatPromptTemplate:  # noqa: A002  # Runnable's name
        """Release one prompt.

        The run's own callbacks see neither the examples nor their number. The run AROUND it does: in
        ``optimizer | chain`` LangChain hands the input to the callbacks of the whole. Pass ``PrivateRecords``, which
        show nothing, or wrap the call in ``private_run()``.

        Args:
            input: Private examples, mappings with ``text`` and ``label`` (and what else the template names), or
                whatever else ``PrivateRecords`` takes. None: those of :meth:`from_dataframe`.
            config: LangChain config.
            **kwargs: None are taken.

        Returns:
            The forward prompt under the released instruction as one human message, or as a system and a human one by
            ``OptPrompts.system``, braces escaped;
            ``metadata["dp"]`` is the certificate, and survives ``dumps`` and ``loads``.

        Raises:
            InvalidParameter: Examples or settings do not do. Nothing was spent.
            BudgetExceeded: The ledger has no room for the plan. Nothing was spent.
            PlanError: The ledger holds another plan, or a complete run over other examples, under this name.
            UnsafeEnvironment: A global setting would print prompts. Nothing was spent.
        """
        no_further(kwargs)
        return self._optimize(Held.of(input), config).template()

    @hold_arguments("input")
    async def ainvoke(
        self,
        input: Examples | None,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> ChatPromptTemplate:
        """Async twin of :meth:`invoke`. A cancelled call spends nothing more; the next one goes on from there."""
        no_further(kwargs)
        return (await self._aoptimize(Held.of(input), config)).template()

    @hold_arguments("examples")
    def optimize(self, examples: Examples | None = None, config: RunnableConfig | None = None) -> OptimizedPrompt:
        """As :meth:`invoke`, but returns the prompt with certificate and settings, ready to be saved.

        Ctrl-C loses nothing but the call under way, and with ``decoder="clip"`` the candidate under way: call again
        with the same examples, and the run is taken up where it stopped; with a ledger in a file that holds for a new
        process too. Only a choice among the candidates that was charged, and whose process is gone, is lost: the
        candidates stay in :meth:`released`. A complete run gives its prompt again, at no further cost.
        """
        return self._optimize(Held.of(examples), config)

    @hold_arguments("examples")
    async def aoptimize(
        self, examples: Examples | None = None, config: RunnableConfig | None = None
    ) -> OptimizedPrompt:
        """Async twin of :meth:`optimize`, in a worker thread, which stops before its next call when cancelled.

        A choice that is charged is made all the same: a process that ended before it would lose it.
        """
        return await self._aoptimize(Held.of(examples), config)

    async def _aoptimize(self, held: Held, config: RunnableConfig | None) -> OptimizedPrompt:
        cancelled = threading.Event()
        try:
            return await run_in_executor(config, self._optimize, held, config, cancelled.is_set)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def _optimize(
        self, held: Held, config: RunnableConfig | None, halted: Callable[[], bool] = lambda: False
    ) -> OptimizedPrompt:
        # Before the run: what is wrong with an example is no callback's business.
        records = redacted(self._checked, held, READING)
        made: list[OptimizedPrompt] = []

        def run(_: str) -> str:
            made.append(redacted(self._alone, Held(records, halted), "while a prompt was optimized"))
            return made[0].instruction

        RunnableLambda(run, name=self.get_name()).invoke(_SHOWN, config)
        return made[0]

    def _alone(self, records: PrivateRecords, halted: Callable[[], bool]) -> OptimizedPrompt:
        check_environment()
        with self._lock:
            return self._run(records, halted)

    def _run(self, records: PrivateRecords, halted: Callable[[], bool]) -> OptimizedPrompt:
        if self._private is not None:
            return self._private.run(records, halted=halted)
        if self.settings.method == "opt":
            return run_opt(self._engine, self.settings, records, rng=self._randomness(), progress=self._progress)
        coins = random.SystemRandom() if self._seed is None else random.Random(self._seed)  # noqa: S311  # not private
        prompt, self._sampled = run_dln(
            self._engine, self.settings, self._dln, records, coins=coins, progress=self._progress
        )
        return prompt

    @also_unmade
    def __repr__(self) -> str:
        settings = self.settings
        return f"DPPromptOptimizer(method={settings.method!r}, labels={list(settings.labels)}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "A DPPromptOptimizer holds a run and its budget, and cannot be pickled or copied. Build it anew: under the "
            "same name= and ledger= it goes on with the run."
        )

    # ------------------------------------------------------------------------------------------------- promise

    def released(self) -> list[str]:
        """Candidates that were released so far, complete or not; the initial instruction is not among them.

        Of DLN-1 every prompt that its last run sampled. None of them is private.
        """
        if self._private is None:
            return list(self._sampled)
        texts = self._private.released()
        return [ReleasedText(text, self.certificate().as_sources()) for text in texts]

    def certificate(self) -> PrivacyCertificate:
        """The promise of the run as it stands.

        Raises:
            InvalidParameter: No run has started yet, or the method promises nothing.
        """
        if self._private is None:
            raise InvalidParameter(
                f"Expected method={self.settings.method!r} to be one of {list(PRIVATE)}: the others promise nothing, "
                "which the prompt they return says."
            )
        return self._private.certificate()

    @hold_arguments("examples")
    def check(self, examples: Examples | int | None = None) -> OptPlanReport:
        """As :meth:`plan`, but refuses, as :meth:`invoke` would, a run in which no token can win.

        Raises:
            InvalidParameter: No token can win, or a choice that was fitted (:meth:`auto`) would be one at random; it
                names what would help.
        """
        records, count = redacted(self._counted, Held.of(examples), READING)
        found = self.plan(count if records is None else records)
        assert self._private is not None  # or there would be no plan
        self._private.check_reachable(found.token, found.budget, found.scheme, count)
        return found

    @hold_arguments("examples")
    def plan(self, examples: Examples | int | None = None) -> OptPlanReport:
        """What a run would cost, whether its votes can win, and in its verdict whether it is worth it. Spends nothing.

        Args:
            examples: The examples, for estimates from their lengths (for the operator, not for publication); or their
                number.

        Raises:
            InvalidParameter, BudgetExceeded: As :meth:`invoke` would.
            ModelUnavailable: The engine could not count the tokens of an example.
        """
        if self._private is None:
            raise InvalidParameter(
                f"Expected method={self.settings.method!r} to be one of {list(PRIVATE)} to plan a budget."
            )
        records, count = redacted(self._counted, Held.of(examples), READING)
        neighbors: Neighbors = self._private.neighbors
        share, token, selection = self._private.prospect(count)
        scheme = scheme_for(self.settings, neighbors, count)
        warn_of(weak_points(share.epsilon, share.delta, *scheme.least_records(count)))
        return report(
            self._engine,
            self.settings,
            budget=share,
            scheme=scheme,
            token=token,
            selection=selection,
            records=records,
            count=count,
        )
