"""The attempt that is to be run, and its files on the shared file system."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..launch import Ticket
from ..shared import look_anew, new_name, sync
from ..wire import TYPE_CHECKING, Any, end_line, end_record, raw, shown
from .grant import Problem, node_name
from .signals import StopSignals

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

LOOK_AGAIN = 0.5  # seconds between two looks for a file that NFS does not show yet
BEAT = 15.0  # seconds between two signs of life


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gpulaunch: {text}\n".encode("utf-8", "replace"))


def name_of_ours(
    run: bytes, batch: bytes, environ: Mapping[bytes, bytes], asked: StopSignals, patience: float
) -> bytes:
    """Return the name of the batch's attempt that this task of the array is. Raises Problem."""
    path = os.path.join(run, b"slurm", b"batches", batch + b".json")
    listed = awaited(read_json, path, asked, patience)
    if listed is None:
        raise Problem(
            f"{shown(path)} was not to be seen on node {node_name(environ)} within {patience:.0f}"
            " s: is the run directory on a file system that all nodes share?"
        )
    index = int(environ.get(b"SLURM_ARRAY_TASK_ID", b"0"))
    names = listed["attempts"]
    if not 0 <= index < len(names):
        raise Problem(f"{shown(path)} lists {len(names)} attempts, and this is number {index}")
    return raw(names[index])


def awaited(
    read: Callable[[bytes], T | None], path: bytes, asked: StopSignals, patience: float
) -> T | None:
    """Return what `read` reads; None if it does not show in time, or a stop is asked for.

    It is looked for again and again: no file system reports another machine's writes.
    """
    until = time.monotonic() + patience
    while True:
        value = read(path)
        left = until - time.monotonic()
        if value is not None or left <= 0 or asked.stop:
            return value
        asked.wait(min(LOOK_AGAIN, left))


def read_json(path: bytes) -> dict[str, Any] | None:
    """Return the value of the file's first line; None if it is absent or not whole."""
    look_anew(os.path.dirname(path))
    try:
        with open(path, "rb") as file:
            value = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_ticket(path: bytes) -> Ticket | None:
    """Return the ticket; None if it is absent or not whole."""
    look_anew(os.path.dirname(path))
    try:
        with open(path, "rb") as file:
            return Ticket(file.read())
    except (OSError, ValueError):
        return None


class NodeAttempt:
    """The attempt that is to be run, and its files, whose name is `name`."""

    def __init__(self, run: bytes, name: bytes) -> None:
        slurm = os.path.join(run, b"slurm")
        self.name = name
        self.ticket: Ticket | None = None
        self.ticket_file = os.path.join(slurm, b"tickets", name)
        self.start_file = os.path.join(slurm, b"starts", name)
        self.stop_file = os.path.join(slurm, b"stops", name)
        self.end_file = os.path.join(run, b"ends", name)
        self.stop_read: tuple[int, int] | None = None
        self.beat_at = time.monotonic()
        self.results = os.path.join(run, b"results")

    @property
    def id(self) -> str:
        if self.ticket is None:
            return self.name.decode("utf-8", "surrogateescape")
        return self.ticket.order.id

    def link_results(self, after: Iterable[bytes]) -> None:
        """Link the outputs of those attempts to `results/JOB`, where this attempt looks for them.

        They have succeeded, and Slurm may know that before a launcher does, or without one.
        """
        for name in after:
            left = os.path.join(b"..", b"out", name)
            link = os.path.join(self.results, name.rpartition(b".")[0])
            with contextlib.suppress(OSError):
                if os.listdir(os.path.join(self.results, left)):
                    draft = new_name(self.results)
                    os.symlink(left, draft)
                    os.replace(draft, link)

    def read_stop(self) -> tuple[str, str, bool] | None:
        """Return why the client wants a stop, for whom, whether at once; None if it does not."""
        stop = read_json(self.stop_file)
        if stop is None:
            return None
        reason = "cancelled" if stop.get("reason") == "cancelled" else "interrupted"
        return reason, str(stop.get("by", "")), bool(stop.get("now"))

    def tell_cards(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Append the cards' names to the claim, as a line that readers take whole or not at all.

        If a full disk prevents that, readers have the cards' numbers from the claim itself.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self.start_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            with open(fd, "wb") as file:
                file.write(json.dumps({"gpus": gpus}).encode() + b"\n")

    def beat(self) -> None:
        """Touch the claim's file once in a while, as a sign of life."""
        now = time.monotonic()
        if now - self.beat_at >= BEAT:
            self.beat_at = now
            with contextlib.suppress(OSError):
                os.utime(self.start_file)

    def new_stop(self) -> tuple[str, str, bool] | None:
        """Return the client's stop if it is new since the last call; else None, after one stat."""
        try:
            file = os.stat(self.stop_file)
        except OSError:
            return None
        mark = (file.st_ino, file.st_mtime_ns)
        stop = None if mark == self.stop_read else self.read_stop()
        if stop is not None:
            self.stop_read = mark
        return stop

    def refuse(self, why: str, kind: str | None = None) -> None:
        say(f"{self.id}: {why}")
        self.write_end(error=why, kind=kind)

    def write_end(
        self,
        cause: str | None = None,
        by: str = "",
        error: str | None = None,
        kind: str | None = None,
    ) -> None:
        """Record the end of an attempt that no keeper ran, in a keeper's format."""
        record = end_record(self.id, cause=cause, by=by, error=error, kind=kind)
        try:
            fd = os.open(self.end_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(end_line(record))
            self.make_durable(record)
        except FileExistsError:
            raise  # a keeper has begun: this is not for us to say
        except OSError as problem:
            say(f"{shown(self.end_file)} cannot be written: {problem.strerror}")

    def make_durable(self, end: Mapping[str, Any]) -> None:
        """Flush the end record to the disk, before Slurm hears of the end."""
        try:
            sync(self.end_file)
            sync(os.path.dirname(self.end_file))
        except OSError as problem:
            say(f"{shown(self.end_file)} may be lost ({problem.strerror}): {json.dumps(end)}")


def forget_silence(log: bytes) -> None:
    """Remove the log of a success that wrote nothing: a file less on a shared file system."""
    with contextlib.suppress(OSError):
        found = os.lstat(log)
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            os.unlink(log)


def taken_before(path: bytes) -> str:
    start = read_json(path) or {}
    if "withdrawn" in start:
        return f"was withdrawn ({start.get('by')}): it is not started"
    where = f", as Slurm job {start['job']} on node {start.get('node')}" if "job" in start else ""
    return f"was started before{where}: it is not started again"
