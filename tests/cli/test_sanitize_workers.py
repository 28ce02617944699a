"""The command that sanitizes folders in several workers: the same lines in the same order, one account, restarts."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from langchain_dp.integrations import ray as on_ray

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.cli import files, main, workers
from langchain_dp.cli.workers import in_order
from langchain_dp.errors import BudgetExceeded, InvalidParameter
from langchain_dp.rapt import SanitizeBatches
from langchain_dp.rapt.release import Unit

WORDS = ["the", "of", "and", "to", "a", "in", "is", "was", "it", "for", "doctor", "patient"]
ANY = ["--eta", "0.0001"]
FILES, LINES = 3, 600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of lines, some of them equal, and a table."""
    words = "".join(f"{word} {place % 4} {place // 4}\n" for place, word in enumerate(WORDS))
    (tmp_path / "words.vec").write_text(words)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.md"):
        lines = [f"the doctor {WORDS[number % 12]} patient" for number in range(LINES)]
        (tmp_path / "in" / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "in" / "c.jsonl").write_text('{"text": "the patient", "label": "x"}\n{"text": "it was"}\n')
    return tmp_path


def command(folder: Path, out: str, *more: str) -> list[str]:
    table = ["--embeddings", str(folder / "words.vec")]
    return ["sanitize", *table, *ANY, "--in", str(folder / "in"), "--out", str(folder / out), *more]


def account(folder: Path) -> list[str]:
    return ["--ledger", str(folder / "account")]


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def charges(folder: Path) -> int:
    return len(list(MetricLedger.open(folder / "account").entries()))


def test_workers_and_one_process_are_one_account_and_one_answer(folder: Path) -> None:
    """If it breaks, lines change places, or a run that goes on with workers pays for everything again."""
    assert main(command(folder, "two", *account(folder), "--workers", "2")) == 0
    assert charges(folder) == 2 * LINES + 2
    assert main(command(folder, "one", *account(folder))) == 0
    assert charges(folder) == 2 * LINES + 2
    two = written(folder / "two")
    assert two == written(folder / "one")
    assert sorted(two) == ["a.txt", "c.jsonl", "deep/b.md"]
    assert two["a.txt"].count(b"\n") == LINES
    assert two["a.txt"] != two["deep/b.md"], "equal lines of two files are documents of their own"


def test_a_refusal_in_a_worker_writes_no_file_with_a_hole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a file ends up whole by name, without the lines that no budget was left for."""
    (folder / "in" / "a.txt").write_text("")
    for path in ("a.txt", "deep/b.md"):
        (folder / "in" / path).unlink()
    rows = [
        '{"text": "the patient", "who": "%s"}\n' % ("ann" if number == 300 else f"u{number}") for number in range(900)
    ]
    (folder / "in" / "c.jsonl").write_text("".join(rows) + '{"text": "it was", "who": "ann"}\n')
    limited = ["--limit", "0.00015", "--user-field", "who", "--workers", "2"]
    assert main(command(folder, "out", *account(folder), *limited)) == 1
    error = capsys.readouterr().err
    assert "is left for" in error
    assert "Traceback" not in error
    assert written(folder / "out") == {}


def test_lines_before_one_that_cannot_be_read_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, one row that went bad while the command ran costs the files that were on their way."""
    (folder / "in" / "c.jsonl").write_text('{"text": 5}\n')
    assert main(command(folder, "out", *account(folder), "--workers", "2")) == 1
    assert not (folder / "out").exists(), "found before anything is charged"
    monkeypatch.setattr(files, "check", lambda *_, **__: None)
    capsys.readouterr()
    assert main(command(folder, "out", *account(folder), "--workers", "2")) == 1
    assert sorted(written(folder / "out")) == ["a.txt"]
    said = capsys.readouterr().err
    assert "Files that are done: 1." in said
    assert "the same command with --overwrite gives out what was released" in said


@pytest.mark.parametrize("option", [["--workers", "2"], ["--ray"]])
def test_workers_without_an_account_are_refused(
    folder: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, each worker has a budget of its own."""
    assert main(command(folder, "out", *option)) == 2
    said = capsys.readouterr().err
    assert f"Expected --ledger with {' '.join(option)}" in said
    assert not (folder / "out").exists()


def test_a_worker_that_is_killed_ends_the_run_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a run out of memory ends in a traceback, or in a file that is cut."""

    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def submit(self, *_: Any) -> Any:
            return self

        def result(self) -> Any:
            raise BrokenProcessPool

        def shutdown(self, **_: Any) -> None:
            pass

    monkeypatch.setattr(workers.concurrent.futures, "ProcessPoolExecutor", Broken)
    assert main(command(folder, "out", *account(folder), "--workers", "2")) == 1
    said = capsys.readouterr().err
    assert "one of them was killed" in said
    assert "--workers" in said
    assert written(folder / "out") == {}


def test_ray_is_an_extra(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a missing package ends in a traceback, after something was charged."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(command(folder, "out", *account(folder), "--ray")) == 1
    assert "pip install 'langchain-dp[ray]'" in capsys.readouterr().err
    assert charges(folder) == 0


class Actors:
    """Ray as far as it is asked for, in this process: an actor's call is worked on when it is waited for."""

    class exceptions:  # Ray's name
        class RayTaskError(Exception):
            def __init__(self, cause: Exception) -> None:
                super().__init__("a traceback with secretive text")
                self.cause = cause

        class RayActorError(Exception):
            """What a batch ends in whose workers died."""

    def __init__(self) -> None:
        self.killed = self.shut = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None:
        pass

    def shutdown(self) -> None:
        self.shut += 1

    def kill(self, _: Any) -> None:
        self.killed += 1

    def get(self, reference: Callable[[], Any]) -> Any:
        try:
            return reference()
        except Exception as error:
            raise self.exceptions.RayTaskError(error) from None

    def remote(self, **options: Any) -> Any:
        tries = options["max_restarts"], options["max_task_retries"]
        assert tries == (-1, on_ray._RETRIES), "who dies is started again, and its batch done again, but not for ever"

        class Handle:
            def __init__(self, made: Any) -> None:
                self.do = self
                self._made = made

            def remote(self, batch: Any) -> Callable[[], Any]:
                return lambda: self._made.do(batch)

        def of(kind: Any) -> Any:
            class Remote:
                @staticmethod
                def remote(*arguments: Any) -> Handle:
                    return Handle(kind(*arguments))

            return Remote

        return of


def test_ray_gets_the_same_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, --ray writes other lines than one process does. The real one: tests/rapt/test_bulk_workers.py."""
    actors = Actors()
    monkeypatch.setattr(on_ray, "_import_ray", lambda: actors)
    assert main(command(folder, "ray", *account(folder), "--ray", "--workers", "3")) == 0
    assert main(command(folder, "one", *account(folder))) == 0
    assert written(folder / "ray") == written(folder / "one")
    assert charges(folder) == 2 * LINES + 2
    assert (actors.killed, actors.shut) == (3, 1)


@pytest.mark.parametrize(
    ("raised", "said"), [(ValueError("secretive"), "ValueError"), (InvalidParameter("too few"), "too few")]
)
def test_what_fails_on_ray_tells_no_text(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """If it breaks, Ray's traceback, which may quote a line, is printed."""

    def fails(*_: Any) -> Any:
        raise raised

    monkeypatch.setattr(on_ray, "_import_ray", Actors)
    monkeypatch.setattr(SanitizeBatches, "release", fails)
    assert main(command(folder, "out", *account(folder), "--ray")) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "secretive" not in error


def test_workers_that_die_at_one_batch_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """If it breaks, a batch that no worker survives is a traceback of Ray's, or is tried for ever."""

    class Dying(Actors):
        def get(self, reference: Callable[[], Any]) -> Any:
            raise self.exceptions.RayActorError("secretive")

    monkeypatch.setattr(on_ray, "_import_ray", Dying)
    assert main(command(folder, "out", *account(folder), "--ray")) == 1
    error = capsys.readouterr().err
    assert "died 4 times" in error
    assert "secretive" not in error


def test_no_more_batches_are_under_way_than_asked_for() -> None:
    """If it breaks, a folder larger than memory is read at once, or workers wait for each other."""
    under_way, most = 0, 0

    def start(units: Sequence[Unit]) -> Callable[[], list[tuple[str, ...]]]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)

        def wait() -> list[tuple[str, ...]]:
            nonlocal under_way
            under_way -= 1
            return [unit.texts for unit in units]

        return wait

    def items(count: int) -> Iterator[tuple[int, list[Unit]]]:
        yield from ((number, [Unit((str(number),))]) for number in range(count))

    for ahead, expected in ((0, 1), (3, 4)):
        most = 0
        assert [(one, released) for one, released in in_order(items(10), start, ahead)] == [
            (number, [(str(number),)]) for number in range(10)
        ]
        assert most == expected


def test_an_error_of_a_batch_ends_it_there() -> None:
    """If it breaks, later batches are written after one that failed."""

    def start(units: Sequence[Unit]) -> Callable[[], list[tuple[str, ...]]]:
        def wait() -> list[tuple[str, ...]]:
            if units[0].texts == ("1",):
                raise BudgetExceeded("no more", asked="", spent=(0.0, 0.0), budget=(0.0, 0.0), fits=0)
            return [unit.texts for unit in units]

        return wait

    released = in_order(((number, [Unit((str(number),))]) for number in range(5)), start, 3)
    assert next(released) == (0, [("0",)])
    with pytest.raises(BudgetExceeded):
        next(released)
    assert list(released) == []


def test_workers_leave_ctrl_c_to_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every worker prints a traceback of its own."""
    before = signal.getsignal(signal.SIGINT)
    for threads in workers._THREADS:
        monkeypatch.setenv(threads, "1")
    monkeypatch.setattr(workers, "_sanitize", None)
    try:
        workers._open(pickle.dumps(None))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
