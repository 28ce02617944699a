"""Private examples as a Runnable."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.validate import group, reject_extra_kwargs, reject_unknown_arguments
from langchain_dp._util.words import pieces_of
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import warn_weak_promise
from langchain_dp.accounting.provenance import MadeWith, costs_of_inputs
from langchain_dp.ensemble.reservation import LedgerOrPath, check_promise, ledger_for
from langchain_dp.ensemble.runs import Halted, RunRunnable
from langchain_dp.ensemble.text_writer import check_scores, check_writer
from langchain_dp.errors import InvalidParameter, NoTextKeptWarning
from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.ports import NextTokenScorer
from langchain_dp.records import Examples, PrivateRecords, check_labels, encodable
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted
from langchain_dp.synth.examples import SyntheticExample, SyntheticExamples
from langchain_dp.synth.journal import WrittenText
from langchain_dp.synth.prompts import SynthesisPrompts
from langchain_dp.synth.report import SynthesisPlan, planned, public_certificate
from langchain_dp.synth.run import SynthesisRuns
from langchain_dp.synth.settings import SynthesisSettings


class DPExampleSynthesizer(RunRunnable):
    """Writes examples from private records on a local model. Every later use is free.

    The records that take part move the public model's own guess of each token, by no more than a clip each. Style and
    common knowledge come through, content of few records does not.

    Args:
        model: Engine that scores next tokens, inside the trust boundary: it sees the records.
        labels: Label -> public description for the model, or the labels alone. No description may be taken from the
            records, unless it was released, as by :class:`~langchain_dp.aggregate.names.DPLabelNamer`.
        count: Examples of all labels together.
        budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
        ledger: Ledger that is charged, or a path.
        name: Name of the plan in the ledger. A run under the same name resumes.
        max_new_tokens: Tokens of one text at most.
        members: Records expected in one text.
        sampling_probability: Rate of the records. None: by ``members``. Required under add/remove.
        prompts: Templates.
        min_words: Words of an example.
        candidates: Public tokens considered at each step.
        temperature: Sampling temperature.
        chat: Use the model's chat template.
        progress: Called with every released text. True shows a bar, None on a terminal only.
        allow_small_model: Write with the embedded model, although its texts did not help in our trials.
        labels_from_data: The labels were read off the records, which no epsilon counts.
        made_with: Certificates of released text that does not carry its cost.

    Raises:
        InvalidParameter: The engine does not score next tokens.

    Formal guarantee:
        All released texts, kept or dropped, are together (epsilon, delta)-differentially private in the records, with
        the budget's neighbors (replace-one by default: their number is public). Each round is charged one
        :class:`~langchain_dp.accounting.ClippedSumRoundEvent` before its members are drawn. The time of a run and the
        local model are not covered. Source: the clip of Vinod et al. 2025 (InvisibleInk).

    Examples:
        >>> synthesizer = DPExampleSynthesizer(
        ...     model=LlamaCppEnsemble(),
        ...     labels={"delivery": "complaints about late parcels", "billing": "questions about invoices"},
        ...     count=32,
        ...     budget=PrivacyBudget(3.0),
        ... )
        >>> print(synthesizer.plan(2_000))
        >>> free = synthesizer.public_examples()  # by the model alone: the baseline for private ones
        >>> examples = synthesizer.invoke(records)
        >>> examples.save("synthetic.jsonl")
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
        sampling_probability: float | None = None,
        prompts: SynthesisPrompts | None = None,
        min_words: int = 3,
        candidates: int = 512,
        temperature: float = 1.0,
        chat: bool = False,
        progress: Callable[[SyntheticExample], None] | bool | None = None,
        labels_from_data: bool = False,
        allow_small_model: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> None:
        check_scores(model)
        check_writer(getattr(model, "is_embedded", False), allow_small_model)
        check_promise(budget, ledger, not_private_seed)
        validate.short_text("name", name, at_least=1)
        self.name = name
        self._costs = costs_of_inputs(labels, prompts, made_with=made_with, budget=budget, ledger=ledger)
        self.settings = SynthesisSettings(
            labels=_described(labels),
            count=count,
            max_new_tokens=max_new_tokens,
            members=members,
            sampling_probability=sampling_probability,
            candidates=candidates,
            temperature=temperature,
            prompts=group("prompts", prompts, SynthesisPrompts),
            chat=chat,
            labels_from_data=labels_from_data,
        )
        self.min_words = validate.integer("min_words", min_words, at_least=1)
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise InvalidParameter(
                f"Expected progress of type {type(progress).__name__} to be a function of one example, a bool or None."
            )
        if max_new_tokens < min_words:
            raise InvalidParameter(
                f"Expected max_new_tokens={max_new_tokens} to hold the {min_words} words that an example must have, or "
                "all texts are dropped. Raise it."
            )
        self._engine = model
        self._progress = progress
        self._set_lock()
        rng = SystemRandomness() if not_private_seed is None else NotPrivateSeededRandomness(not_private_seed)
        self._runs = SynthesisRuns(
            model, self.settings, ledger=ledger_for(budget, ledger), budget=budget, name=name, rng=rng
        )

    @hold_arguments("input")
    def invoke(self, input: Examples | None, config: RunnableConfig | None = None, **kwargs: Any) -> SyntheticExamples:  # noqa: A002  # Runnable's name
        """Write the examples, or those that are missing.

        Its own callbacks see no records. Those of a run AROUND it do: pass ``PrivateRecords``, or use
        ``private_run()``. After a crash invoke again with the same records.

        Raises:
            InvalidParameter: Records do not fit. Nothing was spent.
            BudgetExceeded: The ledger has no room for the plan. Nothing was spent.
            PlanError: The ledger holds another plan under this name, or a begun round had other records.
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
        """Async twin of :meth:`invoke`."""
        reject_extra_kwargs(kwargs)
        return self._warned(await self._aexecute(PrivateArgs.of(input), config))

    def _run(self, records: PrivateRecords, halted: Halted) -> SyntheticExamples:
        with self._shown() as advance:
            self._runs.run(records, advance=advance, halted=halted)
        return self.released()

    def _warned(self, examples: SyntheticExamples) -> SyntheticExamples:
        if lost := [label for label in self.settings.labels if not any(one.label == label for one in examples)]:
            why = ", ".join(f"{number} x {reason!r}" for reason, number in examples.settings["dropped"].items())
            warn_caller(
                f"No text of {lost} is kept ({why or 'none was finished'}). See released().dropped.", NoTextKeptWarning
            )
        return examples

    @contextlib.contextmanager
    def _shown(self) -> Iterator[Callable[[WrittenText], None]]:
        callback, bar_shown = (self._progress, False) if callable(self._progress) else (None, self._progress)
        failures: list[str] = []
        total = self.settings.rounds * len(self.settings.labels)
        disable = None if bar_shown is None else not bar_shown
        with tqdm(total=total, desc="writing", unit="text", disable=disable) as bar:

            def advance(one: WrittenText) -> None:
                bar.update()
                if callback is not None and not failures:
                    try:
                        callback(SyntheticExample(one.text, one.label, "given up" if one.ended == "lost" else ""))
                    except Exception as error:  # of the caller's own code, which has seen released text alone
                        failures.append(f"{type(error).__name__}: {error}")

            yield advance
        if failures:
            warn_caller(f"progress= failed, and was told no more ({failures[0]}). No text is lost.", RuntimeWarning)

    def released(self) -> SyntheticExamples:
        """Return the examples so far. InvalidParameter: No run has started."""
        examples = self._judged(self._runs.released(), self.certificate())
        if lost := self._runs.lost():
            examples.settings["lost"] = lost
        return examples

    def give_up_round(self) -> None:
        """Lose the missing texts of a begun round, so that the run continues over other records.

        Nothing is refunded. Decide by public facts, not by how the records have changed.
        """
        self._runs.give_up_round()

    def public_examples(self) -> SyntheticExamples:
        """Write as many examples by the model alone, free: the baseline for private ones.

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
        with self._shown() as advance:
            for text in self._runs.public():
                advance(text)
                written.append(text)
        return self._judged(written, public_certificate(self._engine, *self.settings.notes).including(self._costs))

    def _judged(self, written: Sequence[WrittenText], certificate: PrivacyCertificate) -> SyntheticExamples:
        prompts = self.settings.prompts
        judgments = judged(written, self.min_words, self.settings.labels.values(), cue=prompts.tail)
        examples = [SyntheticExample(text.text, text.label, reason) for text, reason in judgments]
        dropped = dict(Counter(reason for _, reason in judgments if reason))
        return SyntheticExamples(examples, certificate, {**self.settings.public(), "dropped": dropped})

    def certificate(self) -> PrivacyCertificate:
        """Return the promise now. InvalidParameter: No run has started."""
        return self._runs.certificate().including(self._costs)

    @hold_arguments("examples")
    def plan(self, examples: Examples | int | None = None) -> SynthesisPlan:
        """Forecast cost and worth, from records (not for publication) or their number. Spends and reserves nothing."""
        records, count = run_redacted(self._counted, PrivateArgs.of(examples), READING)
        share, design = self._runs.prospect(count)
        plan = planned(self._engine, self.settings, share, design, records)
        warn_weak_promise(plan.weak)
        return plan


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


Reason = Literal["", "empty", "short", "repeats the request", "twice"]

# Closing marks behind an end belong to its sentence. Chinese and Japanese put no blank behind it.
_SENTENCE = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964][\"')\]\u2019\u201d\xbb]*(?=\s|$)|[\u3002\uff01\uff1f][\u300d\u300f\u201d\uff09]*"
)


def judged(
    written: Sequence[WrittenText], min_words: int, descriptions: Collection[str], *, cue: str
) -> list[tuple[WrittenText, Reason]]:
    """Return each text, cut to whole sentences before the next ``cue``, and its fault or ""."""
    seen = {_folded(description) for description in descriptions}
    requests, judgments = frozenset(seen), list[tuple[WrittenText, Reason]]()
    for one in written:
        text = re.split(rf"(?<=\S)\s+{re.escape(cue)}", one.text, maxsplit=1)[0]
        if one.ended == "length" and (ends := [match.end() for match in _SENTENCE.finditer(text)]):
            text = text[: ends[-1]]
        reason: Reason = ""
        if not any(character.isalnum() for character in text):
            reason = "empty"
        elif len(pieces_of(text)) < min_words:
            reason = "short"
        elif (folded := _folded(text)) in seen:
            reason = "repeats the request" if folded in requests else "twice"
        seen.add(_folded(text))
        judgments.append((dataclasses.replace(one, text=text), reason))
    return judgments


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
