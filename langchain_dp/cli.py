"""Command line: ``langchain-dp demo | optimize | sanitize | audit``. Each command has a file, ``_cli_<command>.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from langchain_dp import _cli_audit, _cli_demo, _cli_optimize, _cli_sanitize
from langchain_dp._cli_parts import FAILED, INTERRUPTED, epilog, formatter
from langchain_dp.errors import LangChainDPError

COMMANDS = (_cli_demo, _cli_optimize, _cli_sanitize, _cli_audit)
"""In the order of the help. A module of a command has ``EXAMPLES``, ``add_parser(commands)`` and ``run(options)``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (LangChainDPError, OSError) as error:
        print(f"langchain-dp: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("langchain-dp: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="langchain-dp",
        description="Differential privacy for LangChain.",
        epilog=epilog("".join(command.EXAMPLES for command in COMMANDS)),
        formatter_class=formatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add_parser(commands).set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
