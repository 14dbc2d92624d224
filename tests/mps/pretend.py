"""The pretend MPS as programs on a PATH, how it misbehaves, and what of it is alive."""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_name("nvidia_mps.py")
NAMES = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "mps-client")


class PretendMps:
    """`directory` is TMPDIR of what runs with `environ`, so that what is left there is seen."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "bin"
        self.tmp = directory / "tmp"
        self._how = directory / "how"
        self.programs.mkdir()
        self.tmp.mkdir()
        text = f"#!{sys.executable} -IS\n{SOURCE.read_text()}"
        for name in NAMES:
            path = self.programs / name
            path.write_text(text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def control(self) -> Path:
        return self.programs / NAMES[0]

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "TMPDIR": str(self.tmp),
            "FAKE_MPS": str(self._how),
        }

    def misbehave(self, *how: str) -> None:
        """Have it misbehave so, or with no word well; `nvidia_mps.py` has the words."""
        fresh = self._how.with_suffix(".new")
        fresh.write_text(" ".join(how))
        fresh.replace(self._how)

    def alive(self, *names: str) -> list[int]:
        """The PIDs of these programs, of all of them without names."""
        paths = {os.fsencode(self.programs / name) for name in names or NAMES}
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and paths & set(
                    (entry / "cmdline").read_bytes().split(b"\0")[:3]
                ):
                    found.append(int(entry.name))
        return found

    def daemons(self) -> list[int]:
        """The PIDs of control daemons."""
        return [pid for pid in self.alive(NAMES[0]) if b"-f" in _words(pid)]

    def left(self) -> list[str]:
        """What of MPS is left in TMPDIR."""
        return sorted(entry.name for entry in self.tmp.glob("gpulaunch-mps-*"))

    def end(self) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
