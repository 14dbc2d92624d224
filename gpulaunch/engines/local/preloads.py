"""The preload servers of a run, and which attempts are forked from them.

    Command ─▶ forkable? ─▶ a server that is like its cold start ─▶ importing: wait ─▶ it serves
                   └─no: cold                                         └─refused: cold

A server serves a job if it was started by the same command line up to the script's arguments, and
if every variable that its imports read has the same value in the job. An attempt that no server
can serve starts cold; the reason is noted once for each entry of the job file. Whether a command
can be forked is told without starting anything.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.agent.client import PROGRAM
from gpulaunch.core.model import Job
from gpulaunch.core.template import Text
from gpulaunch.engines.command import Command, Main
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import (
    CACHES,
    CHOSEN,
    KEEP,
    AttemptPlace,
    Delta,
    MachineLimits,
    delta,
)
from gpulaunch.engines.local.preload_client import (
    Preload,
    PreloadReady,
    PreloadServer,
    PreloadUnavailable,
)
from gpulaunch.jobfile.shell import literal_words

# ── Commands that can be forked ───────────────────────────────────────────────────────────────────

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
    main: Main = dataclasses.field(repr=False)


Words: TypeAlias = Sequence[str]


def forkable(argv: Words, cwd: str, env: Mapping[str, str], by_shell: bool) -> Forkable:
    """Return the forkable command that `argv` amounts to. Raises Cold where there is none.

        [igfold, fold, x.fasta]  ─▶ igfold in the job's PATH ─▶ its #! line ─▶ python, script, words
        "python a.py x"          ─▶ one simple command ─────────▶ likewise
        "cd x && python a.py"    ─▶ no: a shell has to run it

    Programs are found as exec and the shell would find them. A command that is not understood
    starts cold. Reads the first line of files; starts nothing. `by_shell`: the last of `argv` is a
    script for the shell before it.
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


# ── Servers ───────────────────────────────────────────────────────────────────────────────────────

MAX_SERVERS = 8
"""Servers of a run at once: each has the imported libraries in memory."""
OF_ENTRY = 4
"""Kinds of server for one entry of the job file: where each job has its own, nothing is shared."""
STARTS = 2
"""Starts of a server that ends by itself, before its jobs start cold."""
ATTEMPTS_OWN = ("GPULAUNCH_JOB", "GPULAUNCH_ATTEMPT", "GPULAUNCH_OUT", KEEP, "GPULAUNCH_LEASED")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
_UNREAD = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *CACHES})
"""Variables that are read only after the fork, when a card or its cache is first used."""

AUTO = ("auto",)
Key: TypeAlias = tuple[object, ...]


class ServerImporting(Exception):
    """The attempt's server is importing: launch again when `Preloads` calls `news`."""


class _Kind(Struct):
    """The jobs that one server could serve, and their servers. `cold`: why none serves them."""

    forkable: Forkable
    servers: list[PreloadServer] = field(default_factory=list)
    starts: int = 0
    cold: str = ""


class Preloads:
    """Owns the servers. `news` is called when attempts that waited may be launched again.

    `gone` is called with a server that serves no more.
    """

    def __init__(
        self,
        context: RunContext,
        news: Callable[[], None],
        gone: Callable[[PreloadServer], None],
    ) -> None:
        self._context = context
        self._news = news
        self._gone = gone
        self._kinds: dict[Key, _Kind] = {}
        self._of_entry: defaultdict[int, set[Key]] = defaultdict(set)
        self._noted: set[tuple[int, str]] = set()
        self._number = 0

    def served(self, job: Job, command: Command) -> tuple[PreloadServer | None, Command]:
        """Return the server that forks this attempt, and the command as it takes it.

        Without one (None) the attempt starts cold. Raises ServerImporting while it imports.
        """
        if job.preload and not job.worker:
            try:
                server, main = self._find(job, command)
            except Cold as cold:
                self._note_cold(job, str(cold))
            else:
                return server, replace(command, main=main)
        return None, command

    def began_cold(self, job: Job, server: PreloadServer, why: str, for_good: bool) -> None:
        """End a server whose job started cold after all, and note why.

        `for_good`: no other server is started for jobs of its kind.
        """
        self._note_cold(job, why)
        for kind in self._kinds.values():
            if server in kind.servers:
                kind.cold = why if for_good else kind.cold
                self._drop(kind, server)

    def _note_cold(self, job: Job, why: str) -> None:
        if (job.group, why) not in self._noted:
            self._noted.add((job.group, why))
            self._context.warn(job.name, f"preload: starts cold: {why}")

    def close(self) -> None:
        for kind in self._kinds.values():
            for server in kind.servers:
                self._end(server)

    # ── Which server ────────────────────────────────────────────────────────────────────────────

    def _find(self, job: Job, command: Command) -> tuple[PreloadServer, Main]:
        env = Delta(command.env_set, frozenset(command.env_unset)).over(self._context.base)
        by_shell = not isinstance(job.run, tuple)
        if command.hidden is not None:
            raise Cold("strict isolation needs an exec, which takes away the rights that it gave")
        found = forkable(command.argv, command.cwd, env, by_shell)
        env = {**env, **found.main.env}
        key = _key(found, job, command, env)
        known = self._of_entry[job.group]
        if key not in known and len(known) == OF_ENTRY:
            raise Cold(f"its siblings run {OF_ENTRY} other scripts, or in {OF_ENTRY} directories")
        known.add(key)
        kind = self._kinds.setdefault(key, _Kind(found))
        for server in kind.servers:
            if server.state == "importing":
                raise ServerImporting
            if server.state == "serves" and not _differing(server, env):
                return server, found.main
        if kind.cold:
            raise Cold(kind.cold)
        self._start(kind, job, command, env)
        raise ServerImporting

    def _start(self, kind: _Kind, job: Job, command: Command, env: Mapping[str, str]) -> None:
        alive = [s for k in self._kinds.values() for s in k.servers if s.state != "over"]
        if len(alive) >= MAX_SERVERS:
            names = {name for server in kind.servers for name in _differing(server, env)}
            why = f": imports read {', '.join(sorted(names)[:3])}, which differs" if names else ""
            raise Cold(f"{MAX_SERVERS} preload servers run already{why}")
        preload = Preload(
            python=kind.forkable.python,
            start=kind.forkable.start,
            target=kind.forkable.target,
            cwd=command.cwd,
            env=env,
            modules=None if job.preload == AUTO else job.preload,
            early=EARLY,
            own=_own(env),
        )
        self._number += 1
        folder = self._context.run.path / "preload"
        folder.mkdir(mode=0o700, exist_ok=True)
        log = _fresh(folder, self._number)
        programs = self._context.environments.programs
        server = PreloadServer(preload, log, self._context.base, programs)
        kind.servers.append(server)
        self._context.loop.watch(server.fileno(), lambda: self._hear(kind, server, job))

    # ── What servers say ────────────────────────────────────────────────────────────────────────

    def _hear(self, kind: _Kind, server: PreloadServer, job: Job) -> None:
        news = server.on_readable()
        if isinstance(news, PreloadReady):
            self._context.warn(job.name, in_words(kind.forkable.target, news))
        else:
            served = server.state == "serves"
            self._drop(kind, server)
            if isinstance(news, PreloadUnavailable):
                kind.cold = news.why
            else:
                kind.starts += 1
                again = served and kind.starts < STARTS
                kind.cold = "" if again else "its preload server ended"
        self._news()

    def _drop(self, kind: _Kind, server: PreloadServer) -> None:
        self._end(server)
        kind.servers.remove(server)
        self._gone(server)

    def _end(self, server: PreloadServer) -> None:
        if server.state != "over":
            self._context.loop.unwatch(server.fileno())
            server.close()


def in_words(target: tuple[str, ...], ready: PreloadReady) -> str:
    script = target[-1] if target[0] == "-m" else os.path.basename(target[0])
    text = f"preload: {', '.join(ready.modules)} for {script}, imported in {ready.seconds:.1f} s"
    if ready.left_out:
        text += "; left out " + ", ".join(f"{n} ({why})" for n, why in ready.left_out.items())
    return text


def _key(found: Forkable, job: Job, command: Command, env: Mapping[str, str]) -> Key:
    cards = (
        len(command.env_set.get("CUDA_VISIBLE_DEVICES", "").split(",")) if job.demand.gpus else 0
    )
    relative = [found.python, found.target[0], *env.get("PYTHONPATH", "/").split(":")]
    here = command.cwd if any(path[:1] != "/" for path in relative) else ""
    return (found.python, found.start, found.target, job.preload, here, cards)


def _own(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that differ from attempt to attempt."""
    chosen = env.get(CHOSEN, "").split(",")
    return (*ATTEMPTS_OWN, *(name for name in PORTS if name in chosen))


def _differing(server: PreloadServer, env: Mapping[str, str]) -> set[str]:
    """Return the variables that the server's imports read and that differ in the job."""
    names = set(server.reads)
    theirs = server.preload.env
    for name in {*theirs, *env}:
        if name.startswith(EARLY) and name not in _UNREAD:
            names.add(name)
    return {name for name in names if theirs.get(name) != env.get(name)}


def _fresh(folder: os.PathLike[str], number: int) -> str:
    """Return the path of a log that does not exist yet: a resumed run has earlier ones."""
    while os.path.lexists(path := os.path.join(folder, f"{number}.log")):
        number += 1
    return path


# ── Preview for `gpulaunch check` ─────────────────────────────────────────────────────────────────

PREVIEW_TIMEOUT = 20.0
"""Seconds within which the jobs' interpreter has to answer."""


def told(jobs: Sequence[Job], base: Mapping[str, str]) -> Iterator[str]:
    """Yield what `preload:` would do, for each entry of the job file; judged by its first job.

    Asks the jobs' own interpreter, in a process of its own, what a script imports; imports nothing.
    """
    seen: set[int] = set()
    for job in jobs:
        if job.preload and job.group not in seen:
            seen.add(job.group)
            yield f"preload: {job.name}: {_of(job, base)}"


def _of(job: Job, base: Mapping[str, str]) -> str:
    if job.worker:
        return "not used: its worker imports once for many items by itself"
    home = job.venv or job.conda or job.python
    if home and not os.path.exists(home):  # a job that it needs may make it
        return f"what it imports cannot be seen before {home} is there"
    # The run's shims do not exist yet: `_argv` puts the interpreter that they start in place.
    place = AttemptPlace(gpus=(), style="index", scope="", master_port=1, run_dir="/run-dir")
    own = {name: value if value is None else _plain(value) for name, value in job.env.items()}
    environ = delta(job, place, MachineLimits(1, 1, "/cache"), base, own).over(base)
    by_shell = not isinstance(job.run, tuple)
    try:
        found = forkable(_argv(job), job.cwd, environ, by_shell)
    except Cold as cold:
        return f"starts cold: {cold}"
    if job.preload != AUTO:
        return f"imports {', '.join(job.preload)} once for all its jobs"
    return _found(found, job.cwd, environ)


def _argv(job: Job) -> tuple[str, ...]:
    if isinstance(job.run, tuple):
        words = tuple(_plain(text) for text in job.run)
        pythons = ("python", "python3")
        return (job.python, *words[1:]) if job.python and words[0] in pythons else words
    script = _plain(job.run)
    first, space, rest = script.strip().partition(" ")
    if job.python and first in ("python", "python3"):
        script = f"{job.python}{space}{rest}"
    return (*job.shell, script)


def _plain(text: Text) -> str:
    """Return the text with each start-time placeholder replaced by its name."""
    if isinstance(text, str):
        return text
    return "".join(part if isinstance(part, str) else part.name for part in text.parts)


def _found(found: Forkable, cwd: str, environ: Mapping[str, str]) -> str:
    argv = [found.python, PROGRAM, "preload.finding", *found.target]
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=environ, capture_output=True, timeout=PREVIEW_TIMEOUT, check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        return f"what it imports could not be found out: {problem}"
    if not said["modules"]:
        return f"starts cold: nothing to import was found in {said['where']}"
    text = f"imports {', '.join(said['modules'])} once for all its jobs (auto, {said['where']})"
    for name, why in said["left_out"].items():
        text += f"; leaves out {name}: {why}"
    return text
