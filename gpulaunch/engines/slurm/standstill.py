"""Attempts that stay in Slurm's queue: held by a pause, stuck for good, or behind the probe. Pure.

a look ─▶ reason ─ passes ─▶ nothing
                 ├ a person must act ─▶ after SETTLED: a warning, once for each job and reason
                 └ never ─▶ the same; after NEVER_STARTS_TIMEOUT: claimed, cancelled and over

pause ─▶ slurm/held, which names them ─▶ scontrol hold ┄▶ they wait, however free the cards
go on, or a later launcher ─▶ scontrol release ─▶ slurm/held is gone

first batch ─▶ probe ─▶ sbatch ─▶ `id`, on which all batches depend ─▶ seen | failed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulaunch.agent.wire import coded
from gpulaunch.base.text import listing
from gpulaunch.core.causes import ByCluster
from gpulaunch.core.events import Asked, Stop
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import commands, following
from gpulaunch.engines.slurm.actions import CancelJobs, ForgetHeld, ForgetSilence, Hold, SubmitProbe
from gpulaunch.engines.slurm.attempt import MAX_NUMBERS_PER_CALL, SlurmAttempt, ranges
from gpulaunch.engines.slurm.outcome import refused
from gpulaunch.engines.slurm.reading import HELD, UNSEEN, QueueRow, in_words, prospect
from gpulaunch.engines.slurm.state import SlurmState

# ── Queue hold ────────────────────────────────────────────────────────────────────────────────────

GATHER_DELAY = 0.02
"""Seconds for which pauses are gathered: one that is over at once holds nothing."""


def want(state: SlurmState, on: bool) -> None:
    """Hold all attempts that wait, now and later, while `on`; else release them.

    The file is written first: if this launcher dies, the next one releases the attempts that the
    file names, and no others. A job that a person held in Slurm stays held.
    """
    hold = state.hold
    if on != hold.on:
        hold.on, hold.told = on, frozenset()
        state.wake("hold", GATHER_DELAY)


def check_queue_hold(state: SlurmState) -> None:
    """Send the next hold or release for the attempts that no call has covered yet.

    After each look at the queue too. One call at a time, so that a release cannot overtake its
    hold.
    """
    hold = state.hold
    if hold.busy:
        return
    untold = state.which(lambda one: _name(one) not in hold.told)
    if hold.on:
        waiting = [one for one in untold if one.id and one.row and one.row.phase == "queued"]
        free = [o for o in waiting if _name(o) in hold.ever or not (o.row and o.row.reason in HELD)]
        if free:
            names = frozenset(map(_name, free))
            hold.ours, hold.ever = hold.ours | names, hold.ever | names
            _tell(state, free)
    elif hold.ours:
        _release(state, [one for one in untold if _name(one) in hold.ours])


def holds(state: SlurmState, one: SlurmAttempt) -> bool:
    """Return True if the attempt waits because the run is paused."""
    return state.hold.on and _name(one) in state.hold.ours


def _release(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    """Release these; delete the file if none is left. One without a number waits for it."""
    known = [one for one in some if one.id and not one.withdrawn]
    if known:
        _tell(state, known)
    elif not some:
        state.hold.ours = frozenset()
        state.do(ForgetHeld())


def _tell(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    """Call for as many of these as one call takes; the rest follows its answer."""
    terms = ranges(one.id for one in some)[:MAX_NUMBERS_PER_CALL]
    ids = {id for _, members in terms for id in members}
    names = frozenset(_name(one) for one in some if one.id in ids)
    hold = state.hold
    hold.busy = True
    state.do(Hold(hold.on, tuple(term for term, _ in terms), names, hold.ours))


def answered(state: SlurmState, call: Hold, answer: commands.CancelAnswer | None) -> None:
    """Take in an answer of scontrol; without one, it is asked again after the next look."""
    hold = state.hold
    hold.busy = False
    if isinstance(answer, commands.SubmissionRefused):
        _say_hold(state, answer.text, call.on)
    if answer is not None and not isinstance(answer, commands.Unreachable):
        if call.on == hold.on:
            hold.told |= call.names
        check_queue_hold(state)


def _say_hold(state: SlurmState, why: str, on: bool) -> None:
    if why != state.hold.refused:
        what = "hold back what is in its queue" if on else "release what was held back"
        state.warn(f"Slurm does not {what}: {why}")
    state.hold.refused = why


def _name(one: SlurmAttempt) -> str:
    return coded(str(one.attempt))


# ── Attempts that wait for what does not come ─────────────────────────────────────────────────────

NEVER_STARTS_TIMEOUT = 60.0
"""Seconds for which Slurm must say that an attempt can never start before it is given up: an
administrator changes settings of a partition or a QOS one by one."""
SETTLED = 2.0
"""Seconds for which a reason must last before the warning: Slurm's first reasons may be wrong."""
MAX_JOBS_SHOWN = 3


def give_up_hope(state: SlurmState) -> None:
    """Give up the attempts that Slurm will never start; `following.give_up` ends them."""
    waiting = state.which(lambda h: h.row and h.row.waits and not (h.stop or h.begun))
    for one in find_unschedulable(state, [one for one in waiting if not holds(state, one)]):
        why = f"Slurm will not start it{in_words(one.row.reason if one.row else '')}"
        state.given_up[one.attempt] = refused(why)


def find_unschedulable(state: SlurmState, waiting: Iterable[SlurmAttempt]) -> list[SlurmAttempt]:
    """Warn of stuck attempts; return those to give up now."""
    seen: dict[AttemptId, tuple[str, float]] = {}
    stuck: dict[str, list[SlurmAttempt]] = {}
    over, now = [], state.now
    for one in waiting:
        reason = one.row.reason if one.row else ""
        if prospect(reason) == "passing":
            continue
        before, since = state.stuck_since.get(one.attempt, ("", now))
        seen[one.attempt] = (reason, since if before == reason else now)
        lasted = now - seen[one.attempt][1]
        if lasted >= SETTLED:
            stuck.setdefault(reason, []).append(one)
        if prospect(reason) == "never" and lasted >= NEVER_STARTS_TIMEOUT:
            over.append(one)
    state.stuck_since = seen
    for reason, some in stuck.items():
        _say(state, reason, some)
    return over


def _say(state: SlurmState, reason: str, some: list[SlurmAttempt]) -> None:
    """Warn once for each job and reason: its next attempt may wait for the same."""
    new = [one for one in some if state.first_time(reason, one.attempt.job)]
    if not new:
        return
    names = listing((one.attempt.job for one in new), MAX_JOBS_SHOWN)
    what = "waits" if len(new) == 1 else "wait"
    then = "gpulaunch cancel ends what shall not wait"
    if prospect(reason) == "never":
        then = f"given up in {NEVER_STARTS_TIMEOUT:g} s"
    state.warn(f"{names} {what} for what does not come by itself{in_words(reason)}; {then}")


# ── Probe ─────────────────────────────────────────────────────────────────────────────────────────

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

    The probe is one small job that writes a file: it checks whether the nodes see the run
    directory. The first call submits it to where `options` say; a wake of "send" follows once
    batches may go. Batches submitted meanwhile keep their turn in the queue, and Slurm cancels them
    if the probe fails: none of their attempts would have found its ticket.
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


def probe_queue(state: SlurmState, rows: Sequence[QueueRow]) -> None:
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
