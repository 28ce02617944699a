"""The public settings of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_dp._util import validate
from langchain_dp.ensemble.subsets import SamplingOptions
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.templates import OptPrompts, PromptAlternative
from langchain_dp.ports import Decoding


@dataclasses.dataclass(frozen=True)
class CandidateOptions:
    """Public options for written candidates.

    Args:
        stop: Strings that end a candidate and never begin it.
        max_calls: Calls that the noise is calibrated for. None is ``num_prompts * max_new_tokens``.
        max_retries: Most retries of one candidate.
        kbar: Tokens that LimitedDomain considers.
        epsilon0: Bounded-range parameter of one call. None chooses the largest that fits.
        delta0: Mass that the threshold may miss in one call.
        filtered: Never repeat the request, remove an unfinished last sentence, and drop candidates that are no sentence
            or no longer name the task. Free, by public and released text alone.

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> CandidateOptions(stop=["END"], max_calls=200).stop
        ('END',)
    """

    stop: Sequence[str] = ("\n",)
    max_calls: int | None = None
    max_retries: int = 5
    kbar: int = 10
    epsilon0: float | None = None
    delta0: float | None = None
    filtered: bool = True

    def __post_init__(self) -> None:
        validate.one_of("filtered", self.filtered, (True, False))
        object.__setattr__(self, "stop", _stop(self.stop))
        if self.max_calls is not None:
            validate.integer("max_calls", self.max_calls, at_least=1)
        validate.integer("max_retries", self.max_retries, at_least=0)
        validate.integer("kbar", self.kbar, at_least=1)
        if self.epsilon0 is not None:
            validate.number("epsilon0", self.epsilon0, above=0.0)
        if self.delta0 is not None:
            validate.number("delta0", self.delta0, above=0.0, below=1.0)
            if self.epsilon0 is None:
                raise InvalidParameter(
                    f"Expected delta0={self.delta0!r} together with epsilon0. Give both, or neither."
                )


def _stop(stop: object) -> tuple[str, ...]:
    strings = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else ("",)
    if not all(isinstance(string, str) and string for string in strings):
        raise InvalidParameter(f"Expected stop={stop!r} to be a list of non-empty strings, such as ['\\n'].")
    return strings


_PLAIN = "instruction", "shots", "subsets", "validation", "num_prompts", "max_new_tokens", "calibrate"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of :class:`~langchain_dp.opt.DPPromptOptimizer`. Without ``writes`` a run only selects."""

    instruction: str
    labels: tuple[str, ...]
    prompts: OptPrompts
    calibrate: bool
    shots: int = 1
    subsets: int = 1
    sampling: SamplingOptions = dataclasses.field(default_factory=SamplingOptions)
    validation: float = 1.0
    num_prompts: int = 1
    max_new_tokens: int = 1
    candidate_options: CandidateOptions = dataclasses.field(default_factory=CandidateOptions)
    decoding: Decoding = dataclasses.field(default_factory=lambda: Decoding(chat=False))
    writes: bool = True
    rows: int | None = None
    alternatives: tuple[PromptAlternative, ...] = ()
    labels_from_data: bool = False

    def __post_init__(self) -> None:
        self._check_alternatives()
        if self.rows is not None:
            validate.integer("rows", self.rows, at_least=2)
        validate.one_of("calibrate", self.calibrate, (True, False))
        validate.one_of("labels_from_data", self.labels_from_data, (True, False))
        for name in ("shots", "subsets", "num_prompts", "max_new_tokens"):
            validate.integer(name, getattr(self, name), at_least=1)
        if self.writes:
            validate.number("validation", self.validation, above=0.0, below=1.0)

    def _check_alternatives(self) -> None:
        if not self.writes and not self.alternatives:
            raise InvalidParameter(
                "Expected alternatives= to hold at least one prompt beside the initial instruction. Write for example "
                'alternatives=["Say what the question asks for."].'
            )
        prompts = [(self.instruction, tuple(self.words))]
        for each in self.alternatives:
            if unknown := sorted(set(each.words) - set(self.labels)):
                raise InvalidParameter(
                    f"Expected words of an alternative to be for labels, but {unknown[0]!r} is none of "
                    f"{list(self.labels)}. Mend its spelling."
                )
            words = self.words_of(each)
            if len({word.casefold() for word in words}) < len(words):
                raise InvalidParameter(
                    f"Expected the words {words} of an alternative to differ in more than case. Give another one."
                )
            prompts.append((each.instruction or self.instruction, tuple(words)))
            if prompts[-1] in prompts[:-1]:
                raise InvalidParameter(
                    f"Expected every alternative to be another prompt than the initial one and the others, but "
                    f"{prompts[-1][0]!r} with the words {words} comes twice. Leave it out."
                )

    def taking_part(self, records: int) -> int:
        return records if self.rows is None else min(self.rows, records)

    def words_of(self, alternative: PromptAlternative) -> list[str]:
        return [alternative.words.get(label, word) for label, word in zip(self.labels, self.words, strict=True)]

    @property
    def texts(self) -> int:
        return self.num_prompts if self.writes else 0

    @property
    def choices(self) -> int:
        """Most prompts in the selection."""
        return self.texts + 1 + len(self.alternatives)

    @property
    def words(self) -> list[str]:
        return [self.prompts.word(label) for label in self.labels]

    @property
    def calls(self) -> int:
        if not self.writes:
            return 0
        return self.candidate_options.max_calls or self.num_prompts * self.max_new_tokens

    def public(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        prompts = self.prompts
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "labels": list(self.labels),
            **dataclasses.asdict(self.candidate_options),
            **dataclasses.asdict(self.decoding),
            "sampling": self.sampling.scheme,
            "partitions": self.sampling.partitions,
            "sampling_probability": self.sampling.probability,
            "max_calls": self.calls,
            "stop": list(self.candidate_options.stop),
            "banned": sorted(self.decoding.banned, key=str),
            "templates": {
                **{name: getattr(prompts, name) for name in ("text", "meta", "answer", "system")},
                "words": dict(prompts.words),
                "messages": list(prompts.messages),
            },
            **({} if self.writes else {"writes": False}),
            **({} if self.rows is None else {"rows": self.rows}),
            **({"alternatives": [each.public() for each in self.alternatives]} if self.alternatives else {}),
            **({"labels_from_data": True} if self.labels_from_data else {}),
        }
