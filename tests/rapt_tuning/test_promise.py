"""A training certificate repeats what that of the training texts says, whoever trains."""

from __future__ import annotations

import dataclasses
import json
import math
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
    RAPTPromptTuner,
)
from langchain_dp.rapt.tuning.promise import joined
from langchain_dp.rapt.tuning.training import Trainer

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
    found = made.fit(examples, progress=False, **(fit or {})).training
    assert found is not None
    return found


def test_a_training_is_certified_at_the_eta_of_its_texts(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, texts that were hardly privatized are certified at the eta of whoever trains on them."""
    examples = released(base, tiny.examples(16), eta=LOUD)
    examples.save(tmp_path / "examples.json")
    for given in (examples, PrivatizedExamples.load(tmp_path / "examples.json")):
        found, own = training(base, given), examples.certificate
        for name in ("mechanism", "eta", "table", "replaced", "neighbor_distance", "releases", "document_spent"):
            assert getattr(found, name) == getattr(own, name), name
        assert (found.eta, found.releases, found.private) == (LOUD, 16, True)
        assert (found.parameters["training_eta"], found.parameters["inference_eta"]) == (LOUD, QUIET)
        assert set(own.notes) <= set(found.notes)
        assert "privatized at eta=1e+06; plain tokens were, and questions will be, at eta=0.01" in " ".join(found.notes)


def test_both_etas_travel_with_a_saved_classifier(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, who loads the classifier reads the eta of questions as that of the training texts."""
    by = tiny.sanitizer(base, eta=QUIET)
    made = tiny.tuner(base, by, epochs=1).fit(released(base, eta=LOUD), progress=False)
    made.save(tmp_path)
    back = RAPTClassifier.load(tmp_path, by, backbone=base)
    assert back.training == made.training
    (tmp_path / "certificate.json").unlink()
    for one in (made, back, RAPTClassifier.load(tmp_path, by, backbone=base)):
        notes = " ".join(one.certificate().notes)
        assert "trained on texts privatized at eta=1e+06 (exponential); questions are privatized at eta=0.01" in notes


def test_validation_texts_do_not_hide_how_training_texts_were_privatized(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, validation texts as loud as the questions make it look as if training texts had been, too."""
    by = tiny.sanitizer(base, eta=LOUD)
    held = released(base, eta=LOUD)
    made = tiny.tuner(base, by, epochs=1).fit(released(base, eta=QUIET), validation=held, progress=False)
    made.save(tmp_path)
    back = RAPTClassifier.load(tmp_path, by, backbone=base)
    (tmp_path / "certificate.json").unlink()
    for one in (made, back, RAPTClassifier.load(tmp_path, by, backbone=base)):
        notes = " ".join(one.certificate().notes)
        assert "trained on texts privatized at eta=0.01 (exponential); questions are privatized at eta=1e+06" in notes
    assert made.training is not None
    assert made.training.parameters["training_mechanism"] == "exponential"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "none"}, "NOT private"),
        ({"not_private_seed": 1}, "NOT private"),
        ({"mechanism": "laplace"}, "'laplace', here it is 'exponential'"),
        ({"policies": Policies(numbers="keep")}, "only of them it is said: 'Numbers are passed through in clear.'"),
        ({"keep": ["movie"]}, "1 chosen words are passed through"),
        ({"length": 12}, "filled up or cut to 12 tokens"),
    ],
)
def test_texts_under_another_promise_are_used_knowingly_only(base: Backbone, options: Any, said: str) -> None:
    """If it breaks, texts in clear, or with words in clear, come under the certificate of a private training."""
    if "by" in options:
        options = {"by": IdentitySanitizer(base.table())}
    examples = released(base, eta=LOUD, **options)
    ledger = MetricLedger()
    made = tiny.tuner(base, tiny.sanitizer(base, eta=QUIET, ledger=ledger), epochs=1)
    for given in ({"examples": examples}, {"examples": tiny.examples(8), "validation": examples}):
        with pytest.raises(InvalidParameter, match="accept_other_promise=True") as refused:
            made.fit(progress=False, **given)
        assert said in str(refused.value)
        assert "validation examples" in str(refused.value) or "validation" not in given
    assert not list(ledger.entries())
    found = made.fit(examples, accept_other_promise=True, progress=False).training
    assert found is not None
    own = examples.certificate
    assert (found.private, found.reason, found.mechanism, found.eta) == (
        own.private,
        own.reason,
        own.mechanism,
        own.eta,
    )
    assert set(own.notes) <= set(found.notes)


def test_texts_in_clear_are_no_surprise_to_a_tuner_that_sanitizes_nothing(base: Backbone) -> None:
    """If it breaks, a baseline on stored texts needs a promise that it does not make; or private texts lose theirs."""
    made = tiny.tuner(base, IdentitySanitizer(base.table()), epochs=1)
    stored = made.privatize(tiny.examples(8))
    found = made.fit(stored, progress=False).training
    assert found is not None
    assert not found.private
    assert found.parameters["training_eta"] == "inf"
    with pytest.raises(InvalidParameter, match="accept_other_promise=True"):
        made.fit(released(base, eta=LOUD), progress=False)


def test_text_of_another_table_is_used_knowingly_and_its_tokens_never(base: Backbone) -> None:
    """If it breaks, distances of one table are certified in the unit of another."""
    rows = [{"text": f"the heart {i}", "label": tiny.LABELS[i % 2]} for i in range(8)]
    made = tiny.tuner(base, RAPTSanitizer(WORDS_TABLE, eta=QUIET), epochs=1, max_tokens=8)
    client = RAPTClient(RAPTSanitizer(base.table(), eta=LOUD), kind="text")
    foreign = client.privatize(rows, labels=tiny.LABELS)
    with pytest.raises(InvalidParameter, match="their table is"):
        made.fit(foreign, progress=False)
    found = made.fit(foreign, accept_other_promise=True, progress=False).training
    assert found is not None
    assert found.table == client.table
    with pytest.raises(InvalidParameter, match="over one table"):
        made.fit(foreign, validation=rows, accept_other_promise=True, progress=False)
    ids = released(tiny.backbone(seed=1), eta=QUIET)
    with pytest.raises(InvalidParameter, match="Privatize them with this tuner"):
        tiny.tuner(base, tiny.sanitizer(base, eta=QUIET)).fit(ids, accept_other_promise=True, progress=False)


def test_the_same_eta_of_another_table_is_another_promise(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, a reader compares distances of two tables, which are different units, by their numbers."""
    rows = [{"text": f"the heart {i}", "label": tiny.LABELS[i % 2]} for i in range(8)]
    foreign = RAPTClient(RAPTSanitizer(base.table(), eta=2.0), kind="text").privatize(rows, labels=tiny.LABELS)
    by = RAPTSanitizer(WORDS_TABLE, eta=2.0)
    made = tiny.tuner(base, by, epochs=1, max_tokens=8)
    classifier = made.fit(foreign, accept_other_promise=True, progress=False)
    assert classifier.training is not None
    one, two = foreign.certificate.table, made.client.table
    assert (
        f"privatized at eta=2 per unit of distance in {one}; plain tokens were, and questions will be, at eta=2 per "
        f"unit of distance in {two}." in " ".join(classifier.training.notes)
    )
    classifier.save(tmp_path)
    back = RAPTClassifier.load(tmp_path, by, backbone=base)
    (tmp_path / "certificate.json").unlink()
    for made_of in (classifier, back, RAPTClassifier.load(tmp_path, by, backbone=base)):
        notes = " ".join(made_of.certificate().notes)
        assert f"trained on texts privatized at eta=2 per unit of distance in {one} (exponential)" in notes
        assert f"questions are privatized at eta=2 per unit of distance in {two} (exponential)" in notes


def test_a_training_certificate_counts_its_own_plain_tokens(base: Backbone) -> None:
    """If it breaks, it says a number of plain tokens that the client of the texts had, and no text of the training."""
    examples = released(base, tiny.examples(16))  # by a client of 40
    assert "plain tokens" not in " ".join(examples.certificate.notes)
    for length, said in ((4, ["The 4 plain tokens before every text are public; privatizing them is free."]), (0, [])):
        plain = PlainTokens(length=length, vocabulary=20)
        made = tiny.tuner(base, plain=plain, reconstruction=bool(length), epochs=1).fit(examples, progress=False)
        assert made.training is not None
        for certificate in (made.training, made.certificate()):
            assert [note for note in certificate.notes if "tokens before every text" in note] == said


def test_texts_without_a_certificate_are_refused(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, texts of which nobody knows how they were privatized come under a promise."""
    examples = released(base)
    for nothing in (None, "private", examples.certificate.to_dict()):
        with pytest.raises(InvalidParameter, match="come with the certificate of their privatization"):
            dataclasses.replace(examples, certificate=nothing)
    path = tmp_path / "examples.json"
    examples.save(path)
    whole = json.loads(path.read_bytes())
    for change in ({"certificate": None}, {}):
        path.write_text(json.dumps({name: one for name, one in whole.items() if name != "certificate"} | change))
        with pytest.raises(InvalidParameter, match="come with the certificate of their privatization"):
            PrivatizedExamples.load(path)


@pytest.mark.parametrize("name", ["format", "kind", "inputs", "labels", "truncated"])
def test_stored_texts_with_a_field_too_few_or_of_another_form_are_refused(
    name: str, base: Backbone, tmp_path: Path
) -> None:
    """If it breaks, a damaged file ends in a KeyError, or numbers are taken for labels."""
    path = tmp_path / "examples.json"
    released(base).save(path)
    whole = json.loads(path.read_bytes())
    for fields in ({key: one for key, one in whole.items() if key != name}, whole | {name: ["quetzal", None]}):
        path.write_text(json.dumps(fields))
        with pytest.raises(InvalidParameter, match="damaged, or of another version") as refused:
            PrivatizedExamples.load(path)
        assert "quetzal" not in str(refused.value)


def test_validation_texts_are_part_of_the_promise(base: Backbone) -> None:
    """If it breaks, validation texts at a large eta, or in clear, hide behind a certificate with a small one."""
    train, held = released(base, tiny.examples(16), eta=QUIET), released(base, eta=LOUD)
    found = training(base, train, {"validation": held})
    assert (found.eta, found.releases) == (LOUD, 24)
    assert found.document_spent == pytest.approx(LOUD + QUIET)
    assert (found.parameters["training_eta"], found.parameters["validation_eta"]) == (QUIET, LOUD)
    assert "validation texts were privatized at eta=1e+06" in " ".join(found.notes)
    clear = released(base, by=IdentitySanitizer(base.table()))
    found = training(base, train, {"validation": clear, "accept_other_promise": True})
    assert not found.private
    assert math.isinf(found.eta)
    assert "validation texts are NOT private" in " ".join(found.notes)


def test_releases_of_one_account_are_counted_once(base: Backbone) -> None:
    """If it breaks, training and validation texts of one ledger are certified twice, or those of two only once."""
    held = [{"text": f"a {word} scene", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:8])]
    assert training(base, tiny.examples(16), {"validation": held}).releases == 24
    one, two = (
        dataclasses.replace(
            released(base, eta=QUIET).certificate, user_spent=spent, user_limit=4.0, document_limit=limit
        )
        for spent, limit in ((1.0, 3.0), (2.0, None))
    )
    both = joined(one, two)
    assert (both.releases, both.user_spent, both.user_limit, both.document_limit) == (16, 3.0, 8.0, None)
    assert "account" not in both.parameters
    assert joined(one, one).releases == 8


def test_every_epoch_is_counted_though_the_account_ended(
    base: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a training that was resumed with a new ledger in memory certifies its last epochs only."""
    rows = [{"text": f"the {word} was good", "label": tiny.LABELS[i % 2]} for i, word in enumerate(tiny.WORDS[:16])]

    def fit() -> tuple[MetricLedger, MetricCertificate | None]:
        ledger = MetricLedger()
        made = tiny.tuner(base, tiny.sanitizer(base, eta=3.0, ledger=ledger), epochs=3, privatize="epoch")
        return ledger, made.fit(rows, checkpoint=tmp_path, progress=False).training

    step, taken = Trainer._step, []

    def interrupted(self: Trainer, *args: Any) -> None:
        if len(taken) == 3:  # in the second epoch of two steps each
            raise KeyboardInterrupt
        taken.append(1)
        step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit()
    for charged in (16, 0):  # the second time everything is done
        ledger, found = fit()
        assert len(list(ledger.entries())) == charged
        assert found is not None
        assert (found.releases, found.parameters["training_releases_of_a_text"]) == (48, 3)
        assert found.document_spent == pytest.approx(9.0)


def test_a_checkpoint_keeps_the_promise_of_its_texts(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, texts that were stored with numbers in clear go on under a sanitizer that hides them."""
    ledger = MetricLedger()

    def made(**options: Any) -> Any:
        return tiny.tuner(base, tiny.sanitizer(base, ledger=ledger, **options), epochs=1)

    first = made(policies=Policies(numbers="keep")).fit(tiny.examples(8), checkpoint=tmp_path, progress=False)
    again = made(policies=Policies(numbers="keep")).fit(tiny.examples(8), checkpoint=tmp_path, progress=False)
    assert first.training == again.training
    with pytest.raises(InvalidParameter, match=r"checkpoint to hold texts under the promise.*Numbers"):
        made().fit(tiny.examples(8), checkpoint=tmp_path, progress=False)


def test_a_checkpoint_goes_on_with_the_release_that_it_began_with(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, a model that learned from loud texts is certified by quiet ones, given when it was resumed."""
    loud, quiet = (released(base, eta=eta) for eta in (LOUD, QUIET))
    training(base, loud, {"checkpoint": tmp_path})
    assert training(base, loud, {"checkpoint": tmp_path}).eta == LOUD
    for other in (quiet, tiny.examples(8)):
        with pytest.raises(InvalidParameter, match="differs in privatized examples"):
            training(base, other, {"checkpoint": tmp_path})


def test_a_checkpoint_goes_on_with_the_texts_that_it_began_with(base: Backbone, tmp_path: Path) -> None:
    """If it breaks, who trains on other texts gets the model of the ones before, and their certificate."""
    ledger = MetricLedger()
    rows, others = tiny.examples(16), tiny.examples(16, seed=9)
    training(base, rows, {"checkpoint": tmp_path, "validation": others}, ledger=ledger)
    training(base, rows, {"checkpoint": tmp_path, "validation": others}, ledger=ledger)
    for train, held, said in ((others, others, "examples of account"), (rows, rows, "validation examples of account")):
        with pytest.raises(InvalidParameter, match=f"differs in {said}"):
            training(base, train, {"checkpoint": tmp_path, "validation": held}, ledger=ledger)
    unknown = "whether that was begun with the same texts is not known"
    assert unknown not in str(training(base, rows, {"checkpoint": tmp_path, "validation": others}, ledger=ledger).notes)
    with pytest.warns(UserWarning, match="begun with these texts"):  # an account in memory ended with its process
        assert unknown in str(training(base, rows, {"checkpoint": tmp_path, "validation": others}).notes)
    training(base, rows, {"checkpoint": tmp_path / "other", "validation": others}, ledger=MetricLedger())
    one, two = (json.loads((tmp_path / part / "checkpoint.json").read_bytes())["marks"] for part in ("", "other"))
    assert len(one) == len(two) == 2
    assert not set(one.values()) & set(two.values()), "without a key, whoever sees the folder tries out guesses"


@pytest.mark.parametrize("clear", [True, False])
def test_a_checkpoint_goes_on_with_the_labels_that_it_began_with(clear: bool, base: Backbone, tmp_path: Path) -> None:
    """If it breaks, who trains on other data gets the model of the old ones: labels tell, and so do texts in clear."""

    def fit(rows: list[dict[str, Any]]) -> None:
        by: Any = IdentitySanitizer(base.table()) if clear else tiny.sanitizer(base)
        tiny.tuner(base, by, epochs=1).fit(rows, checkpoint=tmp_path, progress=False)

    rows = tiny.examples(16)
    fit(rows)
    flipped = [{**row, "label": tiny.LABELS[row["label"] == "negative"]} for row in rows]
    with pytest.raises(InvalidParameter, match=r"differs in .*labels of examples"):
        fit(flipped)
    if clear:
        fit(rows)
        with pytest.raises(InvalidParameter, match="differs in examples"):
            fit(tiny.examples(16, seed=9))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda word: True, lambda word: False),
        (
            [f"word{i:02}" for i in range(30)],
            [*(f"word{i:02}" for i in range(20)), *(f"more{i:02}" for i in range(10))],
        ),
    ],
    ids=["functions", "long lists"],
)
def test_other_kept_words_are_another_promise(base: Backbone, before: Any, after: Any, tmp_path: Path) -> None:
    """If it breaks, texts whose words are all in clear are trained on under the certificate of a sanitizer of none."""
    ledger = MetricLedger()

    def made(keep: Any) -> RAPTPromptTuner:
        return tiny.tuner(base, tiny.sanitizer(base, eta=QUIET, ledger=ledger, keep=keep), epochs=1)

    first, second = made(before), made(after)
    first.fit(tiny.examples(8), checkpoint=tmp_path, progress=False)
    first.fit(tiny.examples(8), checkpoint=tmp_path, progress=False)  # its own goes on
    with pytest.raises(InvalidParameter, match="under other settings"):
        second.fit(tiny.examples(8), checkpoint=tmp_path, progress=False)
    with pytest.raises(InvalidParameter, match="under other settings"):
        second.fit(first.privatize(tiny.examples(8)), progress=False)
    assert first.fit(first.privatize(tiny.examples(8)), progress=False).training is not None


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
