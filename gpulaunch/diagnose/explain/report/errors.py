"""Finds the device error among an exception, its causes, contexts and members; and its cards."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING

from .frames import TracebackStep, continued, steps
from .limits import PER_CONTAINER, SOURCE_SIZE
from .messages import LOADED, kind_of, message
from .objects import mro, of

if TYPE_CHECKING:
    from types import TracebackType


def recognised(
    exc: BaseException | None, tb: TracebackType | None
) -> tuple[str, BaseException, list[TracebackStep]] | None:
    """Return the device error among an exception, its causes and members, and its frames."""
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
    """Tell whether `error` is where `outer` comes from. A pickled one has lost its frames."""
    return error.__traceback__ is not None and (
        error is outer.__cause__ or error is outer.__context__
    )


def members(exc: BaseException) -> list[BaseException]:
    """Those of an ExceptionGroup (also of the backport)."""
    if not any(of(base, "__name__") == "BaseExceptionGroup" for base in mro(type(exc))):
        return []
    found = getattr(exc, "exceptions", ())
    return list(found)[:50] if isinstance(found, (tuple, list)) else []


# ── The cards that this process sees, and those that an exported program names ──────────────────

# Of a device in torch.export's archives (torch/_export/serde/schema.py).
RECORD = re.compile(r'"type": ?"(cuda|hip|xpu|npu|hpu)", ?"index": ?(\d{1,4})\b')


def baked_in(way: list[TracebackStep]) -> tuple[str, list[str]]:
    """Return the file that torch.export.load was given, and its cards that are not here."""
    for step in way:
        if step.frame.f_globals.get("__name__") == "torch.export" and step.function == "load":
            file = step.frame.f_locals.get("f")
            if type(file) is str:
                return file, absent_cards(file)
    return "", []


def absent_cards(file: str) -> list[str]:
    """Cards that a program's JSON records name and that this process does not see, by the mask."""
    import zipfile

    found: set[tuple[str, int]] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist()[:PER_CONTAINER]:
                if member.filename.endswith(".json") and member.file_size < SOURCE_SIZE:
                    text = archive.read(member).decode("utf-8", "replace")
                    found.update((kind, int(index)) for kind, index in RECORD.findall(text))
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return []
    return [f"{kind}:{index}" for kind, index in sorted(found) if index >= (visible() or 1)]


def visible() -> int | None:
    """How many cards the mask names; None where there is none."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if mask is None else len([part for part in mask.split(",") if part.strip()])


def seen_cards() -> str:
    number = visible()
    if number is None:
        return "the cards that torch counts from cuda:0"
    if number == 0:
        return "no card"
    return "one card, cuda:0" if number == 1 else f"{number} cards, cuda:0 to cuda:{number - 1}"
