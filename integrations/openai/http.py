"""Requests without a log record, proxy, redirect or retry."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from langchain_dp._util.extras import needs
from langchain_dp._util.machine import is_loopback
from langchain_dp.errors import InvalidParameter

_under_way: ContextVar[bool] = ContextVar("langchain_dp_completion_under_way", default=False)


class ServerError(Exception):
    """The server failed. Carries a status or class name, never a text."""


def _shown(record: logging.LogRecord) -> bool:
    return not _under_way.get()


class Server:
    """A base address and its connections. httpx's client would log and follow proxies."""

    def __init__(
        self, base_url: str, api_key: str | None, timeout: float, connections: int, allow_plain_http: bool
    ) -> None:
        self._base = _checked(base_url, allow_plain_http).rstrip("/")
        if api_key is not None and not isinstance(api_key, str):  # a SecretStr would be sent as asterisks
            raise InvalidParameter(
                f"Expected api_key of type {type(api_key).__name__} to be a str. Give the key itself."
            )
        with needs("openai", "httpx"):
            import httpx
        self._httpx = httpx
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)}
        self._transport = httpx.HTTPTransport(
            verify=ssl.create_default_context(),
            trust_env=False,
            retries=0,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        for name in list(logging.root.manager.loggerDict):
            if name.split(".")[0] in ("httpx", "httpcore"):
                logging.getLogger(name).addFilter(_shown)  # once, however often it is added

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST with a body. A ``path`` with "/" is below the root."""
        root = self._base.removesuffix("/v1") if path.startswith("/") else f"{self._base}/"
        content = None if body is None else json.dumps(body).encode()
        before = _under_way.get()
        _under_way.set(True)
        try:
            request = self._httpx.Request(
                "GET" if body is None else "POST",
                root + path,
                headers=self._headers,
                content=content,
                extensions=self._timeout,
            )
            response = self._transport.handle_request(request)
            try:
                text = response.read()
            finally:
                response.close()
            if response.status_code != 200:
                raise ServerError(f"status {response.status_code}")
            return json.loads(text)
        except ServerError:
            raise
        except Exception as problem:  # of any kind: it may quote what was sent
            raise ServerError(type(problem).__name__) from None
        finally:
            _under_way.set(before)

    def close(self) -> None:
        self._transport.close()


def _checked(base_url: str, allow_plain_http: bool) -> str:
    try:
        parts = urlsplit(base_url)
    except ValueError:  # its text may quote a password
        parts = urlsplit("")
    if parts.username or parts.password:
        raise InvalidParameter("Expected base_url without a user name or password in it. Give api_key= instead.")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidParameter(
            f"Expected base_url, with scheme {parts.scheme!r} and host {parts.hostname!r}, to be an address such as "
            "'http://127.0.0.1:8000/v1', with nothing after its path. Give a key as api_key=."
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not allow_plain_http:
        raise InvalidParameter(
            f"Expected base_url={base_url!r} to use https: private records would cross the network in clear. "
            "If the network is part of your trust boundary, pass allow_plain_http=True."
        )
    return base_url
