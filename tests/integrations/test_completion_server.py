"""CompletionServerEnsemble: what it sends, to whom, and what becomes of every kind of answer."""

from __future__ import annotations

import contextvars
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.canary import CANARY, leak_surfaces, shows_nothing
from fakes.completion_server import LISTED, CompletionServer
from langchain_dp.integrations.openai import CompletionServerEnsemble, calls
from langchain_dp.integrations.openai.calls import FLOOR, expected, scores
from pydantic import SecretStr

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Continuation, Decoding, MemberPrompt

HEAD, TAIL = "Read. ", "Label:"
WORDS = (" positive", " negative")


def prompt(member: int, word: str = "") -> MemberPrompt:
    return MemberPrompt(HEAD, f"Label: {word or f'word{member}'}\n", TAIL, member)


def asked(*members: int, written: tuple[str, ...] = ("x",), draw: float = 0.5) -> list[Continuation]:
    return [Continuation(prompt(member), written, draw) for member in members]


def engine(server: CompletionServer, **options: Any) -> CompletionServerEnsemble:
    defaults = {"vocabulary_size": 1000} | ({} if server.vllm else {"max_prompt_tokens": 100})
    built = CompletionServerEnsemble(f"{server.url}/v1", "tiny", **(defaults | options))
    server.bodies.clear()
    return built


@pytest.fixture
def other() -> Iterator[CompletionServer]:
    with CompletionServer() as server:
        yield server


@pytest.fixture
def vllm() -> Iterator[CompletionServer]:
    with CompletionServer(vllm=True) as server:
        yield server


def test_it_probes_with_public_text_only_and_says_what_it_found(vllm: CompletionServer) -> None:
    """If it breaks, a server is asked for what it cannot do, or certificates do not say who saw the records."""
    built = CompletionServerEnsemble(f"{vllm.url}/v1", "tiny", vocabulary_size=1000)
    assert {body.split(b"\n")[0] for body in vllm.bodies} == {b"/v1/models", b"/v1/completions"}
    assert built.name == "tiny (completions server, vLLM)"
    assert (built.vocabulary_size, built.max_prompt_tokens, built.max_tail_tokens) == (1000, 49, 24)
    assert built._dialect.lists
    assert built._dialect.listed == 20
    assert len(built.notes) == 5
    assert "lists 20 tokens after a prompt at most: a text is drawn from these alone" in built.notes[3]
    assert "One at a time: a member with a long record" in built.notes[2]
    assert "saw the private records" in built.notes[0]
    assert "The server promises" in built.notes[1]
    assert vllm.url not in repr((built, built.notes, built.name))
    more = engine(vllm, prefix_cache=True, in_flight=7).notes
    assert [note for note in more if note not in built.notes] == [
        "Up to 7 members were under way at once: a member with a long record that keeps the server busy may cost "
        "others their votes, once they are silent for 60 seconds. That is not accounted for.",
        "The server was allowed to keep evaluated prefixes between requests.",
    ]


def test_one_request_holds_all_prompts_and_the_order_is_kept(other: CompletionServer) -> None:
    """If it breaks, every member costs a request, or one member's token is counted as another's."""
    built = engine(other, in_flight=3)
    crowd = [asked(i, written=(f" w{i % 2}",))[0] for i in range(5)]
    assert built.next_tokens(crowd, Decoding()) == [" w0", " w1", " w0", " w1", " w0"]
    bodies = other.completions
    assert [body["prompt"] for body in bodies] == [
        [f"Read. Label: word{i}\nLabel: w{i % 2}" for i in group] for group in ((0, 2, 4), (1, 3))
    ]
    assert {body["max_tokens"] for body in bodies} == {1}
    assert {body["temperature"] for body in bodies} == {0}


@pytest.mark.parametrize("in_flight", [1, 4])
def test_where_lists_are_not_taken_members_ask_alone(in_flight: int) -> None:
    """If it breaks, such servers cannot be used, or more requests are under way than was allowed."""
    with CompletionServer(lists=False) as server:
        built = engine(server, in_flight=in_flight)
        assert not built._dialect.lists
        answers = built.next_tokens([asked(i, written=(f" w{i}",))[0] for i in range(6)], Decoding())
        assert answers == [f" w{i}" for i in range(6)]
        assert all(isinstance(body["prompt"], str) for body in server.completions)


def test_every_member_draws_by_a_seed_of_its_own_coin(other: CompletionServer) -> None:
    """If it breaks, members share the server's coin, and one seed moves many votes."""
    built = engine(other, in_flight=4)
    draws = [0.0, 0.25, 0.25, 1 - 2**-53]
    built.next_tokens([Continuation(prompt(0), ("x",), draw) for draw in draws], Decoding(temperature=0.7))
    bodies = other.completions
    assert sorted(body["seed"] for body in bodies) == [0, 2**29, 2**29, 2**31 - 1]
    assert {body["temperature"] for body in bodies} == {0.7}
    assert all(isinstance(body["prompt"], str) for body in bodies)
    built.next_tokens(asked(0), Decoding())
    assert "seed" not in other.completions[-1]


def test_vllm_is_told_to_leave_out_its_own_defaults(vllm: CompletionServer) -> None:
    """If it breaks, the model's generation_config cuts the distribution, or cached prefixes join members."""
    built = engine(vllm, in_flight=2)
    decoding = Decoding(repetition_penalty=1.3, banned=frozenset({"", " no", " of two"}))
    built.next_tokens(asked(0, 1), decoding)
    built.next_tokens(asked(0, 1), Decoding())
    first, second = vllm.completions
    assert {name: first[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos")} == {
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.3,
        "ignore_eos": True,
    }
    assert first["logit_bias"] == {"2": -100}  # " of two" has two tokens, and either may be wanted
    assert second["repetition_penalty"] == 1.0
    assert first["cache_salt"] != second["cache_salt"]


def test_kept_prefixes_are_kept_under_a_secret_of_the_engine() -> None:
    """If it breaks, whoever else uses the server is answered from private prefixes, or finds them by their time."""
    salts = []
    for options in ({"vllm": True}, {"kind": "sglang"}):
        with CompletionServer(**options) as server:
            for _ in range(2):
                built = engine(server, prefix_cache=True, in_flight=2)
                built.next_tokens(asked(0), Decoding())
                built.next_tokens(asked(1, 2), Decoding())
                first, second = (body["cache_salt"] for body in server.completions)
                assert first == second
                assert first not in repr((built, built._dialect))
                salts.append(first)
            fresh = engine(server)
            fresh.next_tokens(asked(0, 1), Decoding())
            salts.extend(body["cache_salt"] for body in server.completions)
    assert len(set(salts)) == len(salts) == 8
    with CompletionServer() as server:
        engine(server, prefix_cache=True).next_tokens(asked(0), Decoding())
        assert "cache_salt" not in server.completions[0]  # a server that we do not know may refuse the field


def test_no_request_with_private_text_is_without_a_salt() -> None:
    """If it breaks, texts that are counted by a completion lie in the cache that all users of a server share."""
    with CompletionServer(kind="sglang") as server:
        built = engine(server)
        for _ in range(2):
            assert built.count_tokens(prompt(1, CANARY).body) > 0
        salts = [body["cache_salt"] for body in server.completions]
        assert len(set(salts)) == len(salts) == 2


def test_an_unknown_server_is_not_trusted_with_a_penalty_or_a_chat(other: CompletionServer) -> None:
    """If it breaks, a server ignores a penalty without a word, or a chat model without a template cannot be asked."""
    with pytest.raises(InvalidParameter, match=r"neither llama\.cpp nor vLLM"):
        engine(other).next_tokens(asked(0), Decoding(repetition_penalty=1.3))
    assert other.bodies == []
    with pytest.raises(InvalidParameter, match="chat_turn"):
        engine(other).next_tokens(asked(0), Decoding(chat=True))
    built = engine(other, chat_turn=("<user>", "<assistant>"))
    built.next_tokens(asked(0), Decoding(chat=True))
    assert other.completions[-1]["prompt"] == "<user>Read. Label: word0\nLabel:<assistant>x"


def test_a_banned_token_that_comes_all_the_same_is_an_abstention(other: CompletionServer) -> None:
    """If it breaks, a token that the caller ruled out is voted for."""
    assert engine(other).next_tokens(asked(0, 1), Decoding(banned=frozenset({" Label:x"}))) == [None, None]


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        ({"text": " good"}, " good"),
        ({"text": "", "finish_reason": "stop"}, ""),
        ({"text": "", "finish_reason": "length"}, None),
        ({"text": "\ufffd"}, None),
        ({"text": None}, None),
        ({"index": 7}, None),
        ({"index": "x"}, None),
    ],
    ids=["text", "end", "control token", "half a letter", "null", "other index", "no index"],
)
def test_what_is_no_text_is_an_abstention(answer: dict[str, Any], token: str | None) -> None:
    """If it breaks, a control token or half a letter is taken for the end of a text, or stops a paid vote."""
    with CompletionServer() as server:
        built = engine(server)
        server.answer = answer
        assert built.next_tokens(asked(0), Decoding()) == [token]
        assert built.detokenize([] if token is None else [token]) == (token or "")


@pytest.mark.parametrize("lists", [True, False])
def test_a_refused_prompt_is_one_abstention(lists: bool) -> None:
    """If it breaks, one long record silences the members that share its request."""
    with CompletionServer(lists=lists, refuse="word1") as server:
        built = engine(server, in_flight=4)
        assert built.next_tokens(asked(0, 1, 2), Decoding()) == [" Label:x", None, " Label:x"]
        rows = built.score_labels([prompt(0), prompt(1), prompt(2)], WORDS, content_free=["N/A:"])
        assert [row is None for row in rows] == [False, True, False]


def test_a_server_that_falls_silent_or_goes_away_is_abstention() -> None:
    """If it breaks, a paid vote raises, hangs for ever, or tells that it failed."""
    with CompletionServer() as server:
        built = engine(server)
        built._server._timeout = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), 0.2)}
        silent = threading.Event()
        inner = server._choice
        server._choice = lambda *args: (silent.wait(60), inner(*args))[1]  # type: ignore[method-assign]  # slow
        assert built.next_tokens(asked(0), Decoding()) == [None]
        silent.set()
    assert built.next_tokens(asked(0, 1), Decoding()) == [None, None]
    assert built.next_tokens(asked(0, 1), Decoding(temperature=1.0)) == [None, None]
    with pytest.raises(ModelUnavailable, match=r"does not count the tokens of a text \(ConnectError\)"):
        built.count_tokens("public")


@pytest.mark.parametrize(
    ("base_url", "options", "text"),
    [
        ("http://models.example/v1", {}, "allow_plain_http"),
        ("http://10.0.0.1:8000/v1", {}, "allow_plain_http"),
        ("http://localhost.example/v1", {}, "allow_plain_http"),
        ("https://me:HUNTER2@models.example/v1", {}, "api_key"),
        ("http://127.0.0.1:1/v1", {"api_key": SecretStr("HUNTER2")}, "of type SecretStr"),
        ("ftp://models.example", {}, "address"),
        ("models.example/v1", {}, "address"),
        ("http://127.0.0.1:8000/v1?key=HUNTER2", {}, "base_url.*address"),
        ("http://svc:HUNTER2@10.0.0.5:8000/v1?x=1", {}, "base_url"),
        ("htp://svc:HUNTER2@10.0.0.5/v1", {}, "base_url"),
        ("http://svc:HUNTER2@[10.0.0.5/v1", {}, "base_url"),
        ("http://127.0.0.1:1/v1", {"timeout": 0}, "timeout"),
        ("http://127.0.0.1:1/v1", {"in_flight": 0}, "in_flight"),
    ],
)
def test_addresses_that_would_carry_records_in_clear_or_a_secret_are_refused_without_it(
    base_url: str, options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, private records cross a network where anybody reads them, or a password stands in a log."""
    monkeypatch.setattr(socket, "create_connection", lambda *args, **options: pytest.fail("connected"))
    with pytest.raises(InvalidParameter, match=text) as caught:
        CompletionServerEnsemble(base_url, "tiny", **options)
    assert "HUNTER2" not in f"{caught.value}{caught.value.__context__}"


def test_plain_http_can_be_allowed_and_loopback_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a private network or another spelling of this machine cannot be used."""
    for base_url, options in (
        ("http://models.example/v1", {"allow_plain_http": True}),
        ("http://127.0.0.2:1/v1", {}),
        ("http://[::1]:1/v1", {}),
        ("http://localhost:1/v1", {}),
        ("https://models.example/v1", {}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(socket, "create_connection", lambda *args, **options: (_ for _ in ()).throw(OSError()))
            with pytest.raises(ModelUnavailable, match="does not answer"):
                CompletionServerEnsemble(base_url, "tiny", **options)


def test_what_a_server_does_not_tell_has_to_be_said(other: CompletionServer, vllm: CompletionServer) -> None:
    """If it breaks, a length or a vocabulary is guessed."""
    for server, options, expected_text in (
        (other, {"max_prompt_tokens": None}, "max_prompt_tokens= to be given"),
        (other, {"vocabulary_size": None}, "vocabulary_size= to be given"),
        (vllm, {"max_prompt_tokens": 77}, "to be 49"),
    ):
        with pytest.raises(InvalidParameter, match=expected_text):
            engine(server, **options)
    with pytest.raises(InvalidParameter, match=r"\['tiny'\]"):
        CompletionServerEnsemble(f"{other.url}/v1", "another", vocabulary_size=10, max_prompt_tokens=10)
    with CompletionServer(status=503) as broken, pytest.raises(ModelUnavailable, match="status 503"):
        engine(broken)
    with CompletionServer(lists_tokens=False) as mute, pytest.raises(InvalidParameter, match="logprobs"):
        engine(mute).score_labels([prompt(0)], WORDS)


def test_labels_are_scored_by_what_begins_them_alone() -> None:
    """If it breaks, a blank or a shared beginning counts for a label, or an unlisted label is not a number."""
    row = scores(WORDS, LISTED)
    assert row is not None
    assert np.exp(row) == pytest.approx([0.4 / 0.6, 0.2 / 0.6])
    row = scores((" positive", " dull"), LISTED)
    assert row is not None
    assert row.tolist() == [0.0, FLOOR]
    assert scores((" dull", " bright"), LISTED) is None
    both = scores((" good", " goodish"), {" good": -1.0, " goodi": -2.0, " go": -0.1})
    assert both is not None
    assert both - both[0] == pytest.approx([0, -1])
    assert expected((" a", " b"), {}) is None
    free = expected((" positive", " dull"), {" positive": -1.0, "x": -3.0})
    assert free is not None
    assert free[0] - free[1] == pytest.approx(2.0)


def test_calibration_is_asked_once_a_member_and_forgotten_with_it(
    other: CompletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, every question costs its content-free twins again, or deleted records still vote."""
    built, free = engine(other, in_flight=16), ("N/A:", ":")
    members = [prompt(0), prompt(1)]

    def prompts_of(call: Callable[[], object]) -> int:
        other.bodies.clear()
        call()
        prompts = [body["prompt"] for body in other.completions if "logprobs" in body]  # others count a tail's tokens
        return sum(len(some) if isinstance(some, list) else 1 for some in prompts)

    def ask() -> Any:
        return built.score_labels(members, WORDS, content_free=free)

    assert ask() == [pytest.approx([0.0, 0.0])] * 2  # the fake answers the same to everything
    built.forget(0, 1)
    assert [prompts_of(ask) for _ in range(2)] == [2 + 4, 2]
    built.forget(1)
    assert prompts_of(ask) == 2 + 2
    members[0] = MemberPrompt(HEAD, "Label: new\n", TAIL, 0)
    assert prompts_of(ask) == 2 + 2
    kept = list(built._calibrations._kept.values())
    built.forget(0, 1)
    assert all((row == 0).all() for row in kept)
    monkeypatch.setattr(calls, "_KEPT", 1)
    ask()
    assert len(built._calibrations._kept) == 1


def test_an_end_that_is_listed_by_its_name_is_an_end() -> None:
    """If it breaks, texts that vLLM writes hold "<|im_end|>" and go on behind it."""
    listed = {" a": -0.2, "<|im_end|>": -1.9, "</s>": -6.0, " b": -4.0}
    with CompletionServer(vllm=True, answer={"logprobs": {"top_logprobs": [listed]}}) as server:
        public = Continuation(MemberPrompt(HEAD, "", TAIL, "public"), ("x",), 0.0)
        found = engine(server).score_next_token(public, asked(1), candidates=9)
    assert found.tokens == (" a", " b", "")
    assert found.public.tolist() == [-0.2, -4.0, -1.9]


def test_what_a_server_does_not_list_of_a_member_counts_as_the_least_that_it_does(
    other: CompletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, members whose list is another one vote against all else; or one's list hangs on the others'."""
    built, first = engine(other), next(iter(LISTED))
    lists = [{first: -0.5, " elsewhere": -3.0}, {" far": -7.0}, None]
    monkeypatch.setattr(built._calls, "listed_after", lambda *_: lists)
    public = Continuation(MemberPrompt(HEAD, "", TAIL, "public"), ("x",), 0.0)
    found = built.score_next_token(public, asked(1, 2, 3), candidates=9)
    known = {token: -0.5 if token == first else -3.0 for token in found.tokens}
    assert found.members[0] is not None
    assert found.members[1] is not None
    assert dict(zip(found.tokens, found.members[0].tolist(), strict=True)) == known
    assert set(found.members[1].tolist()) == {-7.0}
    assert found.members[2] is None, "it abstains"


def test_a_server_that_lists_fewer_tokens_than_asked_is_not_believed() -> None:
    """If it breaks, certificates say that texts are drawn from more tokens than there ever were."""
    with CompletionServer(vllm=True, answer={"logprobs": {"top_logprobs": [LISTED]}}) as server:
        built = engine(server)
    assert built.listed_tokens == len(LISTED)
    assert any(f"lists {len(LISTED)} tokens" in note for note in built.notes)


@pytest.mark.parametrize(
    ("fault", "says"),
    [({"status": 429}, "status 429"), ({"refuse": HEAD}, "status 400"), ({"lists_tokens": False}, "no log-prob"),
     ({"answer": {"logprobs": {"top_logprobs": [None]}}}, "AttributeError")],
)  # fmt: skip
def test_a_server_that_fails_on_public_text_is_named_with_its_status(fault: dict[str, Any], says: str) -> None:
    """If it breaks, who has asked too often is told to shorten the prompt."""
    with CompletionServer() as server:
        built = engine(server)
        vars(server).update(fault)
        with pytest.raises(ModelUnavailable, match=says):
            built.score_next_token(Continuation(MemberPrompt(HEAD, "", TAIL, "public"), ("x",), 0.0), [], candidates=9)
        if "status" in says:
            with pytest.raises(ModelUnavailable, match=says):
                built.count_tokens(HEAD)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["joint", "in threads"])
def test_no_surface_shows_records_or_how_many_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """If it breaks, logs at DEBUG, environment proxies or exceptions carry private records, or tell how many."""
    with CompletionServer(refuse="word7") as server, CompletionServer() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        built = engine(server, in_flight=4)
        members = [Continuation(prompt(i, f"{CANARY} word{i}"), (), 0.5) for i in range(9)]
        with leak_surfaces(tmp_path) as surfaces:
            answers = built.next_tokens(members, Decoding(temperature=temperature))
            rows = built.score_labels([one.prompt for one in members], WORDS, content_free=["N/A:"])
            assert [answer is None for answer in answers] == [i == 7 for i in range(9)]
            assert [row is None for row in rows] == [i == 7 for i in range(9)]
            log = [text for text in surfaces.log.seen if "http" in text.lower()]
            assert CANARY not in surfaces.everything()
            assert log == []
        assert CANARY in server.text()
        assert proxy.bodies == []


def test_the_openai_client_would_have_shown_them(tmp_path: Path) -> None:
    """If it breaks, the test above is blind."""
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with CompletionServer() as server, leak_surfaces(tmp_path) as surfaces:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="tiny", prompt=CANARY, max_tokens=1)
        client.close()
        assert "log" in surfaces.where(CANARY)


def test_requests_in_threads_keep_the_callers_context(other: CompletionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, what is quiet in the caller is loud in the threads that ask for it."""
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="unset")
    built, seen = engine(other, in_flight=3), []
    inner = built._server.ask
    monkeypatch.setattr(built._server, "ask", lambda *args: (seen.append(mark.get()), inner(*args))[1])
    mark.set("set")
    built.next_tokens(asked(0, 1, 2), Decoding(temperature=1.0))
    assert seen == ["set"] * 3


@pytest.mark.parametrize("call", ["next_tokens", "score_labels", "count_tokens"])
def test_ctrl_c_leaves_without_text_or_frames(other: CompletionServer, call: str) -> None:
    """If it breaks, Ctrl-C is swallowed, or an error reporter reads private prompts from its frames."""
    built = engine(other)

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt(CANARY)

    built._server.ask = interrupted  # type: ignore[method-assign]  # the transport, interrupted
    mine = prompt(0, CANARY)
    arguments: dict[str, tuple[Any, ...]] = {
        "next_tokens": ([Continuation(mine, (), 0.5)], Decoding()),
        "score_labels": ([mine], WORDS),
        "count_tokens": (CANARY,),
    }
    with pytest.raises(KeyboardInterrupt) as caught:
        getattr(built, call)(*arguments[call])
    assert (caught.value.args, caught.value.__cause__, caught.value.__context__) == ((), None, None)
    shows_nothing(caught.value, CANARY)


def test_tokens_are_texts(other: CompletionServer) -> None:
    """If it breaks, numbers of another engine are pasted into a prompt."""
    built = engine(other)
    assert built.detokenize((" a", "b", "")) == " ab"
    with pytest.raises(InvalidParameter, match="texts"):
        built.detokenize([3])
    with pytest.raises(InvalidParameter, match="texts"):
        built.next_tokens(asked(0), Decoding(banned=frozenset({3})))
    assert built.next_tokens([Continuation(prompt(0), (3,), 0.5), *asked(1)], Decoding()) == [None, " Label:x"]
    assert built.next_tokens(asked(0, draw=math.nan), Decoding()) == [None]


def test_a_key_is_sent_and_never_shown(other: CompletionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, servers that ask for a key refuse, or the key is in a traceback."""
    built = engine(other, api_key="sesame")
    sent: list[str] = []
    inner = built._server._transport.handle_request
    monkeypatch.setattr(
        built._server._transport,
        "handle_request",
        lambda request: (sent.append(request.headers["authorization"]), inner(request))[1],
    )
    built.next_tokens(asked(0), Decoding())
    assert sent == ["Bearer sesame"]
    assert "sesame" not in repr(built)


def test_a_closed_engine_says_so(other: CompletionServer) -> None:
    """If it breaks, a closed engine goes on sending records."""
    with engine(other) as built:
        built.score_labels([prompt(0)], WORDS, content_free=["N/A:"])
    other.bodies.clear()
    for call in (
        lambda: built.next_tokens(asked(0), Decoding()),
        lambda: built.score_labels([prompt(0)], WORDS),
        lambda: built.count_tokens("a"),
    ):
        with pytest.raises(ModelUnavailable, match="closed"):
            call()
    built.forget(0)
    built.close()
    assert other.bodies == []
    assert not built._calibrations._kept


def test_the_clients_own_log_is_left_alone_elsewhere(other: CompletionServer, caplog: pytest.LogCaptureFixture) -> None:
    """If it breaks, building an engine silences every other use of httpx in the process."""
    import httpx

    for name in ("httpx", "httpcore"):  # other libraries in this process may have silenced them before
        caplog.set_level(logging.DEBUG, logger=name)
    engine(other)
    httpx.get(f"{other.url}/v1/models", trust_env=False)
    assert any(record.name == "httpx" for record in caplog.records)
    assert any(record.name.startswith("httpcore") for record in caplog.records)
