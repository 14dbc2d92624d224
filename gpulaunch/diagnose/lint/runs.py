"""Which file a command runs: the script behind `python`, `torchrun`, `bash`, `papermill` ...

Only what is named there: what an installed command runs is its own authors' business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.diagnose.lint.finding import NO_OPTIONS, IndexOptions
from gpulaunch.diagnose.lint.options import settings

Kind: TypeAlias = Literal["file", "python", "shell", "notebook", "module", "code"]


class ProgramRun(Struct, frozen=True):
    """`what` is a path, a module's name (module) or a program's text (code).

    `options` are those that its arguments set. `cwd` is relative
    to the job's, or starts with `<script>`: where the script stands in which this was found.
    `last`: the job ends when the file does, with its status, and no option has the file end at the
    first failure.
    """

    kind: Kind
    what: str
    options: IndexOptions = NO_OPTIONS
    cwd: str = "."
    number: int = 0
    last: bool = False


# fmt: off
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*|ipython3?")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "source", "."})
_LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "kernprof", "horovodrun", "streamlit", "pytest",
    "py.test", "mprof", "scalene", "viztracer", "py-spy",
})
_NOTEBOOKS = frozenset({"papermill", "jupyter", "jupyter-nbconvert", "jupyter-execute"})
_RUN_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "cProfile",
    "pdb", "debugpy", "kernprof", "trace", "coverage", "viztracer", "torch.utils.bottleneck",
})
_WRAPPERS = frozenset({
    "srun", "mpirun", "mpiexec", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm",
    "nsys", "ncu", "apptainer", "singularity", "xvfb-run", "hatch", "pixi", "rye", "numactl",
    "coverage", "gdb", "valgrind", "perf", "strace", "catchsegv", "script", "dbus-run-session",
})
# fmt: on
_UNDERSTOOD = re.compile(
    r"-[bBdEiIOPqsSuvxeu]+|-[WX].*|--|-o|-eo|-euo|-euxo|--check-hash-based-pycs|-l|--login"
)
_ERREXIT = re.compile(r"-[a-z]*e|errexit")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs", "-o", "-eo", "-euo", "-euxo"})
_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def runs(
    words: Sequence[str | None], cwd: str, handed: bool = False, more: bool = False
) -> Iterator[ProgramRun]:
    """Yield what a command's words run, program first. `handed` and `more`: see Options."""
    start = _start(words)
    if start is not None and start[1] == "module" and start[2] in _RUN_MODULES:
        start = _of_launcher(words, start[0] + 1)
    if start is None:
        return
    number, kind, what = start
    rest = words[number + 1 :]
    given = frozenset(option for _, option, _ in settings(["", *rest]))
    given |= {word.lstrip("-").replace("-", "_") for word in rest if word and word[:1] == "-"}
    own = words[0] not in ("source", ".") and not any(
        _ERREXIT.match(word or "") for word in words[1:number]
    )
    yield ProgramRun(kind, what, IndexOptions(given, handed, more), cwd, number, own)


def _start(words: Sequence[str | None]) -> tuple[int, Kind, str] | None:
    """Where the script's name stands, its kind and what it is."""
    for number, word in enumerate(words[:40]):
        if word is None and number == 0:
            return None
        if word is None:
            continue
        name = word.rpartition("/")[2]
        if _PYTHON.fullmatch(name):
            return _of_python(words, number + 1)
        if name in _SHELLS and number == 0:
            return _of_shell(words, number + 1)
        if name in _LAUNCHERS:
            return _of_launcher(words, number + 1)
        if name in _NOTEBOOKS:
            notebooks = (at for at, one in enumerate(words) if one and one.endswith(".ipynb"))
            at = next((at for at in notebooks if at > number), None)
            return (at, "notebook", words[at] or "") if at is not None else None
        if number == 0 and name not in _WRAPPERS:
            if word.endswith(".py"):
                return number, "python", word
            return (number, "file", word) if "/" in word else None
        if number and word.endswith(".py"):
            return number, "python", word
        if number and name in ("bash", "sh"):
            return _of_shell(words, number + 1)
    return None


def _of_python(words: Sequence[str | None], at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None:
            return None
        if word in ("-m", "-c"):
            what = words[at + 1] if at + 1 < len(words) else None
            kind: Kind = "module" if word == "-m" else "code"
            return None if what is None else (at + 1, kind, what)
        if not word.startswith("-"):
            return at, "python", word
        if word == "-":
            return None
        at += 2 if word in _VALUED else 1
    return None


def _of_shell(words: Sequence[str | None], at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None or re.fullmatch(r"-[a-z]*c", word):
            return None
        if not word.startswith(("-", "+")):
            return at, "shell", word
        at += 2 if word in ("-o", "+o", "-eo") or re.fullmatch(r"-[a-z]*o", word) else 1
    return None


def _of_launcher(words: Sequence[str | None], at: int) -> tuple[int, Kind, str] | None:
    """Return the first script; or the module behind `-m`."""
    for number in range(at, len(words)):
        word = words[number]
        if word in ("-m", "--module") and number + 1 < len(words):
            what = words[number + 1]
            return None if what is None else (number + 1, "module", what)
        if word and word.endswith(".py"):
            return number, "python", word
    return None


def of_interpreter(words: Sequence[str | None], number: int) -> bool:
    """Tell whether every word between an interpreter and its script is a known option."""
    valued = False
    for word in words[1:number]:
        if word is None:
            return False
        if not valued and not _UNDERSTOOD.fullmatch(word):
            return False
        valued = not valued and word in _WITH_VALUE
    return not valued
