"""A directory of sbatch scripts: one for each entry, a table beside an array, and submit.sh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import ceil
from shlex import quote

from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.export.arrays import Submission, Unit, at_once, slug, submissions
from gpulaunch.export.general import ExportedEntry
from gpulaunch.export.look import ExportSelection, Note, note_at
from gpulaunch.export.pieces import body, heading, input_lines, longest, one_line
from gpulaunch.export.words import is_identifier
from gpulaunch.jobfile.engines import NAMED
from gpulaunch.text import megabytes, ranges, shell_word

MAX_ARRAY_TASKS = 1000
"""Tasks of an array that every Slurm takes (MaxArraySize is 1001 unless the site says more)."""

SUBMIT = r"""set -eu -o pipefail
cd -- "$(dirname -- "$0")"
mkdir -p slurm
submit() {
  local id
  id=$(sbatch --parsable --kill-on-invalid-dep=yes "$@") || { stopped; return 1; }
  echo "${id%%;*}"
}
stopped() {
  echo "submit.sh: not everything was submitted; squeue --me shows what was, scancel ends it" >&2
}
"""


def to_slurm(chosen: ExportSelection) -> tuple[dict[str, str], tuple[Note, ...]]:
    """Return the files' texts by name, and what else is not as in a run, arrays being known."""
    units = _units(chosen)
    made = submissions(units)
    most, untold = at_once(made, chosen.plan.limits)
    notes = tuple(_notes(chosen, units, untold))
    chosen = replace(chosen, notes=chosen.notes + notes)
    files: dict[str, str] = {}
    for unit in units:
        files[f"{unit.name}.sh"] = _script(chosen, unit, most.get(unit.name))
        if unit.is_array:
            files[f"{unit.name}.tasks"] = "".join(f"{line}\n" for line in unit.table)
    files["submit.sh"] = _submit(chosen, made, most)
    return files, notes


def _notes(chosen: ExportSelection, units: list[Unit], untold: set[str]) -> Iterator[Note]:
    said: set[int] = set()
    for unit in units:
        where = ("jobs", unit.group)
        tokens = {token for job in unit.jobs for token in job.demand.uses} & untold
        if tokens and unit.group not in said:
            said.add(unit.group)
            text = f"{', '.join(sorted(tokens))}: jobs of several arrays: Slurm is not told"
            yield note_at(chosen.plan, (*where, "uses"), text)
        if len(unit.jobs) > MAX_ARRAY_TASKS:
            text = f"an array of {len(unit.jobs):,}: more than {MAX_ARRAY_TASKS:,} are"
            text += " a matter of the site"
            yield note_at(chosen.plan, where, text)


# ── Scripts ─────────────────────────────────────────────────────────────────────────────────────


def _units(chosen: ExportSelection) -> list[Unit]:
    """Jobs of an entry that come to the same script, together."""
    entries: defaultdict[int, list[Job]] = defaultdict(list)
    for job in chosen.jobs:
        entries[job.group].append(job)
    units: list[Unit] = []
    taken = {"submit"}
    for group, jobs in entries.items():
        entry = ExportedEntry(chosen.plan, group, tuple(jobs))
        alike: defaultdict[str, list[tuple[Job, str]]] = defaultdict(list)
        for job in jobs:
            script, line = _task(entry, job)
            alike[script].append((job, line))
        for script, found in alike.items():
            name = _free(slug(chosen.label(group)), taken)
            members, table = zip(*found, strict=True)
            units.append(Unit(name, group, script, members, table))
    return units


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    taken.add(name)
    return name


def _task(entry: ExportedEntry, job: Job) -> tuple[str, str]:
    """Return the script's lines behind its options, and what a job brings: a table's line."""
    general = entry.general(job)
    own = {"GPULAUNCH_JOB": job.name, **general.own}
    per_job = {"cwd": '"$item_cwd"' if "item_cwd" in own else shell_word(job.cwd)}
    lines = []
    if job.fasta is not None or job.batch is not None:
        own["item_input"] = " && ".join(input_lines(job, '"$GPULAUNCH_INPUT"'))
        lines.append('export GPULAUNCH_INPUT="$GPULAUNCH_RUN_DIR/inputs/$GPULAUNCH_JOB"')
        lines.append('mkdir -p "$GPULAUNCH_RUN_DIR/inputs" || exit')
        per_job["input"] = 'eval "$item_input" || exit'
    if job.demand.gpus:
        lines.append("export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        lines.append('export GPULAUNCH_GPU_INDEX="${SLURM_JOB_GPUS:-$CUDA_VISIBLE_DEVICES}"')
    else:
        lines.append("export CUDA_VISIBLE_DEVICES=  # no card, no sight of one")
    lines.append("export PYTHONUNBUFFERED=1")
    lines += body(general.job, general.values, per_job)
    options = "\n".join(_options(job))
    assert all(map(is_identifier, own))
    table = " ".join(f"{name}={shell_word(value)}" for name, value in own.items())
    return options + "\n" + "\n".join(lines) + "\n", table


def _options(job: Job) -> Iterator[str]:
    yield "#SBATCH --nodes=1"
    yield "#SBATCH --ntasks=1"
    told = job.engine.get("slurm", {})
    if job.demand.gpus:
        kind = (*told.get("gres", ()), str(job.demand.gpus))
        yield f"#SBATCH --gpus-per-node={':'.join(kind)}"
    if job.demand.cpus is not None:
        yield f"#SBATCH --cpus-per-task={job.demand.cpus}"
    if job.demand.memory:
        yield f"#SBATCH --mem={megabytes(job.demand.memory)}M"
    if (seconds := longest(job)) is not None:
        yield f"#SBATCH --time={ceil(seconds / 60)}"
    for name in NAMED:
        yield from (f"#SBATCH {_quoted(f'--{name}={asked}')}" for asked in told.get(name, ()))
    yield from (f"#SBATCH {_quoted(asked)}" for asked in told.get("extra", ()))


def _quoted(option: str) -> str:
    """Return an option as sbatch reads it, to which a backslash escapes in quotes of any kind."""
    return quote(option.replace("\\", r"\\"))


def _script(chosen: ExportSelection, unit: Unit, most: int | None) -> str:
    options, _, rest = unit.script.partition("\nexport ")
    label = one_line(chosen.label(unit.group))
    lines = ["#!/bin/bash", f"# {label}, of {one_line(chosen.plan.source.name)}"]
    if unit.is_array:
        lines[-1] += f": {len(unit.jobs)} jobs; the N-th line of {unit.name}.tasks is task N-1."
    lines.append(f"#SBATCH --job-name={unit.name}")
    if unit.is_array:
        lines.append(f"#SBATCH --array=0-{len(unit.jobs) - 1}{_percent(most, len(unit.jobs))}")
    lines += [*options.splitlines(), "#SBATCH --open-mode=append"]
    lines.append(f"#SBATCH --output=slurm/%x-{'%A_%a' if unit.is_array else '%j'}.out")
    lines += [
        "",
        "# Logs, outputs and results lie beside this script.",
        'cd -- "$SLURM_SUBMIT_DIR" || exit',
    ]
    lines.append('export GPULAUNCH_RUN_DIR="$PWD"')
    if unit.is_array:
        lines.append(f'line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {unit.name}.tasks)')
        lines.append('[ -n "$line" ] && eval "export $line" || exit')
    else:
        lines.append(f"export {unit.table[0]}")
    return "\n".join(lines) + "\nexport " + rest


def _percent(most: int | None, count: int) -> str:
    return f"%{most}" if most is not None and most < count else ""


def _submit(chosen: ExportSelection, made: list[Submission], most: dict[str, int]) -> str:
    how = ["  bash submit.sh      submits everything, in order; it can be done from anywhere"]
    lines = ["#!/bin/bash", *heading(chosen, how), SUBMIT]
    for one in made:
        lines.append(f"{one.variable}=$(submit {' '.join(_arguments(one, most))})")
        what = one.unit.name + (f", {len(one.tasks)} jobs" if len(one.tasks) > 1 else "")
        lines.append(f'echo "${one.variable}  {what}"')
    return "\n".join(lines) + "\n"


def _arguments(one: Submission, most: dict[str, int]) -> Iterator[str]:
    if one.waits:
        spelt = ",".join(
            f"{wait.kind}:"
            + ":".join(
                [f"${{{wait.submission}}}_{task}" for task in wait.tasks] or [f"${wait.submission}"]
            )
            for wait in one.waits
        )
        yield f'--dependency="{spelt}"'
    if len(one.tasks) < len(one.unit.jobs):
        limit = _percent(most.get(one.unit.name), len(one.tasks))
        yield f"--array={ranges(one.tasks)}{limit}"
    yield f"{one.unit.name}.sh"
