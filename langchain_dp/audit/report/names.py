"""Names in a report: of mechanisms, their parameters and relations; and which of the callers' own are shown.

These are public by contract, but a caller may have passed a sentence by mistake.
"""

from __future__ import annotations

import re

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent

from langchain_dp._util.rounding import bound
from langchain_dp._util.words import UNSPACED
from langchain_dp.accounting import (
    ExponentialEvent,
    LabelPartEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    TextRoundEvent,
)

RELATIONS = {
    Neighbors.REPLACE_ONE: "one record replaced by any other (the number of records is public)",
    Neighbors.ADD_OR_REMOVE_ONE: "one record added or removed (the number of records is protected, too)",
    Neighbors.REPLACE_SPECIAL: "one record replaced by a ghost that abstains (weaker than adding or removing it)",
}

WORDS = "Metric privacy of words"
"""The mechanism of a metric ledger, but for that of whole texts."""
TEXTS = "Paraphrases of whole texts"

_PLAIN = re.compile(r"[\w.:/+()#=@, -]{1,48}")
_WORDS = 4
_UNSPACED = re.compile(f"[{UNSPACED}]")
_ADDRESS = re.compile(r"\w@\w+[.\w-]*\.[a-zA-Z]")


def label(name: str) -> str:
    """The name if it reads like a label, else what is said of it instead.

    At most 48 letters, digits and plain marks in at most four words without a digit; in writing without spaces two
    letters are a word. What looks like a path is cut to its last part, since folders may be named after people.
    """
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1] if name.count("/") + name.count("\\") > 1 else name
    words = [word for word in last.split() if not any(letter.isdigit() for letter in word)]  # sizes, hashes are not
    unspaced = len(_UNSPACED.findall(last))
    if _PLAIN.fullmatch(last) and len(words) <= _WORDS and unspaced <= 2 * _WORDS and not _ADDRESS.search(last):
        return last
    return f"(a name of {len(name)} characters that reads like a text: not shown)"


def kind(event: DpEvent) -> str:
    """Name of the mechanism behind an event."""
    if isinstance(event, PartEvent):
        return kind(event.event) + in_part(label(event.part))
    if isinstance(event, LabelPartEvent):
        return f"{kind(event.event)}, on the records of {label(event.label)}"
    if isinstance(event, PoissonSampledDpEvent):
        return f"{kind(event.event)}, sampled"
    names: dict[type, str] = {
        NoisyMaxEvent: "Report noisy max",
        LimitedDomainEvent: "LimitedDomain (one token)",
        ExponentialEvent: "Exponential mechanism (one choice)",
        TextRoundEvent: "Clipped sums (one round of texts)",
        GaussianDpEvent: "Gaussian mechanism",
        LaplaceDpEvent: "Laplace mechanism",
    }
    return names.get(type(event), type(event).__name__)


def mechanism(event: DpEvent) -> str:
    """Name of the mechanism behind an event, whatever part of the data or label it is for."""
    if isinstance(event, (PartEvent, LabelPartEvent)):
        return mechanism(event.event)
    if isinstance(event, PoissonSampledDpEvent):
        return f"{mechanism(event.event)}, sampled"
    return kind(event)


def in_part(part: str) -> str:
    """What follows the name of a mechanism that reads one part of the data, by that part's label."""
    return f", on the part {part} of the data"


def parameters(event: DpEvent) -> str:
    """Public parameters of an event."""
    if isinstance(event, (PartEvent, LabelPartEvent)):
        return parameters(event.event)
    if isinstance(event, PoissonSampledDpEvent):
        return f"{parameters(event.event)}, sampling probability {event.sampling_probability:.4g}"
    if isinstance(event, NoisyMaxEvent):
        return f"sigma {event.sigma:.4g} votes, {_sampling(event)}"
    if isinstance(event, LimitedDomainEvent):
        return f"epsilon0 {bound(event.epsilon0, 4)}, delta0 {bound(event.delta0, 3)}, {_sampling(event)}"
    if isinstance(event, ExponentialEvent):
        return f"epsilon {bound(event.epsilon, 4)}"
    if isinstance(event, TextRoundEvent):
        return f"epsilon0 {bound(event.epsilon0, 4)} a token, {event.tokens} tokens, {_sampling(event)}"
    return f"noise multiplier {event.noise_multiplier:.4g}"


def _sampling(event: NoisyMaxEvent | LimitedDomainEvent | TextRoundEvent) -> str:
    who = "each subset" if getattr(event, "sampling", None) == "fixed" else "each record"
    if event.sampling_probability == 1:
        return "everybody takes part"
    return f"{who} takes part with probability {event.sampling_probability:.4g}"
