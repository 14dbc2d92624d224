"""The installed command in a directory of its own, as a person at a terminal has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from click.testing import CliRunner

from gpulaunch.cli.status import status
from tests.cli.warm import WARM
from tests.gpus.fake import FakeDriver, own_leases
from tests.helpers import goes_along, held_by, wait_until

COMMAND = [sys.executable, "-m", "gpulaunch"]
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
"""A job's command that runs until the test writes the file `go`."""


@dataclass(frozen=True)
class Result:
    """What a command left: its exit status and what it printed where."""

    status: int
    out: str
    err: str


class Launcher:
    """Runs gpulaunch in `path`, with this process's environment and `environ` on top."""

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.path = path
        self.command = command
        self.environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GPULAUNCH_LEASED", "GPULAUNCH_RUN", "CUDA_", "PYTEST_"))
        }
        self.environ |= environ or {}

    def file(self, name: str, text: str) -> Path:
        """A file in the directory, its text dedented."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def __call__(self, *argv: str | Path, stdin: str = "", timeout: float = 120) -> Result:
        """Run to its end."""
        if self.command is COMMAND and WARM.suits(self.environ):
            return self._forked(list(map(str, argv)), stdin, timeout)
        done = subprocess.run(
            [*self.command, *map(str, argv)],
            cwd=self.path,
            env=self.environ,
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
            preexec_fn=goes_along(),
        )
        # Not `text=True`, which would turn carriage returns into new lines.
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _forked(self, argv: list[str], stdin: str, timeout: float) -> Result:
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            files = [file.fileno() for file in (given, out, err)]
            status = WARM.run(argv, self.path, self.environ, files, timeout)
            texts = [os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in files[1:]]
        return Result(status, *texts)

    @contextmanager
    def begun(self, *argv: str | Path) -> Iterator[subprocess.Popen[str]]:
        """The command in a process group of its own; killed at the end if it still lives."""
        process = subprocess.Popen(
            [*self.command, *map(str, argv)],
            cwd=self.path,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=goes_along(),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()

    # ── A run's directory ───────────────────────────────────────────────────────────────────────

    @property
    def run(self) -> Path:
        return (self.path / "gpulaunch-runs" / "latest").resolve()

    def status(self, run: Path | None = None) -> dict[str, Any]:
        """What `status --json` prints; in this process, since Python starts slowly."""
        result = CliRunner().invoke(status, [str(run or self.run), "--json"])
        assert result.exit_code == 0, repr(result.exception)
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def jobs(self, run: Path | None = None) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in self.status(run)["jobs"]}

    def states(self, run: Path | None = None) -> dict[str, str]:
        return {name: job["state"] for name, job in self.jobs(run).items()}

    def events(self, kind: str | None = None, run: Path | None = None) -> list[dict[str, Any]]:
        """The journal's lines so far, of one kind."""
        path = (run or self.run) / "events.jsonl"
        if not path.exists():
            return []
        whole = path.read_bytes().rpartition(b"\n")[0]
        lines = [json.loads(line) for line in whole.split(b"\n") if line]
        return [line for line in lines if kind is None or line["e"] == kind]

    def wait_for(self, kind: str, count: int = 1, run: Path | None = None) -> list[dict[str, Any]]:
        """The journal's events of a kind, once there are so many."""

        def enough() -> list[dict[str, Any]] | None:
            found = self.events(kind, run)
            return found if len(found) >= count else None

        return wait_until(enough, 60, f"{count} {kind} in {self.path}")

    def looked_at(self, process: subprocess.Popen[Any]) -> None:
        """Wait until a command that follows the run's journal has opened it."""
        journal = str(self.run / "events.jsonl")
        wait_until(lambda: journal in held_by(process.pid), 60, "the journal opened")

    def log(self, job: str, attempt: int = 1) -> str:
        return (self.run / "logs" / f"{job}.{attempt}.log").read_text()


class OnDriver(Launcher):
    """gpulaunch on a pretend driver's cards: as many as `--simulate`, which is left out, says."""

    def __init__(
        self, path: Path, driver: FakeDriver, environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(path, own_leases(driver) | dict(environ or {}))
        self._driver = driver

    def __call__(self, *argv: str | Path, stdin: str = "", timeout: float = 120) -> Result:
        return super().__call__(*self._found(argv), stdin=stdin, timeout=timeout)

    def begun(self, *argv: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
        return super().begun(*self._found(argv))

    def _found(self, argv: Sequence[str | Path]) -> list[str]:
        """Make the cards that are asked for; return the arguments without them."""
        words = list(map(str, argv))
        if "--simulate" in words:
            at = words.index("--simulate")
            for index in range(int(words[at + 1])):
                self._driver.card(index)
            del words[at : at + 2]
        return words
