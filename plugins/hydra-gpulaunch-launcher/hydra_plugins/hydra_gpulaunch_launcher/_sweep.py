"""A sweep as one run of gpulaunch: a job file for the jobs so far, and what came of each.

    launch ─▶ files in RUN/hydra ─▶ gpulaunch.run.run, or resume for a further batch ─▶ JobReturns

RUN/hydra/ holds sweep.yaml (the job file) and jobs.csv (a row a job, with its overrides as values),
both for gpulaunch; jobs.json and pickles, for `_job`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shlex import quote
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, setup_globals
from omegaconf import DictConfig, OmegaConf

from gpulaunch.base.errors import GpulaunchError, JobFileError
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import parse_span, several
from gpulaunch.executor import transfer
from gpulaunch.journal.find import typed
from gpulaunch.run import Choices, RunOptions, resume, run
from hydra_plugins.hydra_gpulaunch_launcher import _job, _job_file
from hydra_plugins.hydra_gpulaunch_launcher._job_file import LaunchError
from hydra_plugins.hydra_gpulaunch_launcher._observer import SweepObserver
from hydra_plugins.hydra_gpulaunch_launcher._returns import job_return

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction

    from gpulaunch.run.options import RunEnd

log = logging.getLogger(__name__)


class Sweep:
    """The jobs of one sweep, and the run that they are in, once there is one."""

    def __init__(
        self,
        context: HydraContext,
        function: TaskFunction,
        config: DictConfig,
        options: Mapping[str, Any],
    ) -> None:
        self._context = context
        self._function = function
        self._config = config
        self._options = {name: _plain(value) for name, value in options.items()}
        self._name = _job_file.clean(str(config.hydra.job.name))
        self._run: Path | None = None
        self._jobs: dict[int, dict[str, Any]] = {}
        self._rows: list[dict[str, str]] = []

    def launch(self, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Run jobs numbered from `first` on to their ends; return what each came to.

        Raises LaunchError where none could be started. A signal that stops the run is raised once
        more when the run is closed, as if Hydra itself had got it.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        Path(str(self._config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        log.info(f"gpulaunch runs {several(len(overrides), 'job')}")
        batch = {first + place: list(one) for place, one in enumerate(overrides)}
        for number, one in batch.items():
            log.info(f"\t#{number} : {' '.join(filter_overrides(one))}")
        if not batch:
            return []
        try:
            _job.refuse_masks(self._config)
            end = self._run_batch(batch)
        except JobFileError as error:
            raise LaunchError(_job_file.as_options(error)) from None
        except GpulaunchError as error:
            raise LaunchError(_job_file.with_options(f"gpulaunch: {error}")) from None
        if end.status > 128:
            log.warning(f"to go on with these jobs: gpulaunch resume {quote(typed(end.path))}")
            signal.raise_signal(end.status - 128)
        return [job_return(end, self._job_name(n), n, one) for n, one in batch.items()]

    def _run_batch(self, batch: Mapping[int, list[str]]) -> RunEnd:
        """Run the jobs in the sweep's run: in a new one, if that has jobs of these numbers."""
        simulate = self._options["simulate"]
        if simulate is not None and simulate < 1:
            raise LaunchError(f"hydra.launcher.simulate: expected at least 1, found {simulate}")
        options = RunOptions(Choices(simulate=simulate), wait=_seconds(self._options["wait"]))
        goes_on = self._run is not None and not self._jobs.keys() & batch.keys()
        observer = SweepObserver(log, first=not goes_on)
        if self._run is None or not goes_on:
            self._jobs, self._rows = {}, []
            self._run = _new_directory(Path(str(self._options["run_dir"])))
            try:
                file = self._write(self._run / "hydra", batch)
                return run(file, options, observer, run_dir=self._run, new=True)
            except BaseException:
                if not (self._run / "events.jsonl").exists():
                    shutil.rmtree(self._run, ignore_errors=True)
                    self._run = None
                raise
        self._write(self._run / "hydra", batch)
        # Of these jobs alone: what failed before, the sweeper knows as failed.
        return resume(self._run, options, observer, among={*map(self._job_name, batch)})

    def _job_name(self, number: int | str) -> str:
        return f"{self._name}-{number}"

    # ── The files ───────────────────────────────────────────────────────────────────────────────

    def _write(self, place: Path, batch: Mapping[int, list[str]]) -> Path:
        """Write what the run and its jobs read, for these jobs too; return the job file."""
        call = self._pickled()
        name = f"{hashlib.blake2b(call, digest_size=6).hexdigest()}.pickle"
        self._jobs |= {n: {"call": name, "overrides": one} for n, one in batch.items()}
        self._rows += [_job_file.row(n, one) for n, one in batch.items()]
        text = _job_file.job_file(
            self._options, self._name, self._job_name(f"{{{{{_job_file.NUMBER}}}}}"), place
        )
        file = place / "sweep.yaml"
        with _told_of(place):
            place.mkdir(exist_ok=True)
            if not (place / name).exists():
                replace_file(place / name, call)
            replace_file(place / _job.JOBS, json.dumps(self._jobs).encode())
            replace_file(place / _job_file.TABLE, _job_file.table(self._rows).encode())
            replace_file(file, text)
        return file

    def _pickled(self) -> bytes:
        """Return what all jobs of a batch need, but for their own overrides."""
        call = {
            "context": self._context,
            "config": self._config,
            "function": self._function,
            "singletons": Singleton.get_state(),
            "by_name": _by_name(),
        }
        try:
            packed = transfer.packed(call, to_worker=True)
        except Exception as error:
            raise LaunchError(
                "hydra/launcher=gpulaunch: the jobs cannot be sent what they need of this program,"
                f" as that cannot be pickled: {error}"
            ) from error
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return pickle.dumps((path, sys.argv)) + packed


def _by_name() -> tuple[frozenset[str], bytes]:
    """Return the names of the program's own functions and classes, and these packed.

    The configuration may have any of them as text (`_target_: __main__.Net`), of which the task
    function shows nothing. What cannot be pickled is left out of the second.
    """
    own = {
        name: value
        for name, value in vars(sys.modules["__main__"]).items()
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__"
    }
    try:
        return frozenset(own), transfer.packed(own, to_worker=True)
    except Exception:
        sent = {name: value for name, value in own.items() if _can_be_packed(value)}
        return frozenset(own), transfer.packed(sent, to_worker=True)


def _can_be_packed(value: object) -> bool:
    try:
        transfer.packed(value, to_worker=True)
    except Exception:
        return False
    return True


def _new_directory(path: Path) -> Path:
    """Make the directory of a new run: this one, or, as it is there, this with a number."""
    path = path.absolute()
    names: Iterable[Path] = (
        path.with_name(f"{path.name}-{number}") if number > 1 else path for number in count(1)
    )
    with _told_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for one in names:
            try:
                one.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return one
    raise AssertionError("the numbers have no end")


@contextmanager
def _told_of(place: Path) -> Iterator[None]:
    """Raise LaunchError where the directory, or a file in it, cannot be written."""
    try:
        yield
    except OSError as error:
        text = f"hydra.launcher.run_dir: {typed(place)} cannot be written: {error.strerror}"
        raise LaunchError(text) from None


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _seconds(wait: object) -> float | None:
    try:
        return None if wait is None else parse_span(str(wait))
    except ValueError as error:
        raise LaunchError(f"hydra.launcher.wait: {error}") from None
