"""Command line ``langchain-dp``, one file per command."""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from langchain_dp import __version__
from langchain_dp.cli import aggregate, audit, demo, doctor, ledger, optimize, plan, sanitize, start, survey, synthesize
from langchain_dp.cli.parser import PROGRAM, UNREAD, WRONG, Command, Group, Options, WrongArguments, refusal
from langchain_dp.cli.runs import ENDS, ending
from langchain_dp.cli.show import epilog, line, note
from langchain_dp.errors import BudgetLowWarning, NoTextKeptWarning, WeakPromiseWarning

COMMANDS: tuple[type[Options], ...] = (
    demo.Demo,
    start.Start,
    aggregate.FitPrototypes,
    aggregate.NameLabels,
    survey.SurveyConversations,
    survey.ScoreChains,
    plan.PlanICL,
    plan.PlanOpt,
    plan.PlanSynthesize,
    plan.PlanAnswers,
    plan.PlanRAPT,
    optimize.Optimize,
    synthesize.Synthesize,
    sanitize.Sanitize,
    ledger.Ledger,
    audit.Audit,
    doctor.Doctor,
)
"""In the help's order."""

COMPLETE = "_LANGCHAIN_DP_COMPLETE"

_NOTES = """\
Every command has --help with its own examples. Results go to stdout; notes, errors and, on a terminal only, progress
to stderr. --json: one JSON object on stdout (of sanitize on stderr where the sanitized lines go to stdout).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    _open_streams()
    options = parse(arguments)
    for said in (
        WeakPromiseWarning,
        BudgetLowWarning,
        NoTextKeptWarning,
    ):  # plans and certificates show them
        warnings.simplefilter("ignore", said)
    in_lines, warnings.formatwarning = (
        warnings.formatwarning,
        lambda message, *_: f"{line(options.in_options(str(message)))}\n",
    )
    try:
        code = options.run()
        sys.stdout.flush()  # a closed pipe is handled here
        return code
    except WrongArguments as error:
        note(f"{options.in_options(str(error))} See {PROGRAM} {options.path} --help.")
        return WRONG
    except ENDS as error:
        why, code = ending(error)
        if code != UNREAD:
            note(options.in_options(why))
        return code
    finally:
        warnings.formatwarning = in_lines


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the command with its options, or exit."""
    if COMPLETE in os.environ:
        os.environ["COLUMNS"] = "999"  # or rich wraps the lines that a shell reads
    try:
        found = program().main(arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()  # of a help text
    except typer.TyperException as error:
        note(refusal(error))
        raise SystemExit(WRONG) from None
    except (OSError, KeyboardInterrupt) as error:
        why, code = ending(error)
        if code != UNREAD:
            note(why)
        raise SystemExit(code) from None
    if isinstance(found, int):
        raise SystemExit(found)
    return found  # type: ignore[no-any-return]


def _open_streams() -> None:
    """Replace closed standard streams."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


@functools.cache
def program() -> TyperGroup:
    names = {"help_option_names": ["-h", "--help"], "allow_extra_args": True}
    settings: dict[str, Any] = {"cls": Group, "context_settings": names, "pretty_exceptions_enable": False}
    settings |= {"rich_markup_mode": None}  # plain text
    firsts = (re.match(r"(?:.*\\\n)*.*\n", each.examples) for each in COMMANDS if not each.path.startswith("plan "))
    epilogs = epilog("".join(first[0] for first in firsts if first), _NOTES), epilog(plan.EXAMPLES, plan.NOTES)
    whole = typer.Typer(help="Differential privacy for LangChain.", epilog=epilogs[0], callback=_whole, **settings)
    plans = typer.Typer(name="plan", help=plan.WHAT, epilog=epilogs[1], subcommand_metavar="SYSTEM ...", **settings)
    whole.add_typer(plans)
    for each in COMMANDS:
        app, said = plans if each.path.startswith("plan ") else whole, epilog(each.examples, each.notes)
        app.command(each.path.split()[-1], cls=Command, help=each.what, epilog=said, context_settings=names)(each)
    made: Any = typer.main.get_command(whole)
    made.commands = {name: made.commands[name] for name in dict.fromkeys(each.path.split()[0] for each in COMMANDS)}
    return made  # type: ignore[no-any-return]


def _version(asked: bool) -> None:
    if asked:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _whole(
    version: bool = typer.Option(False, "--version", callback=_version, help="print the version, and stop"),
) -> None:
    """Take options before a command."""
