"""What all attacks report: intervals that cover, figures without text, pictures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from fakes.vocabularies import small
from scipy.stats import binom

import langchain_dp.attacks
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks import (
    AttackResult,
    attack_answers,
    find_leaks,
    infer_membership,
    invert_vectors,
    invert_words,
    leak_prompt,
    plot_attacks,
)
from langchain_dp.attacks.result import accuracy_bound, auc, auc_interval, ratio_interval
from langchain_dp.audit.report.results import reported_attacks, rows_of
from langchain_dp.errors import InvalidParameter


def result(name: str = "an attack", rate: float = 0.4) -> AttackResult:
    return AttackResult(
        name=name, rate=rate, interval=(rate - 0.1, rate + 0.1), baseline=0.2, n=50, measure="words guessed",
        interval_method="Clopper-Pearson", settings={"eta": 3.0, "table": "small"},
    )  # fmt: skip


def test_the_plain_figures_have_the_agreed_keys() -> None:
    """If it breaks, the report cannot read an attack, or what it prints cannot be stored as JSON."""
    figures = result().to_dict()
    assert list(figures) == ["name", "rate", "low", "high", "baseline", "n", "settings"]
    assert json.loads(json.dumps(figures)) == figures
    assert figures["settings"]["interval"] == "Clopper-Pearson"
    assert (figures["low"], figures["high"]) == (pytest.approx(0.3), 0.5)
    assert "0.400 (0.300 to 0.500" in str(result())


def test_the_report_reads_what_attacks_write(tmp_path: Path) -> None:
    """If it breaks, an operator's attacks cannot be shown beside the ledger they belong to."""
    given = [
        infer_membership({"m": ([1.0, 2.0], [0.0, 1.0])}),
        attack_answers(lambda data: str, [{"text": "a"}], [{"text": "b"}], questions=["x"], runs=10, epsilon=1.0),
        find_leaks("one two three", ["one two three"]),
        leak_prompt(str, ["one two three"]),
        invert_words(["the dog"], vocabulary=small(), eta=1.0),
        invert_vectors(["the dog"], vocabulary=small(), eta=1.0),
    ]
    path = tmp_path / "attacks.json"
    path.write_text(json.dumps([one.to_dict() for one in given]))
    read = reported_attacks(rows_of(path, "attacks"))
    assert [one.name for one in read] == [one.to_dict()["name"] for one in given]
    assert [one.rate for one in read] == [one.rate for one in given]
    assert not [value for one in read for value in one.settings.values() if "not shown" in str(value)]


def test_pictures_are_written(tmp_path: Path) -> None:
    """If it breaks, a picture is not written, or a wrong ending is a bare error of another library."""
    found = find_leaks("one two three four", ["one two three four"], name="my prompt")
    plot_attacks([result("first"), result("second", 0.8), found], tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text()
    assert all(name in text for name in ("first", "second", "my prompt"))
    with pytest.raises(InvalidParameter, match=r"'foo', to be one of .*png"):
        plot_attacks([found], tmp_path / "x.foo")


def test_every_exported_name_exists_and_none_is_heavy() -> None:
    """If it breaks, a name of the package is not there, or reading it loads a model library."""
    for name in langchain_dp.attacks.__all__:
        assert getattr(langchain_dp.attacks, name) is not None
    assert set(langchain_dp.attacks.__all__) <= set(dir(langchain_dp.attacks))
    code = (
        "import sys, langchain_dp.attacks as a; a.find_leaks; print('langchain_dp.rapt' in sys.modules); "
        "[getattr(a, n) for n in a.__all__]; print({'torch', 'transformers', 'sklearn', 'matplotlib'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\nset()\n"


def test_the_exact_interval_is_clopper_pearson() -> None:
    """If it breaks, the stated coverage of every rate is wrong: at its ends the tails must be 2.5% exactly."""
    for hits, runs in ((3, 20), (19, 20), (40, 100)):
        low, high = clopper_pearson(hits, runs)
        above = sum(math.comb(runs, k) * low**k * (1 - low) ** (runs - k) for k in range(hits, runs + 1))
        below = sum(math.comb(runs, k) * high**k * (1 - high) ** (runs - k) for k in range(hits + 1))
        assert (above, below) == (pytest.approx(0.025), pytest.approx(0.025))
    assert clopper_pearson(0, 10)[0] == 0
    assert clopper_pearson(10, 10)[1] == 1


def test_the_area_counts_pairs_and_ties_half() -> None:
    """If it breaks, an area under the curve is off, most of all where scores are rounded."""
    rng = np.random.default_rng(4)
    one, two = rng.integers(0, 5, 30).astype(float), rng.integers(1, 6, 20).astype(float)
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in one for b in two]
    assert auc(one, two) == pytest.approx(np.mean(pairs))
    assert auc(two, one) == pytest.approx(1 - np.mean(pairs))


@pytest.mark.statistical
@pytest.mark.parametrize("area", [0.5, 0.76, 0.95])
def test_the_interval_of_an_area_covers(area: float) -> None:
    """If it breaks, an area is claimed more or less surely than it is known.

    500 normal samples of 60 and 40: with 95% coverage fewer than 455 hits come about in 1 of 10^4 (binomial), and the
    interval at a third of the width must fall below. An area of 1 keeps an interval.
    """
    rng = np.random.default_rng(int(1000 * area))
    shift = math.sqrt(2) * NormalDist().inv_cdf(area)
    covered = narrow = 0
    for _ in range(500):
        value = auc(rng.normal(shift, 1, 60), rng.normal(0, 1, 40))
        low, high = auc_interval(value, 60, 40)
        covered += low <= area <= high
        narrow += value - (value - low) / 3 <= area <= value + (high - value) / 3
    assert covered >= 455
    assert narrow < 455
    low, high = auc_interval(1.0, 60, 40)
    assert 0.8 < low < 1.0 == high
    assert auc_interval(0.0, 60, 40)[0] == 0.0


def test_texts_are_what_is_independent() -> None:
    """If it breaks, words of one text count as independent, and the interval is far too narrow."""
    hits, runs = np.array([50.0, 0.0] * 10), np.full(20, 50.0)
    low, high = ratio_interval(hits, runs)
    assert low < 0.32 < 0.68 < high
    exact = clopper_pearson(500, 1000)
    assert exact[0] > 0.46
    assert ratio_interval(np.array([25.0]), np.array([50.0])) == clopper_pearson(0.5, 1)
    assert ratio_interval(np.zeros(5), np.full(5, 9.0)) == clopper_pearson(0, 5)
    few = np.arange(19.0)
    assert ratio_interval(few, np.full(19, 20.0)) == clopper_pearson(0.45 * 19, 19)
    assert ratio_interval(hits, runs) == (low, high)
    equal, unlike = ratio_interval(few, np.full(19, 20.0)), ratio_interval(few, np.array([200.0, *[20.0] * 18]))
    assert unlike[1] - unlike[0] > equal[1] - equal[0]


def test_texts_of_unlike_length_count_as_fewer() -> None:
    """If it breaks, "95%" holds 72% of the time: whole texts come back or not, and a few of them are most of the words.

    1,000 experiments at 95% fall below 900 with a chance under 1e-9.
    """
    rng = np.random.default_rng(3)
    for texts in (10, 19, 30):
        held = 0
        for _ in range(1000):
            runs = np.ceil(20 * rng.lognormal(0, 1.5, texts))
            low, high = ratio_interval(runs * (rng.random(texts) < 0.3), runs)
            held += low <= 0.3 <= high
        assert held >= 900, (texts, held)


@pytest.mark.parametrize(("texts", "share"), [(20, 0.15), (25, 0.125), (50, 0.06), (100, 0.965)])
def test_the_interval_of_whole_texts_covers(texts: int, share: float) -> None:
    """If it breaks, "95%" holds 85% of the time where texts leak or not. Exact: every outcome by its probability."""
    found = 0.0
    for hits in range(texts + 1):
        low, high = ratio_interval(np.repeat([1.0, 0.0], [hits, texts - hits]), np.ones(texts))
        found += binom.pmf(hits, texts, share) * (low <= share <= high)
    assert found >= 0.95


def test_an_area_of_a_few_scores_is_no_finding() -> None:
    """If it breaks, three members above three others, one draw in ten by chance, count as beyond chance."""
    low, high = auc_interval(1.0, 3, 3)
    assert low < 0.5 < high
    assert auc_interval(1.0, 1, 1)[0] < 0.05


def test_the_bound_on_telling_data_sets_apart_is_met_by_randomized_response() -> None:
    """If it breaks, an attack looks worse or better beside the promise than it is."""
    for epsilon in (0.0, 0.5, 3.0):
        assert accuracy_bound(epsilon, 0.0) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
        # A mechanism that says all with chance delta, and is randomized response otherwise.
        right = 0.1 + 0.9 * math.exp(epsilon) / (1 + math.exp(epsilon))
        assert accuracy_bound(epsilon, 0.1) == pytest.approx(right)
    assert accuracy_bound(800.0, 0.0) == 1.0
