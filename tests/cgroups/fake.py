"""A pretend tree of cgroups: plain files where the kernel has its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class FakeKernel:
    """`/proc` and a mounted hierarchy, below a directory; `own` is this process's cgroup."""

    def __init__(self, path: Path, version: int, own: str, root: str = "/") -> None:
        self.proc, self.mount = path / "proc", path / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        kind, options = ("cgroup", "rw,memory") if version == 1 else ("cgroup2", "rw")
        names = "4:memory:" if version == 1 else "0::"
        self.version = version
        (self.proc / "self/cgroup").write_text(f"2:cpu,cpuacct:/else\n{names}{own}\n")
        mount = str(self.mount).replace(" ", "\\040")
        line = f"32 24 0:29 {root} {mount} rw,nosuid - {kind} {kind} {options}\n"
        (self.proc / "self/mountinfo").write_text(
            "24 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + line
        )
        (self.proc / "meminfo").write_text("MemTotal:       1000000 kB\nMemFree: 5 kB\n")
        self.group(".")

    def group(
        self,
        path: str,
        limit: str = "max",
        controllers: Sequence[str] = ("memory", "pids"),
        handed_on: Sequence[str] = (),
    ) -> Path:
        """Make a cgroup with the kernel's files in it."""
        made = self.mount / path
        made.mkdir(parents=True, exist_ok=True)
        (made / "cgroup.procs").touch()
        if self.version == 1:
            (made / "memory.limit_in_bytes").write_text(f"{limit}\n")
        else:
            (made / "memory.max").write_text(f"{limit}\n")
            (made / "cgroup.controllers").write_text(" ".join(controllers) + "\n")
            (made / "cgroup.subtree_control").write_text(" ".join(handed_on) + "\n")
        return made
