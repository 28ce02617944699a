"""What is refused before anything is charged, in words that name the remedy and no text."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest
import torch
from rapt_tuning import tiny

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import (
    Backbone,
    PlainTokens,
    RAPTClassifier,
    RAPTClient,
    RAPTPromptTuner,
    RAPTProvider,
    TuningSettings,
)
from langchain_dp.records import PrivateRecords, label_name


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "at least one example"),
        ([{"text": "quetzal good"}], "example 0 to have a non-empty str under 'label'"),
        ([{"text": "good", "label": "positive"}, {"text": "quetzal", "label": ""}], "example 1"),
        ([{"text": "good", "label": "positive"}, {"text": "quetzal", "label": "quetzal"}], "label of example 1"),
        ([{"text": "quetzal", "label": "positive"}] * 3, "all 3 have one"),
        ([{"label": "positive"}], "under 'text'"),
        (["quetzal"], "a mapping"),
    ],
)
def test_bad_examples_are_refused_before_anything_is_charged(rows: Any, match: str) -> None:
    """If it breaks, texts are paid for and lost, or an error shows one."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=1.0, ledger=ledger))
    for call in (made.fit, made.privatize):
        with pytest.raises(InvalidParameter, match=match) as refused:
            call(rows)
        assert "quetzal" not in str(refused.value)
    with pytest.raises(InvalidParameter):
        made.fit(tiny.examples(8), validation=[{"text": "quetzal", "label": "none"}], progress=False)
    assert not list(ledger.entries())


@pytest.mark.parametrize("every", [0, 1.5, "2", True])
def test_what_a_training_cannot_do_is_refused_before_anything_is_charged(every: Any, tmp_path: Path) -> None:
    """If it breaks, all texts are paid for, and then a division by zero, or of a string, ends the training."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=1.0, ledger=ledger))
    with pytest.raises(InvalidParameter, match="checkpoint_every"):
        made.fit(tiny.examples(8), checkpoint=tmp_path, checkpoint_every=every, progress=False)
    stored = tiny.tuner(by=tiny.sanitizer(eta=1.0)).privatize(tiny.examples(8))
    nothing, alike = (dataclasses.replace(stored, inputs=n * [[5]], labels=n * ["positive"]) for n in (0, 3))
    for given, said in (
        ({"examples": nothing}, "at least one example, got none"),
        ({"examples": tiny.examples(8), "validation": nothing}, "at least one validation example, got none"),
        ({"examples": alike}, "at least two of the labels"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            made.fit(progress=False, **given)
    assert not list(ledger.entries())


@pytest.mark.parametrize(
    "change",
    [
        {"method": "lora"},
        {"prompt_length": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"batch_size": 0},
        {"epochs": -1},
        {"patience": 0},
        {"reconstruction": "yes"},
        {"reconstruction_weight": -1.0},
        {"reconstruction_reduction": "max"},
        {"plain": 40},
        {"seed": -1},
        {"seed": 2**70},
        {"device": torch.device("cpu")},
        {"head_size": True},
        *({"plain": one} for one in ({"length": -1}, {"choice": "any"}, {"sets": 0}, {"vocabulary": 1}, {"seed": -1})),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any]) -> None:
    """If it breaks, a typing error is found after hours, or never."""
    plain = change.get("plain")
    name, kind = next(iter(change)), TuningSettings
    if isinstance(plain, dict):
        name, kind, change = next(iter(plain)), PlainTokens, plain
    with pytest.raises(InvalidParameter, match=name):
        kind(**change)


def test_bad_tuners_are_refused() -> None:
    """If it breaks, a wrong argument is found inside somebody else's library."""
    base = tiny.backbone()
    good: dict[str, Any] = {"sanitizer": tiny.sanitizer(base), "labels": tiny.LABELS, "backbone": base}
    small = tiny.settings()
    for change, match in (
        ({"sanitizer": None}, "Expected sanitizer of type NoneType"),
        ({"labels": ["one"]}, "at least two"),
        ({"labels": ["one", "one"]}, "each once"),
        ({"labels": "positive"}, "a list such as"),
        ({"labels": {"one": 1, "two": 2}}, "not a mapping"),
        ({"labels": {"negative", "positive"}}, r"not a set.*sorted\(labels\)"),
        ({"settings": {"method": "prefix"}}, "Expected settings of type dict"),
        ({"backbone": "nowhere"}, "'minilm' or a folder"),
        ({"backbone": torch.nn.Linear(2, 2)}, "Expected backbone of type 'Linear'"),
        ({"backbone": tiny.model("bert")}, "Expected tokenizer=None only with a folder"),
        ({"verbalizer": {"negative": "bad"}}, "one word for each"),
        ({"verbalizer": ["negative", "positive"]}, "one word for each"),
        ({"verbalizer": {"negative": "bad", "positive": "bad"}}, "different tokens"),
        ({"verbalizer": {"negative": "bad", "positive": "zebra"}}, "'zebra' of label 'positive'"),
        ({"verbalizer": tiny.VERBALIZER, "template": "no mask"}, "to hold {mask} once"),
        ({"settings": tiny.settings(device="quantum")}, "device='quantum'"),
    ):
        with pytest.raises(InvalidParameter, match=match):
            RAPTPromptTuner(**{"settings": small, **good, **change}).fit(tiny.examples(8), progress=False)
    with pytest.raises(InvalidParameter, match="that predicts words"):
        Backbone(tiny.model("bert", words=False), tokenizer=tiny.tokenizer("bert"), words=True)


class Opinion(enum.Enum):
    """Labels of a kind of their own."""

    bad = "negative"
    good = "positive"


@pytest.mark.parametrize("labels", [[0, 1], Opinion, iter(["negative", "positive"])])
def test_labels_are_known_by_their_names(labels: Any, tmp_path: Path) -> None:
    """If it breaks, whole numbers and Enums are taken, and then no example has one of them: the error says "0 or 1"."""
    given = list(labels)
    base = tiny.backbone()
    made = RAPTPromptTuner(
        tiny.sanitizer(base),
        labels=iter(given) if not isinstance(labels, type) else labels,
        backbone=base,
        settings=tiny.settings(epochs=1),
        verbalizer=dict(zip(given, ["bad", "good"], strict=True)),
    )
    rows = [{**row, "label": given[tiny.LABELS.index(row["label"])]} for row in tiny.examples(8)]
    classifier = made.fit(PrivateRecords(rows), progress=False)
    assert classifier.labels == tuple(label_name(one) for one in given)
    assert classifier.invoke("good movie") in classifier.labels
    classifier.save(tmp_path)
    assert RAPTClassifier.load(tmp_path, made.client.sanitizer, backbone=base).labels == classifier.labels
    assert made.client.privatize(rows, labels=given).labels == [label_name(row["label"]) for row in rows]


def test_a_second_fit_starts_anew_also_with_the_largest_seed() -> None:
    """If it breaks, a tuner that is used twice goes on from the first result, or torch refuses a seed of ours."""
    made = tiny.tuner(method="full", epochs=1, seed=2**64 - 1)
    one, two = (made.fit(tiny.examples(16), progress=False).report for _ in range(2))
    assert one.epochs == two.epochs


def test_a_provider_checks_its_device(tmp_path: Path) -> None:
    """If it breaks, a device that is no name ends in an AttributeError when the first question is asked."""
    tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).save(tmp_path)
    with pytest.raises(InvalidParameter, match="device of type"):
        RAPTProvider.load(tmp_path, tiny.backbone(), device=torch.device("cpu"))  # type: ignore[arg-type]  # wrong


def test_a_client_checks_its_arguments() -> None:
    """If it breaks, a client is built that can send nothing, or users' records are charged to one account."""
    client = RAPTClient(tiny.sanitizer())
    rows = [{**row, "who": f"u{place // 2}"} for place, row in enumerate(tiny.examples(8))]
    for wrong, said in (
        (lambda: RAPTClient(tiny.sanitizer(), kind="raw"), "kind"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: RAPTClient(tiny.sanitizer(), max_tokens=0), "max_tokens"),
        (lambda: client.request(["good", 3]), "text 1"),  # type: ignore[list-item]
        (
            lambda: client.privatize(PrivateRecords(rows, user_key="who"), labels=tiny.LABELS),
            "user_key='who' here, too",
        ),
    ):
        with pytest.raises(InvalidParameter, match=said):
            wrong()
