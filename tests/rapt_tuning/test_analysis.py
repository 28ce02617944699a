"""Distances between the layers of two models, and maps of an attribute."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from rapt_tuning import tiny

from langchain_dp.errors import InvalidParameter, MissingExtra
from langchain_dp.rapt.tuning import (
    RAPTProvider,
    Request,
    attribute_map,
    layer_distances,
    layer_representations,
    plot_attribute_map,
    plot_layer_distances,
)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", ["prompt", "prefix"])
def test_representations_are_means_over_the_text(family: str, method: str) -> None:
    """If it breaks, plain tokens, padding or a prompt are part of what is compared."""
    made = tiny.tuner(tiny.backbone(family), method=method, epochs=1)
    provider = made.fit(tiny.examples(8), progress=False).provider
    assert isinstance(provider, RAPTProvider)
    request = made.client.request(["the movie was very good", "bad"])
    found = layer_representations(provider, request)
    assert found.shape == (3, 2, 16)
    alone = layer_representations(provider, type(request)(request.kind, request.plain[1:], request.inputs[1:]))
    assert np.allclose(found[:, 1:], alone, atol=1e-5)
    if family == "bert" and method == "prefix":  # without mixing, the first layer's input is a mean of word vectors
        assert not np.allclose(found[0], found[2])


def test_text_for_a_model_of_tokens_has_no_representation() -> None:
    """If it breaks, a request of another kind, perhaps a raw text, gets numbers that mean nothing."""
    provider = tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).provider
    assert isinstance(provider, RAPTProvider)
    with pytest.raises(InvalidParameter, match="kind 'tokens'"):
        layer_representations(provider, Request("text", [["the"] * 4], ["the movie was good"]))


def test_distances_are_those_of_the_projections() -> None:
    """If it breaks, a layer that is the same in two models is not at distance 0, or a shift is not seen."""
    coins = np.random.default_rng(0)
    one = coins.standard_normal((3, 40, 8))
    other = one.copy()
    other[1, :, 0] += 5.0  # far more than the texts differ: the first component
    other[2] = one[2][::-1]
    found = layer_distances(one, other)
    assert found[0] == pytest.approx(0.0, abs=1e-9)
    assert found[1] == pytest.approx(5.0, rel=0.1)
    assert found[2] > 1.0
    with pytest.raises(InvalidParameter, match="equal shapes"):
        layer_distances(one, other[:2])
    with pytest.raises(InvalidParameter, match="equal shapes"):
        layer_distances([1.0], [2.0])  # type: ignore[arg-type]  # wrong on purpose


def test_a_map_keeps_groups_apart(tmp_path: Path) -> None:
    """If it breaks, the picture of an attribute shows nothing of the representations."""
    coins = np.random.default_rng(0)
    groups = np.repeat([0, 1], 20)
    points = attribute_map(coins.standard_normal((40, 6)) + 20 * groups[:, None], perplexity=8)
    assert points.shape == (40, 2)
    middle = [points[groups == g].mean(axis=0) for g in (0, 1)]
    nearer = [
        np.linalg.norm(p - middle[g]) < np.linalg.norm(p - middle[1 - g]) for p, g in zip(points, groups, strict=True)
    ]
    assert all(nearer)
    with pytest.raises(InvalidParameter, match="perplexity"):
        attribute_map(points[:5])
    plot_attribute_map(points, ["f", "m"] * 20, tmp_path / "map.png")
    plot_layer_distances({"privatized": np.arange(3.0)}, tmp_path / "layers.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == (tmp_path / "layers.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InvalidParameter, match="as many values as points"):
        plot_attribute_map(points, ["f"], tmp_path / "map.png")


def test_a_picture_has_a_title(tmp_path: Path) -> None:
    """If it breaks, nobody knows which of two maps is that of the model in clear."""
    for title in ("tuned in clear", None):
        plot_attribute_map(np.zeros((2, 2)), ["f", "m"], tmp_path / "map.svg", title=title)
        plot_layer_distances({"privatized": np.arange(3.0)}, tmp_path / "layers.svg", title=title)
        for name in ("map.svg", "layers.svg"):  # text is drawn as outlines, under a comment
            assert ("<!-- tuned in clear -->" in (tmp_path / name).read_text(encoding="utf-8")) == bool(title)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it breaks, a missing optional package shows as somebody else's error."""
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"langchain-dp\[attacks\]"):
        attribute_map(np.zeros((40, 2)))
    with pytest.raises(MissingExtra, match=r"langchain-dp\[plot\]"):
        plot_layer_distances({}, tmp_path / "x.png")
