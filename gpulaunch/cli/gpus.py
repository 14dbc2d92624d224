"""`gpulaunch gpus`: the cards, who uses them and who leases them."""

from __future__ import annotations

import os

import click

from gpulaunch.cli.options import as_json


@click.command("gpus")
@as_json
def command(as_json: bool) -> None:
    """Show the cards: index, UUID, name, memory, who uses them, who leases them, health.

    The indices are those that --gpus takes.

    \b
    gpulaunch gpus
    """
    from gpulaunch.cli.output import print_json, say, stdout_console
    from gpulaunch.gpus.discover import ProbeClient, find
    from gpulaunch.gpus.inventory import inventory
    from gpulaunch.views.gpus import gpus_json, print_gpus

    with ProbeClient(os.environ) as client:
        machine = find(os.environ, client=client)
        rows = inventory(machine, client)
    for fault in machine.faults:
        say(str(fault))
    if as_json:
        print_json(gpus_json(rows))
    elif rows:
        print_gpus(stdout_console(), rows)
