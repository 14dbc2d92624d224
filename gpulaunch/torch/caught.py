"""After the fact: the report on an error that has been raised, from its traceback's frames.

The report itself is made by gpulaunch.diagnose.explain, which also works where gpulaunch is not
installed.
"""

from __future__ import annotations

import sys

from gpulaunch.torch.errors import DeviceMismatchError, ExportedProgramError


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
