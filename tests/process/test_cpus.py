"""A job runs on the CPUs that its launch names, with all that it starts; through both keepers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpulaunch.core.model import Exited, NotStarted
from gpulaunch.engines.client import AttemptOver, Spawner
from tests.process.support import Slot
from tests.process.test_workers import Bench

ALLOWED = sorted(os.sched_getaffinity(0))
NOWHERE = 4000
"""No machine of the tests has this CPU."""
SHOW = "print(*sorted(os.sched_getaffinity(0)))"
PROGRAM = f"import os; {SHOW}"
NOTE = "the CPUs near its card were not allowed any more: it ran on those that were"


def said(slot: Slot, *cpus: int) -> tuple[AttemptOver, list[int]]:
    ended = slot.run("sh", "-c", f'true; {sys.executable} -c "{PROGRAM}"', cpus=cpus)
    return ended, [int(word) for word in slot.log.read_text().split()]


def test_a_job_and_what_it_starts_run_on_its_cpus(slot: Slot) -> None:
    for cpu in ALLOWED:
        ended, cpus = said(slot, cpu)
        assert (ended.end.outcome, ended.note, cpus) == (Exited(0), "", [cpu])
    assert said(slot)[1] == ALLOWED, "the next one on the pair has all of them again"


def test_cpus_that_are_gone_are_left_out(slot: Slot) -> None:
    ended, cpus = said(slot, ALLOWED[-1], NOWHERE)
    assert (ended.note, cpus) == ("", ALLOWED[-1:])


def test_a_job_none_of_whose_cpus_is_left_runs_and_a_note_says_so(slot: Slot) -> None:
    for number in (NOWHERE, 70_000, 10**17):
        ended, cpus = said(slot, number)
        assert (ended.end.outcome, ended.note, cpus) == (Exited(0), NOTE, ALLOWED)


def test_a_job_that_cannot_be_started_there_either_says_why_it_cannot(slot: Slot) -> None:
    ended = slot.run("/no/program", cpus=(NOWHERE,))
    assert ended.end.outcome == NotStarted("there is no program /no/program")


def test_a_worker_stays_on_the_cpus_with_which_it_was_started(
    spawner: Spawner, tmp_path: Path
) -> None:
    with Bench(spawner, tmp_path) as bench:
        for cpus in (ALLOWED[-1:], ALLOWED[:1]):
            bench.do("print('on', *os.sched_getaffinity(0))", cpus=tuple(cpus))
            line = next(line for line in bench.log.read_text().splitlines() if "on " in line)
            assert line.split()[-1] == str(ALLOWED[-1])
