"""A spawner with one pair on the node, as the launcher's own machine has them for its cards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping

from ..client import PairLink, new_pair, spawn
from ..wire import Any
from .attempt import NodeAttempt
from .limits import LEAVING_PATIENCE, LOOK
from .signals import StopSignals, held_back
from .status import UNEXPLAINED
from .words import say


class Keepers:
    """A spawner and its only pair. When this process dies, they stop the job and exit."""

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        """Start the spawner and one pair; jobs start from `environ`. Raises OSError."""
        self.attempt = ""
        with held_back():
            self.process, self.control = spawn(sys.executable, "keeper", environ)
        self.pair = PairLink(new_pair(self.control))

    def launch(self, spec: Mapping[str, Any], child: Mapping[str, Any]) -> None:
        self.attempt = str(spec["attempt"])
        self.pair.launch(spec, child)

    def await_end(self, attempt: NodeAttempt, asked: StopSignals) -> dict[str, Any] | None:
        """Return the end, once no process of the attempt is left; None if both keepers are gone."""
        told: tuple[bool, bool] = (False, False)
        while True:
            stop = attempt.new_stop()
            if stop is not None:
                asked.read(now=stop[2])
            if (asked.stop, asked.now) != told:
                told = (asked.stop, asked.now)
                reason, by, _ = stop or attempt.read_stop() or UNEXPLAINED
                self.pair.stop(self.attempt, reason, by, asked.now)
            attempt.beat()
            asked.wait(LOOK, self.pair.socket.fileno())
            for message, _ in self.pair.messages():
                if message is None:
                    return None
                if message["is"] == "ended":
                    end: dict[str, Any] = message["end"]
                    return end
                if message["is"] == "unkillable":
                    pids = ", ".join(map(str, message["pids"]))
                    say(f"{attempt.id}: process {pids} cannot be killed, and is waited for")

    def close(self) -> None:
        """Close the sockets and wait for the keepers to exit.

        If this process exited first, Slurm would kill them and report that.
        """
        self.pair.socket.close()
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING_PATIENCE)
