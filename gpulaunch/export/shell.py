"""The lines that people type into a terminal for each card, as one bash script.

A job is one line, which can be copied on its own; what keeps account of it stands in lines of its
own, marked `#:` at their end, which `gpulaunch init` leaves out when it reads the script back.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from gpulaunch.core.model import Job
from gpulaunch.export.look import ExportSelection
from gpulaunch.export.pieces import (
    RANKS,
    free_port,
    heading,
    input_lines,
    number,
    outputs,
    own_variables,
    program,
    wants,
)
from gpulaunch.export.split import TerminalLane, rounds
from gpulaunch.export.words import Value, Variable, word, words
from gpulaunch.text import several

ACCOUNT = r"""#: Keeping account, down to the next line like this one.
if ! mkdir -p -- "${run%/*}" || ! mkdir -- "$run"; then
  echo "$run: outputs and logs of this script go there; move away what is there" >&2
  exit 1
fi
mkdir "$run"/{logs,out,results,ends,inputs}
exec </dev/null
unset BASH_ENV
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((($(nproc) + gpus - 1) / gpus))}"
export GPULAUNCH_RUN_DIR="$run" GPULAUNCH_JOB= GPULAUNCH_OUT= GPULAUNCH_ATTEMPT=

# begin NAME [NEED ...]: whether an attempt of NAME is to start now. Every NEED has ended.
begin() {
  local need out="$run/out/$1.1"
  [ ! -e "$run/ends/$1" ] || return 1
  for need in "${@:2}"; do
    if [ "$(cat -- "$run/ends/$need")" != 0 ]; then
      echo "$1: skipped: $need did not succeed" >&2
      echo skipped >"$run/ends/$1"
      return 1
    fi
  done
  [ "$GPULAUNCH_JOB" = "$1" ] || GPULAUNCH_ATTEMPT=0
  [ ! -e "$out" ] || mv -- "$out" "$out.failed-$GPULAUNCH_ATTEMPT"
  mkdir -- "$out"
  GPULAUNCH_JOB=$1 GPULAUNCH_OUT=$out GPULAUNCH_ATTEMPT=$((GPULAUNCH_ATTEMPT + 1))
}

# ended NAME [OUTPUT | -G PATTERN ...]: what came of the line before. tries, delay and codes (those
# of success) may be set for it.
ended() {
  local status=$? name=$1 test=-s
  case " ${codes:-0} " in *" $status "*) status=0 ;; *) [ "$status" != 0 ] || status=1 ;; esac
  shift
  while [ "$status" = 0 ] && [ $# -gt 0 ]; do
    if [ "$1" = -G ]; then
      shift
      compgen -G "$1" >/dev/null || status=1
    else
      [ -s "$1" ] || status=1
    fi
    [ "$status" = 0 ] || echo "$name: no output $1" >&2
    shift
  done
  if [ "$status" = 0 ]; then
    rmdir -- "$GPULAUNCH_OUT" 2>/dev/null || ln -s -- "../out/$name.1" "$run/results/$name"
  else
    echo "$name: failed ($status), see $run/logs/$name.1.log" >&2
    if [ "$GPULAUNCH_ATTEMPT" -lt "${tries:-1}" ]; then
      sleep "${delay:-0}"
      return
    fi
  fi
  echo "$status" >"$run/ends/$name"
}

# The processes below a process, and so on down: what a terminal that is closed would end.
end_below() {
  local pid
  for pid in $(ps -o pid= --ppid "$1"); do
    end_below "$pid"
    kill "$pid" 2>/dev/null
  done
}
trap 'end_below $$; exit 130' INT
trap 'end_below $$; exit 143' TERM HUP
#: The jobs."""

SUM = r"""#: How it all ended.
failed=0
for end in "$run"/ends/*; do
  [ "$(cat -- "$end")" = 0 ] || failed=$((failed + 1))
done
echo "$failed of {count} did not succeed; logs, outputs and exit statuses are in $run" >&2
[ "$failed" = 0 ]
#: That is all."""


def to_shell(chosen: ExportSelection, gpus: int) -> str:
    """The script for so many cards."""
    how = [
        f"  bash FILE      for {several(gpus, 'card')}: a terminal each, all at once",
        "Or copy single lines: each that begins with CUDA_VISIBLE_DEVICES stands for itself.",
        f"Logs, outputs and exit statuses go to {chosen.directory}",
    ]
    base = str(chosen.plan.base)
    lines = ["#!/bin/bash", *heading(chosen, how)]
    lines += [f"cd -- {word(base)} || exit #:", f"run={word(chosen.directory)} gpus={gpus} #:"]
    lines.append(ACCOUNT)
    if not any(job.inherit_ranks for job in chosen.jobs):
        lines.append(f"unset {RANKS} #:")
    first = True
    for lanes in rounds(chosen.jobs, gpus, chosen.plan.limits):
        if not first:
            lines += ["", "# when all of those have ended", "wait"]
        first = False
        for lane in lanes:
            lines += ["", *_section(chosen, lane)]
    lines += ["", "wait", SUM.replace("{count}", str(len(chosen.jobs)))]
    return "\n".join(lines) + "\n"


def _section(chosen: ExportSelection, lane: TerminalLane) -> Iterator[str]:
    yield f"( # terminal {lane.number} #:"
    for job in lane.jobs:
        yield from _job(chosen, job, lane.cards)
    yield ") & #:"


def _job(chosen: ExportSelection, job: Job, cards: tuple[int, ...]) -> Iterator[str]:
    name = word(job.name)
    values = _values(chosen, job, cards)
    if job.after:
        yield f": after {words(job.after)} #:"
    yield f"while begin {words([job.name, *job.needs])}; do #:"
    for line in input_lines(job, word(_input(chosen, job))):
        yield f"{line} #:"
    if wants(job, "port"):
        yield f"export {free_port()}"
    yield _line(chosen, job, cards, values)
    after = [name]
    for spelt, is_pattern in outputs(job, values, absolute=True):
        after += ["-G", spelt] if is_pattern else [spelt]
    yield f"{_terms(job)}ended {' '.join(after)}; done #:"


def _terms(job: Job) -> str:
    terms = ""
    if job.retry.times:
        terms += f"tries={1 + job.retry.times} "
        terms += f"delay={number(job.retry.delay)} " if job.retry.delay else ""
    if job.success_codes != {0}:
        terms += f"codes='{' '.join(map(str, sorted(job.success_codes)))}' "
    return terms


def _line(
    chosen: ExportSelection, job: Job, cards: tuple[int, ...], values: dict[str, Value]
) -> str:
    """The job, as it would be typed."""
    mask = ",".join(map(str, cards)) if job.demand.gpus else ""
    assigned = [f"CUDA_VISIBLE_DEVICES={mask}"]
    if job.demand.gpus:
        assigned.append("CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assigned += [f"{name}={spelt}" for name, spelt in own_variables(job, values)]
    run = " ".join([*assigned, program(job, values)])
    if job.cwd != str(chosen.plan.base):
        run = f"( cd -- {word(job.cwd)} && {run} )"
    return f"{run} >>{word(_log(chosen, job))} 2>&1"


def _values(chosen: ExportSelection, job: Job, cards: tuple[int, ...]) -> dict[str, Value]:
    """Nearly all is known beforehand, and so stands in the line itself."""
    again = job.retry.times > 0
    return {
        "run_dir": chosen.directory,
        "out": os.path.join(chosen.directory, "out", f"{job.name}.1"),
        "log": _log(chosen, job),
        "gpu": "0" if job.demand.gpus else "",
        "gpu_index": ",".join(map(str, cards)) if job.demand.gpus else "",
        "attempt": Variable("GPULAUNCH_ATTEMPT") if again else "1",
        "port": Variable("GPULAUNCH_PORT"),
        "path": _input(chosen, job),
        "batch_dir": _input(chosen, job),
    }


def _log(chosen: ExportSelection, job: Job) -> str:
    return os.path.join(chosen.directory, "logs", f"{job.name}.1.log")


def _input(chosen: ExportSelection, job: Job) -> str:
    return os.path.join(chosen.directory, "inputs", job.name)
