"""A LangSmith-compatible endpoint on loopback, and the process state that points the tracers at it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from langsmith import run_trees, utils

from fakes._http import Answer, RecordingServer

_INFO = {
    "version": "0.12.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 1,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_971_520,
    },
}


def _answer(path: str, body: bytes) -> Answer:
    content = json.dumps(_INFO if path.endswith("/info") else {}).encode()
    return 200 if path.endswith("/info") else 202, {"Content-Type": "application/json"}, content


class LangSmithServer(RecordingServer):
    """Accepts /info, /runs, /runs/batch and /runs/multipart; ``text()`` is all that was traced."""

    def __init__(self) -> None:
        super().__init__(_answer)

    def traced(self) -> str:
        """Wait until the tracers have sent everything, and return it."""
        if run_trees._CLIENT is not None:
            run_trees._CLIENT.flush()
        return self.text()


@contextlib.contextmanager
def langsmith_tracing() -> Iterator[LangSmithServer]:
    """Switch environment-variable tracing on, towards a fresh server; put everything back on exit."""
    with LangSmithServer() as server:
        ours = {
            "LANGSMITH_TRACING": "true",
            "LANGSMITH_ENDPOINT": server.url,
            "LANGSMITH_API_KEY": "not-a-key",
            "LANGSMITH_PROJECT": "canary",
        }
        theirs = {name: value for name, value in os.environ.items() if name.startswith(("LANGSMITH_", "LANGCHAIN_"))}
        client, run_trees._CLIENT = run_trees._CLIENT, None
        _set_environment(drop=theirs, add=ours)
        try:
            yield server
        finally:
            if run_trees._CLIENT is not None:
                run_trees._CLIENT.flush()
                run_trees._CLIENT.cleanup()
            run_trees._CLIENT = client
            _set_environment(drop=ours, add=theirs)


def _set_environment(*, drop: dict[str, str], add: dict[str, str]) -> None:
    for name in drop:
        os.environ.pop(name, None)
    os.environ.update(add)
    # langsmith remembers the variables it has read.
    utils.get_env_var.cache_clear()
    utils.get_tracer_project.cache_clear()
