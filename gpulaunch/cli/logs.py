"""`gpulaunch logs`: whole logs, their last lines, or as they grow.

Logs of several jobs are told apart by a heading, or while they are followed by a name before each
line. Only reads: the logs belong to the jobs that write them.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import regular
from gpulaunch.cli import completion
from gpulaunch.cli.options import run_option
from gpulaunch.cli.output import say
from gpulaunch.cli.terminal import Terminal
from gpulaunch.core.facts import AttemptLaunched
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId
from gpulaunch.journal.find import typed
from gpulaunch.journal.read import Follower
from gpulaunch.observe.present.tail import Folder, fold
from gpulaunch.observe.present.words import ON_ITS_OWN, visible
from gpulaunch.run.lookup import LogSelection, attempts_of, is_silent, jobs_of, pulse, status

READ_BYTES = 1 << 16
LAST_LINES = 10


@click.command("logs")
@run_option("The run; the newest one here.")
@click.option("-f", "--follow", is_flag=True, help="Go on as the logs grow, until the jobs end.")
@click.option("-n", "--lines", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="That attempt; the newest.")
@click.option("--failed", is_flag=True, help="Of these, the jobs that failed.")
@click.option("--raw", is_flag=True, help="Byte for byte: progress bars and colours as written.")
@click.argument(
    "jobs", nargs=-1, shell_complete=completion.jobs("running", "succeeded", *completion.SETTLED)
)
def command(
    run: str | None,
    follow: bool,
    lines: int | None,
    attempt: int | None,
    failed: bool,
    raw: bool,
    jobs: tuple[str, ...],
) -> None:
    """Read or follow logs. JOB may be a pattern; without one, every job that has a log.

    Of one job the whole log is shown, of several the last 10 lines each; progress bars are folded.

    \b
    gpulaunch logs fold-x2 -f
    gpulaunch logs 'fold-*' -n 3
    gpulaunch logs --failed
    """
    one = status(run, Terminal(), jobs)
    names = jobs_of(one.ledger, jobs) if jobs else None
    if failed:
        among = one.ledger.jobs if names is None else names
        names = [name for name in among if one.ledger.jobs[name].state == "failed"]
        if not names:
            say(f"{typed(one.run.path)}: nothing failed{' so far' * (one.state == 'running')}")
            return
    wanted = LogSelection(one.run, one.id, names, attempt, raw)
    if follow:
        follow_logs(wanted, lines)
    else:
        show_logs(wanted, one.ledger, lines)


def show_logs(wanted: LogSelection, ledger: Ledger, lines: int | None) -> None:
    """Print the logs as they are now. Raises UsageError if the jobs have no log."""
    attempts = attempts_of(wanted, ledger)
    if len(attempts) == 1:
        path = wanted.run.log(attempts[0].id)
        silent = is_silent(wanted, attempts[0])
        try:
            if not silent:
                _print(path, wanted.raw, lines)
                silent = not path.stat().st_size
        except OSError as error:
            raise UsageError(_unreadable(path, error)) from None
        if silent:
            say(f"{visible(attempts[0].id.job)}: {path} is empty")
        return
    for attempt in attempts:
        state = f"attempt {attempt.id.number}, {attempt.state}"
        _write(f"==> {visible(attempt.id.job)} ({state}) <==\n".encode())
        path = wanted.run.log(attempt.id)
        try:
            if not is_silent(wanted, attempt):
                _print(path, wanted.raw, LAST_LINES if lines is None else lines)
        except OSError as error:
            say(_unreadable(path, error))


def _unreadable(path: Path, error: OSError) -> str:
    if error.filename is None:  # standard output failed, not the log
        raise error
    return f"{path} cannot be read: {error.strerror}"


def _print(path: Path, raw: bool, lines: int | None) -> None:
    with open(path, "rb", opener=regular) as file:
        if lines is not None:
            file.seek(_start_of_last(file.fileno(), lines))
        chunks = iter(lambda: file.read(READ_BYTES), b"")
        if raw:
            for chunk in chunks:
                _write(chunk)
        else:
            text = (part.encode(errors="replace") for part in fold(chunks))
            for part in text if lines is None else _last(text, lines):
                _write(part)


def _start_of_last(fd: int, lines: int) -> int:
    """Return where the last lines begin, at most 1 MiB back: a line may be 100 MB long."""
    size = os.fstat(fd).st_size
    start = max(0, size - (1 << 20))
    data = os.pread(fd, size - start, start)
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, max(0, at))
        if at < 0:
            return start
    return start + at + 1 if lines else size


def _last(parts: Iterator[bytes], lines: int) -> Iterator[bytes]:
    whole = b"".join(parts).splitlines(keepends=True)
    yield from deque(whole, maxlen=lines)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# ── Following ───────────────────────────────────────────────────────────────────────────────────


class _Stream:
    """One log as it grows."""

    def __init__(self, path: Path, name: str, raw: bool, lines: int | None) -> None:
        self._path = path
        self._name = name
        self._folder = None if raw else Folder()
        self._lines = lines
        self._fd = -1
        self._at = 0
        self._said = False

    def pump(self) -> None:
        """Print what has come since the last time."""
        if self._fd < 0 and not self._open():
            return
        while data := os.pread(self._fd, READ_BYTES, self._at):
            self._at += len(data)
            self._say(data if self._folder is None else self._folder.feed(data).encode())

    def close(self) -> None:
        if self._fd >= 0:
            self.pump()
            if self._folder:
                self._say(self._folder.close().encode())
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = regular(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            if not self._said:
                self._said = True
                say(_unreadable(self._path, error))
            return False
        if self._lines is not None:
            self._at = _start_of_last(self._fd, self._lines)
        return True

    def _say(self, data: bytes) -> None:
        if self._name and data:
            label = f"{visible(self._name)} | ".encode()
            data = b"".join(label + line for line in data.splitlines(keepends=True))
        _write(data)


def follow_logs(wanted: LogSelection, lines: int | None) -> None:
    """Print logs as they grow, until the run, or every job wanted, has ended."""
    several = wanted.names is None or len(wanted.names) > 1
    lines = LAST_LINES if several and lines is None else lines
    streams: dict[AttemptId, _Stream] = {}
    ledger = Ledger()
    with ExitStack() as stack:
        follower = stack.enter_context(Follower(wanted.run.events))
        follower.also_watch(wanted.run.logs)
        stack.callback(_close_all, streams)
        while True:
            supervisor = pulse(wanted.run, wanted.run_id)
            new = []
            for fact in follower.fold(ledger):
                if isinstance(fact, AttemptLaunched) and wanted.includes(fact.attempt):
                    new.append(fact.attempt)
            for attempt in new:
                if _is_news(wanted, ledger, attempt):
                    path, name = wanted.run.log(attempt), attempt.job if several else ""
                    streams[attempt] = _Stream(path, name, wanted.raw, lines)
            for attempt in list(streams):
                streams[attempt].pump()
                if ledger.attempt(attempt).ended:
                    streams.pop(attempt).close()
            if supervisor is None or ledger.closed or _all_settled(wanted, ledger):
                if supervisor is None and not ledger.closed and ledger.queueing and streams:
                    say(f"nobody tells of the end of these jobs: {ON_ITS_OWN}")
                return
            with supervisor:
                follower.wait(also=[supervisor])


def _close_all(streams: Mapping[AttemptId, _Stream]) -> None:
    for stream in streams.values():
        stream.close()


def _is_news(wanted: LogSelection, ledger: Ledger, attempt: AttemptId) -> bool:
    """Tell whether to show the attempt: it runs, or is the newest of a job that was named."""
    newest = ledger.jobs[attempt.job].attempts[-1].id == attempt
    return ledger.attempt(attempt).ended is None or (wanted.names is not None and newest)


def _all_settled(wanted: LogSelection, ledger: Ledger) -> bool:
    if wanted.names is None:
        return False
    return all(ledger.jobs[name].settled for name in wanted.names if name in ledger.jobs)
