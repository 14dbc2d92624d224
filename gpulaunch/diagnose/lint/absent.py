"""Programs and scripts that jobs would run, and that are not there: mistakes of the job file.

    run: ──▶ commands that are sure to be reached ──▶ the file that each runs ──▶ is it there?

Precision comes first, since a mistake refuses the run: what stands behind a condition, in another
directory than can be told, in a container that the script starts, or may be made before, is
believed. A line that says `# gpulaunch: ok` is as well. Of a job that gpulaunch runs in a
container, only its directory and what is mounted by its own name are looked at.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from gpulaunch.base import environment_modules
from gpulaunch.base.files import may, out_of_reach
from gpulaunch.core.model import Job
from gpulaunch.core.template import Template, shown
from gpulaunch.diagnose.lint.commands import of_interpreter, run_of
from gpulaunch.diagnose.lint.files import Files, ReadBudget, module_file
from gpulaunch.diagnose.lint.finding import ProgramRun, silenced
from gpulaunch.diagnose.lint.report import (
    MAX_JOBS_PER_ENTRY,
    is_here,
    place_of_word,
    script_in,
    variants,
)
from gpulaunch.diagnose.lint.shell import ScriptStep, known, steps
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.shell import Word, first_program, outline
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import YamlNode, node_at, place
from gpulaunch.jobfile.values import dialect

RULE = "not-there"
ENTRIES = 5000
"""Entries of a file that are looked at: each costs a sixth of a millisecond before the run starts,
and a file with more was written by a program."""
_NEAR = 2000
"""Names of a directory among which the nearest to a missing one is looked for."""

# fmt: off
_HARMLESS = frozenset({
    "cd", "export", "set", "unset", "echo", "printf", "date", "hostname", "mkdir", "pwd", "ulimit",
    "umask", "module", "ml", "nvidia-smi", "sleep", "true", ":", "exit", "trap", "shopt", "type",
    "which", "conda", "mamba", "micromamba", "declare", "typeset", "readonly", "local", "ls",
    "wait", "env", "id", "uname", "free", "lscpu", "source", ".",
})
# fmt: on
"""Commands that make no script: what comes after them is looked for as well."""
_SOURCES = frozenset({"source", "."})
_INTERPRETERS = re.compile(r"(?:python|pypy)[0-9.]*|bash|sh|zsh|dash|ksh|source|\.")
_TESTING = frozenset({"[", "[[", "test", "for", "case", "select"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_NO_PYTHON = re.compile(r"--?no[-_]python")

MODULE_LOOKS = 10
"""Different lists of modules of a file that are loaded to see whether they can be."""

Looks = Callable[[Mistakes, Sequence[Job]], None]


def looking(environ: Mapping[str, str], cluster: bool) -> Looks:
    """Return what adds a mistake for each program, script or function of jobs that is not there.

    The jobs are those that would start with what is there now. `environ` is the caller's, whose
    PATH counts. `cluster`: they run on other machines, with programs and a PATH of their own.
    """
    return lambda mistakes, jobs: _Absences(mistakes, environ, cluster).all(jobs)


class _Absences:
    def __init__(self, mistakes: Mistakes, environ: Mapping[str, str], cluster: bool) -> None:
        self.mistakes = mistakes
        self.environ = environ
        self.cluster = cluster
        self.files = Files(str(mistakes.source.base), ReadBudget())
        self.own_shell = "shell" not in mistakes.typed
        self.looks: dict[tuple[object, ...], str | None] = {}

    def all(self, jobs: Sequence[Job]) -> None:
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.group, []).append(job)
        for group, members in islice(groups.items(), ENTRIES):
            if not self.cluster:
                self._modules(group, members)
            field = "worker" if members[0].worker else "run"
            node = node_at(self.mistakes.root, ("jobs", group, field))
            if node is not None and not self._silenced(node.key_at):
                for job in _some(members, node):
                    self._job(job, node)

    def _job(self, job: Job, node: YamlNode) -> None:
        if job.worker is not None and job.worker.function:
            self._functions(job, node)
        elif isinstance(job.run, tuple):
            self._list(job, node, [shown(text) for text in job.run])
        else:
            self._shell(job)
            script = shown(job.run)
            if self.mistakes.source.is_list and (why := self._no_command(job, script)):
                self.mistakes.add(("jobs", job.group, "run"), why)
            elif kind := dialect(job.shell):
                self._script(job, node, script, kind)

    # ── modules ─────────────────────────────────────────────────────────────────────────────────

    def _modules(self, group: int, members: Sequence[Job]) -> None:
        """Add a mistake for modules that cannot be loaded in the environment that the job gives."""
        where: Steps = ("jobs", group, "modules")
        node = node_at(self.mistakes.root, where)
        if node is None:
            where = ("defaults", "modules")  # of the file, or typed beside it
            if "modules" not in self.mistakes.typed:
                node = node_at(self.mistakes.root, where)
        for job in () if node and self._silenced(node.key_at) else members:
            if job.modules and (why := self._lacks_modules(job)):
                self.mistakes.add(where, why)

    def _lacks_modules(self, job: Job) -> str:
        if job.env_file or job.container:
            return ""
        own = {name: text for name, text in job.env.items() if not isinstance(text, Template)}
        key = (job.modules, tuple(own.items()))
        if key not in self.looks:
            if len(self.looks) >= MODULE_LOOKS or None in self.looks.values():
                return ""  # once no answer came, nobody is kept waiting for another
            both = {**self.environ, **own}
            environ = {name: text for name, text in both.items() if text is not None}
            self.looks[key] = environment_modules.why_not(job.modules, environ)
        return self.looks[key] or ""

    # ── workers ─────────────────────────────────────────────────────────────────────────────────

    def _functions(self, job: Job, node: YamlNode) -> None:
        assert job.worker is not None
        for key in ("function", "load"):
            name = getattr(job.worker, key)
            if name and (why := _lacks(self.files, name, job.cwd)):
                where: Steps = ("jobs", job.group, "worker")
                mapping = isinstance(node.value, dict)
                self.mistakes.add((*where, key) if mapping else where, why)

    # ── lists ───────────────────────────────────────────────────────────────────────────────────

    def _list(self, job: Job, node: YamlNode, words: list[str]) -> None:
        own = ("worker", "run") if job.worker else ("run",)
        where: Steps = ("jobs", job.group, *own)
        program = words[0]
        if known(program) is not None and (why := self._lacks_program(job, program)):
            self.mistakes.add((*where, 0), why)
        number, kind = script_in(words)
        if number:
            if not job.worker:
                self._script(job, node, words[number], kind, number)
            return
        which, why = self._of_words(job, tuple(map(known, words)), job.cwd)
        if which and why:
            self.mistakes.add((*where, which), why)

    def _no_command(self, job: Job, line: str) -> str:
        """Why a line of a list of commands can be none: its program is nowhere.

        So it is where a text of any other kind was taken for such a list.
        """
        if not self.own_shell:
            return ""
        program = first_program(line, self.environ)
        return self._lacks_program(job, program) if program and "/" not in program else ""

    def _lacks_program(self, job: Job, name: str) -> str:
        """Why a program of a list cannot be executed; empty where it can, or who knows."""
        if "/" in name:
            return self._cannot_run(job, posixpath.join(job.cwd, name), name)
        path = job.env.get("PATH", self.environ.get("PATH", os.defpath))
        elsewhere = self.cluster or job.container is not None
        if elsewhere or job.env_file or not isinstance(path, str):
            return ""
        if job.modules or (job.python and name.startswith("python")):
            return ""
        own = [f"{prefix}/bin" for prefix in (job.venv, job.conda) if prefix]
        if shutil.which(name, path=os.pathsep.join([*own, path])):
            return ""
        here = self.files.exists(posixpath.join(job.cwd, name))
        return f"there is no program {name} in PATH" + (f"; write ./{name}" if here else "")

    def _shell(self, job: Job) -> None:
        """Add a mistake where the file picks a shell that is not there."""
        shell = node_at(self.mistakes.root, ("jobs", job.group, "shell"))
        if shell is not None and (why := self._lacks_program(job, job.shell[0])):
            self.mistakes.add(("jobs", job.group, "shell"), why)

    # ── scripts ─────────────────────────────────────────────────────────────────────────────────

    def _script(self, job: Job, node: YamlNode, script: str, kind: str, number: int = 0) -> None:
        plain = outline(script, kind)
        if "(" in plain:
            return  # functions and subshells: what runs, and where, cannot be told
        texts: list[str] = []
        for step in steps(script, kind, self._home(job)):
            if ">" in plain[: step.words[0].start] or step.cwd is None:
                return
            if step.command.program in _TESTING or _is_guarded(plain, step):
                return
            cwd = posixpath.join(job.cwd, step.cwd)
            step = replace(step, values=tuple(map(known, step.values)))
            which, why = self._of_words(job, step.values, cwd)
            if why:
                if not any(posixpath.basename(str(step.values[which])) in text for text in texts):
                    self._add(job, node, step.words[which], number, why)
                return
            if not self._passes(job, step, cwd, texts):
                return

    def _home(self, job: Job) -> dict[str, str]:
        """Return the job's HOME by its name, if it is known."""
        home = job.env.get("HOME", self.environ.get("HOME"))
        return {"HOME": home} if isinstance(home, str) else {}

    def _passes(self, job: Job, step: ScriptStep, cwd: str, texts: list[str]) -> bool:
        """Tell whether the next step needs what is there now. `texts` gets what a script says."""
        program = step.command.program
        if program in _SOURCES:
            return step.words[-1].text.endswith("/activate")
        if program in _HARMLESS:
            return True
        run = _run_of(step.values)
        path = posixpath.join(cwd, run.what) if run else ""
        text = self.files.text(path) if path and is_here(job, path) else None
        if text is not None:
            texts.append(text)
        return text is not None

    def _of_words(self, job: Job, values: Sequence[str | None], cwd: str) -> tuple[int, str]:
        """Return the number of the word that names what a command would run, and why it cannot.

        The reason is empty where it can, or who knows.
        """
        run = _run_of(values)
        if run is None:
            return 0, ""
        path = posixpath.join(cwd, run.what)
        if run.number == 0:
            return 0, self._cannot_run(job, path, run.what)
        there = self._elsewhere(job, path, run.what) or self._in_path(job, run)
        there = there or self.files.exists(path)
        return run.number, "" if there else self._not_there(path, run.what)

    def _elsewhere(self, job: Job, path: str, typed: str) -> bool:
        """Tell whether a path is one of another machine, or of an image."""
        if job.container is not None:
            return not is_here(job, path)
        return self.cluster and typed.startswith("/")

    def _in_path(self, job: Job, run: ProgramRun) -> bool:
        """Tell whether a shell would find a script in PATH, named without a slash."""
        if run.kind != "shell" or "/" in run.what:
            return False
        return (
            job.container is not None
            or shutil.which(run.what, os.F_OK, path=self.environ.get("PATH")) is not None
        )

    def _cannot_run(self, job: Job, path: str, typed: str) -> str:
        if self._elsewhere(job, path, typed):
            return ""
        if not self.files.exists(path):
            return self._not_there(path, typed)
        if os.path.isdir(path):
            return f"{_plain(path)} is a directory"
        if may(path, os.X_OK):
            return ""
        why = out_of_reach(path)
        return f"{_plain(path)}: {why}" if why else f"{_plain(path)} is not executable (chmod +x)"

    def _not_there(self, path: str, typed: str) -> str:
        if typed.startswith("~"):
            return f"{_plain(path)} does not exist: in a list, ~ is no directory; write it whole"
        directory, name = posixpath.split(posixpath.normpath(path))
        stem, ext = posixpath.splitext(name)
        names = self.files.names(directory, _NEAR)
        stems = [one.removesuffix(ext) for one in names if one.endswith(ext)]
        near = did_you_mean(stem, stems).replace("?", f"{ext}?")
        return f"{_plain(path)} does not exist{near}"

    def _add(self, job: Job, node: YamlNode, word: Word, number: int, why: str) -> None:
        at = place_of_word(self.mistakes, node, job, word, number)
        if not self._silenced(at):
            where: Steps = ("jobs", job.group, "run")
            self.mistakes.add((*where, number) if number else where, why, at=at)

    def _silenced(self, at: int) -> bool:
        return silenced(self.mistakes.source.line(place(at)[0]), RULE)


def _some(jobs: Sequence[Job], node: YamlNode) -> Sequence[Job]:
    """Choose an entry's jobs to look at: one, or some where they run what an item says."""
    typed = str(node.plain())
    first = jobs[:MAX_JOBS_PER_ENTRY]
    differ = len({job.cwd for job in first}) > 1
    return first if differ else variants(jobs, lambda: typed)


def _plain(path: str) -> str:
    """For people: without `.`; `..` stays, since a link may stand before it."""
    return path if ".." in path else posixpath.normpath(path)


def _run_of(values: Sequence[str | None]) -> ProgramRun | None:
    """Return the file that a command is sure to run, by a path from its own directory."""
    program = posixpath.basename(values[0] or "") if values else ""
    run = run_of(values, ".")
    if run is None or run.kind not in ("file", "python", "shell"):
        return None
    if run.number == 0:
        return run if "/" in run.what else None
    if program in _LAUNCHERS:
        return None if any(word and _NO_PYTHON.fullmatch(word) for word in values) else run
    if not _INTERPRETERS.fullmatch(program):
        return None
    return run if of_interpreter(values, run.number) else None


def _is_guarded(plain: str, step: ScriptStep) -> bool:
    """Tell whether a command's failure is provided for: `python a.py || true`."""
    end = step.words[-1].end
    line = plain[end : plain.find("\n", end) if "\n" in plain[end:] else None]
    _, or_, other = line.partition(";")[0].partition("||")
    return bool(or_) and other.split()[:1] != ["exit"]


def _lacks(files: Files, function: str, cwd: str) -> str:
    """Why `FILE.py:function` or `package.module:function` has no such function.

    Empty where it has, where the module is not below `cwd` (installed, perhaps), and where nobody
    can tell without running it.
    """
    from gpulaunch.diagnose.lint.commands import defined  # most job files need no look at Python

    place, _, name = function.rpartition(":")
    path = place if place.endswith(".py") else module_file(files, place, cwd)
    text = files.text(path) if path else None
    names = None if text is None else defined(text)
    first = name.partition(".")[0]
    if names is None or first in names or path is None:
        return ""
    return f"there is no {first} in {files.shown(path)}{did_you_mean(first, names)}"
