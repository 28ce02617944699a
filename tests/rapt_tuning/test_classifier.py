"""The classifier as a Runnable, and what it leaves on disk."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.canary import RecordingHandler, Reporting
from fakes.styles import STYLES
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from rapt_tuning import tiny

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PrivateDataError
from langchain_dp.rapt.tuning import IdentitySanitizer, PredictionRequest, RAPTClassifier, RAPTClient, RAPTProvider
from langchain_dp.records import PrivateRecords
from langchain_dp.redact import PrivateArgs

RAW = "the quetzal movie was awful"


@pytest.fixture(scope="module")
def trained() -> RAPTClassifier:
    return tiny.tuner(method="full", epochs=30, learning_rate=0.01).fit(tiny.examples(40), progress=False)


def with_sanitizer(trained: RAPTClassifier, **options: Any) -> RAPTClassifier:
    """The same model behind another account."""
    client = RAPTClient(tiny.sanitizer(**options), trained.client.plain.settings, max_tokens=12)
    return RAPTClassifier(client, trained.provider, training=trained.training)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_answers_with_a_label_and_shows_no_text(trained: RAPTClassifier, style: str) -> None:
    """If it breaks, a call style fails, or tells callbacks what was asked."""
    watching = RecordingHandler()
    assert STYLES[style](trained, RAW, {"callbacks": [watching]}) == "negative"
    assert not any("quetzal" in seen for seen in watching.seen)
    assert any("withheld" in seen for seen in watching.seen)
    assert any("negative" in seen for seen in watching.seen)


def test_probabilities_are_those_of_the_labels(trained: RAPTClassifier) -> None:
    """If it breaks, columns are in another order than labels, or rows in another order than texts."""
    chances = trained.predict_proba(["the movie was very good", "the movie was very bad", "good", ""])
    assert chances.shape == (4, 2)
    assert np.allclose(chances.sum(axis=1), 1)
    assert [trained.labels[i] for i in chances.argmax(axis=1)][:2] == ["positive", "negative"]
    assert trained.batch([]) == []
    assert trained.predict_proba([]).shape[0] == 0
    assert trained.predict_proba(np.array(["good", "bad"])).shape == (2, 2)  # type: ignore[arg-type]  # as they come


def test_the_answer_is_a_function_of_what_was_released(trained: RAPTClassifier) -> None:
    """If it breaks, the raw text finds a way around the sanitizer: at eta near 0 labels must not follow the texts."""
    held = tiny.examples(200, seed=8)
    noisy = with_sanitizer(trained, eta=tiny.CLOSE)
    answers = noisy.batch([row["text"] for row in held])
    right = np.mean([a == row["label"] for a, row in zip(answers, held, strict=True)])
    # 200 fair coins leave 0.5 by 0.17 less than once in 10^5 runs; a leak would give 1.
    assert 0.33 < right < 0.67
    clear = trained.batch([row["text"] for row in held])
    assert np.mean([a == row["label"] for a, row in zip(clear, held, strict=True)]) > 0.9


def test_a_batch_is_charged_together_or_not_at_all(trained: RAPTClassifier) -> None:
    """If it breaks, half a batch is paid for when the other half is refused, or return_exceptions is ignored."""
    ledger = MetricLedger(10.0, document_limit=100.0)
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger)
    texts = ["good movie", "bad movie", "great movie"]
    with pytest.raises(BudgetExceeded):
        asked.batch(texts, user="anna")
    assert not list(ledger.entries())
    found = asked.batch(texts, user="anna", return_exceptions=True)
    assert [type(one) for one in found] == [str, str, BudgetExceeded]
    again = asyncio.run(asked.abatch(texts, user="anna", return_exceptions=True))
    assert again[:2] == found[:2]
    assert isinstance(again[2], BudgetExceeded)
    with pytest.raises(BudgetExceeded):
        asyncio.run(asked.ainvoke("a new one", user="anna"))
    assert ledger.spent(user="anna") == pytest.approx(8.0)


def test_a_config_says_who_is_charged(trained: RAPTClassifier) -> None:
    """If it breaks, a limit for each user holds in no chain, in which the config names who asks."""
    ledger = MetricLedger(8.0)
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger)
    ann, bob = ({"configurable": {"user_id": name}} for name in ("ann", "bob"))
    chain = RunnableLambda(str) | asked
    assert [spec.id for spec in asked.config_specs] == ["user_id"]
    chain.invoke("good movie", ann)
    asyncio.run(chain.ainvoke("bad movie", ann))
    with pytest.raises(BudgetExceeded):
        chain.invoke("great movie", ann)
    asked.batch(["good movie", "bad film"], [bob, {}])
    found = asyncio.run(asked.abatch(["a film", "one movie"], [ann, bob], return_exceptions=True))
    assert [type(one) for one in found] == [BudgetExceeded, str]
    asked.invoke("not so good", bob | {"tags": ["t"]}, user="carl")
    assert [ledger.spent(user=name) for name in ("ann", "bob", "carl")] == pytest.approx([8.0, 8.0, 4.0])


def test_equal_questions_stay_two_where_another_is_refused(trained: RAPTClassifier) -> None:
    """If it breaks, one refused question shows the provider which of the others are equal."""
    asked = with_sanitizer(trained, eta=1e-6, ledger=MetricLedger(document_limit=2e-6))
    text, requests = "good movie bad movie great movie awful movie", []

    def provider(body: bytes) -> bytes:
        requests.append(PredictionRequest.from_json(body))
        return trained.provider.predict(requests[-1]).to_json()  # type: ignore[union-attr]  # here

    asked.provider = provider
    found = asked.batch([text, 7, text], return_exceptions=True)  # type: ignore[list-item]
    assert [type(one) for one in found] == [str, InvalidParameter, str]
    one, other = [list(request.inputs) for request in requests]
    assert one != other


@pytest.mark.parametrize(
    "name",
    ["request", "predict_proba", "client.privatize", "tuner.privatize", "fit", "validation", "wrong"],
)
def test_no_frame_of_a_refusal_holds_a_text(name: str, trained: RAPTClassifier) -> None:
    """If it breaks, an error reporter at a service of training gets all texts: one full account is enough."""
    ledger = MetricLedger(1.0)
    by = tiny.sanitizer(eta=4.0, ledger=ledger)
    rows = PrivateRecords([{"text": f"{RAW} {number}", "label": tiny.LABELS[number % 2]} for number in range(4)])
    texts = PrivateArgs([RAW, RAW])
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger)
    tuner = tiny.tuner(by=by)
    calls: dict[str, Callable[[], Any]] = {
        "request": lambda: asked.client.request(*texts.values, user="anna"),
        "predict_proba": lambda: asked.predict_proba(*texts.values, user="anna"),
        "client.privatize": lambda: asked.client.privatize(rows, labels=tiny.LABELS),
        "tuner.privatize": lambda: tuner.privatize(rows),
        "fit": lambda: tuner.fit(rows, progress=False),
        "validation": lambda: tuner.fit(rows, validation=rows, progress=False),
        "wrong": lambda: tuner.fit(PrivateArgs([RAW]).values[0], progress=False),
    }
    reporter = Reporting()
    with pytest.raises(InvalidParameter if name == "wrong" else BudgetExceeded) as refused:
        calls[name]()
    reporter.on_chain_error(refused.value)
    assert len(reporter.kept) > 2
    assert not [kept for kept in reporter.kept if "quetzal" in kept]


class Unsteady:
    """A provider behind a function that fails on one of its calls."""

    def __init__(self, provider: Any, *, fails: int, how: Callable[[], bytes]) -> None:
        self.calls = 0
        self._provider, self._fails, self._how = provider, fails, how

    def __call__(self, body: bytes) -> bytes:
        self.calls += 1
        if self.calls == self._fails:
            return self._how()
        return self._provider.predict(PredictionRequest.from_json(body)).to_json()


def _lost() -> bytes:
    raise ConnectionError("lost")


@pytest.mark.parametrize(("how", "error"), [(lambda: b"{}", InvalidParameter), (_lost, ConnectionError)])
def test_a_provider_that_fails_does_not_get_texts_drawn_again(
    trained: RAPTClassifier, how: Callable[[], bytes], error: type[Exception]
) -> None:
    """If it breaks, a provider gets as many draws of a text as it likes by answering nonsense, and they are charged."""
    ledger = MetricLedger()
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger, cache=False)
    asked.provider = Unsteady(trained.provider, fails=1, how=how)
    texts = [f"good movie {number}" for number in range(300)]
    found = asked.batch(texts, return_exceptions=True)
    assert [type(one) for one in found] == [error] * 256 + [str] * 44
    assert (len(list(ledger.entries())), asked.provider.calls) == (300, 2)


def test_as_many_questions_as_there_are(trained: RAPTClassifier) -> None:
    """If it breaks, a long list is charged and then refused; or a request that is too long is charged at all."""
    ledger = MetricLedger()
    asked = with_sanitizer(trained, ledger=ledger, cache=False)
    asked.provider = Unsteady(trained.provider, fails=0, how=_lost)
    texts = ["bad movie", "good movie"] * 2_050
    assert asked.batch(texts) == ["negative", "positive"] * 2_050
    assert (len(list(ledger.entries())), asked.provider.calls) == (4_100, 17)
    with pytest.raises(InvalidParameter, match="at most 4096 texts in a request, got 4100"):
        asked.client.request(texts)
    assert len(list(ledger.entries())) == 4_100
    assert len(asked.client.request([])) == 0


def test_a_certificate_says_what_asking_again_costs(trained: RAPTClassifier) -> None:
    """If it breaks, an auditor reads that a question costs once what is charged each time, or charged in clear."""
    for options, said in (({}, "is given the release of then"), ({"cache": False}, "each time it is asked")):
        notes = " ".join(with_sanitizer(trained, **options).certificate().notes)
        assert said in notes
        assert ("release of then" in notes) == (not options)
    clear = RAPTClassifier(
        RAPTClient(IdentitySanitizer(tiny.backbone()), trained.client.plain.settings), lambda body: body
    )
    assert not any("charged" in note for note in clear.certificate().notes)


@pytest.mark.parametrize(
    "asked",
    [
        HumanMessage("the movie was awful"),
        HumanMessage([{"type": "text", "text": "the movie was awful"}]),
        StringPromptValue(text="the movie was awful"),
        ChatPromptValue(messages=[SystemMessage("good"), HumanMessage("the movie was awful")]),
        Document("the movie was awful", metadata={"text": "good"}),
    ],
)
def test_what_a_chain_passes_on_is_asked_by_its_text(trained: RAPTClassifier, asked: Any) -> None:
    """If it breaks, prompt | classifier, a message or a document of a retriever cannot be asked."""
    assert trained.invoke(asked) == "negative"
    assert trained.batch([asked, "good movie"]) == ["negative", "positive"]
    assert len(trained.client.request([asked]).inputs[0]) == 4
    assert (PromptTemplate.from_template("the movie was {how}") | trained).invoke({"how": "awful"}) == "negative"


def test_a_picture_is_no_question(trained: RAPTClassifier) -> None:
    """If it breaks, a picture is left out silently, and the rest is charged and answered."""
    picture = HumanMessage([{"type": "image_url", "image_url": {"url": "https://quetzal"}}])
    ledger = MetricLedger()
    asked = with_sanitizer(trained, ledger=ledger)
    with pytest.raises(InvalidParameter, match="text alone") as refused:
        asked.invoke(picture)
    assert "quetzal" not in str(refused.value)
    assert [type(one) for one in asked.batch(["good", picture], return_exceptions=True)] == [str, InvalidParameter]
    assert len(list(ledger.entries())) == 1


@pytest.mark.parametrize("wrong", [7, None, ["text"], {"text": "quetzal"}])
def test_what_is_no_text_is_refused(trained: RAPTClassifier, wrong: Any) -> None:
    """If it breaks, something is charged for what cannot be answered, or an error repeats it."""
    ledger = MetricLedger()
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger)
    for call in (asked.invoke, lambda one: asked.batch([one])):
        with pytest.raises(InvalidParameter, match="to be a string") as refused:
            call(wrong)
        assert "quetzal" not in str(refused.value)
    assert not list(ledger.entries())
    with pytest.raises(InvalidParameter):
        asked.invoke("text", document="x")


@pytest.mark.parametrize("name", ["batch", "abatch", "predict_proba", "request"])
@pytest.mark.parametrize("text", ["ab", b"ab"])
def test_one_text_is_no_list_of_letters(trained: RAPTClassifier, name: str, text: Any) -> None:
    """If it breaks, each letter of a text is asked and charged as a question of its own."""
    ledger = MetricLedger()
    asked = with_sanitizer(trained, eta=4.0, ledger=ledger)
    call = getattr(asked.client if name == "request" else asked, name)
    with pytest.raises(InvalidParameter, match="a list of strings, not one"):
        asyncio.run(call(text)) if name == "abatch" else call(text)
    assert not list(ledger.entries())


def test_what_cannot_answer_is_refused_before_a_question_is_charged(trained: RAPTClassifier) -> None:
    """If it breaks, a question is privatized and paid for, and then an AttributeError says that nobody is there."""
    client = trained.client
    plain = RAPTClient(tiny.sanitizer(), tiny.PlainTokens(length=2), max_tokens=12)
    words = RAPTClient(tiny.sanitizer(), client.plain.settings, kind="text")
    for parts, said in (
        ((client, "http://127.0.0.1:1"), r"not an address\. Give a function that posts the body there: lambda body:"),
        ((client, None), "provider of type NoneType"),
        ((trained, trained.provider), "client of type RAPTClassifier"),
        ((plain, trained.provider), "tokens with 4 plain tokens, as the model was trained on, got tokens with 2"),
        ((words, trained.provider), "got text with 4"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            RAPTClassifier(*parts)  # type: ignore[arg-type]  # wrong on purpose
    assert RAPTClassifier(client, lambda body: body)


@pytest.mark.parametrize("other", ["order", "family"])
def test_a_client_of_other_tokens_is_refused(
    other: str, trained: RAPTClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, ids of one vocabulary are read as those of another: paid questions get random labels."""
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "WORDS", tiny.WORDS[::-1] if other == "order" else tiny.WORDS)
        base = tiny.backbone("bert" if other == "order" else "roberta")
    client = RAPTClient(tiny.sanitizer(base), trained.client.plain.settings, max_tokens=12)
    with pytest.raises(InvalidParameter, match="whose tokens are those of"):
        RAPTClassifier(client, trained.provider)


def test_answers_repeat(trained: RAPTClassifier, tmp_path: Path) -> None:
    """If it breaks, the same question gets another probability, or label, at the next call."""
    texts = ["the movie was very good", "the plot was rather bad"]
    asked = with_sanitizer(trained, eta=4.0)
    found = asked.predict_proba(texts)
    assert np.allclose(found, asked.predict_proba(texts), atol=1e-6)
    assert np.allclose(found[::-1], asked.predict_proba(texts[::-1]), atol=1e-6), "wherever in a batch"
    asked.save(tmp_path)
    assert RAPTClient.load(tmp_path, asked.client.sanitizer).request(texts) == asked.client.request(texts)


@pytest.mark.parametrize("verbalized", [False, True])
@pytest.mark.parametrize("method", ["prompt", "prefix", "adapter", "full"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_saved_classifier_answers_as_before(family: str, method: str, verbalized: bool, tmp_path: Path) -> None:
    """If it breaks, weights, labels, plain tokens or template are lost on disk."""
    base = tiny.backbone(family)
    made = tiny.tuner(base, method=method, epochs=1, verbalized=verbalized).fit(tiny.examples(16), progress=False)
    made.save(tmp_path)
    # What is not learned must come from the backbone: another one would give other answers.
    back = RAPTClassifier.load(tmp_path, tiny.sanitizer(base), backbone=tiny.model(family), tokenizer=base.tokenizer)
    texts = [row["text"] for row in tiny.examples(12, seed=4)]
    assert np.allclose(made.predict_proba(texts), back.predict_proba(texts), atol=1e-6)
    assert back.training == made.training
    assert back.labels == made.labels
    assert (
        back.client.plain.draw(2, np.random.default_rng(0))[1] == made.client.plain.draw(2, np.random.default_rng(0))[1]
    )


def test_files_are_json_and_safetensors_without_text(trained: RAPTClassifier, tmp_path: Path) -> None:
    """If it breaks, loading a model can run code, or a model carries the texts it was trained on, or an account."""
    with pytest.raises(PrivateDataError):
        pickle.dumps(trained)
    trained.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"client.json", "provider.json", "model.safetensors", "certificate.json"}
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_bytes())
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"the movie was" not in content
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert json.loads((tmp_path / "model.safetensors").read_bytes()[8 : 8 + header])


def test_another_backbone_or_table_is_refused(trained: RAPTClassifier, tmp_path: Path) -> None:
    """If it breaks, a model is put around another backbone, or asked in tokens of another table: answers are noise."""
    trained.save(tmp_path)
    base = tiny.backbone()
    with pytest.raises(InvalidParameter, match="Expected the backbone with which"):
        RAPTProvider.load(tmp_path, tiny.model("bert", seed=1), tokenizer=base.tokenizer)
    with pytest.raises(InvalidParameter, match="Expected the backbone with which"):
        RAPTProvider.load(tmp_path, tiny.model("roberta"), tokenizer=tiny.tokenizer("roberta"))
    with pytest.raises(InvalidParameter, match="as in training"):
        RAPTClient.load(tmp_path, tiny.sanitizer(tiny.backbone(seed=1)))
    whole = (tmp_path / "provider.json").read_bytes()
    (tmp_path / "provider.json").write_text(json.dumps(json.loads(whole) | {"labels": ["good", "good"]}))
    with pytest.raises(InvalidParameter, match="each once"):
        RAPTProvider.load(tmp_path, base)
    (tmp_path / "provider.json").write_bytes(whole)
    tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).save(tmp_path / "other")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(InvalidParameter, match="same names and shapes"):
        RAPTProvider.load(tmp_path, base)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidParameter, match="to hold safetensors"):
        RAPTProvider.load(tmp_path, base)
    (tmp_path / "provider.json").write_text("{")
    with pytest.raises(InvalidParameter, match="damaged, another kind of file, or of another version"):
        RAPTProvider.load(tmp_path, base)
    with pytest.raises(InvalidParameter, match="a file that can be read"):
        RAPTProvider.load(tmp_path / "nowhere", base)


@pytest.mark.parametrize("file", ["client.json", "provider.json"])
def test_a_file_with_a_field_too_few_or_of_another_form_is_refused(
    file: str, trained: RAPTClassifier, tmp_path: Path
) -> None:
    """If it breaks, a damaged file ends in a KeyError, perhaps after a charge, or its content is repeated in one."""
    trained.save(tmp_path)
    base = tiny.backbone()
    load = {
        "client.json": lambda: RAPTClient.load(tmp_path, tiny.sanitizer(base)),
        "provider.json": lambda: RAPTProvider.load(tmp_path, base),
    }[file]
    whole = json.loads((tmp_path / file).read_bytes())
    settings = whole["settings"]
    changed = [{name: one for name, one in whole.items() if name != gone} for gone in whole]
    changed += [whole | {name: [{"x": "quetzal"}]} for name in whole]
    changed += [whole | {"settings": settings | {"x": 1}}, whole | {"quetzal": 1}]
    if "plain" in settings:
        changed += [whole | {"settings": settings | {"plain": one}} for one in ("quetzal", {"x": 1}, None)]
    if file == "client.json":
        rows: list[Any] = [[], [[1]], [[1, 2, 3, 4], [1, 2]], [[1, 2, 3, 99]], [[]]]
        changed += [whole | {"plain": whole["plain"] | {"rows": one}} for one in rows]
        nothing = whole | {"plain": {"candidates": [], "rows": []}}
        changed += [nothing, nothing | {"settings": settings | {"choice": "fresh"}}]
    for fields in changed:
        (tmp_path / file).write_text(json.dumps(fields))
        with pytest.raises(InvalidParameter, match=r"Expected .*(damaged|written by|as plain tokens)") as refused:
            load()
        assert "quetzal" not in f"{refused.value}{refused.value.__context__!r}"


def test_a_client_of_another_eta_says_so_without_the_training(trained: RAPTClassifier, tmp_path: Path) -> None:
    """If it breaks, a loaded client asks at an eta that the model never saw, and no certificate tells."""
    asked = with_sanitizer(trained, eta=4.0)
    assert "trained on texts privatized at eta=1e+06" in " ".join(asked.certificate().notes)
    assert (asked.certificate().eta, asked.training) == (4.0, trained.training)
    trained.save(tmp_path)
    for options, said in (
        ({"eta": 4.0}, "questions are privatized at eta=4 (exponential"),
        ({"mechanism": "laplace"}, "questions are privatized at eta=1e+06 (laplace"),
        ({}, ""),
    ):
        client = RAPTClient.load(tmp_path, tiny.sanitizer(**options))
        notes = " ".join(RAPTClassifier(client, trained.provider).certificate().notes)
        assert said in notes
        assert ("trained on" in notes) == bool(said)
        client.save(tmp_path / "again")  # what it was trained on outlives another sanitizer
        again = RAPTClient.load(tmp_path / "again", tiny.sanitizer(**options))
        assert again.trained == client.trained
    in_clear = RAPTClient.load(tmp_path, IdentitySanitizer(tiny.backbone()))
    notes = " ".join(RAPTClassifier(in_clear, trained.provider).certificate().notes)
    assert "questions are privatized at eta=inf (none" in notes
