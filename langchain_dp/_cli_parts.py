"""What the commands share: options that mean the same in each, how they end, and how a note is shown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes; the last is what shells give to a program that Ctrl-C ended."""

formatter = argparse.RawDescriptionHelpFormatter


def epilog(examples: str, notes: str = "") -> str:
    """The end of a help text."""
    codes = (
        f"exit codes: {DONE} done, {FAILED} refused or failed (one line on stderr says why), {WRONG} wrong arguments,\n"
        f"{INTERRUPTED} interrupted"
    )
    return "\n\n".join(part for part in (f"examples:\n{examples.rstrip()}", notes.strip(), codes) if part)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model runs on this machine, and where."""
    parser.add_argument("--model", help="path of a GGUF (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers to put on a GPU (default: %(default)s)")


def read_off(labels: Sequence[str]) -> str:
    """Says that the labels were not given."""
    return (
        f"Note: the labels {list(labels)} were read off the private rows and count as public from here on. Name them "
        "with --labels to keep them a constant."
    )
