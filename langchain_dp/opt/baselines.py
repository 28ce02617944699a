"""OPT and DLN-1, non-private prompt optimizers for comparison."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors, PrivacyCertificate
from langchain_dp.ensemble.engine_calls import ask_together
from langchain_dp.ensemble.runs import secret_key
from langchain_dp.ensemble.subsets import Subset, SubsetSampler
from langchain_dp.isolation.run import check_environment
from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.opt.candidates import Candidate, PromptChoice, echo_of
from langchain_dp.opt.data import check_split, prepare, scheme_for
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.handover import OptimizedPrompt, described
from langchain_dp.opt.journal import Journal
from langchain_dp.opt.plan import count_votes
from langchain_dp.opt.run import Run
from langchain_dp.opt.runnable import DPPromptOptimizer
from langchain_dp.opt.templates import CUE, Demonstration, OptPrompts
from langchain_dp.opt.text import Text
from langchain_dp.opt.voters import Demonstrations, SubsetVotes
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, NextTokenVoter, Token
from langchain_dp.records import Examples
from langchain_dp.redact import redact_errors


@dataclasses.dataclass(frozen=True)
class DLNSettings:
    """Settings of DLN-1, by default those of Hong et al. 2024.

    Args:
        steps: Rounds of improvement.
        prompts_per_step: Candidates per round.
        demonstrations: Records in one backward prompt.
        temperature: Of the sampled candidates.
        max_new_tokens: Longest candidate.

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> DLNSettings(steps=2).prompts_per_step
        20
    """

    steps: int = 20
    prompts_per_step: int = 20
    demonstrations: int = 20
    temperature: float = 0.7
    max_new_tokens: int = 100

    def __post_init__(self) -> None:
        for name in ("steps", "prompts_per_step", "demonstrations", "max_new_tokens"):
            validate.integer(name, getattr(self, name), at_least=1)
        validate.number("temperature", self.temperature, at_least=0.0)


_REASONS = {
    "opt": "OPT counts votes without noise: a prompt may betray a record",
    "dln-1": "DLN-1 samples prompts from single backward prompts: a prompt may repeat records word for word",
}


@redact_errors("while a prompt was optimized")
def optimize_with_opt(optimizer: DPPromptOptimizer, examples: Examples, *, seed: int | None = None) -> OptimizedPrompt:
    """Write a prompt like ``optimizer``, but without noise. NOT private, and charged to no ledger.

    Source: Hong et al. 2024, Algorithm 1 without noise.

    Args:
        optimizer: Model, labels, templates and settings.
        examples: As in ``optimizer.optimize``.
        seed: Reproducible coins.

    Raises:
        InvalidParameter: Examples or settings are out of bounds.

    Examples:
        >>> optimize_with_opt(optimizer, rows).certificate.private
        False
    """
    engine, settings = optimizer._engine, optimizer.settings
    records = optimizer._checked(examples)
    check_environment()
    rng = SystemRandomness() if seed is None else NotPrivateSeededRandomness(seed)
    scheme = scheme_for(settings, Neighbors.REPLACE_ONE, len(records))
    data = prepare(records, settings, Neighbors.REPLACE_ONE, secret_key(rng))
    forward = Forward.of(engine, settings)
    text = Text(engine, settings.decoding, settings.candidate_options.stop, never=echo_of(settings))
    subset_votes = SubsetVotes(
        engine, SubsetSampler(data.training, scheme, rng), Demonstrations(records, forward, settings, engine),
        watch=lambda: forward.watch(settings.instruction), text=text, rng=rng,
    )  # fmt: skip
    run = Run(
        settings,
        text=text,
        end_tokens=engine.end_tokens,
        journal=Journal(
            settings={},
            key=b"",
            masked_key="",
            data="",
            groups=scheme.groups,
            sampling_probability=scheme.sampling_probability,
        ),
        rng=rng,
        progress=optimizer._progress,
    )
    run.write(MajorityVote(subset_votes, max_calls=settings.calls))
    counts = run.counts(forward, data.rows(data.validation))
    best = run.choices()[max(range(len(counts)), key=counts.__getitem__)]
    return described(
        engine, settings, best, not_private("opt", engine), run.written(),
        groups=scheme.groups, rate=scheme.sampling_probability,
    )  # fmt: skip


@redact_errors("while a prompt was optimized")
def optimize_with_dln1(
    optimizer: DPPromptOptimizer, examples: Examples, dln: DLNSettings | None = None, *, seed: int | None = None
) -> OptimizedPrompt:
    """Improve the instruction of ``optimizer`` by DLN-1. NOT private, and charged to no ledger.

    The result's ``candidates`` are all sampled prompts. Source: Sordoni et al. 2023, and Hong et al. 2024, Algorithm 3.

    Args:
        optimizer: Model, labels, initial instruction and templates.
        examples: As in ``optimizer.optimize``.
        dln: Settings of the run.
        seed: Reproducible samples.

    Raises:
        InvalidParameter: Examples or settings are out of bounds.

    Examples:
        >>> optimize_with_dln1(optimizer, rows, DLNSettings(steps=2)).certificate.private
        False
    """
    engine, settings = optimizer._engine, optimizer.settings
    records = optimizer._checked(examples)
    check_environment()
    numbers = DLNSettings() if dln is None else dln
    coins = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  # not private
    check_split(settings, settings.taking_part(len(records)))
    data = prepare(records, settings, Neighbors.REPLACE_ONE, coins.randbytes(32))
    decoding = dataclasses.replace(settings.decoding, temperature=numbers.temperature)
    run = DLN1(
        engine, Forward.of(engine, settings), prompts=settings.prompts, labels=settings.labels,
        settings=numbers, text=Text(engine, decoding, settings.candidate_options.stop), rng=coins,
    )  # fmt: skip
    disabled = None if optimizer._progress is None else not optimizer._progress
    with tqdm(total=numbers.steps, desc="dln-1", unit="step", disable=disabled) as bar:
        best = run.run(settings.instruction, data.rows(data.training), data.rows(data.validation), advance=bar.update)
    chosen = PromptChoice(best, tuple(settings.words))
    sampled = [Candidate(text) for text in run.sampled]
    return described(engine, settings, chosen, not_private("dln-1", engine), sampled)


@dataclasses.dataclass(eq=False, repr=False)
class MajorityVote:
    """Non-private tokens of OPT: the same subsets vote on a whole candidate."""

    subset_votes: SubsetVotes
    max_calls: int
    batch: list[Subset] = dataclasses.field(default_factory=list)

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None:
        self.max_calls -= 1
        if not written or not self.batch:
            self.batch = self.subset_votes.draw()
        votes = self.subset_votes.votes(self.batch, message, written)
        most = max(votes.values(), default=0)
        winners = [token for token, count in votes.items() if count == most]
        return sorted(winners, key=lambda token: (isinstance(token, str), token))[0] if winners else None

    def left(self) -> int:
        return self.max_calls

    def close(self) -> None:
        self.subset_votes.close()


@dataclasses.dataclass(eq=False, repr=False)
class DLN1:
    """One run of DLN-1. ``sampled`` holds every sampled prompt."""

    engine: NextTokenVoter
    forward: Forward
    _: dataclasses.KW_ONLY
    prompts: OptPrompts
    labels: Sequence[str]
    settings: DLNSettings
    text: Text
    rng: random.Random
    sampled: list[str] = dataclasses.field(default_factory=list)

    def run(
        self,
        instruction: str,
        training: Sequence[Mapping[str, Any]],
        validation: Sequence[Mapping[str, Any]],
        *,
        advance: Callable[[], object],
    ) -> str:
        """Return the instruction with the largest mean log-probability of correct labels."""
        scores: dict[str, float] = {}
        for step in range(self.settings.steps):
            shown = self.rng.sample(list(training), min(self.settings.demonstrations, len(training)))
            candidates = [instruction, *self._candidates(instruction, shown, step)]
            for candidate in candidates:
                if candidate not in scores:
                    scores[candidate] = self._log_probability(candidate, validation)
            instruction = max(candidates, key=scores.__getitem__)
            advance()
        return instruction

    def _candidates(self, instruction: str, rows: Sequence[Mapping[str, Any]], step: int) -> list[str]:
        texts = [self.prompts.render(row) for row in rows]
        answers = self.forward.predict(instruction, texts)
        words = [self.prompts.word(label) for label in self.labels]
        body = self.prompts.backward_body(
            [
                Demonstration(text, self.prompts.word(str(row["label"])), None if answer is None else words[answer])
                for row, text, answer in zip(rows, texts, answers, strict=True)
            ]
        )
        member = (id(self), step)
        try:
            candidates = [self._written(instruction, body, member) for _ in range(self.settings.prompts_per_step)]
        finally:
            self.engine.forget(member)
        texts = [text for text in map(self.text.instruction, candidates) if text]
        self.sampled += texts
        return texts

    def _written(self, instruction: str, body: str, member: tuple[int, int]) -> list[Token]:
        message = self.rng.randrange(len(self.prompts.messages))
        head = self.prompts.backward_head(instruction)
        tail = self.prompts.backward_tail(message, instruction)
        prompt = MemberPrompt(head, body, tail, member, response_prefix=CUE)
        written: list[Token] = []
        while len(written) < self.settings.max_new_tokens and not self.text.stops(written):
            continuation = Continuation(prompt, tuple(written), self.rng.random())
            token = self._next(continuation, self.text.decoding(written))
            if token is None or token in self.engine.end_tokens:
                break
            written.append(token)
        return written

    def _next(self, continuation: Continuation, decoding: Decoding) -> Token | None:
        votes = count_votes(ask_together(lambda some: self.engine.next_tokens(some, decoding), [continuation]))
        return next(iter(votes), None)

    def _log_probability(self, instruction: str, rows: Sequence[Mapping[str, Any]]) -> float:
        texts = [self.prompts.render(row) for row in rows]
        scores = self.forward.log_probabilities(instruction, texts)
        truths = [self.labels.index(str(row["label"])) for row in rows]
        failed = -100.0
        return float(np.mean([failed if row is None else row[at] for row, at in zip(scores, truths, strict=True)]))


def not_private(method: str, engine: NextTokenVoter) -> PrivacyCertificate:
    return PrivacyCertificate(
        mechanism=f"non-private {method}", epsilon=math.inf, delta=0.0, neighbors=Neighbors.REPLACE_ONE,
        spent=(math.inf, 0.0), model=engine.name, private=False, reason=_REASONS[method],
    )  # fmt: skip
