"""What the helpers raise, each text complete: what was expected, found, where, what to do.

The report on torch's own errors is made by gpulaunch.diagnose.explain, which also works where
gpulaunch is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gpulaunch.diagnose.explain.report.main import report
from gpulaunch.diagnose.explain.report.tensors import NamedTensor


class DeviceMismatchError(RuntimeError):
    """Tensors that meet, or would meet, are on several devices. `odd` has those to move."""

    def __init__(self, message: str, odd: Iterable[NamedTensor] = ()) -> None:
        super().__init__(message)
        # Without its module: an error that is kept shall not keep a model in a card's memory.
        self.odd = tuple(tensor._replace(owner=None) for tensor in odd)


class ExportedProgramError(RuntimeError):
    """The file is no program that can be loaded onto that device; its text says what to do."""


def explain(error: BaseException | None = None) -> str:
    """Explain a device error in words; '' for an error of another kind.

    Names the tensors in the traceback's frames with their devices, the odd one, the line to change.

    `error` is the one being handled where it is left out, else the last one that an interactive
    interpreter showed. Raises ValueError where there is neither.
    """
    if error is None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None:
        raise ValueError("explain() wants an error: call it inside `except`, or pass the error")
    if isinstance(error, (DeviceMismatchError, ExportedProgramError)):
        return str(error)
    return report(type(error), error, error.__traceback__)
