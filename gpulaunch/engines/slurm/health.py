"""Checks whether Slurm takes jobs from this machine; asks, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from gpulaunch.base.loop import Loop
from gpulaunch.engines.slurm.commands import (
    PROGRAMS,
    Config,
    QueueListing,
    ScriptsAnswer,
    Slurm,
    Unreachable,
)
from gpulaunch.engines.slurm.rundir import TITLES, SlurmDir
from gpulaunch.gpus.machine import DoctorFinding

QUESTION_TIMEOUT = 10.0
"""Seconds for each question: people wait for the answer."""


def unconfigured(environ: Mapping[str, str], limit: float = QUESTION_TIMEOUT) -> str:
    """Return why Slurm's programs know of no cluster here; empty if they do, or if unknown."""
    conf = environ.get("SLURM_CONF")
    if conf and not os.path.exists(conf):
        return f"SLURM_CONF is {conf}, which does not exist"
    with closing(Loop()) as loop, closing(Slurm(loop, environ, limit)) as slurm:
        said: list[str] = []
        slurm.look_for_config(said.append)
        while not said:
            loop.turn()
    if not said[0]:
        return ""
    unset = "" if conf else ", and SLURM_CONF is not set"
    return f"Slurm's programs have no configuration that they can use{unset}: {said[0]}"


def find_runs_in_queue(
    environ: Mapping[str, str], limit: float = QUESTION_TIMEOUT
) -> tuple[list[Path], str]:
    """Return the directories of this user's runs whose jobs wait or run, else why none can be told.

    Of a machine without Slurm's programs, or without a configuration, nothing is told.
    """
    with closing(Loop()) as loop, closing(Slurm(loop, environ, limit)) as slurm:
        if slurm.missing or unconfigured(environ, limit):
            return [], ""
        answers: list[ScriptsAnswer] = []
        slurm.scripts(answers.append)
        while not answers:
            loop.turn()
    match answers[0]:
        case Unreachable(text):
            return [], text
        case jobs:
            return directories_of(jobs), ""


def directories_of(jobs: Iterable[tuple[str, str]]) -> list[Path]:
    """Return the run directory of each job of a run, once, by the job's name and its command."""
    script = f"{SlurmDir(Path('/')).batch_script} "
    found = (command.rpartition(script) for name, command in jobs if name.startswith(TITLES))
    return list(dict.fromkeys(Path(directory) for directory, below, _ in found if below))


def finding(environ: Mapping[str, str], limit: float = QUESTION_TIMEOUT) -> DoctorFinding | None:
    """Return what `doctor` says of Slurm; None if none of its programs is here."""
    with closing(Loop()) as loop, closing(Slurm(loop, environ, limit)) as slurm:
        if len(slurm.missing) == len(PROGRAMS):
            return None
        if slurm.missing:
            return DoctorFinding(
                "warning",
                f"of Slurm's programs {', '.join(slurm.missing)} not found in PATH",
                "`--engine slurm` needs all of " + ", ".join(PROGRAMS),
            )
        if why := unconfigured(environ, limit):
            return DoctorFinding(
                "warning", why, "without one `--engine slurm` cannot hand jobs over"
            )
        answers: list[object] = []
        slurm.ask(answers.append)
        slurm.queue(answers.append)
        while len(answers) < 2:
            loop.turn()
    config = next((answer for answer in answers if isinstance(answer, Config)), None)
    if config is not None and any(isinstance(answer, QueueListing) for answer in answers):
        what = f"Slurm {config.version} answers: sbatch, squeue, scancel and scontrol are here"
        return DoctorFinding(
            "ok", what, "`gpulaunch run jobs.yaml --engine slurm` hands jobs over to it"
        )
    why = next(text for answer in answers if (text := getattr(answer, "text", "")))
    advice = "what runs there goes on; jobs can be handed over when it answers again"
    return DoctorFinding(
        "warning", f"Slurm's programs are here, its controller does not answer: {why}", advice
    )
