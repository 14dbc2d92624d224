"""The probe: one small job that checks whether the nodes see the run directory, by writing a file.

    first batch ─▶ probe ─▶ sbatch ─▶ `id`, on which all batches depend ─▶ seen | failed

Batches submitted meanwhile keep their turn in the queue, and Slurm cancels them if the probe fails:
none of their attempts would have found its ticket. Once the probe seems to have failed, no more
batches are submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.engines.slurm import commands, script
from gpulaunch.engines.slurm.reading import UNSEEN, QueueRow
from gpulaunch.engines.slurm.reasons import in_words, prospect
from gpulaunch.engines.slurm.standstill import SETTLED
from gpulaunch.journal.rundir import RunDir

FIRST_RESUBMIT_DELAY, MAX_RESUBMIT_DELAY = 5.0, 300.0
"""Seconds before a probe whose submission ended in doubt is submitted again: at first, doubling
with each try; and at most."""
PROBE_FILE_TIMEOUT = 60.0
"""Seconds after the probe's end for which its file may still become visible here."""
PROBE_TIME_LIMIT = "1"
"""The probe's time limit in minutes, the smallest that Slurm counts."""
_SHARED = (
    *("--parsable", "--export=", "--open-mode=", "--chdir=", "--output=", "--nodes=", "--ntasks="),
    *("--partition=", "--account=", "--qos=", "--reservation=", "--wckey=", "--clusters="),
    *("--constraint=", "--nodelist=", "--exclude=", "--prefer="),
)
"""Those of the jobs' options that the probe takes: how, where, and who pays. Not their resources,
so that it starts sooner, nor mails about its end."""
MEMORY = "100M"
"""The probe's memory. Without a limit a partition may give it all of a node's."""


class Probe:
    """The probe of one launcher. `title` is unique among the run's launchers.

    `failed` is called once, with one line for people; `note` with what is no failure; `doubtful`
    when the queue must show whether Slurm has the probe.
    """

    def __init__(
        self,
        slurm: commands.Slurm,
        run: RunDir,
        title: str,
        environ: Mapping[str, str],
        failed: Callable[[str], None],
        note: Callable[[str], None],
        doubtful: Callable[[], None],
    ) -> None:
        self._slurm = slurm
        self._run = run
        self._title = title
        self._environ = environ
        self._failed = failed
        self._note = note
        self._doubtful = doubtful
        self._over_at: float | None = None
        self._then: Callable[[], None] = lambda: None
        self._reason = ""
        self._since = 0.0
        self._noted: set[str] = set()
        self._absent = 0
        self._kept: Sequence[str] = ()
        self._needed = ""
        self._unsure = False
        self._refused = self._said = ""
        self._tries = 0
        self._again_at = 0.0
        self._asked = self.settled = run.seen.exists()
        self.id = ""
        """Slurm's number of the probe while its answer is awaited; else empty."""

    def comes_first(self, options: Sequence[str], then: Callable[[], None]) -> bool:
        """True while batches must wait: the probe has no number yet, or seems to have failed.

        The first call submits the probe to where `options` say; `then` is called once batches may
        go.
        """
        if self._asked:
            return not self.settled and (not self.id or self.in_doubt)
        self._asked, self._then = True, then
        self._kept = [word for word in options if word.startswith(_SHARED)]
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        self._unsure, self._refused = False, ""
        self._slurm.submit(
            # A probe that cannot be started is an answer; requeued, it would be held for ever.
            (
                *self._kept,
                "--no-requeue",
                f"--time={PROBE_TIME_LIMIT}",
                f"--mem={MEMORY}",
                f"--job-name={self._title}",
            ),
            self._run.batch_script,
            self._environ,
            self._answered,
            (script.PROBE,),
        )

    def _answered(self, answer: commands.SubmitAnswer) -> None:
        match answer:
            case commands.SubmissionAccepted(number):
                self.id = number
                self._then()
            case commands.SubmissionRefused(text, plain=True) | commands.Full(text):
                self._is_refused(text)
            case _:
                self._unsure, self._said = True, answer.text
                self._refused = (
                    answer.text if isinstance(answer, commands.SubmissionRefused) else ""
                )
                self._doubtful()

    def _is_refused(self, why: str) -> None:
        self.settled = True
        self._note(f"not checked whether the nodes see {self._run.path}: {why}")
        self._then()

    @property
    def in_doubt(self) -> bool:
        """True while the probe is over and its file is not visible here."""
        return bool(self.id) and self._over_at is not None

    def look(self, rows: Sequence[QueueRow]) -> None:
        """Update the probe's state from the queue's rows and from its file."""
        ours = [row for row in rows if row.name == self._title]
        if self._asked and not self.settled and self._run.seen.exists():
            self._settle()
            self._then()
        if self.settled:
            self._sweep(ours)
        elif self._unsure:
            self._look_up(ours)
        elif self.id:
            self._follow(next((row for row in ours if row.id == self.id), None))

    def _sweep(self, ours: Sequence[QueueRow]) -> None:
        """Cancel waiting probes after the answer, except the one on which batches depend.

        A probe may be in the queue twice. A controller that forgot the end of the needed one may
        start it again, and cancelling it would cancel the batches.
        """
        if waiting := [row.id for row in ours if row.waits and row.id != self._needed]:
            self._slurm.cancel(waiting, lambda answer: None)

    def _look_up(self, ours: Sequence[QueueRow]) -> None:
        """Adopt the probe that the queue shows, else submit it again after a growing delay."""
        if ours:
            self._unsure, self.id = False, ours[0].id
            self._then()
        elif time.monotonic() >= self._again_at:
            self._tries += 1
            self._again_at = time.monotonic() + min(
                MAX_RESUBMIT_DELAY, FIRST_RESUBMIT_DELAY * 2.0 ** min(self._tries, 10)
            )
            if self._refused and self._tries > 1:
                self._is_refused(self._refused)
            else:
                if self._tries == 1:
                    self._note(f"the probe of the run directory goes to Slurm again: {self._said}")
                self._hand_over()

    def _follow(self, row: QueueRow | None) -> None:
        if row is not None and row.phase != "over":
            self._waits(row.reason if row.phase == "queued" else "")
            return
        if row is None and self._over_at is None:
            self._absent += 1
            if self._absent > 1:  # the first look may have been asked for before Slurm had it
                self._settle()
                self._note(f"not checked whether the nodes see {self._run.path}: Slurm forgot it")
            return
        self._over_at = self._over_at or time.monotonic()
        if self._has_failed(row) or time.monotonic() - self._over_at >= PROBE_FILE_TIMEOUT:
            why = self._why(row)
            self._settle()
            self._failed(why)

    def _has_failed(self, row: QueueRow | None) -> bool:
        """True if the probe certainly failed, so that waiting for its file is useless."""
        if row is None or row.kind != "failed":
            return False
        return row.status in UNSEEN or bool(script.said(self._run, self.id))

    def close(self) -> None:
        """Cancel the probe if it is in Slurm's queue: no batch waits for it any more."""
        if self.id:
            self._slurm.cancel([self.id], lambda answer: None)

    @property
    def why(self) -> str:
        """Why a batch waits for the probe, in words for people."""
        waits = f"; it waits{in_words(self._reason)}" if self._reason else ""
        return f"the probe of the run directory, {self.id}, goes first{waits}"

    def _waits(self, reason: str) -> None:
        again, self._reason = reason == self._reason, reason
        self._since = self._since if again else time.monotonic()
        outlook, lasted = prospect(reason), time.monotonic() - self._since
        if lasted >= SETTLED and outlook != "passing" and reason not in self._noted:
            self._noted.add(reason)
            self._note(
                f"the probe of the run directory, Slurm job {self.id}, does not start, and nothing"
                f" of the run before it{in_words(reason)}"
            )
        if outlook == "never" and lasted >= PROBE_FILE_TIMEOUT:
            self._give_up()

    def _give_up(self) -> None:
        """Cancel a probe that Slurm will never start, and go on without its answer.

        The batches may start where the probe may not: a QOS may take no job without a card. Slurm
        cancels the batches that depend on the probe, and they are submitted again.
        """
        self._slurm.cancel([self.id], lambda answer: None)
        self._note(
            f"not checked whether the nodes see {self._run.path}: Slurm will not start the"
            f" probe{in_words(self._reason)}"
        )
        self._settle()
        self._then()

    def _settle(self) -> None:
        script.forget_silence(self._run, self.id)
        self.settled, self._needed, self.id = True, self.id, ""

    def _why(self, row: QueueRow | None) -> str:
        node = f"node {row.node}" if row is not None and row.node else "the nodes"
        if said := script.said(self._run, self.id):
            return f"{node} cannot run jobs of this run: {said}"
        return (
            f"{self._run.path} is not to be seen on {node}: a run on a cluster must be on a file"
            " system that its nodes share (--run-dir puts it there)"
        )
