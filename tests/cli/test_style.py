"""What all commands have in common: help, examples, refusals, JSON, progress. And completion by the shell."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import exit_code, no_model, small_models, write_rows

from langchain_dp import DPPrototypeClassifier, Pseudonymizer, __version__, cli
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.cli import main
from langchain_dp.rapt import Vocabulary, _tables
from langchain_dp.rapt.calibrate import english_texts

ATTACK = {"name": "inversion", "rate": 0.5, "low": 0.4, "high": 0.6, "baseline": 0.1, "n": 10, "settings": {}}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A command and all below it, by their names without the program's."""
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {each}".strip())


ALL = dict(commands(cli.program()))
COMMANDS = [name for name in ALL if name not in ("", "plan")]
"""Those that do something."""


def printed(*words: str) -> str:
    """What the program prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main(words)
    return shown.getvalue()


def helped(name: str) -> str:
    """What --help prints."""
    return printed(*name.split(), "--help")


def examples(name: str) -> list[str]:
    """The commands that a help text shows, each on one line."""
    shown = helped(name).split("examples:\n")[1].split("\n\n")[0]
    return [line.strip() for line in shown.replace("\\\n", " ").splitlines()]


def arguments(example: str) -> tuple[list[str], dict[str, str]]:
    """Arguments of an example, and the files that stand after its < and >."""
    program, *words = shlex.split(example)
    assert program == "langchain-dp"
    streams = {}
    for sign in "<>":
        if sign in words:
            place = words.index(sign)
            streams[sign] = words[place + 1]
            del words[place : place + 2]
    return words, streams


@pytest.mark.parametrize("name", ALL)
def test_help_names_exit_codes_and_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a command is missing, one must read the code to script it, or a page of help fills two screens."""
    monkeypatch.setenv("COLUMNS", "80")
    shown, whole = helped(name), printed(*name.split(), "--help-all") if name in COMMANDS else helped(name)
    for part in ("0 done", "1 refused", "2 wrong arguments", "130 interrupted", "examples:", "langchain-dp"):
        assert part in " ".join(shown.split())
        assert part in " ".join(whole.split())
    if "--json" in whole and name in COMMANDS:
        assert "--json: " in whole, "the shape of the object is not told"
    assert shown.count("\n") <= 60
    assert "..." not in shown.split("examples:")[0].split("Commands:")[-1], "it is cut off"
    assert max(map(len, whole.split("examples:")[1].splitlines())) <= 120
    assert ALL[name].help
    required = [each for param in ALL[name].params if param.required for each in param.opts]
    assert [each for each in required if each not in shown] == [], "nobody can run it"
    assert [each for param in ALL[name].params for each in param.opts if each not in whole] == [], "it is hidden"
    assert "\x1b" not in shown + whole, "colours in a pipe"


def test_help_comes_at_once_and_faults_show_no_argument() -> None:
    """If it breaks, help waits for LangChain or has colours in a pipe; or a traceback prints what was typed."""
    code = (
        "import sys\nfrom langchain_dp.cli import main\n"
        "try:\n    main(['plan', 'icl', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert sys.excepthook is sys.__excepthook__\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "GITHUB_ACTIONS": "true"},  # where typer takes a pipe for a terminal
    )
    assert not {"numpy", "scipy", "dp_accounting", "langchain_core", "torch", "llama_cpp"} & {*done.stderr.split()}
    assert "\x1b" not in done.stdout


def test_words_after_one_option_are_one_list() -> None:
    """If it breaks, of ``--labels a b c`` one label counts, or the words of the next option are labels too."""
    options: Any = cli.parse(["plan", "icl", "--epsilon", "1", "--labels", "a", "plan", "-1", "--data", "x", "--json"])
    assert (options.labels, options.data, options.json) == (["a", "plan", "-1"], Path("x"), True)
    options = cli.parse(["demo", "--epsilon", "1", "3", "--json"])
    assert (options.epsilon, options.json) == ([1, 3], True)
    options = cli.parse(["sanitize", "--keep", "a", "--fields", "b", "c", "--keep-fields", "d"])
    assert (options.keep, options.fields, options.keep_fields) == (["a"], ["b", "c"], ["d"])


def test_the_version_is_told(capsys: Any) -> None:
    """If it breaks, a bug report cannot say what it is about."""
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"langchain-dp {__version__}\n"


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model(monkeypatch)


APP = """
from langchain_core.language_models import FakeListChatModel

first_chain = FakeListChatModel(responses=["praise"])
second_chain = FakeListChatModel(responses=["complaint"])
"""


def sign(ledger: PrivacyLedger) -> None:
    """Write a pair of keys, and a certificate that is signed, where the extra is there."""
    if importlib.util.find_spec("cryptography") is None:
        return
    forms: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    keys: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    key, pem = keys.Ed25519PrivateKey.generate(), forms.Encoding.PEM
    Path("key.pem").write_bytes(key.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption()))
    Path("public.pem").write_bytes(key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))
    Path("certificate.json").write_text(ledger.certificate().sign("key.pem"))


@functools.cache
def saved_classifier() -> str:
    """File of a classifier of praise and complaints."""
    rows = [{"text": f"note {i}", "label": label} for i, label in enumerate(["praise", "complaint"] * 60)]
    classifier = DPPrototypeClassifier.fit(rows, labels=["praise", "complaint"], budget=PrivacyBudget(3.0))
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder) / "saved")
        return (Path(folder) / "saved").read_text()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name, a small table of words and a model of words."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": f"note {i}", "label": label, "subject": "the", "body": "of it", "customer": str(i)}
        for i, label in enumerate(["praise", "complaint"] * 60)
    ]
    films = [{"text": f"film {i}", "label": ["negative", "positive"][i % 2]} for i in range(1200)]
    for name, content in {
        "tickets.jsonl": rows,
        "train.jsonl": films,
        "test.jsonl": films[:4],
        "test2.jsonl": rows[:4],
        "prompts.jsonl": [{"instruction": "Say what the question asks for."}],
        "chats.jsonl": [{"messages": [["user", f"the parcel {i}"]], "user_id": f"u{i}"} for i in range(40)],
    }.items():
        write_rows(name, content)
    Path("in.txt").write_text("the doctor\n")
    Path("topics.txt").write_text("thanks: kind words\nanger: a mistake\nmoney\n")
    Path("questions.json").write_text(json.dumps([{"name": "topic", "choices": {"delivery": "a parcel", "other": ""}}]))
    Path("classifier.json").write_text(saved_classifier())
    Path("app.py").write_text(APP)
    monkeypatch.delitem(sys.modules, "app", raising=False)
    Path("notes").mkdir()
    Path("notes/one.md").write_text("it is\n")
    Path("attacks.json").write_text(json.dumps([ATTACK]))
    Path("pseudonyms.json").write_text(json.dumps([Pseudonymizer().report().to_dict()]))
    with PrivacyLedger(PrivacyBudget(3.0), "privacy.ledger") as ledger:
        ledger.reserve([(NoisyMaxEvent(4.0, 0.1), 10)], name="tickets").spend(NoisyMaxEvent(4.0, 0.1), 2)
        sign(ledger)
    words = sorted({word for text in english_texts() for word in re.findall("[a-z]+", text.lower())})
    lines = (f"{word} {place % 9} {place // 9 % 9} {place // 81}\n" for place, word in enumerate(words))
    Path("words.vec").write_text("".join(lines))
    small = _tables.load("words.vec")
    load: Callable[[Any], Vocabulary] = lambda name: small if name == "glove" else _tables.load(name)  # noqa: E731
    monkeypatch.setattr("langchain_dp.rapt.runnable.load", load)
    monkeypatch.setattr("langchain_dp.rapt.load", load)
    small_models(monkeypatch)
    return tmp_path


def run(words: list[str], streams: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    with contextlib.ExitStack() as held:
        if "<" in streams:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(held.enter_context(open(streams["<"], "rb"))))
        if ">" in streams:
            monkeypatch.setattr(sys, "stdout", held.enter_context(open(streams[">"], "w")))
        return main(words)


def parsed_only(words: list[str]) -> bool:
    """Whether a model would be asked thousands of times, or only Ctrl-C ends it."""
    return words[0] == "demo" or "--serve" in words or (words[0] == "optimize" and "--plan" not in words)


@pytest.mark.parametrize("example", dict.fromkeys(example for name in ALL for example in examples(name)))
def test_the_examples_are_true(example: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, what the help shows ends in an error."""
    words, streams = arguments(example)
    if "--check" in words:
        pytest.importorskip("cryptography", reason="needs the extra encrypted")
    options: Any = cli.parse(words)
    if not parsed_only(words):
        assert run(words, streams, monkeypatch) == 0
    for name in (*streams.values(), *([str(options.out)] if options.path == "audit" and options.out else [])):
        assert Path(name).stat().st_size > 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "expected a command: one of demo, start, fit, name, survey, score, plan, "),
        ("fly", "expected one of demo, start, fit, name, survey, score, plan, "),
        ("plan", "expected a system: one of icl, opt, synthesize, answers, rapt."),
        ("ledgr x", "Did you mean ledger?"),
        ("--jsn demo", "unknown option --jsn. See langchain-dp --help."),
        ("demo --pikture x", "unknown option --pikture. Did you mean --picture? See langchain-dp demo --help."),
        ("plan icl --eps 3", "unknown option --eps. Did you mean --epsilon?"),
        ("demo --part x", "--part: expected one of all, prototypes, votes, found 'x'"),
        ("plan icl --shots 0", "--shots: expected a whole number of at least 1, found '0'"),
        ("demo --delta 2", "--delta: expected a number between 0 and 1, such as 1e-05, found '2'"),
        ("demo --epsilon 1 nan", "--epsilon: expected a number above 0, found 'nan'"),
        ("fit --data", "--data: expected one argument"),
        ("fit --data --json", "--data: expected one argument"),
        ("plan icl --labels --json", "--labels: expected at least one argument"),
        ("optimize --budget 3 1e-5 1", "--budget: expected EPSILON, or EPSILON and a DELTA below 1, found 3 numbers"),
        ("plan icl --labels=a --shots 2", "--labels: expected at least two labels, found 'a' alone"),
        ("plan rapt --eta 1 --replacement 0.4", "--eta: not allowed with argument --target-replacement"),
        ("sanitize --eta 1 --replacement 0.5", "not allowed with"),
        ("demo train.jsonl", "expected no further argument, found 'train.jsonl': write the name of its option"),
        ("ledger a.ledger --serve --port 99999", "--port: expected a whole number from 0 to 65535, found '99999'"),
        ("optimize --data a", "expected --epsilon to be given. See langchain-dp optimize --help."),
        ("optimize --temperature -1", "--temperature: expected a number that is not negative"),
        ("optimize --sampling-probability 1.5", "expected a number above 0 and at most 1"),
        ("plan icl --epsilon 3", "expected one of --data --records to be given. See langchain-dp plan icl --help."),
        ("plan icl --records 9 --data x --epsilon 1", "not allowed with argument --records"),
        ("plan icl --records 9 --epsilon 1", "Expected --labels"),
        ("plan opt --records 9 --epsilon 1 --instruction x", "Expected --labels"),
        ("plan opt --records 9 --epsilon 1 --labels a b", "Expected --instruction"),
        ("plan opt --records 9 --epsilon 1 --task trec --method choose", "expected --alternatives with --method"),
        (
            "plan opt --records 9 --epsilon 1 --task trec --method choose --alternatives x --shots 3",
            "expected --shots to be left out with --method choose",
        ),
        ("plan opt --records 9 --epsilon 1 --task trec --method opt", "expected one of dp-opt, choose"),
        ("plan synthesize --records 9 --epsilon 1", "Expected --labels or --describe"),
        ("sanitize --eta 1\n2", "--eta: expected a number above 0"),
        ("ledger", "Expected PLACE to be given, or --check"),
        *(
            (f"ledger {words}", "--check")
            for words in (
                "--check c.json",
                "privacy.ledger --public-key key.pem",
                "--ledger privacy.ledger",
                "privacy.ledger --check c.json --public-key key.pem",
            )
        ),
        (f"plan icl --epsilon 1 --labels a b --records {10**20}", "--records: expected a whole number from 1 to"),
        (f"plan icl --epsilon 1 --labels a b --records 90 --queries {10**20}", "--queries: expected a whole number"),
        ("audit --ledger x", "Expected --out"),
        ("audit --json", "expected --ledger to be given"),
        ("demo --picture x.foo", "--picture x.foo to end in one of .png, .svg, .pdf"),
        ("plan icl --epsilon 1 --records 90 --labels a", "--labels: expected at least two labels, found 'a' alone"),
        (
            "plan icl --epsilon 1 --records 90 --labels a b --neighbors add-or-remove-one",
            "Expected --sampling-probability and --partitions with --neighbors add-or-remove-one",
        ),
        (
            "plan icl --epsilon 1 --records 90 --labels a b --neighbors add-or-remove-one --sampling resample",
            "Expected --sampling-probability with",
        ),
        (
            "plan opt --epsilon 1 --records 90 --task sst2 --neighbors add-or-remove-one --sampling-probability 0.1",
            "Expected --partitions with",
        ),
        (
            "optimize --epsilon 1 --data x --out y --task sst2 --neighbors add-or-remove-one --partitions 9",
            "Expected --sampling-probability with",
        ),
        ("optimize --epsilon 1 --data x --out y --task sst2", "Give --model with a GGUF"),
        ("synthesize --epsilon 1 --data x --out y", "Give --model with a GGUF"),
    ],
)
def test_wrong_arguments_are_one_line_with_the_remedy(line: str, says: str, capsys: Any) -> None:
    """If it breaks, a typo fills the screen, is taken for a refusal, or is not told what to type instead."""
    code = exit_code(line.split(" ") if line else [])
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("langchain-dp: ")
    assert says in err
    assert re.search(r"See langchain-dp[a-z ]* --help\.\n$", err)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plan icl --epsilon 1 --data gone.jsonl", "There is no file gone.jsonl. Check the path."),
        ("plan opt --epsilon 1 --task sst2 --data .", "Expected . to be a file, but it is a folder."),
        ("plan icl --epsilon 501 --records 9 --labels a b", "Usual budgets are 1 to 10"),
        ("plan icl --epsilon 1 --records 9 --labels a a", "each once"),
        ("plan icl --epsilon 1 --records 9 --labels a b", "at least subsets * shots"),
        ("plan opt --epsilon 1 --records 3 --task trec", "Expected --records 3 to be a whole number of at least 5"),
        ("plan opt --epsilon 9 --records 900 --task trec --max-tokens 90", "into the model's 90 tokens"),
        ("plan rapt --table gone.vec", "gone.vec"),
        ("ledger gone.ledger", "Expected PLACE '"),
        ("ledger gone.ledger --serve --port 0", "nothing is there"),
        ("demo --picture gone/picture.png", "--picture gone/picture.png"),
    ],
)
def test_refusals_are_one_line_with_the_remedy(line: str, says: str, capsys: Any) -> None:
    """If it breaks, a refusal ends in a traceback, or in what the operating system says of it."""
    assert main(line.split()) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err


def test_a_model_is_called_as_it_is_typed() -> None:
    """If it breaks, a path that was typed after --model is refused as model_path=."""
    takes = [each for each in cli.COMMANDS if "model" in {field.name for field in dataclasses.fields(each)}]
    assert len(takes) == 5
    for command in takes:
        said = object.__new__(command).in_options("Expected model_path='x.gguf' to be a GGUF file that exists.")
        assert said == "Expected --model 'x.gguf' to be a GGUF file that exists."


def test_a_reader_that_left_ends_a_command_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, ``| head`` ends in a traceback or a complaint, or in one more at the end of the interpreter."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["plan", "icl", "--records", "90", "--labels", "a", "b", "--epsilon", "3", "--queries", "5"]) == 141
    assert capsys.readouterr().err == ""


def test_rows_without_the_columns_are_named_with_their_file(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, who gives --data and --test reads that a column is missing, and not in which of them."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"note": "Good.", "kind": "praise"}\n' * 2)
    assert main(["plan", "icl", "--data", str(path), "--labels", "a", "b", "--epsilon", "3", "--queries", "5"]) == 1
    said = capsys.readouterr().err
    assert "Expected examples to have 'text' or 'label'" in said
    assert f"The file is {path}." in said


def test_an_interrupt_while_the_command_is_read_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, Ctrl-C in the first moment is a traceback."""

    def stopped() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("langchain_dp.cli.program", stopped)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "langchain-dp: interrupted\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
@pytest.mark.parametrize("line", ["--help", "--version", "plan --help"])
def test_a_help_text_that_cannot_be_written_is_one_line(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """If it breaks, help into a full disk ends in a traceback."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit, match="1"):
            main(line.split())
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_streams_that_are_closed_lead_nowhere(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, a job without streams ends in a traceback, or notes stand among the lines of its output."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["plan", "icl", "--data", "tickets.jsonl", "--epsilon", "3", "--queries", "5", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, None)
    assert main(["sanitize"]) == 0
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


SMALL = "--instruction x --allow-small-model --subsets 9 --shots 2 --prompts 1 --tokens 2"
RUNS = {
    "demo": "demo --part votes --epsilon 3",
    "start": "start tickets.jsonl --labels praise,complaint --yes",
    "doctor": "doctor --ledger privacy.ledger",
    "plan icl": "plan icl --data tickets.jsonl --epsilon 3 --queries 50 --price 1",
    "plan opt": f"plan opt --data tickets.jsonl --epsilon 8 {SMALL.replace(' --allow-small-model', '')}",
    "plan synthesize": "plan synthesize --data tickets.jsonl --epsilon 3 --count 4",
    "plan answers": "plan answers --data tickets.jsonl --epsilon 3 --queries 4 --members 10",
    "plan rapt": "plan rapt --releases 3",
    "fit": "fit --data tickets.jsonl --epsilon 3 --budget 3 --out classifier.json --test test2.jsonl",
    "name": "name --data tickets.jsonl --epsilon 3 --budget 3 --out names.json --words topics.txt",
    "survey": "survey --data chats.jsonl --ask mood:calm,angry --epsilon 3 --budget 3 --out s.html --user-key user_id",
    "score": "score --data tickets.jsonl --chain classifier.json --epsilon 3 --budget 3 --out score.json",
    "optimize": f"optimize --data tickets.jsonl --epsilon 60 --budget 60 {SMALL} --test test2.jsonl --out prompt.json",
    "synthesize": "synthesize --data tickets.jsonl --epsilon 3 --budget 3 --count 4 --members 10 --out synthetic.jsonl "
    "--allow-small-model",
    "sanitize": "sanitize --in in.txt --out out.txt --overwrite --certificate",
    "ledger": "ledger privacy.ledger",
    "audit": "audit --ledger privacy.ledger --out report.html",
}
BARS = {"optimize": "testing", "synthesize": "writing", "sanitize": "sanitizing"}
"""Commands that take long show this on a terminal."""


def test_each_command_is_run() -> None:
    """If it breaks, a new command is left out below."""
    assert {*RUNS} == set(COMMANDS)


@pytest.mark.parametrize("name", RUNS)
def test_json_is_one_object_and_a_pipe_hears_no_progress(name: str, place: Path, capsys: Any) -> None:
    """If it breaks, a program that reads stdout stumbles, or a log fills with progress bars."""
    assert main([*RUNS[name].split(), "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert out.count("\n") == 1
    assert isinstance(json.loads(out), dict)
    assert [line for line in err.splitlines() if "were read off the private rows" not in line] == []


@pytest.mark.parametrize("name", RUNS)
def test_a_terminal_shows_progress_where_it_takes_long(
    name: str, place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, minutes pass in silence; or the result stands between the bars instead of on stdout."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", terminal)
            assert main(RUNS[name].split()) == 0
            terminal.write("END")
            terminal.flush()
        shown = b""
        while b"END" not in shown:
            shown += screen.read(4096)
    if name in BARS:
        assert BARS[name] in shown.decode()
        assert "\r" in shown.decode()
    else:
        assert b"\r" not in shown.replace(b"\r\n", b"")
    out = capsys.readouterr().out
    assert "\r" not in out
    assert out or name == "sanitize"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("opt", "optimize"),
        ("", "demo start fit name survey score plan optimize synthesize sanitize ledger audit doctor"),
        ("plan ", "icl opt synthesize answers rapt"),
        ("plan icl --neighb", "--neighbors"),
        ("plan icl --neighbors re", "replace-one replace-special"),
        ("demo --epsilon 1 3 --pic", "--picture"),
        ("sanitize --table ", "glove minilm"),
        ("ledger ", ""),  # and the script of typer then offers files
        ("fit --data a_f", ""),
    ],
)
def test_bash_completes(typed: str, offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the tab key offers nothing, or what the command then refuses."""
    monkeypatch.setenv(cli.COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"langchain-dp {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    monkeypatch.setenv("COLUMNS", "80")  # the program makes it wide
    assert printed().split() == offered.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_completion_is_installed_for_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, --install-completion writes a script that asks another program, or asks ours by another name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    assert "bash completion installed" in printed("--install-completion")
    [script] = tmp_path.glob(".bash_completions/*")
    text = script.read_text()
    assert f"{cli.COMPLETE}=complete_bash $1" in text
    assert text.rstrip().endswith("langchain-dp")


CHARGES = ["survey", "score", "optimize", "synthesize", "sanitize"]


@pytest.mark.parametrize("name", CHARGES)
def test_a_ledger_may_lie_in_a_database(name: str, place: Path, postgres: Any, capsys: Any) -> None:
    """If it breaks, a URL is taken for a file and a second machine has a budget of its own; or it cannot be shown."""
    url = postgres.fresh(place)
    for _ in range(2):  # the second time it is there already
        assert main([*shlex.split(RUNS[name]), "--ledger", url]) == 0
    assert {each.name for each in place.rglob("*.ledger*")} == {"privacy.ledger"}
    assert not list(place.glob("postgresql*"))
    capsys.readouterr()
    assert main(["ledger", url, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total > 0
    assert main(["audit", "--ledger", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == total


URLS = [
    ("postgresql://user:hunter2@127.0.0.1:1/db", "hold no password"),
    ("postgresql://127.0.0.1:1/db?sslpassword=hunter2", "hold no password"),
    ("postgresql+psycopg://user:hunter2@127.0.0.1:1/db", "another URL"),
    ("POSTGRESQL://user:hunter2@127.0.0.1:1/db", "another URL"),
    ("postgresql:/user:hunter2@127.0.0.1:1/db", "another URL"),
    ("mysql://user:hunter2@127.0.0.1:1/db", "another URL"),
    ("postgresql://user@127.0.0.1:1/db?hunter2=1", "cannot be read"),
    ("postgresql://user@127.0.0.1:1/db", "cannot be reached"),
]


@pytest.mark.parametrize("line", [*(f"{RUNS[name]} --ledger" for name in CHARGES), "ledger", "audit --json --ledger"])
def test_a_wrong_url_is_refused_in_one_line_without_its_secrets(line: str, place: Path, capsys: Any) -> None:
    """If it breaks, a password stands in a terminal's history of errors, or a ledger is made in a file of that name."""
    pytest.importorskip("psycopg")
    before = {each.name for each in place.rglob("*")}
    for url, says in URLS:
        assert main([*shlex.split(line), url]) == 1
        said = capsys.readouterr().err
        assert says in said.splitlines()[-1]
        assert "hunter2" not in said
        assert "Traceback" not in said
    assert {each.name for each in place.rglob("*")} == before
