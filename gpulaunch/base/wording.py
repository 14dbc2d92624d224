"""Makes sentences of reasons and outcomes, for people. The one place where those are worded.

Pure: values in, text out. Nothing may branch on what is returned here.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.base import localtime
from gpulaunch.base.text import clip, clock, consecutive, listing, several, size, span
from gpulaunch.core import causes as c
from gpulaunch.core import model as m
from gpulaunch.core import reasons as r
from gpulaunch.core.placement import capability

MAX_EVIDENCE_CHARACTERS = 200
"""Characters of the evidence that a reason shows at most."""

# Linux's numbers, the same on every architecture that has CUDA.
_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
    10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT",
    17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG",
    24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR", 31: "SYS",
}  # fmt: skip

_CAUSES: dict[c.Cause, str] = {
    "cancelled": "cancelled",
    "retried": "retried by a person",
    "gave_back": "its card was given back",
    "cut_off": "was running when the run was cut off",
    "cut_short": "its attempt was cut short",
    "taken_up": "taken up again",
    "needed_again": "it is needed again",
    "never_needed": "nothing that needs it came to run",
    "unneeded": "nothing needs it any more",
    "not_due": "nothing that needs it may start yet",
    "others_ended": "all other jobs have ended",
    "no_more_starts": "nothing more is started",
    "gives_way": "gives way to a launcher that waits for its card",
    "handed_over": "one that waited for it",
    "wait_over": "no card came free in the time that --wait gave",
    "executor": "its executor",
    "executor_failed": "its executor has failed",
    "supervisor_gone": "the supervisor is gone",
    "keeper_killed": "its keeper was killed",
    "unseen": "nobody saw its end",
    "worker_ended": "its worker ended before it began",
    "taken_back": "taken back before it began",
    "no_items": "no items yet",
    "unplaceable": "never started: it does not fit on the run's cards",
    "unplaceable_beside": "never started: it does not fit on the run's cards beside its services",
    "unqueueable": ("never started: a service cannot wait in a queue: it runs beside other jobs"),
    "redefined": "its job is defined otherwise now",
    "not_in_file": "no longer in the job file",
    "left_out": "left as it is this time",
    "unasked": "starts when a job that needs it is ready to go",
    "room": "waits for room for itself and a job that needs it",
    "turn": "waits for its turn",
}
_BY_CLUSTER: dict[c.ClusterCause, str] = {
    "preempted": "preempted by Slurm{at}",
    "cancelled": "cancelled in Slurm (scancel), not by gpulaunch",
    "requeued": "requeued by Slurm{at}",
    "requeued_silently": (
        "requeued by Slurm{at}, as when a node fails, and it left no record of its end"
    ),
    "node_failed": "its node failed{at}",
    "need_failed": "what it needs did not succeed",
    "told_to_end": "Slurm ended it",
    "never_handed": "its launcher was gone before Slurm had it",
    "forgotten": "Slurm forgot it before it began",
    "vanished": "Slurm knows it no longer, and it left no record of its end",
    "unrecorded": "Slurm says {said}, and it left no record of its end{at}",
    "not_begun": "Slurm could not begin it, and holds it: {said}",
    "given_up": "Slurm will not start it",
    "disk_full": "the run directory's disk is full: {said}{at}",
    "dir_unseen": (
        "{said} is not to be seen on {nodes}: a run on a cluster must be on a file system that its"
        " nodes share (--run-dir puts it there)"
    ),
    "node_unfit": "{nodes} cannot run jobs of this run: {said}",
}
_SIGNAL_SENT = {"SIGINT": "Ctrl-C", "SIGHUP": "SIGHUP (the terminal closed)"}
_POINTLESS = {
    "same": "it would end in the same way",
    "no_other_kind": "the run has no other kind of card",
    "no_larger": "no card of the run has more memory",
}
_CHANGES: dict[r.PlacementChange, str] = {
    "other_card": "on another card",
    "other_kind": "on another kind of card",
    "more_memory": "on a card with more memory",
    "alone": "alone on its card",
}
_UNMET = {
    "failed": "which failed",
    "cancelled": "which was cancelled",
    "skipped": "which was skipped",
    "unknown": "which is not in the job file",
    "excluded": "which is left as it is this time",
}
_NEARNESS = {"running": "is running", "queued": "is in the queue", "waiting": "waits itself"}
_CARD_IS = {
    "given_back": ("was", "given back by a person (drain)"),
    "draining": ("is", "giving back memory"),
    "asking": ("is", "being looked at"),
    "avoided": ("is", "avoided after an earlier attempt"),
    "other_kind": ("is", "of another kind"),
    "free": ("is", "free"),
}
_PLURALS = {"is": "are", "was": "were", "has": "have", "still has": "still have"}


def warning(sent: m.SentWarning) -> str:
    """Return what became of a job's warning: `its timeout is near: SIGUSR2 sent to 1 process`."""
    why = "its timeout is near" if sent.why == "timeout" else "it is to stop"
    name = signal_name(sent.signal)
    if not sent.processes:
        return f"{why}, and no process of it takes {name}: none was sent"
    return f"{why}: {name} sent to {several(sent.processes, 'process', 'processes')}"


def signal_name(number: int) -> str:
    """Return `SIGSEGV` for 11; `signal 40` where there is no name."""
    return f"SIG{_SIGNALS[number]}" if number in _SIGNALS else f"signal {number}"


def cards(count: int) -> str:
    """Return `a card` or `2 cards`."""
    return "a card" if count == 1 else f"{count} cards"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as people write many of them: `0, 2-7`."""
    return ", ".join(
        f"{some[0]}-{some[-1]}" if len(some) > 2 else ", ".join(map(str, some))
        for some in consecutive(numbers)
    )


# ── Ends of attempts ────────────────────────────────────────────────────────────────────────────


def ending(outcome: m.Outcome) -> str:
    """Return how an attempt ended, to follow its name: `was killed by SIGSEGV`."""
    match outcome:
        case m.Exited(code):
            return f"exited with status {code}"
        case m.Signaled(signal):
            return f"killed by {signal_name(signal)}"
        case m.TimedOut("queue", seconds):
            if seconds:
                return (
                    f"Slurm's time limit of {span(seconds)} (its partition's, or --time) ended it"
                )
            return "Slurm's time limit ended it (its partition's, --time or --deadline)"
        case m.TimedOut("timeout", seconds):
            return f"ran longer than its timeout of {span(seconds)}"
        case m.TimedOut(_, seconds):
            return f"wrote nothing for its idle_timeout of {span(seconds)}"
        case m.MissingOutput(paths):
            return f"left no good output: {listing(paths)}"
        case m.NotStarted(error):
            return f"could not be started: {error}"
        case m.Cancelled(_, by):
            return cause(by) if by else "cancelled"
        case m.Interrupted(by):
            return f"interrupted: {cause(by)}"
        case m.Stopped():
            return "stopped: nothing needs it any more"
        case m.Lost(why):
            return f"lost: {cause(why)}"


def held_idle(seconds: float, memory: int, cards: Iterable[int]) -> str:
    """Return `used 0 % of GPU 1 for 31 min with 38 GiB held`, to follow a job's name."""
    indices = sorted(set(cards))
    where = f"GPU{'s' * (len(indices) > 1)} {ranges(indices)}" if indices else "its card"
    lasted = span(seconds // 60 * 60 if seconds >= 120 else int(seconds))
    return f"used 0 % of {where} for {lasted} with {size(memory)} held"


def cause(why: c.EndCause) -> str:
    """Return what ended an attempt or a run from outside: `Ctrl-C`, `its card was given back`."""
    match why:
        case c.Because(name):
            return _CAUSES[name]
        case c.ByCluster(what, node, said):
            at, nodes = (f" ({node})", f"node {node}") if node else ("", "the nodes")
            return _BY_CLUSTER[what].format(at=at, nodes=nodes, said=said)
        case c.Quoted(text):
            return text
        case c.SignalCaught(signal):
            return _SIGNAL_SENT.get(signal, signal)
        case c.RecordingFailed(error, over):
            return f"the run {'could not' if over else 'cannot'} be recorded: {error}"
        case c.CardFailed(gpu, report):
            return f"GPU {gpu}: {report}"
        case c.NeedEnded(job):
            return f"it needs {job}, which did not succeed"
        case c.RoomFor(job):
            return f"makes room for {job}"
        case c.ServiceEnded(service, exit_code, signal_number):
            if exit_code is not None:
                return f"its service {service} exited with status {exit_code}"
            by = f" by {signal_name(signal_number)}" if signal_number is not None else ""
            return f"its service {service} was ended{by}"


def attempt_end(end: r.AttemptEnd) -> str:
    """Return how an attempt ended, with the line that shows it: `exited with status 1: killed`."""
    text = ending(end.outcome)
    if end.service and isinstance(end.outcome, m.Exited | m.Signaled):
        text = f"ended early: {text}"
    if not end.evidence:
        return text
    shown = clip(end.evidence, MAX_EVIDENCE_CHARACTERS)
    # What gpulaunch itself ended, it ended for what the evidence says.
    return shown if isinstance(end.outcome, m.Interrupted) else f"{text}: {shown}"


# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────


def job_reason(reason: r.JobReason | r.WaitReason | None) -> str:
    """Return why a job is over, or waits; empty for no reason."""
    match reason:
        case None:
            return ""
        case c.Quoted() | c.Because():
            return cause(reason)
        case r.AttemptEnd():
            return attempt_end(reason)
        case r.RetryGranted(end, retry, of):
            return f"{attempt_end(end)}; retry {retry} of {of}"
        case r.RetryPointless(end, why):
            return f"{attempt_end(end)}; not tried again: {_POINTLESS[why]}"
        case r.LostRepeatedly(end, times):
            return f"{attempt_end(end)}, {times} times in a row"
        case r.ServiceOver(service, state, end, own):
            before = f"{attempt_end(own)}; " if own else ""
            how = f": {attempt_end(end)}" if end else ""
            return f"{before}its service {service} {state}{how}"
        case r.NeedUnmet(job, state):
            return f"needs {job}, {_UNMET[state]}"
        case r.NeededBy(job):
            return f"{job} needs it"
        case r.ImageUnavailable(image, why):
            return f"never started: its image {image} cannot be had: {why}"
        case r.TokensShort() | r.CardsShort() | r.CardsCapped() | r.MemoryShort():
            return f"never started: {_impossible(reason)}"
        case r.FailedOnCard(gpu, jobs):
            if not jobs:
                return f"failed on GPU {gpu}, which was set aside"
            return f"failed on GPU {gpu}, as {jobs} jobs in a row did; tried elsewhere"
        case r.NeverStarts(why):
            return f"can never start: {job_reason(why)}"
    return _waiting(reason)


def due(moment: m.DueTime | None) -> str:
    """Return before when a job does not start, where nobody runs that counts the time; else ""."""
    return f"not before {localtime.time_of(moment.utc)}" if moment else ""


def needs_of(jobs: Iterable[str]) -> str:
    """Return `needs a, b and 3 more`: jobs under way that must succeed first; empty for none."""
    names = tuple(jobs)
    return f"needs {listing(names)}" if names else ""


def card_kind(kind: m.CardKind) -> str:
    """Return which cards a job takes: `of the model *A100* with compute capability 8.0 or more`."""
    if kind.own_gpu:
        return f"which is {kind.own_gpu}"
    parts = [f"of the model {kind.card}"] if kind.card else []
    if kind.compute:
        parts.append(f"with compute capability {capability(kind.compute)} or more")
    return " ".join(parts)


def change(what: r.PlacementChange | None) -> str:
    """Return where the next attempt runs: `on another card`; empty where nothing changes."""
    return _CHANGES[what] if what else ""


def _impossible(reason: r.Impossible) -> str:
    match reason:
        case r.TokensShort(token, wanted, limit):
            return f"needs {wanted} of {token}, of which there are {limit}"
        case r.MemoryShort(wanted, limit):
            return f"reserves {size(wanted)} of memory, the run may reserve {size(limit)}"
        case r.CardsCapped(wanted, limit):
            return f"needs {wanted} cards at once, the run may take {limit}"
        case r.CardsShort(wanted, available, memory) if memory:
            return (
                f"needs {cards(wanted)} with {size(memory)} each, the run has {available} so large"
            )
        case r.CardsShort(aside=aside, of=m.CardKind(own_gpu=uuid)) if uuid:
            where = "is none of the run's"
            if aside:
                where = f"was set aside: {card_reason(aside[0].why)}"
            return f"needs its own card, {uuid}, which {where}"
        case r.CardsShort(wanted, available, of=m.CardKind() as kind, there=there):
            return (
                f"needs {cards(wanted)} {card_kind(kind)}, the run has {available or 'none'};"
                f" its cards are {listing(there)}"
            )
        case r.CardsShort(wanted, available, _, aside):
            have = f"needs {wanted} cards at once, the run has {available}"
            gone = [f"GPU {one.gpu} was set aside: {card_reason(one.why)}" for one in aside]
            return "; ".join([have if wanted > 1 else "needs a card, none is left", *gone])


def _waiting(reason: r.WaitReason) -> str:
    match reason:
        case c.Quoted() | c.Because():
            return cause(reason)
        case r.InQueue(id, needs):
            place = f"in the queue ({id})" if id else "in the queue"
            return f"{needs_of(needs)}; {place}" if needs else place
        case r.NextInWorker(job):
            return f"is next in the worker of {job}"
        case r.NothingStarts(why, paused, again):
            return nothing_starts(why, paused, again)
        case r.RetryIn(seconds):
            return f"retries in {span(max(1, round(seconds)))}"
        case r.NotBefore(utc, seconds):
            return f"not before {localtime.until(utc, seconds)}"
        case r.NeedsImage(source, seconds):
            doing = "looked up" if seconds is None else f"pulled: {clock(seconds)}"
            return f"waits for its image {source.image}, which is being {doing}"
        case r.NeedsReady(services):
            return f"waits for its service {', '.join(services)} to be ready"
        case r.NeedsEnd(job, state, more, after):
            others = f" (and {more} more)" if more else ""
            verb = "comes after" if after else "needs"
            return f"{verb} {job}, which {_NEARNESS[state]}{others}"
        case r.NeedsStart(job):
            return f"waits until {job} has started"
        case r.NeedsOthers(jobs):
            return f"waits behind {jobs:,} others"
        case r.NeedsToken(token, used, limit, jobs):
            return f"waits for a token of {token} ({used} of {limit} in use by {listing(jobs)})"
        case r.NeedsCpus(cpus, used, limit):
            return f"waits for {several(cpus, 'CPU')}; {used} of {limit} are in use"
        case r.NeedsMemory(memory, used, limit, jobs):
            by = f", {size(used)} by {listing(jobs)}" if jobs else ""
            return f"waits for {size(memory)} of memory: {size(limit)} may be reserved{by}"
        case r.NeedsTurn(attempts):
            return f"waits for its turn: {attempts:,} attempts at once are in the queue or running"
        case r.NeedsShare(count, limit, taken):
            return (
                f"waits for {cards(count)}: the run may take {limit} at once,"
                f" {taken} are taken or queued for"
            )
        case r.NeedsAllowance(count, limit, here, source):
            return _needs_allowance(count, limit, here, source)
        case r.NeedsCards():
            return _needs_cards(reason)


def _needs_allowance(wanted: int, limit: int, here: int, source: str) -> str:
    beside = "all of them in other launchers" if not here else f"{here} of them in this run"
    return (
        f"waits for {cards(wanted)}: your launchers may hold {limit} at once ({source}), and hold"
        f" them, {beside}"
    )


def _needs_cards(reason: r.NeedsCards) -> str:
    wanted = cards(reason.wanted)
    if reason.of and reason.of.own_gpu:
        wanted = "its own card"
    elif reason.of:
        wanted = f"{wanted} {card_kind(reason.of)}"
    if reason.memory:
        each = " each" if reason.wanted > 1 else ""
        wanted = f"{wanted} with {size(reason.memory)} free{each}"
    whose = f", as all your launchers together ({reason.limited_by})" if reason.limited_by else ""
    limited = f"the run may hold {reason.limit} at once{whose}; " if reason.limit else ""
    single = all(len(some.gpus) == 1 for some in reason.cards)
    states = (", " if single else "; ").join(map(_cards_are, reason.cards))
    return f"waits for {wanted}: {limited}{states}{_taken_with(reason.cards)}"


def _taken_with(cards_are: Iterable[r.CardsAre]) -> str:
    """Return with which options cards that others use would be taken; empty where there is none."""
    least, lines, shared = 0, list[int](), list[int]()
    for some in cards_are:
        match some.state:
            case r.CardAway("occupied", r.OthersThere(_, 0)):
                shared += some.gpus
            case r.CardAway("occupied", r.OthersThere(_, free_below)):
                lines += some.gpus
                least = max(least, free_below)
    options = [(least, lines), (0, shared)]
    told = [
        f"{option_to_take(line)} takes {_which(gpus, bool(lines and shared))}"
        for line, gpus in options
        if gpus
    ]
    return f"; {', '.join(told)} all the same" if told else ""


def _which(gpus: list[int], named: bool) -> str:
    if named:
        return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {ranges(gpus)}"
    return "it" if len(gpus) == 1 else "them"


def option_to_take(free_below: int) -> str:
    """Return the option with which a card is taken that others use; see `reasons.OthersThere`."""
    return f"--free-below {free_below // 10**9}GB" if free_below else "--share-busy"


def _cards_are(some: r.CardsAre) -> str:
    verb, rest = _card_state(some.state)
    if len(some.gpus) == 1:
        return f"GPU {some.gpus[0]} {verb} {rest}"
    return f"GPUs {ranges(some.gpus)} {_PLURALS[verb]} {rest}"


def _card_state(state: r.CardNow) -> tuple[str, str]:
    """Return the card's state as a verb and the rest."""
    match state:
        case r.CardBusy(jobs, least, most):
            low, high = clock(least), clock(most)
            spanned = high if low == high else f"{low} to {high}"
            return "is", f"busy with {listing(jobs)} ({spanned})"
        case r.CardShared(jobs, promised, memory):
            return "is", (
                f"shared by {listing(jobs)}, which are promised {size(promised)} of {size(memory)}"
            )
        case r.CardIs(name):
            return _CARD_IS[name]
        case r.CardKept(job, worker):
            return ("still has", f"the worker of {job}") if worker else ("is", f"kept for {job}")
        case r.CardAway("aside", why):
            return "was", f"set aside ({card_reason(why)})"
        case r.CardAway("elsewhere", why):
            return "is", f"held by {card_reason(why)}"
        case r.CardAway(_, r.OthersThere(by)):
            return "is", f"in use: {by}"
        case r.CardAway(_, why):
            return "is", f"in use: {card_reason(why)}"
        case r.CardFree(memory):
            return "has", f"{size(memory)} free"


# ── Cards and the run ───────────────────────────────────────────────────────────────────────────


def card_reason(reason: r.CardReason | None) -> str:
    """Return why a card is as it is; empty for no reason."""
    match reason:
        case None:
            return ""
        case c.Quoted() | c.Because():
            return cause(reason)
        case r.OthersThere(by, free_below):
            return f"{by}; {option_to_take(free_below)} takes it all the same"
        case r.LostByJobs(jobs):
            return f"{len(jobs)} different jobs lost it ({listing(jobs)})"
        case r.JobsFailedThere(jobs, cleared):
            return (
                f"{len(jobs)} different jobs failed there in a row,"
                f" and {cleared} of them succeeded elsewhere ({listing(jobs)})"
            )


def pull(source: m.ImageSource, seconds: float) -> str:
    """Return what is being done, and for how long: `pulling img: 1:05`."""
    return f"pulling {source.image}: {clock(seconds)}"


def _left_alive(left: r.LeftProcesses) -> str:
    """Return which processes of an attempt are left, and on which cards."""
    pids = listing(map(str, left.pids))
    what = f"process {pids} of {left.attempt}" if pids else f"{left.attempt}"
    return f"{what} on GPU {listing(map(str, left.gpus), 16)}" if left.gpus else what


def run_reason(reason: r.RunReason | None) -> str:
    """Return why a run was stopped, paused or failed; empty for no reason."""
    match reason:
        case None:
            return ""
        case r.FailedAlike(jobs, seconds, end):
            return (
                f"{jobs} jobs in a row failed within {span(seconds)}"
                f" of their start, all in the same way: {attempt_end(end)}"
            )
        case r.TooManyFailed(job, None):
            return f"--fail-fast after {job} failed"
        case r.TooManyFailed(job, limit):
            return f"--max-failures {limit} reached when {job} failed"
        case r.SomeFailed(job, more):
            return f"{job}{f' and {more} more' if more else ''} did not succeed"
        case r.LeftWaiting(jobs):
            return f"{jobs} waiting jobs were left as they are"
        case r.LeftInQueue(1):
            return "1 attempt is still in Slurm's hands: gpulaunch resume looks after it"
        case r.LeftInQueue(attempts):
            return (
                f"{attempts:,} attempts are still in Slurm's hands: gpulaunch resume looks after"
                " them"
            )
        case r.LeftAlive(left):
            there = "; ".join(map(_left_alive, left))
            return f"not ended yet, and left alive: {there}"
        case r.RunOver(state):
            return f"the run was {state}"
        case r.OutsideHours(until, seconds):
            return f"starts no job before {localtime.until(until, seconds)}"
    return cause(reason)


def pause(reason: r.RunReason, now: float | None = None) -> str:
    """Return why a run is paused, with what a person can do where it waits for one.

    `now` (seconds since 1970): also how long it still is.
    """
    if isinstance(reason, r.OutsideHours) and now is not None:
        reason = r.OutsideHours(reason.until, reason.until - now)
    if not isinstance(reason, r.FailedAlike):
        return run_reason(reason)
    return (
        f"{run_reason(reason)}; go on from another terminal with what failed (gpulaunch retry) or"
        " without (gpulaunch resume), or end the run (Ctrl-C)"
    )


def nothing_starts(reason: r.RunReason, paused: bool, again: bool) -> str:
    """Return why a job does not start in a run that is paused, or ends; `again`: it has before."""
    if isinstance(reason, r.OutsideHours):
        return f"the run {run_reason(reason)}"
    if paused:
        return f"paused: {pause(reason)}"
    by = "stopped by " if isinstance(reason, c.SignalCaught) else ""
    what = "was started, and is not started again" if again else "not started"
    return f"{what}: {by}{run_reason(reason)}"
