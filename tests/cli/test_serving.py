"""``ledger --serve``: what it shows while a ledger is charged, how it ends, and what it refuses."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import exit_code

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.cli import main
from langchain_dp.cli.ledger import serve

ANSWER = NoisyMaxEvent(4.0, 0.1)
BUDGET = PrivacyBudget(3.0, 1e-5)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "privacy.ledger"
    with PrivacyLedger(BUDGET, path) as made:
        made.reserve([(ANSWER, 10)], name="tickets", epsilon=1.0, delta=4e-6).spend(ANSWER, 2, caller="web")
    return path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--interval", "3"], "Expected --interval together with --serve."),
        (["--host", "::1", "--allow-remote"], "Expected --host, --allow-remote together with --serve."),
        (["--serve", "--json"], "Expected --serve without --json"),
        (["--serve", "--interval", "0"], "--interval: expected a number above 0"),
        (["--serve", "--port", "70000"], "--port"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], says: str, ledger: Path, capsys: Any) -> None:
    """If it breaks, an option is ignored in silence."""
    code = exit_code(["ledger", str(ledger), *options])
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


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
    assert "names of plans, chains and users" in err  # all that people name
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
