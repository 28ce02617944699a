"""What the commands share: how a line is parsed and refused, how a command ends, how a result and a note are shown."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import glob
import itertools
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import typer
from typer.core import TyperCommand, TyperGroup

from langchain_dp.errors import BudgetExceeded, InvalidParameter, LangChainDPError, LedgerMismatch, PlanError

if TYPE_CHECKING:
    from langchain_dp.accounting import PrivacyCertificate

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes; the last is what shells give to a program that Ctrl-C ended."""

PROGRAM = "langchain-dp"


_FIGURES = ("epsilon", "delta")
"""What a message shows of a budget, which may be another one than was typed."""
_IN_CODE = {
    " of PrivateRecords": "",
    "with budget=": "with --epsilon",
    "delta= of reserve(), or budget=PrivacyBudget(1.0, 5e-6) of a chain": "--delta",
}
"""What messages say of calls that no command has, and what is typed instead."""


class WrongArguments(InvalidParameter):
    """Options that are each in order and do not go together. The command line alone says so: exit code 2."""


# ----------------------------------------------------------------------------------------------------- the parser


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Options(abc.ABC):
    """A command: its fields are its options, which typer reads off their types and defaults, and ``run`` runs it."""

    path: ClassVar[str]
    what: ClassVar[str]
    examples: ClassVar[str]
    notes: ClassVar[str] = ""
    said: ClassVar[Mapping[str, str]] = {}
    """Arguments of the library that are options of another name here."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
        for field in dataclasses.fields(cls):
            if "Path" in str(field.type):
                field.default.autocompletion = paths  # type: ignore[union-attr]  # typer's, which holds the default

    def __post_init__(self) -> None:  # noqa: B027  # nothing to refuse is no fault of a command
        """Refuse what does not go together: every base of a command does, and calls that of its own."""

    @abc.abstractmethod
    def run(self) -> int:
        """Run the command; returns the exit code."""

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of some options that differ from their defaults, as they are typed."""
        fields = {field.name: getattr(field.default, "default", None) for field in dataclasses.fields(self)}
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != fields[name]]

    def in_options(self, message: str) -> str:
        """A message of the library, in which arguments are called as they are typed here: ``name=`` is --name."""
        typed = {field.name: f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(self)}
        typed |= self.said
        named = "|".join(name for name in typed if name not in _FIGURES)

        def found(match: re.Match[str]) -> str:
            name = match["name"]
            return match[0] if name is None else typed[name] + (" " if match["value"] else "")

        pattern = rf"[A-Z]\w*\([^()]*\)|\b(?P<name>{named})=(?=(?P<value>[\w\"'\[-]|\.\d)?)"
        for said, instead in _IN_CODE.items():
            message = message.replace(said, instead)
        return re.sub(pattern, found, message)

    def at_most_one(self, *names: str, required: bool = False) -> None:
        """Refuse options that exclude one another, or that are all left out."""
        given = self.given(names)
        if len(given) > 1:
            raise typer.BadParameter(f"{given[0]}: not allowed with argument {given[1]}")
        if required and not given:
            said = " ".join(f"--{name.replace('_', '-')}" for name in names)
            raise typer.BadParameter(f"expected one of {said} to be given")


class _Epilog:
    """Shows the examples as they stand, since rich would wrap their lines; and no colours where nobody sees them."""

    def __init__(self, *given: Any, epilog: str | None = None, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.shown = epilog

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        from typer import rich_utils

        rich_utils.FORCE_TERMINAL = None  # GitHub's logs are no terminal
        super().format_help(ctx, formatter)  # type: ignore[misc]
        formatter.write(f"{self.shown}\n")


class Command(_Epilog, TyperCommand):
    """Takes several words after one option: typer asks for the option's name before each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and refuse what is left over."""
        rest = super().parse_args(ctx, self._spread(ctx, list(args)))
        if rest and not ctx.resilient_parsing:
            said = (
                f"expected no further argument, found {rest[0]!r}: write the name of its option before it, and quote a "
            )
            said += "value that holds blanks"
            raise typer.BadParameter(said, ctx)
        return rest

    def _spread(self, ctx: Any, words: list[str]) -> list[str]:
        takes = {name: each for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}
        spread: list[str] = []
        while words and words[0] != "--":
            spread.append(name := words.pop(0))
            if name in takes:
                option: Any = takes[name]
                values = [*itertools.takewhile(lambda word: not word.startswith("--"), words)]
                if len(values) < option.nargs and not ctx.resilient_parsing:
                    least = "at least one" if option.multiple else {1: "one"}.get(option.nargs, option.nargs)
                    said = f"expected {least} argument{'s' if option.nargs > 1 else ''}"
                    raise typer.BadParameter(said, ctx, option)
                taken = values if option.multiple else values[: option.nargs]
                spread += [word for value in taken for word in (name, value)][1:] if option.multiple else taken
                del words[: len(taken)]
        return spread + words


class Group(_Epilog, TyperGroup):
    """Refuses a command that it does not know by naming those it knows."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            said = f"expected one of {', '.join(self.commands)}, found {args[0]!r}"
            raise typer.BadParameter(said + _meant(difflib.get_close_matches(args[0], self.commands)), ctx)
        return super().resolve_command(ctx, args)


def refusal(error: Any) -> str:
    """What typer refused, in one sentence that names the argument and the remedy."""
    path = PROGRAM if error.ctx is None else error.ctx.command_path
    said = error.message
    if hasattr(error, "possibilities"):  # of an option
        takes = [name for option in error.ctx.command.params for name in option.opts] if error.ctx else []
        begins = [name for name in takes if name.startswith(error.option_name)]
        said = f"unknown option {error.option_name}{_meant(begins or error.possibilities)}"
    elif not isinstance(error, typer.BadParameter) and hasattr(error.ctx and error.ctx.command, "commands"):
        command = error.ctx.command
        said = f"expected a {command.subcommand_metavar.split()[0].lower()}: one of {', '.join(command.commands)}"
    elif getattr(error, "param", None) is not None:
        name, choices = "/".join(error.param.opts), error.param.type_descriptor.choices
        if error.param.param_type_name == "argument":
            name = error.param.metavar or name
        if error.__cause__:  # pydantic's, which read the value
            found = error.__cause__.errors()[0]["input"]
            least, most = (getattr(error.param, bound, None) for bound in ("min", "max"))
            whole = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
            wanted = f"one of {', '.join(choices)}" if choices else whole
            said = f"expected {wanted}, found {found!r}{_meant(difflib.get_close_matches(found, choices or ()))}"
        said = f"{name}: {said}" if said else f"expected {name} to be given"
    said = said.rstrip(".")
    return f"{said}{'' if said.endswith('?') else '.'} See {path} --help."


def _meant(near: Sequence[str] | None) -> str:
    return f". Did you mean {near[0]}?" if near else ""


def paths(incomplete: str) -> list[tuple[str, str]]:
    """Completion of a path, for bash; the other shells offer files where nothing else is offered."""
    if os.environ.get("_LANGCHAIN_DP_SHELL") != "bash":
        return []
    begins = os.path.expanduser(incomplete)
    return [(incomplete + name[len(begins) :], "file") for name in sorted(glob.glob(f"{glob.escape(begins)}*"))]


def _number(low: float, high: float, bound: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low < (value := float(text)) < high:
                return value
        raise typer.BadParameter(f"expected a number {bound}, found {text!r}")

    return parse


positive = _number(0.0, math.inf, "above 0")
share = _number(0.0, 1.0, "between 0 and 1, such as 0.5")
rate = _number(0.0, math.nextafter(1.0, 2.0), "above 0 and at most 1")
not_negative = _number(-math.ulp(0.0), math.inf, "that is not negative")
"""Types of an argument: a number within bounds, where typer's own cannot leave a bound itself out, or infinity."""


# ---------------------------------------------------------------------------------------------------- what is shown


def epilog(examples: str, notes: str = "") -> str:
    """The end of a help text."""
    codes = (
        f"exit codes: {DONE} done, {FAILED} refused or failed (one line on stderr says why), {WRONG} wrong arguments,\n"
        f"{INTERRUPTED} interrupted"
    )
    return "\n\n".join(part for part in (f"examples:\n{examples.rstrip()}", notes.strip(), codes) if part)


def line(message: object) -> str:
    """One line for stderr, whatever the message holds."""
    return f"{PROGRAM}: {' '.join(str(message).split())}"


def note(message: object) -> None:
    """Say something on stderr, where it is in nobody's way."""
    print(line(message), file=sys.stderr)


def because(error: BaseException) -> str:
    """Why a command failed, with what to do. Of the operating system's errors some say neither."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    remedy = {
        FileNotFoundError: "to be there, but nothing is. Check the path",
        NotADirectoryError: "to lie in a folder. Check the path",
        IsADirectoryError: "to be a file, but it is a folder. Name a file in it",
        PermissionError: "to be open to you. Check its rights, or name another",
    }.get(type(error), f"to be usable ({error.strerror}). Name another")
    return f"Expected {os.fsdecode(error.filename)} {remedy}."


ENDS = (LangChainDPError, OSError, KeyboardInterrupt)
"""What ends a command in one line."""


def ending(error: BaseException) -> tuple[str, int]:
    """Why a command ended, and its exit code."""
    if isinstance(error, OSError) and error.filename is None:  # of a stream, it may be
        quiet_stdout()
    if isinstance(error, BrokenPipeError):
        return "nobody reads the output any more.", FAILED
    return ("interrupted", INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (because(error), FAILED)


def print_json(value: object, *, file: Any = None) -> None:
    """Print :func:`strict_json`."""
    print(strict_json(value), file=file)


def strict_json(value: object) -> str:
    """One strict JSON object on one line; infinity is the string "inf"."""
    return json.dumps(_strict(value), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, (list, tuple)) else value


def columns(rows: Iterable[tuple[str, str]], *, indent: int = 2) -> str:
    """Names and values under one another."""
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{' ' * indent}{name:<{width}}  {value}".rstrip() for name, value in found)


_BAR = 24


def score_table(last: str, rows: Iterable[tuple[str, float | None, float, float, str]]) -> str:
    """Methods with their accuracies, as a table.

    Args:
        last: Heading of the last column.
        rows: Of a method: name, epsilon (None: nothing is promised), accuracy, its standard error, the last column.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("method", "epsilon", "accuracy", "", last):
        table.add_column(name, justify="right" if name in ("epsilon", "accuracy") else "left", no_wrap=True)
    for method, epsilon, accuracy, error, said in rows:
        shown = "inf" if epsilon is None else f"{epsilon:g}"
        table.add_row(method, shown, f"{accuracy:.1%} ± {error:>5.1%}", f"{'█' * round(accuracy * _BAR):<{_BAR}}", said)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, on a terminal only; yields what tells it how much more is done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    counted = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    seen = ("{task.description}", BarColumn(), counted, "" if unit == "bytes" else unit, TimeRemainingColumn())
    settings: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}  # what is printed passes untouched
    quiet = not (shown and sys.stderr.isatty())
    with Progress(*seen, console=Console(stderr=True), disable=quiet, **settings) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


_LABELS, _LONG, _ROWS = 100, 60, 4


ESTIMATED = "the time is estimated from the private rows: keep it to yourself"


def read_off(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """The different labels of rows, in order, and what is said of it: that they were not given, and how many there are.

    They stand in the private rows and are not shown.

    Raises:
        InvalidParameter: There is only one, or they look like texts.
    """
    labels = sorted({str(row["label"]) for row in rows})
    found = f"there {'are' if len(labels) > 1 else 'is'} {len(labels)} in {len(rows)} rows"
    if len(labels) < 2:
        raise InvalidParameter(
            f"Expected at least 2 different labels in the private rows, but {found}. Name them all with --labels."
        )
    if len(labels) > min(_LABELS, max(2, len(rows) // _ROWS)) or any(len(label) > _LONG for label in labels):
        raise InvalidParameter(
            f"Expected at most {_LABELS} labels in the private rows, of at most {_LONG} letters and each in {_ROWS} "
            f"rows on average, but {found}. Text and label may be exchanged; if not, name the labels with --labels."
        )
    return labels, (
        f"Note: {len(labels)} labels were read off the private rows and count as public from here on. Name them with "
        "--labels to keep them a constant."
    )


READ_OFF = "the labels were read off the private rows: the epsilon does not count that"


def certified(certificate: PrivacyCertificate, *, read: bool) -> PrivacyCertificate:
    """The certificate of a run, which says if the command read the labels off the private rows."""
    if not read or not certificate.private:
        return certificate
    return dataclasses.replace(certificate, notes=(*certificate.notes, READ_OFF))


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Let Ctrl-C wait until the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    met: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: met.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if met:
        raise KeyboardInterrupt


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Say in terms of the command what to do about a run that was started otherwise."""
    try:
        yield
    except (BudgetExceeded, LedgerMismatch, PlanError) as error:
        error.args = (
            f"{error} Here: the options it was started with go on with that run; another --out, or --ledger, starts a "
            "new one with a budget of its own.",
        )
        raise


def check_out(out: Path, load: Callable[[Path], object], what: str) -> None:
    """The result must find its place, and nothing but an older result may be replaced: before anything is paid for.

    Raises:
        InvalidParameter: There is no such folder, or a file there that ``load`` does not take for ``what``.
    """
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise InvalidParameter(
            f"Expected the folder of --out {out} to be there and writable. Make it, or name another."
        )
    if out.is_dir():
        raise InvalidParameter(f"Expected --out {out} to be a file, but it is a folder. Name a file in it.")
    if out.exists():
        try:
            load(out)
        except (InvalidParameter, ValueError, TypeError, KeyError, AttributeError):
            raise InvalidParameter(f"Expected --out {out} to be new, or {what}. Name another file.") from None


def check_apart(out: Path, ledger: str | None) -> None:
    """What is written must not take the place of the ledger or of its key: all that was spent would be forgotten.

    Raises:
        WrongArguments: They are one file.
    """
    from langchain_dp.accounting.store.base import is_url
    from langchain_dp.accounting.store.key_file import SUFFIX

    if ledger is None or is_url(ledger):
        return
    place = os.path.realpath(ledger)
    if os.path.realpath(out) in (place, f"{place}{SUFFIX}", f"{place}-journal"):
        raise WrongArguments(
            f"Expected --out {out} to be another file than --ledger {ledger} and what lies beside it: what is written "
            "would take its place, and with it what was spent. Name another."
        )


def quiet_stdout() -> None:
    """Nobody reads it any more. The interpreter flushes it at its end; that must not fail once more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
