"""Keeps the list of a run that follows its inputs true to them: `run --follow`.

    a thread: SourceLook ─▶ what counts has changed ─▶ the job file, read by that ─▶ Relisted
       ▲                                                      a thread
       └── every two seconds ──┘

Once nothing is half-written after `finish`, the file is read for the last time: the jobs that wait
for all others join too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.loop import Callback, Loop
from gpulaunch.core.events import Relisted
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import Following, ForeachSource
from gpulaunch.run.job_list import Filed, RunList, refusing
from gpulaunch.run.sources import Counted, SourceLook

TRY_AGAIN = 5.0
"""Seconds until what failed is tried again: a wrong job file, or a look at its sources."""


class ListFollower:
    """Reads a run's job file again whenever what it rests on has changed.

    `take` is handed the changes, `tell` a line when the file cannot be read as it is. `busy`: the
    run is not over, as something is still to be read. `following`: how the file was read last.
    """

    def __init__(
        self,
        filed: Filed,
        sources: Sequence[ForeachSource],
        list: RunList,
        loop: Loop,
        take: Callable[[Relisted], object],
        tell: Callable[[str], object],
    ) -> None:
        """Look at all sources once. Blocks for as long as that look takes."""
        self._look = SourceLook(filed.choices.settle)
        self._filed = filed
        self._sources = tuple(sources)
        self._list = list
        self._loop = loop
        self._take = take
        self._tell = tell
        self._counted = self._look.look(self._sources)
        self.following = Following(self._counted)
        self._forget_look: Callback | None = None
        self._forget_reading: Callback | None = None
        self._stale = False
        self._told = ""
        self._finishing = self._whole = False
        self.busy = True
        loop.call_after("look", self._counted.next_look, self._begin_look)
        self._changed()  # since the first plan was made

    def finish(self) -> None:
        """Take what is there, once nothing of it is half-written, and wait for no more."""
        if self.busy and not self._finishing:
            self._finishing = True
            if self._forget_look is None:
                self._loop.call_after("look", 0.0, self._begin_look)

    def leave(self) -> None:
        """Follow no more, whatever comes or is half-written: every job was cancelled."""
        self.busy = False
        self.close()

    def follow(self, sources: Sequence[ForeachSource]) -> None:
        """Look at these sources from now on: the job file may have others."""
        if tuple(sources) != self._sources:
            self._sources = tuple(sources)
            self._whole = False

    def close(self) -> None:
        """Follow no more. Changes nothing of the list, and waits for no thread."""
        self._loop.forget("look")
        self._loop.forget("follow")
        for forget in (self._forget_look, self._forget_reading):
            if forget is not None:
                forget()

    def _begin_look(self) -> None:
        """Have a thread look. What came before `finish` is seen by a look that begins after it."""
        look = partial(self._look.look, self._sources)
        looked = partial(self._looked, self._finishing, self._sources)
        try:
            self._forget_look = self._loop.in_thread(look, looked)
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is to be had now
            looked(error)

    def _looked(
        self, finishing: bool, sources: Sequence[ForeachSource], counted: Counted | Exception
    ) -> None:
        self._forget_look = None
        if isinstance(counted, Exception):
            self._say(f"the inputs cannot be looked at: {counted!r}; this is tried again")
            self._loop.call_after("look", TRY_AGAIN, self._begin_look)
            return
        before, self._counted = self._counted, counted
        is_all = finishing and counted.complete and sources == self._sources
        was_whole, self._whole = self._whole, is_all
        if not counted.same_as(before) or (self._whole and not was_whole):
            self._changed()
        next_look = counted.next_look if finishing == self._finishing else 0.0
        self._loop.call_after("look", next_look, self._begin_look)

    def _changed(self) -> None:
        if self._forget_reading is not None:
            self._stale = True
            return
        self._stale, taken, last = False, self._list.taken, self._whole
        following = self.following = Following(self._counted, more=not last)
        read = refusing(lambda: self._filed.read(following), str(self._filed.file))
        try:
            self._forget_reading = self._loop.in_thread(read, partial(self._read, taken, last))
        except (OSError, RuntimeError) as error:
            self._refused(error)

    def _read(self, taken: int, last: bool, plan: Plan | Exception) -> None:
        self._forget_reading = None
        if taken != self._list.taken:
            self._changed()
            return
        try:
            if isinstance(plan, Exception):
                raise plan
            change = self._list.reloaded(plan)
        except GpulaunchError as error:
            self._refused(error)
            return
        self._told = ""
        self._list.taken += 1
        self.follow(plan.sources)
        self.busy = not (last and self._whole)
        if change.jobs or change.gone:
            self._take(change)
        if self._stale:
            self._changed()

    def _refused(self, error: Exception) -> None:
        self._say(f"{error}\nnothing was changed; the job file is read again when it changes")
        self._loop.call_after("follow", TRY_AGAIN, self._changed)

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)
