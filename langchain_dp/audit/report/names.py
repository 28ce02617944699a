"""Names and sentences of a report."""

from __future__ import annotations

import math
import re

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent

from langchain_dp._util.rounding import bound
from langchain_dp._util.words import UNSPACED
from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    VectorSumEvent,
)
from langchain_dp.attacks.result import accuracy_bound

RELATIONS = {
    Neighbors.REPLACE_ONE: "one record replaced by any other (the number of records is public)",
    Neighbors.ADD_OR_REMOVE_ONE: "one record added or removed (the number of records is protected, too)",
    Neighbors.REPLACE_SPECIAL: "one record replaced by a ghost that abstains (weaker than adding or removing it)",
}

WORDS, TEXTS = "Metric privacy of words", "Paraphrases of whole texts"
"""The mechanisms of metric ledgers."""

_PLAIN = re.compile(r"[\w.:/+()#=@, -]{1,48}")
_WORDS = 4
_UNSPACED = re.compile(f"[{UNSPACED}]")
_ADDRESS = re.compile(r"\w@\w+[.\w-]*\.[a-zA-Z]")


def label(name: str) -> str:
    """Return the name if it looks like a label, otherwise a replacement.

    Labels have at most 48 letters, digits and plain marks, in four words without digits. A path is cut to its last
    part.
    """
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1] if name.count("/") + name.count("\\") > 1 else name
    words = [word for word in last.split() if not any(letter.isdigit() for letter in word)]  # sizes, hashes are not
    unspaced = len(_UNSPACED.findall(last))
    if _PLAIN.fullmatch(last) and len(words) <= _WORDS and unspaced <= 2 * _WORDS and not _ADDRESS.search(last):
        return last
    return f"(a name of {len(name)} characters that reads like a text: not shown)"


def kind(event: DpEvent, *, subject: bool = True) -> str:
    if isinstance(event, PartEvent):
        return kind(event.event, subject=subject) + (in_part(label(event.part)) if subject else "")
    if isinstance(event, PoissonSampledDpEvent):
        return f"{kind(event.event, subject=subject)}, sampled"
    return _KINDS.get(type(event), type(event).__name__)


_KINDS: dict[type, str] = {
    NoisyMaxEvent: "Report noisy max",
    LimitedDomainEvent: "LimitedDomain (one token)",
    ExponentialEvent: "Exponential mechanism (one choice)",
    ClippedSumRoundEvent: "Clipped sums (one round of texts)",
    VectorSumEvent: "Vector sum (one noisy sum of vectors)",
    GaussianDpEvent: "Gaussian mechanism",
    LaplaceDpEvent: "Laplace mechanism",
}


def in_part(part: str) -> str:
    return f", on the part {part} of the data"


def parameters(event: DpEvent) -> str:
    if isinstance(event, PartEvent):
        return parameters(event.event)
    if isinstance(event, PoissonSampledDpEvent):
        return f"{parameters(event.event)}, sampling probability {event.sampling_probability:.4g}"
    if isinstance(event, NoisyMaxEvent):
        return f"sigma {event.sigma:.4g} votes, {_sampling(event)}"
    if isinstance(event, LimitedDomainEvent):
        return f"epsilon0 {bound(event.epsilon0, 4)}, delta0 {bound(event.delta0, 3)}, {_sampling(event)}"
    if isinstance(event, ExponentialEvent):
        return f"epsilon {bound(event.epsilon, 4)}"
    if isinstance(event, ClippedSumRoundEvent):
        return f"epsilon0 {bound(event.epsilon0, 4)} a token, {event.tokens} tokens, {_sampling(event)}"
    if isinstance(event, VectorSumEvent):
        return f"noise {event.noise_multiplier:.4g} record vectors, replacement moves {event.replaced:.3g}"
    return f"noise multiplier {event.noise_multiplier:.4g}"


def _sampling(event: NoisyMaxEvent | LimitedDomainEvent | ClippedSumRoundEvent) -> str:
    who = "each subset" if getattr(event, "sampling", None) == "fixed" else "each record"
    if event.sampling_probability == 1:
        return "everybody takes part"
    return f"{who} takes part with probability {event.sampling_probability:.4g}"


_COMFORT = 0.96  # chance of a right guess above which the promise is called weak: epsilon above 3.2
_OFTEN = 1.6449  # standard deviations that a Gaussian exceeds once in twenty times


def tpr_at_fpr(epsilon: float, delta: float, false_alarms: float) -> float:
    if epsilon > 700:
        return 1.0
    return min(1.0, math.exp(epsilon) * false_alarms + delta, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))


_TWICE = "lie two such steps apart: they are told apart as if at twice the epsilon."
_TOLD_APART = {
    Neighbors.REPLACE_ONE: ("two versions of a record are", "names the right one", "innocent records", ""),
    Neighbors.ADD_OR_REMOVE_ONE: (
        "that a record is there and that it is not are",
        "tells which",
        "records that are not there",
        f" Two versions of a record that is there {_TWICE}",
    ),
    Neighbors.REPLACE_SPECIAL: (
        "that a record votes and that it abstains are",
        "tells which",
        "records that abstain",
        f" Two versions of a record that votes {_TWICE}",
    ),
}


def meaning(epsilon: float, delta: float, neighbors: Neighbors, spent: tuple[float, float] | None = None) -> str:
    """Explain a promise in plain words, and what was spent of it."""
    equally, right, wrong, further = _TOLD_APART[neighbors]
    weak = ""
    if accuracy_bound(epsilon, delta) > _COMFORT:
        weak = (
            " At this epsilon the bound alone is weak: it excludes certainty and little else. In practice the "
            "protection is then how far real attacks stay below it, and that is an experience and no promise."
        )
    now = ""
    if spent is not None and spent[0] < 0.99 * epsilon:
        now = f" So far, after epsilon {bound(spent[0], 3)}, it is {_share(accuracy_bound(*spent))} at most."
    return (
        f"Somebody who knows every other record and sees everything released, and to whom {equally} equally likely, "
        f"{right} with probability {_share(accuracy_bound(epsilon, delta))} at most (a blind guess: 50%).{now} A test "
        f"that is wrong about one in a hundred {wrong} finds at most {_share(tpr_at_fpr(epsilon, delta, 0.01))} of the "
        f"others.{further}{weak}{_told_of(delta)}"
    )


def _told_of(delta: float) -> str:
    if not delta:
        return " Delta is 0: the promise has no exception."
    return (
        f" With a probability of delta, 1 in {min(1 / delta, 1e12):,.0f}, a record may show by more than epsilon "
        "allows. The figures above include that."
    )


def calibration(event: DpEvent, neighbors: Neighbors) -> str:
    if isinstance(event, PartEvent):
        return calibration(event.event, neighbors)
    if isinstance(event, NoisyMaxEvent):
        lead = _OFTEN * math.sqrt(2) * event.sigma
        return (
            f"Every label count gets Gaussian noise of {event.sigma:.3g} votes before the largest is named. With two "
            f"labels, the one with more votes wins 95 of 100 times if it leads by {lead:.3g} votes."
        )
    if isinstance(event, LimitedDomainEvent):
        moved = 1 if neighbors is Neighbors.REPLACE_SPECIAL else 2
        needed = moved + 2 / event.epsilon0 * math.log((1 - event.delta0) / event.delta0)
        return (
            f"A token is released half of the time if it has {needed:.3g} votes more than the first one left out. With "
            "fewer, most often none is."
        )
    if isinstance(event, ExponentialEvent):
        return (
            f"Of two candidates, the one with {math.log(19) / event.epsilon:.3g} correct answers more is chosen 95 of "
            "100 times."
        )
    if isinstance(event, ClippedSumRoundEvent):
        # One of several records of a member may move it from one end of the clip to the other.
        return (
            "A record that is drawn into a round moves the odds between two tokens by a factor of "
            f"{bound(math.exp(event.epsilon0), 3)} at most. The text of few "
            "records is not written."
        )
    if isinstance(event, VectorSumEvent):
        return (
            f"Every number of the sum gets Gaussian noise of {event.noise_multiplier:.3g} times the length of the "
            "longest vector that one record may add."
        )
    return "Noise of the library's own mechanism, in multiples of its sensitivity."


def _share(value: float) -> str:
    steps = 10_000 if value > 0.99 else 1_000
    up = math.ceil(value * steps - 1e-9) / steps
    return "almost 100%" if value >= 0.9999 else f"{up:.2%}" if value > 0.99 else f"{up:.1%}"


def limits(neighbors: Neighbors) -> list[str]:
    first = {
        Neighbors.REPLACE_ONE: "The number of records. It is public under this relation.",
        Neighbors.REPLACE_SPECIAL: "The number of records, and whether a record is there at all beyond its vote: "
        "zero-out is a weaker promise than adding or removing a record.",
        Neighbors.ADD_OR_REMOVE_ONE: "The settings of the mechanism. They are constants, taken to be public.",
    }[neighbors]
    return [
        first,
        "People with several records, unless a plan above protects all records of one together. Otherwise k "
        "records together may lose k times epsilon.",
        "The records from the operator of the model, who sees them in clear.",
        "Questions, labels, instructions, model names and the names of plans and chains. They are public.",
        "Facts that hold with or without any one record. Releases exist for them.",
        "Time: when answers were released, how many, and how long they took. This page shows the first two.",
        "Releases past this ledger, and seeded or non-private runs, which it does not count.",
    ]


_ALL_TEXTS = [
    "Releases that named no user: they are counted for their document alone.",
    "Releases that were reused: the same text sanitized before cost nothing again.",
    "Time: when texts were released, and how many. This page shows both.",
]
METRIC_LIMITS = [
    "An epsilon. This is metric privacy: words far apart in the table are told apart more easily than near ones, and "
    "its unit is never added to an epsilon.",
    "The number of words of a text, unless it was padded.",
    "All text that the settings let pass in clear or replace by rule (numbers, dates, names kept, capitals). The "
    "certificate of the sanitizer lists it.",
    "A meaning that many words of a text share: losses add up over the words, and over every further release.",
    *_ALL_TEXTS,
]
TEXT_LIMITS = [
    "A text under an eta of more than 10: then hardly anything is promised, and only the limits of attackers protect.",
    "A blank text, and one that is too long for the model that rewrites it. That model's operator saw all texts.",
    *_ALL_TEXTS,
]
