"""What a line of a list of commands cannot mean, where each is a job with a shell of its own.

Only what is certain. What may be meant, and goes wrong, shows when the job runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulaunch.jobfile.commands import sets_mask
from gpulaunch.jobfile.shell import BLANK, commands_in, left_open, outline

_YAML = re.compile(r"-(?=\s|$)|[\"']?[A-Za-z][\w-]*[\"']?:(?=\s|$)")
_MASKED = re.compile(r"(?:[A-Za-z_]\w*=(?:\"[^\"]*\"|'[^']*'|[^\s\"';&|])*\s+)+(?=\S)", re.ASCII)
_ENDS = re.compile(r"(?:&|\||\\)\s*(?:#.*)?$")
_FIRST = re.compile(r"(?:[A-Za-z_]\w*=\S*\s+)*([^\s;&|()<>]+)", re.ASCII)
_WORD = re.compile(r"[^\s;&|()<>]+")
_FUNCTION = re.compile(r"(?:function\s|[\w:.-]+\s*\(\s*\))")
_CLOSERS = {
    **dict.fromkeys(("for", "while", "until", "select"), "done"),
    "if": "fi",
    "case": "esac",
    "{": "}",
    **dict.fromkeys(("do", "then", "else", "elif", "done", "fi", "esac", "}"), ""),
}
"""What ends that which a word begins; empty for what only stands further inside."""
_OF_THE_SHELL = frozenset(
    {
        *("cd", "pushd", "popd", "export", "source", ".", "alias", "unalias", "set", "unset"),
        *("shopt", "ulimit", "umask", "declare", "typeset", "readonly", "local", "module", "ml"),
    }
)
"""Commands that do nothing but change the shell which runs them."""
_SOURCES = frozenset({"source", "."})
_ACTIVATES = frozenset({"conda", "mamba", "micromamba"})
NO_JOB_FILE = (
    "this is no command but YAML, and no job file either: that has jobs: at the beginning of a"
    " line, or a name that ends in .yaml"
)
_SCRIPT = "; for a script, use gpulaunch init"
_OWN_SHELL = (
    "changes only the shell that runs it, and every line has one of its own: put it before the"
    " command (cd x && python train.py)"
)


def is_yaml(command: str) -> bool:
    """Tell whether a line of a list is one of a job file: no program is called `run:`, or `-`."""
    return _YAML.match(command) is not None


def mistakes_of(command: str) -> Iterator[str]:
    """Yield what is wrong with a command of a list, as far as that is certain."""
    if why := _unfinished(command):
        yield why
        return
    if _ENDS.search(command):
        yield from _at_the_end(command)
    masked = _MASKED.match(command)
    if masked and (mask := next(filter(sets_mask, masked.group().split()), "")):
        yield (
            f"{mask} chooses a card by hand, which another job may have: leave it out, every job"
            " gets a card of its own; gpulaunch init replaces all such lines"
        )
    yield from _of_the_shell(command)


def _unfinished(command: str) -> str:
    """Return why a command is only a part of one; empty if it is not."""
    if command[0] in "<>|&;":
        return f"{command[0]} begins no command"
    first = _FIRST.match(command)
    closer = _CLOSERS.get(first.group(1)) if first else None
    if closer is not None and (not closer or closer not in _WORD.findall(_code(command))):
        return f"a part of something that goes over several lines{_SCRIPT}"
    if command.startswith((")", ";;")) or (_FUNCTION.match(command) and "}" not in command):
        return f"a part of something that goes over several lines{_SCRIPT}"
    # Most commands have their quotation marks in pairs, which is seen without a scan.
    odd = any(command.count(mark) % 2 for mark in "'\"`")
    mark = left_open(command, "bash") if odd or "<<" in command else ""
    if mark == "<<":
        return f"a here-document goes over several lines{_SCRIPT}"
    if mark:
        return (
            f"the quotation mark {mark} is not closed in this line; end the line with \\ where the"
            " command goes on in the next"
        )
    return ""


def _at_the_end(command: str) -> Iterator[str]:
    code = _code(command).rstrip()
    if (len(command) - len(command.rstrip("\\"))) % 2:
        yield "ends in a backslash, and no line follows that it could go on with"
    elif code.endswith(("&&", "|")):
        end = "&&" if code.endswith("&&") else "|"
        yield f"ends in {end}: write \\ behind it where the command goes on in the next line"


def _of_the_shell(command: str) -> Iterator[str]:
    first = _FIRST.match(command)
    word = first.group(1) if first else ""
    known = word in _OF_THE_SHELL or word in _ACTIVATES or word == "wait" or "=" in word
    if not known:
        return
    found = [one for one in commands_in(command, "bash") if one.name or one.assignments]
    if [one.program for one in found] == ["wait"]:
        yield "there is nothing to wait for: the run ends when all its jobs have; leave it out"
    elif all(_only_changes_shell(one.program, [w.text for w in one.arguments]) for one in found):
        runs = "; what does a job's work is run, not sourced: bash FILE" * (word in _SOURCES)
        yield f"{_OWN_SHELL}{runs}{_SCRIPT}"


def _only_changes_shell(program: str, arguments: list[str]) -> bool:
    if program in _ACTIVATES:
        return arguments[:1] in (["activate"], ["deactivate"])
    return not program or program in _OF_THE_SHELL


def _code(command: str) -> str:
    return outline(command, "bash").replace(BLANK, "x")
