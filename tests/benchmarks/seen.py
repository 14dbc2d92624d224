"""A standing run that has seen many jobs: its start, its memory, its views. No section.

    python -m tests.benchmarks.seen [JOBS]      1,000,000, which takes ten minutes to make

The facts are written as a supervisor writes them, and compacted as one has it done; no job runs.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpulaunch.app.archiving import ARCHIVE_AT, ARCHIVE_KEEP
from gpulaunch.core.facts import JobAdded, JobsArchived
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.journal import codec
from gpulaunch.journal.append import Journal
from gpulaunch.journal.compaction import compact
from gpulaunch.journal.given import facts_of
from gpulaunch.journal.joblog import HEADER
from gpulaunch.journal.rundir import RunDir
from gpulaunch.metrics.store import Store, end_steps
from gpulaunch.metrics.thin import MAX_ATTEMPTS
from tests import standing

PATIENCE = 120.0
COMMAND = [sys.executable, "-m", "gpulaunch"]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        begun = time.monotonic()
        run = make(place, count)
        made = time.monotonic() - begun
        told = {"jobs": count, "made_seconds": round(made), **measure(run)}
        print(json.dumps(told, indent=1))


def make(place: Path, count: int) -> RunDir:
    """Leave a run behind that has seen so many jobs, one more of which waits; it was cut off."""
    run, journal = standing.made(place)
    settled: list[str] = []
    seen: Counter[str] = Counter()
    for number in range(count):
        name = f"train-{number + 1}"
        assert journal.append(list(standing.over(name, number * 1.0, _state(name))))
        os.close(os.open(run.log_file(AttemptId(name, 1)), os.O_CREAT | os.O_WRONLY, 0o600))
        settled.append(name)
        if len(settled) == ARCHIVE_AT:
            old = settled[: ARCHIVE_AT - ARCHIVE_KEEP]
            seen.update(map(_state, old))
            _archive(run, journal, old, seen)
            del settled[: len(old)]
            sys.stderr.write(f"\r{number + 1:,}")
    row = "1\tbox\t1700000000.000\t     1.000\t0\t0\t0\t0\ttrain: python train.py --seed 1234567\n"
    run.joblog.write_text(HEADER + row * count)
    run.log(AttemptId("train-123", 1)).write_text("epoch 1\n")
    _measured(run, count)
    waiting = Job("first", ("true",), cwd="/", given=True)
    there = JobAdded("first", 1 << 20, 0, waiting.digest, given=True)
    facts = [*facts_of("first", [waiting]), there]
    assert journal.append([(fact, codec.now()) for fact in facts])
    journal.close()
    return run


def _state(name: str) -> str:
    return "failed" if name.endswith("50") else "succeeded"


def _archive(run: RunDir, journal: Journal, names: list[str], seen: Counter[str]) -> None:
    assert journal.size is not None
    shorter = compact(run, journal.size, names)
    journal.go_on_in(shorter)
    archived = JobsArchived(tuple(names), shorter.history, dict(seen), "train-50")
    assert journal.append([(archived, codec.now())])


def _measured(run: RunDir, count: int) -> None:
    store = Store(run.metrics)
    first = max(0, count - MAX_ATTEMPTS)
    for start in range(first, count, 5_000):
        ends = range(start, min(count, start + 5_000))
        who = [AttemptId(f"train-{n + 1}", 1) for n in ends]
        steps = [step for attempt in who for step in end_steps(attempt, 1, 1.0, 1.0)]
        assert store.write(steps, time.time())
    store.close()


def measure(run: RunDir) -> dict[str, object]:
    size = run.events.stat().st_size
    environ = {**os.environ, "TERM": "xterm", "LANG": "C.UTF-8"}
    at = str(run.path)

    def took(*words: str) -> float:
        def once() -> float:
            begun = time.monotonic()
            subprocess.run([*COMMAND, *words], check=True, capture_output=True, env=environ)
            return time.monotonic() - begun

        return round(min(once() for _ in range(3)), 2)

    begun = time.monotonic()
    with _supervised(run) as process:
        _until(lambda: b'"e":"attempt_launched"' in run.events.read_bytes()[size:])
        start = time.monotonic() - begun
        time.sleep(5)
        figures: dict[str, object] = {
            "start_to_first_launch_seconds": round(start, 2),
            "memory_mb": {name: _memory(process.pid, name) for name in ("VmRSS", "VmHWM")},
            "journal_mb": round(size / 1e6, 2),
            "history_mb": round(sum(e.stat().st_size for e in os.scandir(run.history)) / 1e6, 1),
            "status_seconds": took("status", at),
            "status_json_seconds": took("status", at, "--json"),
            "status_of_an_archived_job_seconds": took("status", "-r", at, "train-123"),
            "logs_of_an_archived_job_seconds": took("logs", "-r", at, "train-123"),
            "top_first_frame_seconds": round(min(_top(at, environ) for _ in range(3)), 2),
            "add_seconds": took("add", "-r", at, "--", "train"),
            "load": os.getloadavg(),
        }
        subprocess.run([*COMMAND, "finish", at], check=True, capture_output=True)
        process.wait(PATIENCE)
    return figures


@contextmanager
def _supervised(run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    line = [sys.executable, "-m", "tests.standing", str(run.path)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def _top(run: str, environ: dict[str, str]) -> float:
    """Seconds until top has drawn how many jobs are done."""
    begun = time.monotonic()
    pid, fd = pty.fork()
    if not pid:
        os.environ.update(environ)
        os.execv(COMMAND[0], [*COMMAND, "top", "-r", run])
    said = b""
    while b" done" not in said and time.monotonic() < begun + PATIENCE:
        if select.select([fd], [], [], 1)[0]:
            said += os.read(fd, 1 << 16)
    took = time.monotonic() - begun
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    return took


def _memory(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return round(int(line.split()[1]) / 1000, 1)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


if __name__ == "__main__":
    main()
