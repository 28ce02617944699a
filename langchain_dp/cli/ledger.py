"""``langchain-dp ledger``, read only."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typer import Argument, Option

from langchain_dp._util.extras import needs
from langchain_dp._util.machine import is_loopback
from langchain_dp._util.rounding import bound, room
from langchain_dp.cli.options import JsonOptions
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.show import columns, note, strict_json
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.accounting import MetricLedger, PrivacyLedger
    from langchain_dp.audit.report import Plan, Release, Report
    from langchain_dp.audit.watch.reading import Watched

Parts = list[dict[str, float]]
"""Epsilon spent per plan and part."""
_MOST_PARTS = 8  # shown one by one


class Ledger(JsonOptions):
    """Shows a ledger."""

    said: ClassVar = {"path": "PLACE"}
    path = "ledger"
    what = "Show a ledger: budget, spent, left, every release."
    examples = """\
  langchain-dp ledger privacy.ledger
  langchain-dp ledger privacy.ledger --json
  langchain-dp ledger privacy.ledger --verify
  langchain-dp ledger privacy.ledger --serve --port 8787
  langchain-dp ledger --check certificate.json --public-key public.pem --ledger privacy.ledger
"""
    notes = """\
URLs have no password: "postgresql://user@host/database?schema=name". Ledgers in epsilon and in eta (sanitized texts)
are read and not changed, also during charges. They hold no text of a record. Names of plans and chains that read like
a text are hidden. Spent is the cost of the releases so far, and reserved is the promise. Do not add them.
--verify: add up all entries, which opening a ledger of more than 100,000 entries skips up to its last sum.
--serve: the live report page, with /healthz, and /metrics for Prometheus. It has no login. Extra: watch.
--check: verify a certificate that certificate().sign(key) signed. With --ledger: that this ledger holds at least its
claim. Extra: encrypted. With --json {"certificate", "ledger", "version", "code", "same_code"}.
--json: {"kind", "unit", "budget", "reserved", "spent", "left", "total", "plans": [{"name", "made", "epsilon", "delta",
"spent", "parts", "releases": [{"mechanism", "parameters", "used", "most", "left", "first", "last", "chains"}],
"quotas": [{"name", "used", "most"}], "each"}], "facts"}; "each" is the share of a user without a name; budget,
reserved, spent and left by "epsilon" and "delta". In eta they are those of the fullest "user" and "document", and the
one plan has name, made and releases.
"""
    file: str | None = Argument(None, metavar="PLACE", help="file or postgresql:// URL of a ledger, of either kind")
    check: Path | None = Option(None, metavar="FILE", help="a signed certificate to check instead")
    public_key: Path | None = Option(None, metavar="FILE", help="PEM of the Ed25519 public key that --check trusts")
    ledger: str | None = Option(None, metavar="PLACE", help="the ledger that --check compares with")
    verify: bool = Option(False, "--verify", help="first add up every entry again, also of a large ledger")
    serve: bool = Option(False, "--serve", help="show it as a page in a browser, until Ctrl-C")
    interval: float = Option(2.0, parser=positive, metavar="SECONDS", help="between two looks")
    host: str = Option("127.0.0.1", help="address to serve on")
    port: int = Option(8787, min=0, max=65535, help="port to serve on; 0 for a free one")
    allow_remote: bool = Option(False, "--allow-remote", help="serve other machines, too, without a login")

    def _check(self) -> None:
        """Refuse options that would be ignored."""
        if self.check is None and (found := self.given(("public_key", "ledger"))):
            raise WrongArguments(f"Expected {', '.join(found)} together with --check.")
        if self.check is None and self.file is None:
            raise WrongArguments("Expected PLACE to be given, or --check.")
        if self.check is not None and (self.file is not None or self.public_key is None or self.serve or self.verify):
            raise WrongArguments(
                "Expected --check with --public-key, without PLACE, --serve and --verify. Name a ledger with --ledger."
            )
        if (found := self.given(("interval", "host", "port", "allow_remote"))) and not self.serve:
            raise WrongArguments(f"Expected {', '.join(found)} together with --serve.")
        if self.serve and self.json:
            raise WrongArguments("Expected --serve without --json: it shows a page.")

    def run(self) -> int:
        from langchain_dp.audit.watch.reading import Watched

        self._check()
        if self.check is not None and self.public_key is not None:
            return _check_certificate(self.check, self.public_key, self.ledger, as_json=self.json)
        watched = Watched(self.file or "")
        try:
            if self.verify:
                watched.open().verify()
                note("every entry was added up")
            if self.serve:
                return serve(watched, self.host, self.port, every=self.interval, allow_remote=self.allow_remote)
            found = watched.report()
            parts = _parts(found, watched.open())
            print(strict_json(_plain(found, parts)) if self.json else _text(found, parts))
            return DONE
        finally:
            watched.close()


def _check_certificate(path: Path, public_key: Path, ledger: str | None, *, as_json: bool) -> int:
    from langchain_dp.accounting import SignedCertificate
    from langchain_dp.accounting.signing import code_digest
    from langchain_dp.audit.report.opening import open_ledger

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    signed = SignedCertificate.read(text, public_key)
    if ledger is not None:
        with open_ledger(ledger) as opened:
            signed.check_ledger(opened)
    if as_json:
        plain = {"certificate": signed.certificate.to_dict(), "ledger": signed.ledger, "version": signed.version}
        print(strict_json(plain | {"code": signed.code, "same_code": signed.code == code_digest()}))
        return DONE
    print(f"The signature is right: the owner of the key signed this text.\n{signed.in_plain_words()}")
    if ledger is not None:
        print("The ledger is that one, and holds at least what the certificate says.")
    print(f"\n{signed.certificate}")
    return DONE


def _parts(found: Report, ledger: PrivacyLedger | MetricLedger) -> Parts:
    """Return each part's loss."""
    from langchain_dp.accounting import MetricLedger, PartEvent, epsilon
    from langchain_dp.audit.report.names import label

    if isinstance(ledger, MetricLedger):
        return [{} for _ in found.plans]
    spent: Parts = []
    for shown, plan in zip(found.plans, ledger.plans(), strict=False):  # a plan may be newer than the report
        used: dict[str, list[Any]] = {}
        of_all = []  # each part also pays for events over all parts
        for release, (event, _) in zip(shown.releases, plan.events, strict=True):
            made = [(event, release.used)] if release.used else []
            if isinstance(event, PartEvent):
                used.setdefault(event.part, []).extend(made)
            else:
                of_all += made
        neighbors = ledger.budget.neighbors
        shown_as = Counter(map(label, used))
        cost: dict[str, float] = {}
        for place, (name, events) in enumerate(used.items(), 1):
            called = label(name) if shown_as[label(name)] == 1 else f"{label(name)} (part {place})"
            read = events + of_all
            cost[called] = min(epsilon(read, plan.delta, neighbors=neighbors), plan.epsilon) if read else 0.0
        spent.append(cost)
    return spent


def _plain(found: Report, parts: Parts) -> dict[str, Any]:
    whole = found.to_dict(curve=False)
    plans = []
    for plan, spent in zip(whole["plans"], parts, strict=True):
        for release in plan["releases"]:
            release["left"] = None if release["most"] is None else release["most"] - release["used"]
            del release["meaning"]
        plans.append(plan if found.unit == "eta" else plan | {"parts": spent})
    names = ("kind", "file", "made", "read", "neighbors", "unit", "budget", "reserved", "spent", "left", "total")
    return {**{name: whole[name] for name in names}, "plans": plans, "facts": dict(found.facts)}


def _text(found: Report, parts: Parts) -> str:
    metric = found.unit == "eta"
    rows = [("neighbors", found.neighbors)]
    if metric:
        rows += [
            (f"fullest {whose}", f"eta = {bound(spent)} of {bound(budget)} spent, {room(left)} left")
            for whose, spent, budget, left in zip(found.sides, found.spent, found.budget, found.left, strict=True)
        ]
    else:
        rows += [
            ("budget", _pair(found.budget)),
            ("reserved", _pair(found.reserved)),
            ("spent so far", _pair(found.spent)),
            ("left to reserve", f"epsilon = {room(found.left[0])}, delta = {room(found.left[1])}"),
        ]
    rows += [("releases", f"{found.total:,}"), *((name.lower(), value) for name, value in found.facts)]
    plans = [_plan(plan, spent, metric=metric) for plan, spent in zip(found.plans, parts, strict=True)]
    head = f"{found.file}: {found.kind}, made {found.made}"
    return "\n\n".join([f"{head}\n{columns(rows)}", *(plans or ["  Nothing was reserved or released yet."])])


def _pair(values: tuple[float, float]) -> str:
    return f"epsilon = {bound(values[0])}, delta = {bound(values[1])}"


def _plan(plan: Plan, parts: dict[str, float], *, metric: bool) -> str:
    lines = [plan.name]
    if not metric:
        reserved = f"{_pair((plan.epsilon, plan.delta))} reserved"
        lines = [f"Plan {plan.name}, made {plan.made}", f"  {reserved}; epsilon = {bound(plan.spent)} spent so far"]
        if len(parts) > _MOST_PARTS:
            largest = max(parts.values())
            lines.append(
                f"  {len(parts):,} parts: epsilon = {bound(largest)} of {bound(plan.epsilon)} spent in the fullest"
            )
        else:
            lines += [
                f"  part {name}: epsilon = {bound(spent)} of {bound(plan.epsilon)} spent"
                for name, spent in parts.items()
            ]
        lines += [
            f"  user {user_id.name}: {user_id.used:,} of {user_id.most:,} used, {user_id.most - user_id.used:,} left"
            for user_id in plan.quotas
        ]
        lines += [f"  each other user: {plan.each:,}"] if plan.each else []
        if plan.quotas or plan.each:
            lines.append("  (users can pool their answers: the promise is the whole plan's)")
    return "\n".join([*lines, *(_release(release) for release in plan.lines)])


def _release(release: Release) -> str:
    made = f"{release.used:,} releases"
    if release.most is not None:
        made = f"{release.used:,} of {release.most:,} used, {release.most - release.used:,} left"
    when = release.first if release.first == release.last else f"{release.first} to {release.last}"
    chains = ", ".join(f"{name} ({number:,})" for name, number in release.chains.items())
    below = [release.parameters, made, *([when, f"asked for by {chains}"] if release.used else [])]
    return "\n    ".join([f"  {release.mechanism}", *below])


# ----------------------------------------------------------------------------------------------------- as a live page


def serve(watched: Watched, host: str, port: int, *, every: float, allow_remote: bool) -> int:
    """Serve the live page until Ctrl-C."""
    from langchain_dp.audit.watch.live import LOOPBACK, is_address, live_app

    with needs("watch", "uvicorn", why=" for the live page of a ledger"):
        import uvicorn
    local = is_loopback(host)
    if not local and not allow_remote:
        raise InvalidParameter(
            f"Expected --host {host} to be a loopback address, such as 127.0.0.1: the page has no login. Reach it "
            "through an SSH tunnel, or add --allow-remote if everybody who can reach that address may read it."
        )
    found = watched.figures()  # raises if this is no ledger
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
        log_config=None,  # errors go to stderr, and no requests are logged
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
            listening.listen()  # a browser waits until the server has started
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise InvalidParameter(
            f"Expected --host {host} --port {port} to be an address of this machine that is free ({error.strerror}). "
            "Name another port, or 0 for any that is free."
        ) from None
    return listening
