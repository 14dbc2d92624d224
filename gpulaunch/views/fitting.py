"""Checks whether a table fits a screen without cut cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulaunch.views.terminal import UNBOUNDED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ENDLESS = 1_000_000


def fits(console: Console, table: Table, last: int | None = None) -> bool:
    """Whether no cell need be cut or folded; `last` columns are enough for the last one."""
    from rich.measure import Measurement

    if console.width >= UNBOUNDED:
        return True
    end = table.columns[-1]
    end.max_width, before = last, end.max_width
    options = console.options.update(max_width=_ENDLESS)
    wanted = Measurement.get(console, options, table).maximum
    end.max_width = before
    return wanted <= console.width
