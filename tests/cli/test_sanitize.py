"""The command that sanitizes lines and files, over a table of a dozen words."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.cli import files, main, sanitize
from langchain_dp.rapt import RAPTSanitizer

WORDS = ["the", "of", "and", "to", "a", "in", "is", "was", "it", "for", "doctor", "patient"]
SURE = ["--eta", "100000"]  # neighbors are at least 1 apart: the chance of another word is below exp(-50,000)
ANY = ["--eta", "0.0001"]  # all words are about as likely
SECRET = "Zebedee"


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    path = tmp_path / "words.vec"
    path.write_text("".join(f"{word} {place % 4} {place // 4}\n" for place, word in enumerate(WORDS)))
    return ["sanitize", "--embeddings", str(path)]


Piped = Callable[[bytes, list[str]], tuple[int, bytes, str]]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Piped:
    """Runs the command on the bytes of a standard input."""

    def run(given: bytes, arguments: list[str]) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = main(arguments)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def one_line(error: str) -> str:
    """What is said besides that it has begun: one line."""
    lines = [line for line in error.splitlines() if not line.startswith("langchain-dp: loading ")]
    assert len(lines) == 1
    assert SECRET not in error
    return lines[0]


def test_rows_in_json_are_not_taken_for_lines_of_text(piped: Piped, tmp_path: Path) -> None:
    """If it breaks, keys and braces are sanitized with the text, and what comes out is no JSON."""
    row = json.dumps({"text": SECRET}).encode() + b"\n"
    code, out, error = piped(row, ["sanitize", "--replacement", "0.5"])
    assert (code, out) == (1, b"")
    assert "but the first is a JSON object" in one_line(error)
    assert "--format jsonl" in one_line(error)
    assert piped(row, ["sanitize", "--replacement", "0.5", "--format", "text"])[0] == 0
    assert piped(b"7\n[the doctor]\n", ["sanitize", "--replacement", "0.5"])[0] == 0


def timeless(error: str) -> str:
    """Without how long it took."""
    return re.sub(r"in \d+ s\.", "in n s.", error)


def rows(*given: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in given)


def test_lines_stay_lines(table: list[str], piped: Piped) -> None:
    """If it breaks, line n of the output is not line n of the input, a pipe hears more, or a bad byte stops all."""
    given = b"\xef\xbb\xbfthe doctor was in\r\n\na patient of it\n\nit is"
    code, out, err = piped(given, [*table, *SURE])
    assert (code, out.decode()) == (0, "the doctor was in\n\na patient of it\n\nit is\n")
    said = f"langchain-dp: loading {table[-1]} ...\nlangchain-dp: sanitized 5 lines in n s.\n"
    assert timeless(err) == said
    assert piped(b"the \xff\n", [*table, *SURE, "--errors", "replace"])[0] == 0


def test_the_default_is_calibrated(table: list[str], piped: Piped) -> None:
    """If it breaks, the command cannot be run without a choice of eta, or its promise cannot be read by a program."""
    code, out, err = piped(b"the doctor\n", [*table, "--json"])
    certificate = json.loads(err)  # the lines have stdout
    assert code == 0
    assert len(out.split()) == 2
    assert certificate["kind"] == "metric privacy"
    assert certificate["releases"] == 1
    said = " ".join(certificate["notes"])
    assert "Equal lines are documents of their own" in said
    assert "A document without a name" not in said
    assert certificate["replaced"] == pytest.approx(0.5, abs=0.01)


def test_policies_and_what_they_let_pass(table: list[str], piped: Piped) -> None:
    """If it breaks, an option for what stays in clear is ignored, or the certificate is silent about it."""
    clear = ["--numbers", "keep", "--dates", "placeholder", "--keep", "doctor", "--length", "9"]
    code, out, err = piped(b"Doctor 42 2024-01-31\n", [*table, *ANY, *clear, "--certificate"])
    written = out.decode().split()
    assert code == 0
    assert len(written) == 9
    assert written[:3] == ["Doctor", "42", "[DATE]"]
    for said in ("Numbers are passed", "Dates are replaced", "doctor", "9 tokens", "order"):
        assert said in err


def test_rows(table: list[str], tmp_path: Path) -> None:
    """If it breaks, a field that nobody named leaves in clear, or one that was named is lost."""
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    first = {"id": 7, "body": "a patient", "name": SECRET, "text": '{"doctor": "the"}', "user": "u"}
    given.write_text(rows(first) + "\n" + rows({"text": None, "user": 3, "id": 8}))
    asked = ["--fields", "text", "body", "--keep-fields", "id", "--user-field", "user"]
    arguments = [*table, *SURE, "--in", str(given), "--out", str(out), *asked, "--punctuation", "keep"]
    assert main(arguments) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert (written[0]["id"], written[0]["body"]) == (7, "a patient")
    assert list(written[0]) == ["id", "text", "body"], "an order that hangs on what a row says is in clear"
    assert list(written[1].items()) == [("id", 8), ("text", None)]


def test_a_field_that_no_row_has_is_named(table: list[str], piped: Piped) -> None:
    """If it breaks, a field whose name was mistyped is dropped, and nobody hears of it."""
    given = rows({"text": "the", "id": 1}, {"text": "a"}).encode()
    asked = [*table, *SURE, "--format", "jsonl", "--fields", "text", "bodi", "--keep-fields", "id", "lable"]
    code, out, err = piped(given, asked)
    assert (code, json.loads(out.splitlines()[0])) == (0, {"text": "the", "id": 1})
    said = [line.removeprefix("langchain-dp: ") for line in err.splitlines()[1:]]
    assert said[:2] == ["no row has a field 'bodi'.", "no row has a field 'lable'."]
    _, _, err = piped(b"", asked)
    assert "no row has" not in err


def test_a_folder(table: list[str], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a file of a folder is missed, is read as the wrong kind, or an unknown kind is copied in clear."""
    source, target = tmp_path / "in", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    (source / "one.txt").write_text("the doctor\n")
    (source / "deep" / "two.MD").write_text("a patient\n")
    (source / "rows.jsonl").write_text(rows({"text": "it is", "name": SECRET}))
    (source / "other.bin").write_text(SECRET)
    assert main([*table, *SURE, "--in", str(source), "--out", str(target), "--json"]) == 0
    assert "Names of files and folders are in clear." in json.loads(capsys.readouterr().out)["notes"]
    written = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert written == {
        "one.txt": "the doctor\n",
        os.path.join("deep", "two.MD"): "a patient\n",
        "rows.jsonl": '{"text": "it is"}\n',
    }


def test_files_before_one_that_cannot_be_read_are_written(
    table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, a row that went bad while the command ran costs the files before it, or its file is cut."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("the doctor\n")
    (source / "b.jsonl").write_text(rows(*[{"text": "the"}] * files.LINES, {"text": 5}))
    monkeypatch.setattr(files, "check", lambda *_, **__: None)
    arguments = [*table, *SURE, "--in", str(source), "--out", str(target), "--ledger", str(tmp_path / "account")]
    assert main(arguments) == 1
    assert [path.name for path in target.iterdir()] == ["a.txt"]
    said = capsys.readouterr().err
    assert "Files that are done: 1." in said
    assert "the same command with --overwrite gives out what was released" in said


def test_what_a_folder_holds_besides_is_named(table: list[str], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a file that nobody sanitized is believed to be sanitized, or files of another kind are named."""
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.MD", "c.jsonl"):
        (source / name).write_text(rows({"text": "it"}))
    (source / "deep" / "mail.csv").write_text(SECRET)
    (source / "notes").write_text(SECRET)
    skipped = {
        source / "deep" / "mail.csv": "its name does not end in .txt, .md or .jsonl",
        source / "notes": "its name does not end in .txt, .md or .jsonl",
    }
    if os.name != "nt":
        (source / "linked").symlink_to(source / "deep")
        (source / "gone.txt").symlink_to(source / "nowhere")
        os.mkfifo(source / "pipe.txt")
        skipped |= {
            source / "linked": "a link to a folder",
            source / "gone.txt": "a link to nothing",
            source / "pipe.txt": "no regular file",
        }
    assert main([*table, *SURE, "--in", str(source), "--out", str(tmp_path / "out")]) == 0
    said = timeless(capsys.readouterr().err).splitlines()
    expected = [f"langchain-dp: skipped {path}: {why}." for path, why in sorted(skipped.items())]
    assert said[:-2] == expected
    assert said[-1] == "langchain-dp: sanitized 3 lines of 3 files in n s."


@pytest.mark.parametrize(
    ("name", "content", "asked", "says"),
    [
        ("in.txt", f"the\n{SECRET} \xff\n".encode("latin-1"), [], "line 2 of"),
        ("in.jsonl", rows({"text": "a"}).encode() + b'{"text": Zebedee', [], "line 2 of"),
        ("in.jsonl", rows({"text": [SECRET]}).encode(), [], "line 1 of"),
        ("in.jsonl", rows({"body": SECRET}).encode(), [], "--fields ['text']"),
        ("in.jsonl", rows({"text": SECRET, "u": True}).encode(), ["--user-field", "u"], "--user-field 'u'"),
        ("in.jsonl", rows({"text": SECRET, "u": "\ud800"}).encode(), ["--user-field", "u"], "--user-field 'u'"),
        ("in.txt", SECRET.encode(), ["--limit", "1"], "--limit 1 to be at least eta=100000"),
        (
            "in.jsonl",
            rows(*[{"text": "the"}] * (files.LINES + 9), {"text": 7}).encode(),
            [],
            f"line {files.LINES + 10} of ",
        ),
        (
            "in.jsonl",
            rows({"text": "the", "label": 1}).encode(),
            ["--keep-fields", "lable"],
            "['lable'] of --keep-fields",
        ),
        ("in.txt", b"", ["--in", "no-such-file"], "nothing is there"),
        ("in.txt", b"", ["--out", os.path.join("no-such-folder", "out")], "folder of --out"),
        ("in.txt", b"", ["--out", os.curdir], "to be a regular file"),
    ],
)
def test_refusals_are_one_line(
    name: str, content: bytes, asked: list[str], says: str, table: list[str], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, a mistake ends in a traceback, shows private text, is charged, or leaves half a file."""
    (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    paths = ["--in", str(tmp_path / name), "--out", str(tmp_path / "out"), "--ledger", str(tmp_path / "account")]
    assert main([*table, *SURE, *paths, *asked]) == 1
    assert says in one_line(capsys.readouterr().err)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "asked", "says"),
    [
        ("in.jsonl", ["--keep-fields", "text"], "different fields"),
        ("in.jsonl", ["--fields", "a", "b", "--keep-fields", "b"], "found ['b']"),
        ("in.txt", ["--user-field", "u"], "JSON rows"),
        ("in.csv", [], "not a table"),
        ("", [], "Expected --out to name a folder"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_arguments(
    name: str, asked: list[str], says: str, table: list[str], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, a script takes its own mistake for a refusal by the account."""
    (tmp_path / (name or "in.txt")).touch()
    assert main([*table, *SURE, "--in", str(tmp_path / name), *asked]) == 2
    assert says in one_line(capsys.readouterr().err)


def test_what_is_there_stays_and_no_folder_is_inside_itself(table: list[str], tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a file is overwritten unasked, cannot be replaced, or the next run pays for its output."""
    path = tmp_path / "notes.txt"
    path.write_text(f"{SECRET}\n")
    arguments = [*table, *ANY, "--in", str(path), "--out", str(path)]
    assert main(arguments) == 1
    assert "--overwrite" in one_line(capsys.readouterr().err)
    assert path.read_text() == f"{SECRET}\n"
    assert main([*arguments, "--overwrite"]) == 0
    assert path.read_text().strip() in WORDS
    capsys.readouterr()
    (tmp_path / "a.txt").write_text("the")
    assert main([*table, "--in", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "outside" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("out", ["account", "account.key"])
def test_what_is_written_never_takes_the_place_of_the_ledger(
    out: str, table: list[str], tmp_path: Path, capsys: Any
) -> None:
    """If it breaks, the lines are written over the account, and all that was spent is forgotten."""
    (tmp_path / "in.txt").write_text("the\n")
    arguments = [*table, *SURE, "--in", str(tmp_path / "in.txt"), "--overwrite", "--ledger", str(tmp_path / "account")]
    for _ in ("made", "there"):
        assert main([*arguments, "--out", str(tmp_path / out)]) == 2
        assert "to be another file than the ledger" in one_line(capsys.readouterr().err)
        assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
        capsys.readouterr()
    assert sum(1 for _ in MetricLedger.open(tmp_path / "account").entries()) == 1


def test_equal_lines_are_documents_of_their_own(
    table: list[str], piped: Piped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it breaks, equal lines of a file come out equal, which tells that they are, or a batch's edge decides it."""
    monkeypatch.setattr(files, "LINES", 3)
    ledger = tmp_path / "account"
    code, out, _ = piped(b"doctor was in it\n" * 40, [*table, *ANY, "--ledger", str(ledger)])
    assert code == 0
    assert len(set(out.splitlines())) > 10
    with MetricLedger.open(ledger) as account:
        assert len(list(account.entries())) == 40


def test_under_a_limit_equal_lines_are_one_document(
    table: list[str], piped: Piped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it breaks, a line that is handed in a hundred times is released a hundred times, and no limit says a word."""
    monkeypatch.setattr(files, "LINES", 3)
    arguments = [*table, *ANY, "--ledger", str(tmp_path / "account"), "--limit", "0.0004"]
    code, out, err = piped(b"doctor was in it\n" * 4, [*arguments, "--certificate"])
    assert (code, len(set(out.splitlines()))) == (0, 4)  # and do not show that they are equal
    assert "most by one document  eta = 0.0004 so far (limit 0.0004)" in err
    assert "all equal lines of one user are one document" in err
    code, out, err = piped(b"doctor was in it\n" * 5, arguments)
    assert (code, len(out.splitlines())) == (1, 3)  # the first batch is given out again
    assert "line 5 of standard input to equal at most 3 lines before it" in err
    assert "Raise --limit" in err
    code, _, err = piped(b"doctor was in it\n", [*table, "--eta", "0.0002", *arguments[5:]])
    assert code == 1
    assert "0 of 0.0004 is left" in err
    assert piped(b"the patient was in it\n", arguments)[0] == 0


@pytest.mark.parametrize(("further", "told"), [([], True), (["--format", "jsonl", "--user-field", "who"], False)])
def test_a_limit_that_counts_nobody_is_told_so(further: list[str], told: bool, table: list[str], piped: Piped) -> None:
    """If it breaks, a user believes that what he releases adds up to the limit at most, and it is more."""
    row = b'{"text": "the doctor", "who": "ann"}\n'
    code, _, err = piped(row if further else b"the doctor\n", [*table, *ANY, "--limit", "0.0002", *further])
    assert code == 0
    assert ("nobody is named, so --limit 0.0002 counts equal lines alone" in err) is told
    assert all(line.startswith("langchain-dp: ") for line in err.splitlines())


def test_the_same_command_again_is_free(table: list[str], piped: Piped, tmp_path: Path) -> None:
    """If it breaks, a run that is repeated spends again, or goes on from another release."""
    given, ledger = b"the doctor\na patient\nthe doctor\n", tmp_path / "account"
    arguments = [*table, *ANY, "--ledger", str(ledger)]
    first, second = piped(given, [*arguments, "--limit", "0.0002"]), piped(given, arguments)
    assert [(code, out, timeless(err)) for code, out, err in (first, second)] == [(0, first[1], timeless(first[2]))] * 2
    with MetricLedger.open(ledger) as account:
        assert len(list(account.entries())) == 3
    code, _, err = piped(b"the doctor\n", [*table, "--eta", "0.0002", "--ledger", str(ledger)])
    assert code == 1
    assert "0 of 0.0002 is left" in one_line(err)
    assert "is spent" in err


def test_a_chain_and_the_command_charge_one_account(table: list[str], piped: Piped, tmp_path: Path) -> None:
    """If it breaks, a document that is sanitized here and in a chain has two accounts, and twice the limit."""
    ledger = tmp_path / "account"
    assert piped(b"the doctor\n", [*table, *ANY, "--ledger", str(ledger)])[0] == 0
    with MetricLedger.open(ledger) as account:
        RAPTSanitizer(table[-1], eta=0.0002, ledger=account).invoke("the doctor")
        assert [entry.eta for entry in account.entries()] == [0.0001, 0.0002]
        assert len({entry.document for entry in account.entries()}) == 1


def test_users_are_charged(table: list[str], piped: Piped, tmp_path: Path) -> None:
    """If it breaks, the limit of a user does not hold over several rows."""
    given = rows({"text": "the", "u": "ann"}, {"text": "a", "u": "ann"}, {"text": "a", "u": 5}).encode()
    ledger = tmp_path / "account"
    arguments = [*table, *ANY, "--format", "jsonl", "--user-field", "u", "--ledger", str(ledger)]
    assert piped(given, [*arguments, "--limit", "0.00025"])[0] == 0
    with MetricLedger.open(ledger) as account:
        assert account.spent(user="ann") == pytest.approx(0.0002)
        assert account.spent(user="5") == pytest.approx(0.0001)
    code, out, err = piped(rows({"text": "of", "u": "ann"}).encode(), arguments)
    assert (code, out) == (1, b"")
    assert "the user at position" in one_line(err)


class Lines(io.BytesIO):
    """A standard input of many lines, made one by one, that may end in an interrupt."""

    def __init__(self, count: int, *, interrupt: bool = False) -> None:
        super().__init__()
        self.count, self.interrupt = count, interrupt

    def __iter__(self) -> Iterator[bytes]:  # type: ignore[override]  # lines are all that is read of it
        for number in range(self.count):
            yield b"%d%s\n" % (number, b"x" * 200)
        if self.interrupt:
            raise KeyboardInterrupt


class Stdin:
    def __init__(self, buffer: io.BytesIO) -> None:
        self.buffer = buffer


def test_an_interrupt_says_how_far_it_got(
    table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, Ctrl-C leaves half a file under the name of a whole one, or does not say what is spent."""
    monkeypatch.setattr(sys, "stdin", Stdin(Lines(300, interrupt=True)))
    out = tmp_path / "out.txt"
    code = main([*table, *ANY, "--out", str(out), "--ledger", str(tmp_path / "account")])
    error = one_line(capsys.readouterr().err)
    assert code == 130
    assert f"up to line {files.LINES} of standard input" in error
    assert "is spent" in error
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("account")) == ["words.vec"]


def test_an_interrupt_loses_nothing_that_was_charged(
    table: list[str], piped: Piped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, lines are charged and never kept: under a limit the same command can never end."""
    spend, ledger = MetricLedger.spend, tmp_path / "account"

    def interrupted(self: MetricLedger, *args: Any, **more: Any) -> None:
        spend(self, *args, **more)
        signal.raise_signal(signal.SIGINT)

    arguments = [*table, *ANY, "--ledger", str(ledger), "--limit", "0.0001"]
    with monkeypatch.context() as patch:
        patch.setattr(MetricLedger, "spend", interrupted)
        assert piped(b"the doctor\n", arguments)[0] != 0
    code, out, _ = piped(b"the doctor\n", arguments)
    assert (code, len(out.split())) == (0, 2)
    with MetricLedger.open(ledger) as account:
        assert len(list(account.entries())) == 1


@pytest.mark.parametrize("failure", [RuntimeError, sqlite3.OperationalError])
def test_a_failure_of_a_library_is_withheld(
    table: list[str], piped: Piped, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    """If it breaks, what a library says of a text reaches the terminal, or a full disk ends in a traceback."""

    def fails(*_: object, **__: object) -> None:
        raise failure(SECRET)

    monkeypatch.setattr(sanitize, "_sanitize", fails)
    code, out, err = piped(b"the\n", [*table, *ANY])
    assert (code, out) == (1, b"")
    assert f"{failure.__name__} while" in one_line(err)


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
def test_a_real_interrupt(table: list[str]) -> None:
    """If it breaks, Ctrl-C in a pipe ends in a traceback, or takes back lines that were written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "langchain_dp", *table, *SURE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"the doctor\n" * files.LINES)
        process.stdin.flush()
        assert process.stdout.readline() == b"the doctor\n"  # a whole batch is out: it waits for the next
        process.send_signal(signal.SIGINT)
        error = process.stderr.read().decode()
        assert process.wait() == 130
    assert "interrupted. Released up to line" in one_line(error)
