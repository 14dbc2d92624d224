"""An engine's client: what it is given, what is heard of it, and that it ends with its helper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.base import helper_process
from gpulaunch.containers import client
from gpulaunch.containers.client import ClientSilentError
from tests.containers.bench import Bench, alive
from tests.helpers import wait_until

DAEMONS = ("docker", "podman")
FILES = ("apptainer", "singularity")


def sh(script: str, **options: Any) -> client.ClientEnd:
    return client.run(["sh", "-c", script], **options)


def test_a_client_has_no_input_and_speaks_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    end = sh("readlink /proc/self/fd/0; echo $LC_ALL; ls /proc/self/fd >&2; exit 3")
    assert (end.status, end.out) == (3, "/dev/null\nC")
    assert end.err.split() == ["0", "1", "2", "3"]  # 3: the listing itself


def test_lines_are_as_a_terminal_shows_them() -> None:
    end = sh(r"printf '1%%\r50%%\n'; printf 'end' >&2; kill -9 $$")
    assert (end.status, end.out, end.err) == (128 + 9, "50%", "end")
    assert end.words == "end"


BEHIND = "(trap '' INT TERM HUP; setsid sleep 600 & echo $!)"


@pytest.mark.parametrize("status", [0, 4])
def test_a_client_that_exits_may_leave_something_and_is_not_waited_for(status: int) -> None:
    end = sh(f"{BEHIND}; exit {status}")
    assert end.status == status
    left = int(end.out)
    assert alive(left)
    os.kill(left, signal.SIGKILL)


def test_what_a_client_leaves_that_is_killed_ends_with_it() -> None:
    end = sh(f"{BEHIND}; kill -9 $$")
    assert end.status == 128 + 9
    assert not alive(int(end.out))


def test_all_that_a_client_writes_is_taken() -> None:
    end = sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2")
    assert (len(end.out), end.err) == (3_000_000, "end")


def test_a_client_that_takes_too_long_is_interrupted_and_may_clean_up(tmp_path: Path) -> None:
    cleaned = tmp_path / "cleaned"
    with pytest.raises(ClientSilentError):
        sh(f"trap 'touch {cleaned}; exit' INT; sleep 600 & wait", seconds=0.5)
    assert cleaned.exists()


def test_a_program_that_cannot_be_executed_is_said(tmp_path: Path) -> None:
    end = client.run([str(tmp_path)])
    assert (end.status, end.err) == (127, f"{tmp_path}: Permission denied")


# ── Whatever ends ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=[*DAEMONS, *FILES])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Bench]:
    return request.param, Bench(tmp_path, request.param)


def test_a_helper_that_is_killed_takes_its_client_along(held: tuple[str, Bench]) -> None:
    engine, bench = held
    with bench.helper(engine, "lab/tool", environ=bench.holding()) as helper:
        client_pid, child = bench.pulling()
        helper.process.send_signal(signal.SIGKILL)
        wait_until(lambda: not alive(client_pid) and not alive(child))


def test_a_helper_whose_input_ends_takes_its_client_along(held: tuple[str, Bench]) -> None:
    engine, bench = held
    with bench.helper(engine, "lab/tool", environ=bench.holding()) as helper:
        client_pid, child = bench.pulling()
        helper.hang_up()
        helper.process.wait()
        wait_until(lambda: not alive(client_pid) and not alive(child))


def test_where_the_attendant_is_killed_the_client_goes_too(held: tuple[str, Bench]) -> None:
    engine, bench = held
    with bench.helper(engine, "lab/tool", environ=bench.holding()):
        client_pid, child = bench.pulling()
        status = Path(f"/proc/{client_pid}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(status[1]), signal.SIGKILL)
        wait_until(lambda: not alive(client_pid))
        os.kill(child, signal.SIGKILL)  # an orphan: see the attendant's module


def test_a_helper_ends_with_its_launcher(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "docker")
    request = json.dumps(bench.request("docker", "lab/tool"))
    begin = (
        "import subprocess, sys\n"
        "from gpulaunch.base.helper_process import command\n"
        "line = command('gpulaunch.containers.pulling', sys.argv[1])\n"
        "print(subprocess.Popen(line).pid, flush=True)\n"
        "input()\n"
    )
    held_open, theirs = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", begin, request],
        stdin=held_open,  # which the helper has too: the test holds the other end
        stdout=subprocess.PIPE,
        env={**bench.environ, **bench.holding(), "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as launcher:
        assert launcher.stdout is not None
        helper = int(launcher.stdout.readline())
        client_pid, child = bench.pulling()
        launcher.kill()
    wait_until(lambda: not any(map(alive, (helper, client_pid, child))))
    os.close(held_open)
    os.close(theirs)


def test_a_helper_is_named_for_a_list_of_processes() -> None:
    assert helper_process.command("gpulaunch.containers.pulling", "{}")[-1] == "gpulaunch-pulling"
