"""Base of the private prompt Runnables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig

from langchain_dp._util import validate
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import warn_weak_promise, weak_promise_reasons
from langchain_dp.accounting.provenance import MadeWith, ReleasedText, costs_of_inputs
from langchain_dp.ensemble.reservation import LedgerOrPath, ledger_for
from langchain_dp.ensemble.runs import Halted, RunRunnable
from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.opt import checks
from langchain_dp.opt.data import scheme_for
from langchain_dp.opt.handover import OptimizedPrompt
from langchain_dp.opt.private import PrivateRuns
from langchain_dp.opt.report import OptPlanReport, report
from langchain_dp.opt.settings import Settings
from langchain_dp.ports import NextTokenVoter
from langchain_dp.records import Examples, PrivateRecords, label_words
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted


class PromptRunnable(RunRunnable):
    """Base of the Runnables that turn examples into one prompt."""

    _working = "while a prompt was optimized"

    @property
    def OutputType(self) -> Any:  # Runnable's name
        """A prompt."""
        return ChatPromptTemplate

    settings: Settings

    def _start(
        self,
        model: NextTokenVoter,
        settings: Settings,
        *,
        budget: PrivacyBudget | None,
        ledger: LedgerOrPath | None,
        name: str,
        progress: bool | None,
        made_with: MadeWith,
        not_private_seed: int | None,
        released_inputs: Sequence[Any],
    ) -> None:
        validate.short_text("name", name, at_least=1)
        self.name = name
        self.settings = settings
        label_words(settings.prompts.words, settings.labels)
        checks.check_room(model, settings)
        self._engine = model
        self._progress = validate.one_of("progress", progress, (None, True, False))
        self._set_lock()
        self._private = PrivateRuns(
            model, settings, ledger=ledger_for(budget, ledger), budget=budget, name=name, progress=progress,
            rng=SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed),
            costs=costs_of_inputs(*released_inputs, made_with=made_with, budget=budget, ledger=ledger),
        )  # fmt: skip

    @hold_arguments("input")
    def invoke(self, input: Examples | None, config: RunnableConfig | None = None, **kwargs: Any) -> ChatPromptTemplate:  # noqa: A002  # Runnable's name
        """Release one prompt.

        The run's own callbacks do not see the examples. An enclosing run, such as ``optimizer | chain``, passes them to
        its callbacks. To prevent that, pass ``PrivateRecords`` or use ``private_run()``.

        Args:
            input: Private examples: mappings with ``text``, ``label`` and the template's other variables, or any input
                of ``PrivateRecords``. None uses those of :meth:`from_dataframe`.
            config: LangChain config.
            **kwargs: Refused.

        Returns:
            The forward prompt under the released instruction. ``metadata["dp"]`` is the certificate.

        Raises:
            InvalidParameter: Examples or settings are out of bounds. Nothing was spent.
            BudgetExceeded: The plan does not fit into the ledger. Nothing was spent.
            PlanError: The ledger holds another plan, or a complete run over other examples, under this name.
            UnsafeEnvironment: A global setting would print prompts. Nothing was spent.
        """
        reject_extra_kwargs(kwargs)
        prompt: OptimizedPrompt = self._execute(PrivateArgs.of(input), config)
        return prompt.template()

    @hold_arguments("input")
    async def ainvoke(
        self,
        input: Examples | None,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> ChatPromptTemplate:
        """Async twin of :meth:`invoke`. After a cancellation, the next call resumes the run."""
        reject_extra_kwargs(kwargs)
        prompt: OptimizedPrompt = await self._aexecute(PrivateArgs.of(input), config)
        return prompt.template()

    @hold_arguments("examples")
    def optimize(self, examples: Examples | None = None, config: RunnableConfig | None = None) -> OptimizedPrompt:
        """Run like :meth:`invoke`, but return the prompt with its certificate and settings.

        After Ctrl-C, call again with the same examples to resume, also in a new process if the ledger is in a file. If
        a process ends between charging and storing the selection, the selection is lost. A complete run returns its
        prompt again at no cost.
        """
        prompt: OptimizedPrompt = self._execute(PrivateArgs.of(examples), config)
        return prompt

    @hold_arguments("examples")
    async def aoptimize(
        self, examples: Examples | None = None, config: RunnableConfig | None = None
    ) -> OptimizedPrompt:
        """Async twin of :meth:`optimize`. After a cancellation it still draws a charged selection."""
        prompt: OptimizedPrompt = await self._aexecute(PrivateArgs.of(examples), config)
        return prompt

    def _run(self, records: PrivateRecords, halted: Halted) -> OptimizedPrompt:
        return self._private.run(records, halted=halted)

    def _traced(self, result: OptimizedPrompt) -> str:
        return result.instruction

    def released(self) -> list[str]:
        """Return the candidates released so far."""
        texts = self._private.released()
        return [ReleasedText(text, self.certificate().as_sources()) for text in texts]

    def certificate(self) -> PrivacyCertificate:
        """Return the guarantee of the run in its current state. Raise InvalidParameter before its start."""
        return self._private.certificate()

    @hold_arguments("examples")
    def check(self, examples: Examples | int | None = None) -> OptPlanReport:
        """Return :meth:`plan`, but refuse a run in which no token can win, or a random fitted selection."""
        records, count = run_redacted(self._counted, PrivateArgs.of(examples), READING)
        plan = self.plan(count if records is None else records)
        self._private.check_reachable(plan.token, plan.budget, plan.scheme, count)
        return plan

    @hold_arguments("examples")
    def plan(self, examples: Examples | int | None = None) -> OptPlanReport:
        """Forecast cost, time and usefulness of a run. Spends nothing.

        Args:
            examples: The examples, whose lengths make the estimate private, or their number.

        Raises:
            InvalidParameter, BudgetExceeded: As in :meth:`invoke`.
            ModelUnavailable: The engine could not count tokens.
        """
        records, count = run_redacted(self._counted, PrivateArgs.of(examples), READING)
        neighbors: Neighbors = self._private.neighbors
        share, token, selection = self._private.prospect(count)
        scheme = scheme_for(self.settings, neighbors, count)
        warn_weak_promise(weak_promise_reasons(share.epsilon, share.delta, *scheme.least_records(count)))
        return report(
            self._engine, self.settings, budget=share, scheme=scheme, token=token, selection=selection,
            records=records, count=count,
        )  # fmt: skip
