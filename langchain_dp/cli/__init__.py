"""Command line ``langchain-dp``. Each command has a file of its name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from langchain_dp import __version__
from langchain_dp.cli import audit, completion, demo, ledger, optimize, plan, sanitize
from langchain_dp.cli.parts import (
    FAILED,
    INTERRUPTED,
    PROGRAM,
    WRONG,
    Parser,
    WrongArguments,
    because,
    epilog,
    note,
    quiet_stdout,
)
from langchain_dp.errors import LangChainDPError

COMMANDS = (demo, plan, optimize, sanitize, ledger, audit, completion)
"""In the order of the help. A module of a command has ``EXAMPLES``, ``add_parser(commands)`` and ``run(options)``."""

_NOTES = """\
Every command has --help with its own examples. Results go to stdout; notes, errors and, on a terminal only, progress
to stderr. --json: one JSON object on stdout (of sanitize on stderr where the sanitized lines go to stdout).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Raises:
        SystemExit: With 0 after --help and --version, with 2 where the arguments cannot be parsed.
    """
    options = parser().parse_args(arguments)
    warnings.filterwarnings("ignore", "The promise is weak")  # what a command shows, plan or certificate, says it
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # here, where it is known what to say of a reader that is gone
        return code
    except BrokenPipeError:
        quiet_stdout()
        note("nobody reads the output any more.")
        return FAILED
    except WrongArguments as error:
        note(f"{error} See {options.parser.prog} --help.")
        return WRONG
    except (LangChainDPError, OSError) as error:
        note(because(error))
        return FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED


def parser() -> Parser:
    """The parser of all commands."""
    whole = Parser(
        prog=PROGRAM,
        description="Differential privacy for LangChain.",
        epilog=epilog("".join(_first(command.EXAMPLES) for command in COMMANDS), _NOTES),
    )
    whole.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = whole.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        made = command.add_parser(commands)
        made.set_defaults(run=command.run, parser=made, program=whole)
    return whole


def _first(examples: str) -> str:
    """The first example, with the lines that it goes on over."""
    first = ""
    for each in examples.splitlines(keepends=True):
        first += each
        if not each.rstrip().endswith("\\"):
            break
    return first
