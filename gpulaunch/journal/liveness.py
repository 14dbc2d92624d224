"""Whether a run lives. The journal says how it was closed; its control socket, whether it breathes.

The socket's name is bound as long as the supervisor lives, and not a moment longer. It means
something on the machine of the run only: a run of another one is never taken up from here.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpulaunch.core.facts import Fact, RunClosed, RunOpened
from gpulaunch.core.model import RunState
from gpulaunch.errors import UsageError
from gpulaunch.files import regular
from gpulaunch.journal import codec
from gpulaunch.journal.append import require_unwritten
from gpulaunch.journal.manifest import boot_id, hostname
from gpulaunch.journal.read import read, replay
from gpulaunch.journal.rundir import RunDir, new_run_id
from gpulaunch.journal.shapes import UnknownKindError
from gpulaunch.peers import peer

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Whose run it is: its id, and the machine of its newest supervisor."""

    run: str
    host: str
    boot: str

    @property
    def here(self) -> bool:
        """It is this machine's. The name may have changed, or the machine may have restarted."""
        return self.host == hostname() or (self.boot != "" and self.boot == boot_id())


def control_name(run: str) -> str:
    """The abstract name of a run's control socket, with its leading NUL."""
    return f"\0gpulaunch/1/run/{run}"


def supervised(run: str, owner: int) -> bool:
    """Whether a supervisor of this run lives on this machine.

    `owner` is the user id of whom the run's directory belongs to: any other user's process may have
    taken the name when the run was gone.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link:
        try:
            link.connect(control_name(run))
        except BlockingIOError:
            return True  # too many wait there already
        except OSError:
            return False
        return peer(link)[1] in (owner, os.geteuid(), 0)


def state_of(rundir: RunDir) -> RunState:
    """The run's state now. Raises UsageError where the directory holds no readable run.

    A run of another machine that is not closed counts as running: nothing here tells otherwise.
    The supervisor of the run that this one is a copy of is not its own.
    """
    last = _last_fact(rundir.events)
    if isinstance(last, RunClosed):
        return last.state
    origin = origin_of(rundir)
    if not origin.here:
        return "running"
    owner = os.stat(rundir.path).st_uid
    alive = supervised(origin.run, owner) and original_of(rundir) is None
    return "running" if alive else "interrupted"


def origin_of(rundir: RunDir) -> RunOrigin:
    """From the manifest, or from the journal's first line where the manifest was lost."""
    try:
        manifest = rundir.read_manifest()
    except UsageError:
        first = next(read(rundir.events), None)
        if first is None or not isinstance(first[0], RunOpened):
            raise
        return RunOrigin(first[0].run, first[0].host, first[0].boot)
    latest = manifest.latest or manifest
    return RunOrigin(manifest.run, latest.host, latest.boot)


def original_of(rundir: RunDir) -> RunDir | None:
    """The run that this one is a copy of, where that still lies where both were one."""
    try:
        manifest = rundir.read_manifest()
        other = RunDir(Path(manifest.directory))
        if os.path.samefile(other.path, rundir.path) or not other.holds_run:
            return None
        return other if other.read_manifest().run == manifest.run else None
    except (UsageError, OSError):
        return None


def own_id(rundir: RunDir) -> str:
    """The run's id; a new one for a copy, since its id is that of the run it is a copy of.

    Raises UsageError for a copy whose attempts are still in the queue of the original.
    """
    manifest, original = rundir.read_manifest(), original_of(rundir)
    if original is None:
        return manifest.run
    if manifest.engine != "local" and replay(rundir.events).open_attempts():
        raise UsageError(
            f"{rundir.path} is a copy, and its jobs are in the queue for {original.path}: go on"
            " with that, or delete it where it is wanted no longer"
        )
    return new_run_id(datetime.now().astimezone())


def refuse_elsewhere(rundir: RunDir) -> None:
    """Raises UsageError, naming the host, where the run is another machine's."""
    origin = origin_of(rundir)
    if not origin.here:
        todo = f"go on with it on {origin.host}"
        if _is_known_here(rundir):
            todo += ", or, if its launcher died there, with gpulaunch resume --take-over"
        raise UsageError(f"{_whose(rundir, origin)}: {todo}")


def require_dead_elsewhere(rundir: RunDir) -> None:
    """Raises UsageError unless a run of another machine can be gone on with on this one.

    Its jobs are Slurm's, and its launcher does not hold the journal's lock, which reaches as far as
    the file system's locks do.
    """
    origin = origin_of(rundir)
    if origin.here:
        return
    if not _is_known_here(rundir):
        raise UsageError(
            f"{_whose(rundir, origin)}: its jobs may still run there, so go on with it there"
        )
    require_unwritten(rundir)


def _is_known_here(rundir: RunDir) -> bool:
    """What has become of its jobs is to be found out on any machine."""
    try:
        return rundir.read_manifest().engine != "local"
    except UsageError:
        return False


def _whose(rundir: RunDir, origin: RunOrigin) -> str:
    return f"{rundir.path} is a run of {origin.host}, and this is {hostname()}"


def _last_fact(path: Path) -> Fact | None:
    """The newest fact that is whole; None where the end does not tell."""
    try:
        fd = regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        start = max(0, os.fstat(fd).st_size - _TAIL_BYTES)
        lines = os.pread(fd, 2 * _TAIL_BYTES, start).split(b"\n")[:-1]
    finally:
        os.close(fd)
    for line in reversed(lines):
        try:
            return codec.decode(line).fact
        except UnknownKindError:
            return None
        except codec.BadLineError:
            continue
    return None
