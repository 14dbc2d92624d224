"""The carrier: stands in the place of a job that docker or podman runs in a container.

    container RECORD PROGRAM [ARG ...]

It owns the engine's client and the connection to the container's first process (`keeper inside`,
../native/inside.c), and ends as the program inside does: its keepers, or a terminal, know no
difference. It decides nothing: not when the job ends, nor what an end means.

    keepers ──▶ carrier ──starts──▶ docker run ... ──▶ the engine ──▶ inside ──▶ PROGRAM
                   └───── a socket: descriptors, signals, the end ──────┘

The job's log, pipes and leases are handed inside as descriptors, so what the job writes passes
through nobody. When the carrier is gone, however that came, the connection ends, and with it all
in the container.

The socket is in RECORD's directory, below one that is the user's alone (mode 0700): only the user,
root, and the container that has it mounted can reach it. It is there until the first connection
alone, which only the user and root may make unless the record lets in anyone: a program that runs
as another user inside. Then RECORD's directory is open, and the one above it keeps others out.

    record.py     what the record says, and its directory
    signals.py    the signals that are passed on, and the ends of children
    children.py   how programs are started, and waited for
    engine.py     the engine's client, and what else is asked of an engine
    socket.py     the socket until somebody connects
    starting.py   from the start of the client until inside is there
    log.py        the carrier's own lines
    proxy.py      what inside is told, and the program's end
"""

from __future__ import annotations

import os
import sys

from .engine import EngineClient
from .log import LOG, say
from .proxy import Carrier
from .record import Record
from .signals import Signals
from .socket import Door
from .starting import NOT_STARTED


def main() -> None:
    fill_streams()
    signals = Signals()
    record = Record(sys.argv[1])
    try:
        door = Door(record)
    except OSError as error:
        say(f"cannot listen in {record.folder}: {error.strerror}")
        sys.exit(NOT_STARTED)
    try:
        engine = EngineClient(record, signals)
    except OSError as error:
        door.close()
        say(f"{record.engine} cannot be started: {error.strerror}")
        record.delete()
        sys.exit(NOT_STARTED)
    Carrier(door, engine, sys.argv[2:]).run()


def fill_streams() -> None:
    """Have something at the descriptors 0, 1 and 2, so that nothing else gets these numbers."""
    fd = 0
    while fd <= LOG:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(fd)
