"""A stage on which scripts run with stand-ins for their programs, and what they called there.

A stand-in (standin.c) says how it was called and ends when it is told. The conductor waits until
all that can start has started, notes which calls run side by side, and ends the first of them by
name. So the steps of a script are always the same, and show its order: what runs beside what.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.engines.environment import CACHES, MASTER, RANKS, THREADS

HERE = Path(__file__).parent
PROGRAMS = ["python", "python3", "torchrun", "trainer", "fold", "merge", "a", "b", "c"]
GPULAUNCH = """#!/bin/sh
# As `gpulaunch exec`, which keeps to the cards of a mask, and takes away ranks of another launcher.
[ "$1" = exec ] || exit 99
shift; count=1
if [ "$1" = -g ]; then count=$2; shift 2; fi
[ "$1" = -- ] || exit 98
shift
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then echo "gpulaunch: a mask is set" >&2; exit 97; fi
unset RANKS
export CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((count - 1)))
exec "$@"
""".replace("RANKS", " ".join(RANKS))
FILES = {
    "in/a.fasta": "",
    "in/b.fasta": "",
    "in/c.fasta": "",
    "in/d e.fasta": "",
    "list.txt": "x\ny z\n",
    "table.csv": "small,0.1,0\nlarge one,0.01,1\n",
    "settings.sh": "export SETTING=1\n",
    "venv/bin/activate": "",
    "out/b.done": "",
    "logs/old.log": "",
    "bin/sleep": '#!/bin/sh\necho >>"$STANDIN.slept"\nexec /bin/sleep 0.02\n',
    "bin/nvidia-smi": "#!/bin/sh\necho 'GPU 0'\necho 'GPU 1'\n",
}
OURS = {*THREADS, *MASTER, *CACHES, *(f"PET_{name}" for name in MASTER), "PYTHONUNBUFFERED"}
OF_SHELLS = {"_", "SHLVL", "PWD", "OLDPWD"}
CALM = 5
"""Looks in a row that find all processes asleep: nothing more starts then."""
SLEEPS = 15
"""Sleeps of a script that polls after which it has nothing more to start, if no call came."""


@dataclass(frozen=True, order=True)
class Call:
    """How a program was called. `cards`: how many its mask names, -1 without a mask."""

    words: tuple[str, ...]
    cards: int
    cwd: str
    files: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Step:
    """The calls that ran side by side, and the one that was ended then."""

    running: tuple[Call, ...]
    ended: Call


class Stage:
    """A directory with what scripts mention, and stand-ins for their programs."""

    def __init__(self, directory: Path, standin: Path, fails: str = "") -> None:
        self.path = directory
        self.fails = fails
        self.running: list[tuple[Call, socket.socket]] = []
        self.session = -1
        for name, text in FILES.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        for name in PROGRAMS:
            (directory / "bin" / name).hardlink_to(standin)
        (directory / "venv/bin/python").hardlink_to(standin)
        self.environ = {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "HOME": str(directory),
            "STANDIN": str(directory / "calls"),
            "LC_ALL": "C",
        }
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.environ["STANDIN"])
        self.listener.listen(100)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        for _, connection in self.running:
            connection.close()
        self.listener.close()

    def lay(self, name: str, text: str, mode: int = 0o644) -> None:
        """Write a file, and empty Python programs that it names."""
        (self.path / name).write_text(text)
        (self.path / name).chmod(mode)
        for program in re.findall(r"\b[\w./]+\.py\b", text):
            (self.path / program).touch()

    # ── calls ───────────────────────────────────────────────────────────────────────────────────

    def hear(self, seconds: float) -> bool:
        """Take in one new call, if there is one within so many seconds."""
        if not select.select([self.listener], [], [], seconds)[0]:
            return False
        connection, _ = self.listener.accept()
        parts = []
        while data := connection.recv(65536):
            parts.append(data)
        self.running.append((self._call(b"".join(parts).decode()), connection))
        self.running.sort(key=lambda pair: pair[0])
        return True

    def _call(self, message: str) -> Call:
        words, _, rest = message.partition("\0\0")
        cwd, *files, rest = rest.split("\0", 4)
        environ = dict(line.split("=", 1) for line in rest.split("\0") if "=" in line)
        mask = environ.pop("CUDA_VISIBLE_DEVICES", None)
        cards = -1 if mask is None else len([c for c in mask.split(",") if c and c != "-1"])
        kept = {
            name: value.replace(str(self.path), "HERE")
            for name, value in environ.items()
            if name not in OURS | OF_SHELLS
            and not name.startswith(("GPULAUNCH_", "CUDA_", "BASH_"))
        }
        there = (self._place(file) for file in files)
        words = words.replace(str(self.path), "HERE").replace("\x01", "")
        given = words.split("\0")
        named = (os.path.basename(given[0]), *given[1:])
        return Call(named, cards, self._place(cwd), tuple(there), tuple(sorted(kept.items())))

    def _place(self, path: str) -> str:
        ours = "gpulaunch-runs" in path or path == str(self.path / "said")
        inside = path.startswith(str(self.path)) and not ours
        return os.path.relpath(path, self.path) if inside else "-"

    def end(self, call: Call) -> None:
        """Let a call end; it fails if one of its words is the one that fails."""
        at = next(at for at, pair in enumerate(self.running) if pair[0] == call)
        connection = self.running.pop(at)[1]
        connection.send(b"\3" if self.fails and self.fails in call.words else b"\0")
        connection.close()

    def calls(self) -> tuple[Call, ...]:
        return tuple(call for call, _ in self.running)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────

    def steps(self, argv: Sequence[str]) -> tuple[list[Step], int]:
        """Run a command to its end; return its steps and its exit status."""
        found = []
        with self.begun(argv) as process:
            while self._settle(process) or self.running:
                if not self.running:
                    continue
                call = self.calls()[0]
                found.append(Step(self.calls(), call))
                self.end(call)
            return found, process.wait(60)

    def follow(self, argv: Sequence[str], expected: Sequence[Step]) -> int:
        """Run a command that is to take these steps; return its exit status."""
        with self.begun(argv) as process:
            for step in expected:
                until = time.monotonic() + 60
                while self._settle(process) is None or self.calls() != step.running:
                    extra = [call for call in self.calls() if call not in step.running]
                    assert not extra, f"started too early, or otherwise: {extra}\n{step.running}"
                    assert time.monotonic() < until, f"{self.calls()} instead of {step.running}"
                    assert process.poll() is None or self._processes(), process.returncode
                self.end(step.ended)
            while process.poll() is None:
                assert not self.hear(0.05), f"called too much: {self.calls()}"
            return process.returncode

    @contextmanager
    def begun(self, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        with open(self.path / "said", "wb") as said:
            process = subprocess.Popen(
                argv,
                cwd=self.path,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        self.session = process.pid
        try:
            yield process
        finally:
            for pid in self._processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def _settle(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until all has started that can; return whether the command still runs."""
        before: dict[int, str] = {}
        slept, gone, calm = self._slept(), 0, 0
        while True:
            ended = process.poll() is not None
            if self.hear(0):
                slept = self._slept()
                continue
            now = self._processes()
            asleep = all(state in "SZ" for state in now.values())
            # A process may be missed that a dying one has started while /proc was read.
            gone = gone + 1 if ended and not now else 0
            if gone > 2:
                return self.hear(0)
            # One that has just been started may sleep for a moment, or not be seen yet.
            calm = calm + 1 if now and asleep and now == before else 0
            if calm == CALM and not self.hear(0):
                return True
            calm %= CALM
            if self._slept() >= slept + SLEEPS and self.running:
                return True
            before = now
            if self.hear(0.01):
                calm = 0

    def _slept(self) -> int:
        """Count the sleeps of the script so far."""
        file = Path(self.environ["STANDIN"] + ".slept")
        return file.stat().st_size if file.exists() else 0

    def _processes(self) -> dict[int, str]:
        """Return the processes that the command has started, and their states.

        One that is about to execute a program has no environment: it is known by its session.
        """
        mark = f"STANDIN={self.environ['STANDIN']}".encode()
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError, IndexError):
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                ours = int(stat[3]) == self.session or int(stat[1]) in found
                if ours or mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found[int(name)] = stat[0]
        return {pid: state for pid, state in found.items() if state not in "ZX"}


def compiled(directory: Path) -> Path:
    """Return the stand-in, compiled."""
    program = directory / "standin"
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-O1", "-o", program, HERE / "standin.c"], check=True)
    return program


def with_wait(script: str) -> str:
    """Return a script that waits for what it has left in the background."""
    return re.sub(r"\n*\Z", "\nwait\n", script)
