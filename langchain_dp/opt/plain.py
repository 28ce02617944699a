"""The non-private kin: OPT, which counts votes without noise, and DLN-1. For comparison only."""

from __future__ import annotations

import dataclasses
import math
import random

from tqdm import tqdm

from langchain_dp.accounting import Neighbors, PrivacyCertificate
from langchain_dp.ensemble.journal import secret_key
from langchain_dp.ensemble.subsets import SubsetSampler
from langchain_dp.mechanisms import Randomness
from langchain_dp.opt.candidates import PromptChoice, echo_of
from langchain_dp.opt.data import check_split, prepare, scheme_for
from langchain_dp.opt.dln import DLN1, DLNSettings
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.handover import OptimizedPrompt, described
from langchain_dp.opt.journal import Journal
from langchain_dp.opt.run import Run
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.text import Text
from langchain_dp.opt.voters import Demonstrations, PlainVote, SubsetVotes
from langchain_dp.ports import VotesNextToken
from langchain_dp.records import PrivateRecords

_REASONS = {
    "opt": "OPT counts votes without noise: a prompt may betray a record",
    "dln-1": "DLN-1 samples prompts from single backward prompts: a prompt may repeat records word for word",
}


def run_opt(
    engine: VotesNextToken, settings: Settings, records: PrivateRecords, *, rng: Randomness, progress: bool | None
) -> OptimizedPrompt:
    """Algorithm 1 with epsilon0 = infinity: one batch a candidate, the token with most votes, the best candidate."""
    scheme = scheme_for(settings, Neighbors.REPLACE_ONE, len(records))
    data = prepare(records, settings, Neighbors.REPLACE_ONE, secret_key(rng))
    forward = Forward.of(engine, settings)
    sampler = SubsetSampler(data.training, scheme, rng)
    text = Text(engine, settings.decoding, settings.writing.stop, never=echo_of(settings))
    subset_votes = SubsetVotes(
        engine,
        sampler,
        Demonstrations(records, forward, settings, engine),
        watch=lambda: forward.watch(settings.instruction),
        text=text,
        rng=rng,
    )
    run = Run(
        settings,
        text=text,
        end_tokens=engine.end_tokens,
        journal=Journal({}, b"", "", "", scheme.groups, scheme.sampling_probability),
        rng=rng,
        progress=progress,
    )
    run.write(PlainVote(subset_votes, max_calls=settings.calls.most))
    counts = run.counts(forward, data.rows(data.validation))
    best = run.choices()[max(range(len(counts)), key=counts.__getitem__)]
    return described(
        engine, settings, best, not_private(settings, engine), run.written(),
        groups=scheme.groups, rate=scheme.sampling_probability,
    )  # fmt: skip


def run_dln(
    engine: VotesNextToken,
    settings: Settings,
    dln: DLNSettings,
    records: PrivateRecords,
    *,
    coins: random.Random,
    progress: bool | None,
) -> tuple[OptimizedPrompt, list[str]]:
    """Algorithm 3. Also returns every prompt that was sampled."""
    check_split(settings, settings.taking_part(len(records)))
    data = prepare(records, settings, Neighbors.REPLACE_ONE, coins.randbytes(32))
    text = Text(engine, dataclasses.replace(settings.decoding, temperature=dln.temperature), settings.writing.stop)
    run = DLN1(
        engine,
        Forward.of(engine, settings),
        prompts=settings.prompts,
        labels=settings.labels,
        settings=dln,
        text=text,
        rng=coins,
    )
    disabled = None if progress is None else not progress
    with tqdm(total=dln.steps, desc="dln-1", unit="step", disable=disabled) as bar:
        best = run.run(settings.instruction, data.rows(data.training), data.rows(data.validation), advance=bar.update)
    chosen = PromptChoice(best, tuple(settings.words))
    return described(engine, settings, chosen, not_private(settings, engine)), run.sampled


def not_private(settings: Settings, engine: VotesNextToken) -> PrivacyCertificate:
    """Says that nothing is promised, and why."""
    return PrivacyCertificate(
        mechanism=f"non-private {settings.method}",
        epsilon=math.inf,
        delta=0.0,
        neighbors=Neighbors.REPLACE_ONE,
        spent=(math.inf, 0.0),
        model=engine.name,
        private=False,
        reason=_REASONS[settings.method],
    )
