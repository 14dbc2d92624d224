"""What every target's text is made of: variables, inputs, limits and checks of one job, in bash."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil

from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.core.template import fill, slots
from gpulaunch.export.look import ExportSelection, texts_of, unescaped_text
from gpulaunch.export.words import Values, command, is_identifier, raw
from gpulaunch.text import shell_word, shell_words

RANKS = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK"
    " SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_PROCID SLURM_LOCALID"
)
"""A launcher's, which a job of its own must not take for its own."""
THREADS = "OMP_NUM_THREADS"
FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"

AT_START: Values = {
    "run_dir": "GPULAUNCH_RUN_DIR",
    "out": "GPULAUNCH_OUT",
    "keep": "GPULAUNCH_KEEP",
    "log": "GPULAUNCH_LOG",
    "attempt": "GPULAUNCH_ATTEMPT",
    "port": "GPULAUNCH_PORT",
    "gpu_index": "GPULAUNCH_GPU_INDEX",
    "batch_dir": "GPULAUNCH_INPUT",
}
"""Start-time placeholders where a script runs once for each attempt."""


def values_at_start(job: Job) -> dict[str, str]:
    """Return what the slots of this job's texts stand for in such a script, all but `{{gpu}}`."""
    return {**AT_START, "path": "GPULAUNCH_INPUT"} if job.fasta else {**AT_START}


def _with_card(job: Job) -> Job:
    """Return the job with `{{gpu}}` filled in, which is the same in every such script."""
    run, card = job.run, {"gpu": "0" if job.demand.gpus else ""}
    filled = tuple(fill(t, card) for t in run) if isinstance(run, tuple) else fill(run, card)
    env = {name: None if text is None else fill(text, card) for name, text in job.env.items()}
    return replace(job, run=filled, env=env, outputs=tuple(fill(t, card) for t in job.outputs))


def wants(job: Job, name: str) -> bool:
    """Tell whether the placeholder stands in any text of the job."""
    texts = (text for field in texts_of(job).values() for text in field)
    return any(slot.name == name for text in texts for slot in slots(text))


def free_port() -> str:
    return f'GPULAUNCH_PORT="$(python3 -c {shell_word(FREE_PORT)})"'


def own_variables(job: Job, values: Values) -> Iterator[tuple[str, str]]:
    """(name, word of bash) of what the job sets: its interpreter's, then those of `env`."""
    yield from _interpreter(job)
    if job.demand.cpus is not None and THREADS not in job.env:
        yield THREADS, str(job.demand.cpus)
    for name, text in job.env.items():
        if text is not None and is_identifier(name):
            yield name, raw(text, values)


def _interpreter(job: Job) -> Iterator[tuple[str, str]]:
    if job.venv:
        yield "VIRTUAL_ENV", shell_word(job.venv)
        yield "PATH", _first_on_path(os.path.join(job.venv, "bin"))
    elif job.conda:
        yield "CONDA_PREFIX", shell_word(job.conda)
        yield "CONDA_DEFAULT_ENV", shell_word(os.path.basename(job.conda))
        yield "PATH", _first_on_path(os.path.join(job.conda, "bin"))
    elif job.python:
        yield "PATH", _first_on_path(os.path.dirname(job.python))


def _first_on_path(directory: str) -> str:
    return f'{shell_word(directory)}:"$PATH"'


def program(job: Job, values: Values) -> str:
    """Return the command as words of bash, behind what removes variables and keeps the time."""
    parts = []
    removed = [name for name, text in job.env.items() if text is None]
    odd = [(n, t) for n, t in job.env.items() if t is not None and not is_identifier(n)]
    if removed or odd:
        unset = [f"-u {shell_word(name)}" for name in removed]
        given = [f"{shell_word(name)}={raw(text, values)}" for name, text in odd]
        parts.append(" ".join(["env", *unset, *given]))
    if job.timeout is not None:
        parts.append(f"timeout -k {number(job.grace)} {number(job.timeout)}")
    return " ".join([*parts, command(job, values)])


def number(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def outputs(job: Job, values: Values) -> Iterator[tuple[str, bool]]:
    """(word of bash, whether it is a pattern) for each of `outputs`."""
    for path, is_pattern in map(unescaped_text, job.outputs):
        yield raw(path, values), is_pattern


def input_lines(job: Job, target: str) -> list[str]:
    """Commands that make a FASTA record's file, or a batch's directory of links, at `target`.

    `target` is a word of bash; what holds it is there.
    """
    if job.fasta:
        start, length = job.fasta.offset + 1, job.fasta.length
        return [f"tail -c +{start} {shell_word(job.fasta.file)} | head -c {length} >{target}"]
    if job.batch is None:
        return []
    names = Counter(os.path.basename(path) for path in job.batch)
    lines = [f"mkdir -p {target}"]
    for place, path in enumerate(job.batch):
        name = os.path.basename(path)
        link = name if names[name] == 1 else f"{place}-{name}"
        lines.append(f"ln -sfn {shell_word(path)} {target}/{shell_word(link)}")
    return lines


def body(job: Job, values: Values, per_job: Mapping[str, str]) -> list[str]:
    """Return a script's lines that make a job's attempts, with GPULAUNCH_JOB and _RUN_DIR set.

    Its output is kept in logs/, what it leaves in {{out}} in out/, with a link in results/ where
    it succeeded. `per_job` is what differs from job to job of one script: its `cwd`, and the
    commands that make its input.
    """
    job, tries = _with_card(job), 1 + job.retry.times
    numbers = " ".join(map(str, range(1, tries + 1)))
    if tries > 20:
        numbers = f"$(seq {tries})"
    run = program(job, values)
    attempt = [
        'GPULAUNCH_OUT=$(mktemp -d "$GPULAUNCH_RUN_DIR/out/$GPULAUNCH_JOB.XXXXXX") || exit',
        *([free_port()] if wants(job, "port") else []),
        " ".join([*(f"{n}={spelt}" for n, spelt in own_variables(job, values)), run]),
        *_judged(job, values),
    ]
    exported = ["GPULAUNCH_ATTEMPT", "GPULAUNCH_OUT", "GPULAUNCH_LOG"]
    exported += ["GPULAUNCH_PORT"] if wants(job, "port") else []
    keep = 'GPULAUNCH_KEEP="$GPULAUNCH_RUN_DIR/keep/$GPULAUNCH_JOB"'
    exported += ["GPULAUNCH_KEEP"] if job.keep else []
    return [
        'mkdir -p "$GPULAUNCH_RUN_DIR"/{logs,out,results} || exit',
        *([per_job["input"]] if "input" in per_job else []),
        f"cd -- {per_job['cwd']} || exit",
        'GPULAUNCH_LOG="$GPULAUNCH_RUN_DIR/logs/$GPULAUNCH_JOB.log"',
        *([f'{keep} && mkdir -p "$GPULAUNCH_KEEP" || exit'] if job.keep else []),
        *([] if job.inherit_ranks else [f"unset {RANKS}"]),
        f"export {THREADS}=${{{THREADS}:-1}} {' '.join(exported)}",
        'exec >>"$GPULAUNCH_LOG" 2>&1 </dev/null',
        *([f"module load {shell_words(job.modules)} || exit"] if job.modules else []),
        f"for GPULAUNCH_ATTEMPT in {numbers}; do",
        *("  " + line for line in attempt),
        "done",
        'exit "$status"',
    ]


def _judged(job: Job, values: Values) -> list[str]:
    lines = ["status=$?"]
    codes = sorted(job.success_codes)
    if codes != [0]:
        good = "|".join(map(str, codes))
        other = "" if 0 in codes else " 0) status=1 ;;"
        lines.append(f'case "$status" in {good}) status=0 ;;{other} esac')
    for spelt, is_pattern in outputs(job, values):
        test = f"compgen -G {spelt} >/dev/null" if is_pattern else f"[ -s {spelt} ]"
        said = f'{{ echo "no output" {spelt}; status=1; }}'
        lines.append(f'[ "$status" != 0 ] || {test} || {said}')
    lines.append('if [ "$status" = 0 ]; then')
    lines.append('  rmdir "$GPULAUNCH_OUT" 2>/dev/null ||')
    lines.append('    ln -sfn "$GPULAUNCH_OUT" "$GPULAUNCH_RUN_DIR/results/$GPULAUNCH_JOB"')
    lines.append("  exit 0")
    lines.append("fi")
    if job.retry.times and job.retry.delay:
        last = 1 + job.retry.times
        delay = number(job.retry.delay)
        lines.append(f'[ "$GPULAUNCH_ATTEMPT" = {last} ] || sleep {delay}')
    return lines


def longest(job: Job) -> float | None:
    """Seconds that all its attempts may take, with a minute to spare; None: no limit."""
    if job.timeout is None:
        return None
    tries = 1 + job.retry.times
    return ceil(tries * (job.timeout + job.grace) + job.retry.times * job.retry.delay + 60)


def heading(chosen: ExportSelection, how: list[str]) -> list[str]:
    """Return the comment at the top: where it is from, how it is used, what is not as in a run."""
    lines = [f"Made from {one_line(chosen.plan.source.name)} by `gpulaunch export`.", *how]
    if chosen.notes:
        lines += ["", "Not as in `gpulaunch run`:"]
        lines += [f"  {one_line(str(note))}" for note in chosen.notes]
    return [f"# {line}".rstrip() for line in lines]


def one_line(text: str) -> str:
    """Text for a comment: whatever is in it, it is one."""
    return "".join(char if char.isprintable() else " " for char in text)
