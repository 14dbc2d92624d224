"""`gpulaunch each`: one command on every card of the pool."""

from __future__ import annotations

from typing import Any

import click

from gpulaunch.cli import completion
from gpulaunch.cli.made_list import container_entry, run_made
from gpulaunch.cli.options import (
    command_words,
    container_options,
    default,
    kind_options,
    pool_options,
    refuse_option_as_command,
    run_dir,
    run_options,
)


@click.command(
    "each", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--name", default="each", help="The run's name (each).")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Restarts of a copy (0).")
@click.option(
    "--on",
    multiple=True,
    metavar="CLASS",
    shell_complete=completion.failure_classes,
    help="Restart after these alone: --on exit,gpu_lost.",
)
@click.option("--delay", metavar="TIME", help="How long to wait before a restart.")
@click.option("--timeout", metavar="TIME", help="The longest that a copy may run.")
@click.option("--gpu-memory", metavar="SIZE", help="Only once its card has so much free: 16GB.")
@click.option("--memory", metavar="SIZE", help="Host memory of a copy: 64GB.")
@run_dir
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@pool_options
@kind_options
@container_options
@default
@run_options
@command_words("words", "CMD...")
def command(
    name: str,
    retries: int | None,
    on: tuple[str, ...],
    delay: str | None,
    container: str | None,
    mount: tuple[str, ...],
    words: tuple[str, ...],
    **options: Any,
) -> int:
    """CMD once on every card, each copy seeing its own as cuda:0.

    For what takes its work from elsewhere, one process a card: agents of a sweep, workers of a
    study, a server on each card. A card that somebody else uses gets its copy once it is free.
    Copies are jobs card-0, card-1 ... of a run like any other: status, logs, cancel and resume
    work. {{item}} in CMD is the card's index, {{port}} a free port, {{out}} a directory.

    One word of CMD is a shell command, several are executed as they are. A copy that ends with
    status 0 has succeeded; others are restarted up to --retries times.

    \b
    gpulaunch each -- wandb agent LAB/PROJECT/SWEEP
    gpulaunch each --retries 5 --on exit,gpu_lost -- python worker.py --study folding
    gpulaunch each --gpus 0,2 -- vllm serve MODEL --port '800{{item}}'
    """
    run = list(words)
    refuse_option_as_command(run)
    given = ("timeout", "gpu_memory", "memory", "card", "compute", "affinity")
    typed = {field: options[field] for field in given if options[field] is not None}
    job = {
        "name": "card-{{item}}",
        "foreach": "cards",
        "run": run[0] if len(run) == 1 else run,
        **typed,
        **_restarts(retries, on, delay),
        **container_entry(container, mount),
    }
    return run_made({"name": name, "jobs": [job]}, "each", options)


def _restarts(times: int | None, on: tuple[str, ...], delay: str | None) -> dict[str, Any]:
    """Return the entry's `retries`, if restarts are asked for; once, where no number is given."""
    if times is None and not on and delay is None:
        return {}
    spec: dict[str, Any] = {"times": "1" if times is None else str(times)}
    if on:
        spec["on"] = [kind for some in on for kind in some.split(",")]
    if delay is not None:
        spec["delay"] = delay
    return {"retries": spec}
