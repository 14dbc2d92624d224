"""Chooses a run's view: live on a terminal that can redraw, else a line per event."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from gpulaunch.views.lines import LineView
from gpulaunch.views.terminal import View, can_redraw, console_for, wants_color


def choose_view(
    stream: TextIO,
    environ: Mapping[str, str] = os.environ,
    quiet: bool = False,
    no_progress: bool = False,
    earlier: Mapping[str, float] | None = None,
) -> View:
    """Return the view that fits the stream: live if it can redraw, else a line per event.

    `earlier`: how long jobs took in earlier runs, for the estimate.
    """
    if quiet or no_progress or not can_redraw(stream, environ):
        return LineView(stream, color=wants_color(stream, environ), quiet=quiet)
    from gpulaunch.views.progress import ProgressView

    return ProgressView(console_for(stream, environ), earlier)
