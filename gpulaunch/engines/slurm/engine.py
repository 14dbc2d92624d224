"""The engine of a Slurm cluster: Slurm decides when and where; records on the shared disk tell how.

    instructions, timers, answers, records ─▶ step (pure) ─▶ calls, files, timers, events

This is the skin: it carries out what `step` says and tells it what came of it. The engine takes no
card and sets no mask. Attempts go on when the launcher is gone; the next launcher's `adopt` follows
them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.text import listing
from gpulaunch.core.events import HoldQueue, Instruction, Launch, PullImage, StopAttempt
from gpulaunch.core.model import AttemptId, ImageSource, Job
from gpulaunch.engines.context import SCARCE, RunContext
from gpulaunch.engines.diagnosis import EndDiagnosis
from gpulaunch.engines.images import Images
from gpulaunch.engines.prepare import OutputDirs
from gpulaunch.engines.slurm import actions as a
from gpulaunch.engines.slurm import batches, commands, script, standstill
from gpulaunch.engines.slurm import script as launch_files
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.engines.slurm.rundir import TITLES, SlurmDir, forget
from gpulaunch.engines.slurm.state import Outage, Probe, QueueHold, SlurmState
from gpulaunch.engines.slurm.step import step, why
from gpulaunch.jobfile.config import current

_UNREAD = (
    "{}: handed to Slurm by another version of gpulaunch, whose tickets this one cannot read; on"
    " the nodes their limits hold as ever, but no status counts as a success here except 0"
)


class SlurmEngine:
    """Carries out the core's instructions on a Slurm cluster; see `protocol` for what it promises.

    `words` are options for every sbatch; `cycle` is the seconds between two looks at the queue.
    """

    def __init__(
        self,
        context: RunContext,
        words: Sequence[str],
        cycle: float,
        slurm: commands.Slurm | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._words = tuple(words)
        self._defaults = current().slurm
        self._run = run = SlurmDir(context.run.path)
        self._clock = clock
        self._outs = OutputDirs()
        self._slurm = slurm or commands.Slurm(context.loop, context.base)
        self._environ = script.environment(context.base)
        self._records = DiskRecords(run)
        self._diagnosis = EndDiagnosis(context.run, context.warn)
        self._images = Images(context, cluster=True)
        self._inbox: deque[a.Observation] = deque()
        self._busy = False
        self._recorded: Sequence[AttemptId] = ()
        launch_files.lay_out_launch_files(run)
        script.lay_out(run)
        prefix, seen = f"{TITLES}{context.run_id}:", self._records.probe_was_here()
        held = self._records.held()
        self._state = SlurmState(
            prefix,
            context.epoch,
            str(context.run.path),
            cycle,
            Probe(f"{prefix}{script.PROBE}-{context.epoch}", asked=seen, settled=seen),
            self._records,
            outage=Outage(heard_at=clock()),
            hold=QueueHold(ours=held, ever=held),
        )

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case PullImage():
                self._images.pull(instruction)
            case Launch() | StopAttempt() | HoldQueue():
                self._tell(instruction)
            case _:
                raise NotImplementedError(f"no engine of a cluster is told to {instruction}")

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """Follow an earlier launcher's attempts; post the end of those that Slurm never got."""
        left = batches.read_all(self._run)
        known = {attempt for batch in left for attempt in batch.attempts} & set(attempts)
        read = {attempt: launch_files.job_of(attempt, self._run) for attempt in known}
        if unread := sorted(attempt.job for attempt, job in read.items() if job is None):
            self._context.warn(None, _UNREAD.format(listing(unread)))
        jobs = {attempt: job or Job(attempt.job, ()) for attempt, job in read.items()}
        ended = frozenset(filter(self._records.left_word, known))
        self._tell(a.Adopted(tuple(attempts), tuple(left), jobs, ended))

    def recorded(self, attempts: Sequence[AttemptId]) -> None:
        """Delete the records of ends that were safe at the call before.

        Until the transaction of a sync is over, a journalling file system makes each removal wait.
        """
        ends, self._recorded = self._recorded, attempts
        for attempt in ends:
            with suppress(OSError):
                os.unlink(self._run.end(attempt))

    def why(self, attempt: AttemptId) -> str:
        return why(self._state, attempt)

    def pulls(self) -> Mapping[ImageSource, float]:
        return self._images.pulls()

    def close(self) -> None:
        """Close descriptors, pulls and running calls. Attempts stay in Slurm's hands."""
        self._images.close()
        for held, _ in self._state.trailing.values():
            script.forget_silence(self._run, held.id)
        if unneeded := standstill.unneeded(self._state):
            self._slurm.cancel(unneeded, lambda answer: None)
            for id in unneeded:
                script.forget_silence(self._run, id)
        self._outs.close()
        self.recorded(())
        self._slurm.close()

    def _tell(self, observation: a.Observation) -> None:
        """Have `step` take it in, carry out what follows, and go on with what is seen by that."""
        self._inbox.append(observation)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                for action in step(self._state, self._inbox.popleft(), self._clock()):
                    self._do(action)
        finally:
            self._busy = False

    def _do(self, action: a.Action) -> None:
        match action:
            case a.PostEvent(event):
                self._context.post(event)
            case a.Diagnose(ended, job):
                self._diagnosis.diagnose(ended, job, (), self._context.post)
            case a.Warn(job, text):
                self._context.warn(job, text)
            case a.Wake(timer, seconds):
                due = a.Due(timer)
                self._context.loop.call_after(f"slurm:{timer}", seconds, partial(self._tell, due))
            case _ if isinstance(action, a.Call):
                self._call(action)
            case _:
                self._write(action)

    def _call(self, action: a.Call) -> None:
        """Call one of Slurm's programs, after what has to be written before."""
        at, slurm = self._state.now, self._slurm

        def done(answer: commands.Answer) -> None:
            self._tell(a.Answered(action, answer, at))

        match action:
            case a.Submit(batch, options):
                try:
                    batches.write(batch, self._run)
                except OSError as error:
                    self._inbox.append(a.Unwritten(action, f"{error.strerror}: {error.filename}"))
                else:
                    self._submit(options, batch.name, done, batch.terms.environ)
            case a.SubmitProbe(options):
                self._submit(options, script.PROBE, done)
            case a.AskConfig():
                slurm.ask(done)
            case a.AskQueue():
                slurm.queue(done)
            case a.Show(_, id):
                slurm.show(id, done)
            case a.CancelJobs(ids):
                slurm.cancel(ids, done)
            case a.SignalJobs(_, ids, word):
                slurm.signal(ids, word, done)
            case a.Hold(False, terms):
                slurm.release(terms, done)
            case a.Hold(_, terms, _, listed) if self._records.hold(listed):
                slurm.hold(terms, done)
            case a.Hold():
                self._inbox.append(a.Unwritten(action, "held"))

    def _submit(
        self,
        options: Sequence[str],
        name: str,
        done: Callable[[commands.Answer], None],
        lent: int = 0,
    ) -> None:
        environ = self._environ
        if lent:
            environ = script.environment(self._context.environments.environ(lent))
        self._slurm.submit(options, self._run.batch_script, environ, done, (name,))

    def _write(self, action: a.Action) -> None:
        """Carry out an action on the run directory alone."""
        match action:
            case a.Prepare(launch):
                self._inbox.append(self._prepare(launch))
            case a.ClaimAttempts():
                won, lost = self._records.claim(action.groups)
                self._inbox.append(a.Claimed(action, won, lost))
            case a.WriteStop(attempt, reason, now):
                if not self._records.write_stop(attempt, reason, now):
                    self._inbox.append(a.Unwritten(action, "stop"))
            case a.RecordNumber(batch, number):
                with suppress(OSError):  # without it a later launcher finds the batch by its title
                    batches.confirm(batch, number, self._run)
            case a.ForgetBatch(batch):
                forget(self._run.batch_list(batch.name))
            case a.ForgetAttempt(attempt):
                forget(self._run.ticket(attempt))  # it holds values of variables
                self._outs.over(str(self._run.out(attempt)))
                forget(self._run.stop(attempt))
            case a.ForgetSilence(id):
                script.forget_silence(self._run, id)
            case a.ForgetHeld():
                forget(self._run.held)

    def _prepare(self, launch: Launch) -> a.Observation:
        job, run = launch.job, self._run
        try:
            launch_files.write(launch, self._context, self._outs)
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            return a.Unprepared(launch, f"{error.strerror}{where}", error.errno in SCARCE)
        except GpulaunchError as error:
            return a.Unprepared(launch, str(error), False)
        options = script.options(job, run, self._words, self._defaults)
        return a.Prepared(launch, options, self._context.environments.lent_to(job.name))
