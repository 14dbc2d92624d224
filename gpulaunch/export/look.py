"""Which jobs a target can run, and what of them it cannot do: said line by line, never dropped."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.core.template import Slot, Text, fill, literals, parts_of, slots, text_of
from gpulaunch.errors import JobFileError, UsageError
from gpulaunch.jobfile.plan import Plan, overdrawn
from gpulaunch.jobfile.scheduler_support import asks_twice
from gpulaunch.text import unescaped

Target: TypeAlias = Literal["hyperqueue", "slurm"]
RESOURCE = re.compile(r"[A-Za-z_][\w/-]*", re.ASCII)
"""What HyperQueue takes for a resource's name."""

_MAGIC = re.compile(r"[*?[]")
_INTERPRETER = re.compile(r"python[\d.]*")


class Note(Struct, frozen=True):
    """What is not as in `gpulaunch run`; `where` is `jobs.yaml:12:7: jobs[0].field`."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class ExportSelection(Struct, frozen=True):
    """What is exported. `directory` (absolute) is where outputs and logs go, as in a run's."""

    plan: Plan
    target: Target
    jobs: tuple[Job, ...]
    notes: tuple[Note, ...]
    directory: str

    def label(self, group: int) -> str:
        """Name an entry as the file does: its name as typed, or the names of its jobs."""
        name = typed(self.plan, group).get("name")
        if name is not None:
            return str(name)
        return next(job.name for job in self.jobs if job.group == group)


def typed(plan: Plan, group: int) -> dict[str, Any]:
    """Return an entry's fields as they were typed, those of `defaults` below."""
    root = plan.root.value
    assert isinstance(root, dict)
    listed = root["jobs"].value
    assert isinstance(listed, list)
    own: Any = listed[group].plain()
    defaults: Any = root["defaults"].plain() if "defaults" in root else {}
    merged = {**(defaults or {}), **own}
    if isinstance(merged.get("env"), dict):
        merged["env"] = {**((defaults or {}).get("env") or {}), **merged["env"]}
    return merged


def choose(plan: Plan, target: Target, directory: str) -> ExportSelection:
    """Return the jobs that the target runs, in the file's order.

    Raises JobFileError where a job has no meaning there, UsageError where none is left.
    """
    _refuse(plan, target)
    looking = _ExportScan(plan, target)
    left_out = looking.left_out()
    jobs = tuple(_at_first_step(job) for job in plan.jobs if job.name not in left_out)
    of_target = _in_slurm if target == "slurm" else _in_hyperqueue
    groups = {job.group for job in jobs}
    laddered = {group for group in groups if "ladder" in typed(plan, group)}
    for job in jobs:
        if job.group in laddered:
            looking.note(job, "ladder", "the first step's values, at every try")
        for name, text in (*_everywhere(job), *of_target(job)):
            looking.note(job, name, text)
        if left := next((name for name in job.after if name in left_out), ""):
            looking.note(job, "after", f"not of {left}, which is left out")
    if plan.notify:
        looking.add(("notify",), "nobody is told")
    if not jobs:
        raise UsageError(
            f"{plan.source.name}: no job of it can be exported to {target}:\n"
            + "\n".join(str(note) for note in looking.notes)
        )
    return ExportSelection(plan, target, jobs, tuple(looking.notes), directory)


# ── Mistakes ────────────────────────────────────────────────────────────────────────────────────


def _refuse(plan: Plan, target: Target) -> None:
    found = (
        (("jobs", job.group, name), f"{reason} (job {job.name})")
        for job in plan.jobs
        if job.service is None and job.worker is None and job.container is None
        for name, reason in _mistakes(plan, job, target)
    )
    if mistakes := plan.mistakes(found):
        raise JobFileError(mistakes)


def _mistakes(plan: Plan, job: Job, target: Target) -> Iterator[tuple[str, str]]:
    for name, texts in texts_of(job).items():
        if any(slot.name == "gpu_uuid" for text in texts for slot in slots(text)):
            yield name, f"{{{{gpu_uuid}}}} is not known to {target}: use {{{{gpu_index}}}}"
        if target == "hyperqueue" and not all(_is_utf8(text) for text in texts):
            yield name, "not UTF-8: a TOML file cannot hold it"
    if target == "slurm" and (why := asks_twice(job)):
        yield "memory", why
    for token, count in overdrawn(job.demand.uses, plan.limits):
        yield "uses", f"needs {count} of {token}, its limit is {plan.limits[token]}"


def texts_of(job: Job) -> dict[str, tuple[Text, ...]]:
    """Return a job's texts in which a value may stand, by field."""
    run = job.run if isinstance(job.run, tuple) else (job.run,)
    env = tuple(text for text in job.env.values() if text is not None)
    return {"name": (job.name,), "run": run, "env": env, "outputs": job.outputs, "cwd": (job.cwd,)}


def _is_utf8(text: Text) -> bool:
    try:
        "".join(literals(text)).encode()
    except UnicodeEncodeError:
        return False
    return True


# ── Notes ───────────────────────────────────────────────────────────────────────────────────────


class _ExportScan:
    def __init__(self, plan: Plan, target: Target) -> None:
        self.plan = plan
        self.target = target
        self.notes: list[Note] = []
        self._seen: set[tuple[int, str, str]] = set()

    def note(self, job: Job, name: str, text: str) -> None:
        """Once for each entry, field and kind of thing, which its first word tells."""
        kind = (job.group, name, text.partition(" ")[0])
        if kind in self._seen:
            return
        self._seen.add(kind)
        if name == "after" and name not in typed(self.plan, job.group):
            self.note(job, "first", text)
        else:
            self.add(("jobs", job.group, name), text)

    def add(self, steps: tuple[str | int, ...], text: str) -> None:
        self.notes.append(note_at(self.plan, steps, text))

    def left_out(self) -> set[str]:
        """Return services, jobs of workers or in containers, and what needs one of those."""
        out: dict[str, str] = {}
        for job in self.plan.jobs:
            if job.service is not None:
                out[job.name] = "service"
                self.note(job, "service", f"left out: {self.target} has no services")
            elif job.worker is not None:
                out[job.name] = "worker"
                self.note(job, "worker", f"left out: {self.target} has no workers")
            elif job.container is not None:
                out[job.name] = "container"
                text = f"left out: in {self.target}, run: starts its container by itself"
                self.note(job, "container", text)
        levels = levels_of(self.plan.jobs) if out else {}
        for job in sorted(self.plan.jobs, key=lambda job: levels[job.name]) if out else ():
            need = next((name for name in job.needs if name in out), "")
            if need and job.name not in out:
                out[job.name] = "needs"
                self.note(job, "needs", f"left out: it needs {need}, which is left out")
        return set(out)


def note_at(plan: Plan, steps: tuple[str | int, ...], text: str) -> Note:
    """Return a note on what stands there in the file."""
    return Note(plan.point(steps, "here").splitlines()[0].removesuffix(": here"), text)


def levels_of(jobs: tuple[Job, ...]) -> dict[str, int]:
    """Return how many jobs, one after the other, must at least end before each."""
    names = {job.name for job in jobs}
    sorter = TopologicalSorter({job.name: names & {*job.needs, *job.after} for job in jobs})
    sorter.prepare()
    levels: dict[str, int] = {}
    level = 0
    while ready := sorter.get_ready():
        levels |= dict.fromkeys(ready, level)
        level += 1
        sorter.done(*ready)
    return levels


def _everywhere(job: Job) -> Iterator[tuple[str, str]]:
    """(field, what is different) of one job."""
    if job.idle_timeout is not None:
        yield "idle_timeout", "silence does not end the job"
    if job.gpu_idle is not None and job.demand.gpus:
        yield "gpu_idle", "computing nothing does not end the job"
    if job.not_before is not None:
        yield "not_before", f"starts as soon as it can, also before {job.not_before.words}"
    if job.warn is not None:
        yield "warn", "no signal before the timeout"
    if job.demand.mps:
        yield "mps", "no service for the card: start nvidia-cuda-mps-control yourself"
    if job.demand.spare:
        yield "spare", "keeps its cards to its end"
    if job.retry.times and job.retry.on:
        yield "retries", "again after any failure: what kind it was is not looked at"
    if job.isolation == "strict":
        yield "isolation", "the other cards' device nodes are there"
    if job.affinity == "card":
        yield "affinity", "runs on whichever CPUs it is given"
    if job.visible == "uuid":
        yield "visible", "cards are named by number"
    if job.explain:
        yield "explain", "device errors are not explained"
    if job.preload:
        yield "preload", "starts cold"
    if job.env_file:
        yield "env_file", f"not read: set what {job.env_file} says before, or in env:"
    if job.python:
        yield "python", "only put first on PATH, as its directory"
    if any(_has_magic(text) for text in job.outputs):
        yield "outputs", "patterns are only checked to match a file"
    if any(not _is_own(text) for text in job.outputs):
        yield "outputs", "files that are older than the job count as its own"


def _in_slurm(job: Job) -> Iterator[tuple[str, str]]:
    if job.demand.gpu_memory:
        yield "gpu_memory", "Slurm is not told: ask for a type of card (--gpus-per-node=TYPE:N)"
    for field, asked in (("card", job.demand.card), ("compute", job.demand.compute)):
        if asked:
            yield field, "Slurm is not told: its own names of types stand in --gpus-per-node=TYPE:N"
    if job.demand.gpus and job.demand.shares_card:
        yield "share" if job.demand.share else "per_gpu", "each job has its card alone"
    if job.priority:
        yield "priority", "Slurm has its own"
    if job.not_before is not None:
        yield "not_before", "submit it with sbatch --begin"


def _in_hyperqueue(job: Job) -> Iterator[tuple[str, str]]:
    if job.demand.gpus and job.demand.share:
        yield "share", "each job has its card alone: HyperQueue does not know its memory"
    if job.demand.gpu_memory:
        yield "gpu_memory", "HyperQueue is not told"
    for field, asked in (("card", job.demand.card), ("compute", job.demand.compute)):
        if asked:
            yield field, "HyperQueue is not told: start its workers on such cards alone"
    if job.after:
        yield "after", "as needs: where one of those fails, this does not run"
    for token in dict.fromkeys(job.demand.uses):
        if RESOURCE.fullmatch(token):
            yield (
                "uses",
                f"{token}: a resource, that each worker brings along: one worker keeps the limit",
            )
        else:
            yield "uses", f"{token} cannot be the name of a resource: not limited"


def _at_first_step(job: Job) -> Job:
    """Return the job with the values of its ladder's first step."""
    if job.ladder is None:
        return job
    values = job.ladder.step(1).values
    run = job.run
    return replace(
        job,
        params={**job.params, **values},
        run=tuple(fill(part, values) for part in run)
        if isinstance(run, tuple)
        else fill(run, values),
        env={name: text and fill(text, values) for name, text in job.env.items()},
        outputs=tuple(
            fill(text, {k: glob.escape(v) for k, v in values.items()}) for text in job.outputs
        ),
        ladder=None,
    )


def _has_magic(text: Text) -> bool:
    return bool(_MAGIC.search(re.sub(r"\[[*?[]\]", "", "".join(literals(text)))))


def _is_own(text: Text) -> bool:
    """Below {{out}}, which is empty at every start, or {{keep}}, where the age does not count."""
    first = parts_of(text)[0]
    return isinstance(first, Slot) and first.name in ("out", "keep")


def unescaped_text(text: Text) -> tuple[Text, bool]:
    """Return a pattern of `outputs` as a path, and whether it still is a pattern."""
    if _has_magic(text):
        return text, True
    return text_of(p if isinstance(p, Slot) else unescaped(p) for p in parts_of(text)), False
