"""The public settings of a run, fixed before it starts."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from langchain_dp._util import validate
from langchain_dp.accounting.events import Sampling
from langchain_dp.ensemble.scheme import check_bounds
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.ports import Decoding

Method = Literal["dp-opt", "opt", "dln-1"]
METHODS: tuple[Method, ...] = ("dp-opt", "opt", "dln-1")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public settings; :class:`~langchain_dp.opt.runnable.DPPromptOptimizer` explains them.

    Raises:
        InvalidParameter: A value is out of bounds.
    """

    method: Method
    instruction: str
    labels: tuple[str, ...]
    prompts: OptPrompts
    shots: int
    subsets: int
    sampling: Sampling
    partitions: int | None
    sampling_probability: float | None
    validation: float
    num_prompts: int
    max_new_tokens: int
    max_calls: int
    max_retries: int
    kbar: int
    epsilon0: float | None
    delta0: float | None
    stop: tuple[str, ...]
    decoding: Decoding
    calibrate: bool

    def __post_init__(self) -> None:
        validate.one_of("method", self.method, METHODS)
        check_bounds(
            sampling=self.sampling,
            shots=self.shots,
            subsets=self.subsets,
            partitions=self.partitions,
            sampling_probability=self.sampling_probability,
        )
        validate.integer("num_prompts", self.num_prompts, at_least=1)
        validate.integer("max_new_tokens", self.max_new_tokens, at_least=1)
        validate.integer("max_calls", self.max_calls, at_least=1)
        validate.integer("max_retries", self.max_retries, at_least=0)
        validate.integer("kbar", self.kbar, at_least=1)
        validate.number("validation", self.validation, above=0.0, below=1.0)
        validate.number("temperature", self.decoding.temperature, at_least=0.0)
        if self.epsilon0 is not None:
            validate.number("epsilon0", self.epsilon0, above=0.0)
        if self.delta0 is not None:
            validate.number("delta0", self.delta0, above=0.0, below=1.0)
            if self.epsilon0 is None:
                raise InvalidParameter(
                    f"Expected delta0={self.delta0!r} together with epsilon0. Give both, or neither."
                )
        validate.number("repetition_penalty", self.decoding.repetition_penalty, at_least=1.0)

    def public(self) -> dict[str, Any]:
        """All of them as plain values for JSON."""
        prompts, decoding = self.prompts, self.decoding
        return {
            **{
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(self)
                if field.name not in ("prompts", "decoding")
            },
            "labels": list(self.labels),
            "stop": list(self.stop),
            "templates": {
                "text": prompts.text,
                "words": dict(prompts.words),
                "meta": prompts.meta,
                "messages": list(prompts.messages),
                "secrecy": prompts.secrecy,
            },
            "temperature": decoding.temperature,
            "repetition_penalty": decoding.repetition_penalty,
            "banned": sorted(decoding.banned, key=str),
            "chat": decoding.chat,
        }
