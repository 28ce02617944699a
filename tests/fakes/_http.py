"""A loopback HTTP server that records every request it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

Answer = tuple[int, dict[str, str], bytes]


class _SilentServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args: object) -> None:
        """Say nothing when a client hangs up."""


class RecordingServer:
    """Serves ``answer(path, body)`` on 127.0.0.1 and keeps every request body, decompressed."""

    def __init__(self, answer: Callable[[str, bytes], Answer]) -> None:
        self.bodies: list[bytes] = []
        self._answer = answer
        server, bodies = self, self.bodies
        self._gone = gone = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = _read(self)
                if gone.is_set():  # a connection that was kept open dies with the server
                    self.close_connection = True
                    return
                bodies.append(self.path.encode() + b"\n" + body)
                status, headers, content = server._answer(self.path, body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = _serve

            def log_message(self, *args: object) -> None:
                """Say nothing: the log is one of the surfaces under test."""

        self._server = _SilentServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def text(self) -> str:
        """All request paths and bodies so far."""
        return "\n".join(body.decode("utf-8", "replace") for body in self.bodies)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _read(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
        body = b""
        while size := int(request.rfile.readline().split(b";")[0], 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
    else:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    encoding = request.headers.get("Content-Encoding", "")
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return body
