"""``langchain-dp completion``: scripts for shells, which ask the program itself what may come next."""

from __future__ import annotations

import os
from typing import Literal

from typer import Argument, completion

from langchain_dp.cli.parser import DONE, PROGRAM, Options

Shell = Literal["bash", "zsh", "fish"]

VARIABLE = "_LANGCHAIN_DP_COMPLETE"
"""In the environment, it says that a shell asks."""

_BASH = f"""\
_langchain_dp() {{
    local IFS=' ' line offered
    line="${{COMP_WORDS[*]:0:COMP_CWORD + 1}}"
    IFS=$'\\n'
    # Readline cuts --name=value at the sign. In the form for fish it is told which words are files.
    offered=($(_LANGCHAIN_DP_SHELL=bash _TYPER_COMPLETE_ARGS="${{line// = /=}}" \\
        _TYPER_COMPLETE_FISH_ACTION=get-args {VARIABLE}=complete_fish {PROGRAM}))
    COMPREPLY=("${{offered[@]%%$'\\t'*}}")
    case "${{offered[0]}}" in *$'\\tfile') compopt -o filenames 2>/dev/null ;; esac
}}
complete -F _langchain_dp {PROGRAM}
"""


def make_ready() -> None:
    """Make the shells known to typer, and let rich not wrap what they read line by line."""
    completion.get_completion_inspect_parameters()
    os.environ["COLUMNS"] = "999"


class Completion(Options):
    """Prints a script."""

    path = "completion"
    what = "Completion for bash, zsh or fish."
    examples = """\
  eval "$(langchain-dp completion bash)"
  langchain-dp completion zsh > _langchain_dp
  langchain-dp completion fish > langchain-dp.fish
"""
    notes = """\
Prints a script to stdout. bash: put the first line into ~/.bashrc. zsh: write the file into a folder of $fpath. fish:
write it into ~/.config/fish/completions. The script asks the program, so that it knows the commands, options, choices
and files of every version.
"""
    shell: Shell = Argument(help="whose script to print")

    def run(self) -> int:
        """Run the command; returns the exit code."""
        names = {"prog_name": PROGRAM, "complete_var": VARIABLE}
        print(_BASH if self.shell == "bash" else completion.get_completion_script(shell=self.shell, **names))  # type: ignore[attr-defined]
        return DONE
