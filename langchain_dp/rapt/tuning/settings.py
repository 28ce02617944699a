"""Public settings of prompt tuning, with the paper's values as defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

Method = Literal["prompt", "prefix", "adapter", "full"]
Choice = Literal["fixed", "sets", "fresh"]

_LARGEST_SEED = 2**64 - 1  # of torch
_PROMPT_LENGTH = {"prompt": 150, "prefix": 10}
_CHOICES = {
    "start": ("words", "random"),
    "reconstruction_reduction": ("sum", "mean"),
    "pooling": ("mean", "first"),
    "privatize": ("once", "epoch"),
    "precision": ("float32", "bfloat16", "float16"),
}


def _listed(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainTokens:
    """Public tokens before every text, which are privatized with it and reconstructed.

    Args:
        length: Number m of tokens; 0 for none. The paper has 40.
        choice: "fixed": the same tokens before every text, as in the paper's main results. "sets": one of ``sets`` rows
            per text. "fresh": new ones per text, so that no position can be memorized.
        sets: Number of rows under "sets".
        vocabulary: Size |T| of the set of tokens, and of the reconstruction head's output; fewer if fewer of the table
            fit. The paper has 7,630.
        words: Given rows of ``length`` words of the client's table, instead of random ones.
        seed: Public seed of the random rows.

    Examples:
        >>> settings = TuningSettings(plain=PlainTokens(length=10, choice="fresh"))
        >>> TuningSettings(plain=PlainTokens(length=0), reconstruction=False)  # none
    """

    length: int = 40
    choice: Choice = "fixed"
    sets: int = 5
    vocabulary: int = 7_630
    words: Sequence[Sequence[str]] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        validate.integer("length", self.length, at_least=0)
        validate.one_of("choice", self.choice, get_args(Choice))
        validate.integer("sets", self.sets, at_least=1)
        validate.integer("vocabulary", self.vocabulary, at_least=2)
        validate.integer("seed", self.seed, at_least=0)
        if not _listed(self.words) or not all(
            _listed(row) and all(isinstance(word, str) for word in row) for row in self.words
        ):
            raise InvalidParameter("Expected words to be rows of words. Give [['one', 'two']].")
        words = tuple(tuple(row) for row in self.words)
        object.__setattr__(self, "words", words)
        if any(len(row) != self.length for row in words):
            raise InvalidParameter(
                f"Expected every row of words to hold length={self.length} words, got "
                f"{sorted({len(row) for row in words})}."
            )
        if words and len(words) != self.rows:
            raise InvalidParameter(
                f"Expected words to hold {self.rows} rows under choice={self.choice!r} and sets={self.sets}, got "
                f"{len(words)}."
            )

    @property
    def rows(self) -> int:
        """Number of rows to choose from; 0 under "fresh"."""
        return {"fixed": 1, "sets": self.sets, "fresh": 0}[self.choice]

    @classmethod
    def from_dict(cls, fields: Any) -> PlainTokens:
        """Read and check plain values."""
        return cls(**_named(cls, fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """Method and hyperparameters. The defaults are the paper's: Adam at 6e-5, batches of 128, 4 epochs, 128 tokens.

    Args:
        method: "prompt": vectors before the input (Lester et al. 2021). "prefix": keys and values before those of every
            layer (Li and Liang 2021). "adapter": bottlenecks in every layer (Houlsby et al. 2019). "full": all weights
            of the backbone, which is frozen otherwise.
        reconstruction: Whether to reconstruct the plain tokens in training.
        prompt_length: Vectors of a prompt or prefix; None: 150 and 10, as in the paper.
        adapter_size: Width of an adapter.
        start: Initial prompt or prefix: "words" (random words of the backbone's vocabulary, or their keys and values:
            Li and Liang 2021, section 7.4) or "random".
        plain: Plain tokens.
        head_size: Hidden size c of the reconstruction head.
        reconstruction_weight: Factor of L_rec in the loss; the paper has 1.
        reconstruction_reduction: "sum" over the plain tokens, as in the paper's equation 7, or their "mean".
        pooling: Input of a classification head: the "mean" of the text's outputs, or the "first" output.
        learning_rate: Constant learning rate of Adam.
        batch_size: Texts per step.
        epochs: Largest number of passes over the texts.
        max_tokens: Longest text, in tokens; longer ones are truncated, counted and reported.
        privatize: "once": one release per training text for all epochs. "epoch": a new release in each epoch, each at
            the full price.
        patience: Stop when the validation loss did not fall for this many epochs, and keep the best; None: never.
        device: "auto", "cpu", "cuda", ...
        precision: "float32", or mixed precision in "bfloat16" or "float16".
        seed: Public seed of the order of texts, initial values and dropout.

    Examples:
        >>> settings = TuningSettings(method="prompt", plain=PlainTokens(length=10), patience=1)
        >>> tuner = RAPTPromptTuner(sanitizer, labels=labels, settings=settings)
    """

    method: Method = "prefix"
    reconstruction: bool = True
    prompt_length: int | None = None
    adapter_size: int = 64
    start: Literal["words", "random"] = "words"
    plain: PlainTokens = PlainTokens()
    head_size: int = 96
    reconstruction_weight: float = 1.0
    reconstruction_reduction: Literal["sum", "mean"] = "sum"
    pooling: Literal["mean", "first"] = "mean"
    learning_rate: float = 6e-5
    batch_size: int = 128
    epochs: int = 4
    max_tokens: int = 128
    privatize: Literal["once", "epoch"] = "once"
    patience: int | None = None
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        validate.one_of("method", self.method, get_args(Method))
        validate.instance("plain", self.plain, PlainTokens, "PlainTokens(...)")
        validate.one_of("reconstruction", self.reconstruction, (True, False))
        if self.reconstruction and not self.plain.length:
            raise InvalidParameter(
                "Expected plain.length=0 only with reconstruction=False: there is nothing to reconstruct."
            )
        for name in ("adapter_size", "head_size", "batch_size", "epochs", "max_tokens"):
            validate.integer(name, getattr(self, name), at_least=1)
        for name in ("prompt_length", "patience"):
            if getattr(self, name) is not None:
                validate.integer(name, getattr(self, name), at_least=1)
        validate.integer("seed", self.seed, at_least=0, at_most=_LARGEST_SEED)
        check_device(self.device)
        validate.number("learning_rate", self.learning_rate, above=0.0)
        validate.number("reconstruction_weight", self.reconstruction_weight, at_least=0.0)
        for name, allowed in _CHOICES.items():
            validate.one_of(name, getattr(self, name), allowed)

    @property
    def virtual_tokens(self) -> int:
        """Number of vectors of the prompt or prefix; 0 for other methods."""
        if self.method not in _PROMPT_LENGTH:
            return 0
        return _PROMPT_LENGTH[self.method] if self.prompt_length is None else self.prompt_length

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fields = dataclasses.asdict(self)
        fields["plain"]["words"] = [list(row) for row in self.plain.words]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TuningSettings:
        """Read a result of :meth:`to_dict`."""
        values = _named(cls, fields)
        return cls(**{**values, "plain": PlainTokens.from_dict(values["plain"])})

    def differences(self, other: TuningSettings) -> list[str]:
        """Names of the fields in which two settings differ, except the device."""
        mine, its = self.to_dict(), other.to_dict()
        return sorted(name for name in mine if name != "device" and mine[name] != its[name])


def check_device(device: object) -> None:
    """Refuse other types, without torch."""
    validate.instance("device", device, str, "a str, such as 'auto', 'cpu' or 'cuda:0'", "Give its name.")


def _named(kind: type, fields: Any) -> Mapping[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(fields, Mapping) or set(fields) != names:
        got = sorted(map(str, fields)) if isinstance(fields, Mapping) else type(fields).__name__
        raise InvalidParameter(
            f"Expected settings with the fields {sorted(names)}, got {got}. They were written by another version."
        )
    return fields
