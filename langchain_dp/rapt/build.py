"""Builds the releases of a sanitizer from its arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from os import PathLike

from langchain_dp._util import validate
from langchain_dp.accounting.metric import MOST, MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.mechanisms.metric_exponential import CACHE_BYTES
from langchain_dp.mechanisms.metric_noise import checked_eta
from langchain_dp.ports import Embeds
from langchain_dp.rapt._tables import NAMED, load
from langchain_dp.rapt.calibrate import Calibration, calibrate
from langchain_dp.rapt.privatize import Keep, Mechanism, Policies, TextPrivatizer
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class CalibrationTarget:
    """A calibration target other than a replacement rate, and the texts to calibrate on. Public.

    ``dataclasses.asdict`` saves it. :func:`langchain_dp.rapt.calibrate.calibrate` explains and checks the targets.

    Args:
        deniability: 95% of running words come out unchanged with at most this probability.
        inversion: Share of running words that an attacker may guess from their release.
        max_loss: Largest eta times mean distance to the nearest neighbor, in nats.
        texts: Public texts like those to come, for every target; by default a page of English.

    Examples:
        >>> RAPTSanitizer("glove", target=CalibrationTarget(inversion=0.2))  # an attacker guesses one word of five
    """

    deniability: float | None = None
    inversion: float | None = None
    max_loss: float | None = None
    texts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.texts is not None:
            if isinstance(self.texts, str) or not all(isinstance(text, str) for text in self.texts):
                raise InvalidParameter("Expected texts to be a list of strings, such as [row['text'] for row in rows].")
            object.__setattr__(self, "texts", tuple(self.texts))


_TARGETS = ("eta", "target_replacement", "deniability", "inversion", "max_loss")
_CALIBRATED: dict[tuple[str, tuple[tuple[str, float], ...], str], Calibration] = {}
"""Calibrations of named tables in this process: public, always the same, and seconds of work."""


def targets_of(eta: float | None, target_replacement: float | None, target: CalibrationTarget) -> dict[str, float]:
    """Every given target by name; exactly one is allowed."""
    if eta is not None:
        checked_eta(eta, at_most=MOST)  # the account's bound, checked before the first release
    values = (eta, target_replacement, target.deniability, target.inversion, target.max_loss)
    return {name: value for name, value in zip(_TARGETS, values, strict=True) if value is not None}


@dataclasses.dataclass(frozen=True)
class WordOptions:
    """How words are drawn, with a sanitizer's defaults."""

    mechanism: Mechanism = "exponential"
    policies: Policies | None = None
    keep: Keep = ()
    length: int | None = None
    casing: bool = False
    not_private_seed: int | None = None
    threads: int | None = None
    calibration_texts: Sequence[str] | None = None
    cache_bytes: int = CACHE_BYTES


def word_releases(
    embeddings: str | PathLike[str] | Embeds | Vocabulary,
    targets: Mapping[str, float],
    options: WordOptions,
    *,
    ledger: MetricLedger | None,
    limit: float | None,
    cache: bool,
    name: str,
) -> FormalReleases:
    """Build releases under metric privacy."""
    if len(targets) != 1:
        raise InvalidParameter(
            f"Expected one of {', '.join(_TARGETS)} to say how private, got {sorted(targets) or 'none'}. Give "
            "target_replacement=0.5; the last three are part of target=CalibrationTarget(...)."
        )
    policies = validate.group("policies", options.policies, Policies)
    account = account_of(ledger, limit, options.not_private_seed)
    vocabulary = load(embeddings)

    def calibrated() -> Calibration:
        measure = functools.partial(
            calibrate,
            vocabulary,
            **targets,
            mechanism=options.mechanism,
            texts=options.calibration_texts,
            threads=options.threads,
        )
        if not isinstance(embeddings, str) or embeddings not in NAMED or options.calibration_texts is not None:
            return measure()
        key = embeddings, tuple(targets.items()), options.mechanism
        return _CALIBRATED.get(key) or _CALIBRATED.setdefault(key, measure())

    calibration = None if "eta" in targets else calibrated()
    engine = TextPrivatizer(
        vocabulary,
        targets["eta"] if calibration is None else calibration.eta,
        mechanism=options.mechanism,
        policies=policies,
        keep=options.keep,
        length=options.length,
        casing=options.casing,
        rng=None if options.not_private_seed is None else NotPrivateSeededRandomness(options.not_private_seed),
        threads=options.threads,
        cache_bytes=options.cache_bytes,
    )
    account.check_table(engine.table)
    return FormalReleases(engine, account, calibration or calibrated, reuse=cache, chain=name)


def account_of(ledger: MetricLedger | None, limit: float | None, not_private_seed: int | None) -> MetricLedger:
    """The caller's ledger, or a new one in memory."""
    if ledger is None:
        return MetricLedger(limit)
    if not isinstance(ledger, MetricLedger):
        raise InvalidParameter(
            f"Expected ledger of type {type(ledger).__name__} to be a MetricLedger: its unit is eta, not epsilon. "
            "Give MetricLedger(limit, path)."
        )
    if limit is not None:
        raise InvalidParameter(f"Expected limit={limit} without a ledger, which has its own. Leave one of them out.")
    if not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, which would keep releases that are "
            "not private beside others. Leave the ledger out."
        )
    return ledger
