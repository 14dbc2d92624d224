"""The corpus: ends of logs as people posted them, re-typed and shortened, each with its class.

A file is a head of `key: value` lines, `---`, and the log's end, bytes as they were:

    source: org/repo#123        the public thread, or whose words they are
    status: 1                   an exit status; `signal 9`; `missing` (exit 0, outputs absent);
                                `timeout`
    class: gpu_oom              `-`: the status says all
    oom_kill: 1                 the kernel's counter rose
    full: /data                 a file system without room
    foreign: yes                others used the card's memory
    unseen: right               it came after the patterns were written, and this is what they said
                                of it then: right, missed (nothing), wrong (another class)
    still: missed               nothing is said of it, to this day
    succeeded: yes, hint: yes   it counts as success; a line says what its log says
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.core.model import Exited, MissingOutput, Outcome, Signaled, TimedOut
from gpulaunch.diagnose.failure.edge import Counters, Room
from gpulaunch.diagnose.failure.evidence import Evidence

HERE = Path(__file__).parent / "corpus"
HEADS = {
    "source",
    "status",
    "class",
    "oom_kill",
    "full",
    "foreign",
    "succeeded",
    "hint",
    "unseen",
    "still",
}


@dataclass(frozen=True)
class Case:
    name: str
    head: Mapping[str, str]
    log: str

    @property
    def expected(self) -> str:
        return self.head["class"]

    @property
    def evidence(self) -> Evidence:
        full = self.head.get("full")
        return Evidence(
            _outcome(self.head["status"]),
            self.log,
            succeeded=self.head.get("succeeded") == "yes",
            rises=Counters(int(self.head.get("oom_kill", "0")), 0),
            rooms=(Room(full, 0),) if full else (),
        )


def cases() -> tuple[Case, ...]:
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    for path in sorted(HERE.rglob("*.log")):
        head, _, log = path.read_bytes().decode().partition("\n---\n")
        pairs = dict(line.split(": ", 1) for line in head.split("\n"))
        assert set(pairs) <= HEADS, f"{path}: unknown keys {set(pairs) - HEADS}"
        yield Case(str(path.relative_to(HERE).with_suffix("")), pairs, log)


def _outcome(status: str) -> Outcome:
    if status == "missing":
        return MissingOutput(("out/x.cif",), Exited(0))
    if status == "timeout":
        return TimedOut("timeout", 3600.0)
    if status.startswith("signal "):
        return Signaled(int(status.removeprefix("signal ")))
    return Exited(int(status))
