"""The job file's own commands: what is suspect in each `run:`, with its place in the file.

A job's texts are looked at as they are run, every item filled in; of many jobs that one entry
makes, a few where they differ in what matters.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.core.template import shown
from gpulaunch.diagnose.lint import shell, wording
from gpulaunch.diagnose.lint.finding import Given
from gpulaunch.diagnose.lint.follow import CommandStart, suspects_in_python
from gpulaunch.diagnose.lint.runs import ProgramRun
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.shell import Word, commands_in
from gpulaunch.jobfile.tree import YamlNode
from gpulaunch.jobfile.values import SHELLS, dialect

MAX_JOBS_PER_ENTRY = 64
"""Jobs of one entry that are looked at each by itself."""

_MATTERS = (
    r"(?i)\{\{[^{}]*\}\}(?=\S*\.(?:py|sh|ipynb))"
    r"|(?:python[0-9.]*|bash|sh|torchrun|papermill)\s+\S*\{\{"
    r"|(?:device|gpus?|cuda|port|proc\w*|parallel|ids?)[\w-]*[ =]+\S*\{\{|[A-Z_]=\S*\{\{|cuda:\{\{"
)
"""Not compiled before it is used: that takes 4 ms."""

_WORTH = re.compile(
    r"cuda|gpu|device|port|visible|docker|podman|nerdctl|apptainer|singularity|parallel|nproc|proc|deepspeed|accelerate|tp"
    r"|\|\||\bwait\b|setsid|\btee\b|\becho\b"
    r"|vllm|sglang|main|rdzv|srun|sbatch|qsub|bsub|salloc|systemd|\b(?:at|cd|tmux|screen|batch|tsp)\b|pueue|DataP|ORDER",
    re.IGNORECASE,
)
# From a word's start alone: to try each of its letters takes 20 s for a word of 100,000.
_SCRIPTS = re.compile(r"(?<!\S)\S+\.(?:py|sh|bash|ipynb)\b|-m\s+\S+|(?:^|[\s;&|])\S*/\S+|[\"'$]")


def variants(jobs: Sequence[Job], typed: Callable[[], str]) -> Sequence[Job]:
    """Return an entry's jobs whose commands are looked at. `typed`: the text in the job file."""
    if len(jobs) == 1 or not re.search(_MATTERS, typed()):
        return jobs[:1]
    return some_of(jobs)


def some_of(jobs: Sequence[Job]) -> Sequence[Job]:
    """Return as many of an entry's jobs as are looked at each by itself, from all over it."""
    step = max(1, len(jobs) // MAX_JOBS_PER_ENTRY)
    return jobs[::step][:MAX_JOBS_PER_ENTRY]


def alike(job: Job) -> object:
    """Return a value that is equal for jobs of whose commands one look tells all.

    Where nothing is suspect in a command itself, only the scripts count that it names.
    """
    texts = job.run if isinstance(job.run, tuple) else (job.run,)
    text = " ".join(map(shown, texts))
    if _WORTH.search(text):
        return text, job.cwd, job.shell, job.group
    return tuple(_SCRIPTS.findall(text)), job.cwd, job.shell


def given(jobs: Iterable[Job], by_uuid: Collection[str]) -> list[Given]:
    """Return what these jobs have, each kind once.

    `by_uuid`: kinds of isolation under which the machine's masks name UUIDs.
    """
    kinds = set()
    for job in jobs:
        strict, shares = job.isolation == "strict", job.demand.share
        kinds.add((job.demand.gpus, _named_by_uuid(job, by_uuid), strict, shares))
    return [
        Given(gpus, uuid, strict, shares=shares) for gpus, uuid, strict, shares in sorted(kinds)
    ]


def _named_by_uuid(job: Job, by_uuid: Collection[str]) -> bool:
    if not job.demand.gpus:
        return False
    if job.container is not None:  # the others show the job's cards alone, without a mask
        engine, image = job.container.engine, job.container.image
        return engine in ("apptainer", "singularity") or (not engine and image.endswith(".sif"))
    return job.visible == "uuid" or job.demand.mps or job.isolation in by_uuid


def looked_at(job: Job, indices: frozenset[str] = frozenset()) -> shell.ShellScan:
    """Return what is suspect in a job's command, and what it runs."""
    if isinstance(job.run, tuple):
        return _list(job, [shown(text) for text in job.run], indices)
    kind = dialect(job.shell)
    return _script(job, shown(job.run), kind, job.shell, indices) if kind else shell.ShellScan()


def _script(
    job: Job, text: str, kind: str, words: Sequence[str], indices: frozenset[str]
) -> shell.ShellScan:
    return shell.look(text, kind, suspects_in_python, indices, _masks(job), words)


def _list(job: Job, words: list[str], indices: frozenset[str]) -> shell.ShellScan:
    scan = shell.look_words(words, suspects_in_python, indices, _masks(job))
    which, kind = script_in(words)
    if not which:
        return scan
    inner = _script(job, words[which], kind, words[:which], indices)
    found = (replace(one, number=which) for one in inner.found)
    return shell.ShellScan((*scan.found, *found), inner.runs)


def _masks(job: Job) -> list[str]:
    return [name for name in job.env if wording.hands_on(name)]


def script_in(words: list[str]) -> tuple[int, str]:
    """Return where the script of `[bash, -c, SCRIPT]` stands, and its dialect; 0 if nowhere."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    flags = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
    if name in SHELLS and flags and flags[0] + 1 < len(words):
        return flags[0] + 1, name
    return 0, ""


def place_of_word(mistakes: Mistakes, run: YamlNode, job: Job, word: Word, number: int = 0) -> int:
    """Place a word of a job's command or, in a list, of its element `number`.

    The command as typed has the same words as the one filled in, so its n-th word is meant.
    """
    node = run.value[number] if isinstance(run.value, list) else run
    kind = dialect(job.shell) or "bash"
    text = shown(job.run[number] if isinstance(job.run, tuple) else job.run)
    typed = str(node.value)
    if not word.end or not isinstance(node.value, str):
        return node.at
    both = (list(_words(one, kind)) for one in (text, typed))
    for filled, there in zip(*both, strict=False):
        if filled.start == word.start:
            return _place_of(mistakes, node, there, typed)
    return node.at


def _place_of(mistakes: Mistakes, node: YamlNode, word: Word, script: str) -> int:
    """Return the place in the file of a word of `script`, which is the node's text."""
    text = script[word.start : word.end].partition("=")[0]
    if not text:
        return node.at
    pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    number = sum(1 for _ in pattern.finditer(script, 0, word.start))
    return mistakes.inside(node.at, pattern, number)


def _words(text: str, kind: str) -> Iterator[Word]:
    for command in commands_in(text, kind):
        yield from command.assignments
        yield from (command.name,) if command.name else ()
        yield from command.arguments


def start_of(run: ProgramRun, job: Job) -> CommandStart:
    """Return where a job's command looks for the file that it runs."""
    path = job.env.get("PYTHONPATH")
    parts = path.split(":") if isinstance(path, str) else []
    cwd = run.cwd if run.cwd.startswith("/") else f"{job.cwd}/{run.cwd}"
    absolute = [part for part in parts if part[:1] == "/" and is_here(job, part)]
    return CommandStart(run, posixpath.normpath(cwd), tuple(absolute[:10]))


def starts_of(job: Job, scan: shell.ShellScan) -> list[CommandStart]:
    """Return what a job's command runs of this machine's files, and from where."""
    starts = [start_of(run, job) for run in scan.runs]
    return [one for one in starts if is_here(job, posixpath.join(one.cwd, one.run.what))]


def is_here(job: Job, path: str) -> bool:
    """Tell whether a path that a job names is that of this machine, also in its container.

    There, the job's directory and what is mounted by its own name are.
    """
    if job.container is None:
        return True
    path = posixpath.normpath(path)
    over = [mount for mount in job.container.mounts if _is_below(path, mount.target)]
    if over:
        nearest = max(over, key=lambda mount: len(mount.target))
        return nearest.source == nearest.target
    return _is_below(path, job.cwd)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
