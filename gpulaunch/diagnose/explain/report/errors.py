"""Finds the device error among an exception, its causes, contexts and members."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .cards import baked_in
from .frames import TracebackStep, continued, steps
from .messages import LOADED, kind_of, message
from .objects import mro, of

if TYPE_CHECKING:
    from types import TracebackType


def recognised(
    exc: BaseException | None, tb: TracebackType | None
) -> tuple[str, BaseException, list[TracebackStep]] | None:
    """The device error among an exception, its causes, contexts and members, and its frames."""
    if exc is None or type(exc).__module__ == "gpulaunch.torch.errors":
        return None  # the latter say all of it themselves
    # (exception, frames from the outermost one)
    todo: deque[tuple[BaseException, list[TracebackStep]]] = deque([(exc, steps(tb))])
    seen: set[int] = set()
    best: tuple[str, BaseException, list[TracebackStep]] | None = None
    while todo and len(seen) < 200:
        error, way = todo.popleft()
        if id(error) in seen:
            continue
        seen.add(id(error))
        kind = kind_of(message(error))
        if kind == LOADED and "ran into an error" in message(error) and not baked_in(way)[1]:
            kind = None  # torch.export.load says no more; nothing in the file is about a card.
        # The innermost of a chain of wrappers that repeat its text has the frames.
        if kind and (best is None or (best[0] == kind and is_inner(error, best[1]))):
            best = (kind, error, way)
        for inner in (error.__cause__, error.__context__, *members(error)):
            if isinstance(inner, BaseException):
                todo.append((inner, continued(way, steps(inner.__traceback__))))
    return best


def is_inner(error: BaseException, outer: BaseException) -> bool:
    """Whether `error` is where `outer` comes from. A pickled one has lost its frames."""
    return error.__traceback__ is not None and (
        error is outer.__cause__ or error is outer.__context__
    )


def members(exc: BaseException) -> list[BaseException]:
    """Those of an ExceptionGroup (also of the backport)."""
    if not any(of(base, "__name__") == "BaseExceptionGroup" for base in mro(type(exc))):
        return []
    found = getattr(exc, "exceptions", ())
    return list(found)[:50] if isinstance(found, (tuple, list)) else []
