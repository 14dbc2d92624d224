"""A run's directory: the one speller of every path in it, and how runs are found.

    gpulaunch-runs/
      latest -> NAME-20261120-074215
      NAME-20261120-074215/     (mode 0700)
        jobs.yaml jobs.2.yaml manifest.json events.jsonl metrics.db joblog.tsv report.html
        logs/JOB.1.log  out/JOB.1/  results/JOB -> ../out/JOB.1  ends/JOB.1
        inputs/records/JOB.fasta  inputs/batches/JOB/
        slurm/{node.py,keeper.py,batch.sh,held}  slurm/batches/BATCH.json  slurm/said/
        slurm/tickets/JOB.1.json  slurm/starts/JOB.1  slurm/stops/JOB.1

A job's name is a file name as it is (spaces, any script, leading dashes), so paths are handed on
as they are, never through a shell. Reads no journal, decides nothing about a run's state.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpulaunch.core.model import AttemptId
from gpulaunch.errors import UsageError
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.manifest import Manifest

RUNS = "gpulaunch-runs"
LATEST = "latest"
_STAMP = "%Y%m%d-%H%M%S"
_NAME_BYTES = 200


def new_run_id(when: datetime) -> str:
    """`20261120-074215-3fa9c1`: unique among the runs of a machine."""
    return f"{when.strftime(_STAMP)}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class RunDir:
    """Every path of one run. `path` is absolute. Making one touches no file."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))

    @classmethod
    def create(cls, cwd: Path, name: str, when: datetime, explicit: Path | None = None) -> RunDir:
        """A new run's directory: `explicit`, or NAME-DATE-TIME under `cwd`/gpulaunch-runs.

        Raises UsageError where `explicit` holds a run already, or none can be made.
        """
        try:
            if explicit is not None:
                run = cls(cwd / explicit)
                run._take()
            else:
                run = cls._fresh(cwd / RUNS, f"{file_name(name)}-{when.strftime(_STAMP)}")
            for directory in (run.logs, run.outs, run.results, run.ends):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"no run directory can be made at {error.filename}: {error.strerror}"
            ) from None
        if explicit is None:
            run._make_latest()
        return run

    # ── Its paths ───────────────────────────────────────────────────────────────────────────────

    @property
    def root(self) -> Path:
        """The directory itself, as people are to type it."""
        return self.path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.db"

    @property
    def joblog(self) -> Path:
        return self.path / "joblog.tsv"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def outs(self) -> Path:
        return self.path / "out"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def ends(self) -> Path:
        return self.path / "ends"

    @property
    def inputs(self) -> Path:
        """What gpulaunch makes for jobs to read; there when a job needs it."""
        return self.path / "inputs"

    def jobs_file(self, number: int = 1) -> Path:
        """The job file as it was read for the `number`-th time."""
        return self.path / ("jobs.yaml" if number == 1 else f"jobs.{number}.yaml")

    def newest_jobs_file(self) -> Path:
        """The job file as it was read last."""
        return self.jobs_file(self._read_so_often())

    def next_jobs_file(self) -> Path:
        """Where the job file goes when it is read once more."""
        return self.jobs_file(self._read_so_often() + 1)

    def _read_so_often(self) -> int:
        number = 1
        while os.path.lexists(self.jobs_file(number + 1)):
            number += 1
        return number

    def log(self, attempt: AttemptId) -> Path:
        return self.logs / f"{_checked(attempt.job)}.{attempt.number}.log"

    def out(self, attempt: AttemptId) -> Path:
        return self.outs / f"{_checked(attempt.job)}.{attempt.number}"

    def result(self, job: str) -> Path:
        return self.results / _checked(job)

    def end(self, attempt: AttemptId) -> Path:
        return self.ends / f"{_checked(attempt.job)}.{attempt.number}"

    def record(self, job: str) -> Path:
        """The FASTA file with this job's one record."""
        return self.inputs / "records" / f"{_checked(job)}.fasta"

    def batch(self, job: str) -> Path:
        """The directory with links to this job's items."""
        return self.inputs / "batches" / _checked(job)

    # What a run on a Slurm cluster has beside: see `process/nodeside.py`.

    @property
    def slurm(self) -> Path:
        """What the client and the nodes leave each other; there in a run on a cluster."""
        return self.path / "slurm"

    @property
    def node_program(self) -> Path:
        """The shim that runs on a node; its keeper lies beside it."""
        return self.slurm / "node.py"

    @property
    def batch_script(self) -> Path:
        return self.slurm / "batch.sh"

    @property
    def batch_lists(self) -> Path:
        return self.slurm / "batches"

    @property
    def tickets(self) -> Path:
        return self.slurm / "tickets"

    @property
    def starts(self) -> Path:
        return self.slurm / "starts"

    @property
    def stops(self) -> Path:
        return self.slurm / "stops"

    @property
    def said(self) -> Path:
        """What Slurm and the shim themselves have to say, a file per batch and index."""
        return self.slurm / "said"

    @property
    def seen(self) -> Path:
        """Made by a node: it sees the directory, and can write there."""
        return self.slurm / "seen"

    @property
    def held(self) -> Path:
        """Attempts that are held in Slurm's queue, since the run was paused."""
        return self.slurm / "held"

    def batch_list(self, batch: str) -> Path:
        """Which attempts a batch is of, in the order of the array."""
        return self.batch_lists / f"{_checked(batch)}.json"

    def batch_id(self, batch: str) -> Path:
        """Slurm's number of the batch, once that is known."""
        return self.batch_lists / f"{_checked(batch)}.id"

    def ticket(self, attempt: AttemptId) -> Path:
        return self.tickets / f"{_checked(attempt.job)}.{attempt.number}.json"

    def start(self, attempt: AttemptId) -> Path:
        return self.starts / f"{_checked(attempt.job)}.{attempt.number}"

    def stop(self, attempt: AttemptId) -> Path:
        return self.stops / f"{_checked(attempt.job)}.{attempt.number}"

    # ── What is done to them ────────────────────────────────────────────────────────────────────

    @property
    def holds_run(self) -> bool:
        """Something was recorded; a launcher killed before its first event leaves no run."""
        try:
            return os.stat(self.events).st_size > 0
        except FileNotFoundError:
            return False
        except PermissionError:
            return True

    def taken(self) -> str:
        """What to say when a new run was to be put here."""
        return (
            f"{self.path} already holds a run: name another directory, or go on with that run:"
            f" gpulaunch resume {shlex.quote(str(self.path))}"
        )

    def link_result(self, attempt: AttemptId) -> None:
        """Point `results/JOB` to the attempt's `{{out}}`, in one step. Raises OSError."""
        target = os.path.join("..", self.outs.name, self.out(attempt).name)
        _link(self.result(attempt.job), target)

    def read_manifest(self) -> Manifest:
        """Raises UsageError where it is absent or damaged."""
        return manifests.read(self.manifest)

    def _take(self) -> None:
        self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
        if self.holds_run:
            raise UsageError(self.taken())
        if not os.listdir(self.path):
            self.path.chmod(0o700)  # one that the user keeps other things in stays as it is

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

    def _make_latest(self) -> None:
        try:
            _link(self.path.parent / LATEST, self.path.name)
        except OSError:
            return  # something of the user's has that name: runs are found without the link


def file_name(name: str) -> str:
    """`name` as the beginning of a file name: no `/`, control character or leading dot."""
    safe = re.sub(r"[/\x00-\x1f\x7f]", "_", name)
    safe = re.sub(r"^\.", "_", safe) or "run"
    return os.fsencode(safe)[:_NAME_BYTES].decode(errors="ignore")


# ── Finding runs ────────────────────────────────────────────────────────────────────────────────


def runs(cwd: Path) -> list[RunDir]:
    """The runs under `cwd`/gpulaunch-runs, newest first."""
    found = [run for run in _directories(cwd / RUNS) if run.holds_run]
    return sorted(found, key=_age, reverse=True)


def find(run: str | None, cwd: Path) -> RunDir:
    """The run that a directory, a name or a run id names; None: the newest under `cwd`.

    Of several runs of one name it is the newest. Raises UsageError, saying what was looked for.
    """
    if run is None:
        if found := runs(cwd):
            return found[0]
        raise UsageError(f"there is no run under {cwd / RUNS}: name a run's directory")
    given = RunDir(Path(os.path.realpath(cwd / run)))
    if given.holds_run:
        return given
    have = runs(cwd)
    for candidate in have:
        if run in _names(candidate):
            return candidate
    if run == LATEST and have:
        return have[0]
    raise UsageError(_not_found(run, given, cwd, have))


def newest_of(job_file: Path, cwd: Path) -> RunDir | None:
    """The newest run of this job file under `cwd`, if there is one."""
    return next(runs_of(job_file, cwd), None)


def runs_of(job_file: Path, cwd: Path) -> Iterator[RunDir]:
    """The runs of this job file under `cwd`, newest first."""
    wanted = os.path.realpath(job_file)
    for run in runs(cwd):
        manifest = _manifest(run)
        if manifest and manifest.job_file and os.path.realpath(manifest.job_file) == wanted:
            yield run


def before(run: RunDir) -> RunDir | None:
    """The newest run of the same job file that was begun before this one, where it was begun."""
    this = _manifest(run)
    if this is None or not this.job_file:
        return None
    wanted = os.path.realpath(this.job_file)
    for other in runs(Path(this.cwd)):
        manifest = _manifest(other)
        if manifest is None or not manifest.job_file or manifest.started >= this.started:
            continue
        if os.path.realpath(manifest.job_file) == wanted:
            return other
    return None


def _directories(base: Path) -> Iterator[RunDir]:
    try:
        with os.scandir(base) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield RunDir(Path(entry.path))
    except OSError:
        return


def _manifest(run: RunDir) -> Manifest | None:
    try:
        return run.read_manifest()
    except UsageError:
        return None


def _age(run: RunDir) -> tuple[str, str]:
    """Sorts by when the run was begun; one whose manifest is lost by its directory's name."""
    manifest = _manifest(run)
    if manifest is not None:
        return manifest.started, run.path.name
    stamp = re.search(r"-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)(-\d+)?$", run.path.name)
    return ("{}-{}-{}T{}:{}:{}".format(*stamp.groups()) if stamp else ""), run.path.name


def _names(run: RunDir) -> tuple[str, ...]:
    manifest = _manifest(run)
    return (run.path.name, manifest.name, manifest.run) if manifest else (run.path.name,)


def _not_found(run: str, given: RunDir, cwd: Path, have: list[RunDir]) -> str:
    if given.path.is_dir():
        return f"{given.path} is a directory, but holds no run: it has no events.jsonl"
    newest = ", ".join(each.path.name for each in have[:3])
    there = f"newest there: {newest}" if have else "none is there"
    return (
        f"no run {run!r}: there is no directory {given.path}, and no run of that name or id"
        f" under {cwd / RUNS} ({there})"
    )


def _checked(job: str) -> str:
    # The job file's names are checked when it is read; a journal may be anybody's.
    if not job or "/" in job or "\0" in job or job in (".", ".."):
        raise ValueError(f"a job's name must be a file name, found {job!r}")
    return job


def _link(link: Path, target: str) -> None:
    draft = link.with_name(f".new-{secrets.token_hex(4)}")
    os.symlink(target, draft)
    try:
        os.replace(draft, link)
    except OSError:
        os.unlink(draft)
        raise
