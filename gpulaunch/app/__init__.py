"""gpulaunch from Python: what the commands do, as functions. Prints nothing and never exits.

    from gpulaunch.app import run, resume, retry, status

    end = run("jobs.yaml")
    if end.status:
        end = retry(end.path)

Each function writes the same journal and has the same exit status as the command of its name, which
is a thin skin on it. What goes wrong by the user's or the machine's doing is raised as a
`gpulaunch.errors.GpulaunchError`, whose `status` is the command's. An `Observer` that is passed
hears what becomes of the run while it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.app.asking import cancel as cancel
    from gpulaunch.app.asking import wait as wait
    from gpulaunch.app.changing import add_command as add_command
    from gpulaunch.app.changing import add_file as add_file
    from gpulaunch.app.changing import finish as finish
    from gpulaunch.app.changing import reload as reload
    from gpulaunch.app.changing import set_fields as set_fields
    from gpulaunch.app.draining import drain as drain
    from gpulaunch.app.gathering import results as results
    from gpulaunch.app.lookup import status as status
    from gpulaunch.app.observer import Observer as Observer
    from gpulaunch.app.options import RunOptions as RunOptions
    from gpulaunch.app.resuming import resume as resume
    from gpulaunch.app.resuming import retry as retry
    from gpulaunch.app.starting import run as run
    from gpulaunch.journal.choices import Choices as Choices

_MODULES = {
    "cancel": "app.asking",
    "add_command": "app.changing",
    "add_file": "app.changing",
    "finish": "app.changing",
    "reload": "app.changing",
    "set_fields": "app.changing",
    "drain": "app.draining",
    "results": "app.gathering",
    "wait": "app.asking",
    "status": "app.lookup",
    "Observer": "app.observer",
    "RunOptions": "app.options",
    "resume": "app.resuming",
    "retry": "app.resuming",
    "run": "app.starting",
    "Choices": "journal.choices",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    """Import a function at its first use: a command imports what it needs alone."""
    if name in _MODULES:
        return getattr(import_module(f"gpulaunch.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
