"""The cards a launcher may use, from what the machine has, what it inherited and what was asked.

machine (NVML, or --simulate N) ─▶ inherited mask ─▶ --gpus / gpus: ─▶ Pool
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpulaunch.core.model import Gpu
from gpulaunch.core.selection import ALL, Selection, choose, describe, parse_selection
from gpulaunch.engines import environment
from gpulaunch.engines.eyes import DriverEyes, Eyes, PretendEyes
from gpulaunch.errors import NoCardsError, UsageError
from gpulaunch.gpus.discover import find
from gpulaunch.gpus.lease import scope_of
from gpulaunch.gpus.machine import Fault, Machine
from gpulaunch.gpus.mask import pool as inherited
from gpulaunch.gpus.simulated import pool_name, simulated
from gpulaunch.gpus.visible import Style, style_for
from gpulaunch.loop import Loop


@dataclass(frozen=True, slots=True)
class Pool:
    """`gpus` may be used, at most `limit` of them at once (None: all). `style` spells the mask.

    `here` are all cards that were to choose from; `notes` what a person should know at the start.
    """

    gpus: tuple[Gpu, ...]
    limit: int | None
    style: Style
    machine: environment.Machine
    selection: Selection
    here: tuple[Gpu, ...]
    driver: str | None = None
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    share_busy: bool = False

    @property
    def size(self) -> int:
        """How many cards can be had at once."""
        return len(self.gpus) if self.limit is None else min(self.limit, len(self.gpus))

    @property
    def echo(self) -> str:
        """What was understood: `1 of 8 cards, any`."""
        return describe(self.selection, self.here) if self.here else "no card"

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    def eyes(self, loop: Loop) -> Eyes:
        if self.simulated or not self.gpus:
            return PretendEyes()
        return DriverEyes(loop, self.share_busy)


def open_pool(
    spec: str | Selection | None,
    simulate: int | None,
    environ: Mapping[str, str],
    run_id: str,
    share_busy: bool = False,
) -> Pool:
    """Look for cards. Raises UsageError for a card that is not there, NoCardsError for none.

    No card at all is no error yet where nothing was asked for by name: a list may need none.
    """
    selection = parse(spec)
    found, style, notes = _found(simulate, environ, run_id)
    here = found.gpus
    try:
        chosen = choose(selection, here)
    except LookupError as error:
        raise UsageError(f"--gpus: {error}") from None
    limit = selection.count
    if limit is not None and limit > len(here):
        raise NoCardsError(f"{limit} cards were asked for, {_none_or(len(here), found.faults)}")
    return Pool(
        chosen,
        limit,
        style,
        environment.Machine(
            cpus=len(os.sched_getaffinity(0)),
            pool=len(chosen) if limit is None else limit,
            cache=cache_directory(environ),
        ),
        selection,
        here,
        found.driver,
        found.faults,
        notes,
        # Inside a job of gpulaunch, the outer job's own processes are no strangers.
        share_busy or bool(scope_of(environ)),
    )


def _found(
    simulate: int | None, environ: Mapping[str, str], run_id: str
) -> tuple[Machine, Style, tuple[str, ...]]:
    """The machine with the cards that we may use at all, how the mask names them, and notes."""
    if simulate:
        return Machine(simulated(simulate, pool_name(run_id, environ))), "index", ()
    machine = find(environ)
    ours = inherited(machine, environ)
    style, why = style_for(machine)
    notes = [f"the cards are those of {ours.why}"] if ours.why else []
    notes += [f"the mask names cards by UUID: {why}"] if ours.gpus and why else []
    return replace(machine, gpus=ours.gpus), style, (*notes, *ours.notes)


def parse(spec: str | Selection | None) -> Selection:
    if spec is None:
        return ALL
    if isinstance(spec, Selection):
        return spec
    try:
        return parse_selection(spec)
    except ValueError as error:
        raise UsageError(f"--gpus: {error}") from None


def require(pool: Pool, count: int) -> None:
    """Raises NoCardsError unless the pool can give `count` cards at once."""
    if count > pool.size:
        raise NoCardsError(
            f"{count} card{'s' if count > 1 else ''} needed, {_none_or(pool.size, pool.faults)}"
        )


def cache_directory(environ: Mapping[str, str]) -> str:
    """Where the compilers' caches lie, a directory a card (XDG base directories)."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return os.path.join(base, "gpulaunch")


def _none_or(have: int, faults: tuple[Fault, ...]) -> str:
    because = "".join(f"\n  {fault}" for fault in faults)
    if have:
        return f"{have} can be had here{because}"
    hint = "to try the list without cards: --simulate N; what is wrong here: gpulaunch doctor"
    return f"and there is none here ({hint}){because}"
