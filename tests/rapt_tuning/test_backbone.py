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


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_folder_is_what_was_saved_and_predicts_words_only_with_a_head(family: str, tmp_path: Path) -> None:
    """If it breaks, a verbalizer asks a head of random numbers, or no folder can be loaded."""
    for words in (False, True):
        tiny.model(family, words=words).save_pretrained(tmp_path / str(words))
        tiny.tokenizer(family).save_pretrained(tmp_path / str(words))
    ledger, base = MetricLedger(), tiny.backbone(family)
    for words in (False, True):
        assert Backbone(tmp_path / "True", words=words).fingerprint_of(words=words) == base.fingerprint_of(words=words)
    given: dict[str, Any] = {"labels": tiny.LABELS, "backbone": tmp_path / "False", "settings": tiny.settings()}
    by = tiny.sanitizer(base, ledger=ledger)
    assert RAPTPromptTuner(by, **given).client.kind == "tokens"  # without a verbalizer no head is needed
    headless = Backbone(tmp_path / "False")
    tiny.tuner(base, by, verbalized=True).fit(tiny.examples(8), progress=False).save(tmp_path / "made")
    charged = len(list(ledger.entries()))
    for use in (
        lambda: RAPTPromptTuner(by, verbalizer=tiny.VERBALIZER, **given),
        lambda: Backbone(tmp_path / "False", words=True),
        lambda: tiny.tuner(headless, by, verbalized=True),
        lambda: RAPTProvider.load(tmp_path / "made", headless),
    ):
        with pytest.raises(InvalidParameter, match="that predicts words"):
            use()
    assert len(list(ledger.entries())) == charged


def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """If it breaks, a layer of random numbers answers, another one at every loading."""
    made = tiny.tuner(method="adapter").fit(tiny.examples(8), progress=False).provider
    made.backbone.model.save_pretrained(tmp_path)  # adapters are stored under names of their own
    tiny.tokenizer("bert").save_pretrained(tmp_path)
    with pytest.raises(InvalidParameter, match=r"all weights of a BertModel, but \d+ are missing, .*dense"):
        Backbone(tmp_path)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_head_and_tokens_are_part_of_a_saved_provider(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a provider is loaded around another head, or other tokens, without a word: answers are noise."""
    base = tiny.backbone(family)
    for verbalized in (False, True):
        made = tiny.tuner(base, verbalized=verbalized, epochs=1).fit(tiny.examples(8), progress=False)
        made.save(tmp_path / str(verbalized))
    other = tiny.model(family)
    with torch.no_grad():
        (other.cls.predictions if family == "bert" else other.lm_head).bias.add_(1.0)
    changed = Backbone(other, tokenizer=tiny.tokenizer(family))
    RAPTProvider.load(tmp_path / "False", changed)  # nobody asks it for a word
    RAPTProvider.load(tmp_path / "True", base)
    with pytest.raises(InvalidParameter, match="other weights or other tokens"):
        RAPTProvider.load(tmp_path / "True", changed)
    monkeypatch.setattr(tiny, "WORDS", tiny.WORDS[::-1])
    with pytest.raises(InvalidParameter, match="other weights or other tokens"):
        RAPTProvider.load(tmp_path / "False", tiny.model(family), tokenizer=tiny.tokenizer(family))


@pytest.mark.parametrize("method", ["full", "adapter"])
def test_the_inside_of_a_tuned_model_is_no_backbone(method: str, tmp_path: Path) -> None:
    """If it breaks, a tuned model passes for the one that it was made of: what is loaded around it answers noise."""
    ledger, base = MetricLedger(), tiny.backbone()
    made = tiny.tuner(base, tiny.sanitizer(base, ledger=ledger), method=method, epochs=1)
    classifier = made.fit(tiny.examples(8), progress=False)
    classifier.save(tmp_path)
    inside, charged = classifier.provider.backbone, len(list(ledger.entries()))
    by = made.client.sanitizer
    for use in (
        lambda: RAPTClassifier.load(tmp_path, by, backbone=inside),
        lambda: RAPTClassifier.load(tmp_path, by, backbone=inside.model, tokenizer=inside.tokenizer),
        lambda: tiny.tuner(inside, by),
    ):
        with pytest.raises(InvalidParameter, match="a backbone before tuning"):
            use()
    assert len(list(ledger.entries())) == charged
    for _ in range(2):
        RAPTClassifier.load(tmp_path, by, backbone=base)  # which stays what it was


def test_a_given_model_is_not_changed_and_may_have_half_precision() -> None:
    """If it breaks, tuning freezes, wraps or trains the user's own model; or texts are charged and torch fails."""
    own = tiny.model("bert").to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    for method in ("prompt", "prefix", "adapter", "full"):
        made = RAPTPromptTuner(
            tiny.sanitizer(), labels=tiny.LABELS, backbone=own, tokenizer=tiny.tokenizer("bert"),
            settings=tiny.settings(method=method, epochs=1),
        )  # fmt: skip
        assert made.fit(tiny.examples(8), progress=False).invoke("good movie") in tiny.LABELS
    after = own.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(tensor.requires_grad for tensor in own.parameters())
