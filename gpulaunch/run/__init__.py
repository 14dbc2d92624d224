"""gpulaunch from Python: what the commands do, as functions. Prints nothing and never exits.

    from gpulaunch.run import run, resume, retry, status

    end = run("jobs.yaml")
    if end.status:
        end = retry(end.path)

Each function writes the same journal and has the same exit status as the command of its name, which
is a thin skin on it. What goes wrong by the user's or the machine's doing is raised as a
`gpulaunch.base.errors.GpulaunchError`, whose `status` is the command's. An `Observer` that is
passed hears what becomes of the run while it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.journal.choices import Choices as Choices
    from gpulaunch.run.edit import add_command as add_command
    from gpulaunch.run.edit import add_file as add_file
    from gpulaunch.run.edit import finish as finish
    from gpulaunch.run.edit import reload as reload
    from gpulaunch.run.edit import set_fields as set_fields
    from gpulaunch.run.lookup import status as status
    from gpulaunch.run.options import Observer as Observer
    from gpulaunch.run.options import RunOptions as RunOptions
    from gpulaunch.run.outputs import results as results
    from gpulaunch.run.requests import cancel as cancel
    from gpulaunch.run.requests import drain as drain
    from gpulaunch.run.requests import wait as wait
    from gpulaunch.run.resumption import resume as resume
    from gpulaunch.run.resumption import retry as retry
    from gpulaunch.run.start import run as run

_MODULES = {
    "Choices": "journal.choices",
    "Observer": "run.options",
    "RunOptions": "run.options",
    "add_command": "run.edit",
    "add_file": "run.edit",
    "cancel": "run.requests",
    "drain": "run.requests",
    "finish": "run.edit",
    "reload": "run.edit",
    "results": "run.outputs",
    "resume": "run.resumption",
    "retry": "run.resumption",
    "run": "run.start",
    "set_fields": "run.edit",
    "status": "run.lookup",
    "wait": "run.requests",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    """Import a function at its first use: a command imports what it needs alone."""
    if name in _MODULES:
        return getattr(import_module(f"gpulaunch.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
