"""Whole runs whose jobs share cards by memory, on the pretend driver.

Its processes have memory: a job says how much it takes and waits; the test tells the driver of all
that there are, has a job run out of memory where a card has no more, and lets it end once the run
has seen what it takes.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until

CARD = 24 * GIB
TAKES = f"""\
import os, sys, time
name, gib = sys.argv[1], int(sys.argv[2])
claim = f"claims/{{os.getpid()}}"
open(claim + ".new", "w").write(f"{{name}} {{os.environ['GPULAUNCH_GPU_INDEX']}} {{gib * {GIB}}}")
os.rename(claim + ".new", claim)
while not os.path.exists(f"told/{{os.getpid()}}"):
    time.sleep(0.01)
if open(f"told/{{os.getpid()}}").read() == "full":
    sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB")
"""


@pytest.fixture
def launcher(on_cards: Launcher) -> Launcher:
    on_cards.file("takes.py", TAKES)
    for name in ("claims", "told"):
        (on_cards.path / name).mkdir()
    return on_cards


class Cards:
    """The memory of the cards, as the jobs' processes take it. `most`: at once on a card."""

    def __init__(self, launcher: Launcher, driver: FakeDriver, cards: int) -> None:
        self.launcher, self.driver = launcher, driver
        self.held: dict[int, tuple[str, int, int]] = {}
        self.most: Counter[int] = Counter()
        for index in range(cards):
            driver.card(index, total=CARD, used=0)
        self.cards = range(cards)

    def look(self) -> None:
        """Take in who came and who went, and tell the driver; tell jobs what became of them."""
        for claim in (self.launcher.path / "claims").glob("*[0-9]"):
            pid = int(claim.name)
            if pid not in self.held and not self._told(pid).exists():
                name, index, memory = claim.read_text().split()
                self._take(pid, name, int(index), int(memory))
        for pid in [pid for pid in self.held if not Path(f"/proc/{pid}").exists()]:
            del self.held[pid]
        self._publish()
        self._let_go()

    def _take(self, pid: int, name: str, index: int, memory: int) -> None:
        self.held[pid] = name, index, memory
        if sum(held for _, on, held in self.held.values() if on == index) > CARD:
            there = [pid for pid, (_, on, _) in self.held.items() if on == index]
            largest = max(there, key=lambda pid: self.held[pid][2])
            del self.held[largest]
            self._told(largest).write_text("full")
        self.most[index] = max(
            self.most[index], sum(on == index for _, on, _ in self.held.values())
        )

    def _publish(self) -> None:
        told: dict[int, list[tuple[int, int]]] = {index: [] for index in self.cards}
        for pid, (_, index, memory) in self.held.items():
            told[index].append((pid, memory))
        self.driver.hold(told)

    def _let_go(self) -> None:
        """Let those end of which the run knows what they take."""
        if not self.held:
            return
        jobs = self.launcher.jobs()
        for pid, (name, _, memory) in self.held.items():
            seen = jobs[name]["attempts"][-1]["peak_gpu_memory"] if jobs[name]["attempts"] else 0
            if (seen or 0) >= memory:
                self._told(pid).write_text("enough")

    def _told(self, pid: int) -> Path:
        return self.launcher.path / "told" / str(pid)


@pytest.fixture
def finished(launcher: Launcher, driver: FakeDriver) -> Any:
    """Runs a job file to its end on so many cards of 24 GiB, while they are looked after."""

    def run(jobs: str, cards: int, *options: str) -> tuple[int, Cards]:
        launcher.file("jobs.yaml", jobs)
        looked_after = Cards(launcher, driver, cards)
        with launcher.begun("run", "jobs.yaml", *options) as process:

            def over() -> bool:
                with suppress(FileNotFoundError, AssertionError):
                    looked_after.look()
                return process.poll() is not None

            wait_until(over, 300, "the end of the run")
            return process.returncode, looked_after

    return run


def promised(launcher: Launcher, job: str) -> list[int]:
    """GiB that each attempt of a job was promised beside others, 0 where it was alone."""
    attempts = launcher.jobs()[job]["attempts"]
    return [round((each["promised_gpu_memory"] or 0) / GIB) for each in attempts]


def test_eight_unlike_jobs_are_packed_on_two_cards_by_what_they_were_promised(
    launcher: Launcher, finished: Any
) -> None:
    sizes = {"a": 16, "b": 12, "c": 10, "d": 8, "e": 6, "f": 4, "g": 4, "h": 2}
    jobs = "".join(
        f"  - {{name: {name}, share: true, gpu_memory: {gib}GiB,"
        f" run: [{sys.executable}, takes.py, {name}, '{gib}']}}\n"
        for name, gib in sizes.items()
    )
    status, cards = finished(f"jobs:\n{jobs}", 2)
    assert status == 0
    assert set(launcher.states().values()) == {"succeeded"}
    assert all(len(job["attempts"]) == 1 for job in launcher.jobs().values()), "none out of memory"
    assert [promised(launcher, name) for name in sizes] == [[gib] for gib in sizes.values()]
    assert min(cards.most.values()) >= 2
    on: dict[str, tuple[str, int]] = {}
    for event in launcher.events():
        if event["e"] == "attempt_launched":
            on[event["job"]] = event["gpus"][0], event["promised"]
        elif event["e"] == "attempt_ended":
            del on[event["job"]]
        for card in {card for card, _ in on.values()}:
            assert sum(size for where, size in on.values() if where == card) <= CARD


def test_memory_is_learned_from_the_first_and_out_of_memory_teaches_more(
    launcher: Launcher, finished: Any
) -> None:
    sizes = {"s1": 6, "s2": 6, "s3": 6, "big": 15, "t1": 6}
    rows = "".join(f"{name},{gib}\n" for name, gib in sizes.items())
    launcher.file("sizes.csv", f"who,gib\n{rows}")
    jobs = f"""\
    jobs:
      - name: "{{{{who}}}}"
        foreach: {{csv: sizes.csv}}
        share: true
        run: {sys.executable} takes.py {{{{who}}}} {{{{gib}}}}
    """
    status, cards = finished(jobs, 1)
    assert status == 0, launcher.states()
    assert cards.most[0] >= 2
    assert promised(launcher, "s1") == [0], "nothing was known, and it had its card alone"
    assert promised(launcher, "s2") == promised(launcher, "s3") == [7]
    first, second = launcher.jobs()["big"]["attempts"]
    assert (first["failure"], second["failure"]) == ("gpu_oom", None)
    assert promised(launcher, "big") == [7, 0], "it went again on a card alone"
    ends = [e for e in launcher.events("attempt_ended") if e["job"] == "big"]
    assert not any(end.get("charged") for end in ends), "with no retries, it cost none"
    assert ends[-1]["end"]["gpu_memory"] == 15 * GIB

    told = launcher("check", "jobs.yaml")
    assert "shares its card: 18 GiB promised (15 GiB at most in earlier runs); 1 fit" in told.out
    report = (launcher.run / "report.html").read_text()
    assert "What did sharing cards gain?" in report
    status, _ = finished(jobs, 1, "--new")
    assert status == 0
    assert promised(launcher, "s1") == [18], "an earlier run taught it"
