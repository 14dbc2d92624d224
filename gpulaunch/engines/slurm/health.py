"""Checks whether Slurm takes jobs from this machine; asks, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

from gpulaunch.engines.slurm.commands import PROGRAMS, Config, QueueListing, Slurm
from gpulaunch.gpus.finding import DoctorFinding
from gpulaunch.loop import Loop

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
