"""`gpulaunch ps`: the runs alive on this machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

import click

from gpulaunch.cli.options import as_json

if TYPE_CHECKING:
    from gpulaunch.control.client import RunInfo
    from gpulaunch.digest.runs import RunRow


@click.command("ps")
@as_json
def command(as_json: bool) -> None:
    """List the runs alive on this machine, of all users.

    \b
    gpulaunch ps
    """
    from gpulaunch.cli.output import print_json, stdout_console
    from gpulaunch.control.client import live_runs
    from gpulaunch.digest.runs import runs_json
    from gpulaunch.journal.codec import now
    from gpulaunch.views.runs import print_runs

    rows = [_row(info) for info in live_runs()]
    if as_json:
        print_json(runs_json(rows))
    else:
        print_runs(stdout_console(), rows, now())


def _row(info: RunInfo) -> RunRow:
    from gpulaunch.core.model import JobState
    from gpulaunch.digest.runs import RunRow
    from gpulaunch.errors import UsageError
    from gpulaunch.journal.rundir import RunDir

    row = RunRow(info.id, info.pid, info.user)
    if info.dir is None:
        return replace(row, silent=info.own)
    row = replace(
        row,
        state=info.state,
        name=info.name or "",
        directory=str(info.dir),
        counts=cast("dict[JobState, int]", dict(info.counts)),
    )
    try:
        manifest = RunDir(info.dir).read_manifest()
    except UsageError:
        return row
    cards = ", ".join(str(gpu.index) for gpu in manifest.gpus)
    started = datetime.fromisoformat(manifest.started.replace("Z", "+00:00")).timestamp()
    return replace(row, started=started, cards=cards, simulated=manifest.simulated)
