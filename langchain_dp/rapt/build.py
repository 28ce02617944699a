"""From the arguments of a sanitizer to what releases its words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os import PathLike

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.mechanisms.metric_exponential import CACHE_BYTES
from langchain_dp.ports import Embeds
from langchain_dp.rapt._tables import load
from langchain_dp.rapt.calibrate import Calibration, calibrate
from langchain_dp.rapt.formal import FormalReleases
from langchain_dp.rapt.placeholders import FindsEntities, PlaceholderReleases
from langchain_dp.rapt.policies import Policies
from langchain_dp.rapt.privatize import Keep, Mechanism, TextPrivatizer
from langchain_dp.rapt.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Targets:
    """One of these says how private: eta itself, or what it is calibrated for."""

    eta: float | None = None
    target_replacement: float | None = None
    deniability: float | None = None
    inversion: float | None = None
    max_loss: float | None = None

    def given(self) -> dict[str, float]:
        """Those that are not None."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class WordOptions:
    """How words are drawn. The defaults are those of a sanitizer."""

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
    targets: Targets,
    options: WordOptions,
    *,
    ledger: MetricLedger | None,
    limit: float | None,
    cache: bool,
    name: str,
) -> FormalReleases:
    """Releases under metric privacy.

    Raises:
        InvalidParameter: A value is out of bounds, or two values contradict each other.
        PlanError: The ledger counts in distances of another table.
        MissingExtra: The package of a named table is not installed.
    """
    if len(targets.given()) != 1:
        raise InvalidParameter(
            f"Expected one of {', '.join(field.name for field in dataclasses.fields(Targets))} to say how private, "
            f"got {sorted(targets.given()) or 'none'}. Give target_replacement=0.5."
        )
    if options.policies is not None and not isinstance(options.policies, Policies):
        raise InvalidParameter(f"Expected policies of type {type(options.policies).__name__} to be Policies(...).")
    account = _ledger(ledger, limit, options.not_private_seed)
    vocabulary = load(embeddings)

    def calibrated() -> Calibration:
        return calibrate(
            vocabulary,
            **targets.given(),
            mechanism=options.mechanism,
            texts=options.calibration_texts,
            threads=options.threads,
        )

    calibration = calibrated() if targets.eta is None else None
    engine = TextPrivatizer(
        vocabulary,
        targets.eta if calibration is None else calibration.eta,  # type: ignore[arg-type]  # one of them is given
        mechanism=options.mechanism,
        policies=options.policies or Policies(),
        keep=options.keep,
        length=options.length,
        casing=options.casing,
        rng=None if options.not_private_seed is None else NotPrivateSeededRandomness(options.not_private_seed),
        threads=options.threads,
        cache_bytes=options.cache_bytes,
    )
    account.check_table(engine.table)
    return FormalReleases(engine, account, calibration or calibrated, reuse=cache, chain=name)


def placeholder_releases(
    finder: FindsEntities,
    targets: Targets,
    options: WordOptions,
    *,
    ledger: MetricLedger | None,
    limit: float | None,
) -> PlaceholderReleases:
    """The mode without a formal promise.

    Raises:
        InvalidParameter: ``finder`` finds nothing, or an option of the formal mode is given.
    """
    if not isinstance(finder, FindsEntities):
        raise InvalidParameter(
            f"Expected only of type {type(finder).__name__} to have name and find(text). Give PresidioEntities(...)."
        )
    defaults = WordOptions()
    given = [
        *targets.given(),
        *(field for field in vars(defaults) if getattr(options, field) != getattr(defaults, field)),
        *(["ledger"] if ledger is not None else []),
        *(["limit"] if limit is not None else []),
    ]
    if given:
        raise InvalidParameter(
            f"Expected only= without {', '.join(given)}: placeholders are no words drawn under metric privacy, and "
            "nothing is charged for them. Leave out only=, or all of these."
        )
    return PlaceholderReleases(finder)


def _ledger(ledger: MetricLedger | None, limit: float | None, not_private_seed: int | None) -> MetricLedger:
    if ledger is None:
        return MetricLedger(limit)
    if not isinstance(ledger, MetricLedger):
        raise InvalidParameter(
            f"Expected ledger of type {type(ledger).__name__} to be a MetricLedger: its unit is eta, not epsilon."
        )
    if limit is not None:
        raise InvalidParameter(f"Expected limit={limit} without a ledger, which has its own. Leave one of them out.")
    if not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, which would keep releases that are "
            "not private beside others. Leave the ledger out."
        )
    return ledger
