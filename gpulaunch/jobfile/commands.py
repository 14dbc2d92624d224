"""Finds the simple commands of a shell script, as far as that works without running it.

    "if a; then FOO=1 nohup b x >log & fi"  ─▶  [a], [FOO=1 nohup b x], [fi]

For warnings, where precision comes first: what is quoted, expanded or written to a file by a
here-document is no command, and where the scanner loses its way it stops.

Two things are warned of and never refused: programs that only ask a daemon to start something,
which is then no descendant of the job and does not end with it; and commands that set the cards'
mask themselves. What else commands do with cards, and who is told, is the lint's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from gpulaunch.containers.lines import DAEMONS, image_in
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
_EXPANDED = re.compile(r"[$`\\*?\[]|\{\{")
_OF_PREFIX = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|\{\}")


class Word(Struct, frozen=True):
    """A word from `start` to `end` of a script; `text` has BLANK for what is not plain."""

    text: str
    start: int
    end: int

    @property
    def program(self) -> str:
        """The name of the program that it may be, without its directory."""
        return self.text.rpartition("/")[2]


class ShellCommand(Struct, frozen=True):
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


class ScriptPart(NamedTuple):
    """A command of a script. `end`: the operator after it, empty at the end of the script.

    `expanded`: the command stands in `$(...)` or `<(...)`.
    """

    command: ShellCommand
    end: str
    expanded: bool


def commands_in(script: str, dialect: str) -> Iterator[ShellCommand]:
    """Yield a script's commands, in the order in which they end."""
    return (part.command for part in parts_in(script, dialect))


def parts_in(script: str, dialect: str) -> Iterator[ScriptPart]:
    """Yield a script's commands with what joins them, in the order in which they end."""
    outer: list[tuple[list[Word], bool]] = []
    words: list[Word] = []
    target = expanded = False
    for match in _TOKEN.finditer(outline(script, dialect)):
        kind = match.lastgroup
        if kind == "word" and not target:
            words.append(Word(match.group(), match.start(), match.end()))
        if kind == "end":
            yield ScriptPart(command_of(words), match.group(), expanded)
            words = []
        elif kind == "open":
            outer.append((words, expanded))
            words = []
            expanded = expanded or script[match.start() - 1 : match.start()] in ("$", "<", ">")
        elif kind == "close" and not outer:
            words = []  # the pattern of a `case`
        elif kind == "close":
            yield ScriptPart(command_of(words), ")", expanded)
            words, expanded = outer.pop()
            if script[match.start() - 1] == "(":
                words = []  # `f()` before a function's body
        if kind is not None:
            target = kind == "redirect"
    yield ScriptPart(command_of(words), "", expanded)


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


# ── what is warned of ───────────────────────────────────────────────────────────────────────────

MASK = "CUDA_VISIBLE_DEVICES"
_MASKS = frozenset({MASK, f"APPTAINERENV_{MASK}", f"SINGULARITYENV_{MASK}"})
_HARMLESS = re.compile(r"-1|NoDevFiles|(\{\{[ \t]*(gpu_index|gpu_uuid)[ \t]*\}\},?)*")
SETTERS = frozenset({"export", "declare", "typeset", "readonly", "local"})
"""Builtins whose arguments are assignments."""
_STARTS = frozenset({"run", "exec", "start", "restart", "up"})
_GROUPS = frozenset({"compose", "container"})
# fmt: off
_TMUX = frozenset({
    "new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys",
    "respawnp", "respawn-pane", "respawnw", "respawn-window", "run", "run-shell",
})
# fmt: on
_WORDS = {
    "slurm": "has Slurm start it, not this job: it does not end with the job, and runs on cards"
    " that Slurm chooses; run the program itself",
    "queue": "has another batch system start it, not this job: it does not end with the job, and"
    " runs on cards of its own; run the program itself",
    "terminal": "has its own server run it, not this job: the job ends at once while the work goes"
    " on outside; run the program itself",
    "later": "has a daemon start it later: it does not end with the job, nor have its cards",
    "systemd": "has systemd start it, not this job: it does not end with the job",
    "container": "has a daemon start it, not this job: it does not end with the job and does not"
    " see the job's cards alone",
}
"""What each kind of daemon does, behind the name of the command that asks it."""


class CommandWarning(NamedTuple):
    """`word` is what to point at. `kind`: daemon, in which case there is a message, or mask."""

    kind: str
    word: Word
    message: str = ""


def warnings_of(command: ShellCommand, typed: Callable[[Word], str]) -> Iterator[CommandWarning]:
    """Yield the warnings of one command. `typed` is a word as in the text, with its quotes."""
    program = command.program
    kind, said = daemon_of(program, [word.text for word in command.arguments])
    if command.name and kind:
        words = [command.name.text, *(plain(typed(word)) for word in command.arguments)]
        mend = f"; {use_container(image_in(words))}" if kind == "container" else ""
        yield CommandWarning("daemon", command.name, f"{said} {_WORDS[kind]}{mend}")
    for word in (*command.assignments, *(command.arguments if program in SETTERS else ())):
        if sets_mask(typed(word)):
            yield CommandWarning("mask", word)
    for word in command.arguments if program == "unset" else ():
        if word.text == MASK:
            yield CommandWarning("mask", word)


def plain(typed: str) -> str | None:
    """Return a word without its quotes; None where the shell, or an item, makes another of it."""
    return None if _EXPANDED.search(typed) else typed.replace("'", "").replace('"', "")


def use_container(image: str) -> str:
    """Return what to write in place of a command that starts a container, in words."""
    return f"write container: {image or 'IMAGE'} and run: COMMAND in the job file"


def sets_mask(typed: str) -> bool:
    name, equals, value = typed.partition("=")
    if name not in _MASKS or not equals:
        return False
    bare = value.strip("'\"")
    return not (_HARMLESS.fullmatch(bare) or MASK in bare or "GPULAUNCH_" in bare)


def daemon_of(program: str, arguments: Sequence[str]) -> tuple[str, str]:
    """Return the kind of daemon that a command asks to start processes, which are then not the
    job's, and how the command is called; ("", "") where they are its own.
    """
    if program in DAEMONS:
        verb = _verb(arguments)
        return ("container", f"{program} {verb}") if verb else ("", "")
    asks = {
        "slurm": program in ("sbatch", "srun", "salloc"),
        "queue": program in ("qsub", "bsub"),
        "systemd": program == "systemd-run" and "--scope" not in arguments,
        "later": program == "batch" or (program in ("at", "tsp", "pueue") and bool(arguments)),
        "terminal": (program == "tmux" and not _TMUX.isdisjoint(arguments))
        or (program == "screen" and arguments[:1] not in ([], ["-ls"], ["-list"], ["-v"])),
    }
    kind = next((kind for kind, asked in asks.items() if asked), "")
    return kind, program if kind else ""


def _verb(arguments: Sequence[str]) -> str:
    """Return the subcommand that starts processes; empty for others, like `docker ps`.

    The value of an option may stand before it: `docker -H tcp://x run`.
    """
    words = [word for word in arguments if not word.startswith("-")]
    depth = 1 + bool(arguments and arguments[0].startswith("-"))
    depth += 2 * (not _GROUPS.isdisjoint(words[:depth]))
    return next((word for word in words[:depth] if word in _STARTS), "")
