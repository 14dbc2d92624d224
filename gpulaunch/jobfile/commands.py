"""Finds the simple commands of a shell script, as far as that works without running it.

    "if a; then FOO=1 nohup b x >log & fi"  ─▶  [a], [FOO=1 nohup b x], [fi]

For warnings, where precision comes first: what is quoted, expanded or written to a file by a
here-document is no command, and where the scanner loses its way it stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.jobfile.shell import BLANK, outline

_TOKEN = re.compile(
    r"(?P<end>\n|;+&?|&&|\|[|&]?|&(?!>))|(?P<open>\()|(?P<close>\))"
    r"|(?P<redirect>[0-9]*(?:&>>?|>>?[&|]?|<<<|<[&>]?))|(?P<word>[^\s;&|()<>]+)|[^\S\n]+"
)
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "coproc"})
# fmt: off
PREFIXES = frozenset({
    "exec", "nohup", "setsid", "nice", "ionice", "env", "command", "stdbuf", "time", "sudo",
    "timeout", "numactl", "taskset", "chrt", "xargs", "unbuffer",
})
"""Programs that start the one that their arguments name."""
BUILTINS = frozenset({
    "!", ".", ":", "[", "[[", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd",
    "command", "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown",
    "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exec", "exit", "export",
    "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history", "if", "in",
    "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read",
    "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend",
    "test", "then", "time", "times", "trap", "true", "type", "typeset", "ulimit", "umask",
    "unalias", "unset", "until", "wait", "while", "{", "}", "((",
})
# fmt: on
"""The words that bash runs itself: builtins and keywords."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_PROGRAM = re.compile(r"[\w./+@%:-]+", re.ASCII)
_OF_PREFIX = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|\{\}")


@dataclass(frozen=True, slots=True)
class Word:
    """A word from `start` to `end` of a script; `text` has BLANK for what is not plain."""

    text: str
    start: int
    end: int

    @property
    def program(self) -> str:
        """The name of the program that it may be, without its directory."""
        return self.text.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command: `assignments`, its own name (after `nohup`, `env` ...) and its arguments.

    `before` are those other programs and their options.
    """

    assignments: tuple[Word, ...]
    name: Word | None
    arguments: tuple[Word, ...]
    before: tuple[Word, ...] = ()

    @property
    def program(self) -> str:
        return self.name.program if self.name else ""


def commands_in(script: str, dialect: str) -> Iterator[ShellCommand]:
    """Yield a script's commands, in the order in which they end."""
    outer: list[list[Word]] = []
    words: list[Word] = []
    target = False
    for match in _TOKEN.finditer(outline(script, dialect)):
        kind = match.lastgroup
        if kind == "word" and not target:
            words.append(Word(match.group(), match.start(), match.end()))
        if kind == "end":
            yield command_of(words)
            words = []
        elif kind == "open":
            outer.append(words)
            words = []
        elif kind == "close" and not outer:
            words = []  # the pattern of a `case`
        elif kind == "close":
            yield command_of(words)
            words = outer.pop()
            if script[match.start() - 1] == "(":
                words = []  # `f()` before a function's body
        if kind is not None:
            target = kind == "redirect"
    yield command_of(words)


def command_of(words: Sequence[Word]) -> ShellCommand:
    """Return the command of these words, without leading keywords."""
    at = 0
    while at < len(words) and words[at].text in _KEYWORDS:
        at += 1
    assignments: list[Word] = []
    before: list[Word] = []
    for number in range(at, len(words)):
        word = words[number]
        if _ASSIGNMENT.match(word.text):
            assignments.append(word)
        elif word.program in PREFIXES or (before and _OF_PREFIX.fullmatch(word.text)):
            before.append(word)
        else:
            return ShellCommand(tuple(assignments), word, tuple(words[number + 1 :]), tuple(before))
    return ShellCommand(tuple(assignments), None, (), tuple(before))


def first_program(script: str, environ: Mapping[str, str]) -> str:
    """Return the program that a bash script starts first; empty if uncertain, or bash itself.

    What the shell inherits as a function is none; where the script defines functions, nobody knows.
    """
    command = next(commands_in(script, "bash"), None)
    if command is None or command.name is None or "(" in outline(script, "bash"):
        return ""
    name = command.name
    typed = script[name.start : name.end]
    inherited = f"BASH_FUNC_{typed}%%" in environ
    if any(script.startswith("PATH=", word.start) for word in command.assignments):
        return ""
    plain = BLANK not in name.text and _PROGRAM.fullmatch(typed)
    return typed if plain and typed not in BUILTINS and not inherited else ""
