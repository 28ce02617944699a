"""``langchain-dp ledger --serve``: the report as a live page, for browsers on this machine."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from langchain_dp._util.extras import needs
from langchain_dp._util.machine import is_loopback
from langchain_dp.cli.parser import DONE
from langchain_dp.cli.show import note
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.audit.watch.reading import Watched


def serve(watched: Watched, host: str, port: int, *, every: float, allow_remote: bool) -> int:
    """Serve the live page of a ledger until Ctrl-C, which is how it ends; returns the exit code.

    Raises:
        InvalidParameter: The host is not this machine's own and ``allow_remote`` is off, or it cannot be served on; or
            there is no ledger.
        LedgerError: The ledger cannot be read at the start.
        MissingExtra: Starlette or uvicorn is not installed.
    """
    from langchain_dp.audit.watch.live import LOOPBACK, is_address, live_app

    with needs("watch", "uvicorn", why=" for the live page of a ledger"):
        import uvicorn
    local = is_loopback(host)
    if not local and not allow_remote:
        raise InvalidParameter(
            f"Expected --host {host} to be a loopback address, such as 127.0.0.1: the page has no login. Reach it "
            "through an SSH tunnel, or add --allow-remote if everybody who can reach that address may read it."
        )
    found = watched.figures()  # what is no ledger says so here
    app = live_app(watched, every=every, hosts=(*LOOPBACK, host) if local else None if is_address(host) else (host,))
    listening = _listen(host, port)
    if not local:
        note(
            f"Warning: everybody who can reach {host} reads the page, without a login and unencrypted. It holds no "
            "text of a record, but names of plans, chains and users, counts and times."
        )
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listening.getsockname()[1]}/ shows the ledger ({found.unit}); Ctrl-C ends it.", flush=True)
    settings = uvicorn.Config(
        app,
        log_config=None,  # what goes wrong is said on stderr, and who asked for what is not
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    with listening, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[listening])
    return DONE


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()  # a browser that is faster than the server waits
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise InvalidParameter(
            f"Expected --host {host} --port {port} to be an address of this machine that is free ({error.strerror}). "
            "Name another port, or 0 for any that is free."
        ) from None
    return listening
