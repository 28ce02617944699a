"""``langchain-dp sanitize``, in constant memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from typer import Option

from langchain_dp._util.machine import unbroken
from langchain_dp._util.rounding import bound
from langchain_dp._util.whole_files import whole
from langchain_dp.cli import files
from langchain_dp.cli.options import TableOptions, ledger_at
from langchain_dp.cli.parser import DONE, FAILED, WrongArguments, positive
from langchain_dp.cli.runs import ENDS, check_apart, ending
from langchain_dp.cli.show import note, print_json, progress
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.accounting.metric import MetricCertificate, MetricLedger
    from langchain_dp.rapt.release import FormalReleases, Unit

_CHAIN = "langchain-dp sanitize"
_KINDS = ("numbers", "dates", "urls", "punctuation", "code")
_EQUAL = (
    "Equal lines are documents of their own: the most that was released of one document does not show that somebody "
    "wrote a line several times.",
    "Under the limit of a document, all equal lines of one user are one document. Its account, or a refusal, shows "
    "that two of them were equal.",
)
"""Without and with document limits."""
_treated = functools.partial(Option, "privatize")

Treatment = Literal["privatize", "keep", "placeholder"]


class Sanitize(TableOptions):
    """Privatizes lines."""

    path = "sanitize"
    what = "Privatize lines and files word by word (RAPT)."
    examples = """\
  langchain-dp sanitize < in.txt > out.txt
  langchain-dp sanitize --in tickets.jsonl --out safe.jsonl --fields subject body --keep-fields label \\
      --user-field customer --ledger account.ledger --limit 200 --certificate
  langchain-dp sanitize --in notes --out safe-notes --replacement 0.7 --length 64
"""
    notes = """\
Every line is one release, and one document. With --limit, equal lines of one user are one document, so that repeats
cannot get around it. Of a folder, .txt, .md and .jsonl files are read. This is metric privacy: eta is no epsilon, and
`langchain-dp plan rapt` explains it.
Also in clear: the number of lines, their order, their numbers of words (unless --length), and names of files.
A file is read through before any charge, and written whole or not at all. With --ledger, the same command on the same
lines repeats its output at no cost. Without, the account ends with the run.
On stderr: skipped files with reasons, start and end (not with --json), and progress in a terminal.
--json: the certificate, {"kind", "mechanism", "eta", "table", "releases", ...}, on stdout; on stderr where the lines
themselves go to stdout.
"""
    source: Path | None = Option(None, "--in", metavar="PATH", help="file or folder (default: stdin)")
    target: Path | None = Option(None, "--out", metavar="PATH", help="file or folder (default: stdout)")
    overwrite: bool = Option(False, "--overwrite", help="replace what is there at --out")
    format: Literal["text", "jsonl"] | None = Option(None, help="default: jsonl for names in .jsonl, else text")
    fields: list[str] | None = Option(None, metavar="NAME", help="fields of a row to sanitize (default: text)")
    keep_fields: list[str] | None = Option(None, metavar="NAME", help="fields in clear; all others are dropped")
    errors: Literal["strict", "replace"] = Option("strict", help="of bytes that are not UTF-8")
    ledger: str | None = ledger_at(help="account to charge, made if absent: file or postgresql:// URL")
    limit: float | None = Option(
        None, parser=positive, help="limit of the sum of one user's releases, and of one document's"
    )
    user_field: str | None = Option(None, metavar="NAME", help="field of a row that says whose account is charged")
    keep: list[str] | None = Option(None, metavar="WORD", help="words that stay")
    numbers: Treatment = _treated(help="numbers, times and amounts")
    dates: Treatment = _treated(help="dates")
    urls: Treatment = _treated(help="addresses of pages and of mail")
    punctuation: Treatment = _treated(help="punctuation marks and symbols")
    code: Treatment = _treated(help="pieces between backticks")
    length: int | None = Option(None, min=1, help="release every text with exactly this many tokens")
    certificate: bool = Option(False, "--certificate", help="print the certificate on stderr at the end")
    json: bool = Option(False, "--json", help="print the certificate as one JSON object")

    def run(self) -> int:
        jobs = files.find(self.source, self.target, self.format, overwrite=self.overwrite)
        for job in jobs:
            if job.target is not None:
                check_apart(job.target, self.ledger)
        fields = _fields(self, jobs)
        for path, why in files.skipped(self.source):
            note(f"skipped {path}: {why}.")
        replace = self.errors == "replace"
        run_so_far = _Run(self.ledger)
        try:
            files.check(jobs, fields, replace=replace)
            began = time.monotonic()
            if not self.json:
                note(f"loading {self.embeddings}{'' if self.eta else ', and looking for the eta that does it'} ...")
            with contextlib.ExitStack() as held:
                releases = _releases(self, held)
                if self.limit is not None and self.user_field is None and self.ledger is None:
                    note(f"nobody is named, so --limit {self.limit:g} counts equal lines alone. See --user-field.")
                _sanitize(jobs, fields, releases, run_so_far, replace=replace)
                for field in run_so_far.unmet(fields):
                    note(f"no row has a field {field!r}.")
                if not self.json:
                    note(run_so_far.done(time.monotonic() - began))
                if self.certificate or self.json:
                    _show(_certificate(self, releases, fields, jobs), self)
        except ENDS as error:
            return run_so_far.ended(*ending(error))
        except (RuntimeError, sqlite3.Error) as error:  # another library's message may quote private text
            return run_so_far.ended(f"{type(error).__name__} while texts were sanitized, text withheld.", FAILED)
        return DONE


@dataclasses.dataclass
class _Run:
    """Progress of a run, without texts."""

    ledger: str | None
    job: files.Job | None = None
    lines: int = 0
    finished: int = 0
    charged: bool = False
    before: int = 0
    met: set[str] = dataclasses.field(default_factory=set)

    def start(self, job: files.Job) -> None:
        self.before += self.lines
        self.job, self.lines = job, 0

    def take(self, lines: Sequence[files.Line]) -> None:
        self.lines = lines[-1].number
        self.met.update(field for line in lines for field in line.row or ())

    def unmet(self, fields: files.Fields) -> list[str]:
        return [field for field in (*fields.sanitize, *fields.keep) if self.met and field not in self.met]

    def done(self, seconds: float) -> str:
        lines = self.before + self.lines
        files_ = "" if self.finished == 1 else f" of {self.finished} files"
        return f"sanitized {lines:,} line{'' if lines == 1 else 's'}{files_} in {seconds:.0f} s."

    def ended(self, why: str, code: int) -> int:
        note(f"{why.removesuffix('.')}. {self._said()}")
        return code

    def _said(self) -> str:
        if self.job is None or not (self.charged or self.finished):
            return ""
        said = (
            f"Released up to line {self.lines} of {self.job.name}"
            if self.lines
            else f"Nothing of {self.job.name} was released"
        )
        said += "." if self.job.target is None else f"; nothing of it was written to {self.job.target}."
        if self.finished:
            said += f" Files that are done: {self.finished}."
        if self.ledger is not None:
            again = "the same command with --overwrite" if self.finished else "the same command again"
            said += f" What {self.ledger} has recorded is spent; {again} gives out what was released, at no cost."
        return said


class _Places:
    """Counts equal lines as separate documents, by keyed hashes that SQLite moves to disk."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._seen = sqlite3.connect("", isolation_level=None)
        self._seen.execute("PRAGMA journal_mode = OFF")
        self._seen.execute("CREATE TABLE seen (name BLOB PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID")

    def next(self, name: str) -> int:
        digest = hashlib.blake2b(name.encode(), key=self._key, digest_size=16).digest()
        self._seen.execute(
            "INSERT INTO seen VALUES (?, 0) ON CONFLICT (name) DO UPDATE SET times = times + 1", (digest,)
        )
        return int(self._seen.execute("SELECT times FROM seen WHERE name = ?", (digest,)).fetchone()[0])

    def close(self) -> None:
        self._seen.close()


def _fields(options: Sanitize, jobs: list[files.Job]) -> files.Fields:
    asked = {"--fields": options.fields, "--keep-fields": options.keep_fields, "--user-field": options.user_field}
    given = [name for name, value in asked.items() if value is not None]
    text = next((job for job in jobs if job.format == "text"), None)
    if given and all(job.format == "text" for job in jobs):
        raise WrongArguments(f"Expected {', '.join(given)} with JSON rows only. Give --format jsonl, or leave it out.")
    if options.user_field is not None and text is not None:
        raise WrongArguments(f"Expected --user-field with JSON rows only: lines of {text.name} have no user to charge.")
    both = sorted({*(options.fields or ["text"])} & {*(options.keep_fields or [])})
    if both:
        raise WrongArguments(
            f"Expected --fields and --keep-fields to name different fields, found {both}. Name each once."
        )
    return files.Fields(options.fields or ("text",), options.keep_fields or (), options.user_field)


def _releases(options: Sanitize, held: contextlib.ExitStack) -> FormalReleases:
    from langchain_dp.rapt.privatize import Policies
    from langchain_dp.rapt.release import FormalReleases
    from langchain_dp.rapt.runnable import WordOptions, word_releases

    targets = options.targets()
    words = WordOptions(
        mechanism=options.mechanism,
        policies=Policies(**{kind: getattr(options, kind) for kind in _KINDS}),
        keep=options.keep or (),
        length=options.length,
    )
    # Refuse before there is a ledger.
    tried = word_releases(options.embeddings, targets, words, ledger=None, limit=None, cache=False, name=_CHAIN)
    if options.limit is not None:
        _check_limit(options.limit, tried.engine.eta)
    ledger = held.enter_context(_ledger(options, held))
    ledger.check_table(tried.engine.table)
    # Without a file no later run can repeat a release, and within a run no document repeats.
    return FormalReleases(tried.engine, ledger, tried.calibration, reuse=options.ledger is not None, chain=_CHAIN)


def _ledger(options: Sanitize, held: contextlib.ExitStack) -> MetricLedger:
    from langchain_dp.accounting.metric import MetricLedger
    from langchain_dp.accounting.store.base import is_there

    if options.ledger is None:
        # On disk, since it grows with the input. Its key never leaves the process.
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="langchain-dp-"))
        return MetricLedger(options.limit, Path(folder) / "account", key=secrets.token_bytes(32))
    if options.limit is None and is_there(options.ledger):
        return MetricLedger.open(options.ledger)
    return MetricLedger(options.limit, options.ledger)


def _sanitize(
    jobs: list[files.Job], fields: files.Fields, releases: FormalReleases, so_far: _Run, *, replace: bool
) -> None:
    # Files have a known size. For pipes, lines are counted.
    sizes = [job.source.stat().st_size for job in jobs if job.source is not None and job.source.is_file()]
    sized, most = len(sizes) == len(jobs), _most_equal(releases)
    shown = (sum(sizes), "bytes") if sized else (None, "lines")
    with contextlib.closing(_Places()) as places, progress("sanitizing", *shown) as advance:
        for job in jobs:
            so_far.start(job)
            before = 0
            with _target(job) as target, _source(job) as source:
                for batch in files.batches(files.read(source, job, fields, replace=replace)):
                    place = source.tell() if sized else batch[-1].number
                    units = [_unit(line, places) for line in batch]
                    _check_equal(job, batch, units, most)
                    so_far.charged = True  # charges are possible from here on
                    with unbroken():  # charged text is stored, so that the same command returns it
                        released = releases.release(units)
                    so_far.take(batch)  # before any line is visible
                    target.write(b"".join(line.written(new) for line, new in zip(batch, released, strict=True)))
                    if job.target is None:
                        target.flush()
                    advance(place - before)
                    before = place
            so_far.finished += 1


def _unit(line: files.Line, places: _Places) -> Unit:
    from langchain_dp.rapt.release import Unit

    return Unit(line.texts, line.user, place=places.next(json.dumps([line.user, line.texts])))


def _most_equal(releases: FormalReleases) -> int | None:
    limit = releases.ledger.document_limit
    if limit is None:
        return None
    _check_limit(limit, releases.engine.eta)
    return int(limit / releases.engine.eta * (1 + 1e-9))


def _check_limit(limit: float, eta: float) -> None:
    if limit < eta:
        raise InvalidParameter(
            f"Expected --limit {limit:g} to be at least eta={bound(eta)}, the cost of one release. Nothing could be "
            "released. Raise it, or lower eta."
        )


def _check_equal(job: files.Job, lines: Sequence[files.Line], units: Sequence[Unit], most: int | None) -> None:
    """Refuse a line with too many equals, by its number."""
    for line, unit in zip(lines, units, strict=True):
        if most is not None and most <= (unit.place or 0) and any(text.strip() for text in unit.texts):
            raise InvalidParameter(
                f"Expected line {line.number} of {job.name} to equal at most {most - 1:,} lines before it: under "
                "--limit equal lines of one user are one document. Raise --limit, or leave such lines out."
            )


def _source(job: files.Job) -> contextlib.AbstractContextManager[BinaryIO]:
    return contextlib.nullcontext(sys.stdin.buffer) if job.source is None else job.source.open("rb")


@contextlib.contextmanager
def _target(job: files.Job) -> Iterator[BinaryIO]:
    if job.target is None:
        yield sys.stdout.buffer
        return
    job.target.parent.mkdir(parents=True, exist_ok=True)
    with whole(job.target) as file:
        yield file


def _certificate(
    options: Sanitize, releases: FormalReleases, fields: files.Fields, jobs: list[files.Job]
) -> MetricCertificate:
    from langchain_dp.rapt.release import COUNTED

    said = [note for note in releases.notes() if note not in COUNTED]  # they count calls, not lines
    notes = [
        _EQUAL[releases.ledger.document_limit is not None],
        "The number of lines and their order are in clear, and which of them are blank.",
    ]
    if len(jobs) > 1 or (options.source is not None and options.source.is_dir()):
        notes.append("Names of files and folders are in clear.")
    if any(job.format == "jsonl" for job in jobs):
        notes.append(f"Of JSON rows: which of {', '.join(fields.sanitize)} a row has is in clear; others are dropped.")
        if fields.keep:
            notes.append(f"Fields that pass in clear: {', '.join(fields.keep)}.")
    return releases.certificate((*said, *notes), {})


def _show(certificate: MetricCertificate, options: Sanitize) -> None:
    if options.json:
        print_json(certificate.to_dict(), file=sys.stderr if options.target is None else None)
    else:
        print(certificate, file=sys.stderr)
