"""`GpuExecutor`: a `concurrent.futures.Executor` whose workers each hold one card.

    executor (what people call) ─▶ item_queue (Work) ◀─ worker_handle (a thread per worker)
        │                             ▲                              │ channel: transfer's pickles
        └─ starts ─▶ pool: Manager ───┘                              ▼
             │ core.run, engines.local.leases: which cards     worker (the process)
             └ engines.client: keepers ───────────────────────────▶ │

Nothing here prints; warnings go to the logger `gpulaunch.executor`. The names below are imported at
their first use, as workers need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.executor.executor import GpuExecutor as GpuExecutor
    from gpulaunch.executor.future import BrokenGpuExecutorError as BrokenGpuExecutorError
    from gpulaunch.executor.future import GpuFuture as GpuFuture
    from gpulaunch.executor.future import NoCardsForExecutorError as NoCardsForExecutorError
    from gpulaunch.executor.future import RemoteError as RemoteError
    from gpulaunch.executor.future import RemoteTraceback as RemoteTraceback
    from gpulaunch.executor.future import WorkerDiedError as WorkerDiedError

_WHERE = {
    "BrokenGpuExecutorError": "future",
    "GpuExecutor": "executor",
    "GpuFuture": "future",
    "NoCardsForExecutorError": "future",
    "RemoteError": "future",
    "RemoteTraceback": "future",
    "WorkerDiedError": "future",
}

__all__ = [*_WHERE]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
