"""Command line ``langchain-dp``. Each command has a file of its name."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from langchain_dp import __version__
from langchain_dp.cli import audit, completion, demo, ledger, optimize, plan, sanitize
from langchain_dp.cli.parts import (
    FAILED,
    INTERRUPTED,
    PROGRAM,
    WRONG,
    Command,
    Group,
    Options,
    WrongArguments,
    because,
    epilog,
    note,
    quiet_stdout,
    refusal,
)
from langchain_dp.errors import LangChainDPError

COMMANDS: tuple[type[Options], ...] = (
    demo.Demo,
    plan.PlanICL,
    plan.PlanOpt,
    plan.PlanRAPT,
    optimize.Optimize,
    sanitize.Sanitize,
    ledger.Ledger,
    audit.Audit,
    completion.Completion,
)
"""In the order of the help."""

_NOTES = """\
Every command has --help with its own examples. Results go to stdout; notes, errors and, on a terminal only, progress
to stderr. --json: one JSON object on stdout (of sanitize on stderr where the sanitized lines go to stdout).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Raises:
        SystemExit: With 0 after --help and --version, with 2 where the arguments cannot be parsed.
    """
    options = parse(arguments)
    warnings.filterwarnings("ignore", "The promise is weak")  # what a command shows, plan or certificate, says it
    try:
        code = options.run()
        sys.stdout.flush()  # here, where it is known what to say of a reader that is gone
        return code
    except BrokenPipeError:
        quiet_stdout()
        note("nobody reads the output any more.")
        return FAILED
    except WrongArguments as error:
        note(f"{error} See {PROGRAM} {options.path} --help.")
        return WRONG
    except (LangChainDPError, OSError) as error:
        note(because(error))
        return FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The command that the arguments name, with its options.

    Raises:
        SystemExit: See :func:`main`; and 0 after a shell was told what may come next.
    """
    if completion.VARIABLE in os.environ:
        completion.make_ready()
    try:
        found = program().main(arguments, prog_name=PROGRAM, complete_var=completion.VARIABLE, standalone_mode=False)
    except typer.TyperException as error:
        note(refusal(error))
        raise SystemExit(WRONG) from None
    if isinstance(found, int):
        raise SystemExit(found)
    return found  # type: ignore[no-any-return]


@functools.cache
def program() -> TyperGroup:
    """All commands."""
    settings: dict[str, Any] = {"cls": Group, "add_completion": False, "pretty_exceptions_enable": False}
    settings |= {"invoke_without_command": True, "context_settings": {"help_option_names": ["-h", "--help"]}}
    examples = "".join(_first(each.examples) for each in COMMANDS if not each.path.startswith("plan "))
    whole = typer.Typer(
        help="Differential privacy for LangChain.", epilog=epilog(examples, _NOTES), callback=_whole, **settings
    )
    plans = typer.Typer(help=plan.WHAT, epilog=epilog(plan.EXAMPLES, plan.NOTES), callback=_plan, **settings)
    whole.add_typer(plans, name="plan")
    for each in COMMANDS:
        first, _, second = each.path.partition(" ")
        settings = {"cls": Command, "context_settings": settings["context_settings"] | {"allow_extra_args": True}}
        said: dict[str, Any] = {"help": f"{each.what[0].upper()}{each.what[1:]}.", "epilog": epilog(each.examples, each.notes)}
        (plans if second else whole).command(second or first, short_help=each.what, **said, **settings)(each)
    made = typer.main.get_command(whole)
    assert isinstance(made, TyperGroup)
    made.commands = {name: made.commands[name] for name in dict.fromkeys(each.path.split()[0] for each in COMMANDS)}
    return made


def _whole(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version, and stop")] = False
) -> None:
    if version:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit
    _expect("a command", ctx)


def _plan(ctx: typer.Context) -> None:
    _expect("a system", ctx)


def _expect(what: str, ctx: Any) -> None:
    if ctx.invoked_subcommand is None:
        raise typer.BadParameter(f"expected {what}: one of {', '.join(ctx.command.commands)}")


def _first(examples: str) -> str:
    """The first example, with the lines that it goes on over."""
    first = ""
    for each in examples.splitlines(keepends=True):
        first += each
        if not each.rstrip().endswith("\\"):
            break
    return first
