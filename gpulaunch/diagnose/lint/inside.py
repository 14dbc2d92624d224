"""Which words of a command are commands themselves: `sh -c '...'`, `parallel '...' ::: 0 1`.

Two measures. What a shell is given (`sh -c`, `eval`) is a script and is read as one. Of every other
program only what speaks of the mask counts: `tmux new -d '...'`, `docker run -e ...`, `ssh HOST`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from gpulaunch.diagnose.lint.wording import MASK
from gpulaunch.jobfile.values import SHELLS

DEEPEST = 4
"""Commands in a string of a command in a string ..."""

_RUNS_A_STRING = re.compile(r"-[a-z]*c")
_SOURCES = (":::", "::::", ":::+", "::::+")
_GIVEN = re.compile(r"(?:-e|--[\w-]+=)?(?:[A-Za-z]\w*(?:=[^,\s]*)?,)*(?=CUDA_VISIBLE_DEVICES=)")
_INTO_A_SHELL = re.compile(
    r"[ \t]*\|&?[ \t]*(?:sudo[ \t]+|nohup[ \t]+)?(?:\S*/)?(?:bash|sh|zsh|parallel|at|batch|xargs)\b"
)
_HERE = re.compile(
    r"[^\n;|&()]*?(?<!<)<<(?!<)(?P<tabs>-?)[ \t]*"
    r"(?:'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|\\?(?P<bare>[\w.-]+))"
)
_VALUED = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


def scripts(program: str, words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (number of the word, its script) of a command's arguments: the text handed on."""
    if program in SHELLS:
        flags = [at for at, word in enumerate(words[:-1]) if _RUNS_A_STRING.fullmatch(word)]
        if flags:
            yield flags[0] + 1, words[flags[0] + 1]
        return
    if program == "eval" and words:
        yield 0, " ".join(words)
        return
    for at, word in enumerate(words):
        if MASK in word:
            handed = takewhile(lambda one: one not in _SOURCES, words[at:])
            yield at, _GIVEN.sub("", " ".join(handed), count=1)
            return


def here_document(
    script: str, start: int, program: str, words: Sequence[str]
) -> tuple[int, str] | None:
    """Return where the here-document of the command at `start` begins, and its text.

    None where no shell reads it as a script.
    """
    found = _HERE.match(script, start)
    if found is None:
        return None
    printed = program == "cat" and not words and reaches_a_shell(script, found.end())
    if not (printed or (program in SHELLS and _reads_its_input(words))):
        return None
    begin = script.find("\n", found.end()) + 1
    mark = found["single"] or found["double"] or found["bare"]
    tabs = r"\t*" if found["tabs"] else ""
    end = re.compile(rf"^{tabs}{re.escape(mark)}$", re.MULTILINE).search(script, begin)
    return (begin, script[begin : end.start() if end else None]) if begin else None


def _reads_its_input(words: Sequence[str]) -> bool:
    """Tell whether a shell with these words takes its commands from standard input."""
    at = 0
    while at < len(words) and words[at][:1] in ("-", "+") and words[at] not in ("-", "--"):
        if not words[at].startswith("--") and "s" in words[at]:
            return True
        if _RUNS_A_STRING.fullmatch(words[at]):
            return False
        at += 2 if words[at] in _VALUED else 1
    return words[at:] in ([], ["-"], ["--"])


def reaches_a_shell(script: str, end: int) -> bool:
    """Tell whether what the command that ends there prints is then run: `echo ... | bash`."""
    return _INTO_A_SHELL.match(script, end) is not None
