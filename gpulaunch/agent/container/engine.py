"""The engine's client, and what else is asked of an engine."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..proc import own_environment
from .children import Child, adopt_orphans, inherited, spawn
from .log import LOG, say
from .record import INSIDE, Record
from .signals import Signals

KILLED_INSIDE = 128 + signal.SIGKILL  # the client's exit code where inside was killed

# Seconds.
# A client that is killed amid a start may leave a container that never runs. It gets the time to
# come to its own end, for nobody lets the container's first process in any more.
ABANDON_TIMEOUT, TERM_TIMEOUT, REMOVE_TIMEOUT = 3.0, 1.0, 3.0
# To remove a container takes an engine ten seconds where its file system is large and the disk
# slow. Nothing of it runs by then. Whoever asked for the end does not wait as long.
REMOVAL_TIMEOUT, ASKED_REMOVAL_TIMEOUT = 30.0, 5.0
# A refused removal is tried again. podman refuses the first removal of a container whose monitor
# and first process were killed: during this call podman notices that they are gone.
REFUSAL_TIMEOUT = 3.0
REMOVE_PAUSE = 0.1  # between two attempts to remove the container
LATE = "not in time"  # why a container is not removed


class EngineClient:
    """What is asked of the engine for one container.

    `held`: the job's descriptors that the carrier has still open, which no child of it has.
    `run`: what runs the container, from the first moment on. `unheard`: signals that came while a
    child's end was awaited, and that nobody has heeded yet.
    """

    def __init__(self, record: Record, signals: Signals) -> None:
        """Raise OSError where no process can be had for the client."""
        self.record = record
        self.signals = signals
        self.unheard: list[int] = []
        self.held = inherited()
        self.environ = own_environment()
        if record.warn:
            signals.hear(record.warn)
        if record.engine == "podman":
            adopt_orphans()
        self.run = self.child(self.record.start)

    def variables(self) -> list[bytes]:
        """Return NAME=VALUE for each variable that is sent inside."""
        names = map(os.fsencode, self.record.inside)
        return [name + b"=" + self.environ[INSIDE + name] for name in names]

    def child(self, argv: list[str], words: int | None = LOG) -> Child:
        outside = {k: v for k, v in self.environ.items() if not k.startswith(INSIDE)}
        return spawn(argv, outside, self.held, words)

    def await_end(self, child: Child, seconds: float, asked: float | None = None) -> bool:
        """Wait for a child's end; `asked`: only so long if the carrier was sent TERM."""
        since = time.monotonic()
        while not child.ended():
            limit = asked if asked is not None and self.signals.asked else seconds
            if time.monotonic() >= since + limit:
                return False
            self.signals.wait(since + limit)
            self.unheard += self.signals.take()
        return True

    def end(self, child: Child) -> None:
        child.kill(signal.SIGTERM)
        if not self.await_end(child, TERM_TIMEOUT):
            self.kill(child)

    def kill(self, child: Child) -> None:
        child.kill(signal.SIGKILL)
        self.await_end(child, TERM_TIMEOUT)

    def remove(self, seconds: float) -> str:
        """Have the container removed; return why that is not certain, "" where it is gone."""
        began = time.monotonic()
        until = began + seconds
        while True:
            try:
                why = self.try_to_remove(until)
            except OSError as error:  # processes are scarce
                return str(error.strerror)
            if not why or "no such container" in why.lower():
                return ""
            # The engine may be removing the container by itself, because of `--rm`.
            under_way = "in progress" in why.lower()
            if time.monotonic() >= (until if under_way else min(until, began + REFUSAL_TIMEOUT)):
                return LATE if under_way else why
            time.sleep(REMOVE_PAUSE)

    def try_to_remove(self, until: float) -> str:
        """Return the last line of the engine's complaint, "" where it has none. Raises OSError."""
        read, write = os.pipe()
        with open(read, "rb", buffering=0) as words:
            try:
                child = self.child(self.record.remove, write)
            finally:
                os.close(write)
            if not self.await_end(child, until - time.monotonic()):
                self.kill(child)
                return LATE
            if child.status == 0:
                return ""
            os.set_blocking(read, False)  # what the client has started may write on
            said = (words.read(65536) or b"").decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else f"status {child.code()}"

    def abandon(self) -> None:
        """End a start that is not wanted any more.

        The record stays where a container may have been made all the same: for others to remove.
        """
        if self.await_end(self.run, ABANDON_TIMEOUT) and self.run.left():
            self.record.delete()
            return
        say(f"{self.record.engine} does not answer; the container was not started")
        self.end(self.run)
        self.remove(REMOVE_TIMEOUT)

    def clear_away(self, above: int) -> None:
        """Wait until the container is removed, all of whose processes have ended.

        `above`: the parent of its first process, which for podman is a child of the carrier by now,
        and has to clear away too.
        """
        known = self.await_end(self.run, REMOVAL_TIMEOUT, ASKED_REMOVAL_TIMEOUT)
        if known and above and self.record.engine == "podman":
            with contextlib.suppress(ChildProcessError):
                known = self.await_end(Child(above), REMOVAL_TIMEOUT, ASKED_REMOVAL_TIMEOUT)
        if not known:
            why = LATE
        elif self.run.status in (0, KILLED_INSIDE << 8):
            why = ""
        else:  # the client failed, or its engine
            why = self.remove(ASKED_REMOVAL_TIMEOUT if self.signals.asked else REMOVAL_TIMEOUT)
        if not why:
            self.record.delete()
            return
        name = f"the container {self.record.name}"
        said = f"did not remove {name} in time" if why == LATE else f"did not remove {name} ({why})"
        say(f"{self.record.engine} {said}; its processes are gone")
        self.end(self.run)
