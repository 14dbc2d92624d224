"""`manifest.json`: where, by whom and from what a run was made. It holds no facts of jobs.

Values of the environment are never written here; a command line is what the user typed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch import __version__
from gpulaunch.base.commit import commit
from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import read_bytes, user_name
from gpulaunch.base.files import replace as replace_file
from gpulaunch.core.facts import ImageKnown
from gpulaunch.core.model import ContainerEngine, Gpu
from gpulaunch.journal.choices import NOTHING_CHOSEN, Choices
from gpulaunch.journal.codec import from_json, plain, value_of

RUNS = "gpulaunch-runs"
MANIFEST_BYTES = 64 << 20
"""Bytes of the file at most."""
_GIT_SECONDS = 2.0
_RUN_ID_BYTES = 64
"""Bytes of a run's id at most: the kernel takes 107 as the name of the run's control socket."""


class Git(Struct, frozen=True):
    """The commit of the job file's directory; `clean`: no tracked file there was changed."""

    commit: str
    clean: bool


class Epoch(Struct, frozen=True):
    """One supervisor's turn at the run. `started` is UTC as `codec.iso` writes it.

    `commit` is that of the gpulaunch, as `gpulaunch.base.commit` has it.
    """

    epoch: int
    started: str
    version: str
    host: str
    boot: str
    pid: int
    user: str
    command: tuple[str, ...]
    commit: str = ""


class NamedImage(Struct, frozen=True):
    """An image of the containers that jobs run in: as it was named, and what that was."""

    image: str
    engine: ContainerEngine
    id: str
    digest: str


class Manifest(Struct, frozen=True):
    """What `manifest.json` holds. `epochs` are the run's supervisors, oldest first.

    `job_file` is absolute; empty for a run without one (`map`). `engine` is that of the newest
    supervisor; `slurm` are its options by `--slurm`, `choices` its other ones. `directory` is where
    the run lay when this was written; empty where an older version wrote it. `images` are added as
    they become known.
    """

    run: str
    name: str
    version: str
    host: str
    boot: str
    user: str
    command: tuple[str, ...]
    cwd: str
    job_file: str
    started: str
    python: str
    kernel: str
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    git: Git | None = None
    epochs: tuple[Epoch, ...] = ()
    engine: str = "local"
    slurm: tuple[str, ...] = ()
    choices: Choices = NOTHING_CHOSEN
    directory: str = ""
    images: tuple[NamedImage, ...] = ()

    @property
    def latest(self) -> Epoch | None:
        """The newest supervisor's turn, None where none is recorded."""
        return self.epochs[-1] if self.epochs else None

    def again(self, epoch: Epoch) -> Manifest:
        """Return the manifest with one more supervisor's turn."""
        return replace(self, epochs=(*self.epochs, epoch))

    def with_images(self, known: Iterable[ImageKnown]) -> Manifest:
        """Return the manifest with these images, and no others."""
        images = (NamedImage(one.source.image, one.engine, one.id, one.digest) for one in known)
        return replace(self, images=tuple(dict.fromkeys(images)))


def collect(
    run: str,
    name: str,
    *,
    started: str,
    command: Sequence[str],
    job_file: Path | None,
    gpus: Sequence[Gpu] = (),
    driver: str | None = None,
    engine: str = "local",
    slurm: Sequence[str] = (),
    choices: Choices = NOTHING_CHOSEN,
) -> Manifest:
    """Return the manifest of a run that this process begins.

    Asks git about the job file's directory, for two seconds at most.
    """
    first = this_epoch(1, started, command)
    return Manifest(
        run=run,
        name=name,
        version=first.version,
        host=first.host,
        boot=first.boot,
        user=first.user,
        command=first.command,
        cwd=os.getcwd(),
        job_file=os.path.abspath(job_file) if job_file else "",
        started=started,
        python=sys.version.split()[0],
        kernel=os.uname().release,
        driver=driver,
        gpus=tuple(gpus),
        simulated=any(gpu.simulated for gpu in gpus),
        git=git_state(Path(os.path.abspath(job_file)).parent if job_file else Path.cwd()),
        epochs=(first,),
        engine=engine,
        slurm=tuple(slurm),
        choices=choices,
    )


def this_epoch(number: int, started: str, command: Sequence[str]) -> Epoch:
    """Return this process's turn at a run."""
    return Epoch(
        epoch=number,
        started=started,
        version=__version__,
        host=hostname(),
        boot=boot_id(),
        pid=os.getpid(),
        user=user_name(os.geteuid()),
        command=tuple(command),
        commit=commit(),
    )


def write(path: Path, manifest: Manifest) -> None:
    """Replace the file in one step, with its own place in `directory`.

    Raises OSError (disk full, directory gone).
    """
    manifest = replace(manifest, directory=os.path.realpath(path.parent))
    text = json.dumps(plain(manifest), indent=2) + "\n"
    replace_file(path, text.encode())


def read(path: Path) -> Manifest:
    """Return the manifest; members that a newer version added are ignored.

    Where the folder that holds run and job file was renamed or copied, its paths are the new ones;
    `directory` stays the old one. Raises UsageError where the file is absent or damaged.
    """
    try:
        manifest = value_of(from_json(read_bytes(path, MANIFEST_BYTES)), Manifest)
        _check(manifest)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    return _moved_along(manifest, os.path.realpath(path.parent))


def _check(manifest: Manifest) -> None:
    """Raise ValueError where a member of the manifest has no meaning."""
    for started in (manifest.started, *(epoch.started for epoch in manifest.epochs)):
        if started:
            datetime.fromisoformat(started.replace("Z", "+00:00"))
    if not 0 < len(os.fsencode(manifest.run)) <= _RUN_ID_BYTES:
        raise ValueError(f"run: expected the id of a run, found {manifest.run!r:.100}")
    named = (manifest.run, manifest.cwd, manifest.job_file, manifest.directory)
    if any("\0" in text for text in named):
        raise ValueError("a NUL character; no name and no path can hold one")


def hostname() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """Return the kernel's id of this boot (the same in containers); empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def git_state(directory: Path) -> Git | None:
    """Return the commit checked out there; None without git, a repository, or a quick answer.

    Only tracked files are looked at: finding untracked ones may mean walking a whole data set.
    """
    commit = _git(directory, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return None if changes is None else Git(commit.strip(), clean=not changes.strip())


def _git(directory: Path, *arguments: str) -> str | None:
    # No lock on the user's index; no fsmonitor, which a repository may set to any program.
    command = ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS / 2,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


# ── Runs that moved along with a folder ───────────────────────────────────────────────────────────


def _moved_along(manifest: Manifest, now: str) -> Manifest:
    """Return the manifest with the paths of today, if a folder took its run along.

    /data/proj/gpulaunch-runs/X      where the run was
    /home/ann/p2/gpulaunch-runs/X    where it is: /data/proj has become /home/ann/p2,
    /data/proj/jobs.yaml             and this is /home/ann/p2/jobs.yaml

    The folder was renamed, moved or copied.
    """
    was = manifest.directory or _usual_place(manifest.cwd, now)
    job_file, cwd = (_followed(path, was, now) for path in (manifest.job_file, manifest.cwd))
    return replace(manifest, job_file=job_file, cwd=cwd, directory=was)


def _followed(path: str, was: str, now: str) -> str:
    """Return where a file is after its run moved from `was` to `now`; unchanged if only there."""
    if was == now or not path:
        return path
    old, new = _roots(Path(was), Path(now))
    for each in (path, os.path.realpath(path)):
        with suppress(ValueError):
            moved = new / Path(each).relative_to(old)
            if os.path.exists(moved) or not os.path.exists(path):
                return str(moved)
    return path


def _usual_place(cwd: str, now: str) -> str:
    """Return where a run that was begun in `cwd` must have been, where no manifest says it."""
    runs, name = os.path.split(now)
    if os.path.basename(runs) != RUNS:
        return now
    return os.path.join(os.path.realpath(cwd), RUNS, name)


def _roots(was: Path, now: Path) -> tuple[Path, Path]:
    """Return the folder's old and new path: both paths without their common end."""
    while was.name and was.name == now.name:
        was, now = was.parent, now.parent
    return was, now
