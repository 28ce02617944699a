"""The app of the live report."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import json
import threading
from collections.abc import Collection
from importlib.resources import files
from typing import Any

from langchain_dp._util import forks, validate
from langchain_dp._util.extras import install_hint, needs
from langchain_dp.audit.report.contents import Report
from langchain_dp.audit.report.page import Live, page
from langchain_dp.audit.watch.reading import LedgerStats, Watchable, Watched, named
from langchain_dp.errors import LangChainDPError

with needs("watch", "starlette", why=" for the live page of a ledger"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_HEADERS = {
    "cache-control": "private, no-cache",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def live_app(
    ledger: Watchable | Watched, *, name: str = "ledger", hosts: Collection[str] | None = LOOPBACK, every: float = 3.0
) -> ASGIApp:
    """Return an ASGI app that shows the live report of one ledger and never writes.

    It serves ``/``, ``/healthz`` (200 or 503) and ``/metrics`` (extra ``prometheus``), by GET and HEAD for known hosts
    only. It has no login, so serve it on loopback.

    Args:
        ledger: The ledger, or its path or URL, which is only read.
        name: Label of the ledger in ``/metrics``.
        hosts: Allowed host names. None: any IP address.
        every: Seconds between two polls, at least 0.5.

    Raises:
        MissingExtra: Starlette is not installed.

    Examples:
        >>> import uvicorn
        >>> uvicorn.run(live_app("privacy.ledger"), host="127.0.0.1", port=8787)
    """
    validate.number("every", every, at_least=0.5)
    (watched,) = named({name: ledger}).values()
    pages = _Pages(watched, every)
    routes = [
        Route("/", pages.answer),
        Route("/live.js", _script),
        Route("/healthz", _health(watched)),
        Route("/metrics", _metrics(name, watched)),
    ]
    return _ReadingOnly(Starlette(routes=routes), None if hosts is None else {_plain(host) for host in hosts})


class _Pages:
    """The page, or the last one while reading fails."""

    def __init__(self, watched: Watched, every: float) -> None:
        self._watched, self._every = watched, every
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._seen: LedgerStats | None = None
        self._report: Report | None = None
        self._page: tuple[str, str] = "", ""

    def answer(self, request: Request) -> Response:
        with self._lock:
            found, trouble = self._watched.look()
            found_page = found and dataclasses.replace(found, refusals=None)  # the page shows no refusals
            if found is not None and (self._report is None or found_page != self._seen):
                try:
                    self._report, self._seen, self._page = self._watched.report(), found_page, ("", "")
                except (LangChainDPError, OSError) as error:
                    trouble = type(error).__name__
            if self._report is None:
                return PlainTextResponse(f"The ledger cannot be read now ({trouble}).\n", 503)
            if not self._page[0] or self._page[1] != trouble:
                self._page = page(self._report, live=Live(self._every, trouble)), trouble
            text = self._page[0]
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag and not trouble:
            return Response(status_code=304, headers={"etag": tag})
        return Response(text, 503 if trouble else 200, {"etag": tag}, "text/html")


def _script(_: Request) -> Response:
    text = files(__package__).joinpath("live.js").read_text(encoding="utf-8")
    return Response(text, media_type="text/javascript")


def _health(watched: Watched) -> Any:
    def health(_: Request) -> Response:
        trouble = watched.look()[1]
        status = {"healthy": not trouble, **({"trouble": trouble} if trouble else {})}
        return Response(json.dumps(status), 503 if trouble else 200, media_type="application/json")

    return health


def _metrics(name: str, watched: Watched) -> Any:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        from langchain_dp.audit.watch.prometheus import LedgerCollector
    except ImportError:
        missing = f"For metrics: {install_hint('prometheus')}.\n"
        return lambda _: PlainTextResponse(missing, 404)
    registry = CollectorRegistry()
    registry.register(LedgerCollector({name: watched}))

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return metrics


class _ReadingOnly:
    """Refuses foreign hosts and every method that could change something."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in own)]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app = self._app
        if len(hosts) != 1 or not self._known(hosts[0]):
            app = PlainTextResponse("This host is not served here.\n", 421)
        elif scope["method"] not in ("GET", "HEAD"):
            app = PlainTextResponse("Only GET: nothing can be changed here.\n", 405, {"allow": "GET, HEAD"})
        await app(scope, receive, sending)

    def _known(self, header: str) -> bool:
        host = _plain(header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header)
        if self._hosts is not None:
            return host in self._hosts
        return host == "localhost" or is_address(host)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
