"""What the helpers raise, each text complete: what was expected, found, where, what to do.

The report on torch's own errors is made by gpulaunch.diagnose.explain, which also works where
gpulaunch is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Odd:
    """A tensor on another device than the rest.

    `paths` are all the names it goes by (a tied weight has several), `mend` what to call or write.
    """

    paths: tuple[str, ...]
    kind: str
    shape: tuple[int | str, ...] | None
    dtype: str
    device: str
    mend: str

    def __str__(self) -> str:
        name = self.paths[0] + "".join(f" (also {other})" for other in self.paths[1:3])
        shape = "shape not known yet" if self.shape is None else f"{list(self.shape)}"
        return f"{name}: {self.kind}, {self.dtype} {shape}, on {self.device}"


class DeviceMismatchError(RuntimeError):
    """Tensors that meet, or would meet, are on several devices. `odd` has each of them."""

    def __init__(self, message: str, odd: Sequence[Odd] = ()) -> None:
        super().__init__(message)
        self.odd = tuple(odd)


class ExportedProgramError(RuntimeError):
    """The file is no program that can be loaded onto that device; its text says what to do."""


def explain(error: BaseException | None = None) -> str:
    """Explain a device error in words; '' for an error of another kind.

    Names the tensors in the traceback's frames with their devices, the odd one, the line to change.

    `error` is the one being handled where it is left out, else the last one that an interactive
    interpreter showed. Raises ValueError where there is neither.

        try:
            model(batch)
        except RuntimeError as error:
            print(gpulaunch.torch.explain(error))
            raise
    """
    if error is None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None:
        raise ValueError("explain() wants an error: call it inside `except`, or pass the error")
    if isinstance(error, (DeviceMismatchError, ExportedProgramError)):
        return str(error)
    from gpulaunch.diagnose.explain.report.main import report

    return str(report(type(error), error, error.__traceback__))
