"""What the commands share: how a line is parsed and refused, how a command ends, how a result and a note are shown."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from langchain_dp.errors import InvalidParameter

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes; the last is what shells give to a program that Ctrl-C ended."""

PROGRAM = "langchain-dp"

formatter = argparse.RawDescriptionHelpFormatter


class WrongArguments(InvalidParameter):
    """Options that are each in order and do not go together. The command line alone says so: exit code 2."""


# ----------------------------------------------------------------------------------------------------- the parser


class Parser(argparse.ArgumentParser):
    """Refuses in one line that names the remedy, where argparse prints its usage; options by their whole names only.

    A script that abbreviates an option would break, or mean another one, when an option is added.
    """

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": formatter}
        super().__init__(**(defaults | settings))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where the options that might be meant are known."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._left_over(rest[0]))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Exit with one line."""
        message = message.removeprefix("argument ")
        message = re.sub("^the following arguments are required: (.*)", r"expected \1 to be given", message)
        message = re.sub("^one of the arguments (.*) is required", r"expected one of \1 to be given", message)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message == f"expected {action.dest} to be given":
                message = f"expected a {action.dest}: one of {', '.join(action.choices)}"
        message = message.rstrip(".")
        self.exit(WRONG, line(f"{message}{'' if message.endswith('?') else '.'} See {self.prog} --help.") + "\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(each) for each in action.choices]
            said = f"expected one of {', '.join(names)}, found {str(value)!r}"
            raise argparse.ArgumentError(action, said + _meant(str(value), names))

    def _left_over(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"expected no further argument, found {argument!r}: quote a value that holds blanks"
        name = argument.split("=")[0]
        known = [each for action in self._actions for each in action.option_strings]
        return f"unknown option {name}{_meant(name, known)}"


def new_command(commands: Any, name: str, what: str, examples: str, notes: str) -> argparse.ArgumentParser:
    """Add a command, or a command's command, with its help text."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=epilog(examples, notes)
    )
    return parser


def _meant(found: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(found, known, n=1) or [each for each in known if found and each.startswith(found)]
    return f". Did you mean {near[0]}?" if near else ""


@dataclasses.dataclass(frozen=True)
class FileName:
    """Type of an argument that names a file, or is one of some words."""

    words: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        """The text as it is."""
        return text


def whole(at_least: int) -> Callable[[str], int]:
    """Type of an argument: a whole number."""

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (value := int(text)) >= at_least:
                return value
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {at_least}, found {text!r}")

    return parse


count = whole(1)
"""Type of an argument: a whole number of at least 1."""


def _number(text: str, low: float, high: float, bound: str) -> float:
    with contextlib.suppress(ValueError):
        if low < (value := float(text)) < high:
            return value
    raise argparse.ArgumentTypeError(f"expected a number {bound}, found {text!r}")


def positive(text: str) -> float:
    """Type of an argument: a number above 0."""
    return _number(text, 0.0, math.inf, "above 0")


def share(text: str) -> float:
    """Type of an argument: a number between 0 and 1, neither of them."""
    return _number(text, 0.0, 1.0, "between 0 and 1, such as 0.5")


def rate(text: str) -> float:
    """Type of an argument: a number above 0 and at most 1."""
    return _number(text, 0.0, math.nextafter(1.0, 2.0), "above 0 and at most 1")


def not_negative(text: str) -> float:
    """Type of an argument: 0 or a number above it."""
    return _number(text, -math.ulp(0.0), math.inf, "that is not negative")


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


def print_json(value: object, *, file: Any = None) -> None:
    """One strict JSON object on one line; infinity is the string "inf"."""
    print(json.dumps(_strict(value), allow_nan=False), file=file)


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


_LABELS, _LONG, _ROWS = 100, 60, 4


def read_off(labels: Sequence[str], rows: int) -> str:
    """Says that the labels were not given, and how many there are: they stand in the rows and are not shown.

    Args:
        labels: The different ones, in order.
        rows: Number of rows that they were found in.

    Raises:
        InvalidParameter: There is only one, or they look like texts.
    """
    found = f"there {'are' if len(labels) > 1 else 'is'} {len(labels)} in {rows} rows"
    if len(labels) < 2:
        raise InvalidParameter(
            f"Expected at least 2 different labels in the private rows, but {found}. Name them all with --labels."
        )
    if len(labels) > min(_LABELS, max(2, rows // _ROWS)) or any(len(label) > _LONG for label in labels):
        raise InvalidParameter(
            f"Expected at most {_LABELS} labels in the private rows, of at most {_LONG} letters and each in {_ROWS} "
            f"rows on average, but {found}. Text and label may be exchanged; if not, name the labels with --labels."
        )
    return (
        f"Note: {len(labels)} labels were read off the private rows and count as public from here on. Name them with "
        "--labels to keep them a constant."
    )


def quiet_stdout() -> None:
    """Nobody reads it any more. The interpreter flushes it at its end; that must not fail once more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
