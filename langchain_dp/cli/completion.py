"""``langchain-dp completion``: scripts for shells, made from the parser itself."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_dp.cli.parts import DONE, PROGRAM, FileName, new_command

EXAMPLES = """\
  eval "$(langchain-dp completion bash)"
  langchain-dp completion zsh > _langchain_dp
  langchain-dp completion fish > langchain-dp.fish
"""

_NOTES = """\
Prints a script to stdout. bash: put the first line into ~/.bashrc. zsh: write the file into a folder of $fpath. fish:
write it into ~/.config/fish/completions. The script knows this version's commands, options, choices and which
arguments are files; make it anew after an update.
"""

SHELLS = ("bash", "zsh", "fish")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser = new_command(commands, "completion", "completion for bash, zsh or fish", EXAMPLES, _NOTES)
    parser.add_argument("shell", choices=SHELLS, help="whose script to print")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    print(script(options.program, options.shell), end="")
    return DONE


@dataclasses.dataclass(frozen=True)
class Value:
    """What an option or an argument takes.

    Args:
        most: How many values; 0 for a flag, and more than anybody types for "one or more".
        words: Some of them, or all.
        files: Whether it may be a path.
    """

    most: int
    words: tuple[str, ...] = ()
    files: bool = False


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, or a command's command.

    Args:
        path: Its names, without the program's: () is the program.
        commands: Commands below it, with their help.
        options: By option string: help and value.
        argument: Its positional argument.
    """

    path: tuple[str, ...]
    commands: dict[str, str]
    options: dict[str, tuple[str, Value]]
    argument: Value | None


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """A parser as commands, itself first."""
    below: dict[str, argparse.ArgumentParser] = {}
    helps: dict[str, str] = {}
    options: dict[str, tuple[str, Value]] = {}
    argument = None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            helps = {each.dest: each.help or "" for each in action._choices_actions}
        elif action.option_strings:
            said = (action.help or "") % {**vars(action), "prog": parser.prog}
            options |= {name: (said, _value(action)) for name in action.option_strings if name.startswith("--")}
        else:
            argument = _value(action)
    yield Command(path, helps, options, argument)
    for name, each in below.items():
        yield from commands_of(each, (*path, name))


def _value(action: argparse.Action) -> Value:
    most = {None: 1, "?": 1, "+": 999, "*": 999}.get(action.nargs, action.nargs)  # type: ignore[arg-type]
    words = tuple(map(str, action.choices or ()))
    if isinstance(action.type, FileName):
        words = action.type.words
    return Value(int(most or 0), words, action.type is Path or isinstance(action.type, FileName))


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell."""
    commands = list(commands_of(parser))
    head = f"# Completion of {PROGRAM} for {shell}, made by: {PROGRAM} completion {shell}\n"
    if shell == "zsh":
        return f"#compdef {PROGRAM}\n{head}{_zsh(commands)}"  # compinit reads the first line
    return head + (_bash if shell == "bash" else _fish)(commands)


# -------------------------------------------------------------------------------------------------------- bash, zsh
#
# Both walk over the words before the one that is typed: which command it is, which option came last, and how many
# values that has had. What differs is how words are taken and handed back.


def _cases(commands: list[Command]) -> tuple[str, str, str]:
    """Three bodies of ``case``: words that lead to a command, what a command offers, what an option takes."""
    paths, offers, takes = [], [], []
    for command in commands:
        path = " ".join(command.path)
        paths += [shlex.quote(" ".join((*command.path, name))) for name in command.commands]
        argument = command.argument
        own = [*command.commands, *(argument.words if argument else ())]
        offers.append(
            f"        {shlex.quote(path)}) own={shlex.quote(' '.join(own))} "
            f"options={shlex.quote(' '.join(command.options))} files={int(bool(argument and argument.files))} ;;"
        )
        takes += [
            f"        {shlex.quote(f'{path} {name}')}) most={value.most} words={shlex.quote(' '.join(value.words))} "
            f"paths={int(value.files)} ;;"
            for name, (_, value) in command.options.items()
            if value.most
        ]
    return f"            {'|'.join(paths)}) path=$next ;;", "\n".join(offers), "\n".join(takes)


_WALK = """\
    local path='' option='' seen=0 next own='' options='' files=0 most=0 words='' paths=0 offered=''
    for word in "${{before[@]}}"; do
        next="${{path:+$path }}$word"
        case $next in
{paths}
            *) case $word in --*) option=$word seen=0 ;; *) seen=$((seen + 1)) ;; esac ;;
        esac
    done
    case $path in
{offers}
    esac
    case "$path $option" in
{takes}
    esac
    if [ "$most" -gt "$seen" ] && {{ [ "$seen" -eq 0 ] || [ "${{current#-}}" = "$current" ]; }}; then
        offered=$words files=$paths
    elif [ "${{current#-}}" != "$current" ] || [ -z "$own$files" ] || [ "$own$files" = 0 ]; then
        offered=$options files=0
    else
        offered=$own
    fi
"""


def _bash(commands: list[Command]) -> str:
    paths, offers, takes = _cases(commands)
    walk = _WALK.format(paths=paths, offers=offers, takes=takes)
    return f"""\
_langchain_dp() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=() word i IFS=$' \\t\\n'
    for ((i = 1; i < COMP_CWORD; i++)); do
        # Readline cuts --name=value at the sign.
        [ "${{COMP_WORDS[i]}}" = '=' ] || before+=("${{COMP_WORDS[i]}}")
    done
    [ "$current" = '=' ] && current=''
{walk}\
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
    if [ "$files" = 1 ]; then
        IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$current"))
        compopt -o filenames 2>/dev/null
    fi
}}
complete -F _langchain_dp {PROGRAM}
"""


def _zsh(commands: list[Command]) -> str:
    paths, offers, takes = _cases(commands)
    walk = _WALK.format(paths=paths, offers=offers, takes=takes)
    return f"""\
_langchain_dp_complete() {{
    local current=${{PREFIX#--*=}} word
    local -a before
    before=("${{(@)words[2,CURRENT-1]}}")
    case $PREFIX in --*=*) before+=("${{PREFIX%%=*}}"); compset -P '*=' ;; esac
    _langchain_dp_walk
}}
_langchain_dp_walk() {{
{walk}\
    compadd -- ${{=offered}}
    [ "$files" = 1 ] && _files
    return 0
}}
if [ "${{funcstack[1]}}" = _langchain_dp ]; then
    _langchain_dp_complete
else
    compdef _langchain_dp_complete {PROGRAM}
fi
"""


# -------------------------------------------------------------------------------------------------------------- fish


def _fish(commands: list[Command]) -> str:
    paths = " ".join(_quoted(" ".join((*each.path, name))) for each in commands for name in each.commands)
    lines = [
        "function __langchain_dp_at --description 'whether the command typed so far is the one given'",
        "    set -l path ''",
        "    for word in (commandline -opc)[2..-1]",
        '        set -l next (string trim -- "$path $word")',
        f"        contains -- $next {paths}; and set path $next",
        "    end",
        '    test "$path" = "$argv"',
        "end",
        f"complete -c {PROGRAM} -f",
    ]
    for command in commands:
        begins = f"complete -c {PROGRAM} -n {_quoted('__langchain_dp_at ' + _quoted(' '.join(command.path)))}"
        lines += [f"{begins} -a {_quoted(name)} -d {_quoted(said)}" for name, said in command.commands.items()]
        if command.argument:
            lines.append(begins + _fish_value(command.argument, required=False))
        for name, (said, value) in command.options.items():
            lines.append(f"{begins} -l {name[2:]} -d {_quoted(said)}{_fish_value(value) if value.most else ''}")
    return "\n".join(lines) + "\n"


def _fish_value(value: Value, *, required: bool = True) -> str:
    needs = (" -r -F" if value.files else " -x") if required else " -F" if value.files else ""
    return needs + (f" -a {_quoted(' '.join(value.words))}" if value.words else "")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
