"""Whether Slurm takes jobs from this machine, for `gpulaunch doctor`: asks, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from gpulaunch.engines.slurm.commands import PROGRAMS, Config, Queue, Slurm
from gpulaunch.gpus.doctor import Finding
from gpulaunch.loop import Loop

LIMIT = 10.0
"""Seconds for each question: people wait for the answer."""


def finding(environ: Mapping[str, str], limit: float = LIMIT) -> Finding | None:
    """None where none of Slurm's programs is here."""
    with closing(Loop()) as loop, closing(Slurm(loop, environ, limit)) as slurm:
        if len(slurm.missing) == len(PROGRAMS):
            return None
        if slurm.missing:
            return Finding(
                "warning",
                f"of Slurm's programs {', '.join(slurm.missing)} not found in PATH",
                "`--engine slurm` needs all of " + ", ".join(PROGRAMS),
            )
        answers: list[object] = []
        slurm.ask(answers.append)
        slurm.queue(answers.append)
        while len(answers) < 2:
            loop.turn()
    config = next((answer for answer in answers if isinstance(answer, Config)), None)
    if config is not None and any(isinstance(answer, Queue) for answer in answers):
        what = f"Slurm {config.version} answers: sbatch, squeue, scancel and scontrol are here"
        return Finding("ok", what, "`gpulaunch run jobs.yaml --engine slurm` hands jobs over to it")
    why = next(text for answer in answers if (text := getattr(answer, "text", "")))
    advice = "what runs there goes on; jobs can be handed over when it answers again"
    return Finding(
        "warning", f"Slurm's programs are here, its controller does not answer: {why}", advice
    )
