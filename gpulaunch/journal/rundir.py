"""A run's directory. Only this module spells its paths; `journal.find` finds runs.

    gpulaunch-runs/           or where `runs:` of the configuration puts it
      latest -> NAME-20261120-074215
      NAME-20261120-074215/     (mode 0700)
        jobs.yaml jobs.2.yaml (.txt: a list of commands) manifest.json events.jsonl metrics.db
        joblog.tsv report.html
        logs/JOB.1.log  out/JOB.1/  results/JOB -> ../out/JOB.1  keep/JOB/  ends/
        inputs/records/JOB.fasta  inputs/batches/JOB/
        containers/  of attempts that run in one, while they run
        mps/gpu-0.1/  what a card's Multi-Process Service says of itself
        programs.1/  gpulaunch's programs that jobs use, while the run lives
        slurm/  on a cluster: see `engines/slurm/records.py`

A job's name is a file name as it is (spaces, any script, leading dashes), so paths are handed on
as they are, never through a shell. Reads no journal, decides nothing about a run's state.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import force_setattr

from gpulaunch.base.errors import UsageError
from gpulaunch.base.text import shell_word
from gpulaunch.core.model import AttemptId
from gpulaunch.jobfile.config import place_of_runs, source_of_runs
from gpulaunch.journal import codec
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.manifest import RUNS as RUNS
from gpulaunch.journal.manifest import Manifest

LATEST = "latest"
QUEUE = "queue"
"""What a user's queue is called, and its first directory."""
OWN_ENTRIES = frozenset(
    {
        *("manifest.json", "events.jsonl", "joblog.tsv", "report.html", "supervisor.log"),
        *("metrics.db", "metrics.db-wal", "metrics.db-shm", "metrics.db-journal"),
        *("logs", "out", "results", "keep", "ends", "inputs", "slurm"),
        *("containers", "cache", "mps", "shims", "preload"),
    }
)
"""What a run's directory may hold, besides copies of the job file and drafts."""
_OWN_COPIES = re.compile(
    r"jobs(\.\d+)?\.(yaml|txt)|programs\.\d+|\.(new|gpulaunch-removed)-[0-9a-f]+"
)

LIST = ".txt"
"""The ending of a copy of a list of commands."""
_STAMP = "%Y%m%d-%H%M%S"
_NAME_BYTES = 200


def new_run_id(when: datetime) -> str:
    """Return a new run's id, unique among the runs of a machine: `20261120-074215-3fa9c1`."""
    return f"{when.strftime(_STAMP)}-{os.urandom(3).hex()}"


def queue_dirs(environ: Mapping[str, str] = os.environ) -> list[RunDir]:
    """Return the directories of this user's queue that hold a run, the newest first.

    They are `queue`, `queue-2`, `queue-3` and so on. If none holds a run, the first is returned.

    The place is $XDG_STATE_HOME, or ~/.local/state. Source: the XDG base directory specification,
    by which a relative path is ignored.
    """
    given = environ.get("XDG_STATE_HOME", "")
    state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    first = RunDir(Path(os.path.realpath(state)) / "gpulaunch" / QUEUE)
    there = [first, *map(RunDir, first.path.parent.glob(f"{QUEUE}-*"))]
    numbered = {number: run for run in there if (number := _queue_number(run))}
    found = [numbered[number] for number in sorted(numbered, reverse=True)]
    return [run for run in found if run.holds_run] or [first]


def queue_dir() -> RunDir:
    """Return the directory in which this user's queue goes on: the newest."""
    return queue_dirs()[0]


def next_queue_dir(run: RunDir) -> RunDir:
    """Return the directory that comes after this one of a queue."""
    return RunDir(run.path.with_name(f"{QUEUE}-{_queue_number(run) + 1}"))


def _queue_number(run: RunDir) -> int:
    """Return the number of a queue's directory; 0 if it is none."""
    found = re.fullmatch(f"{QUEUE}(-([1-9][0-9]{{0,8}}))?", run.path.name)
    return int(found[2] or 1) if found else 0


def home_of_runs(cwd: Path) -> Path:
    """Return the directory in which runs that are begun in `cwd` are kept."""
    return place_of_runs(cwd) or cwd / RUNS


class Below:
    """A path below a run's directory, as an attribute of the latter."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, run: RunDir, owner: type[RunDir]) -> Path:
        return run.path.joinpath(*self._parts)


class RunDir(Struct, frozen=True):
    """The paths of one run. `path` is absolute. Constructing one touches no file."""

    path: Path

    def __post_init__(self) -> None:
        force_setattr(self, "path", Path(os.path.abspath(self.path)))

    @classmethod
    def create(cls, cwd: Path, name: str, when: datetime, explicit: Path | None = None) -> RunDir:
        """Make a new run's directory: `explicit`, or NAME-DATE-TIME in `home_of_runs(cwd)`.

        Raises UsageError where `explicit` holds a run already, or none can be made.
        """
        try:
            if explicit is not None:
                run = cls(cwd / explicit)
                run._take()
            else:
                run = cls._fresh(home_of_runs(cwd), f"{file_name(name)}-{when.strftime(_STAMP)}")
            for directory in (run.logs, run.outs, run.results, run.ends):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            source = source_of_runs() if explicit is None else ""
            raise UsageError(
                f"{source}no run directory can be made at {error.filename}: {error.strerror}"
            ) from None
        return run

    # ── Its paths ───────────────────────────────────────────────────────────────────────────────

    @property
    def root(self) -> Path:
        """The directory itself, as people are to type it."""
        return self.path

    manifest = Below("manifest.json")
    events = Below("events.jsonl")
    metrics = Below("metrics.db")
    joblog = Below("joblog.tsv")
    report = Below("report.html")
    logs = Below("logs")
    outs = Below("out")
    keeps = Below("keep")
    """The directories that jobs' attempts share, once a job uses one."""
    results = Below("results")
    ends = Below("ends")
    containers = Below("containers")
    """What stands for the containers of attempts that run in one."""
    mps = Below("mps")
    """What the control daemons of CUDA's Multi-Process Service say, once there was one."""
    inputs = Below("inputs")
    """The inputs that gpulaunch makes for jobs (records, batches), once a job needs some."""

    def jobs_file(self, number: int = 1, is_list: bool = False) -> Path:
        """Return the copy of the job file, or list, that was read for the `number`-th time."""
        ending = LIST if is_list else ".yaml"
        return self.path / (f"jobs{ending}" if number == 1 else f"jobs.{number}{ending}")

    def newest_jobs_file(self) -> Path:
        """Return the copy of the job file that was read last; its ending says what it is."""
        number = max(1, self._read_so_often())
        return self.jobs_file(number, os.path.lexists(self.jobs_file(number, is_list=True)))

    def next_jobs_file(self, is_list: bool = False) -> Path:
        """Return where the next copy of the job file goes, or the first one.

        A run that counted as none may have left earlier ones.
        """
        return self.jobs_file(self._read_so_often() + 1, is_list)

    def _read_so_often(self) -> int:
        number = 0
        while any(os.path.lexists(self.jobs_file(number + 1, one)) for one in (False, True)):
            number += 1
        return number

    def log(self, attempt: AttemptId) -> Path:
        return Path(self.log_file(attempt))

    def log_file(self, attempt: AttemptId) -> str:
        """Return the log's path as text: a Path is a tenth of what starting an attempt costs."""
        return f"{self.path}/logs/{_checked(attempt.job)}.{attempt.number}.log"

    def out(self, attempt: AttemptId) -> Path:
        return Path(self.out_dir(attempt))

    def out_dir(self, attempt: AttemptId) -> str:
        """Return the path of the attempt's `{{out}}` as text, for the same reason."""
        return f"{self.path}/out/{_checked(attempt.job)}.{attempt.number}"

    def keep_dir(self, job: str) -> str:
        """Return the path of the job's `{{keep}}`, which outlives its attempts, as text."""
        return f"{self.path}/keep/{_checked(job)}"

    def keep(self, job: str) -> Path:
        return Path(self.keep_dir(job))

    def result(self, job: str) -> Path:
        return self.results / _checked(job)

    def end(self, attempt: AttemptId) -> Path:
        return self.ends / f"{_checked(attempt.job)}.{attempt.number}"

    def record(self, job: str) -> Path:
        """Return the FASTA file with this job's one record."""
        return self.inputs / "records" / f"{_checked(job)}.fasta"

    def batch(self, job: str) -> Path:
        """Return the directory with links to this job's items."""
        return self.inputs / "batches" / _checked(job)

    def container(self, attempt: AttemptId) -> Path:
        """Return the directory of what stands for the attempt's container, while there is one."""
        return self.containers / f"{_checked(attempt.job)}.{attempt.number}"

    def programs(self, epoch: int) -> Path:
        """Return the copy of gpulaunch's programs that a launcher of the run makes."""
        return self.path / f"programs.{epoch}"

    # ── What is done to them ────────────────────────────────────────────────────────────────────

    @property
    def holds_run(self) -> bool:
        """True where a first event was recorded; before that, the directory holds no run."""
        try:
            found = os.stat(self.events)
        except PermissionError:
            return True
        except (OSError, ValueError):  # nothing there, no such path, or none that could be
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0

    def own_entries(self) -> list[str]:
        """Return the names of what is in the directory and the run's own. Raises OSError."""
        return sorted(filter(_is_own, os.listdir(self.path)))

    def strange_entries(self) -> list[str]:
        """Return the names of what is in the directory and not the run's. Raises OSError."""
        return sorted(name for name in os.listdir(self.path) if not _is_own(name))

    def taken(self) -> str:
        """Return the words for a new run that cannot be made here, as a run is here already."""
        return (
            f"{self.path} already holds a run: name another directory, or go on with that run:"
            f" gpulaunch resume {shell_word(str(self.path))}"
        )

    def link_result(self, attempt: AttemptId) -> None:
        """Point `results/JOB` to the attempt's `{{out}}`, in one step. Raises OSError."""
        _link(self.result(attempt.job), f"../out/{attempt}")

    def make_latest(self) -> None:
        """Point `latest`, beside the run, to it, unless that fails (a directory has that name)."""
        with contextlib.suppress(OSError):
            _link(self.path.parent / LATEST, self.path.name)

    def read_manifest(self) -> Manifest:
        """Return the run's manifest. Raises UsageError where it is absent or damaged."""
        return manifests.read(self.manifest)

    def _take(self) -> None:
        self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
        if self.holds_run:
            raise UsageError(self.taken())
        if not os.listdir(self.path):
            self.path.chmod(0o700)  # a directory with other files of the user's stays as it is

    @classmethod
    def _fresh(cls, runs: Path, stem: str) -> RunDir:
        runs.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            run = cls(runs / (stem if number == 1 else f"{stem}-{number}"))
            try:
                run.path.mkdir(mode=0o700)  # fails for the second of two in one second
                return run
            except FileExistsError:
                number += 1


def file_name(name: str) -> str:
    """Return `name` as the beginning of a file name: no `/`, control character or leading dot."""
    safe = re.sub(r"[/\x00-\x1f\x7f]", "_", name)
    safe = re.sub(r"^\.", "_", safe) or "run"
    return os.fsencode(safe)[:_NAME_BYTES].decode(errors="ignore")


def _is_own(name: str) -> bool:
    return name in OWN_ENTRIES or _OWN_COPIES.fullmatch(name) is not None


def _checked(job: str) -> str:
    # The job file's names are checked when it is read; a journal may be anybody's.
    if not codec.is_file_name(job):
        raise ValueError(f"a job's name must be a file name, found {job!r}")
    return job


def _link(link: Path, target: str) -> None:
    draft = link.with_name(f".new-{os.urandom(4).hex()}")
    os.symlink(target, draft)
    try:
        os.replace(draft, link)
    except OSError:
        os.unlink(draft)
        raise
