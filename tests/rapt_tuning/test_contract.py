"""What every method must do with every family of backbones: learn what it may, and leave the rest alone."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from rapt_tuning import tiny

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import Backbone, PredictionRequest
from langchain_dp.rapt.tuning.batches import Assembler, Batch, collate
from langchain_dp.rapt.tuning.model import KeyValuePrefix, TunedModel, self_attentions
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
    model = TunedModel(own, settings, labels=2, words=words, reconstruct=reconstruct)
    template = "it was {mask}" if verbalized and base.family == "encoder" else None
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
    model.eval()
    own = {name for name, _ in model.named_parameters()}
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    learned = model.learned()
    optimizer = torch.optim.Adam(learned.values(), lr=0.01)
    for _ in range(2):  # the second half of an adapter starts at 0, so that its first half waits for one step
        optimizer.zero_grad()
        model.losses(batch, torch.tensor([0, 1]), TARGETS).total.backward()
        optimizer.step()
    heads = {name for name in learned if name.startswith(("head.", "reconstruction."))}
    assert heads, "the heads learn under every method"
    rest = set(learned) - heads
    assert rest, "something of the method learns"
    if method == "full":
        assert any(not torch.equal(before[name], dict(model.named_parameters())[name]) for name in rest)
        return
    for name in [*rest, *heads]:
        gradient = learned[name].grad
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name
    frozen = own - set(learned)
    assert len(frozen) > 10
    for name, tensor in model.named_parameters():
        if name in frozen:
            assert torch.equal(tensor, before[name]), name
    if method != "adapter":  # an adapter stands around the projections, under their names
        found = model.backbone.model.state_dict()
        original = base.model.state_dict()
        assert all(torch.equal(found[name], original[name]) for name in original)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_vector_of_a_prompt_or_prefix_in_every_layer_is_used(family: str) -> None:
    """If it breaks, part of a prefix reaches no token: one layer, the keys, or T5's encoder are left out."""
    for method in ("prompt", "prefix"):
        model, batch, _ = built(family, method, reconstruct=0)
        model.eval()
        model.logits(batch, model.activations(batch)).square().sum().backward()
        [gradient] = [
            tensor.grad
            for name, tensor in model.learned().items()
            if not name.startswith("head.") and tensor.grad is not None
        ]
        if method == "prompt" or family == "t5":  # (N, width); (layers, key or value, heads, N, size)
            assert (gradient.abs().sum(dim=-1) > 0).all()
        else:  # (N, layers x key or value x width)
            assert (gradient.reshape(3, 4, 16).abs().sum(dim=-1) > 0).all()


def test_t5_learns_a_prefix_of_its_decoder_where_the_decoder_answers() -> None:
    """If it breaks, the decoder's own prefix is built but never attended to."""
    model, batch, _ = built("t5", "prefix", verbalized=True)
    model.eval()
    model.losses(batch, torch.tensor([0, 1]), TARGETS).total.backward()
    assert len(model.prefixes) == 2
    for prefix in model.prefixes:
        gradient = prefix.values.grad
        assert gradient is not None
        # One decoded token attends to the prefix and itself: keys matter only because there are several.
        assert (gradient.abs().amax(dim=(2, 3, 4)) > 0).all()


def test_our_prefix_is_that_of_peft() -> None:
    """If it breaks, our way into attention modules, needed for T5, masks, places or mixes keys and values wrongly."""
    base = tiny.backbone("bert", words=False)
    mine, its = copy.deepcopy(base.model).eval(), copy.deepcopy(base.model)
    wrapped = peft.get_peft_model(
        its, peft.PrefixTuningConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=3)
    ).eval()
    weights = wrapped.prompt_encoder["default"].embedding.weight
    prefix = KeyValuePrefix(self_attentions(mine), length=3, heads=2, size=8)
    halves = weights.detach().reshape(3, 4, 16)
    prefix.fill([(halves[:, 0], halves[:, 1]), (halves[:, 2], halves[:, 3])])
    ids = torch.tensor([[2, 6, 7, 8, 3], [2, 9, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        # peft counts positions from behind the prefix, since the model knows of its cache.
        found = mine(input_ids=ids, attention_mask=mask, position_ids=torch.arange(3, 8)[None]).last_hidden_state
        wanted = wrapped(input_ids=ids, attention_mask=mask).last_hidden_state
    real = mask.bool()
    assert torch.allclose(found[real], wanted[real], atol=1e-6)
    with torch.no_grad():
        prefix.values.zero_()
        without = mine(input_ids=ids, attention_mask=mask, position_ids=torch.arange(3, 8)[None]).last_hidden_state
    assert not torch.allclose(without[real], wanted[real], atol=1e-3), "the prefix must matter"


def test_a_prefix_leaves_relative_positions_alone() -> None:
    """If it breaks, a prefix shifts T5's distances between words."""
    base = tiny.backbone("t5")
    stack = base.encoder.eval()
    ids = torch.tensor([[6, 7, 8, 9, 10, 1]])
    with torch.no_grad():
        alone = stack(input_ids=ids).last_hidden_state
        prefix = KeyValuePrefix(self_attentions(stack), length=3, heads=2, size=8)
        with_it = stack(input_ids=ids).last_hidden_state
        bias = self_attentions(stack)[0]
        # So far away in score that nobody attends to it: what is left is the model without a prefix.
        seen: list[Any] = []
        handle = bias.register_forward_hook(lambda module, args, output: seen.append(output[1]))
        stack(input_ids=ids)
        handle.remove()
    assert not torch.allclose(alone, with_it, atol=1e-4)
    assert seen[0].shape[-1] == 9
    assert torch.equal(seen[0][..., 3:], bias.compute_bias(6, 6))
    assert prefix.length == 3


@pytest.mark.parametrize("method", ["prompt", "prefix", "adapter"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_activations_are_those_of_the_tokens(family: str, method: str) -> None:
    """If it breaks, reconstruction and pooling read the outputs of the wrong tokens (a prompt shifts them)."""
    model, batch, base = built(family, method)
    model.eval()
    states = model.activations(batch)
    assert states.shape == (2, batch.ids.shape[1], 16)
    assert (batch.ids.gather(1, batch.plain) == torch.tensor(PLAIN)).all()
    assert batch.ids[0][batch.text[0]].tolist() == TEXTS[0]
    assert batch.ids[1][batch.text[1]].tolist() == TEXTS[1]
    if method == "adapter":  # at first it changes nothing
        plain = base.encoder.eval()(input_ids=batch.ids, attention_mask=batch.attended).last_hidden_state
        assert torch.allclose(states, plain, atol=1e-6)
    if method == "prompt":
        with torch.no_grad():
            table = base.embedding
            vectors = table(batch.ids)
            if family == "t5":
                assert model.prompt is not None
                learned = model.prompt.weight
            else:
                learned = model.body.prompt_encoder["default"].embedding.weight
            joined = torch.cat([learned.expand(2, -1, -1), vectors], dim=1)
            mask = torch.cat([torch.ones(2, 3), batch.attended], dim=1)
            wanted = base.encoder.eval()(inputs_embeds=joined, attention_mask=mask).last_hidden_state[:, 3:]
        real = batch.attended.bool()
        assert torch.allclose(states[real], wanted[real], atol=1e-5)
        assert {tuple(row.tolist()) for row in learned} <= {tuple(row.tolist()) for row in table.weight}, "start=words"


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("verbalized", [False, True])
def test_padding_does_not_reach_a_text(family: str, verbalized: bool) -> None:
    """If it breaks, an answer depends on what else is in the batch."""
    model, batch, _ = built(family, "prefix", verbalized=verbalized)
    model.eval()
    length = int(batch.attended[1].sum())
    alone = Batch(
        batch.ids[1:, :length], batch.attended[1:, :length], batch.text[1:, :length], batch.plain[1:], batch.mask[1:]
    )
    together = model.logits(batch, model.activations(batch))[1:]
    assert torch.allclose(model.logits(alone, model.activations(alone)), together, atol=1e-5)


@pytest.mark.parametrize(("family", "verbalized"), [("bert", False), ("roberta", False), ("t5", False), ("t5", True)])
def test_labels_are_read_from_the_text_only(family: str, verbalized: bool) -> None:
    """If it breaks, a head or T5's decoder reads plain tokens, which say nothing of the label."""
    model, batch, _ = built(family, "prefix", verbalized=verbalized)
    model.eval()
    states = model.activations(batch).detach()
    other = torch.where(batch.text[:, :, None], states, states + 7.0)
    assert torch.allclose(model.logits(batch, states), model.logits(batch, other), atol=1e-5)
    moved = torch.where(batch.text[:, :, None], states + torch.linspace(0, 7, 16), states)
    assert not torch.allclose(model.logits(batch, states), model.logits(batch, moved), atol=1e-3)


def test_the_loss_is_the_papers() -> None:
    """If it breaks, L is not L_task + L_rec: a wrong sum over plain tokens, or a wrong weight."""
    found = {}
    for reduction, weight in (("sum", 1.0), ("mean", 1.0), ("sum", 0.5)):
        model, batch, _ = built("bert", "prefix", reconstruction_reduction=reduction, reconstruction_weight=weight)
        model.eval()
        losses = model.losses(batch, torch.tensor([0, 1]), TARGETS)
        states = model.activations(batch)
        assert model.reconstruction is not None
        chances = model.reconstruction(states).log_softmax(dim=-1)
        each = [chances[row, batch.plain[row, i], TARGETS[row, i]].item() for row in range(2) for i in range(4)]
        by_hand = -sum(each) / (2 if reduction == "sum" else 8)
        task = torch.nn.functional.cross_entropy(model.logits(batch, states), torch.tensor([0, 1]))
        assert losses.total.item() == pytest.approx(task.item() + weight * by_hand, rel=1e-5)
        assert losses.reconstruction == pytest.approx(by_hand, rel=1e-5)
        found[reduction, weight] = losses.reconstruction
    assert found["sum", 1.0] == pytest.approx(4 * found["mean", 1.0], rel=1e-5)
    assert [tuple(p.shape) for p in model.reconstruction.parameters()] == [(6, 16), (20, 6)], (
        "W2, W1 of two linear layers"
    )


def test_too_much_for_the_backbone_is_refused() -> None:
    """If it breaks, a prompt and plain tokens run over the last position, with an error of torch deep inside."""
    with pytest.raises(InvalidParameter, match=r"max_tokens=61 and 4 plain tokens to fit into 61 places"):
        tiny.tuner(max_tokens=61, method="prefix")
    assert tiny.tuner(max_tokens=57, method="prefix")
    with pytest.raises(InvalidParameter, match="max_tokens=58"):
        tiny.tuner(max_tokens=58, method="prompt")
    assert tiny.tuner(tiny.backbone("t5"), max_tokens=500)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_the_longest_input_fits(family: str, method: str) -> None:
    """If it breaks, the number of positions of a family is counted wrongly (RoBERTa's begin behind the padding's)."""
    base = tiny.backbone(family)
    places = base.positions or 66
    virtual = 3 if method in ("prompt", "prefix") else 0
    first, last = base.frame
    tuner = tiny.tuner(base, method=method, max_tokens=places - 4 - virtual - len(first) - len(last), epochs=1)
    rows = tiny.examples(8)
    rows[0]["text"] = " ".join(["movie"] * 100)
    report = tuner.fit(rows, progress=False).report
    assert report is not None
    assert report.truncated == 1
