"""The two parts in two processes: the client hands out privatized tokens, the provider gets nothing else."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.rapt import TABLE as WORDS_TABLE
from rapt_tuning import tiny

from langchain_dp.accounting import MetricEvent
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.mechanisms import MetricExponential
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import (
    IdentitySanitizer,
    PlainTokens,
    PredictionRequest,
    PrivatizedExamples,
    RAPTClassifier,
    RAPTClient,
    RAPTProvider,
)
from langchain_dp.rapt.tuning import plain as plain_tokens
from langchain_dp.rapt.tuning.wire import Answer

RAW = "the movie was very awful and the plot was rather poor, a quetzal writes"
SECRETS = ("quetzal", "movie", "awful", "plot")
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from rapt_tuning import tiny
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import RAPTProvider

folder, seen = sys.argv[1:]
base = tiny.backbone()
provider = RAPTProvider.load(folder, base.model, tokenizer=base.tokenizer)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(seen, "ab") as file:  # every byte that arrived
            file.write(self.requestline.encode() + bytes(self.headers) + body)
        try:
            code, answer = 200, provider.answer(body)
        except InvalidParameter as error:
            code, answer = 400, str(error).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def looks_raw(body: bytes) -> bool:
    """Whether bytes hold words of the raw text, or a row of token ids that stands for some of them."""
    ids = tiny.backbone().encode(RAW)[:11]  # up to the comma: whole words that the backbone knows
    rows = [ids[i : i + 5] for i in range(7)]  # five in a row come out at random once in 10^7 places
    spelt = [",".join(map(str, row)).encode() for row in rows]
    return any(one in body.lower().replace(b" ", b"") for one in [*spelt, *(word.encode() for word in SECRETS)])


@contextmanager
def provider_process(folder: Path, seen: Path) -> Iterator[str]:
    """A provider in a process of its own, behind HTTP."""
    tests = str(Path(__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {tests!r}); exec(compile({SERVER!r}, 'server', 'exec'))"
    process = subprocess.Popen([sys.executable, "-c", code, folder, seen], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def test_a_provider_in_another_process_gets_no_raw_word(tmp_path: Path) -> None:
    """If it breaks, a byte of raw text crosses the boundary, or the remote answer is another one than the local."""
    base = tiny.backbone()
    by = tiny.sanitizer(base, eta=tiny.CLOSE)
    tiny.tuner(base, by).fit(tiny.examples(16), progress=False).save(tmp_path)
    seen = tmp_path / "seen"
    client, local = RAPTClient.load(tmp_path, by), RAPTProvider.load(tmp_path, base)
    with provider_process(tmp_path, seen) as address:

        def post(body: bytes) -> bytes:
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(urllib.request.Request(address, data=body), timeout=60) as answer:
                return bytes(answer.read())

        remote = RAPTClassifier(client, post)
        assert remote.invoke(RAW) in tiny.LABELS
        assert len(remote.batch([f"{RAW} {i}" for i in range(300)])) == 300
        request = client.request([RAW])
        assert remote.predict_proba([RAW])[0] == pytest.approx(local.predict(request).probabilities[0], abs=1e-6)
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(json.dumps({"text": RAW}).encode())
        assert not looks_raw(refused.value.read())
        refused.value.close()
    arrived = seen.read_bytes()
    arrived = arrived[: arrived.rindex(b'{"text"')]  # the last one was sent by hand
    assert len(arrived) > 5_000
    assert arrived.count(b'"kind":"tokens"') == 4  # 256 of the 300 at once
    assert not looks_raw(arrived)


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_the_raw_text_would_have_been_found(kind: Any) -> None:
    """If it breaks, the test above looks in the wrong place: what passes in clear must be found, and only that."""
    base = tiny.backbone()
    for by, raw in (
        (IdentitySanitizer(base), True),
        (tiny.sanitizer(base), True),  # so little noise that every word stays
        (tiny.sanitizer(base, eta=tiny.CLOSE, length=12), False),
    ):
        client = RAPTClient(by, PlainTokens(length=2, vocabulary=20), kind=kind)
        body = client.request([RAW]).to_json()
        if kind == "text" and not raw:  # words of the table may come out by chance: not the row of them
            assert RAW[:30] not in body.decode()
            assert "quetzal" not in body.decode()
        else:
            assert looks_raw(body) == raw


def test_privatized_tokens_reach_the_backbone_one_for_one() -> None:
    """If it breaks, privatized tokens are joined to text and cut anew: other tokens than those that were paid for."""
    base = tiny.backbone()
    assert not {2, 3, 4} & set(base.encode("[SEP] [MASK] good [CLS]")), "special tokens in a text are words"
    made = tiny.tuner(base, tiny.sanitizer(base, eta=tiny.CLOSE))
    assert made.client.kind == "tokens"
    request = made.client.request(["the movie was awful", "", "good"])
    assert [len(row) for row in request.inputs] == [4, 0, 1]
    rows, _ = made._assembler.rows(request)
    for row, plain, text in zip(rows, request.plain, request.inputs, strict=True):
        assert row.ids == [base.tokenizer.cls_token_id, *plain, *text, base.tokenizer.sep_token_id]
        assert row.plain == [1, 2, 3, 4]


def test_another_table_sends_text() -> None:
    """If it breaks, a client with word vectors of its own cannot use a backbone that knows other tokens."""
    base = tiny.backbone()
    made = tiny.tuner(base, RAPTSanitizer(WORDS_TABLE, eta=tiny.FAR), max_tokens=8, epochs=1)
    assert made.client.kind == "text"
    request = made.client.request(["the heart was good", "the the the the the the the the the the"])
    assert isinstance(request.inputs[0], str)
    assert isinstance(request.inputs[1], str)
    rows, cut = made._assembler.rows(request)
    assert cut == 1
    start, end = rows[0].text
    assert base.words[rows[0].ids[start:end][0]] == "the"
    for row, plain in zip(rows, request.plain, strict=True):
        firsts = [base.encode(word)[0] for word in plain if isinstance(word, str)]
        assert [row.ids[place] for place in row.plain] == firsts
    # A word of several tokens is found by its first.
    plain = ["movie plot", "very", "", "good bad"]
    [row], _ = made._assembler.rows(PredictionRequest("text", [plain], ["the film"]))
    words = [base.words[i] for i in row.ids]
    assert words[1:-1] == ["movie", "plot", "very", "[UNK]", "good", "bad", "the", "film"]
    assert row.plain == [1, 3, 4, 5]
    assert row.text == (7, 9)


def test_kept_features_pass_in_clear_and_are_said() -> None:
    """If it breaks, what a user chose to keep is lost on the way through token ids, or the certificate hides it."""
    base = tiny.backbone()
    by = tiny.sanitizer(base, eta=tiny.CLOSE, keep=["movie", "plot"])
    client = RAPTClient(by, PlainTokens(length=0), max_tokens=5)
    [row] = client.request(["the movie was good plot"]).inputs
    assert len(row) == 5
    assert [base.words[row[1]], base.words[row[4]]] == ["movie", "plot"]
    assert "2 chosen words" in " ".join(client.certificate().notes)
    [row] = client.request(["the movie was good very movie plot movie"]).inputs
    assert len(row) == 5


@pytest.fixture(scope="module")
def provider() -> RAPTProvider:
    return tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False).provider


@pytest.mark.parametrize(
    "body",
    [
        b"quetzal",
        b"[]",
        b'{"text": "quetzal"}',
        b'{"version":2,"kind":"tokens","plain":[],"inputs":[]}',
        b'{"version":1,"kind":"raw","plain":[[]],"inputs":["quetzal"]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2,3,4]],"inputs":["quetzal"]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2,3,4]],"inputs":[[1.5]]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2,3,4]],"inputs":[[true]]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2,3,4]],"inputs":[[9999]]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2,3,4]],"inputs":[[-2]]}',
        b'{"version":1,"kind":"tokens","plain":[[1,2]],"inputs":[[1]]}',
        b'{"version":1,"kind":"tokens","plain":[],"inputs":[[1]]}',
        b'{"version":1,"kind":"text","plain":[["a",1,"b","c"]],"inputs":["quetzal"]}',
        b'{"version":1,"kind":"text","plain":[["a","d","b","c"]],"inputs":["quetzal"]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_provider_refuses_what_is_no_request(body: bytes, provider: RAPTProvider) -> None:
    """If it breaks, a provider crashes on, or repeats in its error, what somebody sent by mistake."""
    with pytest.raises(InvalidParameter) as refused:
        provider.answer(body)
    assert "quetzal" not in str(refused.value)
    assert "quetzal" not in repr(refused.value.__cause__)


def test_a_client_refuses_an_answer_that_is_none() -> None:
    """If it breaks, a broken provider looks like a label."""
    for body in (b"", b"{}", b'{"labels":["a"],"probabilities":[[0.5]]}', b'{"labels":["a"],"probabilities":[1,2]}'):
        with pytest.raises(InvalidParameter, match="Expected the provider to answer"):
            Answer.from_json(body, texts=2)
    huge = "1" + 400 * "0"
    for row in ("[NaN,NaN]", "[NaN,1]", "[-0.5,1.5]", f"[{huge},0]", "[Infinity,0]", '["0",1]', "[true,false]", "[1]"):
        with pytest.raises(InvalidParameter, match="Expected the provider to answer"):
            Answer.from_json(f'{{"labels":["a","b"],"probabilities":[{row}]}}'.encode(), texts=1)
    for labels in ('["a","a"]', '["a",1]', '[["a"],"b"]'):
        with pytest.raises(InvalidParameter, match="Expected the provider to answer"):
            Answer.from_json(f'{{"labels":{labels},"probabilities":[[0.5,0.5]]}}'.encode(), texts=1)
    whole = Answer(("a", "b"), [[0.25, 0.75], [1, 0]])
    assert Answer.from_json(whole.to_json(), texts=2) == whole


def test_a_model_that_computes_no_number_gives_no_label() -> None:
    """If it breaks, a damaged model answers every question with its first label."""
    classifier = tiny.tuner(epochs=1).fit(tiny.examples(8), progress=False)
    with torch.no_grad():
        next(iter(classifier.provider.model.learned().values())).fill_(float("nan"))
    with pytest.raises(InvalidParameter, match="Expected the provider to answer"):
        classifier.invoke("good movie")


def test_answers_of_other_labels_are_not_put_together() -> None:
    """If it breaks, a provider that was exchanged between two requests has its columns read as those of the other."""
    labels = iter([["a", "b"], ["b", "a"]])

    def provider(body: bytes) -> bytes:
        return Answer(tuple(next(labels)), [[0.9, 0.1]] * len(PredictionRequest.from_json(body))).to_json()

    classifier = RAPTClassifier(RAPTClient(tiny.sanitizer()), provider)
    with pytest.raises(InvalidParameter, match="the same labels each time"):
        classifier.batch(["good"] * 257)


def without(*packages: str) -> str:
    """Code that hides packages as if they were not installed."""
    return (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {packages!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )


def test_a_client_needs_neither_torch_nor_a_model(tmp_path: Path) -> None:
    """If it breaks, whoever wants to use a remote model must install the tools to train one."""
    made = tiny.tuner(by=RAPTSanitizer(WORDS_TABLE, eta=tiny.FAR))
    made.client.save(tmp_path)
    tests = str(Path(__file__).parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {tests!r})\n"
        + without("torch", "transformers", "peft", "safetensors", "tokenizers")
        + "from fakes.rapt import TABLE\n"
        "from langchain_dp.rapt import RAPTSanitizer\n"
        "from langchain_dp.rapt.tuning import RAPTClassifier, RAPTClient\n"
        f"client = RAPTClient.load({str(tmp_path)!r}, RAPTSanitizer(TABLE, eta=5.0))\n"
        "rows = [{'text': 'the heart', 'label': 'no'}, {'text': 'a heart', 'label': 'yes'}]\n"
        "examples = client.privatize(rows, labels=['no', 'yes'])\n"
        f"examples.save({str(tmp_path / 'examples.json')!r})\n"
        'answer = b\'{"labels": ["no", "yes"], "probabilities": [[0.1, 0.9]]}\'\n'
        "print(RAPTClassifier(client, lambda body: answer).invoke('the heart'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "yes", done.stderr
    stored = PrivatizedExamples.load(tmp_path / "examples.json")
    assert (stored.kind, stored.labels, stored.certificate.releases) == ("text", ["no", "yes"], 2)


def test_a_client_privatizes_training_texts_as_a_tuner_does() -> None:
    """If it breaks, what a client sends cannot be trained on, or is not charged to its authors."""
    base = tiny.backbone()
    ledger = MetricLedger()
    by = tiny.sanitizer(base, eta=3.0, ledger=ledger, cache=False)
    made = tiny.tuner(base, by, epochs=1)
    client = RAPTClient(by, max_tokens=12)
    rows = [{**row, "text": f"{row['text']} {'very ' * 20}"} for row in tiny.examples(9)]
    examples = client.privatize(rows, labels=tiny.LABELS, user_key="author")
    same = made.privatize(rows)
    assert (examples.kind, examples.labels, examples.truncated) == (same.kind, same.labels, same.truncated)
    assert [len(row) for row in examples.inputs] == [12] * 9
    assert [ledger.spent(user=f"author {i}") for i in range(3)] == pytest.approx([9.0] * 3)
    assert made.fit(examples, progress=False).report
    for bad, said in (
        ({"labels": ["positive"]}, "at least two labels"),
        ({"labels": "positive"}, "a list such as"),
        ({"user_key": "owner"}, "user_key='owner'"),
        ({"labels": ["one", "two"]}, "label of example 0"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            client.privatize(rows, **({"labels": tiny.LABELS} | bad))  # type: ignore[arg-type]  # wrong on purpose
    assert len(list(ledger.entries())) == 18


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_the_public_seed_draws_plain_tokens_and_nothing_else(kind: Any, mechanism: Any) -> None:
    """If it breaks, equal releases get other plain tokens, all get the same, or the seed reaches a text's noise."""

    def client(seed: int = 7, eta: float = tiny.CLOSE) -> RAPTClient:
        by = tiny.sanitizer(base, eta=eta, mechanism=mechanism)
        return RAPTClient(by, PlainTokens(length=24, vocabulary=20, choice="sets", sets=3, seed=seed), kind=kind)

    base = tiny.backbone()
    texts = ["the movie was very good and the plot", "a film of the actor", "the movie was very good and the plot"]
    one, two = client(), client()
    request = one.request(texts)
    assert one.request(texts).plain == request.plain
    assert len({str(row) for row in request.plain}) == 3, "each text has a release, and a draw, of its own"
    # Words come out at random: eight alike in two accounts happen once in 32^8.
    assert two.request(texts).inputs[0] != request.inputs[0], "what is private is never drawn by the seed"
    assert two.plain.before(request.inputs) == request.plain, "a function of public seed and release"
    assert client(8).plain.before(request.inputs) != request.plain
    ids = two.plain.before([[i] for i in range(60)])
    rows = [["".join(two.vocabulary.decode([i])) for i in row] for row in two.plain.candidates[two.plain.rows].tolist()]
    spelt = [row if kind == "text" else ["".join(two.vocabulary.decode([i])) for i in row] for row in ids]
    kept = max(np.mean([[a == b for a, b in zip(mine, row, strict=True)] for mine in spelt]) for row in rows)
    # 1,440 words at random: one in 32 is its own, so that more than one in 10 happens in no run of 10^9.
    assert kept < 0.1, "plain tokens are privatized all the same"
    near = {str(row) for row in client(eta=tiny.FAR).plain.before([[i] for i in range(20)])}
    assert near <= {str(row) for row in (rows if kind == "text" else two.plain.candidates[two.plain.rows].tolist())}


def test_clients_of_one_sanitizer_work_out_the_plain_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every tuner over a table of 30,000 words waits for 15 seconds, or takes those of another."""
    made: list[float] = []

    def counted(event: MetricEvent, *args: Any, **options: Any) -> MetricExponential:
        made.append(event.eta)
        return MetricExponential(event, *args, **options)

    monkeypatch.setattr(plain_tokens, "MetricExponential", counted)
    base = tiny.backbone()
    near, far = tiny.sanitizer(base, eta=tiny.CLOSE), tiny.sanitizer(base)
    for by in (near, near, far):
        tiny.tuner(base, by).client.plain.draw(3, np.random.default_rng(0))
    assert made == [tiny.CLOSE, tiny.FAR]
    for size in (5, 6, 5, 7, 5):  # of |T|: those used last are kept, or whoever varies it fills the memory
        RAPTClient(near, PlainTokens(length=2, vocabulary=size)).plain.draw(3, np.random.default_rng(0))
    assert made[2:] == [tiny.CLOSE] * 3
    before = len(plain_tokens._SHARED)
    del by, near, far
    gc.collect()
    assert len(plain_tokens._SHARED) <= before - 2  # not kept for ever


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_client_shares_its_account(copied: Any) -> None:
    """If it breaks, a copy fails with a TypeError about a lock, or has releases of its own for what is charged once."""
    client = RAPTClient(tiny.sanitizer(), PlainTokens(length=3))
    assert "movie" not in repr(client.request([RAW]))
    assert copied(client).request([RAW]).inputs == client.request([RAW]).inputs
    with pytest.raises(PrivateDataError):
        pickle.dumps(client)
