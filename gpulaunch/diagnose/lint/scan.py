"""What a look at one file found, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.diagnose.lint.finding import Placed
from gpulaunch.diagnose.lint.runs import ProgramRun

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint.notebook import Notebook


class Module(Struct, frozen=True):
    """`module` is dotted, `level` the dots before it; `names` what is imported from it."""

    module: str
    level: int = 0
    names: tuple[str, ...] = ()


class FileScan(Struct, frozen=True):
    """What a file holds; nothing where it cannot be read.

    `indices` are the options that take the number of a card, as far as the file declares them.
    `lines` are those that `placed` counts; `book` is the notebook whose code cells they are.
    """

    placed: tuple[Placed, ...] = ()
    imports: tuple[Module, ...] = ()
    indices: frozenset[str] = frozenset()
    runs: tuple[ProgramRun, ...] = ()
    lines: Sequence[str] = ()
    book: Notebook | None = None
