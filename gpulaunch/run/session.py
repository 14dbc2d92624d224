"""One supervisor's turn at a run: everything opened in order, and closed whatever happens.

control socket (the lock) ─▶ journal ─▶ Run ─▶ engine ─▶ Supervisor.serve ─▶ report ─▶ closed
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from gpulaunch import __version__
from gpulaunch.base.errors import NO_CARDS, NoCardsError, NotRecordedError
from gpulaunch.base.extras import require
from gpulaunch.base.loop import Loop
from gpulaunch.base.text import shell_word
from gpulaunch.core.events import Asked, Finish, Request, Submitted
from gpulaunch.core.facts import Fact, JobSettled, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.core.state import InEngineQueue, OnCards, RunConfig
from gpulaunch.engines import setup_of
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import EnvironmentMaker
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.programs import Programs, needs_programs
from gpulaunch.jobfile.plan import Plan
from gpulaunch.journal import manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import now
from gpulaunch.journal.find import is_filed, typed
from gpulaunch.journal.joblog import JobLog, command_line, what_runs
from gpulaunch.journal.recorder import Recorder
from gpulaunch.journal.rundir import RunDir
from gpulaunch.journal.trace import TracedRun, TraceStart
from gpulaunch.observe.notify.notifier import Notifier
from gpulaunch.observe.prometheus.port import Exporter
from gpulaunch.observe.report.writing import Writing
from gpulaunch.observe.terminal.terminal import View
from gpulaunch.run.clean import short_room_told
from gpulaunch.run.code_watch import CodeMinder, import_the_rest
from gpulaunch.run.control_handlers import Answers, attended
from gpulaunch.run.control_server import ControlServer
from gpulaunch.run.job_list import Filed, RunList
from gpulaunch.run.list_follower import ListFollower
from gpulaunch.run.options import Observer, RunEnd, RunOptions, hours_of
from gpulaunch.run.preflight import targets_of
from gpulaunch.run.supervisor import STOPPING, Listener, Supervisor, WithinHours

BREAKER = 10
"""Fast failures alike in a row that stop a run, unless --breaker says otherwise."""

QUEUE = 1000
"""Attempts that an engine which queues by itself is handed at most, at a time."""


class Session(Struct, frozen=True):
    """What a supervisor needs to begin. `ledger` is the state that earlier epochs left, if any.

    `left`: attempts without a recorded end. `given`: jobs that were added while it lived. `filed`:
    the job file; None: the jobs are only in the run's directory. `earlier`: how long jobs took in
    earlier runs of the file, in seconds by name. `asked`: what is asked of the run once its jobs
    are recorded, as by another terminal.
    """

    run: RunDir
    run_id: str
    plan: Plan
    pool: CardPool
    options: RunOptions
    submitted: Submitted
    ledger: Ledger
    left: Sequence[AttemptId] = ()
    given: Sequence[Job] = ()
    filed: Filed | None = None
    earlier: Mapping[str, float] = field(default_factory=dict)
    asked: Sequence[Request] = ()

    @property
    def standing(self) -> Literal["", "follow", "queue"]:
        """Why the run waits for more jobs when it has none left; empty where it does not."""
        if self.options.standing:
            return "queue"
        follows = self.options.choices.follow and self.filed is not None
        return "follow" if follows else ""


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


@contextmanager
def metrics_port(options: RunOptions) -> Iterator[Exporter | None]:
    """Take the port that `--metrics-port` names, and hold it; None where none is asked for.

    Raises UsageError where the port cannot be had, or what serves it is not installed.
    """
    if options.metrics_port is None:
        yield None
        return
    require("prometheus", "--metrics-port")
    with Exporter(options.metrics_port) as exporter:
        yield exporter


def run_to_its_end(
    session: Session,
    server: ControlServer,
    journal: Journal,
    exporter: Exporter | None,
    observer: Observer,
) -> RunEnd:
    """Drive the run to its end, have its report written, and return what it came to.

    Raises NoCardsError where `wait` ran out, NotRecordedError where the run was stopped because it
    could not be recorded.
    """
    ledger = session.ledger
    observer.opened(journal.next, session.earlier)

    def begun() -> None:
        observer.begun()
        if exporter is not None:
            _serve(exporter, session, observer)

    if exporter is not None:
        # Nobody can know a port that we chose.
        urgent = session.options.metrics_port == 0
        observer.note(f"metrics at {exporter.address}", urgent=urgent)
    with Writing(session.run) as report:
        try:
            supervisor = supervise(
                session, server, journal, observer.view, begun, report, observer.listed
            )
        finally:
            observer.view.close(ledger)
            if exporter is not None:
                exporter.close()
        with attended(server, session.run, ledger):
            _reported(ledger, session.run, observer, report)
            if text := short_room_told(session.run, ledger):
                observer.note(text, urgent=True)
    if ledger.exit_status == NO_CARDS:
        why = f"; {supervisor.no_card_as}" if supervisor.no_card_as else ""
        raise NoCardsError(
            f"no card came free in the time that --wait gave; nothing was started{why}"
        )
    if supervisor.unrecorded:
        what_now = _what_now(session, journal)
        raise NotRecordedError(
            f"the run could not be recorded ({supervisor.unrecorded}) and was stopped; {what_now}"
        )
    full = supervisor.full and not ledger.stopping and report.stopped_by is None
    return RunEnd(session.run, ledger, ledger.exit_status, full)


@contextmanager
def describing(run: RunDir) -> Iterator[None]:
    """Raise NotRecordedError where what describes the run cannot be written: no job was started."""
    try:
        yield
    except OSError as error:
        raise NotRecordedError(
            f"the run could not be recorded ({error.filename or run.path}: {error.strerror});"
            " no job was started"
        ) from None


def _serve(exporter: Exporter, session: Session, observer: Observer) -> None:
    """Serve the metrics of a run that has a journal; a failure to serve does not stop the run."""
    try:
        exporter.start(session.run, session.earlier)
    except OSError as error:
        observer.note(f"the metrics are not served: {error.strerror or error}")


def _reported(ledger: Ledger, run: RunDir, observer: Observer, report: Writing) -> None:
    """Tell of the end, and have the report written meanwhile; that never changes the end.

    A run that started no job gets no report, nor one whose directory is gone.
    """
    if not run.holds_run or not any(job.attempts for job in ledger.jobs.values()):
        observer.ended(run, ledger)
        return
    report.begin()
    try:
        observer.ended(run, ledger)
    finally:
        observer.reported(run, report.wait(STOPPING))


def _what_now(session: Session, journal: Journal) -> str:
    """Return how to go on after a run could not be recorded; a deleted one cannot be resumed."""
    where = shell_word(typed(session.run.path))
    if not journal.gone:
        return f"make room there (df -h {where}), then: gpulaunch resume {where}"
    again = f": {_start_again(session, session.filed)}" if session.filed else ""
    gone = "" if session.run.path.is_dir() else f"its directory {where} is gone, and "
    return f"{gone}nothing of it can be resumed; start again{again}"


def _start_again(session: Session, filed: Filed) -> str:
    """Return the command line that starts such a run afresh, in its own directory if possible."""
    command = f"gpulaunch run {shell_word(typed(filed.file))}{session.options.words()}"
    if is_filed(session.run) or os.path.lexists(session.run.events):
        return command
    return f"{command} --run-dir {shell_word(typed(session.run.path))}"


def supervise(
    session: Session,
    server: ControlServer,
    journal: Journal,
    view: View,
    begun: Callable[[], None],
    report: Writing,
    listed: Callable[[], object],
) -> Supervisor:
    """Run to the end; return what drove it, which says why that went no further.

    The ledger then holds the run's outcome. `begun` is called once the run is being recorded,
    `listed` once its jobs are.
    Signals that stop a run may be blocked by the caller (`held_signals`); they are handled from
    here on, where this is the main thread: in another, they are its own affair.
    """

    def note(text: str) -> None:
        supervisor.note(None, text)

    with ExitStack() as stack:
        loop = stack.enter_context(closing(Loop()))
        opened, at = _opened(session), now()
        ledger = session.ledger
        ledger.apply(opened, at)
        run = stack.enter_context(closing(_run(session, opened, at, note)))
        joblog = JobLog(session.run.joblog, partial(_command, run))
        stack.callback(joblog.close)
        recorder = Recorder(session.run, journal, joblog, ledger)
        recorder.append([(opened, at)])
        view.see(opened, at, ledger)
        begun()
        teller = stack.enter_context(closing(_teller(session, ledger, loop, note)))
        hours = hours_of(session.options.choices)
        within = None if hours is None else WithinHours(hours, loop, now)
        supervisor = Supervisor(run, recorder, view, loop, now, session.options.wait, within)
        supervisor.listeners.append(_preparing(report, loop))
        if targets_of(session.plan):
            supervisor.listeners.append(teller.see)
        if threading.current_thread() is threading.main_thread():
            heard = _signals(session.options.detached)
            loop.on_signals(heard, _signal_handler(supervisor, teller))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        if not session.standing and len(session.submitted.jobs) <= len(session.pool.gpus):
            report.prepare()  # all of them start at once
        make = setup_of(session.pool.engine).make
        programs = _programs(session, note)
        stack.callback(programs.remove)
        context = _context(session, programs, supervisor, loop)
        engine = make(context, session.pool, session.options.slurm)
        stack.callback(engine.close)
        supervisor.listeners.append(partial(_forget_environment, context.environments))
        runs_list = _list_of(session, run)
        follower = _follower(session, runs_list, loop, supervisor)
        if follower is not None:
            stack.callback(follower.close)
        lend = context.environments.lend
        answers = Answers(
            session.run, session.plan, session.filed, runs_list, supervisor, loop, lend, follower
        )
        supervisor.stay_while = lambda: answers.busy
        minder = CodeMinder(run, loop, str(session.plan.base), supervisor.tell, note)
        stack.callback(minder.close)
        stack.callback(import_the_rest(loop, note))
        supervisor.listeners.append(minder.see)
        if opened.standing == "queue":
            supervisor.listeners.append(_closing_when_full(supervisor, answers, loop))
        server.serve(loop, answers.answer)
        stack.callback(server.leave)

        def recorded() -> None:
            listed()
            for request in session.asked:
                supervisor.post(Asked(request))

        supervisor.serve(engine, session.submitted, session.left, teller.farewell, recorded)
        return supervisor


def _preparing(report: Writing, loop: Loop) -> Listener:
    """Return what has the report's process get ready when the last job has started."""

    def hear(fact: Fact, at: Instant, ledger: Ledger) -> None:
        last = ledger.counts["running"] and not ledger.counts["waiting"]
        if last and not ledger.awaits_more:
            loop.later(report.prepare)

    return hear


def _closing_when_full(supervisor: Supervisor, answers: Answers, loop: Loop) -> Listener:
    """Return what lets a queue's run end once its directory is full, for the next directory.

    Jobs that are added before the run has ended still run in this one.
    """

    def close() -> None:
        ledger = supervisor.ledger
        if ledger.is_full and not (ledger.complete or answers.busy):
            supervisor.full = True
            supervisor.post(Asked(Finish()))

    def hear(fact: Fact, at: Instant, ledger: Ledger) -> None:
        if isinstance(fact, JobSettled) and ledger.is_full:
            loop.later(close)

    return hear


def _forget_environment(
    environments: EnvironmentMaker, fact: Fact, at: Instant, ledger: Ledger
) -> None:
    """Let go of what was lent to a job that is not run again."""
    if isinstance(fact, JobSettled) and fact.state == "succeeded":
        environments.forget((fact.name,))


def _list_of(session: Session, run: Run) -> RunList:
    """Return the list of the run, which may change while it lives."""
    given = {job.name: job for job in session.given}
    only = session.options.choices.only
    return RunList(run, session.pool, session.plan.limits, only, given)


def _follower(
    session: Session, runs_list: RunList, loop: Loop, supervisor: Supervisor
) -> ListFollower | None:
    """Return what follows the inputs of the run's job file, None where that is not asked for."""
    if session.standing != "follow" or session.filed is None:
        return None
    take = lambda change: supervisor.take(change, (), lambda: None)  # noqa: E731
    note = partial(supervisor.note, None)
    follower = ListFollower(session.filed, session.plan.sources, runs_list, loop, take, note)
    if session.ledger.complete:
        follower.finish()
    return follower


def _run(
    session: Session, opened: RunOpened, at: Instant, warn: Callable[[str], None]
) -> TracedRun:
    """Return the run, which is traced to the file that GPULAUNCH_TRACE names, if it does."""
    choices = session.options.choices
    breaker = BREAKER if choices.breaker is None else choices.breaker
    pool = session.pool
    on_cards = OnCards(pool.most, pool.machine.cpus, pool.memory, pool.limited_by)
    config = RunConfig(
        InEngineQueue(QUEUE, pool.limit, ahead=True) if pool.queueing else on_cards,
        session.plan.limits,
        max_failures=choices.max_failures or None,
        fail_fast=bool(choices.fail_fast),
        breaker=breaker or None,
        patient=session.options.watched,
        pinned=choices.pin != "warn",
    )
    path = os.environ.get("GPULAUNCH_TRACE")
    beginning = TraceStart(str(session.run.events), opened, at, config)
    return TracedRun(Path(path) if path else None, beginning, session.ledger, warn)


def _opened(session: Session) -> RunOpened:
    return RunOpened(
        run=session.run_id,
        name=session.plan.name,
        epoch=session.ledger.opening.epoch + 1,
        version=__version__,
        host=manifest.hostname(),
        boot=manifest.boot_id(),
        pid=os.getpid(),
        gpus=session.pool.gpus,
        simulated=session.pool.simulated,
        limit=session.pool.limit,
        engine=session.pool.engine,
        standing=session.standing,
    )


def _command(run: Run, name: str) -> str:
    job = run.job(name)
    return "" if job is None else command_line(what_runs(job))


def _teller(session: Session, ledger: Ledger, loop: Loop, note: Callable[[str], None]) -> Notifier:
    return Notifier(
        targets_of(session.plan),
        ledger,
        loop,
        directory=session.run.path,
        base=session.plan.base,
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


def _programs(session: Session, note: Callable[[str], None]) -> Programs:
    """Return where the run finds its programs; copy them now if one of its jobs will need some."""
    programs = Programs(str(session.run.programs(session.ledger.opening.epoch)))
    if session.standing or any(map(needs_programs, session.submitted.jobs)):
        programs.make()
        if programs.trouble:
            note(f"do not upgrade gpulaunch while this run lives: {programs.trouble}")
    return programs


def _context(
    session: Session, programs: Programs, supervisor: Supervisor, loop: Loop
) -> RunContext:
    return RunContext(
        run=session.run,
        run_id=session.run_id,
        epoch=session.ledger.opening.epoch,
        environments=EnvironmentMaker(session.pool.machine, dict(os.environ), programs),
        loop=loop,
        post=supervisor.post,
        force_uuid=session.pool.style == "uuid",
        warn=supervisor.note,
    )


def _signals(detached: bool) -> list[signal.Signals]:
    """Return the signals that stop the run, without ignored ones (nohup, `&` in a script).

    A detached run does not stop at SIGHUP.
    """
    heard = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    return [number for number in heard if not (detached and number == signal.SIGHUP)]
