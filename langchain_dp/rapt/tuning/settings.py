"""Public settings of prompt tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

Method = Literal["prompt", "prefix", "adapter", "full"]
Choice = Literal["fixed", "sets", "fresh"]
Reduction = Literal["sum", "mean"]

_LARGEST_SEED = 2**64 - 1  # of torch
_PROMPT_LENGTH = {"prompt": 150, "prefix": 10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainTokens:
    """Public tokens before every text, privatized with it. Reconstructing them is a second task of training.

    Args:
        length: Number m of tokens, 40 in the paper. 0 for none.
        choice: "fixed": the same for every text. "sets": one of ``sets`` rows. "fresh": new ones.
        sets: Number of rows under "sets".
        vocabulary: Largest size |T| of the set of tokens.
        seed: Public seed of the tokens.

    Examples:
        >>> settings = TuningSettings(plain=PlainTokens(length=10, choice="fresh"), reconstruction=True)
    """

    length: int = 0
    choice: Choice = "fixed"
    sets: int = 5
    vocabulary: int = 7_630
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"length": 0, "sets": 1, "vocabulary": 2, "seed": 0}.items():
            validate.integer(name, getattr(self, name), at_least=least)
        validate.one_of("choice", self.choice, get_args(Choice))

    @property
    def rows(self) -> int:
        """Rows to choose from."""
        return {"fixed": 1, "sets": self.sets, "fresh": 0}[self.choice]

    @classmethod
    def from_dict(cls, fields: Any) -> PlainTokens:
        """Check plain values."""
        return cls(**_named(cls, fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """Method and hyperparameters. The paper's values by default, but without plain tokens.

    Reconstruction did not help in any trial, and cost up to 11 points of accuracy under a frozen head. The paper's is
    ``TuningSettings(plain=PlainTokens(length=40), reconstruction=True)``.

    Args:
        method: "prompt" (Lester et al. 2021), "prefix" (Li and Liang 2021), "adapter" (Houlsby et al. 2019) or "full"
            (all weights).
        reconstruction: Whether to reconstruct plain tokens as a second task.
        prompt_length: Vectors of a prompt or prefix. None: 150 and 10.
        plain: Plain tokens, by default no tokens.
        head_size: Hidden size c of the reconstruction head.
        reconstruction_weight: Factor of L_rec in the loss.
        reconstruction_reduction: "sum" over the plain tokens, as in the paper's equation 7, or "mean".
        learning_rate: Learning rate of Adam.
        batch_size: Texts per step.
        epochs: Most passes over the texts.
        max_tokens: Longest text. Longer ones are truncated.
        patience: Stop after this many epochs without a better validation loss.
        device: "auto", "cpu", "cuda", ...
        seed: Public seed.

    Examples:
        >>> settings = TuningSettings(method="prompt", patience=1)
        >>> tuner = RAPTPromptTuner(sanitizer, labels=labels, settings=settings)
    """

    method: Method = "prefix"
    reconstruction: bool = False
    prompt_length: int | None = None
    plain: PlainTokens = PlainTokens()
    head_size: int = 96
    reconstruction_weight: float = 1.0
    reconstruction_reduction: Reduction = "sum"
    learning_rate: float = 6e-5
    batch_size: int = 128
    epochs: int = 4
    max_tokens: int = 128
    patience: int | None = None
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        validate.one_of("method", self.method, get_args(Method))
        validate.one_of("reconstruction_reduction", self.reconstruction_reduction, get_args(Reduction))
        validate.instance("plain", self.plain, PlainTokens, "PlainTokens(...)")
        validate.one_of("reconstruction", self.reconstruction, (True, False))
        if self.reconstruction and not self.plain.length:
            raise InvalidParameter(
                "Expected plain tokens with reconstruction=True, since they are what is reconstructed. Give "
                "plain=PlainTokens(length=40), or leave reconstruction out."
            )
        for name in ("head_size", "batch_size", "epochs", "max_tokens", "prompt_length", "patience"):
            if name not in ("prompt_length", "patience") or getattr(self, name) is not None:
                validate.integer(name, getattr(self, name), at_least=1)
        validate.integer("seed", self.seed, at_least=0, at_most=_LARGEST_SEED)
        check_device(self.device)
        validate.number("learning_rate", self.learning_rate, above=0.0)
        validate.number("reconstruction_weight", self.reconstruction_weight, at_least=0.0)

    @property
    def virtual_tokens(self) -> int:
        """Vectors of the prompt or prefix."""
        usual = _PROMPT_LENGTH.get(self.method, 0)
        return self.prompt_length if usual and self.prompt_length is not None else usual

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TuningSettings:
        """Read plain values."""
        values = _named(cls, fields)
        return cls(**{**values, "plain": PlainTokens.from_dict(values["plain"])})

    def differences(self, other: TuningSettings) -> list[str]:
        """Name differing fields, except the device."""
        mine, its = self.to_dict(), other.to_dict()
        return sorted(name for name in mine if name != "device" and mine[name] != its[name])


def check_device(device: object) -> None:
    validate.instance("device", device, str, "a str, such as 'auto', 'cpu' or 'cuda:0'", "Give its name.")


def _named(kind: type, fields: Any) -> Mapping[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(fields, Mapping) or set(fields) != names:
        got = sorted(map(str, fields)) if isinstance(fields, Mapping) else type(fields).__name__
        raise InvalidParameter(
            f"Expected settings with the fields {sorted(names)}, got {got}. They were written by another version."
        )
    return fields
