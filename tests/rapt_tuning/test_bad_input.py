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


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", True])
def test_what_a_training_cannot_do_is_refused_before_anything_is_charged(every: Any, tmp_path: Path) -> None:
    """If it breaks, all texts are paid for, and then a division by zero, or of a string, ends the training."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=1.0, ledger=ledger))
    with pytest.raises(InvalidParameter, match="checkpoint_every"):
        made.fit(tiny.examples(8), checkpoint=tmp_path, checkpoint_every=every, progress=False)
    assert not list(ledger.entries())
    stored = tiny.tuner(by=tiny.sanitizer(eta=1.0)).privatize(tiny.examples(8))
    nothing = dataclasses.replace(stored, inputs=[], labels=[])
    for given in ({"examples": nothing}, {"examples": tiny.examples(8), "validation": nothing}):
        with pytest.raises(InvalidParameter, match=r"at least one (validation )?example, got none"):
            made.fit(progress=False, **given)
    assert not list(ledger.entries())


def test_private_records_are_taken() -> None:
    """If it breaks, records must leave their wrapper before they can be used."""
    assert tiny.tuner(epochs=1).fit(PrivateRecords(tiny.examples(8)), progress=False).report


@pytest.mark.parametrize(
    "change",
    [
        {"method": "lora"},
        {"prompt_length": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"batch_size": 0},
        {"epochs": -1},
        {"max_tokens": 0},
        {"privatize": "never"},
        {"precision": "int8"},
        {"patience": 0},
        {"reconstruction": "yes"},
        {"reconstruction_weight": -1.0},
        {"plain": 40},
        {"seed": -1},
        {"seed": 2**70},
        {"device": torch.device("cpu")},
        {"device": None},
        {"head_size": True},
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any]) -> None:
    """If it breaks, a typing error is found after hours, or never."""
    with pytest.raises(InvalidParameter, match=next(iter(change))):
        TuningSettings(**change)


def test_bad_plain_tokens_are_refused() -> None:
    """If it breaks, plain tokens of the wrong number train a head of the wrong size."""
    for change in (
        {"length": -1},
        {"choice": "any"},
        {"sets": 0},
        {"vocabulary": 1},
        {"length": 2, "words": [["one"]]},
        {"length": 1, "words": ["a"]},
        {"length": 1, "words": None},
        {"length": 1, "words": [None]},
        {"length": 1, "words": [[1]]},
        {"length": 1, "choice": "sets", "sets": 2, "words": [["a"]]},
    ):
        with pytest.raises(InvalidParameter):
            PlainTokens(**change)  # type: ignore[arg-type]  # wrong on purpose


def test_bad_tuners_are_refused() -> None:
    """If it breaks, a wrong argument is found inside somebody else's library."""
    base = tiny.backbone()
    good: dict[str, Any] = {"sanitizer": tiny.sanitizer(base), "labels": tiny.LABELS, "backbone": base}
    small = tiny.settings()
    for change, match in (
        ({"sanitizer": None}, "Expected sanitizer of type NoneType"),
        ({"labels": ["one"]}, "at least two"),
        ({"labels": ["one", "one"]}, "each once"),
        ({"labels": "positive"}, "a list of non-empty strings"),
        ({"labels": None}, "a list of non-empty strings"),
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
        tiny.tuner(Backbone(tiny.model("bert", words=False), tokenizer=tiny.tokenizer("bert"), words=True))


class Opinion(enum.Enum):
    """Labels of a kind of their own."""

    bad = "negative"
    good = "positive"


@pytest.mark.parametrize("labels", [[0, 1], Opinion, list(Opinion), iter(["negative", "positive"]), [False, True]])
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
    classifier = made.fit(rows, progress=False)
    assert classifier.labels == tuple(label_name(one) for one in given)
    assert classifier.invoke("good movie") in classifier.labels
    classifier.save(tmp_path)
    assert RAPTClassifier.load(tmp_path, made.client.sanitizer, backbone=base).labels == classifier.labels
    assert made.client.privatize(rows, labels=given).labels == [label_name(row["label"]) for row in rows]


def test_a_given_model_is_not_changed() -> None:
    """If it breaks, tuning freezes, wraps or trains the user's own model."""
    for family in tiny.FAMILIES:
        own = tiny.model(family)
        before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
        for method in ("prefix", "adapter", "full"):
            made = RAPTPromptTuner(
                tiny.sanitizer(tiny.backbone(family)),
                labels=tiny.LABELS,
                backbone=own,
                tokenizer=tiny.tokenizer(family),
                settings=tiny.settings(method=method, epochs=1),
            )
            made.fit(tiny.examples(8), progress=False)
        after = own.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(tensor.requires_grad for tensor in own.parameters())


def test_a_second_fit_starts_anew() -> None:
    """If it breaks, a tuner that is used twice goes on from the first result."""
    made = tiny.tuner(method="full", epochs=1)
    one, two = (made.fit(tiny.examples(16), progress=False).report for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.epochs == two.epochs


def test_stored_texts_of_another_table_are_refused() -> None:
    """If it breaks, token ids of one table are read as those of another."""
    base = tiny.backbone("roberta")
    stored = tiny.tuner(base).privatize(tiny.examples(8))
    with pytest.raises(InvalidParameter, match="Privatize them with this tuner"):
        tiny.tuner().fit(stored, progress=False)


def test_a_provider_checks_its_device(tmp_path: Path) -> None:
    """If it breaks, a device that is no name ends in an AttributeError when the first question is asked."""
    tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).save(tmp_path)
    for device in (torch.device("cpu"), None):
        with pytest.raises(InvalidParameter, match="device of type"):
            RAPTProvider.load(tmp_path, tiny.backbone(), device=device)  # type: ignore[arg-type]  # wrong on purpose


def test_the_largest_seed_is_taken() -> None:
    """If it breaks, torch refuses what the settings allow, after all texts were charged."""
    assert tiny.tuner(seed=2**64 - 1, epochs=1).fit(tiny.examples(8), progress=False).report


def test_a_client_checks_its_arguments() -> None:
    """If it breaks, a client is built that can send nothing."""
    with pytest.raises(InvalidParameter, match="kind"):
        RAPTClient(tiny.sanitizer(), kind="raw")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidParameter, match="max_tokens"):
        RAPTClient(tiny.sanitizer(), max_tokens=0)
    with pytest.raises(InvalidParameter, match="text 1"):
        RAPTClient(tiny.sanitizer()).request(["good", 3])  # type: ignore[list-item]


def test_records_of_users_need_the_user_of_the_account() -> None:
    """If it breaks, records whose promise is per user are charged to one account for all users."""
    rows = [{**row, "who": f"u{place // 2}"} for place, row in enumerate(tiny.examples(8))]
    records, client = PrivateRecords(rows, user_key="who"), RAPTClient(tiny.sanitizer())
    with pytest.raises(InvalidParameter, match="user_key='who' here, too"):
        client.privatize(records, labels=sorted({row["label"] for row in rows}))
