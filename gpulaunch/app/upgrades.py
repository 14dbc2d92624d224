"""Imports what a live run has not imported yet, before another gpulaunch may be installed.

A run that lasts for weeks imports some modules only at its end, or when a job fails. These modules
must be of the version that the run began with. The programs that it starts are copied: see
`process.programs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from gpulaunch.loop import Callback, Loop

IMPORT_AFTER = 5.0
"""Seconds after a run's start: its first jobs run by then, and many runs are over."""
LATER = (
    "gpulaunch.diagnose.failure.judge",
    "gpulaunch.diagnose.lint.python",
    "gpulaunch.engines.local.service_answer",
    "gpulaunch.views.overview",
)
"""What the modules of a live run import inside functions."""


def import_the_rest(loop: Loop, note: Callable[[str], object]) -> Callback:
    """Import in a thread, a while after the start of the run; return a function that forgets that.

    `note` takes a line for people if something cannot be imported.
    """
    forgets: list[Callback] = [lambda: loop.forget("imports")]

    def begin() -> None:
        try:
            forgets.append(loop.in_thread(_import, over))
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
            over(error)

    def over(found: Exception | None) -> None:
        if found is not None:
            note(f"do not upgrade gpulaunch while this run lives: {found}")

    def forget() -> None:
        for one in forgets:
            one()

    loop.call_after("imports", IMPORT_AFTER, begin)
    return forget


def _import() -> None:
    for name in LATER:
        importlib.import_module(name)
    from gpulaunch.environment_modules import script
    from gpulaunch.metrics.sql import queries

    queries()
    script()
