"""`gpulaunch mcp`: the same verbs for programs that speak the Model Context Protocol."""

from __future__ import annotations

import signal
import sys

import click

from gpulaunch.cli.output import say
from gpulaunch.extras import require


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
