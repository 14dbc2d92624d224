"""One supervisor's turn at a run: everything opened in order, and closed whatever happens.

control socket (the lock) ─▶ journal ─▶ Run ─▶ engine ─▶ Supervisor.serve ─▶ closed
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from gpulaunch import __version__
from gpulaunch.attending import presence
from gpulaunch.control import Asking, Conn, ControlServer, Hello, Reasons
from gpulaunch.core.events import Asked, Retry, Submitted
from gpulaunch.core.facts import Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.core.run import Run
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.local.engine import Local
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.protocol import Engine, Post
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.notify_spec import Target
from gpulaunch.journal import manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import now
from gpulaunch.journal.joblog import JobLog, command_line, what_runs
from gpulaunch.journal.recorder import Recorder
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.notify.notifier import Notifier
from gpulaunch.rereading import Filed, Reading, RefusedError, refiled
from gpulaunch.supervisor import STOPPING, Supervisor
from gpulaunch.views.terminal import View

EXPLAINED = 1000
"""Waiting jobs whose reasons one answer holds: a hundred thousand would take the run seconds."""

QUEUE = 1000
"""Attempts that an engine which queues by itself is handed at most, at a time."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a supervisor needs to begin. `ledger` is the state that earlier epochs left, if any.

    `watched`: a person sits at the terminal, and can say how to go on. `pinned`: a job that is
    seen on a card that is not its own fails. `left`: attempts without a recorded end. `notify`:
    targets of notifications; their commands run in `base`. `slurm`: options that every sbatch is
    given. `filed`: the job file; None: the jobs are only in the run's directory.
    """

    run: RunDir
    run_id: str
    name: str
    pool: CardPool
    limits: Mapping[str, int]
    submitted: Submitted
    ledger: Ledger
    fail_fast: bool = False
    max_failures: int | None = None
    breaker: int | None = None
    watched: bool = False
    pinned: bool = True
    wait: float | None = None
    detached: bool = False
    left: Sequence[AttemptId] = ()
    notify: Sequence[Target] = ()
    base: Path = Path()
    slurm: Sequence[str] = ()
    filed: Filed | None = None

    @property
    def engine(self) -> str:
        """The engine that runs the jobs: `local` or `slurm`."""
        return self.pool.engine


@contextmanager
def held_signals() -> Iterator[None]:
    """Block the signals that stop a run until `supervise` handles them.

    The run's directory is made in between.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def supervise(
    session: Session,
    server: ControlServer,
    journal: Journal,
    view: View,
    begun: Callable[[], None] = lambda: None,
) -> str:
    """Run to the end; return why the run could not be recorded, "" where it was.

    The ledger then holds the run's outcome. `begun` is called once the run is being recorded.
    Signals that stop a run may be blocked by the caller (`held_signals`); they are handled from
    here on.
    """
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        opened, at = _opened(session), now()
        ledger = session.ledger
        ledger.apply(opened, at)
        run = _run(session, ledger)
        joblog = JobLog(session.run.joblog, partial(_command, run))
        stack.callback(joblog.close)
        recorder = Recorder(session.run, journal, joblog, ledger)
        stack.callback(recorder.clear_ends)
        recorder.append([(opened, at)])
        view.see(opened, at, ledger)
        begun()
        teller = _teller(session, ledger, loop, lambda text: supervisor.note(None, text))
        stack.callback(teller.close)
        shown = _TeeView(view, teller) if session.notify else view
        supervisor = Supervisor(run, recorder, shown, loop, now, session.wait)
        loop.on_signals(_signals(session.detached), _signal_handler(supervisor, teller))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        engine = _engine(session, _context(session, ledger, supervisor), loop, supervisor.post)
        stack.callback(engine.close)
        _Control(server, loop, supervisor, run, session)
        supervisor.serve(engine, session.submitted, session.left, teller.farewell)
        return supervisor.unrecorded


def _run(session: Session, ledger: Ledger) -> Run:
    return Run(
        session.pool.gpus,
        limit=session.pool.limit,
        cpus=session.pool.machine.cpus,
        limits=session.limits,
        fail_fast=session.fail_fast,
        max_failures=session.max_failures,
        breaker=session.breaker,
        patient=session.watched,
        pinned=session.pinned,
        ledger=ledger,
        queue=QUEUE if session.engine == "slurm" else None,
        ahead=True,
    )


def _engine(session: Session, context: RunContext, loop: Loop, post: Post) -> Engine:
    if session.engine == "slurm":
        from gpulaunch.engines.slurm.engine import SlurmEngine
        from gpulaunch.engines.slurm.settings import Settings

        return SlurmEngine(context, Settings.of(session.slurm, os.environ), loop, post)
    return Local(context, session.pool, loop, post)


def _opened(session: Session) -> RunOpened:
    return RunOpened(
        run=session.run_id,
        name=session.name,
        epoch=session.ledger.epoch + 1,
        version=__version__,
        host=manifest.hostname(),
        boot=manifest.boot_id(),
        pid=os.getpid(),
        gpus=session.pool.gpus,
        simulated=session.pool.simulated,
        limit=session.pool.limit,
        engine=session.engine,
    )


def _command(run: Run, name: str) -> str:
    job = run.job(name)
    return "" if job is None else command_line(what_runs(job))


class _TeeView:
    """Passes each fact to the view and to the notifier."""

    def __init__(self, view: View, teller: Notifier) -> None:
        self._teller = teller
        self._view = view
        self.tick = view.tick
        self.next_tick = view.next_tick
        self.close = view.close

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        self._view.see(fact, at, ledger)
        self._teller.see(fact, at, ledger)


def _teller(session: Session, ledger: Ledger, loop: Loop, note: Callable[[str], None]) -> Notifier:
    return Notifier(
        session.notify,
        ledger,
        loop,
        directory=session.run.path,
        base=session.base,
        environ=os.environ,
        note=note,
        clock=now,
    )


def _signal_handler(supervisor: Supervisor, teller: Notifier) -> Callable[[int], None]:
    def hear(number: int) -> None:
        if teller.waiting:
            teller.give_up(f"{STOPPING[signal.Signals(number)]} came first")
        else:
            supervisor.on_signal(number)

    return hear


def _context(session: Session, ledger: Ledger, supervisor: Supervisor) -> RunContext:
    return RunContext(
        run=session.run,
        run_id=session.run_id,
        epoch=ledger.epoch,
        machine=session.pool.machine,
        base=dict(os.environ),
        force_uuid=session.pool.style == "uuid",
        warn=supervisor.note,
    )


def _signals(detached: bool) -> list[signal.Signals]:
    """Return the signals that stop the run, without ignored ones (nohup, `&` in a script).

    A detached run does not stop at SIGHUP.
    """
    heard = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    return [number for number in heard if not (detached and number == signal.SIGHUP)]


class _Control:
    """Answers the requests of other terminals to the run."""

    def __init__(
        self,
        server: ControlServer,
        loop: Loop,
        supervisor: Supervisor,
        run: Run,
        session: Session,
    ) -> None:
        self._server = server
        self._loop = loop
        self._supervisor = supervisor
        self._run = run
        self._session = session
        for fd in server.selectables():
            loop.watch(fd, partial(self._serve, fd))

    def _serve(self, fd: int) -> None:
        for conn, asking in self._server.on_readable(fd):
            filed = self._session.filed
            if isinstance(asking, Retry) and asking.as_filed and filed is not None:
                self._read_again(conn, asking, filed)
            else:
                conn.send(self._answer(asking))

    def _read_again(self, conn: Conn, asking: Retry, filed: Filed) -> None:
        """Read the job file again, then answer with the requeued jobs, or why none is."""
        reading = Reading(filed, os.environ)

        def over() -> None:
            self._loop.unwatch(reading.fileno())
            reading.close()
            try:
                conn.send(self._retry_anew(reading.plan(), asking.jobs))
            except RefusedError as error:
                conn.fail(str(error))

        self._loop.watch(reading.fileno(), over)

    def _retry_anew(self, plan: Plan, names: tuple[str, ...] | None) -> dict[str, object]:
        found = refiled(self._run, plan, names, self._session.pool)
        directory = self._session.run
        try:
            if read_bytes(directory.newest_jobs_file()) != plan.text:
                replace_file(directory.next_jobs_file(), plan.text)
        except OSError as error:
            raise RefusedError(
                f"{error.filename}: {error.strerror}; nothing was requeued"
            ) from None
        self._supervisor.post(found.event)
        return {
            "requeued": list(found.requeued),
            "changed": list(found.changed),
            "gone": list(found.gone),
        }

    def _answer(self, asking: Asking) -> dict[str, object]:
        ledger = self._supervisor.ledger
        match asking:
            case Hello():
                return presence(self._session.run, ledger)
            case Reasons():
                waiting = (job.name for job in ledger.jobs.values() if job.state == "waiting")
                why = self._supervisor.why_waiting
                return {"reasons": {name: why(name) for name in islice(waiting, EXPLAINED)}}
            case Retry(names):
                requeued = self._run.retried_by(names)
                self._supervisor.post(Asked(asking))
                return {"requeued": requeued, "changed": [], "gone": []}
        self._supervisor.post(Asked(asking))
        return {"done": True}
