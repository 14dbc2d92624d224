"""Whole runs on a real cluster whose programs are wrapped by what fails in every way, at random.

Whatever the wrappers say: each job is begun once, none is lost, each run ends with what its jobs
came to. GPULAUNCH_TEST_WRAPPED says how many histories are played (1; the release figure is 60),
GPULAUNCH_TEST_SEED from which on. What a wrapper did is in `trouble/calls` beside the run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from msgspec import Struct

from gpulaunch.engines.programs import FOLDER
from tests.cli.launcher import Launcher
from tests.helpers import wait_until
from tests.slurm import wrapper
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import launcher_on
from tests.slurm.test_runs import SLURM, left, lines

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("GPULAUNCH_TEST_WRAPPED", "1"))
FIRST = int(os.environ.get("GPULAUNCH_TEST_SEED", "1"))
TROUBLED = 40.0
"""Seconds after which the programs are as they should be, so that every history ends soon."""
LONGEST = 240.0
WRAPPED = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")

# A minute of patience becomes seconds, and a node's signs of life as much more frequent.
HASTY = """
from pathlib import Path
from gpulaunch.engines.slurm import commands, outcome, script, standstill, submission
from gpulaunch.engines.programs import archived
outcome.NFS_VISIBILITY_TIMEOUT = 8.0
submission.OUTAGE_RETRY_DELAY = standstill.FIRST_RESUBMIT_DELAY = 0.3
submission.MAX_RESUBMIT_DELAY = standstill.MAX_RESUBMIT_DELAY = 4.0
commands.Slurm.__init__.__defaults__ = (4.0,)
script.archived = lambda before: archived(before, Path({programs!r}))
from gpulaunch.cli import main
raise SystemExit(main())
"""
HASTY_NODES = (
    ("node/attempt.py", "BEAT = 15.0", "BEAT = 1.0"),
    ("node/run.py", "LOOK = 5.0", "LOOK = 0.5"),
)
# Never beside another of its kind, whichever attempt that is of.
BODY = """\
exec 9>>"locks/{job}"; flock -n 9 || {{ echo "{job} twice at once" >> ran; exit 9; }}
echo "{{{{job}}}} {{{{attempt}}}} begins" >> ran; sleep {seconds}
echo "{{{{job}}}} {{{{attempt}}}} ends" >> ran; exit {code}"""


class Wanted(Struct, frozen=True):
    """A job: what it needs, how long it takes, and its exit code."""

    name: str
    needs: str
    seconds: float
    code: int
    gpus: int


def drawn(chance: random.Random) -> dict[str, Wanted]:
    names = [f"j{number}" for number in range(chance.randint(2, 7))]
    found = {}
    for place, name in enumerate(names):
        needs = chance.choice(names[:place]) if place and chance.random() < 0.4 else ""
        seconds, code = chance.choice((0.2, 1.0, 4.0, 12.0)), chance.choice((0, 0, 0, 3))
        found[name] = Wanted(name, needs, seconds, code, chance.randint(0, 2))
    return found


def job_file(wanted: dict[str, Wanted]) -> str:
    """What the wrappers alone keep from starting is tried again."""
    retries = {"times": 50, "on": ["not_started", "lost"]}
    listed = []
    for job in wanted.values():
        run = BODY.format(job=job.name, seconds=job.seconds, code=job.code)
        one = {"name": job.name, "run": run, "gpus": job.gpus, "retries": retries}
        listed.append(one | ({"needs": [job.needs]} if job.needs else {}))
    return json.dumps({"jobs": listed})


def wrapped(cluster: Cluster, at: Path, seed: int, rate: float) -> Launcher:
    """gpulaunch beside the cluster, whose programs fail at that rate."""
    here, programs = at / "trouble", at / "programs"
    for folder in (here / "bin", at / "locks"):
        folder.mkdir(parents=True)
    real = {name: shutil.which(name, path=cluster.environ["PATH"]) for name in WRAPPED}
    trouble = {"seed": seed, "rate": rate, "until": time.time() + TROUBLED, "programs": real}
    (here / "trouble.json").write_text(json.dumps(trouble))
    for name in WRAPPED:
        call = f'exec {sys.executable} -I -S {wrapper.__file__} {here} {name} "$@"'
        (here / "bin" / name).write_text(f"#!/bin/sh\n{call}\n")
        (here / "bin" / name).chmod(0o755)
    shutil.copytree(FOLDER, programs)
    for name, slow, hasty in HASTY_NODES:
        text = (programs / name).read_text()
        assert slow in text, f"no {slow} in {name}"
        (programs / name).write_text(text.replace(slow, hasty))
    patched = HASTY.format(programs=str(programs))
    launcher = launcher_on(cluster, at, [sys.executable, "-c", patched])
    launcher.environ["PATH"] = f"{here / 'bin'}:{launcher.environ['PATH']}"
    return launcher


def played(launcher: Launcher, chance: random.Random, wanted: dict[str, Wanted]) -> set[str]:
    """The run, with launchers that are killed on the way, to its end. Who was cancelled."""
    cancelled: set[str] = set()
    end = time.monotonic() + LONGEST
    command = ("run", "jobs.yaml", *SLURM, "--quiet")
    for event in [*chance.choices(("kill", "cancel"), k=chance.choice((0, 0, 1, 3))), ""]:
        with launcher.begun(*command) as process:
            wait_until(lambda: launcher.events("run_started") or process.poll() is not None, 60)
            try:
                process.wait(chance.uniform(0, 9) if event else end - time.monotonic())
            except subprocess.TimeoutExpired:
                assert event, f"not over within {LONGEST:g} s: {launcher.states()}"
                if event == "cancel":
                    cancelled.add(name := chance.choice(sorted(wanted)))
                    launcher("cancel", "-r", launcher.run, name)
                process.send_signal(signal.SIGKILL)
                process.wait()
                command = ("resume", "--quiet")
            else:
                assert process.returncode in (0, 1), process.stderr and process.stderr.read()
                break
    return cancelled


def check(launcher: Launcher, wanted: dict[str, Wanted], cancelled: set[str]) -> None:
    """What is told of each job is what came of it."""
    ran, states = lines(launcher.path / "ran"), launcher.states()
    assert not [line for line in ran if line.endswith("twice at once")], ran
    begun = Counter(line.split()[0] for line in ran if line.endswith("begins"))
    ended = Counter(line.split()[0] for line in ran if line.endswith("ends"))
    for name, job in wanted.items():
        state, good = states[name], not job.code
        if name in cancelled:
            assert begun[name] <= 1
            assert state in ("cancelled", "succeeded", "failed", "skipped")
        elif job.needs and states[job.needs] != "succeeded":
            assert (state, begun[name]) == ("skipped", 0)
        else:
            assert state == ("succeeded" if good else "failed"), (name, launcher.jobs()[name])
            assert (begun[name], ended[name]) == (1, 1), (name, ran)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + HISTORIES))
def test_random_histories_on_a_real_cluster(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    wanted = drawn(chance)
    launcher = wrapped(cluster, tmp_path, seed, chance.choice((0.1, 0.3, 0.6)))
    launcher.file("jobs.yaml", job_file(wanted))
    cancelled = played(launcher, chance, wanted)
    check(launcher, wanted, cancelled)
    # What is still in the queue begins nothing any more.
    before = lines(tmp_path / "ran")
    wait_until(lambda: not cluster.command("squeue", "-h"), 60, "nothing of it is left")
    assert lines(tmp_path / "ran") == before
    assert not left(launcher)
