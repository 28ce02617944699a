"""DP-OPT as Runnables: one writes a prompt, one selects among public prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from langchain_dp._util.validate import group, reject_unknown_arguments
from langchain_dp.accounting import PrivacyBudget
from langchain_dp.accounting.events import SamplingName
from langchain_dp.accounting.provenance import MadeWith
from langchain_dp.ensemble.engine_calls import count_publicly
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise, ledger_for, share_of
from langchain_dp.ensemble.subsets import SamplingOptions, sampling_from
from langchain_dp.ensemble.text_writer import check_writer
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import checks
from langchain_dp.opt.base import PromptRunnable
from langchain_dp.opt.fit import Effort, Fit, fit, rows_to_select_by
from langchain_dp.opt.settings import CandidateOptions, Settings
from langchain_dp.opt.templates import OptPrompts, PromptAlternative
from langchain_dp.opt.verdict import NEARLY_ALL
from langchain_dp.ports import Decoding, NextTokenVoter
from langchain_dp.records import check_labels

_SHOTS, _SUBSETS, _PROMPTS, _VALIDATION = 5, 205, 5, 0.1


class DPPromptOptimizer(PromptRunnable):
    """Writes an instruction from private examples with a local model, and returns it as a prompt.

    Subsets of the examples vote for each next token. LimitedDomain releases the token with most votes, or nothing. The
    exponential mechanism selects one candidate by its correct answers on validation records.

    If labels are codes, find words for them with :class:`~langchain_dp.aggregate.names.DPLabelNamer`.

    Args:
        model: Engine that writes tokens and scores labels (``LlamaCppEnsemble``, ``TransformersEnsemble``, ...). It
            sees the examples, so it must run inside the trust boundary.
        labels: The public labels.
        instruction: The initial instruction, public. It is always a candidate.
        budget: The guarantee. With ``ledger``, the share to reserve.
        ledger: Ledger to charge, or the path of one to open with the whole ``budget``. Without ``budget``, its rest is
            reserved. None: a ledger in memory.
        name: Name of the plan. With a ledger in a file, a run of this name resumes.
        prompts: Templates. See :mod:`langchain_dp.opt.templates`.
        shots: Demonstrations per subset, or their expected number.
        subsets: Expected number of subsets that vote on one token.
        num_prompts: Most candidates.
        max_new_tokens: Most tokens of one candidate.
        sampling: "fixed": subsets are cut once, and each takes part by a coin, so caches are kept. "resample": new
            subsets for every token, as in the paper (add/remove only). Add/remove neighbors need ``SamplingOptions``.
        validation: Share of the examples that select, in (0, 1). The others train.
        rows: Most examples that take part, drawn by coins. Not under add/remove.
        alternatives: Further public prompts to select from: instructions, or
            :class:`~langchain_dp.opt.PromptAlternative`. They cost no epsilon.
        candidate_options: Stop strings, calls, retries and noise of one call.
        decoding: Sampling of each member's token, at temperature 0 by default: small models rarely agree at the paper's
            1.1.
        calibrate: Divide label scores by those of texts without content (Zhao et al. 2021).
        progress: Show progress (released values only). None: on a terminal only.
        allow_small_model: Write with the embedded model, although its texts did not help in our trials.
        labels_from_data: The labels were read from the examples. No epsilon counts that, and the certificate notes it.
        made_with: Certificates of released text in the other arguments that lost its cost.
        not_private_seed: Reproducible coins and noise. The result is then not private.

    Raises:
        InvalidParameter: A value is out of bounds, or the engine lacks a port.

    Formal guarantee:
        The prompt, every candidate and every count in the certificate are together (epsilon, delta)-differentially
        private in the examples, with the budget's neighbors. Times, the initial instruction and the local model are not
        covered. Source: Hong et al. 2024, Algorithms 1, 2 and 4, with noise, threshold and accounting of
        :class:`langchain_dp.mechanisms.LimitedDomain` and :mod:`langchain_dp.accounting`.

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
        model: NextTokenVoter,
        labels: Sequence[str],
        instruction: str,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "dp-opt",
        prompts: OptPrompts | None = None,
        shots: int = _SHOTS,
        subsets: int = _SUBSETS,
        num_prompts: int = _PROMPTS,
        max_new_tokens: int = 50,
        sampling: SamplingName | SamplingOptions = "fixed",
        validation: float = _VALIDATION,
        rows: int | None = None,
        alternatives: Sequence[str | PromptAlternative] = (),
        candidate_options: CandidateOptions | None = None,
        decoding: Decoding | None = None,
        calibrate: bool = True,
        progress: bool | None = None,
        labels_from_data: bool = False,
        allow_small_model: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        checks.check_model(model)
        check_writer(getattr(model, "is_embedded", False), allow_small_model)
        check_promise(budget, ledger, not_private_seed)
        decoding = group("decoding", decoding, Decoding)
        candidate_options = group("candidate_options", candidate_options, CandidateOptions)
        if decoding.chat is None:
            decoding = dataclasses.replace(decoding, chat=bool(getattr(model, "chats", False)))
        settings = Settings(
            instruction=checks.check_instruction(instruction), labels=check_labels(labels),
            prompts=prompts or OptPrompts(), shots=shots, subsets=subsets, sampling=sampling_from(sampling),
            validation=validation, rows=rows, alternatives=checks.alternatives(alternatives),
            num_prompts=num_prompts, max_new_tokens=max_new_tokens, candidate_options=candidate_options,
            decoding=decoding, calibrate=calibrate, labels_from_data=labels_from_data,
        )  # fmt: skip
        checks.check_model(model, candidate_options.kbar)
        self._start(
            model, settings, budget=budget, ledger=ledger, name=name, progress=progress, made_with=made_with,
            not_private_seed=not_private_seed, released_inputs=(labels, instruction, prompts, alternatives),
        )  # fmt: skip

    @classmethod
    def auto(
        cls,
        *,
        model: NextTokenVoter,
        labels: Sequence[str],
        instruction: str,
        examples_count: int,
        effort: Effort = "light",
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "dp-opt",
        **settings: Any,
    ) -> Self:
        """Build an optimizer with settings that fit the public ``examples_count`` and the budget.

        A token with 70% of the votes then has a chance of one half, if possible. If even 90% of the votes do not
        suffice, ``invoke`` refuses before anything is spent. Effort "light" evaluates at most some 330,000 tokens
        (seven minutes of the embedded model on two cores), "full" ten times as many.

        Raises:
            InvalidParameter: A value is out of bounds, or is chosen here.
            BudgetExceeded: The ledger's budget is used up.

        Formal guarantee:
            That of the class. The settings do not depend on the content of an example.
        """
        checks.check_model(model)
        check_promise(budget, ledger, settings.get("not_private_seed"))
        chosen = {field.name for field in dataclasses.fields(Fit)} | {"sampling"}
        if both := sorted(chosen & set(settings)):
            raise InvalidParameter(
                f"Expected {both[0]}= to be left out of auto(), which chooses it. Leave it out, or make the optimizer "
                "by DPPromptOptimizer(...) with all of them."
            )
        tokens = count_publicly(model, checks.check_instruction(instruction))
        settings["alternatives"] = checks.alternatives(settings.get("alternatives", ()))
        if ledger is not None:  # last: it may create a file
            ledger = ledger_for(budget, ledger)
        share = share_of(budget, ledger, name)
        others = len(settings["alternatives"])
        fitted = fit(examples_count, share, effort=effort, instruction=tokens, alternatives=others)
        optimizer = cls(
            model=model, labels=labels, instruction=instruction, budget=budget, ledger=ledger, name=name,
            **vars(fitted), **settings,
        )  # fmt: skip
        optimizer._private.agreement = NEARLY_ALL
        return optimizer


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
        checks.check_instruction(settings.get("instruction"))
        check_promise(budget, ledger, settings.get("not_private_seed"))
        others = checks.alternatives(alternatives)
        if ledger is not None:  # last: it may create a file
            ledger = ledger_for(budget, ledger)
        share = share_of(budget, ledger, name)
        rows = rows_to_select_by(examples_count, share, prompts=len(others) + 1, effort=effort)
        selector = cls(alternatives=others, rows=rows, budget=budget, ledger=ledger, name=name, **settings)
        selector._private.agreement = NEARLY_ALL
        return selector
