"""HyperQueue's job definition file: one TOML file, a task for each job.

Its keys are those of HyperQueue's documentation ("Job Definition File"), read by
`hq job submit-file`; unknown ones are refused there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from gpulaunch.core.model import Job
from gpulaunch.core.retry import LOST_IN_A_ROW
from gpulaunch.export.look import RESOURCE, ExportSelection
from gpulaunch.export.pieces import body, heading, input_lines, longest, one_line, values_at_start
from gpulaunch.text import megabytes, shell_word


def to_hyperqueue(chosen: ExportSelection) -> str:
    """Return the file's text."""
    numbers = {job.name: number for number, job in enumerate(chosen.jobs)}
    limited = {
        token for job in chosen.jobs for token in job.demand.uses if RESOURCE.fullmatch(token)
    }
    options = [
        f"--resource {token}='sum({chosen.plan.limits[token]})'" for token in sorted(limited)
    ]
    how = [
        "  hq server start",
        "  " + " ".join(["hq worker start", *options]),
        "  hq job submit-file FILE",
        f"Logs and outputs go to {chosen.directory}",
    ]
    lines = [*heading(chosen, how), "", f"name = {text(chosen.plan.name)}"]
    for job in chosen.jobs:
        lines += ["", f"# {one_line(job.name)}", "[[task]]", *_task(chosen, job, numbers)]
    return "\n".join(lines) + "\n"


def _task(chosen: ExportSelection, job: Job, numbers: dict[str, int]) -> Iterator[str]:
    yield f"id = {numbers[job.name]}"
    before = {numbers[name] for name in (*job.needs, *job.after) if name in numbers}
    if before:
        yield f"deps = [{', '.join(map(str, sorted(before)))}]"
    yield f'command = ["bash", "-c", {block(_script(job))}]'
    env = {"GPULAUNCH_RUN_DIR": chosen.directory, "GPULAUNCH_JOB": job.name}
    env |= {"PYTHONUNBUFFERED": "1"}
    if not job.demand.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    yield "env = { " + ", ".join(f"{name} = {text(value)}" for name, value in env.items()) + " }"
    yield 'stdout = "none"'
    yield 'stderr = "none"'
    if (seconds := longest(job)) is not None:
        yield f'time_limit = "{seconds:.0f}s"'
    if job.priority:
        yield f"priority = {job.priority}"
    yield f"crash_limit = {LOST_IN_A_ROW}"
    yield "[[task.request]]"
    resources = ", ".join(f"{text(name)} = {amount}" for name, amount in _resources(job))
    yield f"resources = {{ {resources} }}"


def _script(job: Job) -> str:
    per_job = {"cwd": shell_word(job.cwd)}
    head = []
    if lines := input_lines(job, '"$GPULAUNCH_INPUT"'):
        head.append('export GPULAUNCH_INPUT="$GPULAUNCH_RUN_DIR/inputs/$GPULAUNCH_JOB"')
        per_job["input"] = "\n".join(['mkdir -p "$GPULAUNCH_RUN_DIR/inputs"', *lines])
    if job.demand.gpus:
        head.append('export GPULAUNCH_GPU_INDEX="$CUDA_VISIBLE_DEVICES"')
    return "\n".join([*head, *body(job, values_at_start(job), per_job), ""])


def _resources(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what HyperQueue reserves. Cards that jobs share are asked for in parts."""
    yield "cpus", str(job.demand.cpus or 1)
    if job.demand.gpus:
        shared = job.demand.per_gpu > 1 and job.demand.gpus == 1 and not job.demand.share
        share = f'"{1 / job.demand.per_gpu:.4f}"' if shared else str(job.demand.gpus)
        yield "gpus/nvidia", share
    if job.demand.memory:
        yield "mem", str(megabytes(job.demand.memory))
    for token, count in Counter(job.demand.uses).items():
        if RESOURCE.fullmatch(token):
            yield token, str(count)


# ── TOML ────────────────────────────────────────────────────────────────────────────────────────


def text(value: str) -> str:
    """Write a basic string: JSON's escapes are TOML's, save that TOML has DEL escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def block(value: str) -> str:
    """Return a literal string of several lines where that can hold it, for people to read."""
    if "'''" in value or any(not char.isprintable() and char != "\n" for char in value):
        return text(value)
    return f"'''\n{value}'''"
