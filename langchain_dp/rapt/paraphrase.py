"""Rewrites whole texts with a local model, each token by clipped differences to the model without the text.

References:
    [1] Utpala, Hooker, Chen. Locally differentially private document generation using zero shot prompting. 2023.
    [2] Vinod, Pillutla, Thakurta. InvisibleInk: high-utility and low-cost text generation with DP. 2025.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Sequence

from langchain_dp._util import forks, validate
from langchain_dp._util.validate import group
from langchain_dp.accounting import MetricEvent
from langchain_dp.accounting.metric import WHOLE_TEXTS, MetricLedger
from langchain_dp.ensemble.engine_calls import count_or_estimate
from langchain_dp.ensemble.text_writer import TextWriter
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import ClippedSum, SystemRandomness
from langchain_dp.ports import NextTokenScorer
from langchain_dp.rapt._shell import Core
from langchain_dp.rapt.calibrate import Calibration
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.parts import DocumentRules
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.runnable import RAPTSanitizer, account_of

PAIRS = (
    ("the acting is wooden and the plot makes no sense .", "The actors are stiff, and the story is not coherent."),
    (
        "Shares of the airline rose on Tuesday after it reported better earnings than expected.",
        "The airline's stock went up on Tuesday, since its profits beat the forecasts.",
    ),
    (
        "a funny , warm little film that i would gladly see again .",
        "A sweet comedy, full of laughs, that I'd be happy to watch once more.",
    ),
)
"""Public examples."""

_TAIL = "\nThe same in other words:"
_HEAD = "".join(f"Text: {text}{_TAIL} {other}\n\n" for text, other in PAIRS) + "Text:"  # the prompt before the text
_CANDIDATES = 4096  # the likeliest tokens without the text
_WEAK = 10.0


@dataclasses.dataclass(frozen=True)
class ParaphraseOptions:
    """Options of a paraphrase. Public.

    Args:
        clip: C: largest shift of a token's log-probability by the text, in nats.
        temperature: tau of the token distribution.
        max_new_tokens: T: largest number of tokens.

    Examples:
        >>> ParaphraseOptions().epsilon  # per text: T 4 C / tau
        320.0
    """

    clip: float = 2.0
    temperature: float = 1.0
    max_new_tokens: int = 40

    def __post_init__(self) -> None:
        _ = self.noise

    @functools.cached_property
    def noise(self) -> ClippedSum:
        """The mechanism."""
        return ClippedSum.clipped(self.clip, members=1, tokens=self.max_new_tokens, temperature=self.temperature)

    @property
    def epsilon(self) -> float:
        """Pure local epsilon between any two texts."""
        return self.noise.event.epsilon0 * self.noise.event.tokens


class TextParaphraser:
    """The engine of :class:`RAPTParaphraser`.

    Per token, the text moves every log-weight, and the log of their sum, by at most C / tau up or down.
    """

    mechanism = "paraphrase"
    table = WHOLE_TEXTS
    pads = False
    private = True

    def __init__(self, model: NextTokenScorer, settings: ParaphraseOptions) -> None:
        remedy = "Give a local engine such as LlamaCppEnsemble, not a chat model: the text must not leave this machine."
        validate.instance("model", model, NextTokenScorer, "a scorer of next tokens", remedy)
        self._model, self._options = model, settings
        self._writer = TextWriter(
            model, "\n", settings.noise, candidates=_CANDIDATES, chat=False, rng=SystemRandomness()
        )
        self._room = self._writer.check_room(_HEAD, _TAIL)
        self.event = MetricEvent(settings.epsilon)
        self.eta = self.event.eta  # a local epsilon, in nats
        self._lock = threading.Lock()  # one text at a time: its caches are freed before the next one
        forks.renew_lock(self)

    @functools.cached_property
    def settings(self) -> str:
        facts = {"model": self._model.name, "table": WHOLE_TEXTS, "mechanism": self.mechanism, "head": _HEAD}
        return json.dumps({**dataclasses.asdict(self._options), **facts}, sort_keys=True)

    def notes(self) -> tuple[str, ...]:
        weak = f" Above {_WEAK:g} it promises hardly anything, and only the limits of attackers protect."
        weak *= self.eta > _WEAK
        return (
            f"Here eta is a pure, local epsilon: the loss between any two texts, for each paraphrase.{weak}",
            "A blank text, or one that is too long for the model, shows that it is.",
            f"Written by {self._model.name}, which saw the text.",
        )

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Do all work that can fail. Return a function that draws."""
        bodies = [" " + " ".join(text.split()) if text.strip() else "" for text in texts]
        if any(count_or_estimate(self._model, body) > self._room for body in bodies):
            raise InvalidParameter(  # without its length, which is private
                f"Expected every text to be at most {self._room} tokens, which the model's longest prompt leaves for "
                "it. Split long texts, lower max_new_tokens=, or raise the engine's max_tokens=."
            )
        return lambda: [self._paraphrase(body) if body else "" for body in bodies]

    def _paraphrase(self, body: str) -> str:
        key = ("paraphrase", body)
        with self._lock:
            try:
                return self._writer.text(list(self._writer.tokens(_HEAD, _TAIL, {key: body})))
            finally:
                self._model.forget(key)


class RAPTParaphraser(RAPTSanitizer):
    """Rewrites every text with a local model, one token at a time, and charges the cost.

    A paraphrase keeps more meaning than drawn words, but a small model also invents. Inputs, ``messages``,
    ``documents``, ``limit``, ``cache`` and ``name`` are as of :class:`RAPTSanitizer`.

    Args:
        model: Local model, which reads the texts: ``LlamaCppEnsemble()``, ``TransformersEnsemble(...)``.
        paraphrasing: Options of a paraphrase, which set its cost.
        ledger: Account to charge, for whole texts only.

    Raises:
        InvalidParameter: The model scores no next tokens.
        PlanError: The ledger counts in distances of words.
        ModelUnavailable: The model does not answer. The charge for texts that it received is lost.

    Formal guarantee:
        One paraphrase is pure eta-local differential privacy between any two texts that are not blank,
        eta = T 4 C / tau = 320 at the defaults. Releases of the same text, and the texts of one document or message,
        add up. At this scale only the measured failure of attackers protects.
        Source: [1], with the clip of [2]. That a token costs 4 C / tau is shown by enumeration.

    Examples:
        >>> paraphraser = RAPTParaphraser(LlamaCppEnsemble())
        >>> paraphraser.invoke("The nurse on ward 7 was kind, but the food was cold.")
        >>> paraphraser.certificate().eta
        320.0
    """

    def __init__(
        self,
        model: NextTokenScorer,
        *,
        paraphrasing: ParaphraseOptions | None = None,
        messages: MessageRules | None = None,
        documents: DocumentRules | None = None,
        ledger: MetricLedger | None = None,
        limit: float | None = None,
        cache: bool = True,
        name: str = "RAPTParaphraser",
    ) -> None:
        self.name = name
        engine = TextParaphraser(model, group("paraphrasing", paraphrasing, ParaphraseOptions))
        account = account_of(ledger, limit, None)
        account.check_table(WHOLE_TEXTS)
        releases = FormalReleases(engine, account, _uncalibrated, reuse=cache, chain=name)
        rules = group("messages", messages, MessageRules), group("documents", documents, DocumentRules)
        self._core = Core(releases, *rules)


def _uncalibrated() -> Calibration:
    raise InvalidParameter("Expected a sanitizer of words: a paraphrase replaces no word by its neighbors.")
