"""Answers the requests of other terminals: to a live run, and to one that only writes its report.

supervise: Answers, by its loop ─▶ attended, by a thread: summary, report ─▶ ControlServer.close
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from threading import Thread

from msgspec import Struct

from gpulaunch.app.rereading import Filed, Reading, RefusedError, refiled
from gpulaunch.app.supervisor import Supervisor
from gpulaunch.control.protocol import EXPLAINED, TOLD, Asking, Hello, Reasons, Told
from gpulaunch.control.server import Conn, ControlServer
from gpulaunch.core.events import Asked, Retry
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.run import Run
from gpulaunch.engines.pool import CardPool
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile import Plan
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop


def presence(run: RunDir, ledger: Ledger) -> dict[str, object]:
    """Return the answer to Hello."""
    return {
        "pid": os.getpid(),
        "dir": str(run.path),
        "name": ledger.opening.name,
        "state": ledger.state,
        "counts": dict(ledger.counts),
    }


class Answers(Struct, frozen=True):
    """What a live run answers, and asks its supervisor for. `filed`: see `rereading`."""

    directory: RunDir
    pool: CardPool
    filed: Filed | None
    supervisor: Supervisor
    run: Run
    loop: Loop

    def answer(self, conn: Conn, asking: Asking) -> None:
        """Answer one request, at once or when the job file has been read again."""
        if isinstance(asking, Retry) and asking.as_filed and self.filed is not None:
            self._read_again(conn, asking, self.filed)
        else:
            conn.send(self._answer(asking))

    def _read_again(self, conn: Conn, asking: Retry, filed: Filed) -> None:
        """Read the job file again, then answer with the requeued jobs, or why none is."""
        reading = Reading(filed, os.environ)

        def over() -> None:
            self.loop.unwatch(reading.fileno())
            reading.close()
            try:
                conn.send(self._retry_anew(reading.plan(), asking.jobs))
            except RefusedError as error:
                conn.fail(str(error))

        self.loop.watch(reading.fileno(), over)

    def _retry_anew(self, plan: Plan, names: tuple[str, ...] | None) -> dict[str, object]:
        anew = refiled(self.run, plan, names, self.pool)
        directory = self.directory
        try:
            if read_bytes(directory.newest_jobs_file()) != plan.text:
                replace_file(directory.next_jobs_file(), plan.text)
        except OSError as error:
            raise RefusedError(
                f"{error.filename}: {error.strerror}; nothing was requeued"
            ) from None
        known = self.run.ledger.jobs
        changed = [j.name for j in anew.jobs if known[j.name].definition.digest != j.digest]
        self.supervisor.post(anew)
        requeued = [job.name for job in anew.jobs]
        return {"requeued": requeued, "changed": changed, "gone": list(anew.gone)}

    def _answer(self, asking: Asking) -> dict[str, object]:
        ledger = self.supervisor.ledger
        match asking:
            case Hello():
                return presence(self.directory, ledger)
            case Reasons():
                waiting = (job.name for job in ledger.jobs.values() if job.state == "waiting")
                why = self.supervisor.why_waiting
                known = ((name, why(name)) for name in islice(waiting, EXPLAINED))
                reasons = {name: reason for name, reason in known if reason is not None}
                answer: dict[str, object] = TOLD.plain(Told(reasons))
                return answer
            case Retry(names):
                requeued = self.run.retried_by(names)
                self.supervisor.post(Asked(asking))
                return {"requeued": requeued, "changed": [], "gone": []}
        self.supervisor.post(Asked(asking))
        return {"done": True}


@contextmanager
def attended(server: ControlServer, run: RunDir, ledger: Ledger) -> Iterator[None]:
    """Answer requests in a thread until the block ends, whatever the block itself waits for.

    Hello is answered with the run's data, all else is refused. Nothing else may use `server` or
    change `ledger` meanwhile. Where no thread can be started, no request is answered, and the block
    runs all the same.
    """

    def answer(conn: Conn, asking: Asking) -> None:
        if isinstance(asking, Hello):
            conn.send(presence(run, ledger))
        else:
            conn.fail(f"{run.path} is over ({ledger.state}): it only writes its report")

    def turn() -> None:
        while not over:
            loop.turn()

    over: list[bool] = []
    wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    with closing(Loop()) as loop:
        loop.watch(wake, lambda: over.append(True))
        server.serve(loop, answer)
        thread = Thread(target=turn, daemon=True)
        begun = _started(thread)
        try:
            yield
        finally:
            os.eventfd_write(wake, 1)
            if begun:
                thread.join()
            server.leave()
            os.close(wake)


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
