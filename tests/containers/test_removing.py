"""Whether a container still has a carrier, by the lock on its record, and its removal if not.

podman is real, in a directory of the tests' own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from gpulaunch.containers.engines import remove_line
from gpulaunch.containers.removing import RECORD, is_held, remove_of
from tests.containers.daemons import BOX, PATIENCE, RealEngine
from tests.helpers import wait_until


def as_on_nfs(file: IO[bytes], operation: int) -> None:
    """The kernel's own rule for flock there: an exclusive lock is that of who may write."""
    if operation & fcntl.LOCK_EX and not file.writable():
        raise OSError(errno.EBADF, "Bad file descriptor")
    real(file, operation)


real = fcntl.flock


@pytest.mark.parametrize("nfs", [False, True])
def test_a_record_is_held_while_its_carrier_lives(
    tmp_path: Path, nfs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / RECORD).write_text("{}")
    if nfs:
        monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    assert not is_held(str(tmp_path))
    with open(tmp_path / RECORD, "rb") as carrier:
        fcntl.flock(carrier, fcntl.LOCK_SH)
        assert is_held(str(tmp_path))
    assert not is_held(str(tmp_path))


def test_a_record_that_is_not_there_is_nobodys(tmp_path: Path) -> None:
    assert not is_held(str(tmp_path))


def test_a_container_whose_monitor_was_killed_too_is_removed(
    tmp_path: Path, podman_root: RealEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman refuses the first removal then: "container state improper: stopped"."""
    for name, value in podman_root.environ.items():
        monkeypatch.setenv(name, value)
    name = f"gl-{os.urandom(4).hex()}"
    folder = tmp_path / "a.1"
    folder.mkdir()
    (folder / RECORD).write_text(json.dumps({"name": name, "remove": remove_line("podman", name)}))
    start = [*podman_root.client, "run", "--rm", f"--name={name}", BOX, "sleep", "999"]
    with podman_root.popen(start, stdout=subprocess.DEVNULL) as client:
        wait_until(lambda: state_of(podman_root, name).get("Running"), PATIENCE, "it runs")
        state = state_of(podman_root, name)
        for pid in (client.pid, state["ConmonPid"], state["Pid"]):
            os.kill(pid, signal.SIGKILL)
    done = remove_of([str(folder)])
    assert (done.removed, done.left) == ([name], {})
    assert not folder.exists()
    assert name not in podman_root.containers()


PODMAN = """#!/bin/sh
[ "$1" = inspect ] && echo 0123456789abcdef
exit 0
"""


def test_what_the_runtime_made_and_podman_never_noted_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman and the waiting process are pretend ones; runc's process waits in the same way."""
    folder, fifo = tmp_path / "a.1", tmp_path / "0123456789abcdef" / "exec.fifo"
    for made in (folder, tmp_path / "bin", fifo.parent):
        made.mkdir()
    (tmp_path / "bin" / "podman").write_text(PODMAN)
    (tmp_path / "bin" / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (folder / RECORD).write_text(json.dumps({"name": "gl", "remove": remove_line("podman", "gl")}))
    os.mkfifo(fifo)
    waits = ["sh", "-c", 'exec sleep 999 3<>"$0"', str(fifo)]
    with subprocess.Popen(waits) as first:
        try:
            wait_until(Path(f"/proc/{first.pid}/fd/3").exists, PATIENCE, "it waits")
            assert remove_of([str(folder)]).removed == ["gl"]
            assert first.wait(PATIENCE) == -signal.SIGKILL
        finally:
            first.kill()


def state_of(engine: RealEngine, name: str) -> dict[str, Any]:
    """Return what the engine says of the container's state; nothing before it has one."""
    listed = engine.command("ps", "--all", "--filter", f"name={name}", "--format", "{{.Names}}")
    if not listed.split():
        return {}
    state: dict[str, Any] = json.loads(
        engine.command("inspect", "--format", "{{json .State}}", name)
    )
    return state
