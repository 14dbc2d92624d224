"""A launcher that is killed while jobs are added to it: nothing is lost, and nothing is doubled.

GPULAUNCH_TEST_KILLS=200 kills it so many times at each moment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "2"))
KILLED = """
import os, signal, sys
from gpulaunch.run.supervisor import Supervisor
from gpulaunch.cli import main
from gpulaunch.core.events import Relisted, Submitted

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

take, post = Supervisor.take, Supervisor.post
at = sys.argv.pop(1)
def first(event):
    return isinstance(event, Submitted)  # the run's own jobs, at its start

if at == "before it is recorded":
    Supervisor.take = lambda self, e, *rest: take(self, e, *rest) if first(e) else die()
elif at == "once it is recorded":
    Supervisor.post = lambda self, e: die() if isinstance(e, Relisted) else post(self, e)
elif at == "before it is answered":
    Supervisor.take = lambda self, e, facts, told: take(self, e, facts, told if first(e) else die)
sys.exit(main())
"""
LIST = "jobs: [{name: long, run: 'until [ -e go ]; do sleep 0.05; done', gpus: 0}]"


class Killed(Launcher):
    """A launcher whose supervisor dies when something is added to it, at that moment."""

    def dies(self, at: str) -> Launcher:
        return Launcher(self.path, self.environ, [sys.executable, "-c", KILLED, at])


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    launcher = Killed(tmp_path)
    launcher.file("jobs.yaml", LIST)
    return launcher


@pytest.mark.parametrize(
    ("at", "added"),
    [
        ("before it is recorded", False),
        ("once it is recorded", True),
        ("before it is answered", True),
    ],
)
def test_the_adder_knows_whether_it_is_in_the_list(killed: Killed, at: str, added: bool) -> None:
    names: list[str] = []
    for number in range(KILLS):
        words = ["resume"] if number else ["run", "jobs.yaml"]
        with killed.dies(at).begun(*words, "--simulate", "1") as process:
            killed.wait_for("attempt_started", number + 1)
            result = killed("add", "-g", "0", "--name", f"x-{number}", "--needs", "long", "true")
            assert process.wait(60) == -signal.SIGKILL
        if added:
            assert (result.status, result.out) == (0, f"x-{number}\n"), result.err
            assert "added, but the run ended at once: gpulaunch resume" in result.err
            names.append(f"x-{number}")
        else:
            assert result.status == 2
            assert "ended before it answered" in result.err
    killed.file("go", "")
    assert killed("resume").status == 0
    jobs = killed.jobs()
    assert sorted(jobs) == sorted(["long", *names])
    assert all(len(jobs[name]["attempts"]) == 1 for name in names)


def test_killed_at_any_moment_it_has_what_it_said_it_has_and_each_once(killed: Killed) -> None:
    rng = random.Random(KILLS)
    said: Counter[str] = Counter()
    for number in range(KILLS):
        words = ["resume"] if number else ["run", "jobs.yaml"]
        with killed.begun(*words, "--simulate", "1") as process:
            killed.wait_for("attempt_started", number + 1)
            recorded = len(killed.events("jobs_given"))
            adders = [killed.begun("add", "-g", "0", "--needs", "long", "true") for _ in range(4)]
            begun = [adder.__enter__() for adder in adders]
            recorded += rng.randrange(len(adders))
            if recorded:
                killed.wait_for("jobs_given", recorded)
            process.send_signal(signal.SIGKILL)
            for adder, each in zip(adders, begun, strict=True):
                said.update(each.communicate(timeout=60)[0].split())
                adder.__exit__(None, None, None)
    killed.file("go", "")
    assert killed("resume").status == 0
    jobs = killed.jobs()
    assert Counter(jobs.keys() - {"long"}) == said
    assert all(len(jobs[name]["attempts"]) == 1 for name in said)


@pytest.mark.parametrize("number", range(KILLS))
def test_an_adder_that_is_killed_has_added_all_or_nothing(killed: Killed, number: int) -> None:
    killed.file("more.yaml", "jobs: [{name: 'm-{{i}}', matrix: {i: [1, 2, 3]}, run: 'true'}]")
    with killed.begun("run", "jobs.yaml", "--simulate", "1") as process:
        killed.wait_for("attempt_started")
        with killed.begun("add", "more.yaml") as adder:
            if number % 2:
                wait_until(lambda: killed.events("jobs_given") or adder.poll() is not None, 60)
            adder.kill()
            adder.communicate()
        assert killed("add", "-g", "0", "--wait", "true").status == 0, "the run is none the worse"
        killed.file("go", "")
        process.communicate(timeout=60)
    names = {name for name in killed.jobs() if name.startswith("m-")}
    assert names in (set(), {"m-1", "m-2", "m-3"})
