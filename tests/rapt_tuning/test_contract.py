"""What every method must do with every family of backbones: learn what it may, and leave the rest alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rapt_tuning import tiny

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import Backbone, PredictionRequest
from langchain_dp.rapt.tuning.batches import Assembler, Batch, collate
from langchain_dp.rapt.tuning.model import TunedModel
from langchain_dp.rapt.tuning.provider import label_words

METHODS = ("prompt", "prefix", "adapter", "full")
PLAIN = [[9, 10, 11, 12], [13, 14, 15, 16]]
TEXTS = [[6, 7, 8, 9, 10], [11, 12]]
TARGETS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])


def built(
    family: str, method: str, *, verbalized: bool = False, reconstruct: int = 20, **changes: Any
) -> tuple[TunedModel, Batch, Backbone]:
    base = tiny.backbone(family)
    settings = tiny.settings(method=method, **changes)
    words = label_words(base, tiny.LABELS, tiny.VERBALIZER) if verbalized else None
    own = copy.deepcopy(base)
    model = TunedModel(own, settings, labels=2, words=words, reconstruct=reconstruct).eval()
    template = "it was {mask}" if verbalized else None
    rows, _ = Assembler(own, max_tokens=12, plain_length=4, virtual=settings.virtual_tokens, template=template).rows(
        PredictionRequest("tokens", PLAIN, TEXTS)
    )
    return model, collate(rows, own.pad), base


@pytest.mark.parametrize("verbalized", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_may_learn_has_a_gradient_and_nothing_else_moves(family: str, method: str, verbalized: bool) -> None:
    """If it breaks, a prompt never learns (its gradient is cut off), or a step moves the frozen backbone."""
    model, batch, base = built(family, method, verbalized=verbalized)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    learned = model.learned()
    optimizer = torch.optim.Adam(learned.values(), lr=0.01)
    for _ in range(2):  # the second half of an adapter starts at 0, so that its first half waits for one step
        optimizer.zero_grad()
        model.losses(batch, torch.tensor([0, 1]), TARGETS).total.backward()
        optimizer.step()
    heads = {name for name in learned if name.startswith(("head.", "reconstruction."))}
    rest = set(learned) - heads
    assert heads, "the heads learn under every method"
    assert rest, "something of the method learns"
    if method == "full":
        assert any(not torch.equal(before[name], dict(model.named_parameters())[name]) for name in rest)
        return
    for name in learned:
        gradient = learned[name].grad
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name
    frozen = set(before) - set(learned)
    assert len(frozen) > 10
    for name, tensor in model.named_parameters():
        if name in frozen:
            assert torch.equal(tensor, before[name]), name
    if method != "adapter":  # an adapter stands around the projections, under their names
        original = base.model.state_dict()
        assert all(torch.equal(model.backbone.model.state_dict()[name], original[name]) for name in original)


@pytest.mark.parametrize("method", ["prompt", "prefix"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_vector_of_a_prompt_or_prefix_in_every_layer_is_used(family: str, method: str) -> None:
    """If it breaks, part of a prefix reaches no token: one layer, or the keys, are left out."""
    model, batch, _ = built(family, method, reconstruct=0)
    model.logits(batch, model.activations(batch)).square().sum().backward()
    grown = {name: tensor.grad for name, tensor in model.learned().items() if not name.startswith("head.")}
    [gradient] = [one for one in grown.values() if one is not None]
    if method == "prefix":  # (N, layers x key or value x width)
        gradient = gradient.reshape(3, 4, 16)
    assert (gradient.abs().sum(dim=-1) > 0).all()


@pytest.mark.parametrize("method", ["prompt", "prefix", "adapter"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_activations_are_those_of_the_tokens(family: str, method: str) -> None:
    """If it breaks, reconstruction and pooling read the outputs of the wrong tokens (a prompt shifts them)."""
    model, batch, base = built(family, method)
    states = model.activations(batch)
    assert states.shape == (2, batch.ids.shape[1], 16)
    assert (batch.ids.gather(1, batch.plain) == torch.tensor(PLAIN)).all()
    assert [row[text].tolist() for row, text in zip(batch.ids, batch.text, strict=True)] == TEXTS
    if method == "adapter":  # at first it changes nothing
        plain = base.encoder.eval()(input_ids=batch.ids, attention_mask=batch.attended).last_hidden_state
        assert torch.allclose(states, plain, atol=1e-6)
    if method == "prompt":
        with torch.no_grad():
            table = base.embedding
            learned = model.body.prompt_encoder["default"].embedding.weight
            joined = torch.cat([learned.expand(2, -1, -1), table(batch.ids)], dim=1)
            mask = torch.cat([torch.ones(2, 3), batch.attended], dim=1)
            wanted = base.encoder.eval()(inputs_embeds=joined, attention_mask=mask).last_hidden_state[:, 3:]
        real = batch.attended.bool()
        assert torch.allclose(states[real], wanted[real], atol=1e-5)
        assert {tuple(row.tolist()) for row in learned} <= {tuple(row.tolist()) for row in table.weight}, "words"


@pytest.mark.parametrize("verbalized", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_an_answer_depends_on_its_own_text_alone(family: str, verbalized: bool) -> None:
    """If it breaks, padding, the rest of the batch, or plain tokens, reach an answer."""
    model, batch, _ = built(family, "prefix", verbalized=verbalized)
    length = int(batch.attended[1].sum())
    alone = Batch(
        batch.ids[1:, :length], batch.attended[1:, :length], batch.text[1:, :length], batch.plain[1:], batch.mask[1:]
    )
    states = model.activations(batch).detach()
    together = model.logits(batch, states)
    assert torch.allclose(model.logits(alone, model.activations(alone)), together[1:], atol=1e-5)
    if not verbalized:
        other = torch.where(batch.text[:, :, None], states, states + 7.0)
        assert torch.allclose(together, model.logits(batch, other), atol=1e-5)
        moved = torch.where(batch.text[:, :, None], states + torch.linspace(0, 7, 16), states)
        assert not torch.allclose(together, model.logits(batch, moved), atol=1e-3)


def test_the_loss_is_the_papers() -> None:
    """If it breaks, L is not L_task + L_rec: a wrong sum over plain tokens, or a wrong weight."""
    for reduction, weight in (("sum", 1.0), ("mean", 1.0), ("sum", 0.5)):
        model, batch, _ = built("bert", "prefix", reconstruction_reduction=reduction, reconstruction_weight=weight)
        losses = model.losses(batch, torch.tensor([0, 1]), TARGETS)
        states = model.activations(batch)
        chances = model.reconstruction(states).log_softmax(dim=-1)
        each = [chances[row, batch.plain[row, i], TARGETS[row, i]].item() for row in range(2) for i in range(4)]
        by_hand = -sum(each) / (2 if reduction == "sum" else 8)
        task = torch.nn.functional.cross_entropy(model.logits(batch, states), torch.tensor([0, 1]))
        assert losses.total.item() == pytest.approx(task.item() + weight * by_hand, rel=1e-5)
        assert losses.reconstruction == pytest.approx(by_hand, rel=1e-5)
        assert [tuple(p.shape) for p in model.reconstruction.parameters()] == [(6, 16), (20, 6)], "W2, W1"


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_the_longest_input_fits_and_a_longer_one_is_refused(family: str, method: str) -> None:
    """If it breaks, the positions of a family are counted wrongly (RoBERTa's begin behind the padding's)."""
    base = tiny.backbone(family)
    most = base.positions - 4 - (3 if method in ("prompt", "prefix") else 0) - 2
    rows = tiny.examples(8)
    rows[0]["text"] = " ".join(["movie"] * 100)
    report = tiny.tuner(base, method=method, max_tokens=most, epochs=1).fit(rows, progress=False).report
    assert report.truncated == 1
    with pytest.raises(InvalidParameter, match=rf"max_tokens={most + 1} and 4 plain tokens to fit into {most + 4}"):
        tiny.tuner(base, method=method, max_tokens=most + 1)
