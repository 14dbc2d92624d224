"""Keeps the list of a run that follows its inputs true to them: `run --follow`.

SourceWatch: what counts has changed ─▶ the job file, read by that ─▶ RunList ─▶ Relisted
finish ─▶ once no file is half-written, read for the last time: what waited for all joins too
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpulaunch.app.following import SETTLE, SourceWatch
from gpulaunch.app.listing import RunList
from gpulaunch.app.rereading import Filed, Reading, RefusedError
from gpulaunch.core.events import Relisted
from gpulaunch.jobfile.sources import Following, ForeachSource
from gpulaunch.loop import Loop

TRY_AGAIN = 5.0
"""Seconds after which a job file that was wrong is read again, as a need may be there by then."""


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
        settle = filed.choices.settle
        self._watch = SourceWatch(sources, SETTLE if settle is None else settle)
        self._filed = filed
        self._sources = tuple(sources)
        self._list = list
        self._loop = loop
        self._take = take
        self._tell = tell
        self.following = Following(self._watch.take()[0])
        self._reading: Reading | None = None
        self._taken = 0  # the list's, when this reading was begun
        self._stale = False
        self._told = ""
        self._finishing = False
        self.busy = True
        loop.watch(self._watch.fileno(), self._changed)
        self._changed()  # since the first plan was made

    def finish(self) -> None:
        """Take what is there, once nothing of it is half-written, and follow no more."""
        if self.busy and not self._finishing:
            self._finishing = True
            self._watch.finish()
            if self._watch.trouble:
                self._changed()

    def leave(self) -> None:
        """Follow no more, whatever comes or is half-written: every job was cancelled."""
        self.busy = False
        self._deafen()

    def follow(self, sources: Sequence[ForeachSource]) -> None:
        """Watch these sources from now on: the job file has others."""
        if tuple(sources) != self._sources:
            self._sources = tuple(sources)
            self._watch.follow(self._sources)

    def close(self) -> None:
        """Stop watching. Changes nothing of the list."""
        self._deafen()
        self._watch.close()

    def _deafen(self) -> None:
        self._loop.forget("follow")
        self._loop.unwatch(self._watch.fileno())
        if self._reading is not None:
            self._loop.unwatch(self._reading.fileno())
            self._reading.close()
            self._reading = None

    def _changed(self) -> None:
        counted, whole = self._watch.take()
        if self._reading is not None:
            self._stale = True
            return
        if self._watch.trouble:
            self._loop.unwatch(self._watch.fileno())
            self._say(f"the inputs are not followed any more: {self._watch.trouble}")
        self._stale, self._taken = False, self._list.taken
        last = self._finishing and (whole or bool(self._watch.trouble))
        following = self.following = Following(counted, more=not last)
        read = lambda: self._filed.read(following)  # noqa: E731
        reading = self._reading = Reading(read, str(self._filed.file))
        self._loop.watch(reading.fileno(), lambda: self._over(reading, last))

    def _over(self, reading: Reading, last: bool) -> None:
        self._loop.unwatch(reading.fileno())
        reading.close()
        self._reading = None
        if self._taken != self._list.taken:
            self._changed()
            return
        try:
            plan = reading.plan()
            change = self._list.reloaded(plan)
        except RefusedError as error:
            self._say(f"{error}\nnothing was changed; the job file is read again when it changes")
            self._loop.call_after("follow", TRY_AGAIN, self._changed)
            return
        self._told = ""
        self._list.taken += 1
        self.follow(plan.sources)
        self.busy = not last
        if change.jobs or change.gone:
            self._take(change)
        if self._stale:
            self._changed()

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)
