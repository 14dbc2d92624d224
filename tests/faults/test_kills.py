"""The supervisor SIGKILLed at random moments: nothing survives, nothing is lost, nothing twice.

GPULAUNCH_TEST_KILLS says how often (6; the release figure is 200).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from gpulaunch.agent.proc import state_of
from tests.cli.launcher import Launcher
from tests.executor import script
from tests.faults.test_stopping import alive
from tests.gpus.fake import TAKES, FakeDriver
from tests.helpers import wait_until
from tests.process.support import TRACED, children_of, marked, token

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "6"))
NASTY = Path(__file__).parents[1] / "process" / "nasty.c"
GRACE = 0.5
MODES = ["daemons", "ignore-term", "tree", "stopped", "slow-hopper", "daemons-exit"]
WORK = """
    import os, time

    def act(item):
        held = os.environ["FAKE_NVML_STATE"] + ".held/" + os.environ["GPULAUNCH_GPU_INDEX"]
        with open(f"{held}.{os.getpid()}", "w") as file:
            file.write(str(1 << 30))
        time.sleep(0.02)
        if item["n"] == "7" and item.attempt == "1":
            os._exit(1)
"""
"""An item that is killed has memory on its card; one of them ends its worker."""
"""Either finishes what the other began: a supervisor may be resumed on another machine."""


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that daemonises, ignores SIGTERM, stops itself and forks."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to build the nasty program with")
    program = tmp_path_factory.mktemp("nasty") / "nasty"
    subprocess.run([compiler, "-O1", "-o", program, NASTY], check=True)
    return program


def test_killed_at_random_moments_the_list_is_completed_exactly_once(
    on_cards: Launcher, driver: FakeDriver, nasty: Path
) -> None:
    launcher = on_cards
    for index in range(4):
        driver.card(index, drain=0.05)
    launcher.file(
        "jobs.yaml",
        f"""
        defaults: {{grace: {GRACE}}}
        jobs:
          - name: "{{{{item}}}}"
            foreach: {{values: [{", ".join(MODES)}]}}
            run: |
              {nasty} {{{{item}}}} & sleep 0.4
          - name: ok-{{{{n}}}}
            matrix: {{n: [{", ".join(map(str, range(24)))}]}}
            run: |
              {TAKES}
              sleep 0.05
              echo {{{{n}}}} >> {launcher.path}/done
          - name: item-{{{{n}}}}
            matrix: {{n: [{", ".join(map(str, range(24)))}]}}
            worker: made.py:act
            retries: 1
        """,
    )
    launcher.file("made.py", WORK)
    generator = random.Random(os.environ.get("GPULAUNCH_TEST_SEED", "7"))
    for kill in range(KILLS):
        status, said = _run_for(launcher, generator.uniform(0, 0.6))
        run = launcher.events()[0]["run"]
        wait_until(
            lambda run=run: not (alive(run) or executing(nasty)),
            what=f"no survivors of kill {kill}",
        )
        if status is not None:
            assert status == 0, said
            _check_exactly_once(launcher)
            shutil.rmtree(launcher.path / "gpulaunch-runs")
            (launcher.path / "done").unlink()
    if launcher.events():
        result = launcher("resume", "--quiet")
        assert result.status == 0, result.err
        _check_exactly_once(launcher)


def _run_for(launcher: Launcher, seconds: float) -> tuple[int | None, str]:
    """Begin or resume the run and kill it so long after it has begun to work.

    Its exit status and words where it was done before that, else (None, "").
    """
    before = len(launcher.events())
    command = ("resume",) if before else ("run", "jobs.yaml")
    with launcher.begun(*command, "--quiet") as process:
        wait_until(lambda: len(launcher.events()) > before + 1 or process.poll() is not None)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None, ""
        assert process.stderr is not None
        return status, process.stderr.read()


def executing(program: Path) -> list[int]:
    """Processes that execute this program, whatever they did to their names and environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "exe") == str(program):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _check_exactly_once(launcher: Launcher) -> None:
    """Every job succeeded, and once a success was recorded nothing of it ran again."""
    assert set(launcher.states().values()) == {"succeeded"}
    done: set[str] = set()
    launched: dict[str, int] = {}
    for event in launcher.events():
        if event["e"] == "attempt_launched":
            job = event["job"]
            assert job not in done, f"{job} ran again after it had succeeded"
            launched[job] = launched.get(job, 0) + 1
        elif event["e"] == "job_settled" and event["state"] == "succeeded":
            done.add(event["job"])
    numbers = Counter((launcher.path / "done").read_text().split())
    for number, count in numbers.items():
        assert count <= launched[f"ok-{number}"]
    assert len(numbers) == 24


# ── Over the compiled keepers alone ─────────────────────────────────────────────────────────────


def test_killed_at_random_moments_jobs_that_their_own_children_trace_leave_nothing(
    launcher: Launcher, nasty: Path
) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        defaults: {{grace: {GRACE}}}
        jobs:
          - name: "{{{{item}}}}"
            foreach: {{values: [{", ".join(TRACED)}]}}
            timeout: 0.3
            run: exec {nasty} {{{{item}}}}
        """,
    )
    generator = random.Random(os.environ.get("GPULAUNCH_TEST_SEED", "7"))
    for kill in range(KILLS):
        _run_for(launcher, generator.uniform(0, 2))
        wait_until(lambda: not executing(nasty), what=f"no survivors of kill {kill}")


@pytest.mark.parametrize("victims", [*permutations(["spawner", "guardian", "monitor"])])
def test_keepers_killed_one_after_another_leave_nothing_beside_the_next_attempt(
    launcher: Launcher, nasty: Path, victims: tuple[str, ...]
) -> None:
    """Each kill comes when all that the one before brings about is over: seconds later, say."""
    mark = token()
    launcher.file(
        "jobs.yaml",
        f"""
        defaults: {{grace: {GRACE}}}
        jobs:
          - name: a
            run: exec {nasty} daemons {mark}-$GPULAUNCH_ATTEMPT
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--quiet") as process:
        launcher.wait_for("attempt_started")
        wait_until(lambda: _has_daemons(f"{mark}-1"))
        keepers = _keepers_of(process.pid)
        for victim in victims[:2]:
            _kill(keepers[victim])
        launcher.wait_for("attempt_started", 2)
        assert marked(f"{mark}-1") == []
        wait_until(lambda: _has_daemons(f"{mark}-2"))
        _kill(keepers[victims[2]])
        assert _has_daemons(f"{mark}-2"), "it has keepers of its own"
        process.kill()
    wait_until(lambda: not executing(nasty))


def _has_daemons(mark: str) -> bool:
    """Tell whether the program and its three daemons run, and nothing that forked these."""
    return len(marked(mark)) == 4 and len(set(marked(mark)) & set(marked("kworker/u8:1"))) == 3


def _keepers_of(supervisor: int) -> dict[str, int]:
    """Return spawner, guardian and monitor of the only pair that has a job."""
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children_of(supervisor)}
    (spawner,) = [pid for pid, name in names.items() if name == "keeper-spawner\n"]
    guardians = {pid: child for pid in children_of(spawner) for child in children_of(pid)}
    ((guardian, monitor),) = [pair for pair in guardians.items() if children_of(pair[1])]
    return {"spawner": spawner, "guardian": guardian, "monitor": monitor}


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it had nothing left to do
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: state_of(pid) in ("", "Z"))


EXECUTOR = """
import subprocess, sys
from gpulaunch import GpuExecutor

def act(number):
    subprocess.run([sys.argv[1], ["daemons-exit", "traced-left"][number % 2]])

if __name__ == "__main__":
    with GpuExecutor(simulate=2, wait=60) as executor:
        for _ in executor.map(act, range(int(sys.argv[2]))):
            pass
"""


def test_an_executor_killed_at_random_moments_leaves_no_process_no_lease_and_no_file(
    tmp_path: Path, nasty: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    env = {"TMPDIR": str(place), "GPULAUNCH_SIM_POOL": token()}
    file = tmp_path / "script.py"
    generator = random.Random(os.environ.get("GPULAUNCH_TEST_SEED", "7"))
    for kill in range(KILLS):
        with script.begun(file, EXECUTOR, nasty, 1000, env=env) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0.5, 2.5))
            assert process.poll() is None
            process.kill()
        wait_until(
            lambda: not (executing(nasty) or marked(env["GPULAUNCH_SIM_POOL"], "environ")),
            what=f"no survivors of kill {kill}",
        )
    assert script.run(file, EXECUTOR, nasty, 2, env=env) == ("", "", 0)
    assert list(place.iterdir()) == []
