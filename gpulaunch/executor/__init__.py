"""`GpuExecutor`: a `concurrent.futures.Executor` whose workers each hold one card.

    executor (what people call) ─▶ work (items, claims) ◀─ worker_handle (a thread per worker)
        │                             ▲                              │ channel: transfer's pickles
        └─ starts ─▶ manager: crew ───┘                              ▼
             │ core.run, engines.local.cards: which cards      worker (the process)
             └ process.client: keepers ───────────────────────────▶ │

Nothing here prints; warnings go to the logger `gpulaunch.executor`. The names below are imported at
their first use, as workers need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.executor.errors import BrokenGpuExecutorError as BrokenGpuExecutorError
    from gpulaunch.executor.errors import NoCardsForExecutorError as NoCardsForExecutorError
    from gpulaunch.executor.errors import RemoteError as RemoteError
    from gpulaunch.executor.errors import RemoteTraceback as RemoteTraceback
    from gpulaunch.executor.errors import WorkerDiedError as WorkerDiedError
    from gpulaunch.executor.executor import GpuExecutor as GpuExecutor
    from gpulaunch.executor.future import GpuFuture as GpuFuture

_WHERE = {
    "BrokenGpuExecutorError": "errors",
    "GpuExecutor": "executor",
    "GpuFuture": "future",
    "NoCardsForExecutorError": "errors",
    "RemoteError": "errors",
    "RemoteTraceback": "errors",
    "WorkerDiedError": "errors",
}

__all__ = [*_WHERE]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
