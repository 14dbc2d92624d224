"""Answers the requests of other terminals: to a live run, and to one that only writes its report.

supervise: Answers, by its loop ─▶ attended, by a thread: summary, report ─▶ ControlServer.close
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from threading import Thread
from typing import Any, TypeAlias

from msgspec import Struct

from gpulaunch.base.files import read_bytes
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Asked, Cancel, Event, Finish, Request, Retry
from gpulaunch.core.facts import Fact, JobSet
from gpulaunch.core.ledger import Ledger
from gpulaunch.jobfile.file_keys import Beside
from gpulaunch.jobfile.plan import Plan
from gpulaunch.journal.codec import from_json, plain, to_json
from gpulaunch.journal.read import facts_of
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run.control_protocol import (
    EXPLAINED,
    REQUEST_BYTES,
    Add,
    Asking,
    Changed,
    Hello,
    Reasons,
    Reload,
    SetFields,
    Told,
)
from gpulaunch.run.control_server import Conn, ControlServer
from gpulaunch.run.job_list import (
    Filed,
    ListedNames,
    RefusedError,
    RunList,
    read_addition,
    refusing,
)
from gpulaunch.run.list_follower import ListFollower
from gpulaunch.run.supervisor import Supervisor


def presence(run: RunDir, ledger: Ledger) -> dict[str, object]:
    """Return the answer to Hello."""
    return {
        "pid": os.getpid(),
        "dir": str(run.path),
        "name": ledger.opening.name,
        "state": ledger.state,
        "counts": dict(ledger.counts),
    }


Doing: TypeAlias = Callable[[], object]
"""Does what a request asks: nothing can be wrong with the request any more."""


class Answers(Struct):
    """What a live run answers, and asks its supervisor for.

    `plan`: its list, as its job file had it last; `filed`: that file, None where there is none.
    `lend` takes the environment of added jobs, by their names. `follower` follows what its
    `foreach` rests on. `reading`: how many lists are being read.
    `held`: how many characters of them were sent.
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
    held: int = 0

    @property
    def busy(self) -> bool:
        """True while a list is being read: its jobs may join a run that has none left."""
        return self.reading > 0 or (self.follower is not None and self.follower.busy)

    def answer(self, conn: Conn, asking: Asking) -> None:
        """Answer one request, at once or when a list of jobs has been read."""
        self._do(conn, lambda: self._prepared(conn, asking))

    def _do(self, conn: Conn, prepare: Callable[[], Doing]) -> None:
        """Do what a request asks, once all that can be wrong with it was looked at.

        A request that cannot be prepared is an answer to its sender, whatever the reason is, and
        never the end of the run: nothing is changed before all is prepared.
        """
        try:
            do = prepare()
        except RefusedError as error:
            _refuse(conn, error)
        except Exception as error:
            what = f"this cannot be done ({error!r:.1000}): nothing was changed"
            _refuse(conn, RefusedError(what))
        else:
            do()

    def _prepared(self, conn: Conn, asking: Asking) -> Doing:
        match asking:
            case Retry(names, as_filed=True) if self.filed is not None:
                return self._once_filed(conn, partial(self._retry, conn, names))
            case Reload(dry_run):
                return self._once_filed(conn, partial(self._reload, conn, dry_run))
            case Add():
                adding, sent = partial(self._add, conn, asking), len(asking.text)
                return self._once_read(conn, self._addition(asking), adding, sent)
            case SetFields(names, fields) if self.filed and not all(fields.values()):
                return self._once_filed(conn, partial(self._set, conn, names, fields))
            case SetFields(names, fields):
                return self._set(conn, names, fields, None)
        return self._answer(conn, asking)

    # ── Lists that have to be read first ────────────────────────────────────────────────────────

    def _once_read(
        self, conn: Conn, read: Callable[[], Plan], then: Callable[[Plan], Doing], sent: int = 0
    ) -> Doing:
        """Have a thread read, then go on with the plan; answer with what is wrong, if it is."""

        def over(plan: Plan | Exception) -> None:
            self.reading -= 1
            self.held -= sent
            if not conn.abandoned:
                self._do(conn, lambda: then(_not_refused(plan)))

        self.loop.in_thread(read, over)
        self.reading += 1
        self.held += sent
        return lambda: None

    def _once_filed(self, conn: Conn, then: Callable[[Plan], Doing]) -> Doing:
        """Go on with the job file's plan once it was read; nothing comes behind a newer one."""
        taken = self.list.taken

        def fresh(plan: Plan) -> Doing:
            if self.list.taken != taken:
                return self._once_filed(conn, then)
            self.list.taken += 1
            return then(plan)

        return self._once_read(conn, self._file(), fresh)

    def _file(self) -> Callable[[], Plan]:
        """Return what reads the job file. Raises RefusedError where there is none."""
        filed = self.filed
        if filed is None:
            raise RefusedError(f"{self.directory.path} has no job file that it could read anew")
        following = self.follower.following if self.follower else None
        return refusing(lambda: filed.read(following), str(filed.file))

    def _addition(self, asking: Add) -> Callable[[], Plan]:
        """Return what reads the jobs that are to be added."""
        if self.supervisor.ledger.stopping:
            raise RefusedError(f"{self.directory.path} is stopping: nothing is added to it")
        if self.held and self.held + len(asking.text) > REQUEST_BYTES:
            raise RefusedError(f"{self.directory.path} reads other lists of jobs: try again")
        text = asking.text
        if asking.stem:
            text = _named(text, self.list.name_for(asking.stem))
        beside = Beside(ListedNames(self.list.run), self.list.limits)
        read = partial(read_addition, asking, text, beside, self.list.pool, self.filed)
        return refusing(read, asking.label)

    # ── What becomes of them ────────────────────────────────────────────────────────────────────

    def _retry(self, conn: Conn, names: tuple[str, ...] | None, plan: Plan) -> Doing:
        change = self.list.retried(plan, names)
        requeued = [n for n in self.list.run.retried_by(names) if n not in change.gone]
        known = self.list.run.ledger.jobs
        changed = [j.name for j in change.jobs if known[j.name].definition.digest != j.digest]
        told = {"requeued": requeued, "changed": changed, "gone": list(change.gone)}
        self._keep(plan)

        def do() -> None:
            self.supervisor.post(change)
            self._take(conn, Asked(Retry(names)), told)

        return do

    def _reload(self, conn: Conn, dry_run: bool, plan: Plan) -> Doing:
        change = self.list.reloaded(plan)
        told = plain(Changed(self.list.summary(change), tuple(self._kept_back(plan))))
        if dry_run:
            return lambda: conn.send(told)
        self._keep(plan)

        def do() -> None:
            self.plan = plan
            if self.follower is not None:
                self.follower.follow(plan.sources)
            self._take(conn, change, told)

        return do

    def _add(self, conn: Conn, asking: Add, plan: Plan) -> Doing:
        change = self.list.added(plan, asking.environ)
        names = [job.name for job in change.jobs]
        facts = facts_of(asking.addition, change.jobs)

        def do() -> None:
            self.list.given.update(zip(names, change.jobs, strict=True))
            self.lend(names, asking.environ)
            self._take(conn, change, {"names": names}, facts)

        return do

    def _set(
        self, conn: Conn, names: tuple[str, ...], fields: Mapping[str, str], plan: Plan | None
    ) -> Doing:
        names = tuple(dict.fromkeys(names))
        if len(names) * sum(map(len, fields.values())) > REQUEST_BYTES:
            raise RefusedError("too much for one request: set fewer jobs at a time")
        change = self.list.set(names, fields, plan)
        told = plain(Changed(self.list.summary(change)))
        facts = [JobSet(name, fields) for name in names]
        return lambda: self._take(conn, change, told, facts)

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

    def _answer(self, conn: Conn, asking: Asking) -> Doing:
        ledger = self.supervisor.ledger
        match asking:
            case Hello():
                return partial(conn.send, presence(self.directory, ledger))
            case Reasons():
                jobs = ledger.jobs.values()
                waiting = (job.name for job in jobs if job.state == "waiting")
                # An engine with a queue has a thousand attempts at once at most.
                running = (job.name for job in jobs if ledger.queueing and job.state == "running")
                why = self.supervisor.why_waiting
                asked = chain(islice(waiting, EXPLAINED), running)
                known = ((name, why(name)) for name in asked)
                reasons = {name: reason for name, reason in known if reason is not None}
                return partial(conn.send, plain(Told(reasons)))
            case Retry(names):
                told = {"requeued": self.list.run.retried_by(names), "changed": [], "gone": []}
                return lambda: self._ask(conn, asking, told)
            case Add() | Reload() | SetFields():
                raise AssertionError(asking)  # `_prepared` has them done
        return lambda: self._ask(conn, asking, {"done": True})

    def _ask(self, conn: Conn, request: Request, answer: Mapping[str, Any]) -> None:
        self.supervisor.post(Asked(request))
        if self.follower is not None:
            if isinstance(request, Finish):
                self.follower.finish()
            elif isinstance(request, Cancel) and request.jobs is None:
                self.follower.leave()
                self.supervisor.post(Asked(Finish()))
        conn.send(answer)


def _not_refused(plan: Plan | Exception) -> Plan:
    if isinstance(plan, Exception):
        raise plan
    return plan


def _named(text: str, name: str) -> str:
    """Return a list of one job with this name for it. Raises RefusedError where it is none."""
    try:
        tree = from_json(text.encode(errors="surrogateescape"))
        [job] = tree["jobs"]
        return to_json({**tree, "jobs": [{**job, "name": name}]}).decode()
    except (ValueError, TypeError, KeyError):
        raise RefusedError("add with a stem: expected a list of one job, in JSON") from None


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
