"""Jobs that a carrier runs in containers, as keepers would start it."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.engines import programs
from tests.containers.daemons import BOX, PATIENCE, RealEngine, plain_environ
from tests.helpers import goes_along, wait_until
from tests.process.support import copied, marked, token

LINK = "/.gpulaunch/link"
KEEPER = "/.gpulaunch/keeper"
HURRIED = Path(__file__).with_name("hurried.py")


def bare_engine(folder: Path) -> RealEngine:
    """No container at all: the client is `inside`, and the carrier knows no difference."""
    own = folder / "own"
    own.mkdir()
    return RealEngine("bare", (), plain_environ(), own)


class Bench:
    """One engine, and the programs of agent where its user can read them."""

    def __init__(self, engine: RealEngine, keeper: Path) -> None:
        self.engine = engine
        self.agent = copied(engine.folder)
        self.keeper = self.agent / "native" / programs.PROGRAM.name
        shutil.copy(keeper, self.keeper)
        self.keeper.chmod(0o755)
        self.python = sys.executable if engine.account is None else python_for_all()
        self.numbers = itertools.count()

    @property
    def bare(self) -> bool:
        return not self.engine.client

    def job(self, *argv: str | bytes, **more: Any) -> Carried:
        """Start a carrier; see Carried."""
        return Carried(self, argv, **more)

    def run(self, *argv: str | bytes, **more: Any) -> Carried:
        """Run a job to its end."""
        job = self.job(*argv, **more)
        job.wait()
        return job

    def containers(self) -> list[str]:
        return [] if self.bare else self.engine.containers()


def python_for_all() -> str:
    """An interpreter that every user can start."""
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no Python that another user can start (/usr/bin/python3)")
    return "/usr/bin/python3"


@dataclass(frozen=True)
class Limit:
    """`starting.FIRST_LOOK` is to be so many seconds in this carrier, or `forks` so many forks."""

    name: str
    seconds: float


@contextmanager
def with_files(files: Mapping[int, int]) -> Iterator[Callable[[], None]]:
    """For `preexec_fn`: these descriptors, at these numbers."""
    bind = goes_along()
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500) for number, fd in files.items()}

    def begin() -> None:
        bind()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number, fd in high.items():
            os.dup2(fd, number)

    yield begin
    for fd in high.values():
        os.close(fd)


class Contained:
    """A job's record, and all that shows of the job: not yet its carrier.

    Every process of the job has `mark` in its environment, and `WORK`, the directory `work`, which
    is in the container at its own path. `start`, `remove`: in the place of the engine's, with the
    record's directory as their last argument. `argv`, `environ`: the carrier's.
    """

    def __init__(
        self,
        bench: Bench,
        argv: Sequence[str | bytes],
        image: str = BOX,
        env: Mapping[bytes | str, bytes | str] | None = None,
        unset: Sequence[str] = (),
        first: Sequence[str] = (),
        cwd: str = "/",
        options: Sequence[str] = (),
        warn: int | None = None,
        anyone: bool = False,
        cpus: Sequence[int] = (),
        limits: Sequence[Limit] = (),
        start: Sequence[str] | None = None,
        remove: Sequence[str] | None = None,
        engine: str = "",
    ) -> None:
        self.bench = bench
        self.mark = token()
        self.name = f"gl-{os.getpid()}-{next(bench.numbers)}"
        self.folder = bench.engine.folder / self.name
        self.work = bench.engine.folder / f"{self.name}-work"
        for each in (self.folder, self.work):
            each.mkdir(mode=0o700)
        self.log = self.work / "log"
        variables = {os.fsencode(k): os.fsencode(v) for k, v in (env or {}).items()}
        variables |= {b"MARK": os.fsencode(self.mark), b"WORK": os.fsencode(self.work)}
        record = self.record(image, options)
        record |= {
            "cwd": cwd,
            "unset": list(unset),
            "first": list(first),
            "warn": warn,
            "anyone": anyone,
            "cpus": list(cpus),
        }
        record |= {"inside": [os.fsdecode(name) for name in variables]}
        record |= {"start": [*start, str(self.folder)]} if start else {}
        record |= {"engine": engine} if engine else {}
        record |= {"remove": [*remove, str(self.folder)]} if remove else {}
        (self.folder / "record.json").write_text(json.dumps(record))
        for each in (self.folder, self.work):
            bench.engine.own(each)
        self.argv = [*self.program(limits), str(self.folder / "record.json"), *argv]
        self.environ = {b"GPULAUNCH_INSIDE_" + k: v for k, v in variables.items()}

    def record(self, image: str, options: Sequence[str]) -> dict[str, Any]:
        engine = self.bench.engine
        client = [*engine.client]
        record: dict[str, Any] = {"engine": engine.name, "name": self.name, "image": image}
        if self.bench.bare:
            inside = [str(self.bench.keeper), "inside", str(self.folder / "socket")]
            return record | {"start": inside, "remove": ["true"], "answers": ["true"]}
        start = [*client, "run", "--rm", "--sig-proxy=false", "--name", self.name]
        start += ["--entrypoint", KEEPER]
        for source, place in ((self.bench.keeper, KEEPER), (self.folder, LINK)):
            start.append(f"--mount=type=bind,src={source},dst={place}")
        start.append(f"--mount=type=bind,src={self.work},dst={self.work}")
        return record | {
            "start": [*start, *engine.options, *options, image, "inside", f"{LINK}/socket"],
            "remove": [*client, "rm", "--force", self.name],
            "answers": [*client, "version"],
        }

    def program(self, limits: Sequence[Limit]) -> list[str]:
        main = str(self.bench.agent / "__main__.py")
        if not limits:
            return [self.bench.python, "-I", "-S", main, "container"]
        hurried = self.bench.agent / HURRIED.name
        shutil.copy(HURRIED, hurried)
        hurried.chmod(0o644)
        told = [f"{limit.name}={limit.seconds}" for limit in limits]
        return [self.bench.python, "-I", "-S", str(hurried), *told, main, "container"]

    def text(self) -> str:
        return self.log.read_bytes().decode("utf-8", "backslashreplace")

    def lines(self) -> list[str]:
        """The carrier's own."""
        return [line for line in self.text().splitlines() if line.startswith("gpulaunch: ")]

    def file(self, name: str) -> Path:
        return self.work / name

    def await_file(self, name: str) -> str:
        """What the job wrote into a file of its working directory, once it has."""
        path = self.file(name)
        return wait_until(lambda: path.exists() and path.read_text(), PATIENCE, f"{name} is there")

    def alive(self) -> list[int]:
        """Processes of the job, the carrier included."""
        return sorted({*marked(self.mark), *marked(self.mark, "environ")})

    def gone(self) -> bool:
        """Whether no process and no container of it is left."""
        return not self.alive() and self.name not in self.bench.containers()

    def await_gone(self) -> None:
        with suppress(ProcessLookupError):
            wait_until(self.gone, PATIENCE, f"nothing of {self.name} is left")

    def cleared(self) -> bool:
        """Whether the record is gone too, with its directory."""
        return self.gone() and not self.folder.exists()


class Carried(Contained):
    """A job and its carrier. `files`: descriptors by their numbers, beside the streams; a terminal
    becomes the carrier's own.
    """

    def __init__(
        self,
        bench: Bench,
        argv: Sequence[str | bytes],
        files: Mapping[int, int] | None = None,
        streams: int | None = None,
        stdin: int = subprocess.DEVNULL,
        **more: Any,
    ) -> None:
        super().__init__(bench, argv, **more)
        with self.log.open("ab") as log, with_files(files or {}) as begin:
            self.process = bench.engine.popen(
                self.argv,
                env=self.environ,
                start_new_session=True,
                close_fds=False,
                preexec_fn=begin,
                stdin=stdin,
                stdout=streams or log,
                stderr=streams or log,
            )

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
