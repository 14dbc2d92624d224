"""Reads a plain list of commands, one a line, as the tree that a job file with them would have.

    text ─▶ commands, each with its place ─▶ {jobs: [{name, run}, ...]}

Tells such a list from a job file. Each command is what a `run:` string is, with a shell of its own,
and gives its job its name. Says what a line cannot mean, where that is certain: what may be meant,
and goes wrong, shows when the job runs.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from posixpath import splitext

from msgspec import Struct

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.commands import PREFIXES, sets_mask
from gpulaunch.jobfile.file_keys import TOP
from gpulaunch.jobfile.shell import BLANK, commands_in, left_open, outline
from gpulaunch.jobfile.source import JobFileText
from gpulaunch.jobfile.tree import YamlNode, place_at

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


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────

MAX_WORDS = 60
"""Characters of a name that say what the command is."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
_SCRIPT_SUFFIXES = frozenset({".py", ".sh", ".R", ".jl", ".pl"})
_RUNNERS = _SHELLS | {"python", "torchrun", "Rscript", "julia", "perl"}
"""Programs whose first argument says more than they do."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_KEPT = re.compile(r"[^\w.=+,%@:-]+")


def stem_of(command: Sequence[str]) -> str:
    """Return what a command's job is called: its script's name, or its program's."""
    words = command[0].split() if len(command) == 1 else list(command)
    if "-c" in words[1:3] and Path(words[0]).name in _SHELLS:
        words = words[words.index("-c") + 1].split()
    names = [Path(word).name for word in words if not word.startswith("-") and "=" not in word]
    is_code = not {"-c", "-e"}.isdisjoint(words[1:3])  # python -c CODE has no script
    if len(names) > 1 and _is_runner(names[0]) and not is_code:
        scripts = [name for name in names[1:] if Path(name).suffix in _SCRIPT_SUFFIXES]
        names = scripts or names[1:]
    stem = names[0] if names else "job"
    stem = Path(stem).stem if Path(stem).suffix in _SCRIPT_SUFFIXES else stem
    clean = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in stem)
    return clean.strip("._-")[:60] or "job"


def names_of(commands: Sequence[str]) -> list[str]:
    """Return a name for each command of a list: `train-lr-1e-3-seed-0-k3f9a2bc`.

    A name is that of the command, wherever it stands and whatever stands beside it: what has run is
    known by it when the list has other lines. Its words are for people; eight characters of the
    command's SHA-256 tell it from all others. The same command again gets a number behind it.
    """
    counted: Counter[str] = Counter()
    names = []
    for command in commands:
        name = f"{_words(command)}-{_mark(command)}"
        counted[name] += 1
        names.append(name if counted[name] == 1 else f"{name}-{counted[name]}")
    return names


def _words(command: str) -> str:
    """Return the command's words, as they stand in a name; the middle of many is left out."""
    words = command.replace("\\\n", " ").split()
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in PREFIXES):
        words.pop(0)
    if len(words) > 1 and _is_runner(words[0].rpartition("/")[2]):
        words.pop(0)
    if words and (ending := splitext(words[0])[1]) in _SCRIPT_SUFFIXES:
        words[0] = words[0].removesuffix(ending)
    plain = (_KEPT.sub("_", _last(word.strip("'\""))).strip("._-:=") for word in words)
    name = "-".join(filter(None, plain))
    if len(name) > MAX_WORDS:
        # The program is at the beginning, and what sets one from the next is often at the end.
        name = f"{name[:24].rstrip('._-')}..{name[-34:].lstrip('._-')}"
    return name.encode()[:150].decode(errors="ignore") or "job"


def _last(word: str) -> str:
    """Return a path's last part, also of `--out=a/b` and of `a/b/`."""
    option, equals, value = word.rpartition("=")
    return f"{option.rpartition('/')[2]}{equals}{value.rstrip('/').rpartition('/')[2]}"


def _mark(command: str) -> str:
    digest = hashlib.sha256(command.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest[:5]).decode().lower()


def _is_runner(program: str) -> bool:
    return program.rstrip("0123456789.") in _RUNNERS


# ── The list ──────────────────────────────────────────────────────────────────────────────────────

YAML = frozenset({".yaml", ".yml", ".json"})
"""Endings of a job file's name. What has another one is looked at."""
_KEYS = "|".join(TOP)
_JOB_FILE = re.compile(rf"^(?:([\"']?)(?:{_KEYS})\1[ \t]*:(?=\s|$)|---(?=\s|$)|%YAML )", re.M)
_IN_BRACES = re.compile(rf"\s*(?:#[^\n]*\n\s*)*\{{\s*([\"']?)(?:{_KEYS})\1\s*:")
_SCRIPTS = {
    ".sh": "a shell script",
    ".bash": "a shell script",
    ".zsh": "a shell script",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".r": "an R program",
    ".jl": "a Julia program",
    ".pl": "a Perl program",
}


class ListedCommand(Struct, frozen=True):
    """A command of a list, as typed; continued lines keep their backslashes. `at`: its place."""

    text: str
    at: int


def is_list(name: str, data: bytes) -> bool:
    """Tell whether a text, right or wrong, is a list of commands, rather than a job file.

    By its name, `jobs.yaml`, or else because no line begins with a key of a job file (`jobs:`): no
    program is called so.
    """
    if PurePath(name).suffix.lower() in YAML:
        return False
    text = data.decode("utf-8-sig", "replace")
    return not (_JOB_FILE.search(text) or _IN_BRACES.match(text))


def parse(source: JobFileText) -> tuple[YamlNode, list[tuple[int, str]]]:
    """Return the tree of a job file or of a list, and mistakes that did not prevent it.

    Raises JobFileError with the one mistake at which reading had to stop.
    """
    if not source.is_list:
        return tree.parse(source)
    _refuse_script(source)
    commands = list(listed_commands(source.lines))
    if (one := next((one for one in commands if is_yaml(one.text)), None)) is not None:
        raise JobFileError([source.mistake(*tree.place(one.at), NO_JOB_FILE)])
    found = [(one.at, why) for one in commands for why in mistakes_of(one.text)]
    wrong = {at for at, _ in found}
    named = zip(commands, names_of([one.text for one in commands]), strict=True)
    entries = [_entry(one, name) for one, name in named if one.at not in wrong]
    return YamlNode(0, {"jobs": YamlNode(0, entries)}), found


def _entry(command: ListedCommand, name: str) -> YamlNode:
    at = command.at
    return YamlNode(at, {"name": YamlNode(at, name), "run": YamlNode(at, command.text)}, size=3)


def listed_commands(lines: list[str]) -> Iterator[ListedCommand]:
    """Yield the commands of a list's lines, without comments and blank lines."""
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [line]
        while _goes_on(parts[-1]) and number < len(lines):
            parts.append(lines[number])
            number += 1
        text = "\n".join(parts).strip()
        yield ListedCommand(text, place_at(first, len(line) - len(line.lstrip())))


def complete(data: bytes) -> bytes:
    """Return a growing list's text up to the last line that is whole, and is not to go on."""
    end = data.rfind(b"\n") + 1
    while end and _goes_on(data[:end].rstrip(b"\r\n")[-1000:].decode(errors="replace")):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return data[:end]


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _refuse_script(source: JobFileText) -> None:
    """Raise an error for a program: what its lines do, they do together."""
    what = _SCRIPTS.get(PurePath(source.name).suffix.lower(), "")
    if source.text.startswith("#!"):
        what = "a script"
    if not what:
        return
    why = (
        f"this is {what}, whose lines belong together, and a list has a command of its own in each;"
        f" gpulaunch init {source.name} replaces the masks of a shell script; gpulaunch exec runs"
        " any script"
    )
    raise JobFileError([source.mistake(0, 0, why)])
