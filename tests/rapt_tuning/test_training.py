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

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import IdentitySanitizer, PlainTokens, RAPTClassifier, RAPTPromptTuner
from langchain_dp.rapt.tuning.settings import TuningSettings
from langchain_dp.rapt.tuning.training import Trainer


def weights(classifier: RAPTClassifier) -> dict[str, torch.Tensor]:
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
    first, *_, last = classifier.report.epochs
    assert last["task"] < first["task"] / 2
    assert last["reconstruction"] < first["reconstruction"] / 2
    assert last["recovered"] > 0.9


@pytest.mark.parametrize("choice", ["fixed", "sets", "fresh"])
def test_plain_tokens_are_chosen_as_asked(choice: Any) -> None:
    """If it breaks, "fresh" tokens are the same for all texts, or "fixed" ones are not."""
    made = tiny.tuner(plain=PlainTokens(length=4, vocabulary=20, choice=choice, sets=3))
    texts = [f"{one} {other}" for one in tiny.WORDS[:8] for other in tiny.WORDS[8:13]]
    plain = [tuple(row) for row in made.client.request(texts).plain]
    assert {"fixed": 1, "sets": 3}.get(choice, 40) >= len(set(plain)) > {"fixed": 0, "sets": 1}.get(choice, 30)
    assert made.fit(tiny.examples(16), progress=False).report


def test_without_plain_tokens_or_reconstruction_it_trains_too() -> None:
    """If it breaks, the arms that the paper compares with cannot be run."""
    for plain, by in ((0, None), (4, None), (0, IdentitySanitizer(tiny.backbone()))):
        made = tiny.tuner(by=by, plain=PlainTokens(length=plain, vocabulary=20), reconstruction=False)
        report = made.fit(tiny.examples(16), progress=False).report
        assert report.head_parameters == 0
        assert report.epochs[-1]["reconstruction"] == 0
    with pytest.raises(InvalidParameter, match="Expected plain tokens with reconstruction=True"):
        tiny.settings(plain=PlainTokens(length=0))


def test_the_reconstruction_head_is_thrown_away(tmp_path: Path) -> None:
    """If it breaks, most of the saved file is a head that nobody needs."""
    classifier = tiny.tuner().fit(tiny.examples(16), progress=False)
    assert not [name for name in weights(classifier) if "reconstruction" in name]
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


@pytest.mark.parametrize("method", ["prompt", "prefix", "adapter", "full"])
@pytest.mark.parametrize("stop", [2, 5])
def test_an_interrupted_training_goes_on_to_the_same_weights(
    method: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a resumed training is another one: optimizer, order, dropout or place are lost."""
    rows = tiny.tuner().privatize(tiny.examples(24))

    def fit(**where: Any) -> RAPTClassifier:
        return tiny.tuner(method=method, epochs=2).fit(rows, progress=False, **where)

    whole, step, taken = fit(), Trainer._step, []

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
    again = fit(checkpoint=tmp_path)  # nothing is left to do
    wanted = weights(whole)
    for found in (weights(resumed), weights(again)):
        assert wanted.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())
    assert resumed.report.epochs == whole.report.epochs


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """If it breaks, a training goes on with other settings, data or backbone, or a state cut off ends in a KeyError."""
    rows = tiny.tuner().privatize(tiny.examples(16))
    tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)
    for other, what in (
        ({"learning_rate": 0.01}, "learning_rate"),
        ({"epochs": 3, "method": "prompt"}, "epochs, method"),
        ({"plain": PlainTokens(length=5, vocabulary=20)}, "plain"),
        ({"by": tiny.sanitizer(eta=7.0)}, "eta"),
        ({"base": tiny.backbone(seed=9), "by": tiny.sanitizer()}, "backbone"),
    ):
        with pytest.raises(InvalidParameter, match=f"differs in {what}"):
            tiny.tuner(**other).fit(rows, checkpoint=tmp_path, progress=False)  # type: ignore[arg-type]
    spoken: dict[str, Any] = {"labels": tiny.LABELS, "backbone": tiny.backbone(), "settings": tiny.settings()}
    for template, said in (("it was {mask}", None), ("{mask} of a film", "template")):
        asked = RAPTPromptTuner(tiny.sanitizer(), verbalizer=tiny.VERBALIZER, template=template, **spoken)
        with pytest.raises(InvalidParameter, match=f"differs in {said}") if said else nullcontext():
            asked.fit(rows, checkpoint=tmp_path / "spoken", progress=False)
    path = tmp_path / "state.safetensors"
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    for gone, metadata in (
        ("", {}),
        ("", told | {"progress": json.dumps({**json.loads(told["progress"]), "more": 1})}),
        ("", told | {"progress": json.dumps({**json.loads(told["progress"]), "sums": 1})}),
        ("", None),
        ("rng", told),
    ):
        save_file({name: tensor for name, tensor in tensors.items() if name != gone}, path, metadata)
        with pytest.raises(InvalidParameter, match="it is damaged"):
            tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)
    path.write_bytes(b"no state")
    with pytest.raises(InvalidParameter, match="it is damaged"):
        tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match=r"to be a folder .*FileExistsError"):
        tiny.tuner().fit(rows, checkpoint=path, progress=False)
    (tmp_path / "checkpoint.json").write_text("{}")
    with pytest.raises(InvalidParameter, match="a checkpoint of this version"):
        tiny.tuner().fit(rows, checkpoint=tmp_path, progress=False)


def test_a_checkpoint_holds_no_raw_word(tmp_path: Path) -> None:
    """If it breaks, a state on disk, perhaps the provider's, holds what was to be protected."""
    made = tiny.tuner(by=tiny.sanitizer(eta=tiny.CLOSE))
    rows = made.privatize([{**row, "text": f"{row['text']} quetzal"} for row in tiny.examples(16)])
    made.fit(rows, checkpoint=tmp_path, progress=False)
    for path in tmp_path.iterdir():
        content = path.read_bytes().lower()
        assert not [raw for raw in (b"quetzal", b"the movie was") if raw in content], path.name


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_longer_texts_are_cut_counted_and_reported(kind: str, tmp_path: Path) -> None:
    """If it breaks, the end of long texts is lost silently, or only until a training is resumed."""
    made = tiny.tuner(by=None if kind == "tokens" else RAPTSanitizer(WORDS_TABLE, eta=tiny.FAR), max_tokens=5, epochs=1)
    assert made.client.kind == kind
    rows = made.privatize([{"text": "the was " * (1 + n % 4), "label": tiny.LABELS[n % 2]} for n in range(8)])
    for _ in range(2):
        classifier = made.fit(rows, checkpoint=tmp_path, progress=False)
        assert classifier.report.truncated == 4
        assert "4 of 8 training texts were longer than 5 tokens and were cut." in classifier.training.notes


def test_a_loss_that_is_no_number_is_an_error() -> None:
    """If it breaks, hours of training end in weights that are all NaN."""
    with pytest.raises(InvalidParameter, match=r"learning_rate=1e\+30 is too high"):
        tiny.tuner(method="full", learning_rate=1e30, epochs=3).fit(tiny.examples(16), progress=False)


def test_settings_survive_json_and_default_to_the_papers() -> None:
    """If it breaks, a saved model is rebuilt with other settings, or a run with no settings is not the paper's."""
    default = TuningSettings()
    assert (default.plain.length, default.reconstruction) == (0, False)  # it did not help in any trial
    paper = dataclasses.replace(default, plain=PlainTokens(length=40), reconstruction=True)
    for given in (tiny.settings(), paper):
        back = TuningSettings.from_dict(json.loads(json.dumps(given.to_dict())))
        assert back == given
        assert not back.differences(given)
    with pytest.raises(InvalidParameter, match="another version"):
        TuningSettings.from_dict({})
    assert (paper.learning_rate, paper.batch_size, paper.epochs, paper.max_tokens) == (6e-5, 128, 4, 128)
    assert (paper.plain.length, paper.head_size, paper.plain.vocabulary) == (40, 96, 7630)
    assert (paper.reconstruction_weight, paper.reconstruction_reduction) == (1.0, "sum")
    lengths = [dataclasses.replace(paper, method=method).virtual_tokens for method in ("prompt", "prefix", "full")]
    assert lengths == [150, 10, 0]
