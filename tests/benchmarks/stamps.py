"""The job that is launched, again and again, and what its stamps say of the launcher.

It is a C program of a few lines, so that its own start is as short as a program's can be; where
there is no C compiler, a Python script.
"""

from __future__ import annotations

import heapq
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

SCRIPT = """
import sys, time
began = time.monotonic_ns()
time.sleep(float(sys.argv[2]))
with open(sys.argv[1], "a") as file:
    file.write(f"{began} {time.monotonic_ns()}\\n")
"""


def build(place: Path) -> list[str]:
    """The program's first words; FILE and SECONDS follow."""
    if compiler := shutil.which("cc"):
        source = Path(__file__).with_name("stamp.c")
        subprocess.run([compiler, "-O1", "-o", place / "stamp", source], check=True)
        return [str(place / "stamp")]
    (place / "stamp.py").write_text(SCRIPT)
    return [sys.executable, "-I", "-S", str(place / "stamp.py")]


@dataclass(frozen=True, slots=True)
class Stamps:
    """Each job's begin and end, in monotonic nanoseconds, by begin."""

    rows: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, file: Path) -> Stamps:
        lines = file.read_text().splitlines() if file.exists() else []
        rows = (tuple(map(int, line.split())) for line in lines)
        return cls(tuple(sorted((row[0], row[1]) for row in rows)))

    def gaps_ms(self, slots: int) -> list[float]:
        """From a job's last instruction to the first of the one that took its slot, each."""
        free: list[int] = []
        gaps = []
        for number, (began, ended) in enumerate(self.rows):
            if number >= slots:
                gaps.append((began - heapq.heappop(free)) / 1e6)
            heapq.heappush(free, ended)
        return gaps

    @property
    def per_second(self) -> float:
        """Jobs a second, from the first one's begin to the last one's end."""
        span = max(ended for _, ended in self.rows) - self.rows[0][0]
        return len(self.rows) / (span / 1e9)


def middle(values: list[float]) -> float:
    return round(median(values), 3)


def spread(values: list[float]) -> dict[str, float]:
    """The median, and what nine of ten stay below."""
    tenths = quantiles(values, n=10)
    return {"median": middle(values), "p90": round(tenths[-1], 3)}
