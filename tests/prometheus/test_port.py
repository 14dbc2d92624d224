"""The port and the process behind it: what it has, and that it ends with its run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.prometheus.port import Exporter
from gpulaunch.observe.prometheus.serve import NICE
from tests.helpers import held_by, open_files, wait_until
from tests.prometheus.support import record, scrape
from tests.views.history import History

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    record(tmp_path / "events.jsonl", History().open().jobs("a", "b").start("a", 0).facts)
    return RunDir(tmp_path)


def reachable(address: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=5).close()
    except ConnectionError:
        return False
    return True


def children() -> list[int]:
    """The processes that this process has started, whichever of its threads did."""
    return [child.pid for child in psutil.Process().children()]


def test_a_run_is_served_from_start_to_close(run: RunDir) -> None:
    with Exporter(0) as exporter:
        exporter.start(run)
        assert scrape(exporter.address).value("gpulaunch_jobs", state="running") == 1
    assert not reachable(exporter.address)


def test_who_asks_before_the_run_has_begun_waits_for_it(run: RunDir) -> None:
    with (
        Exporter(0) as exporter,
        socket.create_connection(
            ("127.0.0.1", urlsplit(exporter.address).port or 0), timeout=60
        ) as early,
    ):
        early.sendall(b"GET / HTTP/1.0\r\n\r\n")
        exporter.start(run)
        assert early.recv(100).startswith(b"HTTP/1.0 200")


def test_a_port_has_one_owner(run: RunDir) -> None:
    with Exporter(0) as exporter:
        number = urlsplit(exporter.address).port or 0
        taken = f"--metrics-port {number}: 127.0.0.1:{number} .*in use; name another port"
        with pytest.raises(UsageError, match=taken):
            Exporter(number)
        exporter.start(run)
        scrape(exporter.address)
        with pytest.raises(UsageError, match=taken):
            Exporter(number)
    Exporter(number).close()


def test_it_is_bound_to_the_loopback_address_alone() -> None:
    with Exporter(0) as exporter:
        port = f":{urlsplit(exporter.address).port or 0:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"] == [
            "0100007F" + port
        ]


def test_closing_leaves_neither_process_nor_descriptor(run: RunDir) -> None:
    files, before = open_files(), children()
    for begun in (False, True, True):
        with Exporter(0) as exporter:
            if begun:
                exporter.start(run)
                scrape(exporter.address)
    assert not open_files() - files
    assert set(children()) <= set(before)


def test_the_process_has_the_listener_its_journal_and_nothing_of_ours(run: RunDir) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        with Exporter(0) as exporter:
            before = set(children())
            exporter.start(run)
            scrape(exporter.address)
            (pid,) = set(children()) - before
            held = held_by(pid)
            assert os.readlink(f"/proc/self/fd/{write}") not in held
            assert str(run.events) in held
            assert len(held) < 12
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert os.getpgid(pid) != os.getpgid(0)
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + NICE)
    finally:
        os.close(read)
        os.close(write)


def test_a_process_that_does_not_end_is_killed(run: RunDir) -> None:
    before = children()
    with Exporter(0) as exporter:
        exporter.start(run)
        scrape(exporter.address)
        (pid,) = set(children()) - set(before)
        os.kill(pid, signal.SIGSTOP)
    assert children() == before


def test_a_client_that_never_reads_does_not_keep_it(run: RunDir) -> None:
    before = children()
    with Exporter(0) as exporter, socket.socket() as client:
        exporter.start(run)
        scrape(exporter.address)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.connect(("127.0.0.1", urlsplit(exporter.address).port or 0))
        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        begun = time.monotonic()
        exporter.close()
        assert time.monotonic() - begun < 10
        assert not reachable(exporter.address)
    assert children() == before


def test_it_is_gone_when_its_supervisor_was_killed(run: RunDir) -> None:
    script = f"""
import sys
import time
from pathlib import Path
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.prometheus.port import Exporter
exporter = Exporter(0)
exporter.start(RunDir(Path({os.fspath(run.path)!r})))
print(exporter.address, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdout is not None
        address = supervisor.stdout.readline().strip()
        assert scrape(address).value("gpulaunch_jobs", state="running") == 1
        (pid,) = (child.pid for child in psutil.Process(supervisor.pid).children())
        port = urlsplit(address).port or 0
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nX: ")  # and never more
            scrape(address)
            supervisor.send_signal(signal.SIGKILL)
            wait_until(lambda: not reachable(address))
            wait_until(lambda: not psutil.pid_exists(pid))


def test_signals_that_were_put_off_when_it_began_end_it(run: RunDir) -> None:
    before = set(children())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with Exporter(0) as exporter:
            exporter.start(run)
            scrape(exporter.address)
            (pid,) = set(children()) - before
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not reachable(exporter.address))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_what_the_environment_says_of_prometheus_changes_nothing(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", os.fspath(other))
    with Exporter(0) as exporter:
        exporter.start(run)
        scrape(exporter.address)
    assert not list(other.iterdir())


def test_the_supervisors_side_imports_no_client_library() -> None:
    script = "import sys, gpulaunch.run.start; print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
