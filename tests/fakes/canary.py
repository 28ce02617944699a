"""The canary: a string for private text, and every surface on which only a bare model, as a control, may show it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.globals import get_llm_cache, set_llm_cache

from fakes.langsmith_server import LangSmithServer, langsmith_tracing
from fakes.sqlite_cache import SQLiteCache

CANARY = "canary-7f3a-patient-zero"
TESTS = str(Path(__file__).parents[1])

EVENTS = [name for name in dir(AsyncCallbackHandler) if name.startswith("on_")]


def _record(name: str) -> Any:
    def event(self: Any, *args: Any, **kwargs: Any) -> None:
        self.seen.append(f"{name} {args!r} {kwargs!r}")

    return event


def _arecord(name: str) -> Any:
    async def event(self: Any, *args: Any, **kwargs: Any) -> None:
        self.seen.append(f"{name} {args!r} {kwargs!r}")

    return event


class RecordingHandler(BaseCallbackHandler):
    """Keeps the repr of everything it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []


class AsyncRecordingHandler(AsyncCallbackHandler):
    """The same, as coroutines."""

    def __init__(self) -> None:
        self.seen: list[str] = []


for _name in EVENTS:
    setattr(RecordingHandler, _name, _record(_name))
    setattr(AsyncRecordingHandler, _name, _arecord(_name))


class RecordingLog(logging.Handler):
    """Keeps each record formatted, with its arguments, extras and traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{self.format(record)} {record.__dict__!r}")


@dataclasses.dataclass
class LeakSurfaces:
    """Everything that was seen by anyone: tracer, handlers, cache, logs, warnings, standard streams."""

    server: LangSmithServer
    cache: SQLiteCache
    log: RecordingLog
    caught: list[warnings.WarningMessage]
    streams: io.StringIO
    handler: RecordingHandler = dataclasses.field(default_factory=RecordingHandler)
    async_handler: AsyncRecordingHandler = dataclasses.field(default_factory=AsyncRecordingHandler)

    @property
    def handlers(self) -> list[BaseCallbackHandler]:
        """The user's handlers, to pass as ``config={"callbacks": surfaces.handlers}``."""
        return [self.handler, self.async_handler]

    @property
    def config(self) -> dict[str, Any]:
        """A config with everything that a user may give."""
        return {"callbacks": self.handlers, "tags": ["t"], "metadata": {"k": "v"}, "configurable": {"thread_id": "7"}}

    def by_name(self) -> dict[str, str]:
        """What each surface has recorded, after the tracers have sent all they hold."""
        return {
            "tracer": self.server.traced(),
            "handler": "\n".join(self.handler.seen),
            "async_handler": "\n".join(self.async_handler.seen),
            "cache": self.cache.text(),
            "log": "\n".join(self.log.seen),
            "warnings": "\n".join(str(warning.message) for warning in self.caught),
            "streams": self.streams.getvalue(),
        }

    def everything(self) -> str:
        """All surfaces in one string."""
        return "\n".join(self.by_name().values())

    def where(self, text: str) -> set[str]:
        """Names of the surfaces that hold ``text``."""
        return {name for name, seen in self.by_name().items() if text in seen}


@contextlib.contextmanager
def leak_surfaces(folder: Path) -> Iterator[LeakSurfaces]:
    """Every surface at once: tracing, a global cache in ``folder``, the log at DEBUG, warnings, standard streams."""
    log = RecordingLog()
    streams = io.StringIO()
    level, cache_before = logging.root.level, get_llm_cache()
    cache = SQLiteCache(folder / "cache.sqlite")
    with (
        langsmith_tracing() as server,
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(streams),
        contextlib.redirect_stderr(streams),
    ):
        warnings.simplefilter("always")
        logging.root.addHandler(log)
        logging.root.setLevel(logging.DEBUG)
        set_llm_cache(cache)
        try:
            yield LeakSurfaces(server, cache, log, caught, streams)
        finally:
            set_llm_cache(cache_before)
            logging.root.setLevel(level)
            logging.root.removeHandler(log)


def reported(error: BaseException, keeps: Callable[[str], bool] = lambda file: not file.startswith(TESTS)) -> list[str]:
    """What a reporter keeps of an error and of those behind it: their texts, and the locals of frames of such files."""
    kept: list[str] = []
    known, left = set[int](), [error]
    while left:
        each = left.pop()
        known.add(id(each))
        kept.append(repr((each, vars(each))))
        kept += [
            f"{frame.f_code.co_filename}:{line} {frame.f_locals!r}"
            for frame, line in traceback.walk_tb(each.__traceback__)
            if keeps(frame.f_code.co_filename)
        ]
        behind = [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        left += [other for other in behind if other is not None and id(other) not in known]
    return kept


def shows_nothing(error: BaseException, private: str = CANARY) -> None:
    """Nothing private is in an error, nor in its frames, of which some are not those of tests."""
    kept = reported(error)
    assert len(kept) > 1
    assert not [text[:2_000] for text in kept if private in text]


class Reporting(BaseCallbackHandler):
    """What an error reporter keeps of an error: the locals of every frame, and what it was raised in."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def on_chain_error(self, error: BaseException, *, of: str = "", **_: Any) -> None:
        """Keep the frames of an error, of files whose path holds ``of``."""
        self.kept += reported(error, lambda file: of in file)

    on_retriever_error = on_chain_error
