"""The words that `observe` shares: estimates, moments, cards, ends of attempts, visible text.

Pure: values in, strings out. Nothing here knows a terminal; colours and widths are `terminal`'s.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone, tzinfo

from gpulaunch.base import wording
from gpulaunch.base.localtime import time_of, until
from gpulaunch.base.text import clock, several
from gpulaunch.core.causes import Because
from gpulaunch.core.facts import CodeChanged
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import Gpu, LadderStep, TimedOut
from gpulaunch.diagnose.failure.classes import title_of

_PLAIN = re.compile(r"[ -~]*")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


GONE = "no longer in the job file"


def gone(job: JobRecord) -> str:
    """Return why nothing comes of a job that is gone, and what it had come to."""
    if job.state == "waiting" or job.reason == Because("not_in_file"):
        return f"{GONE}, not run{' again' * bool(job.attempts)}"
    if job.state == "running":
        return f"{GONE}: runs to the end, and not again"
    if job.state == "succeeded":
        return f"{GONE}; succeeded"
    if job.state == "cancelled":
        return f"{GONE}; cancelled"
    why = wording.job_reason(job.reason)
    return f"{GONE}; {why or (ending(job.attempts[-1]) if job.attempts else job.state)}"


def standing(ledger: Ledger) -> str:
    """Return what a run that more jobs may come to waits for; empty for any other."""
    if not ledger.awaits_more:
        return ""
    if ledger.opening.standing == "queue":
        return "takes jobs (gpulaunch add) until gpulaunch finish or queue stop"
    return "follows its inputs until gpulaunch finish"


def code_changed(change: CodeChanged, now: float | None, zone: tzinfo | None = None) -> str:
    """Return when a script changed: `train.py changed at 14:02, after 12 of 40 jobs had started`.

    `now`: seconds since 1970 from which the time is told.
    """
    when = time_of(change.utc // 60 * 60, now, zone)
    return f"{visible(change.path)} changed at {when}, {code_changed_after(change)}"


def code_changed_after(change: CodeChanged) -> str:
    """Return how many of a script's jobs had started by its change."""
    if change.started == change.jobs:
        return f"after all of its {several(change.jobs, 'job')} had started"
    return f"after {count(change.started)} of {several(change.jobs, 'job')} had started"


def short_digest(digest: str) -> str:
    """Return as much of a digest as people compare: `sha256:0123456789ab`."""
    algorithm, colon, digits = digest.partition(":")
    return f"{algorithm}{colon}{digits[:12]}"


def rough(seconds: float) -> str:
    """Return a span that is only estimated: `under a minute`, `5 min`, `3 h 20 min`, `2 d 3 h`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    if minutes < 60:
        return f"{minutes} min"
    if minutes >= 48 * 60:
        return clock(seconds)
    minutes = 5 * round(minutes / 5)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def rough_range(low: float, high: float) -> str:
    """`about 5 min`, `5 to 8 min`, `50 min to 1 h 20 min`: as far as the two differ."""
    least, most = rough(low), rough(high)
    if least == most:
        return most if least == "under a minute" else f"about {most}"
    if least == "under a minute":
        return f"up to {most}"
    if least.endswith(" min") and most.endswith(" min") and " h" not in least + most:
        return f"{least.removesuffix(' min')} to {most}"
    return f"{least} to {most}"


def count(number: int) -> str:
    """Return a number with thousands separators: `2,988`."""
    return f"{number:,}"


def iso(utc: float | None) -> str | None:
    """Return a time in ISO 8601, UTC: `2026-11-20T07:42:15.123456Z`. None stays None."""
    if utc is None:
        return None
    moment = datetime.fromtimestamp(utc, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def local_time(utc: float, zone: tzinfo | None = None) -> str:
    """Word a time for people, in the machine's zone or `zone`: `2026-11-20 07:42:15`."""
    return datetime.fromtimestamp(utc, timezone.utc).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def not_due(moments: Mapping[float, int], now: float, zone: tzinfo | None = None) -> str:
    """`3 not before 19:00 (in 2 h)`: how many jobs wait for each of these moments; empty for none.

    Moments that have come count no more.
    """
    ahead = {utc: jobs for utc, jobs in moments.items() if utc > now and jobs}
    if not ahead:
        return ""
    first = min(ahead)
    when = until(first, first - now, zone)
    if len(ahead) == 1:
        return f"{count(ahead[first])} not before {when}"
    return f"{count(sum(ahead.values()))} not due, the first at {when}"


ON_ITS_OWN = (
    "its supervisor is gone; what was handed over goes on: `gpulaunch resume` takes it up,"
    " `gpulaunch cancel --all` cancels it"
)
"""Of an interrupted run whose attempts are an engine's."""

KILLED = "its supervisor is gone: it was killed, or the machine went down"
"""Of any other interrupted run."""


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def card(gpu: Gpu) -> str:
    """`GPU 1`, `simulated GPU 1`, `GPU 0 MIG-5f3c9a12`, `n1 GPU 0` on another machine."""
    return cards([gpu])


def cards(gpus: Sequence[Gpu]) -> str:
    """`GPU 1`, `GPUs 0, 2`, `simulated GPUs 0, 1`, `n1 GPUs 0, 1, n2 GPU 0`; empty for none."""
    nodes = dict.fromkeys(gpu.node for gpu in gpus)
    return ", ".join(_of_node(node, [gpu for gpu in gpus if gpu.node == node]) for node in nodes)


def _of_node(node: str, gpus: Sequence[Gpu]) -> str:
    kind = "simulated " if any(gpu.simulated for gpu in gpus) else ""
    where = f"{visible(node)} " if node else ""
    names = ", ".join(_short(gpu) for gpu in gpus)
    return f"{where}{kind}GPU{'s' if len(gpus) > 1 else ''} {names}"


def step(of: LadderStep | None) -> str:
    """`step 2 of 3 (batch=16)`; empty without a ladder."""
    if of is None:
        return ""
    values = ", ".join(f"{key}={value}" for key, value in of.values.items())
    return f"step {of.number} of {of.of} ({visible(values)})"


def further_step(of: LadderStep | None) -> str:
    """Word a step as `step` does; empty also for the first one."""
    return step(of) if of is not None and of.number > 1 else ""


def attempt_cards(attempt: AttemptRecord, ledger: Ledger) -> str:
    """Name an attempt's cards, else its node; by UUID a card that the run no longer has."""
    known = [ledger.gpus[uuid].gpu for uuid in attempt.gpus if uuid in ledger.gpus]
    gone = [f"card {visible(uuid)}" for uuid in attempt.gpus if uuid not in ledger.gpus]
    return ", ".join(filter(None, [cards(known), *gone])) or visible(attempt.node)


def idle(attempt: AttemptRecord, ledger: Ledger) -> str:
    """Word that an attempt holds its cards and does not use them; empty where it was not said."""
    if attempt.idle is None:
        return ""
    known = (ledger.gpus[uuid].gpu.index for uuid in attempt.gpus if uuid in ledger.gpus)
    return wording.held_idle(attempt.idle.seconds, attempt.idle.memory, known)


def _short(gpu: Gpu) -> str:
    return f"{gpu.index} {gpu.uuid[:12]}" if gpu.mig else str(gpu.index)


# ── How attempts end ────────────────────────────────────────────────────────────────────────────


def ending(attempt: AttemptRecord) -> str:
    """Word an attempt's end: the failure class where it says more, with the bare outcome."""
    if attempt.outcome is None:
        if attempt.in_queue:
            return "in the queue" if attempt.queued else "next in its worker"
        return "running"
    words = wording.ending(attempt.outcome)
    if ended_at_warning(attempt):
        words = "ended when it was warned of its timeout"
    better = title_of(attempt.failure or "")
    return f"{better} ({words})" if better else words


def left_behind(attempt: AttemptRecord) -> str:
    """Word how many processes an attempt left behind; empty for none."""
    left = attempt.left
    return f"{several(left, 'process', 'processes')} left behind, killed" if left else ""


def ended_at_warning(attempt: AttemptRecord) -> bool:
    """Tell whether an attempt that counts as timed out ended by itself, after its warning."""
    outcome, sent = attempt.outcome, attempt.warned
    warned = sent is not None and sent.processes > 0 and sent.why == "timeout"
    if not (warned and isinstance(outcome, TimedOut) and outcome.limit == "timeout"):
        return False
    return attempt.seconds < outcome.seconds


# ── Text from elsewhere ─────────────────────────────────────────────────────────────────────────


def visible(text: str) -> str:
    r"""`text` on one line, with whatever a terminal would obey written out (`\x1b`, `\n`).

    Also what would reorder or hide text (bidirectional controls). A tab becomes a space.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """`text` as `visible` has it, its lines kept."""
    return "\n".join(map(visible, text.split("\n")))


def _visible(char: str) -> str:
    if char == "\t":
        return " "
    if unicodedata.category(char) not in _INVISIBLE or char in _JOINERS:
        return char
    if char in "\n\r":
        return "\\n" if char == "\n" else "\\r"
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else "�"
