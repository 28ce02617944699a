"""Logs and warnings of the provider's client, and a real OpenAI client against a loopback endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import io
import logging
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, LeakSurfaces, RecordingLog, leak_surfaces
from fakes.models import CLIENT_LOG, Chat, fail, log_and_warn
from fakes.openai_server import OpenAIServer
from langchain_core.globals import set_llm_cache
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_dp import isolation
from langchain_dp.isolation import filters
from langchain_dp.isolation.model import IsolatedModel


@pytest.fixture
def log() -> Any:
    handler = RecordingLog()
    level = logging.root.level
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.DEBUG)
    yield handler
    logging.root.setLevel(level)
    logging.root.removeHandler(handler)


def test_records_of_other_threads_still_pass(log: RecordingLog) -> None:
    """If it fails, the application's own log has holes while a private call runs."""

    def act(prompt: str) -> None:
        thread = threading.Thread(target=logging.getLogger("app").info, args=("from elsewhere",))
        thread.start()
        thread.join()
        logging.getLogger("app").error(prompt)

    IsolatedModel(Chat(act=act)).batch([CANARY])
    logging.getLogger("app").info("afterwards")
    seen = "\n".join(log.seen)
    assert "from elsewhere" in seen
    assert "afterwards" in seen
    assert CANARY not in seen


def test_threads_with_a_copied_context_are_covered(log: RecordingLog) -> None:
    """If it fails, a model that works in LangChain's executors logs private prompts."""

    def act(prompt: str) -> None:
        with ContextThreadPoolExecutor() as executor:
            executor.submit(log_and_warn, prompt).result()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        IsolatedModel(Chat(act=act)).batch([CANARY])
        asyncio.run(
            IsolatedModel(
                RunnableLambda(lambda p: asyncio.run(asyncio.to_thread(act, p))), trust_opaque_model=True
            ).abatch([CANARY])
        )
        assert CANARY not in "\n".join(log.seen)
        assert caught == []
        act(CANARY)
        assert CANARY in "\n".join(log.seen)
        assert len(caught) == 1


@pytest.mark.parametrize("new", ["logger", "handler"])
def test_loggers_or_handlers_made_during_the_call_are_covered(log: RecordingLog, new: str) -> None:
    """If it fails, a provider module imported lazy_exports inside the call logs private prompts."""
    late = RecordingLog()

    def act(prompt: str) -> None:
        if new == "logger":
            logging.getLogger(f"late.{threading.get_ident()}").debug(prompt)
        else:
            logging.getLogger(CLIENT_LOG).addHandler(late)
            logging.getLogger(CLIENT_LOG).debug(prompt)

    logging.getLogger(CLIENT_LOG)
    try:
        IsolatedModel(Chat(act=act)).batch([CANARY])
        assert CANARY not in "\n".join([*log.seen, *late.seen])
        act(CANARY)
        assert CANARY in "\n".join([*log.seen, *late.seen])
    finally:
        logging.getLogger(CLIENT_LOG).removeHandler(late)


def test_a_logger_made_during_the_call_prints_nothing_without_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a provider's module prints private prompts to stderr, where the application set up no log."""
    last = RecordingLog()
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", last)
    IsolatedModel(Chat(act=lambda prompt: logging.getLogger("made.in.a.call").error(prompt))).batch([CANARY])
    assert last.seen == []
    logging.getLogger("made.outside").error("public")
    assert "public" in "".join(last.seen)


def test_records_are_dropped_before_hooks_between_logger_and_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, error reporters that wrap Logger.callHandlers upload private prompts."""
    seen: list[str] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: seen.append(record.getMessage()))

    def act(prompt: str) -> None:
        log_and_warn(prompt)
        logging.getLogger(f"made in the call {id(seen)}").warning(prompt)  # its module was imported just now

    IsolatedModel(Chat(act=act)).batch([CANARY])
    assert CANARY not in "".join(seen)
    with pytest.warns(UserWarning, match="Unexpected token"):
        log_and_warn(CANARY)
    assert CANARY in "".join(seen)


def test_the_filters_are_put_in_once_and_change_nothing_outside(log: RecordingLog) -> None:
    """If it fails, each call makes logging slower, or warnings of the application vanish."""
    for _ in range(3):
        IsolatedModel(Chat()).batch(["a", "b"])
    ours = [f for h in logging.root.handlers for f in h.filters if type(f).__module__ == filters.__name__]
    assert len(ours) == len(logging.root.handlers) > 0
    assert not hasattr(logging.Logger.handle.__wrapped__, "__wrapped__")  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="Unexpected token"):
        log_and_warn("public")
    assert "public" in "\n".join(log.seen)


def openai_model(server: OpenAIServer) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="gpt-x", base_url=f"{server.url}/v1", api_key="not-a-key", max_retries=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("refuse", [False, True])
def test_a_real_openai_client_at_debug_level_says_nothing(
    how: str, refuse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it fails, OPENAI_LOG=debug writes private prompts into the application's log."""
    from openai import BadRequestError
    from openai._utils._logs import setup_logging

    monkeypatch.setenv("OPENAI_LOG", "debug")
    prompts = [f"{CANARY} a", f"{CANARY} b"]

    async def main(server: OpenAIServer, surfaces: LeakSurfaces) -> None:  # one loop: the client keeps its sockets
        isolation, bare = IsolatedModel(openai_model(server)), openai_model(server)
        answers = isolation.batch(prompts) if how == "sync" else await isolation.abatch(prompts)
        assert [answer and answer.content for answer in answers] == ([None, None] if refuse else ["positive"] * 2)
        assert server.text().count(CANARY) == 2
        assert surfaces.where(CANARY) == set()
        assert isolation.name == "gpt-x"
        with pytest.raises(BadRequestError, match=CANARY) if refuse else contextlib.nullcontext():
            bare.invoke(prompts[0]) if how == "sync" else await bare.ainvoke(prompts[0])
        assert surfaces.where(CANARY) >= {"tracer", "log"}

    openai_log = logging.getLogger("openai")
    level = openai_log.level
    try:
        with OpenAIServer(refuse=refuse) as server, leak_surfaces(tmp_path) as surfaces:
            setup_logging()
            assert openai_log.level == logging.DEBUG
            asyncio.run(main(server, surfaces))
    finally:
        openai_log.setLevel(level)


def test_structured_output_of_a_real_client_stays_quiet() -> None:
    """If it fails, llm.with_structured_output(...) cannot be used as the voter."""
    from typing import Literal

    from pydantic import BaseModel

    class Label(BaseModel):
        label: Literal["positive", "negative"]

    set_llm_cache(None)
    with OpenAIServer(reply='{"label": "positive"}') as server:
        isolation = IsolatedModel(openai_model(server).with_structured_output(Label, method="json_mode"))
        assert [answer.label for answer in isolation.batch(["p"]) if answer] == ["positive"]
        assert isolation.name == "gpt-x"


def test_an_event_loop_that_debugs_logs_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    """If it fails, asyncio's debug mode logs slow tasks together with what they raised, which quotes the prompt."""

    def act(prompt: str) -> None:
        raise ValueError(f"400: your prompt was {prompt}")

    async def ask() -> Any:
        asyncio.get_running_loop().slow_callback_duration = 0  # every step is slow
        return await IsolatedModel(RunnableLambda(lambda text: text) | Chat(act=act), trust_opaque_model=True).abatch(
            [CANARY]
        )

    with caplog.at_level(logging.DEBUG):
        assert asyncio.run(ask(), debug=True) == [None]
    assert "Executing" in caplog.text
    assert CANARY not in caplog.text


def test_what_is_no_runnable_is_refused_without_its_repr() -> None:
    """If it fails, a mistyped llm fails later, or its repr, perhaps a key, is printed."""
    from langchain_dp.errors import InvalidParameter

    with pytest.raises(InvalidParameter, match=r"model=str to be a chat model"):
        IsolatedModel("sk-secret")


def test_verbose_prints_nothing() -> None:
    """If it fails, verbose=True on the model or globally prints private prompts."""
    from langchain_core.globals import set_verbose

    set_verbose(True)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            model = Chat()
            assert model.verbose
            IsolatedModel(model | RunnableLambda(str)).batch([CANARY])
            IsolatedModel(RunnableLambda(lambda p: model.invoke(p)), trust_opaque_model=True).batch([CANARY])
        assert out.getvalue() == ""
    finally:
        set_verbose(False)


def test_a_factory_of_log_records_sees_nothing_of_a_quiet_call(log: RecordingLog) -> None:
    """If it fails, an application that adds fields to its log records copies private prompts, before any filter."""
    seen: list[str] = []

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **kwargs)
        if record.name in (CLIENT_LOG, "app"):  # others speak whenever the collector frees one of their clients
            seen.append(record.getMessage())
        return record

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    try:
        for _ in range(2):
            IsolatedModel(Chat(act=lambda prompt: logging.getLogger(CLIENT_LOG).error(prompt))).batch([CANARY])
        logging.getLogger("app").info("afterwards")
    finally:
        logging.setLogRecordFactory(before)
    assert seen == ["afterwards"]


class Quoting:
    """Fails when it is freed, as a client does that could not close its connection, and says what it sent."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt

    def __del__(self) -> None:
        raise ConnectionError(self.prompt)


def hooked(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[str]:
    """What a hook of the process is told, as an error reporter would put it in."""
    seen: list[str] = []
    monkeypatch.setattr(place, name, lambda args: seen.append(str(args.exc_value)))
    return seen


def test_an_error_in_a_finalizer_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, an error that Python can only report to sys.unraisablehook carries a private prompt there."""
    seen = hooked(monkeypatch, sys, "unraisablehook")
    IsolatedModel(Chat(act=Quoting)).batch([CANARY])
    asyncio.run(IsolatedModel(Chat(act=Quoting)).abatch([CANARY]))
    assert seen == []
    Quoting("public")
    assert seen == ["public"]


@pytest.mark.parametrize("copied", [True, False])
def test_an_error_in_a_thread_of_the_model_goes_nowhere(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, threading.excepthook gets, or prints, the error of a thread that worked on a private prompt."""
    seen = hooked(monkeypatch, threading, "excepthook")

    def act(prompt: str) -> None:
        work = (contextvars.copy_context().run, (fail, prompt)) if copied else (fail, (prompt,))
        thread = threading.Thread(target=work[0], args=work[1])
        thread.start()
        thread.join()

    IsolatedModel(Chat(act=act)).batch([CANARY])
    assert seen == []
    act("public")
    assert seen == ["context length exceeded by: public"]


def test_warnings_that_the_model_insists_on_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, model code that wants all its warnings shown shows them with private prompts."""
    seen: list[str] = []

    def act(prompt: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: seen.append(str(message))
            warnings.warn(prompt, stacklevel=1)

    IsolatedModel(Chat(act=act)).batch([CANARY])
    assert seen == []
    act("public")
    assert seen == ["public"]


def test_an_error_that_an_abandoned_task_kept_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """If it fails, asyncio reports a task that nobody awaited, with the prompt in its error, when it is freed."""

    async def late(prompt: str) -> None:
        fail(prompt)

    kept: list[Any] = []

    async def aact(prompt: str) -> None:
        kept.append(asyncio.ensure_future(late(prompt)))
        await asyncio.wait(kept)

    async def main() -> None:
        for ask in (IsolatedModel(Chat(aact=aact)).abatch([CANARY]), aact("public")):
            await ask
            kept.clear()
            gc.collect()

    asyncio.run(main())
    assert "public" in caplog.text
    assert CANARY not in caplog.text


def test_every_hook_names_a_test_that_exists() -> None:
    """If it fails, the table of hooks on the process names an attack that no test plays."""
    named = re.findall(r"^- \w+: .* \| .* \|\n  (test_\w+)$", isolation.__doc__ or "", re.MULTILINE)
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert len(named) == 16
    assert [name for name in named if f"def {name}(" not in tests] == []
