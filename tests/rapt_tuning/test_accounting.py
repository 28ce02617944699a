"""Every privatization of a training text is charged, before it is made, and the certificate says how often it was."""

from __future__ import annotations

import warnings
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
ROWS = [{"text": f"the {word} was", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:16])]


def entries(ledger: MetricLedger) -> int:
    return len(list(ledger.entries()))


def tuned(ledger: MetricLedger, rows: Any, fit: dict[str, Any] | None = None, **changes: Any) -> RAPTClassifier:
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger), **changes)
    return made.fit(rows, progress=False, **(fit or {}))


def test_a_text_is_released_once_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, stored releases are charged again in each epoch, or an epoch trains on other draws."""
    seen, epoch, ledger = [], Trainer._epoch, MetricLedger()

    def watched(self: Trainer, texts: Any, done: Any) -> None:
        seen.append(str(texts.inputs))
        epoch(self, texts, done)

    monkeypatch.setattr(Trainer, "_epoch", watched)
    training = tuned(ledger, tiny.examples(16), epochs=3).training
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert [entry.eta for entry in ledger.entries()] == [ETA] * 16
    assert (training.private, training.releases) == (True, 16)
    assert training.document_spent == pytest.approx(ETA)
    assert {name: one for name, one in training.parameters.items() if name not in ("account", "settings")} == {
        "inference_eta": ETA, "training_texts": 16, "training_epochs": 3,
    }  # fmt: skip
    notes = " ".join(training.notes)
    assert "privatized once and stored" in notes
    assert "labels of the training texts are in clear" in notes


def test_training_and_validation_are_charged_together_or_not_at_all() -> None:
    """If it breaks, texts are privatized and charged for a training that cannot begin, or validation is free."""
    mine = [{**row, "author": "one"} for row in ROWS]
    for limit, fits in ((13.5, False), (14.0, True)):
        ledger, base = MetricLedger(limit * ETA), tiny.backbone()
        made = RAPTPromptTuner(
            tiny.sanitizer(base, eta=ETA, ledger=ledger), labels=tiny.LABELS, backbone=base,
            settings=tiny.settings(), user_key="author",
        )  # fmt: skip
        if not fits:
            with pytest.raises(BudgetExceeded):
                made.fit(mine[:8], validation=mine[6:12], progress=False)
            assert not entries(ledger)
            continue
        for _ in range(2):  # the second time all is released: it costs nothing more
            made.fit(mine[:8], validation=mine[6:12], progress=False)
            assert entries(ledger) == 14
        with pytest.raises(BudgetExceeded):
            made.fit(mine[:8], validation=mine[6:13], progress=False)


def test_a_client_says_that_nobody_reaches_its_limit() -> None:
    """If it breaks, a limit holds for nobody, and only who reads the certificate hears of it."""
    one, other = (
        RAPTClient(tiny.sanitizer(eta=ETA, ledger=MetricLedger(100.0)), PlainTokens(length=2)) for _ in range(2)
    )
    with pytest.warns(UserWarning, match=r"no user's limit=100"):
        one.request(["the film was good"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.request(["the film was good"], user="one")


def test_texts_are_charged_to_their_authors() -> None:
    """If it breaks, a limit per user does not hold for what users wrote."""
    ledger, base = MetricLedger(), tiny.backbone()
    made = RAPTPromptTuner(
        tiny.sanitizer(base, eta=ETA, ledger=ledger), labels=tiny.LABELS, backbone=base, settings=tiny.settings(),
        user_key="author",
    )  # fmt: skip
    made.fit(tiny.examples(18), progress=False)
    assert [ledger.spent(user=f"author {i}") for i in range(3)] == pytest.approx([6 * ETA] * 3)
    made.privatize([{**row, "author": "another", "text": f"{row['text']} movie"} for row in tiny.examples(2)])
    assert ledger.spent(user="another") == pytest.approx(2 * ETA)
    with pytest.raises(InvalidParameter, match="example 2 to have a string under user_key='author'"):
        made.fit([*tiny.examples(2), {"text": "good", "label": "positive"}], progress=False)


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
def test_plain_tokens_are_free_and_privatized_like_texts(mechanism: str) -> None:
    """If it breaks, public tokens use an account up, or reconstruction is a copy of tokens that bear no noise."""
    base = tiny.backbone()
    for eta, low, high in ((tiny.CLOSE, 0.0, 0.2), (tiny.FAR, 1.0, 1.0)):
        ledger = MetricLedger()
        by = tiny.sanitizer(base, eta=eta, mechanism=mechanism, ledger=ledger)
        made = tiny.tuner(base, by, plain=PlainTokens(length=24, vocabulary=20, choice="fresh"))
        targets, sent = made.client.plain.draw(50, np.random.default_rng(0))
        kept = (made.client.plain.candidates[targets] == np.array(sent)).mean()
        # At random a token comes out as itself once in 32 times: 1,200 draws stay below 0.2 but for 1e-9.
        assert low <= kept <= high
        assert not entries(ledger)


def test_stored_releases_are_not_charged_again(tmp_path: Path) -> None:
    """If it breaks, what was paid for cannot be used twice: in two trainings, or after a crash."""
    ledger = MetricLedger()
    made = tiny.tuner(by=tiny.sanitizer(eta=ETA, ledger=ledger, cache=False))
    released = made.privatize(tiny.examples(16))
    released.save(tmp_path / "released.json")
    stored = PrivatizedExamples.load(tmp_path / "released.json")
    assert (stored.inputs, stored.labels, stored.certificate) == (
        released.inputs, released.labels, released.certificate,
    )  # fmt: skip
    for _ in range(2):
        made.fit(stored, checkpoint=tmp_path / "state", progress=False)
    with pytest.raises(InvalidParameter, match="privatized examples with checkpoint="):
        made.fit(tiny.examples(16), checkpoint=tmp_path / "raw", progress=False)
    assert entries(ledger) == 16


def test_no_privacy_says_so() -> None:
    """If it breaks, a baseline on raw text carries a promise."""
    made = tiny.tuner(by=IdentitySanitizer(tiny.backbone()))
    classifier = made.fit(tiny.examples(16), progress=False)
    seeded = tiny.tuner(by=tiny.sanitizer(eta=ETA, not_private_seed=1)).fit(tiny.examples(16), progress=False)
    privatized = made.privatize(tiny.examples(8)).certificate
    for certificate in (classifier.training, classifier.certificate(), privatized, seeded.training):
        assert not certificate.private
        assert "NOT PRIVATE" in repr(certificate)
