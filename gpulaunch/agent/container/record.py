"""What the supervisor wrote for the carrier: which container, and how it is begun and removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os

from ..wire import Any, read_whole

INSIDE = b"GPULAUNCH_INSIDE_"  # before the name of a variable that is for inside


class Record:
    """The record, and its directory, which is the carrier's to remove.

    `start`: the client's command line, without passing signals on (`--sig-proxy=false`: podman's
    client, killed, would still send TERM); `remove`: the one that removes the container, whatever
    its state; `answers`: one that exits with 0 while the engine answers; `cwd`, `inside`, `unset`:
    of the program inside; `first`: those of its variables that go before the image's own value;
    `warn`: the number of the job's warning signal, 0 for none; `anyone`: the program is not the
    caller inside, so that the container may connect as whoever it is; `cpus`: on which it runs.

    While the carrier lives it holds a lock on the record: a container without one is nobody's.
    """

    def __init__(self, path: str) -> None:
        self.folder = os.path.dirname(path)
        self.fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self.held, fcntl.LOCK_SH)
        known: dict[str, Any] = json.loads(read_whole(self.held))
        self.engine: str = known["engine"]
        self.name: str = known["name"]
        self.image: str = known["image"]
        self.start: list[str] = known["start"]
        self.remove: list[str] = known["remove"]
        self.answers: list[str] = known["answers"]
        self.cwd: str = known["cwd"]
        self.inside: list[str] = known["inside"]
        self.unset: list[str] = known["unset"]
        self.first: list[str] = known["first"]
        self.warn: int = known["warn"] or 0
        self.anyone: bool = known["anyone"]
        self.cpus: list[int] = known["cpus"]
        self.tell_of(0, 0)

    def tell_of(self, pid: int, start: int) -> None:
        """Write the file `pid` beside the record: which process is the container's first.

        `start`: in clock ticks since boot. Both are 0 before there is one, and where its number is
        not known here.
        """
        draft = ".pid"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # a full disk: others then do without it
            file = os.open(draft, flags, 0o600, dir_fd=self.fd)
            try:
                os.write(file, f"{pid} {start}\n".encode())
                os.rename(draft, "pid", src_dir_fd=self.fd, dst_dir_fd=self.fd)
            finally:
                os.close(file)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def delete(self) -> None:
        """Remove what is the carrier's here: nothing is left of the container."""
        for name in ("socket", "pid", "record.json"):
            self.unlink(name)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
