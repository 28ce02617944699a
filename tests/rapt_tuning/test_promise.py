"""A training certificate repeats what that of the training texts says, whoever trains."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.rapt import TABLE as WORDS_TABLE
from rapt_tuning import tiny

from langchain_dp.accounting.metric import MetricCertificate, MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.privatize import Policies
from langchain_dp.rapt.tuning import (
    Backbone,
    IdentitySanitizer,
    PlainTokens,
    PrivatizedExamples,
    RAPTClassifier,
    RAPTClient,
)

LOUD, QUIET = 1e6, 0.01


@pytest.fixture(scope="module")
def base() -> Backbone:
    return tiny.backbone()


def released(base: Backbone, rows: Any = None, by: Any = None, **options: Any) -> PrivatizedExamples:
    """Rows, privatized by a client of another account."""
    client = RAPTClient(by or tiny.sanitizer(base, **options), max_tokens=12)
    return client.privatize(rows or tiny.examples(8), labels=tiny.LABELS)


def training(base: Backbone, examples: Any, fit: dict[str, Any] | None = None, **options: Any) -> MetricCertificate:
    """Certificate of a short training."""
    made = tiny.tuner(base, tiny.sanitizer(base, **({"eta": QUIET} | options)), epochs=1)
    return made.fit(examples, progress=False, **(fit or {})).training


def test_a_training_is_certified_at_the_eta_of_its_texts(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, texts that were hardly privatized are certified at the eta of whoever trains on them."""
    examples = released(base, tiny.examples(16), eta=LOUD)
    examples.save(tmp_path / "examples.json")
    for given in (examples, PrivatizedExamples.load(tmp_path / "examples.json")):
        found, own = training(base, given), examples.certificate
        for name in ("mechanism", "eta", "table", "replaced", "neighbor_distance", "releases", "document_spent"):
            assert getattr(found, name) == getattr(own, name), name
        assert (found.eta, found.releases, found.private) == (LOUD, 16, True)
        assert found.parameters["inference_eta"] == QUIET
        assert set(own.notes) <= set(found.notes)
        assert "privatized at eta=1e+06; plain tokens were, and questions will be, at eta=0.01" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "none"}, "NOT private"),
        ({"not_private_seed": 1}, "NOT private"),
        ({"mechanism": "laplace"}, "'laplace', here it is 'exponential'"),
        (
            {"policies": Policies(numbers="keep")},
            "only their certificate notes: 'Numbers are passed through in clear.'",
        ),
        ({"keep": ["movie"]}, "1 chosen words are passed through"),
        ({"keep": [f"word{i:02}" for i in range(30)]}, "under other settings"),
        ({"length": 12}, "filled up or cut to 12 tokens"),
    ],
)
def test_texts_under_another_promise_are_refused(base: Backbone, options: Any, said: str) -> None:
    """If it breaks, texts in clear, or with words in clear, come under the certificate of a private training."""
    if "by" in options:
        options = {"by": IdentitySanitizer(base)}
    examples = released(base, eta=LOUD, **options)
    ledger = MetricLedger()
    own = {"keep": [f"more{i:02}" for i in range(30)]} if "settings" in said else {}
    made = tiny.tuner(base, tiny.sanitizer(base, eta=QUIET, ledger=ledger, **own), epochs=1)
    for given in ({"examples": examples}, {"examples": tiny.examples(8), "validation": examples}):
        with pytest.raises(InvalidParameter, match="under the promise of this tuner") as refused:
            made.fit(progress=False, **given)
        assert said in str(refused.value)
        assert "validation examples" in str(refused.value) or "validation" not in given
    assert not list(ledger.entries())


def test_texts_in_clear_are_no_surprise_to_a_tuner_that_sanitizes_nothing(base: Backbone) -> None:
    """If it breaks, a baseline on stored texts needs a promise that it does not make; or private texts lose theirs."""
    made = tiny.tuner(base, IdentitySanitizer(base), epochs=1)
    found = made.fit(made.privatize(tiny.examples(8)), progress=False).training
    assert not found.private
    assert found.parameters["inference_eta"] == "inf"
    with pytest.raises(InvalidParameter, match="under the promise of this tuner"):
        made.fit(released(base, eta=LOUD), progress=False)


def test_texts_of_another_table_are_refused(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, ids of one table are read as words of another, or distances of both are compared as one unit."""
    rows = [{"text": f"the heart {i}", "label": tiny.LABELS[i % 2]} for i in range(8)]
    made = tiny.tuner(base, RAPTSanitizer(WORDS_TABLE, eta=2.0), epochs=1, max_tokens=8)
    foreign = RAPTClient(RAPTSanitizer(base, eta=2.0), kind="text").privatize(rows, labels=tiny.LABELS)
    with pytest.raises(InvalidParameter, match="their table is"):
        made.fit(foreign, progress=False)
    with pytest.raises(InvalidParameter, match="Privatize them with this tuner"):
        training(base, released(tiny.backbone(seed=1), eta=QUIET))
    by_hand = RAPTClassifier(made.client, lambda body: body, training=foreign.certificate)
    tables = [f"at eta=2 (exponential, {table})" for table in (foreign.certificate.table, made.client.table)]
    assert f"trained on texts privatized {'; questions are privatized '.join(tables)}." in str(by_hand.certificate())


def test_a_training_certificate_counts_its_own_plain_tokens(base: Backbone) -> None:
    """If it breaks, it says a number of plain tokens that the client of the texts had, and no text of the training."""
    examples = released(base, tiny.examples(16))  # by a client of 40
    assert "plain tokens" not in " ".join(examples.certificate.notes)
    for length, said in ((4, ["The 4 plain tokens before every text are public. Privatizing them is free."]), (0, [])):
        plain = PlainTokens(length=length, vocabulary=20)
        made = tiny.tuner(base, plain=plain, reconstruction=bool(length), epochs=1).fit(examples, progress=False)
        for certificate in (made.training, made.certificate()):
            assert [note for note in certificate.notes if "tokens before every text" in note] == said


def test_stored_texts_without_a_certificate_or_of_another_form_are_refused(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, texts of which nobody knows how they were privatized come under a promise, or a file is misread."""
    examples, path = released(base), tmp_path / "examples.json"
    for nothing in (None, "private", examples.certificate.to_dict()):
        with pytest.raises(InvalidParameter, match="come with the certificate of their privatization"):
            dataclasses.replace(examples, certificate=nothing)
    examples.save(path)
    whole = json.loads(path.read_bytes())
    bare = {name: one for name, one in whole.items() if name != "certificate"}
    damaged = [{key: one for key, one in whole.items() if key != name} for name in bare]
    damaged += [whole | {name: ["quetzal", None]} for name in bare]
    for fields, said in (
        (bare | {"certificate": None}, "come with the certificate"),
        (bare, "come with the certificate"),
        *((one, "damaged, another kind of file, or of another version") for one in damaged),
    ):
        path.write_text(json.dumps(fields))
        with pytest.raises(InvalidParameter, match=said) as refused:
            PrivatizedExamples.load(path)
        assert "quetzal" not in str(refused.value)


def test_validation_texts_are_under_the_promise_and_the_account_of_the_training_texts(base: Backbone) -> None:
    """If it breaks, one certificate counts the texts of two accounts, or hides those at a large eta."""
    ledger = MetricLedger()
    by = tiny.sanitizer(base, eta=QUIET, ledger=ledger)
    rows = [{"text": f"a {word} scene", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:24])]
    train, held = released(base, rows[:16], by), released(base, rows[16:], by)
    made = tiny.tuner(base, by, epochs=1)
    for first, second in ((train, held), (train, rows[16:]), (rows[:16], held)):
        found = made.fit(first, validation=second, progress=False).training
        assert (found.eta, found.releases) == (QUIET, 24)
    for other in (released(base, rows[16:], eta=QUIET), released(base, rows[16:], eta=LOUD, ledger=ledger)):
        before = len(list(ledger.entries()))
        for first in (train, rows[:16], tiny.examples(16)):
            with pytest.raises(InvalidParameter, match="and of the account, of the training examples"):
                made.fit(first, validation=other, progress=False)
        assert len(list(ledger.entries())) == before


def test_a_checkpoint_goes_on_with_the_release_that_it_began_with(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, a model that learned from loud texts is certified by quiet ones, given when it was resumed."""
    loud, quiet = (released(base, eta=eta) for eta in (LOUD, QUIET))
    flipped = dataclasses.replace(loud, labels=[tiny.LABELS[one == "negative"] for one in loud.labels])
    for _ in range(2):
        assert training(base, loud, {"checkpoint": tmp_path, "validation": loud}).eta == LOUD
    for train, held, said in ((quiet, quiet, "examples"), (flipped, loud, "examples"), (loud, flipped, "validation")):
        with pytest.raises(InvalidParameter, match=f"differs in {said}"):
            training(base, train, {"checkpoint": tmp_path, "validation": held})


def test_nobody_invents_how_a_model_was_trained(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, a client that was made by hand certifies that its model was trained at the client's own eta."""
    RAPTClient(tiny.sanitizer(base, eta=QUIET)).save(tmp_path)
    found = RAPTClient.load(tmp_path, tiny.sanitizer(base, eta=LOUD))
    assert found.trained is None
    classifier = RAPTClassifier(found, lambda body: body)
    assert not [note for note in classifier.certificate().notes if "was trained on" in note]


def test_a_folder_of_another_classifier_certifies_nothing(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, a model that was trained in clear is loaded with the certificate that lay in its folder."""
    whole = tiny.tuner(base, tiny.sanitizer(base, eta=QUIET), epochs=1).fit(tiny.examples(8), progress=False)
    folder = tmp_path / "whole"
    whole.save(folder)
    whole.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for other, named in (
        (RAPTClassifier(whole.client, whole.provider), "certificate.json"),
        (RAPTClassifier(whole.client, lambda body: body, training=whole.training), "provider.json, model.safetensors"),
    ):
        with pytest.raises(InvalidParameter, match=f"without {named} of another"):
            other.save(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        other.save(tmp_path / f"without {named}")
