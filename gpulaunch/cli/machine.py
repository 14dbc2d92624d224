"""What is on this machine: `gpulaunch gpus`, `ps`, `doctor`, `config`, and the server `mcp`.

Each imports for itself what the others do without.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, cast

import click
from msgspec.structs import replace

from gpulaunch.base.errors import OK, USAGE, UsageError
from gpulaunch.base.extras import require
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.cli.options import as_json
from gpulaunch.cli.output import print_json, say, stdout_console
from gpulaunch.core.model import JobState
from gpulaunch.observe.present.plan import RunRow, runs_json

if TYPE_CHECKING:
    from gpulaunch.run.control_client import RunInfo


@click.command("gpus")
@as_json
def gpus(as_json: bool) -> None:
    """Show the cards: index, UUID, name, memory, who uses them, who leases them, health.

    The indices are those that --gpus takes.

    \b
    gpulaunch gpus
    """
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run.settings import cards_here

    rows = cards_here(Terminal())
    if as_json:
        print_json({"schema": SCHEMA, "gpus": rows})
    elif rows:
        from gpulaunch.observe.terminal.machine import print_gpus

        print_gpus(stdout_console(), rows)


@click.command("ps")
@as_json
def ps(as_json: bool) -> None:
    """List the runs alive on this machine, of all users.

    \b
    gpulaunch ps
    """
    from gpulaunch.journal.codec import now
    from gpulaunch.run.control_client import live_runs

    rows = [_run_of(info) for info in live_runs()]
    if as_json:
        print_json(runs_json(rows))
    else:
        from gpulaunch.observe.terminal.machine import print_runs

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
    from gpulaunch.engines import isolation, keepers
    from gpulaunch.engines.local import containers, memory_limits
    from gpulaunch.engines.local.mps import system as mps
    from gpulaunch.engines.pool import free_below_of
    from gpulaunch.engines.slurm import health
    from gpulaunch.gpus.doctor import examine
    from gpulaunch.jobfile.config import current
    from gpulaunch.jobfile.config_model import LEASE_DIR, lease_dir, setting_of
    from gpulaunch.run import clean
    from gpulaunch.run import settings as configured

    config = current()
    locks, source = lease_dir(config, os.environ)
    findings = examine(
        os.environ if locks is None else {**os.environ, LEASE_DIR: locks},
        isolation=isolation.finding,
        cluster=health.finding,
        keepers=keepers.finding,
        logout=configured.finding,
        left=(containers.finding, clean.find_lack_of_room),
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


# ── `gpulaunch config` ────────────────────────────────────────────────────────────────────────────


@click.command("config")
@as_json
def config(as_json: bool) -> int:
    """Print every setting that is in force, and the file and line, or variable, that it is from.

    The machine's file is /etc/gpulaunch/config.yaml, the user's $XDG_CONFIG_HOME/gpulaunch/
    config.yaml (~/.config). Exits 2 where one of them has a mistake, which is said: nothing is
    started until it is mended.

    \b
    gpulaunch config
    """
    from gpulaunch.observe.present.words import visible, visible_lines
    from gpulaunch.run.settings import in_force

    found = in_force()
    if as_json:
        settings = [{"key": s.key, "value": s.value, "source": s.source} for s in found.settings]
        mistakes = [one.plain() for one in found.mistakes]
        told = {"files": list(found.files), "settings": settings, "mistakes": mistakes}
        print_json({"schema": SCHEMA, **told})
    else:
        rows = [(s.key, visible(s.value), s.source) for s in found.settings]
        wide = [max(len(row[n]) for row in rows) for n in (0, 1)]
        for key, value, source in rows:
            click.echo(f"{key:<{wide[0]}}  {value:<{wide[1]}}  {source}")
    for mistake in found.mistakes:
        click.echo(visible_lines(mistake.text), err=True)
    return USAGE if found.mistakes else OK


# ── `gpulaunch mcp` ───────────────────────────────────────────────────────────────────────────────


@click.command("mcp")
def command() -> None:
    """Serve the Model Context Protocol on standard input and output, for a client that starts this.

    Its tools are check, run, add, status, why, logs, results, retry, cancel and gpus; none deletes.
    Runs are kept in, and found from, the directory in which it is started. A run that it starts
    goes on when it ends.

    \b
    gpulaunch mcp
    {"mcpServers": {"gpulaunch": {"command": "gpulaunch", "args": ["mcp"]}}}
    """
    require("mcp", "gpulaunch mcp")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread waits for a line all the time
    if sys.stdin.isatty():
        say("a client is to speak here, in the Model Context Protocol: Ctrl-C ends it")
    from gpulaunch.mcp.server import serve

    serve()
