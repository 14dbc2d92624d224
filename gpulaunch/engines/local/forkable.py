"""Finds out whether a preload server can fork a command, and which server that needs.

    [igfold, fold, x.fasta]  ─▶ igfold in the job's PATH ─▶ its #! line ─▶ python, script, arguments
    "python a.py x"          ─▶ one simple command ─────────▶ likewise
    "cd x && python a.py"    ─▶ no: a shell has to run it

Programs are found as exec and the shell would find them. A command that is not understood starts
cold: `Cold` says why. Reads the first line of files; starts nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gpulaunch.jobfile.shell import literal_words
from gpulaunch.process.command import Main

PLAIN_SHELL = ("bash", "-eo", "pipefail", "-c")
EARLY = (
    "PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_",
    "BLIS_", "NUMEXPR_", "VECLIB_", "LANG", "LC_", "TZ", "TORCH", "PYTORCH", "CUDA_", "CUDNN_",
    "CUBLAS_", "NVIDIA_", "NCCL_", "XLA_", "TF_", "JAX_", "HIP_", "ROCR_", "HSA_", "ZE_",
)  # fmt: skip
"""Prefixes of variables that C code may read when it is loaded, which Python cannot notice."""

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PYTHON = re.compile(r"python[0-9.]*t?")
_SHIM = re.compile(rb'#!/bin/sh\nexec "([^"$`\\\n]+)" "\$@"\n')
_LONG = re.compile(rb"#!/bin/sh\n'''exec' (\"?)([^\"'$`\\\n]+?)\1 \"\$0\" \"\$@\"\n' '''")
_LONE = frozenset("bBOPqRsu")
_SETTINGS = frozenset(
    {"dev", "utf8", "faulthandler", "no_debug_ranges", "int_max_str_digits", "pycache_prefix"}
)
_REFUSED = ("PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME", "PYTHONDUMPREFS")
_NOT_READ = frozenset("EIS")


class Cold(Exception):
    """Why a command cannot be forked, in words."""


@dataclass(frozen=True, slots=True)
class Forkable:
    """A command that a preload server can fork.

    The server is the file `python`, executed with `start` as its name and options, on `target`
    (the script or `-m module`). `main`: the command line and variables of the forked job.
    """

    python: str
    start: tuple[str, ...]
    target: tuple[str, ...]
    main: Main = field(repr=False)


Words: TypeAlias = Sequence[str]


def forkable(argv: Words, cwd: str, env: Mapping[str, str], by_shell: bool) -> Forkable:
    """Return the forkable command that `argv` amounts to. Raises Cold where there is none.

    `by_shell`: the last of `argv` is a script for the shell before it.
    """
    extra: dict[str, str] = {}
    exec_ = False
    if by_shell:
        argv, extra, exec_ = _simple(argv, env)
    for name in _REFUSED:
        if {**env, **extra}.get(name):
            raise Cold(f"{name} is set")
    finder = _Finder(cwd, {**env, **extra})
    place = finder.program(argv[0])
    if by_shell:
        extra |= _of_shell({**env, **extra}, cwd) | ({} if exec_ else {"_": place})
    return finder.forkable(argv, place, extra)


# ── The shell's part ────────────────────────────────────────────────────────────────────────────


def _simple(argv: Words, env: Mapping[str, str]) -> tuple[list[str], dict[str, str], bool]:
    """Return the words of a script that is one command, the variables that it sets for this
    command, and whether it begins with `exec`. Raises Cold for other scripts."""
    if tuple(argv[:-1]) != PLAIN_SHELL:
        raise Cold(f"a shell of its own ({argv[0]}) runs it")
    if any(name.startswith("BASH_FUNC_") for name in env):
        raise Cold("the environment holds functions of the shell")
    words = literal_words(argv[-1].strip())
    if not words:
        raise Cold("a shell has to run it: it is more than one command of plain words")
    extra: dict[str, str] = {}
    exec_ = False
    while words and _ASSIGNED.match(words[0][0]):
        name, _, value = words.pop(0)[1].partition("=")
        extra[name] = value
    if words and words[0][0] == "exec" and not extra:
        words.pop(0)
        exec_ = True
    if not words or words[0][1].startswith("-"):
        raise Cold("it is no command of a program")
    return [word for _, word in words], extra, exec_


def _of_shell(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Return the variables that bash sets for a command that it replaces itself by."""
    here = env.get("PWD", "")
    try:
        stays = here.startswith("/") and os.path.samefile(here, cwd)
    except OSError:
        stays = False
    level = env.get("SHLVL", "0")
    return {
        "PWD": here if stays else os.path.realpath(cwd),
        "SHLVL": level if level.isdigit() else "0",
    }


# ── The kernel's and the interpreter's part ─────────────────────────────────────────────────────


class _Finder:
    def __init__(self, cwd: str, env: Mapping[str, str]) -> None:
        self.cwd = cwd
        self.path = env.get("PATH", os.defpath)

    def program(self, name: str) -> str:
        """Return the file that exec would execute for this name. Raises Cold where none is."""
        places = [name] if "/" in name else [os.path.join(p, name) for p in self.path.split(":")]
        for place in places:
            whole = os.path.join(self.cwd, place)
            if os.path.isfile(whole) and os.access(whole, os.X_OK):
                return whole if "/" not in name else name
        raise Cold(f"{name} is not found")

    def forkable(self, argv: Words, place: str, extra: Mapping[str, str]) -> Forkable:
        head = self.head(place)
        name = os.path.basename(place)
        if self.is_python(place, head):
            return self.of_python(place, argv[0], argv[1:], name, extra)
        if shim := _SHIM.fullmatch(head):
            python = os.fsdecode(shim.group(1))
            name = os.path.basename(python)
            return self.of_python(self.interpreter(python), python, argv[1:], name, extra)
        if long := _LONG.match(head):
            python = os.fsdecode(long.group(2))
            words = [place, *argv[1:]]
            name = os.path.basename(python)
            return self.of_python(self.interpreter(python), python, words, name, extra)
        if head.startswith(b"#!") and _PYTHON.fullmatch(name):
            raise Cold(f"{place} is a script that looks for a Python: name one with python:")
        if head.startswith(b"#!"):
            python, shown, options = self.shebang(place, head)
            if not options and os.path.basename(shown) == shown:  # env has replaced itself
                name = shown
            return self.of_python(python, shown, [*options, place, *argv[1:]], name, extra)
        raise Cold(f"{name} is no program of Python")

    def head(self, place: str) -> bytes:
        try:
            with open(os.path.join(self.cwd, place), "rb") as file:
                return file.read(1024)
        except OSError as problem:
            raise Cold(f"{place} cannot be read: {problem.strerror}") from None

    def is_python(self, place: str, head: bytes) -> bool:
        if not head.startswith(b"\x7fELF"):
            return False
        names = (os.path.basename(place), os.path.basename(os.path.realpath(place)))
        return any(_PYTHON.fullmatch(name) for name in names)

    def interpreter(self, python: str) -> str:
        if not python.startswith("/") or not self.is_python(python, self.head(python)):
            raise Cold(f"{python} is no interpreter of Python")
        return python

    def shebang(self, place: str, head: bytes) -> tuple[str, str, list[str]]:
        """Return the interpreter that a #! line leads to, its first argument, and its options.

        The kernel gives an interpreter the rest of the line as one word.
        """
        line = os.fsdecode(head[2:].partition(b"\n")[0]).strip(" \t")
        program, _, rest = line.replace("\t", " ").partition(" ")
        rest = rest.strip()
        if os.path.basename(program) != "env":
            return self.interpreter(program), program, [rest] if rest else []
        if not _PYTHON.fullmatch(rest):
            raise Cold(f"{os.path.basename(place)} is no program of Python")
        found = self.program(rest)
        if shim := _SHIM.fullmatch(self.head(found)):
            python = os.fsdecode(shim.group(1))
            return self.interpreter(python), python, []
        return self.interpreter(found), rest, []

    def of_python(
        self, python: str, shown: str, words: Words, name: str, extra: Mapping[str, str]
    ) -> Forkable:
        count = _options(words)
        options, rest = tuple(words[:count]), tuple(words[count:])
        if not rest or rest[0] in ("-", "-c"):
            raise Cold("there is no script: the program is on the command line or in its input")
        size = 2 if rest[0] == "-m" else 1
        if len(rest) < size:
            raise Cold("-m names no module")
        target = rest[:size]
        if size == 1 and not os.path.exists(os.path.join(self.cwd, target[0])):
            raise Cold(f"there is no script {target[0]}")
        main = Main((shown, *words), rest[size:], name, extra)
        return Forkable(python, (shown, *options), target, main)


def _options(words: Words) -> int:
    """Return how many words are options of the interpreter. Raises Cold for one no server has."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-c", "-m"):
        word = words[at]
        at += 1
        if word.startswith("--"):
            raise Cold(f"a server cannot have python's option {word}")
        for number, letter in enumerate(word[1:], 1):
            if letter in "WX":
                value = word[number + 1 :]
                if not value:
                    value = words[at] if at < len(words) else ""
                    at += 1
                if letter == "X" and value.partition("=")[0] not in _SETTINGS:
                    raise Cold(f"a server cannot have python's option -X {value}")
                break
            if letter in _NOT_READ:
                raise Cold(f"with python's option -{letter} no server can be made")
            if letter not in _LONE:
                raise Cold(f"a server cannot have python's option -{letter}")
    return at
