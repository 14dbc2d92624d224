"""Finds what runs have left and nobody needs, and removes it: superseded `out/`, or whole runs.

    runs ─▶ look: what of each may go, and what that takes ─▶ CleanPlan ─▶ carry_out
    for each run: its lock taken ─▶ judged anew ─▶ gone by a rename ─▶ lock given back ─▶ deleted

`look` changes nothing. What may go of a run is judged by its journal and its directory. The lock is
what `resume` takes: nobody goes on with a run while something of it goes, and one that lives is
left alone. What is gone by its rename is never seen half: who is killed leaves a hidden directory,
which the next look finds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import GpulaunchError, UsageError
from gpulaunch.base.files import user_name
from gpulaunch.base.text import listing, shell_word, size
from gpulaunch.core.ledger import Ledger, superseded
from gpulaunch.core.model import AttemptId, RunState
from gpulaunch.engines.local.containers import alive_without
from gpulaunch.gpus.machine import DoctorFinding
from gpulaunch.journal import find
from gpulaunch.journal.append import claimed
from gpulaunch.journal.codec import now
from gpulaunch.journal.find import runs, typed, working_directory
from gpulaunch.journal.liveness import origin_of, original_of, own_id, refuse_elsewhere, state_of
from gpulaunch.journal.manifest import boot_id
from gpulaunch.journal.read import Damage, Fault, replay
from gpulaunch.journal.removal import Weight, delete, leftovers, vanish, weigh
from gpulaunch.journal.rundir import RUNS, RunDir, home_of_runs
from gpulaunch.run.control_server import ControlServer
from gpulaunch.run.lookup import directory
from gpulaunch.run.options import Observer

# ── Links into `{{out}}` ──────────────────────────────────────────────────────────────────────────

MAX_STEPS = 40
"""Links that lead to one another, as many as the kernel follows."""


class LedTo:
    """Knows the attempts' `{{out}}` to which a run's links lead, by their names. Changes nothing.

    The links are those in `results/`, in `keep/`, in what stays: a job may well leave its
    checkpoint in `{{out}}`, and in `{{keep}}` a link to it.
    """

    def __init__(self, outs: Path) -> None:
        self._outs = os.path.realpath(outs)
        self._names: set[str] = set()
        self._all = False

    def __contains__(self, name: str) -> bool:
        return self._all or name in self._names

    def follow(self, directory: Path) -> None:
        """Follow all links at or below a directory; enters none of them. Raises nothing."""
        todo = [str(directory)]
        while todo:
            path = todo.pop()
            if os.path.islink(path):
                self._lead(path)
                continue
            with suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        self._lead(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)

    def _lead(self, link: str) -> None:
        for place in (*_steps(link), os.path.realpath(link)):
            if place.startswith(f"{self._outs}/"):
                self._names.add(place[len(self._outs) + 1 :].split("/", 1)[0])
            elif f"{self._outs}/".startswith(f"{place.rstrip('/')}/"):
                self._all = True


def _steps(link: str) -> Iterator[str]:
    """Yield where a link leads, and where that does if it is one, and so on."""
    with suppress(OSError):
        for _ in range(MAX_STEPS):
            folder = os.path.realpath(os.path.dirname(link))
            link = os.path.normpath(os.path.join(folder, os.readlink(link)))
            yield link


# ── What may go ───────────────────────────────────────────────────────────────────────────────────

LeftFor: TypeAlias = Literal["", "resumable", "young"]


class CleanOptions(Struct, frozen=True):
    """What may go. `whole`: runs, and not what attempts left. `older`: in seconds since their end;
    `newest`: so many are left as they are.
    """

    whole: bool = False
    older: float | None = None
    newest: int = 0


class Removable(Struct, frozen=True):
    """A directory that may go: an attempt's `{{out}}`, a whole run (`attempt` None), or a leftover.

    `bytes` is what it takes. `obstacle`: why it cannot be removed, so that nothing of it is.
    """

    path: Path
    bytes: int
    attempt: AttemptId | None = None
    obstacle: str = ""


class RunLook(Struct, frozen=True):
    """A run that was looked at, and what of it may go. `left`: why nothing may, if so.

    `kind`: of a reason that names would change, or time: `resumable`, as it can be gone on with and
    was not named; `young`, as it ended not long enough ago. Of a whole run that may go, `others`
    are the files that are not its own and go with it, `links` those behind which something stays.
    """

    run: RunDir
    id: str = ""
    name: str = ""
    state: RunState = "interrupted"
    attempts: int = 0
    keeps: int = 0
    others: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    targets: tuple[Removable, ...] = ()
    left: str = ""
    named: bool = False
    kind: LeftFor = ""


class CleanPlan(Struct, frozen=True):
    """What may go: `runs`, and what an earlier removal that was cut short has left.

    `homes`: the directories whose `latest` points to one of their runs.
    """

    options: CleanOptions
    runs: tuple[RunLook, ...]
    leftovers: tuple[Removable, ...]
    homes: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """What all of it takes, without what is known to stay."""
        every = (*self.leftovers, *(one for run in self.runs for one in run.targets))
        return sum(one.bytes for one in every if not one.obstacle)


def look(names: Sequence[str], options: CleanOptions, observer: Observer) -> CleanPlan:
    """Return what of these runs may go, without names of all that were begun in this directory.

    `names`: as for `lookup.directory`. Changes nothing. Raises UsageError for a name of no run.
    """
    runs = _runs(names, options, observer)
    kept = _newest(runs, options.newest)
    looks = tuple(_look(run, options, bool(names)) for run in runs if run not in kept)
    homes = _homes(runs)
    beside = (
        *homes,
        *(run.path.parent for run in runs),
        *(() if names else (working_directory(),)),
    )
    places = {os.path.realpath(place): place for place in beside}
    found = [path for place in places.values() for path in leftovers(place)]
    found += [path for one in looks if not one.left for path in leftovers(one.run.outs)]
    left = tuple(_weighed(Removable(path, 0)) for path in found)
    return CleanPlan(options, looks, left, homes)


# ── Which runs ──────────────────────────────────────────────────────────────────────────────────


def _runs(names: Sequence[str], options: CleanOptions, observer: Observer) -> list[RunDir]:
    """Return the runs, newest first, each once."""
    if names:
        found = [_meant(name, observer) for name in names]
    else:
        cwd = working_directory()
        found = find.runs(cwd)
        if not options.whole and (inside := RunDir(cwd)).holds_run:
            found.append(inside)
    each = {os.path.realpath(run.path): run for run in found}
    return sorted(each.values(), key=find.age, reverse=True)


def _meant(name: str, observer: Observer) -> RunDir:
    """Return the run of that name. Raises UsageError also where it may well mean another thing."""
    if not name:
        raise UsageError("RUN is empty: is a variable not set?")
    run = directory(name, observer)
    if os.path.lexists(name) and run.path in Path(os.path.realpath(name)).parents:
        raise UsageError(f"{name} is a part of the run {typed(run.path)}: name that itself")
    return run


def _newest(runs: Sequence[RunDir], count: int) -> list[RunDir]:
    """Return the newest of this user's runs; one in which nothing was started is none of them."""
    counting = (run for run in runs if count and find.is_ours(run) and find.counts(run))
    return list(islice(counting, count))


def _homes(runs: Iterable[RunDir]) -> tuple[Path, ...]:
    """Return the directories in which these runs are filed, or runs that are begun here."""
    cwd = working_directory()
    found = [run.path.parent for run in runs if find.is_filed(run)]
    found += [cwd / RUNS, home_of_runs(cwd)]
    return tuple({os.path.realpath(place): place for place in found}.values())


# ── What of a run may go ────────────────────────────────────────────────────────────────────────


def _look(run: RunDir, options: CleanOptions, named: bool) -> RunLook:
    """Return what of a run may go as it stands, with sizes."""
    try:
        if left := _not_to_be_touched(run):
            return RunLook(run, left=left, named=named)
        found = judged(run, options, named)
    except (GpulaunchError, OSError) as error:
        return RunLook(run, left=told_error(error), named=named)
    return replace(found, targets=tuple(map(_weighed, found.targets)))


def _weighed(target: Removable) -> Removable:
    """Return the directory with what it takes, and what keeps it from being removed."""
    found = weigh(str(target.path))
    return replace(target, bytes=found.bytes, obstacle=found.obstacle)


def told_error(error: Exception) -> str:
    """Return an expected error in one line."""
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror}"
    return str(error).split("\n", 1)[0]


def _not_to_be_touched(run: RunDir) -> str:
    """Return why nothing of the run may go, whatever is on record; empty where it may."""
    owner = os.stat(run.path).st_uid
    if owner != os.geteuid():
        return f"it belongs to {user_name(owner)}"
    refuse_elsewhere(run)
    if state_of(run) == "running":
        return "it is alive"
    return ""


def judged(run: RunDir, options: CleanOptions, named: bool) -> RunLook:
    """Return what of a run that nobody drives may go, by its journal and its directory."""
    faults: list[Fault] = []
    ledger = replay(run.events, faults)
    state: RunState = "interrupted" if ledger.state == "running" else ledger.state
    known = RunLook(
        run,
        ledger.opening.run,
        ledger.opening.name,
        state,
        sum(len(job.attempts) for job in ledger.jobs.values()),
        named=named,
    )
    lost = any(map(_is_loss, faults))
    if left := _ended_since(ledger, options):
        return replace(known, left=left, kind="young")
    if left := _lives_on(run, ledger, lost):
        return replace(known, left=left)
    if options.whole:
        return _whole(known, ledger, lost)
    if lost:
        left = "lines of its journal are lost, so that nobody knows what is superseded"
    elif run.outs.is_symlink():
        left = f"its out is a link, to {os.path.realpath(run.outs)}"
    return replace(known, left=left, targets=() if left else tuple(_superseded(run, ledger)))


def _is_loss(fault: Fault) -> bool:
    return not isinstance(fault, Damage) or (fault.lost and not fault.torn)


def _ended_since(ledger: Ledger, options: CleanOptions) -> str:
    """Return that the run ended not long enough ago; empty where it did."""
    ended = ledger.closed or ledger.last
    if options.older is None:
        return ""
    at, one_boot = now(), boot_id() == ledger.opening.boot != ""
    age = -1.0 if ended is None else at.mono - ended.mono if one_boot else at.utc - ended.utc
    return "" if age >= options.older else "it is not old enough"


def _lives_on(run: RunDir, ledger: Ledger, lost: bool) -> str:
    """Return what of the run goes on without a supervisor; empty for nothing.

    `lost`: of some attempts nothing may be on record.
    """
    going = ledger.open_attempts()
    if ledger.queueing and (going or lost):
        engine = ledger.opening.engine.capitalize()
        return f"{engine} {'still has' if going else 'may still have'} jobs of it"
    if (going or lost) and original_of(run) is None and alive_without(origin_of(run).run):
        return "processes of its jobs are still alive"
    return ""


def _whole(known: RunLook, ledger: Ledger, lost: bool) -> RunLook:
    """Return the look at a run that may go as a whole, or why it may not.

    One that can be gone on with goes only where it is named.
    """
    run = known.run
    others = tuple(run.strange_entries())
    if others and not (find.is_filed(run) and find.is_stamped(run)):
        left = f"it holds other files than the run's ({listing(others)}): rm -r removes it"
        return replace(known, left=left)
    if any(_holds_runs(run.path / each) for each in others):
        return replace(known, left="other runs are in it: rm -r removes it with them")
    begun = (job for job in ledger.jobs.values() if job.attempts)
    undone = known.state != "succeeded" or any(job.state != "succeeded" for job in begun)
    if not known.named and find.launched(run) and (undone or lost):
        left = f"it can be gone on with ({known.state})"
        return replace(known, left=left, kind="resumable")
    return replace(
        known,
        keeps=sum(1 for _ in _entries(run.keeps)),
        others=others,
        links=tuple(sorted(each.name for each in _entries(run.path) if each.is_symlink())),
        targets=(Removable(run.path, 0),),
    )


def _holds_runs(place: Path) -> bool:
    return RunDir(place).holds_run or any(
        RunDir(Path(entry.path)).holds_run for entry in _entries(place)
    )


def _superseded(run: RunDir, ledger: Ledger) -> Iterator[Removable]:
    """Yield the directories of superseded attempts that are there, save what links lead to."""
    led_to = LedTo(run.outs)
    led_to.follow(run.results)
    led_to.follow(run.keeps)
    may_go = {attempt: None for attempt in superseded(ledger) if _is_there(run.out(attempt))}
    jobs = {attempt.job for attempt in may_go}
    stay = [each.id for job in jobs for each in ledger.jobs[job].attempts if each.id not in may_go]
    while stay:
        for attempt in stay:
            led_to.follow(run.out(attempt))
        stay = [attempt for attempt in may_go if str(attempt) in led_to]
        for attempt in stay:
            del may_go[attempt]
    yield from (Removable(run.out(attempt), 0, attempt) for attempt in may_go)


def _is_there(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(path) as entries:
        yield from entries


# ── Removal ───────────────────────────────────────────────────────────────────────────────────────

Step: TypeAlias = Callable[[str], object]


class Removed(Struct, frozen=True):
    """What became of a directory that was to go: `freed` bytes; `left`: why it is there, if so."""

    target: Removable
    freed: int = 0
    left: str = ""


def carry_out(plan: CleanPlan, step: Step = lambda name: None) -> Iterator[Removed]:
    """Remove what the plan has, and yield what became of each directory.

    A run that lives by now, or of which less may go, is left so. `step` is called with the name of
    each step that was done.
    """
    _mend_latest(plan)
    for target in plan.leftovers:
        yield _deleted(target, target.path)
    for one in plan.runs:
        yield from _cleaned(one, plan, step)


def _mend_latest(plan: CleanPlan) -> None:
    for home in plan.homes:
        find.mend_latest(home)


def _cleaned(look: RunLook, plan: CleanPlan, step: Step) -> Iterator[Removed]:
    """Remove what may still go of a run, and yield what became of each directory."""
    wanted = [target for target in look.targets if not target.obstacle]
    yield from (Removed(t, left=t.obstacle) for t in look.targets if t.obstacle)
    if not wanted:
        return
    gone: list[tuple[Removable, Path]] = []
    kept: dict[Path, Removed] = {}
    try:
        with _held(look.run):
            now = judged(look.run, plan.options, look.named)
            may_go = {target.path for target in now.targets}
            for target in wanted:
                if target.path not in may_go:
                    kept[target.path] = _kept(target, now.left or "it is needed by now")
                    continue
                try:
                    gone.append((target, vanish(target.path, step)))
                except OSError as error:
                    why = f"{typed(target.path)} cannot be removed: {error.strerror}"
                    kept[target.path] = _kept(target, why)
            if gone and plan.options.whole:
                _mend_latest(plan)
                step("mended")
    except (GpulaunchError, OSError) as error:
        done = {target.path for target, _ in gone} | kept.keys()
        kept |= {t.path: _kept(t, told_error(error)) for t in wanted if t.path not in done}
    yield from kept.values()
    for target, hidden in gone:
        yield _deleted(target, hidden)
        step("deleted")


def _kept(target: Removable, why: str) -> Removed:
    """Return that it is left, and why, unless another clean has removed it meanwhile."""
    return Removed(target, left=why if os.path.lexists(target.path) else "")


@contextmanager
def _held(run: RunDir) -> Iterator[None]:
    """Lock a run against `resume`. Raises GpulaunchError where another process has it."""
    refuse_elsewhere(run)
    with ControlServer(own_id(run)), claimed(run):
        yield


def _deleted(target: Removable, path: Path) -> Removed:
    """Delete what has vanished already; return what that has freed."""
    if target.obstacle:
        return Removed(target, left=target.obstacle)
    if left := delete(path):
        return Removed(target, max(0, target.bytes - weigh(str(path)).bytes), left)
    return Removed(target, target.bytes)


# ── Room on the disk of runs ──────────────────────────────────────────────────────────────────────

NEARLY_FULL = 0.1
"""The part of a disk below which what is free of it is little."""
LARGE = 1 << 30
"""Bytes from which on a run's directory is worth a line."""
LOOK_ENTRIES = 100_000
LOOK_SECONDS = 1.0
"""Files that are looked at, and seconds for which they are, at most, once a disk is nearly full."""

Disk = Callable[[str], os.statvfs_result]


class DiskRoom(Struct, frozen=True):
    """How much of a disk is free, in bytes and as a part of it."""

    free: int
    part: float

    def __str__(self) -> str:
        return f"{size(self.free)} ({self.part:.0%})".replace("%", " %")


def short_room(place: Path, disk: Disk = os.statvfs) -> DiskRoom | None:
    """Return what is free of the disk, where that is little; None where it is not, or unknown.

    Nothing is measured before a disk is nearly full, and then no more than a bound.
    """
    with suppress(OSError):
        found = disk(str(place))
        if found.f_blocks and found.f_bavail < NEARLY_FULL * found.f_blocks:
            return DiskRoom(found.f_bavail * found.f_frsize, found.f_bavail / found.f_blocks)
    return None


def short_room_told(run: RunDir, ledger: Ledger, disk: Disk = os.statvfs) -> str:
    """Return the line at a run's end on a disk that is nearly full; else "".

    What the run takes, what `gpulaunch clean` would free, and the command.
    """
    room = short_room(run.path, disk)
    if room is None:
        return ""
    whole = weigh(str(run.path), LOOK_ENTRIES, LOOK_SECONDS)
    if whole.bytes < LARGE:
        return ""
    left = _weigh_superseded(run, ledger)
    where = shell_word(typed(run.path))
    if left.bytes:
        mend = f"gpulaunch clean {where} would free {_told(left)}"
    else:
        mend = "old runs go with gpulaunch clean --runs --older 30d"
    return f"the disk is nearly full, {room} are left: this run takes {_told(whole)}; {mend}"


def _weigh_superseded(run: RunDir, ledger: Ledger) -> Weight:
    """Return what the superseded attempts have left, as far as it is looked at."""
    if run.outs.is_symlink():
        return Weight(0)  # it is on another disk, and none of it goes
    total, end = 0, time.monotonic() + LOOK_SECONDS
    for attempt in superseded(ledger):
        if (seconds := end - time.monotonic()) <= 0:
            return Weight(total, whole=False)
        total += weigh(run.out_dir(attempt), LOOK_ENTRIES, seconds).bytes
    return Weight(total)


def _told(weight: Weight) -> str:
    return f"{'' if weight.whole else 'at least '}{size(weight.bytes)}"


def find_lack_of_room(environ: Mapping[str, str], disk: Disk = os.statvfs) -> DoctorFinding | None:
    """Return what `gpulaunch doctor` says of the disk with the working directory's runs."""
    with suppress(OSError):
        if (here := runs(Path.cwd())) and (room := short_room(here[0].path.parent, disk)):
            where = typed(here[0].path.parent)
            what = f"the disk with {where} is nearly full: {room} are left"
            advice = "gpulaunch clean --dry-run, or gpulaunch clean --runs --older 30d --dry-run"
            return DoctorFinding("warning", what, f"{advice}, says what could go")
    return None
