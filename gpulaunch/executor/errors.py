"""The exceptions of futures and of the executor, other than those that functions raise."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor

from gpulaunch.core.model import Gpu
from gpulaunch.errors import NO_CARDS, GpulaunchError, NoCardsError


class WorkerDiedError(GpulaunchError):
    """The worker's process ended while it ran this item; another worker takes the next items.

    `exit_code` or `signal` says how it ended (both None: not known), `gpu` is its card, and
    `stderr` the end of its standard error, at most 4 KiB.
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
    """No worker can be started any more: waiting items fail with this, and no more are accepted."""


class NoCardsForExecutorError(BrokenGpuExecutorError, NoCardsError):
    """The executor's cards can never be had, or none came free in the time that `wait` gave."""

    status = NO_CARDS


class RemoteError(Exception):
    """Stands for a function's exception that cannot be unpickled here: its type and text."""


class RemoteTraceback(Exception):
    """The cause of an exception from a worker; its text is the traceback in the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
