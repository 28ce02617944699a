"""Options, commands, and types of values."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, dataclass_transform

import typer
from typer.core import TyperCommand, TyperGroup

from langchain_dp.errors import InvalidParameter

DONE, FAILED, WRONG, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
"""Exit codes. Shells give 141 to a program that SIGPIPE ended."""

PROGRAM = "langchain-dp"

_FIGURES = ("epsilon", "delta")
_IN_CODE = {
    " of PrivateRecords": "",
    ". For texts without labels give one for all with label=": "",
    "with budget=": "with --epsilon",
    "without budget=": "without --epsilon",
    "see released(), and take one": "take one",
    "released() has its texts": "its file has its texts",
    "labels_from_data": "whether --labels are named",
    "allow_small_model=True": "--allow-small-model",
    "call give_up_round(), which": "give --give-up-round, which",
}
"""Python calls in messages, as options."""


EXPERT = (
    "allow_remote", "alone", "characters", "chat", "code", "effort", "errors", "give_up_round", "gpu_layers", "host",
    "interval", "inversion", "length", "max_tokens", "mechanism", "members", "name", "neighbors", "partitions",
    "port", "prompts", "public_key", "sampling", "sampling_probability", "seed_not_private", "temperature", "title",
    "tokens", "trust_opaque_model", "validation",
)  # fmt: skip
"""Options that only --help-all shows."""
ORDER = (
    "data", "records", "source", "text_key", "label_key", "user_key", "labels", "task", "instruction", "ask",
    "questions", "chain", "model", "allow_small_model", "epsilon", "delta", "budget", "ledger", "out", "target", "test",
    "plan",
)  # fmt: skip
"""First in a help text."""
LAST = ("json", "help_all")
NOTES = "\f"
"""Delimits the notes of help."""


class WrongArguments(InvalidParameter):
    """Valid options that contradict each other."""


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        command: Any = ctx.command
        command.shows_all = True
        typer.echo(ctx.get_help())
        command.shows_all = False
        raise typer.Exit


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Options(abc.ABC):
    """A command. Its fields are options for typer."""

    path: ClassVar[str]
    what: ClassVar[str]
    examples: ClassVar[str]
    notes: ClassVar[str] = ""
    said: ClassVar[Mapping[str, str]] = {}
    """Arguments with another option name."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)

    def __post_init__(self) -> None:  # noqa: B027  # nothing to refuse is no fault of a command
        """Refuse contradictions, in each base."""

    help_all: bool = typer.Option(
        False, "--help-all", is_eager=True, callback=_show_all, help="Show all options and notes, and exit."
    )

    @abc.abstractmethod
    def run(self) -> int:
        """Return the exit code."""

    def given(self, names: Iterable[str]) -> list[str]:
        """Return non-default options, as typed."""
        fields = {field.name: getattr(field.default, "default", None) for field in dataclasses.fields(self)}
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != fields[name]]

    def in_options(self, message: str) -> str:
        """Rewrite a library message: ``name=`` becomes --name."""
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
        """Refuse exclusive options, or the lack of all."""
        given = self.given(names)
        if len(given) > 1:
            raise typer.BadParameter(f"{given[0]}: not allowed with argument {given[1]}")
        if required and not given:
            said = " ".join(f"--{name.replace('_', '-')}" for name in names)
            raise typer.BadParameter(f"expected one of {said} to be given")


class _Epilog:
    """Keeps typer from wrapping examples."""

    def __init__(self, *given: Any, epilog: str | None = None, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.shown = epilog or ""
        self.shows_all = not isinstance(self, Command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for param in self.params:  # type: ignore[attr-defined]
            param.hidden = param.name in EXPERT and not self.shows_all
        super().format_help(ctx, formatter)  # type: ignore[misc]
        for param in self.params:  # type: ignore[attr-defined]
            param.hidden = False  # a shell completes them all
        examples, notes, codes = self.shown.split(NOTES)
        if not self.shows_all:
            notes = f"All options and notes: {ctx.command_path} --help-all\n\n"
        formatter.write(f"\n{examples}{notes}{codes}\n")


class Command(_Epilog, TyperCommand):
    """Takes several words after one option."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        last = len(ORDER)
        self.params.sort(key=lambda each: ORDER.index(each.name) if each.name in ORDER else last + (each.name in LAST))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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
    """Names known commands in refusals."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            said = f"expected one of {', '.join(self.commands)}, found {args[0]!r}"
            raise typer.BadParameter(said + _meant(difflib.get_close_matches(args[0], self.commands)), ctx)
        return super().resolve_command(ctx, args)


def refusal(error: Any) -> str:
    """Return typer's refusal with argument and remedy."""
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


def _number(low: float, high: float, bound: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low < (value := float(text)) < high:
                return value
        raise typer.BadParameter(f"expected a number {bound}, found {text!r}")

    return parse


positive = _number(0.0, math.inf, "above 0")
share = _number(0.0, 1.0, "between 0 and 1, such as 0.5")
tiny = _number(0.0, 1.0, "between 0 and 1, such as 1e-05")
rate = _number(0.0, math.nextafter(1.0, 2.0), "above 0 and at most 1")
not_negative = _number(-math.ulp(0.0), math.inf, "that is not negative")
"""typer's own bounds allow their ends or infinity."""
