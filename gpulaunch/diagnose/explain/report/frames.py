"""A traceback's frames: which are the user's own, and what variables they have."""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from .objects import is_code

if TYPE_CHECKING:
    from types import FrameType, TracebackType


class TracebackStep(NamedTuple):
    """A frame of a traceback, at the line where it was."""

    frame: FrameType
    line: int
    lasti: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def function(self) -> str:
        return self.frame.f_code.co_name

    @property
    def at(self) -> str:
        return f"{short(self.file)}:{self.line}"


def steps(tb: TracebackType | None) -> list[TracebackStep]:
    """Return a traceback's frames, outermost first; of very deep ones, both ends."""
    found: list[TracebackStep] = []
    while tb is not None and len(found) < 20_000:
        found.append(TracebackStep(tb.tb_frame, tb.tb_lineno, tb.tb_lasti))
        tb = tb.tb_next
    return found if len(found) <= 200 else found[:50] + found[-150:]


def continued(outer: list[TracebackStep], inner: list[TracebackStep]) -> list[TracebackStep]:
    """Return an inner exception's frames after its callers, which are the outer's.

    Its traceback begins where it was caught. Where both share no frame (torch.compile, another
    thread), the outer's still lead there.
    """
    if inner:
        for at, step in enumerate(outer):
            if step.frame is inner[0].frame:
                return outer[:at] + inner
    return outer + inner


LIBRARY = os.path.dirname(getattr(os, "__file__", "")) or "<frozen"

INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\]")

# What an installed program is started by, rather than what it is.
STARTERS = "click typer fire hydra absl accelerate lightning pytorch_lightning jaxtyping"


def is_users(step: TracebackStep, program: str | None) -> bool:
    file = step.file
    if program and (file + os.sep).startswith(os.path.join(program, "")):
        return True
    if INSTALLED.search(file) or file.startswith((LIBRARY + os.sep, "<frozen")) or is_torch(step):
        return False
    if file.startswith("<"):
        return step.frame.f_globals.get("__name__") == "__main__"
    # A console entry point's wrapper is nobody's program.
    wrapper = os.path.basename(os.path.dirname(file)) == "bin" and not file.endswith(".py")
    return not wrapper


def installed_program(way: list[TracebackStep]) -> list[TracebackStep]:
    """Return the frames of the installed package that a console entry point started."""
    for step in way:
        found = list(INSTALLED.finditer(step.file))
        if found and not is_torch(step):
            end = found[-1].end()
            package = step.file[:end] + re.split(r"[/\\.]", step.file[end:], maxsplit=1)[0]
            if os.path.basename(package) not in STARTERS.split():
                beneath = re.compile(re.escape(package) + r"[/\\.]")
                return [other for other in way if beneath.match(other.file)]
    return []


def is_torch(step: TracebackStep) -> bool:
    name = str(step.frame.f_globals.get("__name__", ""))
    return name.split(".", 1)[0] in ("torch", "torchgen", "triton", "functorch", "gpulaunch")


def variables(step: TracebackStep) -> list[tuple[str, Any]]:
    """Return a frame's variables: at module level, all but what is code."""
    try:
        names = list(itertools.islice(step.frame.f_locals.items(), 2000))
    except Exception:
        return []
    return [(n, v) for n, v in names if not n.startswith("__") and not is_code(v)]


def short(file: str) -> str:
    """Return a path as people say it: from the working directory, or from site-packages."""
    installed = list(INSTALLED.finditer(file))
    if installed:
        return file[installed[-1].end() :]
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if file.startswith("<") or relative.startswith("..") else relative


FROM_TEXT = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n\s+(\S.*)')
