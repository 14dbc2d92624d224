"""Where images are pulled in tests: pretend engines in a PATH of their own, and the helper process.

bench = Bench(tmp_path, "docker")
with bench.helper("docker", "lab/tool") as helper:
    assert helper.last["said"] == "ready"
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpulaunch.base import helper_process
from tests.helpers import wait_until

FAKES = Path(__file__).parent / "fakes"
MARKER = b"gpulaunch fake image\n"


def install(folder: Path, *engines: str) -> Path:
    """Put pretend engines, by name, into a directory for PATH. singularity is apptainer renamed."""
    folder.mkdir(exist_ok=True)
    for engine in engines:
        program = "apptainer" if engine == "singularity" else engine
        (folder / engine).symlink_to(FAKES / program)
    return folder


def image(path: Path, **of_it: Any) -> Path:
    """A file that the pretend apptainer takes for an image; see `fake_engine.py`."""
    path.write_bytes(MARKER + json.dumps(of_it).encode())
    return path


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False
    return state != "Z"


class PullHelper:
    """One helper process: what it says, line by line, and its end."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.link = link
        self._lines = link.makefile("rb")

    def said(self) -> dict[str, Any]:
        """What it says next; {} at its end."""
        line = self._lines.readline()
        return dict(json.loads(line)) if line else {}

    def everything(self) -> list[dict[str, Any]]:
        return [dict(json.loads(line)) for line in self._lines]

    def answer(self) -> dict[str, Any]:
        """`ready` or `failed`, as it says it."""
        while (said := self.said()) and said["said"] == "pulling":
            pass
        return said

    def hang_up(self) -> None:
        """Close the helper's standard input, all of it: its lines are not read any more."""
        self._lines.close()
        self.link.close()

    def close(self) -> None:
        self.hang_up()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Bench:
    """A directory with pretend engines, their images, the cache and the record of all calls."""

    def __init__(self, root: Path, *engines: str) -> None:
        self.root = root
        self.cache = root / "cache"
        self.store = root / "store"
        self.store.mkdir()
        self.hold = root / "hold"
        self.pids = root / "pids"
        self._record = root / "record"
        programs = install(root / "bin", *engines)
        # python3, which the pretend engines are run by, may be this one alone.
        path = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
        self.environ = {
            "PATH": path,
            "HOME": str(root),
            "FAKE_ENGINE_RECORD": str(self._record),
            "FAKE_ENGINE_STORE": str(self.store),
        }

    @property
    def calls(self) -> list[list[str]]:
        """The command lines so far, without the engine's name."""
        if not self._record.exists():
            return []
        return [json.loads(line)[1:] for line in self._record.read_text().splitlines()]

    @property
    def pulls(self) -> list[list[str]]:
        return [call for call in self.calls if call[0] in ("pull", "import")]

    def request(
        self, engine: str, image: str, pull: str = "missing", known: str = ""
    ) -> dict[str, str]:
        cache = str(self.cache)
        return {"engine": engine, "image": image, "pull": pull, "known": known, "cache": cache}

    @contextmanager
    def helper(
        self,
        engine: str,
        image: str,
        pull: str = "missing",
        known: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[PullHelper]:
        request = json.dumps(self.request(engine, image, pull, known))
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                helper_process.command("gpulaunch.containers.pulling", request),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={**self.environ, **(environ or {})},
            )
        helper = PullHelper(process, ours)
        try:
            yield helper
        finally:
            helper.close()

    def answer(
        self,
        engine: str,
        image: str,
        pull: str = "missing",
        known: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """What the helper says in the end: `ready` or `failed`."""
        with self.helper(engine, image, pull, known, environ) as helper:
            return helper.answer()

    def why(
        self,
        engine: str,
        image: str,
        pull: str = "missing",
        environ: Mapping[str, str] | None = None,
    ) -> str:
        answer = self.answer(engine, image, pull, environ=environ)
        assert answer["said"] == "failed", answer
        return str(answer["why"])

    def holding(self) -> dict[str, str]:
        """Variables with which a pull, once begun, waits for `go_on`."""
        if not self.hold.exists():
            os.mkfifo(self.hold)
        return {"FAKE_ENGINE_HOLD": str(self.hold), "FAKE_ENGINE_PIDS": str(self.pids)}

    def pulling(self) -> tuple[int, int]:
        """Wait until a pull has begun; return the PIDs of the client and of what it started."""
        line = wait_until(lambda: self.pids.exists() and self.pids.read_text().strip())
        client, child = map(int, str(line).split())
        return client, child

    def go_on(self) -> None:
        os.close(os.open(self.hold, os.O_WRONLY))
