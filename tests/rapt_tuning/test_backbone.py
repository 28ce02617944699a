"""A backbone is whole, is known again by all that answers depend on, and is not one that was tuned before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rapt_tuning import tiny

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import Backbone, RAPTClassifier, RAPTPromptTuner, RAPTProvider


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_folder_without_a_head_for_words_predicts_none(family: str, tmp_path: Path) -> None:
    """If it breaks, a verbalizer asks a head of random numbers, others at every loading: saved answers are noise."""
    tiny.model(family, words=False).save_pretrained(tmp_path)
    tiny.tokenizer(family).save_pretrained(tmp_path)
    ledger = MetricLedger()
    given: dict[str, Any] = {"labels": tiny.LABELS, "backbone": tmp_path, "settings": tiny.settings()}
    by = tiny.sanitizer(tiny.backbone(family), ledger=ledger)
    assert RAPTPromptTuner(by, **given).client.kind == "tokens"  # without a verbalizer none is needed
    with pytest.raises(InvalidParameter, match="that predicts words"):
        RAPTPromptTuner(by, verbalizer=tiny.VERBALIZER, **given)
    with pytest.raises(InvalidParameter, match="that predicts words"):
        Backbone(tmp_path, words=True)
    headless = Backbone(tmp_path)
    with pytest.raises(InvalidParameter, match="that predicts words"):
        tiny.tuner(headless, by, verbalized=True)
    assert not list(ledger.entries())
    tiny.tuner(tiny.backbone(family), by, verbalized=True).fit(tiny.examples(8), progress=False).save(tmp_path / "made")
    with pytest.raises(InvalidParameter, match="that predicts words"):
        RAPTProvider.load(tmp_path / "made", headless)


def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """If it breaks, a decoder, or a layer, of random numbers answers, another one at every loading."""
    whole = tiny.model("t5")
    type(whole.get_encoder()).save_pretrained(whole.get_encoder(), tmp_path / "t5")
    tiny.tokenizer("t5").save_pretrained(tmp_path / "t5")
    with pytest.raises(InvalidParameter, match="T5 with its decoder"):
        Backbone(tmp_path / "t5")
    made = tiny.tuner(method="adapter").fit(tiny.examples(8), progress=False).provider
    assert isinstance(made, RAPTProvider)
    made.backbone.model.save_pretrained(tmp_path / "bert")  # adapters are stored under names of their own
    tiny.tokenizer("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(InvalidParameter, match=r"all weights of a BertModel, but \d+ are missing, .*dense"):
        Backbone(tmp_path / "bert")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_whole_folder_is_what_was_saved(family: str, tmp_path: Path) -> None:
    """If it breaks, weights that are tied, or are not used, count as missing: no folder can be loaded."""
    tiny.model(family).save_pretrained(tmp_path)
    tiny.tokenizer(family).save_pretrained(tmp_path)
    given = tiny.backbone(family)
    for words in (False, True):
        assert Backbone(tmp_path, words=words).fingerprint_of(words=words) == given.fingerprint_of(words=words)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_predicts_words_is_part_of_a_saved_provider(family: str, tmp_path: Path) -> None:
    """If it breaks, a provider is loaded around another head, decoder or tokenizer without a word: answers change."""
    base = tiny.backbone(family)
    for verbalized in (False, True):
        tiny.tuner(base, verbalized=verbalized, epochs=1).fit(tiny.examples(8), progress=False).save(
            tmp_path / str(verbalized)
        )
    other = tiny.model(family)
    with torch.no_grad():
        part = other.decoder.block[0].layer[0].SelfAttention.q.weight if family == "t5" else base_bias(other)
        part.add_(1.0)
    changed = Backbone(other, tokenizer=tiny.tokenizer(family))
    RAPTProvider.load(tmp_path / "False", changed)  # nobody asks it for a word
    RAPTProvider.load(tmp_path / "True", base)
    with pytest.raises(InvalidParameter, match="other weights or other tokens"):
        RAPTProvider.load(tmp_path / "True", changed)


def base_bias(model: Any) -> Any:
    """What the head for words adds."""
    return (model.cls.predictions if hasattr(model, "cls") else model.lm_head).bias


def test_the_tokens_are_part_of_a_saved_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a text is cut into the ids of other words, and every answer is noise."""
    tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).save(tmp_path)
    monkeypatch.setattr(tiny, "WORDS", tiny.WORDS[::-1])
    with pytest.raises(InvalidParameter, match="other weights or other tokens"):
        RAPTProvider.load(tmp_path, tiny.model("bert"), tokenizer=tiny.tokenizer("bert"))


@pytest.mark.parametrize(("family", "method"), [("bert", "full"), ("bert", "adapter"), ("t5", "prefix")])
def test_the_inside_of_a_tuned_model_is_no_backbone(family: str, method: str, tmp_path: Path) -> None:
    """If it breaks, a tuned model passes for the one that it was made of: what is loaded around it answers noise."""
    ledger = MetricLedger()
    base = tiny.backbone(family)
    made = tiny.tuner(base, tiny.sanitizer(base, ledger=ledger), method=method, epochs=1)
    classifier = made.fit(tiny.examples(8), progress=False)
    classifier.save(tmp_path)
    assert isinstance(classifier.provider, RAPTProvider)
    inside, charged = classifier.provider.backbone, len(list(ledger.entries()))
    by = made.client.sanitizer
    for use in (
        lambda: RAPTClassifier.load(tmp_path, by, backbone=inside),
        lambda: RAPTClassifier.load(tmp_path, by, backbone=inside.model, tokenizer=inside.tokenizer),
        lambda: tiny.tuner(inside, by),  # type: ignore[arg-type]  # a sanitizer
    ):
        with pytest.raises(InvalidParameter, match="a backbone before tuning"):
            use()
    assert len(list(ledger.entries())) == charged
    for _ in range(2):
        RAPTClassifier.load(tmp_path, by, backbone=base)  # which stays what it was


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_given_model_of_half_precision_is_tuned(family: str) -> None:
    """If it breaks, all texts are charged, and then torch says that two types do not fit."""
    base = Backbone(tiny.model(family).to(torch.bfloat16), tokenizer=tiny.tokenizer(family))
    for method in ("prompt", "prefix", "adapter", "full"):
        made = tiny.tuner(base, tiny.sanitizer(base), method=method, epochs=1)
        assert made.fit(tiny.examples(8), progress=False).invoke("good movie") in tiny.LABELS
