"""`gpulaunch gpus`, `ps` and `doctor`: what is on this machine, and what is wrong with it.

Each imports for itself what the others do without.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, cast

import click
from msgspec.structs import replace

from gpulaunch.cli.options import as_json
from gpulaunch.cli.output import print_json, stdout_console
from gpulaunch.contracts import SCHEMA
from gpulaunch.core.model import JobState
from gpulaunch.digest.machine import RunRow, runs_json
from gpulaunch.errors import UsageError

if TYPE_CHECKING:
    from gpulaunch.control.client import RunInfo


@click.command("gpus")
@as_json
def gpus(as_json: bool) -> None:
    """Show the cards: index, UUID, name, memory, who uses them, who leases them, health.

    The indices are those that --gpus takes.

    \b
    gpulaunch gpus
    """
    from gpulaunch.app.cards_here import cards_here
    from gpulaunch.cli.terminal import Terminal

    rows = cards_here(Terminal())
    if as_json:
        print_json({"schema": SCHEMA, "gpus": rows})
    elif rows:
        from gpulaunch.views.machine import print_gpus

        print_gpus(stdout_console(), rows)


@click.command("ps")
@as_json
def ps(as_json: bool) -> None:
    """List the runs alive on this machine, of all users.

    \b
    gpulaunch ps
    """
    from gpulaunch.control.client import live_runs
    from gpulaunch.journal.codec import now

    rows = [_run_of(info) for info in live_runs()]
    if as_json:
        print_json(runs_json(rows))
    else:
        from gpulaunch.views.machine import print_runs

        print_runs(stdout_console(), rows, now())


def _run_of(info: RunInfo) -> RunRow:
    from gpulaunch.journal.rundir import RunDir

    row = RunRow(info.id, info.pid, info.user, suspended=info.suspended)
    if info.dir is None:
        return replace(row, silent=info.own)
    row = replace(
        row,
        state=info.state,
        name=info.name or "",
        directory=str(info.dir),
        counts=cast(dict[JobState, int], dict(info.counts)),
    )
    try:
        manifest = RunDir(info.dir).read_manifest()
    except UsageError:
        return row
    cards = ", ".join(str(gpu.index) for gpu in manifest.gpus)
    started = None
    if manifest.started:
        started = datetime.fromisoformat(manifest.started.replace("Z", "+00:00")).timestamp()
    return replace(row, started=started, cards=cards, simulated=manifest.simulated)


@click.command("doctor")
@as_json
def doctor(as_json: bool) -> int:
    """Say what is wrong with this machine: driver, permissions, card order, leases, configuration.

    Where Slurm's programs are, also whether they answer. Exits 1 where it finds an error.

    \b
    gpulaunch doctor
    """
    from gpulaunch.app import configured, disk_room, logout
    from gpulaunch.config.files import current
    from gpulaunch.config.paths import LEASE_DIR, lease_dir, setting_of
    from gpulaunch.engines import keepers, strict
    from gpulaunch.engines.configured import free_below_of
    from gpulaunch.engines.local import containers, memory_limits
    from gpulaunch.engines.local.mps import system as mps
    from gpulaunch.engines.slurm import health
    from gpulaunch.gpus.doctor import examine

    config = current()
    locks, source = lease_dir(config, os.environ)
    findings = examine(
        os.environ if locks is None else {**os.environ, LEASE_DIR: locks},
        isolation=strict.finding,
        cluster=health.finding,
        keepers=keepers.finding,
        logout=logout.finding,
        left=(containers.finding, disk_room.finding),
        mps=mps.findings,
        memory=memory_limits.finding,
        configuration=configured.findings,
        free_below=free_below_of(config),
        lease_setting=setting_of(source),
    )
    if as_json:
        told = [{"level": one.level, "what": one.what, "advice": one.advice} for one in findings]
        print_json({"schema": SCHEMA, "findings": told})
    for finding in findings if not as_json else ():
        click.echo(f"{finding.level:<8} {finding.what}")
        if finding.advice:
            click.echo(f"{'':8} {finding.advice}")
    return int(any(finding.level == "error" for finding in findings))
