"""`gpulaunch queue`: a user's standing run, which stays when it is empty."""

from __future__ import annotations

from typing import Any

import click

from gpulaunch.cli import completion
from gpulaunch.cli.options import (
    as_json,
    engine_options,
    per_gpu,
    pool_options_again,
    run_options,
    run_options_of,
)
from gpulaunch.cli.output import say
from gpulaunch.cli.status import status
from gpulaunch.cli.terminal import Terminal
from gpulaunch.run import user_queue
from gpulaunch.run.settings import lingers

_ELSEWHERE = {
    "gpulaunch add -- CMD adds to it": "add submit enqueue push put run",
    "gpulaunch queue shows its jobs": "ls list show ps jobs info",
    "gpulaunch logs -r queue JOB": "log logs cat tail follow output",
    "gpulaunch cancel -r queue JOB, or --all": "cancel kill rm remove del clear clean empty",
    "gpulaunch retry -r queue JOB": "retry restart rerun",
    "gpulaunch set -r queue JOB priority=5": "set edit priority move top up switch",
    "gpulaunch drain -r queue, and --off to go on": "pause hold drain suspend",
    "gpulaunch finish -r queue": "finish close end",
    "gpulaunch queue start goes on with it": "resume continue restart begin",
}
"""What is done to a queue by other commands, by words that people try."""


class QueueGroup(click.Group):
    """The queue's commands; of another word it says which command does that."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ours = (how for how, words in _ELSEWHERE.items() if args[0] in words.split())
            known = f"it has {', '.join(self.commands)}"
            raise click.UsageError(f"queue has no command {args[0]!r}: {next(ours, known)}")
        return super().resolve_command(ctx, args)


@click.group("queue", invoke_without_command=True, cls=QueueGroup)
@click.pass_context
def queue(context: click.Context) -> None:
    """Your standing run: it waits for jobs, and `gpulaunch add` brings them from any directory.

    Without a command, its status.

    \b
    gpulaunch queue start --detach
    gpulaunch add -- python train.py
    gpulaunch queue
    """
    if context.invoked_subcommand is None:
        context.invoke(status, run=str(user_queue.found().path))


@queue.command("start")
@pool_options_again
@per_gpu
@engine_options
@run_options
def start(**options: Any) -> int:
    """Begin the queue, or go on with it after a stop, a crash or a boot.

    \b
    gpulaunch queue start --detach
    gpulaunch queue start --gpus 0,1 --detach
    """
    return user_queue.start(run_options_of(options), Terminal(options)).status


@queue.command("stop")
def stop() -> None:
    """Stop the queue: what runs is interrupted, and goes on with the next start.

    \b
    gpulaunch queue stop
    """
    run = user_queue.stop()
    say(f"{run.path}: stopped; go on with it: gpulaunch queue start --detach")


@queue.command("status")
@click.argument("job", required=False, metavar="[JOB]", shell_complete=completion.jobs_of_queue)
@click.option("--all", "everything", is_flag=True, help="List every job.")
@as_json
@click.pass_context
def status_of(context: click.Context, job: str | None, everything: bool, as_json: bool) -> None:
    """Show the queue's jobs, or one of them, as `gpulaunch status` does a run's.

    \b
    gpulaunch queue status
    """
    run = str(user_queue.found().path)
    context.invoke(status, what=job, run=run, everything=everything, as_json=as_json)


@queue.command("install")
@pool_options_again
@per_gpu
@engine_options
def install(**options: Any) -> None:
    """Write a systemd user unit that starts the queue, with these options, at boot.

    \b
    gpulaunch queue install --gpus 0,1
    """
    unit = user_queue.install(run_options_of(options).words())
    say(f"wrote {unit}; it starts with")
    say(f"  systemctl --user daemon-reload && systemctl --user enable --now {unit.name}")
    if not lingers():
        say("and without your login, at boot and after a logout, with")
        say("  loginctl enable-linger")
