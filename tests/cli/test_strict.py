"""Strict isolation end to end: two cards of a pretend driver, whose nodes are files in /dev.

The command runs as an ordinary user, whoever runs the tests (see tests/process/ordinary.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulaunch.engines.isolation import why_no_isolation
from tests.cli.launcher import COMMAND, Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

ORDINARY = [sys.executable, str(Path(__file__).parents[1] / "process" / "ordinary.py")]
NODES = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")

Here = Callable[..., Launcher]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """Makes launchers on a machine of two cards; its options are those of ordinary.py."""
    if why := why_no_isolation():
        pytest.skip(why)
    tried = subprocess.run(
        [*ORDINARY, "--node", "x", "--", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no ordinary user can be had here: {tried.stderr.splitlines()[-1]}")
    driver = FakeDriver(tmp_path)
    for n in range(2):
        # Leases are the machine's: no other test's cards. The minor is not the index.
        driver.card(n, bus=f"0000{os.getpid() % 0xFFFF:04X}:{n + 1:02X}:00.0", minor=1 - n)

    def make(*options: str, nodes: tuple[str, ...] = NODES) -> Launcher:
        asked = [word for name in nodes for word in ("--node", name)]
        command = [*ORDINARY, *options, *asked, "--", *COMMAND]
        return Launcher(tmp_path, {**driver.environ, "SHELL": "/bin/sh"}, command)

    return make


LOOK = "unset CUDA_VISIBLE_DEVICES; echo /dev/nvidia*; cat /dev/nvidia[0-9] || true"
JOBS = f"""
    defaults:
      isolation: strict
    jobs:
      - name: one-{{{{n}}}}
        matrix: {{n: [1, 2]}}
        run: 'echo $GPULAUNCH_GPU_INDEX $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; {LOOK}'
      - name: both
        gpus: 2
        run: {LOOK}
      - name: none
        gpus: 0
        run: {LOOK}
      - name: open
        isolation: env
        run: {LOOK}
"""


def test_a_job_without_its_mask_has_its_own_cards_and_no_other(here: Here) -> None:
    launcher = here()
    launcher.file("jobs.yaml", JOBS)
    done = launcher("run", "jobs.yaml")
    assert done.status == 0, done.err
    shared = "/dev/nvidia-uvm"
    for n in (1, 2):
        first, names, text = launcher.log(f"one-{n}").splitlines()
        index = int(first.split()[0])
        minor = 1 - index
        # A program that sees one card alone numbers it from 0.
        assert first.split()[1:] == ["0", "PCI_BUS_ID"]
        assert names == f"{shared} /dev/nvidia{minor} /dev/nvidiactl"
        assert text == f"nvidia{minor}"
    every = f"{shared} /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl\nnvidia0\nnvidia1\n"
    assert launcher.log("both") == every
    assert launcher.log("none").splitlines()[0] == f"{shared} /dev/nvidiactl"
    assert launcher.log("open") == every


def test_uuids_are_there_for_who_wants_them(here: Here) -> None:
    launcher = here()
    job = "{name: a, gpus: 2, isolation: strict, visible: uuid, run: echo $CUDA_VISIBLE_DEVICES}"
    launcher.file("jobs.yaml", f"jobs: [{job}]")
    assert launcher("run", "jobs.yaml").status == 0
    assert [name[:12] for name in launcher.log("a").split(",")] == ["GPU-00000000", "GPU-00000001"]


def test_a_launcher_inside_a_strict_job_has_that_jobs_cards(here: Here) -> None:
    launcher = here()
    uuid = "echo $GPULAUNCH_GPU_UUID"
    inner = f"{sys.executable} -m gpulaunch exec -- sh -c '{uuid}'"
    launcher.file(
        "jobs.yaml", f"jobs:\n  - name: a\n    isolation: strict\n    run: {uuid}; {inner}\n"
    )
    for index in range(2):
        done = launcher("run", "jobs.yaml", "--new", "--gpus", f"{index},")
        assert done.status == 0, done.err + launcher.log("a")
        outer, *said, own = launcher.log("a").splitlines()
        assert own == outer, said


def test_pretend_cards_have_no_nodes_and_real_ones_are_hidden(here: Here) -> None:
    launcher = here()
    launcher.file("jobs.yaml", f"jobs: [{{name: a, isolation: strict, run: '{LOOK}'}}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("a").splitlines()[0] == "/dev/nvidia-uvm /dev/nvidiactl"


def test_number_status_and_signal_are_the_jobs_own(here: Here) -> None:
    launcher = here()
    launcher.file(
        "jobs.yaml",
        """
        defaults: {isolation: strict}
        jobs:
          - {name: seven, run: 'echo $$; exit 7'}
          - {name: segv, run: 'kill -SEGV $$'}
          - {name: slow, run: 'sleep 100', timeout: 0.3s, grace: 1s}
        """,
    )
    assert launcher("run", "jobs.yaml").status == 1
    jobs = launcher.jobs()
    assert jobs["seven"]["exit_code"] == 7
    assert launcher.log("seven") == f"{jobs['seven']['attempts'][0]['pid']}\n"
    assert (jobs["segv"]["signal"], jobs["slow"]["failure"]) == (signal.SIGSEGV, "timeout")


def test_ctrl_c_reaches_a_strict_job_as_any_other(here: Here) -> None:
    launcher = here()
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    launcher.file("jobs.yaml", f'jobs: [{{name: a, isolation: strict, run: "{script}"}}]')
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started")
        wait_until(lambda: launcher.log("a") == "up\n")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert launcher.log("a").endswith("bye\n")


SPY = """
import glob, os, time
def inside(path):
    try: return b"GPULAUNCH_JOB=inside" in open(path, "rb").read().split(bytes(1))
    except OSError: return False
while not (found := [p for p in glob.glob("/proc/[0-9]*/environ") if inside(p)]): time.sleep(0.02)
pid = int(found[0].split("/")[2])
os.kill(pid, 0)
print(os.path.exists(f"/proc/{pid}/root/dev/nvidiactl"))
open("seen", "w")
"""


def test_its_own_user_sees_and_reaches_it_from_outside(here: Here) -> None:
    """As the search for processes that outlived their keepers does."""
    launcher = here()
    launcher.file("spy.py", SPY)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: inside, isolation: strict, run: 'while [ ! -e seen ]; do sleep 0.02; done'}
          - {name: outside, gpus: 0, timeout: 20s, run: python3 spy.py}
        """,
    )
    done = launcher("run", "jobs.yaml")
    assert done.status == 0, done.err
    assert launcher.log("outside") == "True\n"


# ── Refusals ────────────────────────────────────────────────────────────────────────────────────


def test_where_namespaces_are_forbidden_run_and_check_refuse_and_doctor_tells(here: Here) -> None:
    launcher = here("--forbidden")
    launcher.file("jobs.yaml", "jobs:\n  - run: touch ran\n    isolation: strict\n")
    for command in ("run", "check"):
        refused = launcher(command, "jobs.yaml")
        assert refused.status == 2
        assert "jobs.yaml:3:16: jobs[0].isolation: strict isolation is not possible" in refused.err
        assert "user.max_user_namespaces is 0" in refused.err
    assert not (launcher.path / "ran").exists()
    assert not (launcher.path / "gpulaunch-runs").exists()
    told = json.loads(launcher("doctor", "--json").out)
    (finding,) = [each for each in told["findings"] if "strict isolation" in each["what"]]
    assert (finding["level"], "user.max_user_namespaces is 0" in finding["what"]) == ("note", True)
    launcher.file("jobs.yaml", "jobs: [{run: touch ran}]")
    assert launcher("run", "jobs.yaml").status == 0
    assert (launcher.path / "ran").exists()


def test_a_node_that_no_strict_job_could_make_is_asked_for_beforehand(here: Here) -> None:
    launcher = here(nodes=("nvidiactl", "nvidia0", "nvidia1"))
    launcher.file("jobs.yaml", "jobs: [{run: 'true', isolation: strict}]")
    refused = launcher("run", "jobs.yaml")
    assert refused.status == 2
    assert "/dev/nvidia-uvm does not exist" in refused.err
    assert "`nvidia-modprobe -u -c=1` does" in refused.err
    assert "note     strict isolation is not possible here: GPU 0" in launcher("doctor").out


def test_what_goes_wrong_later_fails_the_attempt_and_never_falls_back(here: Here) -> None:
    launcher = here()
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: thief, gpus: 0, run: rm /dev/nvidia-uvm}
          - {name: late, needs: [thief], isolation: strict, run: touch ran}
        """,
    )
    assert launcher("run", "jobs.yaml").status == 1
    late = launcher.jobs()["late"]
    assert late["failure"] == "not_started"
    assert "/dev/nvidia-uvm does not exist" in late["reason"]
    assert not (launcher.path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="what root is told, root alone can see")
def test_root_is_told_how_far_it_goes(launcher: Launcher) -> None:
    if why := why_no_isolation():
        pytest.skip(why)
    launcher.file("jobs.yaml", "jobs: [{run: 'true', isolation: strict}]")
    assert "guards against accidents only" in launcher("run", "jobs.yaml", "--simulate", "1").err
    launcher.file("jobs.yaml", "jobs: [{run: 'true'}]")
    quiet = launcher("run", "jobs.yaml", "--simulate", "1", "--new")
    assert "accidents" not in quiet.err


def test_a_strict_job_with_preload_starts_cold_and_sees_its_own_card_alone(here: Here) -> None:
    launcher = here()
    launcher.file("script.py", "import glob, sys\nprint(*sorted(glob.glob('/dev/nvidia[0-9]')))\n")
    launcher.file(
        "jobs.yaml",
        f"""
        defaults: {{isolation: strict, preload: [decimal]}}
        jobs:
          - name: one-{{{{n}}}}
            matrix: {{n: [1, 2]}}
            run: [{sys.executable}, script.py]
        """,
    )
    done = launcher("run", "jobs.yaml")
    assert done.status == 0, done.err
    assert "preload: starts cold: strict isolation needs an exec" in done.err
    assert {launcher.log(f"one-{n}") for n in (1, 2)} <= {"/dev/nvidia0\n", "/dev/nvidia1\n"}
