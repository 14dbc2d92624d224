"""The probe: one small job that checks whether the nodes see the run directory, by writing a file.

    first batch ─▶ probe ─▶ sbatch ─▶ `id`, on which all batches depend ─▶ seen | failed

Batches submitted meanwhile keep their turn in the queue, and Slurm cancels them if the probe fails:
none of their attempts would have found its ticket. Once the probe seems to have failed, no more
batches are submitted. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core.causes import ByCluster
from gpulaunch.core.events import Asked, Stop
from gpulaunch.engines.slurm import commands, following
from gpulaunch.engines.slurm.actions import CancelJobs, ForgetSilence, SubmitProbe
from gpulaunch.engines.slurm.reading import UNSEEN, QueueRow
from gpulaunch.engines.slurm.reasons import in_words, prospect
from gpulaunch.engines.slurm.standstill import SETTLED
from gpulaunch.engines.slurm.state import SlurmState

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


def comes_first(state: SlurmState, options: Sequence[str]) -> bool:
    """Return True while batches must wait: the probe has no number yet, or seems to have failed.

    The first call submits the probe to where `options` say; a wake of "send" follows once batches
    may go.
    """
    probe = state.probe
    if probe.asked:
        return not probe.settled and (not probe.id or probe.in_doubt)
    probe.asked, probe.options = True, tuple(w for w in options if w.startswith(_SHARED))
    _hand_over(state)
    return True


def _hand_over(state: SlurmState) -> None:
    probe = state.probe
    probe.unsure, probe.refused = False, ""
    # A probe that cannot be started is an answer; requeued, it would be held for ever.
    own = ("--no-requeue", f"--time={PROBE_TIME_LIMIT}", f"--mem={MEMORY}")
    state.do(SubmitProbe((*probe.options, *own, f"--job-name={probe.title}")))


def submitted(state: SlurmState, answer: commands.SubmitAnswer) -> None:
    """Take in what sbatch has answered."""
    probe = state.probe
    match answer:
        case commands.SubmissionAccepted(number):
            probe.id = number
            state.wake("send", 0.0)
        case commands.SubmissionRefused(text, plain=True) | commands.Full(text):
            _go_on_without(state, text)
        case _:
            refused = isinstance(answer, commands.SubmissionRefused)
            probe.unsure, probe.said = True, answer.text
            probe.refused = answer.text if refused else ""
            following.ask_anew(state)


def _go_on_without(state: SlurmState, why: str) -> None:
    """Let batches be submitted although the probe gives no answer."""
    state.warn(f"not checked whether the nodes see {state.path}: {why}")
    _settle(state)
    state.wake("send", 0.0)


def look(state: SlurmState, rows: Sequence[QueueRow]) -> None:
    """Update the probe's state from the queue's rows and from its file."""
    probe = state.probe
    ours = [row for row in rows if row.name == probe.title]
    if probe.asked and not probe.settled and state.records.probe_was_here():
        _settle(state)
        state.wake("send", 0.0)
    if probe.settled:
        # Waiting ones but that on which batches depend. A probe may be in the queue twice. A
        # controller that forgot the end of the needed one may start it again, and cancelling it
        # would cancel the batches.
        if waiting := tuple(row.id for row in ours if row.waits and row.id != probe.needed):
            state.do(CancelJobs(waiting))
    elif probe.unsure:
        _look_up(state, ours)
    elif probe.id:
        _follow(state, next((row for row in ours if row.id == probe.id), None))


def _look_up(state: SlurmState, ours: Sequence[QueueRow]) -> None:
    """Adopt the probe that the queue shows, else submit it again after a growing delay."""
    probe = state.probe
    if ours:
        probe.unsure, probe.id = False, ours[0].id
        state.wake("send", 0.0)
    elif state.now >= probe.again_at:
        probe.tries += 1
        delay = FIRST_RESUBMIT_DELAY * 2.0 ** min(probe.tries, 10)
        probe.again_at = state.now + min(MAX_RESUBMIT_DELAY, delay)
        if probe.refused and probe.tries > 1:
            _go_on_without(state, probe.refused)
        else:
            if probe.tries == 1:
                state.warn(f"the probe of the run directory goes to Slurm again: {probe.said}")
            _hand_over(state)


def _follow(state: SlurmState, row: QueueRow | None) -> None:
    probe = state.probe
    if row is not None and row.phase != "over":
        _wait(state, row.reason if row.phase == "queued" else "")
        return
    if row is None and probe.over_at is None:
        probe.absent += 1
        if probe.absent > 1:  # the first look may have been asked for before Slurm had it
            _go_on_without(state, "Slurm forgot it")
        return
    probe.over_at = probe.over_at or state.now
    said = state.records.said(probe.id)
    # It certainly failed if a node said so, or could not even open its output.
    failed = row is not None and row.kind == "failed" and (row.status in UNSEEN or bool(said))
    if failed or state.now - probe.over_at >= PROBE_FILE_TIMEOUT:
        _settle(state)
        node = row.node if row is not None else ""
        state.warn(_why_failed(state, node, said))
        unseen = ByCluster("dir_unseen", node, state.path)
        state.post(Asked(Stop(ByCluster("node_unfit", node, said) if said else unseen)))


def unneeded(state: SlurmState) -> tuple[str, ...]:
    """Return the number of the probe if it is in Slurm's queue and nothing waits for it."""
    return (state.probe.id,) if state.probe.id and not state.attempts else ()


def why(state: SlurmState) -> str:
    """Return why a batch waits for the probe, in words for people."""
    probe = state.probe
    waits = f"; it waits{in_words(probe.reason)}" if probe.reason else ""
    return f"the probe of the run directory, {probe.id}, goes first{waits}"


def _wait(state: SlurmState, reason: str) -> None:
    probe = state.probe
    again, probe.reason = reason == probe.reason, reason
    probe.since = probe.since if again else state.now
    outlook, lasted = prospect(reason), state.now - probe.since
    if lasted >= SETTLED and outlook != "passing" and state.first_time("probe", reason):
        state.warn(
            f"the probe of the run directory, Slurm job {probe.id}, does not start, and nothing"
            f" of the run before it{in_words(reason)}"
        )
    if outlook == "never" and lasted >= PROBE_FILE_TIMEOUT:
        # The batches may start where the probe may not: a QOS may take no job without a card.
        # Slurm cancels those that depend on the probe, and they are submitted again.
        state.do(CancelJobs((probe.id,)))
        _go_on_without(state, f"Slurm will not start the probe{in_words(reason)}")


def _settle(state: SlurmState) -> None:
    probe = state.probe
    if probe.id:
        state.do(ForgetSilence(probe.id))
    probe.settled, probe.needed, probe.id = True, probe.id, ""


def _why_failed(state: SlurmState, node: str, said: str) -> str:
    where = f"node {node}" if node else "the nodes"
    if said:
        return f"{where} cannot run jobs of this run: {said}"
    return (
        f"{state.path} is not to be seen on {where}: a run on a cluster must be on a file"
        " system that its nodes share (--run-dir puts it there)"
    )
