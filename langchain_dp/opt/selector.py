"""Private selection among public prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from langchain_dp._util.validate import reject_unknown_arguments
from langchain_dp.accounting import PrivacyBudget
from langchain_dp.accounting.provenance import MadeWith
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise, ledger_for, share_of
from langchain_dp.opt import checks
from langchain_dp.opt.base import PromptRunnable
from langchain_dp.opt.fit import Effort, rows_to_select_by
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import OptPrompts, PromptAlternative
from langchain_dp.opt.verdict import NEARLY_ALL
from langchain_dp.ports import NextTokenVoter
from langchain_dp.records import check_labels


class DPPromptSelector(PromptRunnable):
    """Selects one of several public prompts by private examples, and writes nothing.

    A local model answers every example under every prompt. The exponential mechanism selects by the number of correct
    answers. This needs far fewer examples than writing a prompt.

    ``alternatives`` must hold at least one prompt. ``model``, ``labels``, ``instruction``, ``budget``, ``ledger``,
    ``name``, ``prompts``, ``rows``, ``calibrate``, ``progress``, ``labels_from_data`` and ``made_with`` are those of
    :class:`DPPromptOptimizer`.

    Raises:
        InvalidParameter: A value is out of bounds, or the engine lacks a port.

    Formal guarantee:
        The selected prompt is (epsilon, delta)-differentially private in the examples, with the budget's neighbors. One
        record changes the count of each prompt by one at most. Source: the exponential mechanism, accounted for as
        bounded range (Dong et al. 2020), as in Hong et al. 2024, Algorithm 4.

    Examples:
        >>> selector = DPPromptSelector(
        ...     model=engine, labels=LABELS, instruction="Praise or complaint?",
        ...     alternatives=["Is the writer happy?"], budget=PrivacyBudget(1.0),
        ... )  # fmt: skip
        >>> print(selector.plan(200).verdict)
        >>> chain = selector.invoke(records) | model
    """

    @reject_unknown_arguments
    def __init__(
        self,
        *,
        model: NextTokenVoter,
        labels: Sequence[str],
        instruction: str,
        alternatives: Sequence[str | PromptAlternative],
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "prompt-selection",
        prompts: OptPrompts | None = None,
        rows: int | None = None,
        calibrate: bool = True,
        progress: bool | None = None,
        labels_from_data: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        checks.check_model(model)
        check_promise(budget, ledger, not_private_seed)
        settings = Settings(
            writes=False, instruction=checks.check_instruction(instruction), labels=check_labels(labels),
            prompts=prompts or OptPrompts(), alternatives=checks.alternatives(alternatives), rows=rows,
            calibrate=calibrate, labels_from_data=labels_from_data,
        )  # fmt: skip
        self._start(
            model, settings, budget=budget, ledger=ledger, name=name, progress=progress, made_with=made_with,
            not_private_seed=not_private_seed, released_inputs=(labels, instruction, prompts, alternatives),
        )  # fmt: skip

    @classmethod
    def auto(
        cls,
        *,
        alternatives: Sequence[str | PromptAlternative],
        examples_count: int,
        effort: Effort = "light",
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "prompt-selection",
        **settings: Any,
    ) -> Self:
        """Use as many examples as fit into bounded time, and refuse a random choice.

        ``examples_count`` is public. Effort "light" evaluates at most some 330,000 tokens, "full" ten times as many.

        Raises:
            InvalidParameter: A value is out of bounds.
            BudgetExceeded: The ledger's budget is used up.
        """
        checks.check_model(settings.get("model"))
        check_promise(budget, ledger, settings.get("not_private_seed"))
        others = checks.alternatives(alternatives)
        if ledger is not None:  # last: it may create a file
            ledger = ledger_for(budget, ledger)
        share = share_of(budget, ledger, name)
        rows = rows_to_select_by(examples_count, share, prompts=len(others) + 1, effort=effort)
        selector = cls(alternatives=others, rows=rows, budget=budget, ledger=ledger, name=name, **settings)
        selector._private.agreement = NEARLY_ALL
        return selector
