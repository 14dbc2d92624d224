"""Which of a log's errors decides, and its class. Pure; in doubt there is none.

The errors at the log's end, with no sign of life between them, are one cluster; what came before
was survived. In a cluster the last error decides, unless it only follows from an earlier one:

    rank 0: CUDA out of memory   ◀── decides
    rank 1: NCCL: remote process exited          (secondary)
    torchrun: ChildFailedError                   (a wrapper: says that another failed)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpulaunch.diagnose.failure import patterns
from gpulaunch.diagnose.failure.patterns import WRAPPER
from gpulaunch.diagnose.failure.reading import Error, LogLine, Raised, errors_of, lines_of

TRAILER = 25  # Lines that may follow the last error before it counts as survived.
MAX_CLUSTER_ERRORS = 200  # Errors of a cluster that are looked at, the last ones.
ECHO = 2  # Lines between an error and a wrapper's own "error: it failed".
FOLLOWING = frozenset({"secondary", WRAPPER})


class FailureEvidence(Struct, frozen=True):
    """`text`: the line that shows it; `message`: the exception's, where it was one."""

    kind: str
    text: str
    message: str = ""


class Verdict(Struct, frozen=True):
    """`finding` decides; `error`: the log ends in an error, whatever it is; `soft`: something was
    given up on and the program went on; `child`: the log says that this signal killed a process."""

    finding: FailureEvidence | None
    error: Error | None
    soft: FailureEvidence | None
    child: int | None = None


def judge(text: str) -> Verdict:
    lines = lines_of(text)
    errors = errors_of(lines)
    soft = _soft(lines)
    cluster = _cluster(lines, errors)
    if not cluster:
        return Verdict(None, None, soft, _child(lines))
    return Verdict(_decide(lines, cluster), cluster[-1], soft, _child(lines))


def classify(error: Error) -> FailureEvidence | None:
    """Return the error's class, `secondary` and WRAPPER included; None where it is unknown."""
    if error.shape == "line":
        return FailureEvidence(error.kind, error.text)
    if error.shape == "vague":
        return None
    links = [*error.explicit, True]
    found: FailureEvidence | None = None
    for raised, explicit in zip(reversed(error.raised), reversed(links), strict=False):
        deeper = _of_exception(raised)
        if deeper is None:
            continue
        if found is None and not explicit and deeper.kind in patterns.WEAK:
            continue
        if deeper.kind not in FOLLOWING:
            return deeper
        found = found or deeper
    return found


def _of_exception(raised: Raised) -> FailureEvidence | None:
    if not raised.type:
        return None
    head = raised.message.partition("\n")[0]
    quoting = patterns.QUOTING.fullmatch(raised.type) is not None
    for pattern in patterns.RAISED:
        if pattern.types is None and quoting:
            continue
        if pattern.types is not None and not pattern.types.fullmatch(raised.type):
            continue
        if pattern.text.search(raised.message if pattern.deep else head):
            text = f"{raised.type}: {head}" if head else raised.type
            return FailureEvidence(pattern.kind, text, raised.message)
    return None


# ── Which errors count ──────────────────────────────────────────────────────────────────────────


def _cluster(lines: Sequence[LogLine], errors: Sequence[Error]) -> list[Error]:
    """Return the errors at the end; empty where the log goes on after the last."""
    owned = {at for error in errors for at in range(error.start, error.end + 1)}
    rest = [line for line in lines if line.at not in owned]
    cluster: list[Error] = []
    after = len(lines)
    for error in reversed(errors):
        if error.shape == "ignored":
            continue
        survived = error.shape == "survived" and not (cluster and _points_back(cluster[0]))
        if survived or len(cluster) == MAX_CLUSTER_ERRORS:
            break
        if not _is_quiet(line for line in rest if error.end < line.at < after):
            break
        cluster.insert(0, error)
        after = min(after, error.start)
    return cluster


def _points_back(error: Error) -> bool:
    """Tell whether an error only says that what a warning told of was not survived after all."""
    return any(patterns.WARNED.search(raised.message) for raised in error.raised)


def _is_quiet(between: Iterator[LogLine]) -> bool:
    """No sign of life, and not many lines of any other kind."""
    others = bars = 0
    for line in between:
        text = line.text
        if patterns.IGNORED.match(text):
            continue
        if patterns.BAR.match(text):
            bars += 1
        elif patterns.PROGRESS.match(text) or patterns.SURVIVED.search(text):
            return False
        elif line.level not in ("W", "I", "D") and text and not _is_noise(text):
            others += 1
        if others > TRAILER or bars > 2:
            return False
    return True


def _is_noise(text: str) -> bool:
    return bool(patterns.NOISE.match(text) or patterns.ENDED.match(text))


# ── Which of them decides ───────────────────────────────────────────────────────────────────────


def _decide(lines: Sequence[LogLine], cluster: Sequence[Error]) -> FailureEvidence | None:
    known = [(error, classify(error)) for error in cluster]
    firsts = [(e, found) for e, found in known if found and found.kind not in FOLLOWING]
    # What programs expect and handle is a root cause only where there is no other.
    firsts.sort(key=lambda pair: pair[1].kind in patterns.WEAK)
    last, found = known[-1]
    if found is None:
        return next((f for e, f in firsts if _explains(lines, cluster, e, last)), None)
    if found.kind in FOLLOWING:
        if firsts:
            return firsts[0][1]
        return next((f for _, f in known if f and f.kind == "secondary"), None)
    for error, first in firsts:
        other = error.stream != last.stream or error.shape == "child" or last.shape == "abort"
        if other or (found.kind in patterns.FOLLOWS and first.kind not in patterns.WEAK):
            return first
    return found


def _explains(
    lines: Sequence[LogLine], cluster: Sequence[Error], error: Error, last: Error
) -> bool:
    """Tell whether `error` is why the unknown `last` came: another process's, or echoed by it."""
    if error.stream != last.stream or error.shape == "child":
        return True
    plain = last.shape == "bare" and last.raised[0].type == "Error"
    if last.shape != "vague" and not plain:
        return last.shape == "abort"
    if any(error.end < between.start < last.start for between in cluster):
        return False
    others = [
        line for line in lines[error.end + 1 : last.start] if line.text and not _is_noise(line.text)
    ]
    return len(others) <= ECHO


def of_status(text: str, code: int) -> FailureEvidence | None:
    """Return what the last lines say of the status that they came with."""
    for line in reversed(last_lines(text)):
        for codes, pattern in patterns.STATUSES:
            if code in codes and pattern.text.match(line):
                return FailureEvidence(pattern.kind, line)
    return None


def last_lines(text: str) -> list[str]:
    """Those that may still have to do with how it ended, without what loggers put before them."""
    return [line.text for line in lines_of(text)[-TRAILER:]]


def _child(lines: Sequence[LogLine]) -> int | None:
    """Return the first of SIGILL, SIGBUS, SIGKILL that the last lines tell of."""
    for line in lines[-2 * TRAILER :]:
        found = patterns.CHILD_SIGNAL.search(line.text)
        if found is not None:
            return int(found["signal"])
    return None


def _soft(lines: Sequence[LogLine]) -> FailureEvidence | None:
    for line in reversed(lines):
        for pattern in patterns.SOFT:
            found = pattern.text.match(line.text)
            if found is None:
                continue
            if pattern.kind:
                return FailureEvidence(pattern.kind, line.text)
            inner = _of_exception(Raised("RuntimeError", found["rest"]))
            if inner is not None and inner.kind not in FOLLOWING:
                return FailureEvidence(inner.kind, line.text, found["rest"])
    return None
