"""Private examples as a Runnable: private records in, texts out that may be shown to anybody and kept for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from tqdm import tqdm

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import group, reject_extra_kwargs, reject_unknown_arguments
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import warn_weak_promise
from langchain_dp.accounting.provenance import MadeWith, costs_of_inputs
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise, ledger_for
from langchain_dp.ensemble.runs import Halted, RunRunnable
from langchain_dp.ensemble.text_writer import check_scores
from langchain_dp.errors import InvalidParameter, NoTextKeptWarning
from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.ports import LabelScorer, NextTokenScorer
from langchain_dp.records import Examples, PrivateRecords, check_labels, encodable
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted
from langchain_dp.synth.examples import SyntheticExample, SyntheticExamples
from langchain_dp.synth.filters import Filters, counted, judged
from langchain_dp.synth.journal import WrittenText
from langchain_dp.synth.promise import unasked
from langchain_dp.synth.prompts import SynthesisPrompts
from langchain_dp.synth.report import SynthesisPlan, planned
from langchain_dp.synth.run import SynthesisRuns
from langchain_dp.synth.settings import Scheme, SynthesisSettings


class DPExampleSynthesizer(RunRunnable):
    """Writes examples from private records on a local model. They are released once and cost nothing ever after.

    Each text is written token by token: the records that take part move the model's own guess of the next token, each
    by no more than a clip, and a token is drawn from what results. Style and common knowledge of many records come
    through; what few records hold does not.

    Args:
        model: Engine that scores next tokens (``LlamaCppEnsemble``, ``TransformersEnsemble``). It sees the records: it
            must run inside the trust boundary.
        labels: Label -> public description of what it means, which the model is told; or the labels alone. A
            description must not be taken from the records, unless it was released: for labels that are codes,
            :class:`~langchain_dp.aggregate.names.DPLabelNamer` releases ``descriptions``.
        count: Examples to be written, all labels together: rounded up to the same number of each.
        budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
        ledger: Ledger that is charged. Without ``budget``, all that is left of it is reserved. Or the path of a ledger
            that is opened here with the whole ``budget``.
        name: Name of the plan in the ledger. A ledger with a file keeps what is written, and a run under the same name
            is taken up where it stopped.
        max_new_tokens: Tokens of one text at most.
        members: Members that are expected to take part in one text: prompts with private records. Under "groups" more
            where a clip of 2.5 nats needs them, fewer where the records do not make as many.
        shots: Records of its label that a member is expected to show. With one, a member is a record. More of them tell
            the model more, and cost: as many times the records take part, and, with more than one label, every round
            counts twice. Under replace-one neighbours only.
        scheme: "rounds": every record takes part by a coin, anew for each text of a label; "groups": records are cut
            into disjoint groups, and each writes one text a label; "auto": rounds, unless their clip is below 1.8 nats
            and that of groups larger; groups where there are fewer records than ``members`` of each label.
        sampling_probability: Rate of the records under "rounds". None: so that ``members`` of each label are expected;
            required under add/remove.
        prompts: Templates.
        filters: Which of the released texts are kept.
        candidates: Tokens of the public model's that are considered at each step.
        temperature: Of the distribution that a token is drawn from.
        chat: Ask in the model's chat template instead of continuing plain text.
        progress: Called with every text when it is released, before the filters; ``dropped`` of a text that
            was lost is "given up". True: show a bar; None: on a terminal
            only; False: nothing.
        labels_from_data: The labels were read off the records. No epsilon counts that: the certificate says so.
        made_with: Certificate of a run whose released text stands in ``labels`` or ``prompts``, or several, where the
            text does not know it any more: it was read from a file, or formatted. The certificate adds up what was
            spent. What a run of this package hands over, and :func:`~langchain_dp.opt.load_prompt` reads, knows it by
            itself.
        not_private_seed: Reproducible coins and noise. The certificate says that the result is not private.

    Raises:
        InvalidParameter: A value is out of bounds, or the engine does not score next tokens.

    Formal guarantee:
        All released texts, kept or dropped, are together (epsilon, delta)-differentially private in the records, with
        the budget's neighbours (replace-one by default: their number is public). Each round is charged one
        :class:`~langchain_dp.accounting.ClippedSumRoundEvent` before its members are drawn, or two of them where a
        member shows several records of one of several labels. How long a run takes, and the
        local model, are outside of it. Source: the clip of Vinod et al. 2025 (InvisibleInk), with sampling, exact draws
        and accounting of this package.

    Examples:
        >>> synthesizer = DPExampleSynthesizer(
        ...     model=LlamaCppEnsemble(),
        ...     labels={"delivery": "complaints about late parcels", "billing": "questions about invoices"},
        ...     count=32,
        ...     budget=PrivacyBudget(3.0),
        ... )
        >>> print(synthesizer.plan(2_000))
        >>> free = synthesizer.public_examples()  # by the model alone: what private ones have to beat
        >>> made = synthesizer.invoke(records)
        >>> made.save("synthetic.jsonl")
    """

    _working = "while examples were written"

    @property
    def OutputType(self) -> Any:  # Runnable's name
        """Synthetic examples."""
        return SyntheticExamples

    @reject_unknown_arguments
    def __init__(
        self,
        *,
        model: NextTokenScorer,
        labels: Mapping[str, str] | Sequence[str],
        count: int = 64,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "synthesis",
        max_new_tokens: int = 40,
        members: int = 30,
        shots: int = 1,
        scheme: Scheme = "auto",
        sampling_probability: float | None = None,
        prompts: SynthesisPrompts | None = None,
        filters: Filters | None = None,
        candidates: int = 512,
        temperature: float = 1.0,
        chat: bool = False,
        progress: Callable[[SyntheticExample], None] | bool | None = None,
        labels_from_data: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        check_scores(model)
        check_promise(budget, ledger, not_private_seed)
        validate.short_text("name", name, at_least=1)
        self.name = name
        self._costs = costs_of_inputs(labels, prompts, made_with=made_with, budget=budget, ledger=ledger)
        self.settings = SynthesisSettings(
            labels=_described(labels),
            count=count,
            max_new_tokens=max_new_tokens,
            members=members,
            shots=shots,
            scheme=scheme,
            sampling_probability=sampling_probability,
            candidates=candidates,
            temperature=temperature,
            prompts=group("prompts", prompts, SynthesisPrompts),
            chat=chat,
            labels_from_data=labels_from_data,
        )
        self.filters = group("filters", filters, Filters)
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise InvalidParameter(
                f"Expected progress of type {type(progress).__name__} to be a function of one example, a bool or None."
            )
        if max_new_tokens < self.filters.least_words:
            raise InvalidParameter(
                f"Expected max_new_tokens={max_new_tokens} to hold the {self.filters.least_words} words that a text "
                "must have by its filters, or all are left out. Raise it."
            )
        if self.filters.check_labels and not isinstance(model, LabelScorer):
            raise InvalidParameter("Expected check_labels=True only with a model that scores labels. Set it to False.")
        self._engine = model
        self._progress = progress
        self._set_lock()
        rng = SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed)
        self._runs = SynthesisRuns(
            model, self.settings, ledger=ledger_for(budget, ledger), budget=budget, name=name, rng=rng
        )

    # ------------------------------------------------------------------------------------------------ Runnable

    @hold_arguments("input")
    def invoke(self, input: Examples | None, config: RunnableConfig | None = None, **kwargs: Any) -> SyntheticExamples:  # noqa: A002  # Runnable's name
        """Write the examples, or what is missing of them.

        The run's own callbacks see neither the records nor their number; the run AROUND it does, in ``synthesizer |
        chain``: pass ``PrivateRecords``, which show nothing, or wrap the call in ``private_run()``. After Ctrl-C
        or a crash invoke again with the same records, and the run goes on with the next token. A text is given up where
        a token was drawn and not kept, while the ledger was written (it is not drawn a second time), where its tokens
        break the model, and where it was taken up five times and got no further.

        Args:
            input: Private records, mappings with ``text`` and ``label`` (and what else the template names), or
                whatever else ``PrivateRecords`` takes. None: those of :meth:`from_dataframe`.
            config: LangChain config.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: Records or settings do not do. Nothing was spent.
            BudgetExceeded: The ledger has no room for the plan. Nothing was spent.
            PlanError: The ledger holds another plan under this name, or this one over another budget; or a round that
                has begun was over other records.
            ModelUnavailable: The model does not answer public text.
        """
        reject_extra_kwargs(kwargs)
        return self._warned(self._execute(PrivateArgs.of(input), config))

    @hold_arguments("input")
    async def ainvoke(
        self,
        input: Examples | None,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> SyntheticExamples:
        """Async twin of :meth:`invoke`, in a worker thread, which stops at its next token when cancelled."""
        reject_extra_kwargs(kwargs)
        return self._warned(await self._aexecute(PrivateArgs.of(input), config))

    def _run(self, records: PrivateRecords, halted: Halted) -> SyntheticExamples:
        with self._shown() as told_of:
            self._runs.run(records, advance=told_of, halted=halted)
        return self.released()

    def _warned(self, made: SyntheticExamples) -> SyntheticExamples:
        """The result, with a warning where labels have no text."""
        if not len(made):
            why = ", ".join(f"{number} x {reason!r}" for reason, number in made.settings["dropped"].items())
            warn_caller(
                f"No text of the run is kept ({why or 'none was finished'}). See released().dropped.", NoTextKeptWarning
            )
        elif lost := [label for label in self.settings.labels if not any(one.label == label for one in made)]:
            warn_caller(f"No text of {lost} is kept: prompts will not show what it is. See dropped.", NoTextKeptWarning)
        return made

    @contextlib.contextmanager
    def _shown(self) -> Iterator[Callable[[WrittenText], None]]:
        """What to tell of each text, so that the caller's ``progress`` or a bar shows it."""
        told, shown = (self._progress, False) if callable(self._progress) else (None, self._progress)
        failed: list[str] = []
        total = self.settings.rounds * len(self.settings.labels)
        with tqdm(total=total, desc="writing", unit="text", disable=None if shown is None else not shown) as bar:

            def tell(one: WrittenText) -> None:
                bar.update()
                if told is not None and not failed:
                    try:
                        told(SyntheticExample(one.text, one.label, "given up" if one.ended == "lost" else ""))
                    except Exception as error:  # a line of the caller's own, who has seen released text alone
                        failed.append(f"{type(error).__name__}: {error}")

            yield tell
        if failed:
            warn_caller(f"progress= failed, and was told no more ({failed[0]}). No text is lost.", RuntimeWarning)

    # ------------------------------------------------------------------------------------------------- promise

    def released(self) -> SyntheticExamples:
        """What was released so far, complete or not, judged by the filters.

        Raises:
            InvalidParameter: No run has started yet.
        """
        made = self._judged(self._runs.released(), self.certificate())
        if lost := self._runs.lost():
            made.settings["lost"] = lost
        return made

    def give_up_round(self) -> None:
        """Lose what is missing of a round that has begun, so that a run that was stopped goes on over other records.

        Nothing is paid back. Where the records are as they were, invoke again instead, and nothing is lost. Call it by
        what is public, and not by how the records have changed.

        Raises:
            PlanError: The run is by "groups", which no other records go on with.

        Examples:
            >>> synthesizer.give_up_round()
        """
        self._runs.give_up_round()

    def public_examples(self) -> SyntheticExamples:
        """As many examples by the model alone, to which no record is shown: what private ones have to beat.

        Free, before a run or after it. What comes out has the promise of released text in ``labels``; otherwise epsilon
        and delta are zero.

        Raises:
            InvalidParameter: Instruction and text do not fit into the model's context.
            ModelUnavailable: The model did not answer.

        Examples:
            >>> free = synthesizer.public_examples()
            >>> free.certificate.epsilon
            0.0
            >>> prompt = free.as_few_shot_prompt(16)
        """
        written = []
        with self._shown() as told_of:
            for one in self._runs.public():
                told_of(one)
                written.append(one)
        return self._judged(written, unasked(self._engine, *self.settings.notes).including(self._costs))

    def _judged(self, written: Sequence[WrittenText], certificate: PrivacyCertificate) -> SyntheticExamples:
        checker = self._engine if isinstance(self._engine, LabelScorer) else None
        found = judged(written, self.filters, self.settings.labels, checker, cue=self.settings.prompts.tail)
        examples = [SyntheticExample(one.text, one.label, reason) for one, reason in found]
        return SyntheticExamples(examples, certificate, {**self.settings.public(), "dropped": counted(found)})

    def certificate(self) -> PrivacyCertificate:
        """The promise of the run as it stands.

        Raises:
            InvalidParameter: No run has started yet.
        """
        return self._runs.certificate().including(self._costs)

    @hold_arguments("examples")
    def plan(self, examples: Examples | int | None = None) -> SynthesisPlan:
        """What a run would cost and whether it is worth it. Spends and reserves nothing.

        Args:
            examples: The records, for estimates from their lengths (for the operator, not for publication); or their
                number.

        Raises:
            InvalidParameter, BudgetExceeded: As :meth:`invoke` would.
        """
        records, count = run_redacted(self._counted, PrivateArgs.of(examples), READING)
        share, design = self._runs.prospect(count)
        made = planned(self._engine, self.settings, share, design, records)
        warn_weak_promise(made.weak)
        return made


def _described(labels: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        return {label: label for label in check_labels(labels, at_least=1)}
    names = check_labels(list(labels), at_least=1)
    for name, text in zip(names, labels.values(), strict=True):
        if not (isinstance(text, str) and text.strip() and encodable(text)):
            raise InvalidParameter(
                f"Expected the description of label {name!r} to be a non-empty str of valid Unicode. Say what it means."
            )
    return dict(zip(names, labels.values(), strict=True))
