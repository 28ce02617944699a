"""Training: it learns, stops in time, goes on where it was interrupted, and refuses to go on as something else."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.rapt import TABLE as WORDS_TABLE
from rapt_tuning import tiny
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import IdentitySanitizer, PlainTokens, RAPTClassifier, RAPTPromptTuner, RAPTProvider
from langchain_dp.rapt.tuning.settings import TuningSettings
from langchain_dp.rapt.tuning.training import Trainer

METHODS = ("prompt", "prefix", "adapter", "full")


def weights(classifier: RAPTClassifier) -> dict[str, torch.Tensor]:
    assert isinstance(classifier.provider, RAPTProvider)
    return {name: tensor.detach().clone() for name, tensor in classifier.provider.model.learned().items()}


@pytest.mark.parametrize("verbalized", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_it_learns_a_task_that_two_words_decide(family: str, verbalized: bool) -> None:
    """If it breaks, labels, texts and plain tokens are not those that belong together."""
    made = tiny.tuner(tiny.backbone(family), method="full", epochs=30, learning_rate=0.01, verbalized=verbalized)
    classifier = made.fit(tiny.examples(40), progress=False)
    held = tiny.examples(24, seed=5)
    answers = classifier.batch([row["text"] for row in held])
    assert sum(a == row["label"] for a, row in zip(answers, held, strict=True)) >= 22
    report = classifier.report
    assert report is not None
    assert report.epochs[-1]["task"] < report.epochs[0]["task"] / 2
    assert report.epochs[-1]["reconstruction"] < report.epochs[0]["reconstruction"] / 2
    assert report.epochs[-1]["recovered"] > 0.9


def test_wrong_labels_are_not_learned() -> None:
    """If it breaks, the test above would pass whatever is learned: with labels at random nothing can be held out."""
    rows = tiny.examples(40)
    for number, row in enumerate(rows):
        row["label"] = tiny.LABELS[number // 2 % 2]
    classifier = tiny.tuner(method="full", epochs=30, learning_rate=0.01).fit(rows, progress=False)
    held = tiny.examples(24, seed=5)
    answers = classifier.batch([row["text"] for row in held])
    assert sum(a == row["label"] for a, row in zip(answers, held, strict=True)) < 22


@pytest.mark.parametrize("choice", ["fixed", "sets", "fresh"])
def test_plain_tokens_are_chosen_as_asked(choice: Any) -> None:
    """If it breaks, "fresh" tokens are the same for all texts, or "fixed" ones are not."""
    made = tiny.tuner(plain=PlainTokens(length=4, vocabulary=20, choice=choice, sets=3))
    plain = [tuple(row) for row in made.client.request(["good movie"] * 40).plain]
    assert {"fixed": 1, "sets": 3}.get(choice, 40) >= len(set(plain)) > {"fixed": 0, "sets": 1}.get(choice, 30)
    assert made.fit(tiny.examples(16), progress=False).report


def test_given_plain_tokens_are_used() -> None:
    """If it breaks, the paper's rows of plain tokens cannot be tried."""
    row = ["movie", "plot", "actor", "very"]
    made = tiny.tuner(plain=PlainTokens(length=4, vocabulary=8, words=[row]))
    [sent] = made.client.request(["good"]).plain
    assert [made.backbone.tokens[i] for i in sent if isinstance(i, int)] == row
    assert len(made.client.plain) == 8
    with pytest.raises(InvalidParameter, match="'zebra' to be a word"):
        tiny.tuner(plain=PlainTokens(length=1, words=[["zebra"]]))


def test_without_plain_tokens_or_reconstruction_it_trains_too() -> None:
    """If it breaks, the arms that the paper compares with cannot be run."""
    for plain, by in ((0, None), (4, None), (0, IdentitySanitizer(tiny.backbone().table()))):
        made = tiny.tuner(by=by, plain=PlainTokens(length=plain, vocabulary=20), reconstruction=False)
        report = made.fit(tiny.examples(16), progress=False).report
        assert report is not None
        assert report.head_parameters == 0
        assert report.epochs[-1]["reconstruction"] == 0
    with pytest.raises(InvalidParameter, match=r"plain\.length=0 only with reconstruction=False"):
        tiny.settings(plain=PlainTokens(length=0))


def test_the_reconstruction_head_is_thrown_away(tmp_path: Path) -> None:
    """If it breaks, most of the saved file is a head that nobody needs."""
    classifier = tiny.tuner().fit(tiny.examples(16), progress=False)
    assert not [name for name in weights(classifier) if "reconstruction" in name]
    assert classifier.report is not None
    assert classifier.report.head_parameters == 6 * 16 + 20 * 6
    classifier.save(tmp_path)
    assert b"reconstruction." not in (tmp_path / "model.safetensors").read_bytes()


def test_early_stopping_keeps_the_best_weights() -> None:
    """If it breaks, training runs into overfitting, or the last weights are kept instead of the best."""
    rows, held = tiny.examples(24), tiny.examples(16, seed=3)
    for row in held:  # the better the task is learned, the worse this goes
        row["label"] = tiny.LABELS[row["label"] == "negative"]
    made = tiny.tuner(method="adapter", epochs=20, patience=2)
    classifier = made.fit(rows, validation=held, progress=False)
    report = classifier.report
    assert report is not None
    assert report.stopped_early
    assert len(report.epochs) == report.best_epoch + 3 < 20
    assert min(report.epochs, key=lambda one: one["validation_loss"]) == report.epochs[report.best_epoch]
    chances = classifier.predict_proba([row["text"] for row in held])
    chosen = [chances[i, tiny.LABELS.index(row["label"])] for i, row in enumerate(held)]
    loss = -torch.tensor(chosen).log().mean().item()
    assert loss == pytest.approx(report.epochs[report.best_epoch]["validation_loss"], rel=1e-4)
    with pytest.raises(InvalidParameter, match="patience=2 only with validation="):
        made.fit(rows, progress=False)


class Interrupted(BaseException):
    """As Ctrl-C, or the end of a machine."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_an_interrupted_training_goes_on_to_the_same_weights(
    method: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a resumed training is another one: optimizer, order, dropout or place are lost."""
    rows, ledger = tiny.examples(24), MetricLedger()

    def fit(**where: Any) -> RAPTClassifier:
        return tiny.tuner(by=tiny.sanitizer(ledger=ledger), method=method, epochs=2).fit(rows, progress=False, **where)

    whole = fit()
    step = Trainer._step
    taken = []

    def interrupted(self: Trainer, *args: Any) -> None:
        if len(taken) == stop:
            raise Interrupted
        taken.append(1)
        step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(Interrupted):
            fit(checkpoint=tmp_path, checkpoint_every=2)
    resumed = fit(checkpoint=tmp_path, checkpoint_every=2)
    wanted, found = weights(whole), weights(resumed)
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert torch.equal(wanted[name], found[name]), name
    assert resumed.report is not None
    assert whole.report is not None
    assert resumed.report.epochs == whole.report.epochs
    again = fit(checkpoint=tmp_path)  # nothing is left to do
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in wanted.items())


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    """If it breaks, a training goes on with other settings, data or backbone, and nobody is told."""
    rows = tiny.examples(16)
    tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)
    for other, what in (
        ({"learning_rate": 0.01}, "learning_rate"),
        ({"epochs": 3, "method": "prompt"}, "epochs, method"),
        ({"plain": PlainTokens(length=5, vocabulary=20)}, "plain"),
    ):
        with pytest.raises(InvalidParameter, match=f"differs in {what}"):
            tiny.tuner(**other).fit(rows, checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match="differs in backbone"):
        tiny.tuner(tiny.backbone(seed=9), tiny.sanitizer()).fit(rows, checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match="differs in eta"):
        tiny.tuner(by=tiny.sanitizer(eta=7.0)).fit(rows, checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match=r"differs in .*texts"):
        tiny.tuner().fit(tiny.examples(18), checkpoint=tmp_path, progress=False)
    spoken: dict[str, Any] = {"labels": tiny.LABELS, "backbone": tiny.backbone(), "settings": tiny.settings()}
    for template, said in (("it was {mask}", None), ("{mask} of a film", "template")):
        asked = RAPTPromptTuner(tiny.sanitizer(), verbalizer=tiny.VERBALIZER, template=template, **spoken)
        with pytest.raises(InvalidParameter, match=f"differs in {said}") if said else nullcontext():
            asked.fit(rows, checkpoint=tmp_path / "spoken", progress=False)
    (tmp_path / "state.safetensors").write_bytes(b"no state")
    with pytest.raises(InvalidParameter, match="damaged"):
        tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)
    (tmp_path / "checkpoint.json").write_text("{}")
    with pytest.raises(InvalidParameter, match="a checkpoint of this version"):
        tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """If it breaks, a state that was cut off, or is of another version, ends in a KeyError of ours."""
    rows = tiny.examples(16)
    made = tiny.tuner(epochs=1)
    made.fit(rows, checkpoint=tmp_path, progress=False)
    path = tmp_path / "state.safetensors"
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    for gone, metadata in (
        ("", {"progress": told["progress"]}),
        ("", {"scaler": told["scaler"]}),
        ("", told | {"progress": json.dumps({**json.loads(told["progress"]), "more": 1})}),
        ("", told | {"progress": json.dumps({**json.loads(told["progress"]), "sums": 1})}),
        ("", None),
        ("rng", told),
    ):
        save_file({name: tensor for name, tensor in tensors.items() if name != gone}, path, metadata)
        with pytest.raises(InvalidParameter, match="it is damaged"):
            made.fit(rows, checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match=r"to be a folder .*FileExistsError"):
        made.fit(rows, checkpoint=path, progress=False)


def test_a_checkpoint_holds_no_raw_word(tmp_path: Path) -> None:
    """If it breaks, a state on disk, perhaps the provider's, holds what was to be protected."""
    rows = [{**row, "text": f"{row['text']} quetzal"} for row in tiny.examples(16)]
    tiny.tuner(by=tiny.sanitizer(eta=tiny.CLOSE)).fit(rows, checkpoint=tmp_path, progress=False)
    for path in tmp_path.iterdir():
        content = path.read_bytes().lower()
        for raw in (b"quetzal", b"the movie was"):
            assert raw not in content, path.name


def test_longer_texts_are_cut_counted_and_reported() -> None:
    """If it breaks, the end of long texts is lost silently."""
    rows = tiny.examples(16)
    rows[3]["text"] = " ".join(["movie"] * 40)
    classifier = tiny.tuner(max_tokens=5).fit(rows, progress=False)
    assert classifier.report is not None
    assert classifier.report.truncated == 1
    assert classifier.training is not None
    assert "1 of 16 training texts were longer than 5 tokens and were cut." in classifier.training.notes


def test_texts_that_the_model_cuts_are_counted_after_a_training_too(tmp_path: Path) -> None:
    """If it breaks, who resumes a training that was over is told that no text was cut."""
    by = RAPTSanitizer(WORDS_TABLE, eta=tiny.FAR)
    rows = [{"text": "the heart " * (1 + number % 4), "label": tiny.LABELS[number % 2]} for number in range(8)]
    made = tiny.tuner(by=by, max_tokens=5, epochs=1)
    assert made.client.kind == "text"
    for _ in range(2):
        classifier = made.fit(rows, checkpoint=tmp_path, progress=False)
        assert classifier.report is not None
        assert classifier.training is not None
        assert classifier.report.truncated == 4
        assert "4 of 8 training texts were longer" in str(classifier.training.notes)


def test_a_loss_that_is_no_number_is_an_error() -> None:
    """If it breaks, hours of training end in weights that are all NaN."""
    with pytest.raises(InvalidParameter, match=r"learning_rate=1e\+30 is too high"):
        tiny.tuner(method="full", learning_rate=1e30, epochs=3).fit(tiny.examples(16), progress=False)


def test_half_precision_trains() -> None:
    """If it breaks, mixed precision fails on types, or its loss is another one."""
    exact = tiny.tuner(epochs=1).fit(tiny.examples(16), progress=False).report
    for base in (tiny.backbone(), tiny.backbone("t5")):
        half = tiny.tuner(base, epochs=1, precision="bfloat16").fit(tiny.examples(16), progress=False).report
        assert half is not None
    half = tiny.tuner(epochs=1, precision="bfloat16").fit(tiny.examples(16), progress=False).report
    assert exact is not None
    assert half is not None
    assert half.epochs[0]["loss"] == pytest.approx(exact.epochs[0]["loss"], rel=0.05)


def test_progress_is_shown_with_loss_and_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, nobody sees whether hours of training lead anywhere."""
    tiny.tuner(epochs=1).fit(tiny.examples(16))
    shown = capsys.readouterr().err
    assert "epoch 1" in shown
    assert "loss=" in shown
    assert "accuracy=" in shown


def test_settings_survive_json() -> None:
    """If it breaks, a saved model is rebuilt with other settings."""
    for given in (tiny.settings(), TuningSettings(), tiny.settings(plain=PlainTokens(length=1, words=[["movie"]]))):
        back = TuningSettings.from_dict(json.loads(json.dumps(given.to_dict())))
        assert back == given
        assert not back.differences(given)
    with pytest.raises(InvalidParameter, match="another version"):
        TuningSettings.from_dict({})


def test_the_defaults_are_the_papers() -> None:
    """If it breaks, a run with no settings is not the paper's."""
    paper = TuningSettings()
    assert (paper.learning_rate, paper.batch_size, paper.epochs, paper.max_tokens) == (6e-5, 128, 4, 128)
    assert (paper.plain.length, paper.head_size, paper.plain.vocabulary) == (40, 96, 7630)
    assert (paper.reconstruction_weight, paper.reconstruction_reduction) == (1.0, "sum")
    assert dataclasses.replace(paper, method="prompt").virtual_tokens == 150
    assert dataclasses.replace(paper, method="prefix").virtual_tokens == 10
