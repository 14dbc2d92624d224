"""Whether a run lives: the journal says how it was closed, its control socket whether it is alive.

The socket's name is bound exactly as long as the supervisor lives, on the run's machine only. A
run of another machine is never taken up from this one, unless its launcher is known to be dead.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from gpulaunch.agent.wire import peer
from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import end_of
from gpulaunch.core.facts import Fact, RunClosed, RunOpened
from gpulaunch.core.model import RunState
from gpulaunch.journal import codec
from gpulaunch.journal.append import require_unwritten
from gpulaunch.journal.manifest import boot_id, hostname
from gpulaunch.journal.read import read, replay
from gpulaunch.journal.rundir import RunDir, new_run_id

_TAIL_BYTES = 1 << 16


class RunOrigin(Struct, frozen=True):
    """Where a run comes from: its id, and the machine of its newest supervisor."""

    run: str
    host: str
    boot: str

    @property
    def here(self) -> bool:
        """True where the run is this machine's, by host name or boot id: one may have changed."""
        return self.host == hostname() or (self.boot != "" and self.boot == boot_id())


def control_name(run: str) -> str:
    """Return the abstract name of a run's control socket, with its leading NUL."""
    return f"\0gpulaunch/1/run/{run}"


def may_supervise(link: socket.socket, owner: int) -> bool:
    """Return True if the process at the other end may be the run's supervisor.

    `owner` is the user id to whom the run's directory belongs: another user's process may have
    taken the name after the run was gone.
    """
    return peer(link)[1] in (owner, os.geteuid(), 0)


def supervised(run: str, owner: int) -> bool:
    """Tell whether a supervisor of this run, whose directory is the owner's, lives here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link:
        try:
            link.connect(control_name(run))
        except BlockingIOError:
            return True  # somebody listens; the queue of connections is full
        except OSError:
            return False
        return may_supervise(link, owner)


def state_of(rundir: RunDir) -> RunState:
    """Return the run's state now. Raises UsageError where the directory holds no readable run.

    A run of another machine that is not closed counts as running: this machine cannot know
    better. For a copied run, a supervisor of the original does not count.
    """
    if closed := _closed_as(rundir):
        return closed
    origin = origin_of(rundir)
    if not origin.here:
        return "running"
    owner = os.stat(rundir.path).st_uid
    if supervised(origin.run, owner) and original_of(rundir) is None:
        return "running"
    # Its supervisor may have closed it, and ended, since the journal was read.
    return _closed_as(rundir) or "interrupted"


def origin_of(rundir: RunDir) -> RunOrigin:
    """Return the run's origin by its manifest, or by the journal's first line without one."""
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
    """Return the run of which this one is a copy, if that is still in its place; else None."""
    try:
        manifest = rundir.read_manifest()
        other = RunDir(Path(manifest.directory))
        if os.path.samefile(other.path, rundir.path) or not other.holds_run:
            return None
        return other if other.read_manifest().run == manifest.run else None
    except (UsageError, OSError):
        return None


def own_id(rundir: RunDir) -> str:
    """Return the run's id; for a copy a new one, as the manifest's id is the original's.

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
    """Raise UsageError, naming the host, where the run is another machine's."""
    origin = origin_of(rundir)
    if not origin.here:
        todo = f"go on with it on {origin.host}"
        if _is_known_here(rundir):
            todo += ", or, if its launcher died there, with gpulaunch resume --take-over"
        raise UsageError(f"{_whose(rundir, origin)}: {todo}")


def require_dead_elsewhere(rundir: RunDir) -> None:
    """Raise UsageError where a run of another machine cannot go on on this one.

    It can where its jobs are Slurm's and its launcher does not hold the journal's lock, as far as
    the file system's locks reach.
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
    """Tell whether the state of a run's jobs can be learnt on any machine: they are Slurm's."""
    try:
        return rundir.read_manifest().engine != "local"
    except UsageError:
        return False


def _whose(rundir: RunDir, origin: RunOrigin) -> str:
    return f"{rundir.path} is a run of {origin.host}, and this is {hostname()}"


def _closed_as(rundir: RunDir) -> RunState | None:
    """Return the state in which the run was closed; None where it is open."""
    last = _last_fact(rundir.events)
    return last.state if isinstance(last, RunClosed) else None


def _last_fact(path: Path) -> Fact | None:
    """Return the journal's newest whole fact; None where its end holds none that is known."""
    try:
        data, _ = end_of(path, _TAIL_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    for line in reversed(data.split(b"\n")[:-1]):
        try:
            return codec.decode(line).fact
        except codec.UnknownKindError:
            return None
        except codec.BadLineError:
            continue
    return None
