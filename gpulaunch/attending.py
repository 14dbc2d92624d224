"""Answers requests to a run that is over, while its end is shown and its report is written.

supervise ─▶ attended: summary, report ─▶ ControlServer.close
                └─ a thread answers
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from gpulaunch.control import ControlServer, Hello
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.rundir import RunDir


def presence(run: RunDir, ledger: Ledger) -> dict[str, object]:
    """Return the answer to Hello."""
    return {
        "pid": os.getpid(),
        "dir": str(run.path),
        "name": ledger.name,
        "state": ledger.state,
        "counts": dict(ledger.counts),
    }


@contextmanager
def attended(server: ControlServer, run: RunDir, ledger: Ledger) -> Iterator[None]:
    """Answer requests in a thread until the block ends, whatever the block itself waits for.

    Nothing else may use `server` or change `ledger` meanwhile. Where no thread can be started, no
    request is answered, and the block runs all the same.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = Thread(target=_serve, args=(server, run, ledger, theirs), daemon=True)
        begun = _started(thread)
        try:
            yield
        finally:
            ours.close()
            if begun:
                thread.join()


def _started(thread: Thread) -> bool:
    # Signals are for the main thread, which may wait for one of them with sigtimedwait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    except RuntimeError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


def _serve(server: ControlServer, run: RunDir, ledger: Ledger, ending: socket.socket) -> None:
    poll = select.poll()
    for fd in (*server.selectables(), ending.fileno()):
        poll.register(fd, select.POLLIN)
    while all(fd != ending.fileno() for fd, _ in poll.poll()):
        _attend(server, run, ledger)


def _attend(server: ControlServer, run: RunDir, ledger: Ledger) -> None:
    """Answer the requests that came: Hello with the run's data, all others with a refusal."""
    for conn, asking in server.on_readable():
        if isinstance(asking, Hello):
            conn.send(presence(run, ledger))
        else:
            conn.fail(f"{run.path} is over ({ledger.state}): it only writes its report")
