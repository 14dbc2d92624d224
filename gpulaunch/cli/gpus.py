"""`gpulaunch gpus`: the cards, who uses them and who leases them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpulaunch.cli.options import as_json

if TYPE_CHECKING:
    from gpulaunch.digest.gpus import GpuRow
    from gpulaunch.gpus.inventory import InventoryRow


@click.command("gpus")
@as_json
def command(as_json: bool) -> None:
    """Show the cards: index, UUID, name, memory, who uses them, who leases them, health.

    The indices are those that --gpus takes.

    \b
    gpulaunch gpus
    """
    from gpulaunch.cli.output import print_json, say, stdout_console
    from gpulaunch.digest.gpus import gpus_json
    from gpulaunch.errors import UsageError
    from gpulaunch.gpus.discover import ProbeClient, find
    from gpulaunch.gpus.inventory import inventory
    from gpulaunch.gpus.lease import scope_of
    from gpulaunch.gpus.mask import pool
    from gpulaunch.views.gpus import print_gpus

    with ProbeClient(os.environ) as client:
        machine = find(os.environ, client=client)
        try:
            ours = pool(machine, os.environ)
        except UsageError as error:  # the mask may mean two cards: a run would refuse it
            ours = None
            say(str(error))
        rows = [_row(row) for row in inventory(machine, client, scope_of(os.environ), ours)]
    for fault in machine.faults:
        say(str(fault))
    if as_json:
        print_json(gpus_json(rows))
    elif rows:
        print_gpus(stdout_console(), rows)


def _row(row: InventoryRow) -> GpuRow:
    from gpulaunch.digest.gpus import GpuRow, GpuUser

    users = [GpuUser(p.pid, p.user, p.command, p.memory) for p in row.processes]
    return GpuRow(
        index=-1 if row.index is None else row.index,
        uuid=row.uuid,
        name=row.name,
        memory=row.memory,
        used=row.used,
        users=tuple(users),
        lease=None if row.holder is None else str(row.holder),
        health=row.health,
        state=row.occupied,
        simulated=row.simulated,
        outside=row.outside,
    )
