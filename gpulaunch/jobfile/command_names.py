"""Names jobs after their commands, for commands that nobody named."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from posixpath import splitext

from gpulaunch.jobfile.commands import PREFIXES

MAX_WORDS = 60
"""Characters of a name that say what the command is."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
_SCRIPTS = frozenset({".py", ".sh", ".R", ".jl", ".pl"})
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
        scripts = [name for name in names[1:] if Path(name).suffix in _SCRIPTS]
        names = scripts or names[1:]
    stem = names[0] if names else "job"
    stem = Path(stem).stem if Path(stem).suffix in _SCRIPTS else stem
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
    if words and (ending := splitext(words[0])[1]) in _SCRIPTS:
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
