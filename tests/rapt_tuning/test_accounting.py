"""Every privatization of a training text is charged, before it is made, and the certificate says how often it was."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rapt_tuning import tiny

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter
from langchain_dp.rapt.tuning import (
    IdentitySanitizer,
    PlainTokens,
    PrivatizedExamples,
    RAPTClassifier,
    RAPTClient,
    RAPTPromptTuner,
)
from langchain_dp.rapt.tuning.training import Trainer

ETA = 3.0


def tuned(ledger: MetricLedger, rows: Any, fit: dict[str, Any] | None = None, **changes: Any) -> RAPTClassifier:
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger), **changes)
    return made.fit(rows, progress=False, **(fit or {}))


def test_once_is_one_release_a_text_whatever_the_epochs() -> None:
    """If it breaks, stored releases are charged again in each epoch, or not at all."""
    ledger = MetricLedger()
    classifier = tuned(ledger, tiny.examples(16), epochs=3)
    assert [entry.eta for entry in ledger.entries()] == [ETA] * 16
    training = classifier.training
    assert training is not None
    assert training.private
    assert training.releases == 16
    assert training.document_spent == pytest.approx(ETA)
    assert {name: one for name, one in training.parameters.items() if name not in ("account", "settings")} == {
        "training_eta": ETA,
        "training_mechanism": "exponential",
        "inference_eta": ETA,
        "training_privatized": "once",
        "training_texts": 16,
        "training_epochs": 3,
        "training_releases_of_a_text": 1,
    }
    notes = " ".join(training.notes)
    assert "privatized once and stored" in notes
    assert "labels of the training texts are in clear" in notes


def test_each_epoch_anew_costs_each_time() -> None:
    """If it breaks, fresh noise for every epoch is paid once: its true price is the number of epochs."""
    ledger = MetricLedger()
    rows = [{"text": f"the {word} was good", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:16])]
    classifier = tuned(ledger, rows, epochs=3, privatize="epoch")
    assert len(list(ledger.entries())) == 48
    training = classifier.training
    assert training is not None
    assert training.releases == 48
    assert training.document_spent == pytest.approx(3 * ETA)
    assert training.parameters["training_releases_of_a_text"] == 3
    assert "anew for each of 3 epochs, each time at the full price" in " ".join(training.notes)
    assert "given out again" not in " ".join(training.notes), "no text of this training was"


def test_each_epoch_sees_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, "epoch" pays for new releases and trains on the old ones; or "once" draws new ones for free."""
    for mode, different in (("once", 1), ("epoch", 3)):
        seen = []
        epoch = Trainer._epoch

        def watched(self: Trainer, texts: Any, done: Any, seen: Any = seen, epoch: Any = epoch) -> None:
            seen.append(str(texts.inputs))
            epoch(self, texts, done)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_epoch", watched)
            made = tiny.tuner(by=tiny.sanitizer(eta=tiny.CLOSE), epochs=3, privatize=mode)
            made.fit(tiny.examples(16), progress=False)
        assert len(seen) == 3
        assert len(set(seen)) == different


def test_a_limit_stops_training_before_anything_is_drawn() -> None:
    """If it breaks, texts are privatized beyond what their owners agreed to."""
    rows = [{**row, "author": "one"} for row in tiny.examples(16)]
    ledger = MetricLedger(15 * ETA, document_limit=100.0)
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger))
    made._user_key = "author"
    with pytest.raises(BudgetExceeded):
        made.fit(rows, progress=False)
    assert not list(ledger.entries())


def test_a_client_says_that_nobody_reaches_its_limit() -> None:
    """If it breaks, a limit holds for nobody, and only who reads the certificate hears of it."""
    client = RAPTClient(tiny.sanitizer(eta=ETA, ledger=MetricLedger(100.0)), PlainTokens(length=2))
    with pytest.warns(UserWarning, match=r"no user's limit=100"):
        client.request(["the film was good"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = RAPTClient(tiny.sanitizer(eta=ETA, ledger=MetricLedger(100.0)), PlainTokens(length=2))
        other.request(["the film was good"], user="one")


def test_a_training_that_a_limit_would_stop_is_refused_before_it_begins(tmp_path: Path) -> None:
    """If it breaks, epochs, or validation texts, are privatized and charged for a training that cannot end."""
    rows = [{"text": f"the {word} was", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:16])]
    for epochs, fits in ((3, False), (2, True)):
        ledger = MetricLedger(document_limit=2.5 * ETA)
        for where in ({}, {"checkpoint": tmp_path / str(epochs)}) if not fits else ({},):
            with nullcontext() if fits else pytest.raises(BudgetExceeded, match=r"document 3 x eta 3.*fewer epochs"):
                tuned(ledger, rows, where, epochs=epochs, privatize="epoch")
        assert len(list(ledger.entries())) == (32 if fits else 0)
    mine = [{**row, "author": "one"} for row in rows]
    for limit, fits in ((11.5, False), (12.0, True)):
        ledger = MetricLedger(limit * ETA)
        made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger))
        made._user_key = "author"
        with nullcontext() if fits else pytest.raises(BudgetExceeded, match="one user 12 x eta 3"):
            # Two of the rows are in both: the release of then is given out again.
            made.fit(mine[:8], validation=mine[6:12], progress=False)
        assert len(list(ledger.entries())) == (12 if fits else 0)
        if fits:  # all is released: it costs nothing more
            made.fit(mine[:8], validation=mine[6:12], progress=False)
            with pytest.raises(BudgetExceeded):
                made.fit(mine[:8], validation=mine[6:13], progress=False)


def test_texts_are_charged_to_their_authors() -> None:
    """If it breaks, a limit per user does not hold for what users wrote."""
    ledger = MetricLedger()
    base = tiny.backbone()
    made = RAPTPromptTuner(
        tiny.sanitizer(base, eta=ETA, ledger=ledger),
        labels=tiny.LABELS,
        backbone=base,
        settings=tiny.settings(),
        user_key="author",
    )
    made.fit(tiny.examples(18), progress=False)
    assert [ledger.spent(user=f"author {i}") for i in range(3)] == pytest.approx([6 * ETA] * 3)
    others = [{**row, "author": "another", "text": f"{row['text']} movie"} for row in tiny.examples(2)]
    made.privatize(others)
    assert ledger.spent(user="another") == pytest.approx(2 * ETA)
    with pytest.raises(InvalidParameter, match="example 2 to have a string under user_key='author'"):
        made.fit([*tiny.examples(2), {"text": "good", "label": "positive"}], progress=False)


def test_validation_and_questions_are_charged() -> None:
    """If it breaks, something leaves that nobody paid for."""
    ledger = MetricLedger()
    held = [{"text": f"a {word} scene", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:8])]
    classifier = tuned(ledger, tiny.examples(16), {"validation": held})
    assert len(list(ledger.entries())) == 24
    classifier.invoke("a question of its own")
    classifier.batch(["one more", "and another"])
    classifier.predict_proba(["the last one"])
    assert len(list(ledger.entries())) == 28
    classifier.invoke("a question of its own")  # the release of then is given out again
    assert len(list(ledger.entries())) == 28


def test_plain_tokens_are_free() -> None:
    """If it breaks, public tokens eat up the account of the texts."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger))
    made.client.plain_rows(100, np.random.default_rng(0))
    assert not list(ledger.entries())


def test_plain_tokens_are_privatized_like_texts() -> None:
    """If it breaks, reconstruction is a copy: the model sees the tokens that it should recover from noise."""
    base = tiny.backbone()
    length = 24
    for mechanism in ("exponential", "laplace"):
        for eta, low, high in ((tiny.CLOSE, 0.0, 0.2), (tiny.FAR, 1.0, 1.0)):
            by = tiny.sanitizer(base, eta=eta, mechanism=mechanism)
            made = tiny.tuner(base, by, plain=tiny.PlainTokens(length=length, vocabulary=20, choice="fresh"))
            targets, sent = made.client.plain_rows(50, np.random.default_rng(0))
            kept = (made.client.plain.candidates[targets] == np.array(sent)).mean()
            # At random a token comes out as itself once in 32 times: 1,200 draws stay below 0.2 but for 1e-9.
            assert low <= kept <= high


def test_stored_releases_are_not_charged_again(tmp_path: Path) -> None:
    """If it breaks, what was paid for cannot be used twice: in two trainings, or after a crash."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger, cache=False))
    released = made.privatize(tiny.examples(16))
    released.save(tmp_path / "released.json")
    stored = PrivatizedExamples.load(tmp_path / "released.json")
    assert (stored.inputs, stored.labels) == (released.inputs, released.labels)
    assert stored.certificate == released.certificate
    for _ in range(2):
        made.fit(stored, progress=False)
    assert len(list(ledger.entries())) == 16
    made.fit(tiny.examples(16), checkpoint=tmp_path / "state", progress=False)
    made.fit(tiny.examples(16), checkpoint=tmp_path / "state", progress=False)
    assert len(list(ledger.entries())) == 32
    with pytest.raises(InvalidParameter, match="raw examples under privatize='epoch'"):
        tiny.tuner(privatize="epoch").fit(stored, progress=False)


def test_a_crash_between_epochs_costs_no_epoch_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, resuming pays again for the epoch under way."""
    ledger = MetricLedger()
    rows = tiny.examples(16)
    step, taken = Trainer._step, []

    def interrupted(self: Trainer, *args: Any) -> None:
        if len(taken) == 3:  # in the second epoch of two steps each
            raise KeyboardInterrupt
        taken.append(1)
        step(self, *args)

    fit = {"checkpoint": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned(ledger, rows, fit, privatize="epoch", epochs=3)
    assert len(list(ledger.entries())) == 32
    tuned(ledger, rows, fit, privatize="epoch", epochs=3)
    assert len(list(ledger.entries())) == 48


def test_no_privacy_says_so() -> None:
    """If it breaks, a baseline on raw text carries a promise."""
    made = tiny.tuner(by=IdentitySanitizer(tiny.backbone().table()))
    classifier = made.fit(tiny.examples(16), progress=False)
    for certificate in (classifier.training, classifier.certificate(), made.privatize(tiny.examples(8)).certificate):
        assert certificate is not None
        assert not certificate.private
        assert "NOT PRIVATE" in repr(certificate)
    seeded = tiny.tuner(by=tiny.sanitizer(eta=ETA, not_private_seed=1)).fit(tiny.examples(16), progress=False)
    assert seeded.training is not None
    assert not seeded.training.private
