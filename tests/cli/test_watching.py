"""``ledger --watch`` and ``--serve``: what they show while a ledger is charged, how they end, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_dp._util.rounding import bound
from langchain_dp.accounting import MetricLedger, NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import Owner
from langchain_dp.cli import main
from langchain_dp.cli.serving import serve

ANSWER = NoisyMaxEvent(4.0, 0.1)
BUDGET = PrivacyBudget(3.0, 1e-5)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "privacy.ledger"
    with PrivacyLedger(BUDGET, path) as made:
        made.reserve([(ANSWER, 10)], name="tickets", epsilon=1.0, delta=4e-6).spend(ANSWER, 2, chain="web")
    return path


class Steps:
    """Stands for the pause between two looks: does one thing in each, and presses Ctrl-C at the end."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps = list(steps)
        self.asked: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[list[str], list[str]]]:
    """Watches a ledger while things happen; returns what is printed on stdout and on stderr."""

    def watch(path: object, *steps: Callable[[], Any], options: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
        pauses = Steps(*steps)
        with monkeypatch.context() as patched:
            patched.setattr("langchain_dp.cli.watching.time.sleep", pauses)
            assert main(["ledger", str(path), "--watch", *options]) == 0
        assert {*pauses.asked} == {float(options[-1]) if "--interval" in options else 2.0}
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err.splitlines()

    return watch


def nothing() -> None:
    """Happens."""


def test_a_pipe_hears_one_line_a_change(ledger: Path, watching: Any) -> None:
    """If it breaks, a log fills with lines that say the same, or a charge is not in it."""
    with PrivacyLedger(BUDGET, ledger) as made:
        spend = lambda: made.plans()[0].spend(ANSWER)  # noqa: E731  # one step
        lines, errors = watching(ledger, nothing, spend, nothing, spend, options=("--interval", "0.5"))
        spent = made.spent()[0]
    assert errors == []
    assert [line.rpartition("releases ")[2] for line in lines] == ["2", "3", "4"]
    assert re.fullmatch(
        r"\d{4}-\S+  spent epsilon = \S+, delta = 4e-06; reserved epsilon = 1, delta = 4e-06; "
        r"budget epsilon = 3, delta = 1e-05; left epsilon = 2, delta = 6e-06; releases 4",
        lines[-1],
    )
    assert f"spent epsilon = {bound(spent)}," in lines[-1]


def test_a_pipe_hears_of_accounts_in_eta(tmp_path: Path, watching: Any) -> None:
    """If it breaks, eta is taken for epsilon."""
    with MetricLedger(20.0, tmp_path / "texts", document_limit=9.0) as made:
        spend = lambda: made.spend(2.0, [Owner("a", "ann")], table="glove")  # noqa: E731  # one step
        lines, _ = watching(tmp_path / "texts", spend)
    assert lines[1].endswith(
        "  eta: spent user = 2, document = 2; budget user = 20, document = 9; left user = 18, document = 7; releases 1"
    )


def test_json_is_one_object_a_change(ledger: Path, watching: Any, capsys: Any) -> None:
    """If it breaks, a program that reads line by line stumbles, or must learn another shape than without --watch."""
    assert main(["ledger", str(ledger), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    with PrivacyLedger(BUDGET, ledger) as made:
        lines, _ = watching(ledger, lambda: made.plans()[0].spend(ANSWER), options=("--json",))
    first, second = map(json.loads, lines)
    assert first | {"read": ""} == before | {"read": ""}
    assert (first["total"], second["total"]) == (2, 3)


def test_a_ledger_that_goes_away_is_said_once_and_looked_for_again(ledger: Path, watching: Any) -> None:
    """If it breaks, watching ends in a traceback when it matters, or says the same every two seconds."""
    away = ledger.with_name("away")
    lines, errors = watching(ledger, lambda: ledger.rename(away), nothing, lambda: away.rename(ledger), nothing)
    assert [line.rpartition("releases ")[2] for line in lines] == ["2", "2"]
    assert len(errors) == 1
    assert errors[0].startswith("langchain-dp: The file ")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_ends_when_nobody_reads_on(
    options: list[str], ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, ``| head -1`` waits for ever, since a reader that left is taken for a ledger that did."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed, PrivacyLedger(BUDGET, ledger) as made, monkeypatch.context() as patched:
        steps = Steps(lambda: patched.setattr(sys, "stdout", closed), lambda: made.plans()[0].spend(ANSWER), nothing)
        patched.setattr("langchain_dp.cli.watching.time.sleep", steps)
        assert main(["ledger", str(ledger), "--watch", *options]) == 141
    assert capsys.readouterr().err == ""


def test_a_ledger_in_a_database_is_watched(postgres: Any, tmp_path: Path, watching: Any) -> None:
    """If it breaks, only the machine with the file can watch."""
    url = postgres.fresh(tmp_path)
    with PrivacyLedger(BUDGET, url) as made:
        plan = made.reserve([(ANSWER, 10)], name="tickets", delta=4e-6)
        lines, errors = watching(url, lambda: plan.spend(ANSWER))
    assert [line.rpartition("releases ")[2] for line in lines] == ["0", "1"]
    assert errors == []


def test_a_terminal_shows_the_table_anew(ledger: Path) -> None:
    """If it breaks, the table scrolls away or stands still; or Ctrl-C leaves a traceback or no cursor."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    command = [sys.executable, "-m", "langchain_dp", "ledger", str(ledger), "--watch", "--interval", "0.1"]
    shown, more = "", threading.Event()

    def read() -> None:
        nonlocal shown
        while True:
            try:
                found = os.read(ours, 4096)
            except OSError:  # the other end is closed
                return
            shown += found.decode()
            more.set()

    def until(text: str) -> None:
        end = time.monotonic() + 30
        while text not in shown:
            assert time.monotonic() < end, shown
            more.wait(0.2)
            more.clear()

    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        until("2 of 10 used, 8 left")
        with PrivacyLedger(BUDGET, ledger) as made:
            made.plans()[0].spend(ANSWER)
        until("3 of 10 used, 7 left")
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0
    reader.join(20)
    assert "Ctrl-C ends" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
    assert "Traceback" not in shown
    assert "interrupted" not in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--watch", "--serve"], "not allowed with argument --serve"),
        (["--interval", "3"], "Expected --interval together with --watch or --serve."),
        (["--watch", "--port", "3"], "Expected --port together with --serve."),
        (["--host", "::1", "--allow-remote"], "Expected --host, --allow-remote together with --serve."),
        (["--serve", "--json"], "Expected --serve without --json"),
        (["--watch", "--interval", "0"], "--interval: expected a number above 0"),
        (["--serve", "--port", "70000"], "--port"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], says: str, ledger: Path, capsys: Any) -> None:
    """If it breaks, an option is ignored in silence."""
    try:
        code = main(["ledger", str(ledger), *options])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("options", [["--watch"], ["--serve", "--port", "0"]])
def test_what_is_no_ledger_is_refused_at_once(options: list[str], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a slip waits for ever for a ledger that will never be there."""
    assert main(["ledger", str(tmp_path / "slip"), *options]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "nothing is there" in err
    assert not [*tmp_path.iterdir()]


# -------------------------------------------------------------------------------------------------------------- page


@pytest.fixture
def served(ledger: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "langchain_dp", "ledger", str(ledger), "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        told = program.stdout.readline()
        yield program, re.match(r"(\S+) shows the ledger \(epsilon\); Ctrl-C ends it.\n", told)[1]  # type: ignore[index]
        if program.poll() is None:
            program.kill()


def test_the_page_is_served_until_ctrl_c(served: tuple[subprocess.Popen[str], str], ledger: Path) -> None:
    """If it breaks, there is no page, a foreign name reads it, or Ctrl-C ends in a traceback."""
    program, url = served
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert "Privacy report: privacy.ledger" in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "evil.example"}), timeout=20)
    with PrivacyLedger(BUDGET, ledger) as made:
        made.plans()[0].spend(ANSWER)
    with urllib.request.urlopen(f"{url}metrics", timeout=20) as answer:
        assert 'releases_total{ledger="ledger",mechanism="Report noisy max"} 3.0' in answer.read().decode()
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=20) == ("", "")
    assert program.returncode == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "box.example"])
def test_other_machines_are_not_served_unless_that_is_said(host: str, ledger: Path, capsys: Any) -> None:
    """If it breaks, the whole network reads the page of somebody who wanted to look at it."""
    assert main(["ledger", str(ledger), "--serve", "--host", host, "--port", "0"]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "loopback" in err
    assert "--allow-remote" in err


class Seen:
    """Stands for the ledger and the server: keeps what it is asked for."""

    unit = "epsilon"

    def figures(self) -> Any:
        return self


def test_it_warns_where_other_machines_are_served(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, somebody opens the page to a network and is not told what that means."""
    guards: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: guards.append(self.config.app))
    settings: dict[str, Any] = {"every": 2.0, "allow_remote": True}
    assert serve(Seen(), "0.0.0.0", 0, **settings) == 0  # type: ignore[arg-type]  # stands for the ledger
    out, err = capsys.readouterr()
    assert re.match(r"http://0\.0\.0\.0:\d+/ shows", out)
    assert "Warning: everybody who can reach 0.0.0.0 reads the page, without a login and unencrypted." in err
    assert "names of plans, chains and askers" in err  # all that people name
    assert guards[0]._hosts is None
    assert serve(Seen(), "127.0.0.1", 0, **settings) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    assert guards[1]._hosts == {"localhost", "127.0.0.1", "::1"}


def test_a_port_that_is_taken_is_one_line(ledger: Path, capsys: Any) -> None:
    """If it breaks, a second page ends in the log of a server, or in a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["ledger", str(ledger), "--serve", "--port", str(port)]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"--port {port}" in err
    assert "0 for any that is free" in err.replace("another port, or ", "")
