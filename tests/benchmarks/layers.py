"""What tuning does to representations: their distance layer by layer, and a map of them in the plane."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from langchain_dp.rapt.tuning import PredictionRequest, RAPTProvider
from langchain_dp.rapt.tuning.batches import collate

Floats = NDArray[np.float64]


def layer_representations(provider: RAPTProvider, request: PredictionRequest) -> Floats:
    """Mean activation of every text in every layer, inputs first: (layers + 1, texts, hidden size)."""
    rows, model, size = provider.rows(request), provider.model, provider.settings.batch_size
    model.eval()
    found: list[Any] = []
    with torch.no_grad(), _every_layer(model.body) as states:
        for start in range(0, len(rows), size):
            batch = collate(rows[start : start + size], provider.backbone.pad).to(provider.device)
            model.activations(batch)
            layers = torch.stack(states.pop())[:, :, model.virtual :].float()
            weight = batch.text[None, :, :, None].to(layers.dtype)
            found.append(((layers * weight).sum(dim=2) / weight.sum(dim=2)).cpu().numpy())
    return np.concatenate(found, axis=1).astype(np.float64)


@contextlib.contextmanager
def _every_layer(body: Any) -> Iterator[list[Any]]:
    """Keep the states of every layer whenever the body runs."""
    states: list[Any] = []
    handles = (
        body.register_forward_pre_hook(
            lambda module, args, how: (args, {**how, "output_hidden_states": True}), with_kwargs=True
        ),
        body.register_forward_hook(lambda module, args, out: states.append(out.hidden_states)),
    )
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def layer_distances(one: Floats, other: Floats) -> list[float]:
    """Average distance of the same texts' representations in two models, layer by layer (the paper's Figure 5).

    In each layer the representations of both are projected onto their two common principal components.
    """
    distances = []
    for mine, its in zip(one, other, strict=True):
        both = np.concatenate([mine, its])
        axes = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)[2][:2]
        distances.append(float(np.linalg.norm((mine - its) @ axes.T, axis=1).mean()))
    return distances


def attribute_map(representations: Floats, *, seed: int) -> Floats:
    """Map representations, (texts, hidden size), into the plane by t-SNE (the paper's Figure 6)."""
    from sklearn.manifold import TSNE

    placed = TSNE(perplexity=30.0, random_state=seed, init="pca").fit_transform(representations)
    return np.asarray(placed, dtype=np.float64)
