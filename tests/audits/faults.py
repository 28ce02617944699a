"""Which planted faults each audit of this package must find: audits by their names, faults by theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from audit_tools import limited_domain

from audits import (
    accountant,
    aggregate,
    blocks,
    chains,
    coins,
    counts,
    draws,
    icl,
    neighbors,
    opt,
    planted,
    rapt,
    synth,
)
from audits import planted_aggregate as summed
from audits import planted_chains as swaps
from audits import planted_counts as counted
from audits import planted_neighbors as near
from audits import planted_texts as texts
from audits.check import Faults, worst
from audits.planted import under
from langchain_dp.accounting import epsilon

CLASSIC = (
    "sensitivity",
    "Gumbel scale",
    "threshold",
    "uncharged retry",
    "chunked partition",
    "reused noise",
    "missing sampling",
    "ball noise",
    "n-dependent rate",
    "noiseless branch",
)
"""The faults of published code that every auditor of these mechanisms should see."""


def _last(counts: Sequence[int], sigma: float) -> Any:
    """Nobody votes, and the last label is named without noise."""
    return planted.no_noise_without_votes(counts, sigma, winner=1)


def _without_noise(draw: Callable[[Sequence[int], float], Any], examples: Sequence[Any], runs: int) -> list[str]:
    """Answers of a chain that draws no noise where it has no example."""
    return chains.answers(examples, runs) if examples else [chains.LABELS[draw([0, 0], 1.5).winner]] * runs


def faults() -> Faults:
    """All of them, in the order of the table."""
    return {
        "sensitivity": {"sensitivity": lambda: draws.sensitivity(lambda: planted.sensitivity_one(draws.RELEASE))},
        "Gumbel scale": under(
            lambda: draws.gumbel(limited_domain), {"Gumbel scale": swaps.VOTES["half the noise of a run"]}
        ),
        "threshold": under(lambda: draws.threshold(limited_domain), {"threshold": swaps.VOTES["+1 where votes move"]}),
        "candidates": {
            **under(
                lambda: draws.candidates(limited_domain, *draws.UNSEEN),
                {"clamped kbar": swaps.VOTES["clamped kbar of a run"]},
            ),
            "observed tokens only": lambda: draws.candidates(planted.observed_only, *draws.LONELY),
        },
        "supports": {
            "noiseless branch": lambda: draws.supports(planted.no_noise_without_votes),
            "noiseless branch, last label": lambda: draws.supports(_last),
        },
        "selection": {
            "twice the weight": lambda: draws.selection(planted.twice_the_weight),
            "best candidate": lambda: draws.selection(planted.best_of_all),
        },
        "word noise": {"ball noise": lambda: draws.ball(planted.ball_noise)},
        "word choice": {
            # exp(-eta d) where exp(-(eta/2) d) is due.
            "no half for the normalizer": lambda: draws.word_choice(
                lambda table, eta, keys: draws.chosen_words(table, 2 * eta, keys)
            ),
            "the word itself": lambda: draws.word_choice(planted.word_itself),
        },
        "partition": {
            "chunked partition": lambda: coins.partition(planted.shuffled_chunks),
            "chunks in data order": lambda: coins.partition(planted.chunks_in_order),
        },
        "sampling": {
            "missing sampling": lambda: coins.sampling(planted.everybody),
            "sample of fixed size": lambda: coins.sampling(planted.fixed_size),
            "coins tossed once": lambda: coins.sampling(planted.tossed_once),
            "every third coin used again": lambda: coins.sampling(planted.third_coins_again),
        },
        "randomness": {
            "reused noise": lambda: coins.randomness(planted.ONE_NOISE_FOR_ALL),
            "seeded noise": lambda: coins.randomness(planted.SEEDED_NOISE),
        },
        "constants": {
            "n-dependent rate": lambda: chains.constants(
                functools.partial(planted.rate_from_the_data, shots=1, subsets=3)
            )
        },
        "members": {"padded to the longest": lambda: chains.members(planted.longest_of_all)},
        "cuts": under(chains.cuts, swaps.CUTS),
        "deletion": {"forgotten in name only": lambda: chains.deletion(lambda made, name: None)},
        "empty chain": {
            "noiseless branch of a chain": lambda: chains.empty(
                functools.partial(_without_noise, planted.no_noise_without_votes)
            ),
            "last label of a chain": lambda: chains.empty(functools.partial(_without_noise, _last)),
        },
        "answers": under(icl.calls, swaps.ANSWERS),
        "prompts": {
            **under(functools.partial(icl.subset_prompts, icl.SETTINGS[:2]), swaps.SUBSET_PROMPTS),
            **under(functools.partial(icl.subset_prompts, icl.SETTINGS[:1], 300), swaps.NOISE),
            **under(functools.partial(icl.subset_prompts, icl.SETTINGS[-1:]), swaps.ELSEWHERE),
        },
        "neighbors": under(neighbors.votes, near.VOTES),
        "neighbors 2": under(neighbors.written, near.WRITTEN),
        "asked again": under(neighbors.asked_again, near.ASKED_AGAIN),
        "tokens": {
            **under(functools.partial(opt.tokens, opt.WRITING[:1], 2), swaps.TOKENS),
            **under(functools.partial(opt.tokens, opt.WRITING[:1], 4), swaps.VOTES),
        },
        "choice": under(opt.choice, swaps.CHOICE),
        "choose": under(opt.public_prompts, swaps.PUBLIC),
        "text rounds": {
            **under(functools.partial(synth.rounds, ["rounds"]), texts.ROUNDS),
            **under(functools.partial(synth.rounds, ["answers"]), texts.TEXTS),
            **under(functools.partial(synth.rounds, ["broken off"]), texts.BROKEN_OFF),
            **under(functools.partial(synth.rounds, ["stopped rounds"]), texts.STOPPED),
        },
        "text canary": under(synth.canary, texts.CANARY),
        "nobody": under(synth.nobody, texts.NOBODY),
        "texts": under(rapt.faces, swaps.FACES),
        "padded": under(rapt.padded, swaps.PADS),
        "sums": under(aggregate.sums, summed.SUMS),
        "sum noise": under(aggregate.noise, summed.NOISE),
        "users": under(aggregate.prompts, summed.USERS),
        "names": under(aggregate.named, summed.NAMES),
        "counts": under(counts.moved, counted.MOVED),
        "count noise": under(counts.noise, counted.NOISE),
        "blocks": under(lambda: worst([blocks.paid(), blocks.followed()]), blocks.FAULTS),
        "cost caches": under(accountant.caches, planted.CACHES),
        "accountant": {
            "charged at sensitivity 1": lambda: accountant.references(planted.charged_at_sensitivity_one(epsilon))
        },
        "choice law": under(accountant.choices, planted.CHOICES),
        "token law": under(accountant.tokens, planted.COSTS),
    }
