"""From the start of the engine's client until the container's first process is there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from ..ending import die_by
from ..wire import peer
from .children import Child
from .engine import EngineClient
from .log import say
from .socket import Door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NOT_STARTED = 125  # the status, as docker and podman have it, where no container was started
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# Seconds. To start a container takes an engine one, or some where many start at once and the disk
# is slow: only later is it asked whether it answers at all, and then again and again.
FIRST_LOOK, NEXT_LOOK, ANSWER_TIMEOUT = 30.0, 60.0, 20.0


class Start:
    """The wait for inside.

    `early`: signals that came meanwhile, and are for the program. `looking`: the question whether
    the engine answers; `look`: when it is asked, or has to be answered.
    """

    def __init__(self, door: Door, engine: EngineClient) -> None:
        self.door = door
        self.engine = engine
        self.early: list[int] = []
        self.looking: Child | None = None
        self.look = time.monotonic() + FIRST_LOOK

    def connection(self) -> socket.socket:
        """Return the connection with inside. Exits where none comes about."""
        while True:
            ready = self.engine.signals.wait(self.look, self.door.fileno())
            for number in self.engine.signals.take():
                self.hear(number)
            link = self.admitted() if self.door.fileno() in ready else None
            if link:
                self.forget_look()
                for number in self.engine.unheard:
                    self.keep(number)
                return link
            if self.engine.run.ended():
                self.fail()
            self.look_after()

    def hear(self, number: int) -> None:
        if number in ENDING:
            self.abandon()
            die_by(number)
        self.keep(number)

    def keep(self, number: int) -> None:
        """Have the program told when it is there; until then a stop is the carrier's alone."""
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number != signal.SIGCONT:
            self.early.append(number)

    def admitted(self) -> socket.socket | None:
        """Return a connection of whom the record lets in; who else might come is refused."""
        link = self.door.accept()
        if link is None:
            return None
        user = peer(link)[1]
        if user in (0, os.geteuid()) or self.engine.record.anyone:
            self.door.close()
            return link
        link.close()
        say(f"user {user} connected to {self.door.path}, and was refused")
        return None

    def look_after(self) -> None:
        """Ask whether the engine answers, where that is due; give up where it does not."""
        late = time.monotonic() >= self.look
        if self.looking and (late or self.looking.ended()):
            if self.looking.status != 0:
                self.abandon()
                os._exit(NOT_STARTED)
            self.looking, self.look = None, time.monotonic() + NEXT_LOOK
        elif late:
            self.look = time.monotonic() + ANSWER_TIMEOUT
            with contextlib.suppress(OSError):  # processes are scarce: it is asked later
                self.looking = self.engine.child(self.engine.record.answers, words=None)

    def forget_look(self) -> None:
        if self.looking:
            self.engine.kill(self.looking)

    def fail(self) -> NoReturn:
        """Exit: the client ended, and has said why in the log."""
        self.door.close()
        name = self.engine.record.engine
        say(f"{name} could not start the container (status {self.engine.run.code()})")
        if self.engine.run.left():
            self.engine.record.delete()
        os._exit(NOT_STARTED)

    def abandon(self) -> None:
        self.door.close()
        self.forget_look()
        self.engine.abandon()
