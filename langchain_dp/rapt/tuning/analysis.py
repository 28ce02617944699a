"""What tuning does to representations: their distance layer by layer, and whether they show a private attribute."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp._util.extras import needs
from langchain_dp._util.pictures import new_figure
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.batches import collate
from langchain_dp.rapt.tuning.provider import RAPTProvider
from langchain_dp.rapt.tuning.wire import Request

Floats = NDArray[np.float64]


def layer_representations(provider: RAPTProvider, request: Request) -> Floats:
    """Mean activation of every text in every layer.

    Args:
        provider: A tuned model.
        request: Privatized texts, from the client of this model; clear ones for a model tuned without privatization.

    Returns:
        (layers + 1, texts, hidden size), the inputs of the first layer first.

    Raises:
        InvalidParameter: The request was not made for this model.

    Examples:
        >>> request = classifier.client.request(texts)
        >>> layers = layer_representations(classifier.provider, request)
        >>> layers[-1].shape  # of the last layer: (texts, hidden size)
    """
    rows = provider.rows(request)
    found = []
    size = provider.settings.batch_size
    provider.model.eval()
    for start in range(0, len(rows), size):
        batch = collate(rows[start : start + size], provider.backbone.pad).to(provider.device)
        with torch.no_grad():
            states = torch.stack(provider.model.activations(batch, every_layer=True)).float()
        weight = batch.text[None, :, :, None].to(states.dtype)
        found.append(((states * weight).sum(dim=2) / weight.sum(dim=2)).cpu().numpy())
    if not found:
        raise InvalidParameter("Expected a request with at least one text.")
    return np.concatenate(found, axis=1).astype(np.float64)


def layer_distances(one: Floats, other: Floats) -> Floats:
    """Average distance of the same texts' representations in two models, layer by layer (the paper's Figure 5).

    In each layer the representations of both are projected onto their two common principal components.

    Args:
        one: Of :func:`layer_representations`, (layers, texts, hidden size).
        other: The same texts in another model.

    Returns:
        One distance a layer.

    Raises:
        InvalidParameter: The shapes differ.

    Examples:
        >>> one = layer_representations(classifier.provider, classifier.client.request(texts))
        >>> other = layer_representations(baseline.provider, baseline.client.request(texts))
        >>> layer_distances(one, other)  # one number a layer
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 3:
        raise InvalidParameter(f"Expected representations of equal shapes, got {one.shape} and {other.shape}.")
    distances = []
    for mine, its in zip(one, other, strict=True):
        both = np.concatenate([mine, its])
        axes = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)[2][:2]
        distances.append(np.linalg.norm((mine - its) @ axes.T, axis=1).mean())
    return np.array(distances)


def attribute_map(representations: Floats, *, perplexity: float = 30.0, seed: int = 0) -> Floats:
    """A map of representations in the plane, by t-SNE (the paper's Figure 6).

    Args:
        representations: (texts, hidden size), such as the last layer of :func:`layer_representations`.
        perplexity: About how many neighbours a text has; below the number of texts.
        seed: Of the map.

    Returns:
        (texts, 2).

    Raises:
        InvalidParameter: A value is out of bounds.
        MissingExtra: scikit-learn is not installed.

    Examples:
        >>> layers = layer_representations(classifier.provider, classifier.client.request(texts))
        >>> points = attribute_map(layers[-1])
    """
    validate.number("perplexity", perplexity, above=0.0, below=float(len(representations)))
    with needs("attacks", "scikit-learn", why=" for t-SNE"):
        manifold: Any = importlib.import_module("sklearn.manifold")
    placed = manifold.TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(representations)
    return np.asarray(placed, dtype=np.float64)


def plot_layer_distances(
    distances: Mapping[str, Floats], path: str | PathLike[str], *, title: str | None = None
) -> None:
    """Write a picture of :func:`layer_distances`, one line a comparison.

    Args:
        distances: Distances of each comparison, under its name.
        path: File to write; its ending says the format.
        title: What stands above the picture; None: nothing.

    Raises:
        MissingExtra: matplotlib is not installed.

    Examples:
        >>> plot_layer_distances({"privatized and clear": layer_distances(one, other)}, "layers.png")
    """
    figure, axes = new_figure(6, 4)
    for name, values in distances.items():
        axes.plot(range(len(values)), values, marker="o", label=name)
    axes.set(xlabel="layer", ylabel="average distance", title=title or "")
    axes.legend()
    figure.savefig(path)


def plot_attribute_map(
    points: Floats, attribute: Sequence[str], path: str | PathLike[str], *, title: str | None = None
) -> None:
    """Write a picture of :func:`attribute_map`, coloured by an attribute that the texts' authors keep private.

    Args:
        points: Of :func:`attribute_map`.
        attribute: Value of each text.
        path: File to write; its ending says the format.
        title: What stands above the picture, such as the name of the model: two maps look alike. None: nothing.

    Raises:
        InvalidParameter: There are not as many values as points.
        MissingExtra: matplotlib is not installed.

    Examples:
        >>> plot_attribute_map(attribute_map(layers[-1]), genders, "map.png", title="privatized")
    """
    if len(points) != len(attribute):
        raise InvalidParameter(f"Expected as many values as points, got {len(attribute)} and {len(points)}.")
    figure, axes = new_figure(6, 4)
    values = np.array(attribute)
    for value in sorted(set(attribute)):
        chosen = points[values == value]
        axes.scatter(chosen[:, 0], chosen[:, 1], s=8, label=value)
    axes.set_title(title or "")
    axes.legend()
    figure.savefig(path)
