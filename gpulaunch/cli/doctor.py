"""`gpulaunch doctor`: what is wrong with this machine."""

from __future__ import annotations

import os

import click

from gpulaunch.cli.options import as_json


@click.command("doctor")
@as_json
def command(as_json: bool) -> int:
    """Say what is wrong with this machine: driver, permissions, card order, leases, isolation.

    Where Slurm's programs are, also whether they answer. Exits 1 where it finds an error.

    \b
    gpulaunch doctor
    """
    from gpulaunch.cli.output import print_json
    from gpulaunch.contracts import SCHEMA, DoctorDocument, MachineFinding
    from gpulaunch.engines import strict
    from gpulaunch.engines.slurm import health
    from gpulaunch.gpus.doctor import examine

    findings = examine(os.environ, isolation=strict.finding, cluster=health.finding)
    if as_json:
        told = [
            MachineFinding(level=one.level, what=one.what, advice=one.advice) for one in findings
        ]
        print_json(DoctorDocument(schema=SCHEMA, findings=told))
    for finding in findings if not as_json else ():
        click.echo(f"{finding.level:<8} {finding.what}")
        if finding.advice:
            click.echo(f"{'':8} {finding.advice}")
    return int(any(finding.level == "error" for finding in findings))
