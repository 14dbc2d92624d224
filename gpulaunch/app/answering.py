"""Answers the requests of other terminals: to a live run, and to one that only writes its report.

supervise: Answers, by its loop ─▶ attended, by a thread: summary, report ─▶ ControlServer.close
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from threading import Thread
from typing import Any

from msgspec import Struct

from gpulaunch.app.list_follower import ListFollower
from gpulaunch.app.listing import ListedNames, RunList
from gpulaunch.app.rereading import Filed, Reading, RefusedError, read_addition
from gpulaunch.app.supervisor import Supervisor
from gpulaunch.control.protocol import (
    CHANGED,
    EXPLAINED,
    TOLD,
    Add,
    Asking,
    Changed,
    Hello,
    Reasons,
    Reload,
    SetFields,
    Told,
)
from gpulaunch.control.server import Conn, ControlServer
from gpulaunch.core.events import Asked, Cancel, Event, Finish, Retry
from gpulaunch.core.facts import Fact, JobSet
from gpulaunch.core.ledger import Ledger
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.surroundings import Beside
from gpulaunch.journal.given import facts_of
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


class Answers(Struct):
    """What a live run answers, and asks its supervisor for.

    `plan`: its list, as its job file had it last; `filed`: that file, None where there is none.
    `lend` takes the environment of added jobs, by their names. `follower` follows what its
    `foreach` rests on. `reading`: how many lists are being read.
    """

    directory: RunDir
    plan: Plan
    filed: Filed | None
    list: RunList
    supervisor: Supervisor
    loop: Loop
    lend: Callable[[Sequence[str], Mapping[str, str]], object]
    follower: ListFollower | None = None
    reading: int = 0

    @property
    def busy(self) -> bool:
        """True while a list is being read: its jobs may join a run that has none left."""
        return self.reading > 0 or (self.follower is not None and self.follower.busy)

    def answer(self, conn: Conn, asking: Asking) -> None:
        """Answer one request, at once or when a list of jobs has been read."""
        try:
            match asking:
                case Retry(names, as_filed=True) if self.filed is not None:
                    self._once_filed(conn, partial(self._retry, conn, names))
                case Reload(dry_run):
                    self._once_filed(conn, partial(self._reload, conn, dry_run))
                case Add():
                    self._once_read(conn, self._addition(asking), partial(self._add, conn, asking))
                case SetFields(names, fields) if self.filed and not all(fields.values()):
                    self._once_filed(conn, partial(self._set, conn, names, fields))
                case SetFields(names, fields):
                    self._set(conn, names, fields, None)
                case _:
                    conn.send(self._answer(asking))
        except RefusedError as error:
            _refuse(conn, error)

    # ── Lists that have to be read first ────────────────────────────────────────────────────────

    def _once_read(self, conn: Conn, reading: Reading, then: Callable[[Plan], None]) -> None:
        """Go on with the plan once it was read; answer with what is wrong, if anything is."""
        self.reading += 1

        def over() -> None:
            self.reading -= 1
            self.loop.unwatch(reading.fileno())
            reading.close()
            if conn.abandoned:
                return
            try:
                then(reading.plan())
            except RefusedError as error:
                _refuse(conn, error)

        self.loop.watch(reading.fileno(), over)

    def _once_filed(self, conn: Conn, then: Callable[[Plan], None]) -> None:
        """Go on with the job file's plan once it was read; nothing comes behind a newer one."""
        taken = self.list.taken

        def fresh(plan: Plan) -> None:
            if self.list.taken != taken:
                self._once_filed(conn, then)
                return
            self.list.taken += 1
            then(plan)

        self._once_read(conn, self._file(), fresh)

    def _file(self) -> Reading:
        """Begin to read the job file. Raises RefusedError where there is none."""
        filed = self.filed
        if filed is None:
            raise RefusedError(f"{self.directory.path} has no job file that it could read anew")
        following = self.follower.following if self.follower else None
        return Reading(lambda: filed.read(following), str(filed.file))

    def _addition(self, asking: Add) -> Reading:
        """Begin to read the jobs that are to be added."""
        if self.supervisor.ledger.stopping:
            raise RefusedError(f"{self.directory.path} is stopping: nothing is added to it")
        text = asking.text
        if asking.stem:
            text = _named(text, self.list.name_for(asking.stem))
        beside = Beside(ListedNames(self.list.run), self.list.limits, self.list.was_archived)
        read = partial(read_addition, asking, text, beside, self.list.pool, self.filed)
        return Reading(read, asking.label)

    # ── What becomes of them ────────────────────────────────────────────────────────────────────

    def _retry(self, conn: Conn, names: tuple[str, ...] | None, plan: Plan) -> None:
        change = self.list.retried(plan, names)
        requeued = [n for n in self.list.run.retried_by(names) if n not in change.gone]
        self._keep(plan)
        known = self.list.run.ledger.jobs
        changed = [j.name for j in change.jobs if known[j.name].definition.digest != j.digest]
        told = {"requeued": requeued, "changed": changed, "gone": list(change.gone)}
        self.supervisor.post(change)
        self._take(conn, Asked(Retry(names)), told)

    def _reload(self, conn: Conn, dry_run: bool, plan: Plan) -> None:
        change = self.list.reloaded(plan)
        told = CHANGED.plain(Changed(self.list.summary(change), tuple(self._kept_back(plan))))
        if dry_run:
            conn.send(told)
            return
        self._keep(plan)
        self.plan = plan
        if self.follower is not None:
            self.follower.follow(plan.sources)
        self._take(conn, change, told)

    def _add(self, conn: Conn, asking: Add, plan: Plan) -> None:
        change = self.list.added(plan, asking.environ)
        names = [job.name for job in change.jobs]
        self.list.given.update(zip(names, change.jobs, strict=True))
        self.lend(names, asking.environ)
        self._take(conn, change, {"names": names}, facts_of(asking.addition, change.jobs))

    def _set(
        self, conn: Conn, names: tuple[str, ...], fields: Mapping[str, str], plan: Plan | None
    ) -> None:
        change = self.list.set(names, fields, plan)
        told = CHANGED.plain(Changed(self.list.summary(change)))
        self._take(conn, change, told, [JobSet(name, fields) for name in names])

    def _take(
        self, conn: Conn, event: Event, answer: Mapping[str, Any], facts: Sequence[Fact] = ()
    ) -> None:
        """Record the facts, have the core take the event, and answer once all that is recorded."""
        self.supervisor.take(event, facts, lambda: conn.send(answer))

    def _keep(self, plan: Plan) -> None:
        """Keep a copy of the job file as it was read, if it has changed. Raises RefusedError."""
        directory = self.directory
        try:
            if read_bytes(directory.newest_jobs_file()) != plan.text:
                replace_file(directory.next_jobs_file(plan.source.is_list), plan.text)
        except OSError as error:
            raise RefusedError(f"{error.filename}: {error.strerror}; nothing was changed") from None

    def _kept_back(self, plan: Plan) -> Iterator[str]:
        """Yield what of the job file's own keys changed, which a live run does not take up."""
        for key, was, now in (
            ("gpus", self.plan.selection, plan.selection),
            ("free_below", self.plan.free_below, plan.free_below),
            ("limits", self.plan.limits, plan.limits),
            ("notify", self.plan.notify, plan.notify),
        ):
            if was != now:
                yield f"{key}: changed in the job file; the run has it so from its next resume on"

    def _answer(self, asking: Asking) -> dict[str, object]:
        ledger = self.supervisor.ledger
        match asking:
            case Hello():
                return presence(self.directory, ledger)
            case Reasons():
                jobs = ledger.jobs.values()
                waiting = (job.name for job in jobs if job.state == "waiting")
                # An engine with a queue has a thousand attempts at once at most.
                running = (job.name for job in jobs if ledger.queueing and job.state == "running")
                why = self.supervisor.why_waiting
                asked = chain(islice(waiting, EXPLAINED), running)
                known = ((name, why(name)) for name in asked)
                reasons = {name: reason for name, reason in known if reason is not None}
                answer: dict[str, object] = TOLD.plain(Told(reasons))
                return answer
            case Retry(names):
                requeued = self.list.run.retried_by(names)
                self.supervisor.post(Asked(asking))
                return {"requeued": requeued, "changed": [], "gone": []}
            case Add() | Reload() | SetFields():
                raise AssertionError(asking)  # `answer` has them done
        self.supervisor.post(Asked(asking))
        if self.follower is not None:
            if isinstance(asking, Finish):
                self.follower.finish()
            elif isinstance(asking, Cancel) and asking.jobs is None:
                self.follower.leave()
                self.supervisor.post(Asked(Finish()))
        return {"done": True}


def _named(text: str, name: str) -> str:
    """Return a list of one job with this name for it."""
    tree = json.loads(text)
    tree["jobs"][0]["name"] = name
    return json.dumps(tree)


def _refuse(conn: Conn, error: RefusedError) -> None:
    """Answer that nothing was changed, and why."""
    found = [{**mistake.plain(), "text": mistake.text} for mistake in error.found]
    conn.send({"error": str(error), **({"found": found} if found else {})})


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
