"""RAPT: claims, Tables 1, 4, 5 and 7 and Figures 3 to 5 of the paper beside ours."""

# ruff: noqa: E501  # one line for each line of a table
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduce_claims import Check, above, beats, both, claim, untested
from reproduce_page import Line, Paper, Table
from reproduce_rows import TUNING_DEFAULTS, Cell, Run

LENGTHS = {"prefix": 10, "prompt": 20}
"""Learned vectors."""
REST: dict[str, Any] = {
    **{"rows": 2_000, "tokens": 32, "batch": 16, "epochs": 2, "choice": "fresh", "reduction": "mean"},
    **{"mechanism": "exponential", **TUNING_DEFAULTS},
}
REPLACEMENTS = (0.3, 0.15, 0.1)
RATES = ("0.001", "0.003", "0.01")
TUNED = {
    "prefix": Run("bench_tuning.py", "tuning.jsonl", ("--methods", "prefix"), 120),
    "prompt": Run("bench_tuning.py", "tuning.jsonl", ("--methods", "prompt", "--rates", *RATES), 150),
}
"""All arms at all replacements, each arm at the rate that was best on dev rows."""
RATE = "0.03"
"""The rate that these runs found for a prefix on privatized texts, which the runs below take."""
CLEAR = 0.75
"""The least accuracy of the clear arm of a fair trial."""
FROZEN_ARMS = ("clear", "untuned", "privatized", "plain", "reconstruction sum", "reconstruction mean")
"""Arms of bench_frozen_head."""


def again(arm: str, *options: str, minutes: int, replacements: Sequence[float] = (0.15,)) -> Run:
    """Prefix tuning of one arm at its rate, with one change."""
    shares = map(str, replacements)
    base = ("--methods", "prefix", "--replacements", *shares, "--rates", RATE, "--arms", arm)
    return Run("bench_tuning.py", "tuning.jsonl", (*base, *options), minutes)


def cell(method: str, arm: str, replacement: float, value: str = "test", length: int | None = None) -> Cell:
    """Accuracy on privatized test rows, or another figure, of one arm under a trained head."""
    where = {**REST, "method": method, "arm": arm, "replacement": replacement, "prompt_length": LENGTHS[method]}
    run = TUNED[method]
    if length not in (None, LENGTHS[method]):
        where["prompt_length"] = length
        run = again(arm, "--prompt-length", str(length), minutes=30, replacements=REPLACEMENTS)
    return Cell(run, where, value, kind="percent" if value == "test" else "number")


def frozen(task: str, arm: str) -> Cell:
    """Accuracy of an arm of bench_frozen_head."""
    return Cell(
        Run("bench_frozen_head.py", "rapt_frozen.jsonl", ("--task", task)), {"task": task, "arm": arm}, "accuracy"
    )


def first_frozen(method: str, arm: str) -> Cell:
    """Accuracy of an arm of the first runs under a frozen head, whose model no prompt could use."""
    return Cell(Run("bench_tuning.py", "tuning.jsonl"), {"backbone": "masked", "method": method, "arm": arm}, "test")


_GLOVE = again("reconstruction", "--ablations", "--changes", "table-4", minutes=15)
_PARTS = again("reconstruction", "--ablations", "--changes", "figure-4b", minutes=30)
_WHERE = {**REST, "method": "prefix", "arm": "reconstruction", "replacement": 0.15, "prompt_length": LENGTHS["prefix"]}


def embedding(table: str, value: str = "test") -> Cell:
    """A figure of reconstruction where words are privatized by another table of vectors."""
    run = TUNED["prefix"] if table == "minilm" else _GLOVE
    return Cell(run, {**_WHERE, "table": table}, value, kind="percent" if value == "test" else "number")


def longer(tokens: int) -> Cell:
    """Accuracy of reconstruction with so many plain tokens."""
    return Cell(_PARTS, {**_WHERE, "plain_length": tokens}, "test")


_SHOWN = Run("bench_layers.py", "layers.jsonl", ("--map",), 150)
_HALF = {"replacement": 0.5, "rows": 2_000}


def told(method: str, arm: str, value: str) -> Cell:
    """The share of authors whose gender an attacker guesses from a tuned model, or the accuracy of that model."""
    return Cell(_SHOWN, {**_HALF, "method": method, "arm": arm}, value)


def apart(method: str, arm: str, layer: int) -> Cell:
    """Distance of the representations of a tuned model from those of one that was tuned in clear."""
    return Cell(_SHOWN, {**_HALF, "method": method, "pair": f"{arm}, clear"}, f"layer {layer}", kind="number")


_INVERTED = {
    "exponential": "inversion, words (exponential, map)",
    "metric Laplace": "inversion, words (laplace, map)",
    "noisy vectors": "inversion, noisy vectors (map)",
}


def inverted(name: str, share: float, value: str = "rate") -> Cell:
    """Share of the words of 120 reviews that an attacker with word frequencies guesses."""
    where = {"piece": "inversion", "key": ["trustpilot", share], "name": _INVERTED[name]}
    return Cell(Run("bench_attacks.py", "attacks.jsonl", ("--pieces", "inversion"), 20), where, value, seeds=(1,))


# ------------------------------------------------------------------------------------------------------------- checks


def _clear(method: str) -> Check:
    return above(cell(method, "clear", 0.0), CLEAR)


def _loss(method: str) -> Check:
    return beats(cell(method, "clear", 0.0), cell(method, "privatized", 0.15))


def _lower(method: str) -> Check:
    return beats(told(method, "clear", "test"), told(method, "privatized", "test"))


def _frozen_clear(task: str) -> Check:
    return above(frozen(task, "clear"), CLEAR)


def _frozen_loss(task: str) -> Check:
    return both(_frozen_clear(task), beats(frozen(task, "clear"), frozen(task, "privatized")))


def _gender(method: str) -> Check:
    return beats(told(method, "clear", "gender"), told(method, "clear", "chance"))


def _words(name: str) -> Check:
    return beats(inverted(name, 0.1), inverted(name, 0.1, "chance"))


_RECONSTRUCTS = beats(cell("prefix", "reconstruction", 0.15), cell("prefix", "privatized", 0.15))
_METHODS = {"prompt": "Prompt", "prefix": "Prefix"}
_FROZEN = {"sst2": "SST-2", "amazon": "Amazon", "agnews": "AGNews"}
_TABLE_1 = {  # clear arms: Table 6
    ("prompt", "clear"): ("88.3",) * 3,
    ("prompt", "privatized"): ("47.1", "49.4", "50.2"),
    ("prompt", "reconstruction"): ("48.8", "63.8", "64.7"),
    ("prefix", "clear"): ("90.6",) * 3,
    ("prefix", "privatized"): ("48.3", "49.1", "52.6"),
    ("prefix", "reconstruction"): ("49.8", "76.1", "87.2"),
}
_LEVELS = ("eta 75, 0.3 replaced", "eta 125, 0.15 replaced", "eta 175, 0.1 replaced")
_ABOVE, _GAIN = "clear arm above 75", "gain by reconstruction"

TABLES = (
    Table(
        "rapt-1-frozen", "Table 1 under a frozen head", "Accuracy in percent, with half of the words replaced here and eta 125 in the paper.",
        ("paper: SST, prompt", "SST, prefix", *_FROZEN.values()),
        tuple(
            Line(arm, (*(_TABLE_1.get((method, arm.removesuffix(" sum")), ("",) * 3)[1] for method in _METHODS), *(frozen(task, arm) for task in _FROZEN)))
            for arm in FROZEN_ARMS
        ),
        (_ABOVE, {name: _frozen_clear(task) for task, name in _FROZEN.items()}),
    ),
    Table(
        "rapt-1", "Table 1 under a trained head", "Accuracy in percent on SST-2. Columns name the paper's eta and our share of replaced words.",
        _LEVELS,
        tuple(
            line
            for method, name in _METHODS.items()
            for arm in ("clear", "privatized", "plain", "reconstruction")
            for line in (
                *([Line(f"{name}, {arm}: paper", _TABLE_1[method, arm])] if (method, arm) in _TABLE_1 else []),
                Line(f"{name}, {arm}", tuple(cell(method, arm, 0.0 if arm == "clear" else level) for level in REPLACEMENTS)),
            )
        ),
        (_ABOVE, {name: _clear(method) for method, name in _METHODS.items()}),
        "The paper's Table 9 prints 48.8, 56.7 and 75.3 for prompts with reconstruction.",
    ),
    Table(
        "rapt-4", "Table 4: other vectors for privatizing", "Share of replaced words, eta, and accuracy in percent on SST-2 of a prefix with reconstruction.",
        ("share", "eta", "accuracy"),
        (
            Line("BERT: paper", ("0.14", "150", "86.4")),
            Line("RoBERTa: paper", ("0.14", "50", "84.6")),
            *(Line(name, tuple(embedding(table, value) for value in ("replacement", "eta", "test"))) for table, name in (("minilm", "MiniLM"), ("glove", "GloVe"))),
        ),
        (_ABOVE, {"": _clear("prefix")}),
        "BioBERT, GPT-2 and T5 are left out.",
    ),
    Table(
        "rapt-figure-3a", "Figure 3a: words guessed from privatized text", "Percent of the words of 120 reviews that an attacker with public word frequencies guesses.",
        ("0.1 replaced", "0.5 replaced", "0.9 replaced", "most frequent word"),
        tuple(Line(name, (*(inverted(name, share) for share in (0.1, 0.5, 0.9)), inverted(name, 0.5, "chance"))) for name in _INVERTED),
        ("guess above the most frequent word at 0.1", {name: _words(name) for name in _INVERTED}),
    ),
    Table(
        "rapt-figure-3", "Figures 3b and 3c: gender of authors", "Percent of 1,000 authors whose gender a network guesses from the last layer, after 2,000 others.",
        ("gender guessed", "more frequent gender", "accuracy on SST-2"),
        tuple(
            Line(f"{name}, {arm}", tuple(told(method, arm, value) for value in ("gender", "chance", "test")))
            for method, name in _METHODS.items()
            for arm in ("clear", "privatized", "reconstruction")
        ),
        ("guess above the more frequent gender", {name: _gender(method) for method, name in _METHODS.items()}),
    ),
    Table(
        "rapt-figure-5", "Figure 5: representations, layer by layer",
        "Mean distance from the representations of a model tuned in clear, for 500 test rows, in the plane of the two largest principal components.",
        tuple(f"layer {number}" for number in (0, 3, 6)),
        tuple(
            Line(f"{name}, {arm}", tuple(apart(method, arm, number) for number in (0, 3, 6)))
            for method, name in _METHODS.items()
            for arm in ("privatized", "reconstruction")
        ),
        ("loss of accuracy by privatizing", {name: _lower(method) for method, name in _METHODS.items()}),
        picture=(
            "Distances in the layers of models tuned by a prefix, and reviews laid out by the last layer of each of them, colored by the gender of their authors",
            "../cookbook/pictures/layers.svg",
        ),
    ),
)  # fmt: skip

CLAIMS = (
    claim("Table 1", "prompts on privatized texts do poorly: clear minus privatized is above 0 (frozen head)", _ABOVE, _FROZEN,
          _frozen_clear, lambda task: frozen(task, "clear"), lambda task: frozen(task, "privatized")),
    *(
        claim("Table 1", f"reconstruction minus privatized is above 0 (frozen head, loss {kind})", f"{_ABOVE}, privatized below it", _FROZEN,
              _frozen_loss, lambda task, k=kind: frozen(task, f"reconstruction {k}"), lambda task: frozen(task, "privatized"))
        for kind in ("sum", "mean")
    ),
    claim("Table 1", "the same, first runs under a frozen head", _ABOVE, _METHODS, lambda method: above(first_frozen(method, "clear"), CLEAR),
          lambda method: first_frozen(method, "reconstruction"), lambda method: first_frozen(method, "privatized")),
    claim("Table 1", "clear minus privatized is above 0 (trained head, 0.15 replaced)", _ABOVE, _METHODS, _clear,
          lambda method: cell(method, "clear", 0.0), lambda method: cell(method, "privatized", 0.15)),
    claim("Table 1", "reconstruction minus privatized is above 0 (trained head, loss mean)", "loss of accuracy by privatizing", _METHODS, _loss,
          lambda method: cell(method, "reconstruction", 0.15), lambda method: cell(method, "privatized", 0.15)),
    untested("Tables 2, 3, 6, 9", "larger models, CAPE and DPNR, reconstruction in clear, adapters and full tuning", "not run"),
    claim("Table 4", "other vectors do as well: GloVe minus MiniLM is above -2", _ABOVE, {"": ""}, lambda _: _clear("prefix"),
          lambda _: embedding("glove"), lambda _: embedding("minilm"), -0.02),
    claim("Table 5, Figure 4", "longer plain tokens help: 60 minus 10 is above 0, and their choice does not matter", _GAIN, {"": ""},
          lambda _: _RECONSTRUCTS, lambda _: longer(60), lambda _: longer(10)),
    claim("Table 7", "a longer prefix helps: 100 minus 10 vectors is above 0, 0.15 replaced", _ABOVE, ("privatized", "reconstruction"),
          lambda _: _clear("prefix"), lambda arm: cell("prefix", arm, 0.15, length=100), lambda arm: cell("prefix", arm, 0.15)),
    claim("Figure 3a", "more replaced words, fewer guessed: 0.1 minus 0.5 replaced is above 0", "guess above the most frequent word",
          tuple(_INVERTED), _words, lambda name: inverted(name, 0.1), lambda name: inverted(name, 0.5)),
    claim("Figures 3b, 3c", "privatizing hides gender: guess in clear minus privatized is above 0", "guess above the more frequent gender",
          _METHODS, _gender, lambda method: told(method, "clear", "gender"), lambda method: told(method, "privatized", "gender")),
    claim("Figures 3b, 3c", "reconstruction hides more: guess privatized minus reconstruction is above 0", "guess above the more frequent gender",
          _METHODS, _gender, lambda method: told(method, "privatized", "gender"), lambda method: told(method, "reconstruction", "gender")),
    claim("Figure 5", "reconstruction comes closer to clear in the last layer: distance privatized minus reconstruction is above 0",
          "loss of accuracy by privatizing", _METHODS, _lower, lambda method: apart(method, "privatized", 6), lambda method: apart(method, "reconstruction", 6)),
)  # fmt: skip

PAPER = Paper("RAPT", CLAIMS, TABLES)
