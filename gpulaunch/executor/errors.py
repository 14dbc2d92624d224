"""What a future, or the executor itself, fails with when it is not the function's own exception."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor

from gpulaunch.core.model import Gpu
from gpulaunch.errors import NO_CARDS, GpulaunchError, NoCardsError


class WorkerDiedError(GpulaunchError):
    """The worker's process ended while it ran this item; another one takes the next items.

    `exit_code` or `signal` says how (both None: nobody saw it), `gpu` where, and `stderr` has the
    end of what the worker wrote to its standard error, at most 4 KiB.
    """

    def __init__(
        self,
        text: str,
        gpu: Gpu | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(text)
        self.gpu = gpu
        self.exit_code = exit_code
        self.signal = signal
        self.stderr = stderr

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.gpu, self.exit_code, self.signal, self.stderr)


class BrokenGpuExecutorError(BrokenExecutor, GpulaunchError):
    """No worker can be had any more: all that waits fails with this, and nothing more is taken."""


class NoCardsForExecutorError(BrokenGpuExecutorError, NoCardsError):
    """The executor's cards can never be had, or none came free in the time that `wait` gave."""

    status = NO_CARDS


class RemoteError(Exception):
    """Stands for an exception of the function that cannot be brought here: its type and text."""


class RemoteTraceback(Exception):
    """The cause of an exception from a worker; its text is the traceback as it was there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
