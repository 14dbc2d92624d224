"""Finds a run by its directory, name, id or job file; where nothing is given, the newest here.

    working directory ─┐
    else a parent ─────┴─▶ the nearest that has a run ─▶ its runs, newest first

A run that is over, and in which nothing was started, counts as none: it is found by its own
directory, name or id alone. In a parent only this user's runs count: a run that somebody else put
into `/tmp` is not found from a directory below. Asks a live run nothing but whether it lives.

Also reads how long jobs took in earlier runs of the same job file: a first guess for the next one.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct

from gpulaunch.base.errors import NOWHERE, GpulaunchError, UsageError
from gpulaunch.jobfile.config import place_of_runs
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import LATEST, QUEUE, RUNS, RunDir, home_of_runs, queue_dirs

_BEGUN = (b'"e":"attempt_launched"', b'"kind":"outside_hours"', b'"due":{')
"""What the journal has of a run that has begun: an attempt, or a time that was waited for."""
_SEARCHED_BYTES = 1 << 28
"""Bytes of a journal that are searched for these; a longer one is of a run that has begun."""
_STAMPED = re.compile(r"-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)(-\d+)?$")
_MAX_CHARACTERS_REPEATED = 100
"""Characters of what a person typed that an error repeats at most."""


class NoSuchRunError(UsageError):
    """No run was found by what a person typed."""


class Here(Struct, frozen=True):
    """The runs that belong to a directory, newest first; at least one."""

    directory: Path
    runs: tuple[RunDir, ...]


def working_directory() -> Path:
    """Return the working directory. Raises UsageError where it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError(NOWHERE) from None


def typed(path: Path, base: str | None = None) -> str:
    """Return the path as people would type it from here; absolute if it is not below here."""
    try:
        relative = os.path.relpath(path, os.getcwd() if base is None else base)
    except OSError:  # the working directory was deleted
        return str(path)
    return str(path) if relative.startswith("..") or base == "/" else relative


def runs(directory: Path) -> list[RunDir]:
    """Return all runs that were begun in `directory`, newest first, also unstarted ones.

    These are in its gpulaunch-runs, and where the configuration's `runs:` keeps those begun there.
    """
    places = dict.fromkeys((directory / RUNS, home_of_runs(directory)))
    found = [run for place in places for run in _directories(place) if run.holds_run]
    return sorted(found, key=age, reverse=True)


def counts(run: RunDir) -> bool:
    """Tell whether anything was started in the run, or may still be because it lives."""
    if launched(run):
        return True
    try:
        return state_of(run) == "running"
    except UsageError:
        return True  # a run that cannot be read may have started something


def here(cwd: Path, apart: Sequence[RunDir] = ()) -> Here | None:
    """Return the runs of `cwd`, else of its nearest parent that has one.

    `apart`: runs outside of any gpulaunch-runs; they belong to the directory they were begun in.
    """
    for directory in (cwd, *cwd.parents):
        inside = RunDir(directory)
        if inside.holds_run and (directory == cwd or is_ours(inside)):
            return Here(directory, (inside,))
        found = {run.path: run for run in runs(directory)}
        found |= {run.path: run for run in apart if _begun_in(run, directory)}
        if counting := [run for run in _allowed(found.values(), directory == cwd) if counts(run)]:
            return Here(directory, tuple(sorted(counting, key=age, reverse=True)))
    return None


def find(run: str, cwd: Path) -> RunDir:
    """Return the run that a directory, a name, an id or a job file means.

    Of several runs of one name or job file it is the newest. Raises NoSuchRunError, saying what was
    looked for and where.
    """
    path = _path(run, cwd)
    if path is not None and RunDir(path).holds_run:
        return RunDir(path)
    chosen: RunDir | None = None
    if path is not None and _kind(path) == "file":
        chosen = newest_around(path, cwd) or _around(path)
    chosen = chosen or _named(run, cwd) or (newest_around(path, cwd) if path else None)
    if chosen is None:
        raise NoSuchRunError(_not_found(run, path, cwd))
    return chosen


def find_or_queue(run: str, cwd: Path) -> RunDir:
    """Return the run that `find` returns. If it finds none, a directory of this user's queue.

    `queue` means the newest of them, `queue-2` the second.
    """
    try:
        return find(run, cwd)
    except NoSuchRunError:
        for queue in queue_dirs():
            if queue.holds_run and run in (QUEUE, queue.path.name):
                return queue
        raise


def newest_of(job_file: Path, cwd: Path) -> RunDir | None:
    """Return this user's newest run of this job file under `cwd` that counts, None for none."""
    return next(runs_of(job_file, cwd), None)


def runs_of(job_file: Path, cwd: Path, owner: int | None = None) -> Iterator[RunDir]:
    """Yield one user's runs of this job file under `cwd` that count, newest first.

    `owner` is the id of that user; None: the one who runs this process. What other users have run
    is nothing to go on with, and nothing to learn a job's memory from.
    """
    wanted, owner = os.path.realpath(job_file), os.geteuid() if owner is None else owner
    for run in runs(cwd):
        if owner_of(run) == owner and is_of(run, wanted) and counts(run):
            yield run


def is_of(run: RunDir, job_file: str) -> bool:
    """Tell whether the run is of the job file with this real path."""
    manifest = manifest_of(run)
    return bool(manifest and manifest.job_file and os.path.realpath(manifest.job_file) == job_file)


def before(run: RunDir) -> RunDir | None:
    """Return the newest earlier run of the same job file, among those begun in the same place.

    One that counts as none is passed over: nothing can be learnt from it.
    """
    this = manifest_of(run)
    if this is None or not this.job_file:
        return None
    begun_there = runs_of(Path(this.job_file), Path(this.cwd), owner_of(run))
    return next((other for other in begun_there if age(other)[0] < this.started), None)


def names_of(run: RunDir) -> tuple[str, ...]:
    """Return the names by which the run may be called: its directory's, its own, its id."""
    manifest = manifest_of(run)
    return (run.path.name, manifest.name, manifest.run) if manifest else (run.path.name,)


def manifest_of(run: RunDir) -> Manifest | None:
    """Return the run's manifest, None where it is absent or damaged."""
    try:
        return run.read_manifest()
    except UsageError:
        return None


def nothing_under(cwd: Path) -> str:
    """Return the words for no run under `cwd`, naming one in which nothing was started."""
    idle = next(iter(runs(cwd)), None)
    but = f" (nothing was started in {idle.path})" if idle else ""
    return f"there is no run under {home_of_runs(cwd)}, nor under a parent's{but}"


def make_latest(run: RunDir) -> None:
    """Point `gpulaunch-runs/latest` to the run, unless it points to a newer one."""
    if not is_filed(run):
        return
    link = run.path.parent / LATEST
    try:
        there = RunDir(run.path.parent / os.readlink(link))
    except OSError:
        there = None
    if there is None or not there.holds_run or age(there) <= age(run):
        run.make_latest()


def mend_latest(place: Path) -> None:
    """Have `latest` in this directory of runs point to a run: the newest there, or else nowhere."""
    link = place / LATEST
    try:
        if RunDir(place / os.readlink(link)).holds_run:
            return
    except OSError:  # there is none, or it is no link
        return
    there = [run for run in _directories(place) if run.holds_run and counts(run)]
    if newest := max(there, key=age, default=None):
        newest.make_latest()
    else:
        with suppress(OSError):
            os.unlink(link)


def is_filed(run: RunDir) -> bool:
    """Tell whether the run lies where runs are kept, and not in a directory that was named."""
    place = run.path.parent
    if place.name == RUNS:
        return True
    manifest = manifest_of(run)
    home = place_of_runs(Path(os.path.realpath(manifest.cwd))) if manifest else None
    return home is not None and os.path.realpath(home) == os.path.realpath(place)


def is_ours(run: RunDir) -> bool:
    """Tell whether the run belongs to this user."""
    return owner_of(run) == os.geteuid()


def owner_of(run: RunDir) -> int:
    """Return the id of the user who owns the run's directory; -1 if that is gone."""
    try:
        return os.stat(run.path).st_uid
    except OSError:
        return -1


def is_stamped(run: RunDir) -> bool:
    """Tell whether the run's directory has the name that gpulaunch gives to those that it makes."""
    return _STAMPED.search(run.path.name) is not None


def launched(run: RunDir) -> bool:
    """Tell whether an attempt was ever launched, or put off: it left a log, or the journal has it.

    Put off: until the run's hours, or the job's `not_before`.

    A power cut may lose the newest events and keep the log. The journal's text is searched: no
    string of a job's can look like the head of an event, as quotes in it are escaped.
    """
    if any(_entries(run.logs)):
        return True
    try:
        fd = os.open(run.events, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, min(size, _SEARCHED_BYTES), prot=mmap.PROT_READ) as text:
            return size > _SEARCHED_BYTES or any(text.find(what) >= 0 for what in _BEGUN)
    except (OSError, ValueError):
        return True
    finally:
        os.close(fd)


def _directories(base: Path) -> Iterator[RunDir]:
    for entry in _entries(base):
        if entry.name.startswith("."):
            continue  # no run is called so; one that is being removed is
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                yield RunDir(Path(entry.path))


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory; none where it cannot be read."""
    with suppress(OSError), os.scandir(directory) as entries:
        yield from entries


def _allowed(found: Iterable[RunDir], in_cwd: bool) -> list[RunDir]:
    """Return this user's runs; in the working directory, anybody's where this user has none."""
    every = list(found)
    ours = [run for run in every if is_ours(run)]
    return ours or (every if in_cwd else [])


def _begun_in(run: RunDir, directory: Path) -> bool:
    manifest = manifest_of(run)
    return manifest is not None and os.path.realpath(manifest.cwd) == os.path.realpath(directory)


def _path(run: str, cwd: Path) -> Path | None:
    """Return what was typed as a real path; None where it can be none (too long, NUL)."""
    try:
        path = Path(os.path.realpath(cwd / run))
        os.lstat(path)
    except ValueError:
        return None
    except OSError as error:
        return None if error.errno == errno.ENAMETOOLONG else path
    return path


def _named(name: str, cwd: Path) -> RunDir | None:
    """Return the nearest directory's newest run of that name or id, if possible one that counts."""
    for directory in (cwd, *cwd.parents):
        have = _allowed(runs(directory), directory == cwd)
        if name == LATEST:
            called = [run for run in have if counts(run)]
        else:
            called = [run for run in have if name in names_of(run)]
        if called:
            return next((run for run in called if counts(run)), called[0])
    return None


def newest_around(path: Path, cwd: Path) -> RunDir | None:
    """Return the newest run of a job file (a real path) in or above `cwd` or the file's folder."""
    places = dict.fromkeys((cwd, *cwd.parents, *path.parents))
    found = [
        run
        for directory in places
        for run in _allowed(runs(directory), directory == cwd)
        if is_of(run, str(path)) and counts(run)
    ]
    return max(found, key=age, default=None)


def _around(path: Path) -> RunDir | None:
    """Return the run in whose directory a file lies: its own copy of the job file, a log."""
    return next((RunDir(up) for up in path.parents if RunDir(up).holds_run), None)


def age(run: RunDir) -> tuple[str, str]:
    """Return a sort key: when the run was begun, by its manifest or its directory's name."""
    manifest = manifest_of(run)
    if manifest is not None:
        return manifest.started, run.path.name
    stamp = _STAMPED.search(run.path.name)
    return ("{}-{}-{}T{}:{}:{}".format(*stamp.groups()) if stamp else ""), run.path.name


def _not_found(run: str, path: Path | None, cwd: Path) -> str:
    kind = _kind(path)
    if kind == "directory":
        newest = here(path) if path else None
        hint = f"; the newest run of it is {newest.runs[0].path}" if newest else ""
        return f"{path} is a directory, but holds no run: it has no events.jsonl{hint}"
    if kind == "file":
        return (
            f"there is no run of {path}, neither under {home_of_runs(cwd)} or a parent's, nor where"
            " the file lies: name a run's directory"
        )
    if kind:
        return f"{path} is a {kind}, neither a run's directory nor a job file"
    near = here(cwd)
    have = [each.path.name for each in near.runs[:3]] if near else []
    there = f"newest there: {', '.join(have)}" if have else "none is there"
    name = (
        repr(run)
        if len(run) <= _MAX_CHARACTERS_REPEATED
        else f"{run[:_MAX_CHARACTERS_REPEATED]!r}..."
    )
    return (
        f"no run {name}: it is no directory and no job file, and no run under {home_of_runs(cwd)}"
        f" or a parent's has that name or id ({there})"
    )


def _kind(path: Path | None) -> str:
    """Return what the path is, in a word; empty where nothing is there."""
    try:
        mode = os.stat(path).st_mode if path else 0
    except OSError:
        return ""
    tests = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISREG, "file"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
    )
    return next((kind for test, kind in tests if test(mode)), "device" if mode else "")


# ── Durations in earlier runs ─────────────────────────────────────────────────────────────────────

MAX_JOURNAL_BYTES = 8 << 20
"""Bytes of a journal that is read: a third of a second, and the events of some 20,000 jobs."""

MAX_EARLIER_RUNS = 3
"""Earlier runs that are read at most: the newest may have been stopped before it had begun."""


def durations_of(runs: Iterable[RunDir], digests: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of each job's last success in these runs, which come newest first.

    Reads as many of them as are small enough together. `digests` as for `durations`.
    """
    found: dict[str, float] = {}
    room = MAX_JOURNAL_BYTES
    for run in islice(runs, MAX_EARLIER_RUNS):
        found = durations(run, room, digests) | found
        room -= _size(run)
    return found


def durations(
    run: RunDir | None, most: int | None = None, digests: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return the seconds of each job's last success, by name; none where no run can be read.

    `most`: bytes of its journal at most. `digests`: those of the jobs as they are now, by name;
    only successes under these definitions count.
    """
    try:
        if run is None or _size(run) > (MAX_JOURNAL_BYTES if most is None else most):
            return {}
        ledger = replay(run.events)
    except (OSError, GpulaunchError):
        return {}
    return {
        job.name: attempt.seconds
        for job in ledger.jobs.values()
        for attempt in job.attempts
        if attempt.state == "succeeded"
        and (digests is None or digests.get(job.name) == attempt.digest)
    }


def durations_before(run: RunDir, digests: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the seconds of each job in the run of the same file before this one, by name.

    These were what this run's expectations began with.
    """
    earlier = before(run)
    if earlier is None or _size(run) > MAX_JOURNAL_BYTES:
        return {}
    return durations(earlier, digests=_digests(run) if digests is None else digests)


def _digests(run: RunDir) -> dict[str, str]:
    try:
        return {job.name: job.definition.digest for job in replay(run.events).jobs.values()}
    except (OSError, GpulaunchError):
        return {}


def _size(run: RunDir) -> int:
    try:
        return run.events.stat().st_size
    except OSError:
        return 0
