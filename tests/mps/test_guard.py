"""The guard alone: begins a daemon, tells of it, ends it after its clients, leaves nothing."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gpulaunch.base.helper_process import command
from gpulaunch.engines.local.mps import system
from gpulaunch.gpus.machine import Machine
from tests.gpus.fake import usual
from tests.helpers import goes_along, wait_until
from tests.mps.pretend import PretendMps

CARD = str(usual(0)["uuid"])
GUARD = "gpulaunch.engines.local.mps.guard"


class Guarded:
    """A guard with its launcher's end of the FIFO. `start`, `quits`, `grace`: seconds."""

    def __init__(
        self, mps: PretendMps, start: float = 20, quits: float = 20, grace: float = 20
    ) -> None:
        self.mps = mps
        self.environ = {**os.environ, **mps.environ}
        directory, lock = system.make(self.environ)
        self.directory = Path(directory)
        self.logs = mps.tmp / "logs"
        self.logs.mkdir()
        self.environ |= {
            "CUDA_MPS_PIPE_DIRECTORY": f"{directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": CARD,
            system.MARK: directory,
        }
        self.wait_for_clients(grace)
        how = os.O_RDONLY | os.O_NONBLOCK
        self.news = os.open(self.directory / "news", how)
        limits = map(str, (start, quits))
        line = command(GUARD, directory, str(mps.control), *limits, title="mps")
        self.process = subprocess.Popen(
            line,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            preexec_fn=goes_along(),
        )
        os.close(lock)

    def wait_for_clients(self, seconds: float) -> None:
        (self.directory / "grace").write_text(str(seconds))

    def said(self) -> str:
        """What it says next; empty once it has hung up."""
        line = b""
        while not line.endswith(b"\n") and select.select([self.news], [], [], 60)[0]:
            if not (part := os.read(self.news, 1)):
                break
            line += part
        return line.decode().strip()

    def client(self, seconds: float) -> subprocess.Popen[str]:
        """A client that computes by now."""
        process = subprocess.Popen(
            [self.mps.programs / "mps-client", str(seconds)],
            env={k: v for k, v in self.environ.items() if k != system.MARK},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=goes_along(),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"computes on {CARD}\n"
        return process

    def over(self, status: int = 0) -> None:
        """It ends so, and nothing is left of it."""
        assert self.process.wait(60) == status
        assert self.mps.left() == []
        assert self.mps.alive() == []

    def hang_up(self) -> None:
        if self.news >= 0:
            os.close(self.news)
            self.news = -1

    def close(self) -> None:
        self.hang_up()
        self.process.kill()
        self.process.wait()


Begin = Callable[..., Guarded]


@pytest.fixture
def begin(mps: PretendMps) -> Iterator[Begin]:
    """Begins a guard, with these limits."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(closing(Guarded(mps, **limits)))


def test_a_daemon_is_ready_once_its_server_answers(mps: PretendMps, begin: Begin) -> None:
    guard = begin()
    assert guard.said() == "ready"
    assert mps.alive("nvidia-cuda-mps-server")
    guard.client(0.01).communicate()
    guard.process.terminate()
    guard.over()
    assert "Exit" in (guard.logs / "control.log").read_text()


@pytest.mark.parametrize("how", ["daemon=never", "server=never", "daemon=hang"])
def test_a_daemon_that_does_not_come_up_is_given_up_in_time(
    mps: PretendMps, begin: Begin, how: str
) -> None:
    mps.misbehave(how)
    guard = begin(start=0.5)
    who = "server" if how == "server=never" else "control daemon"
    assert guard.said() == f"failed no {who} answered within 0.5 s"
    guard.over(1)


def test_a_daemon_that_ends_at_once_says_so(mps: PretendMps, begin: Begin) -> None:
    mps.misbehave("daemon=die")
    guard = begin()
    assert guard.said() == "failed the control daemon ended (status 1)"
    guard.over(1)


def test_a_killed_daemon_takes_its_server_along(mps: PretendMps, begin: Begin) -> None:
    guard = begin()
    assert guard.said() == "ready"
    client = guard.client(60)
    (daemon,) = mps.daemons()
    os.kill(daemon, signal.SIGKILL)
    assert guard.said() == "died the control daemon ended (killed by signal 9)"
    assert "MPS server and the MPS client failed" in client.communicate()[0]
    guard.over(1)


@pytest.mark.parametrize("how", ["quit=hang", "quit=refuse", "daemon=hang"])
def test_a_daemon_that_does_not_quit_is_killed(mps: PretendMps, begin: Begin, how: str) -> None:
    guard = begin(quits=0.5)
    assert guard.said() == "ready"
    mps.misbehave(how)
    guard.process.terminate()
    guard.over()


def test_after_term_clients_end_before_their_server(mps: PretendMps, begin: Begin) -> None:
    guard = begin()
    assert guard.said() == "ready"
    mps.misbehave("quit=hasty")
    client = guard.client(60)
    guard.process.terminate()
    client.terminate()
    assert client.communicate()[0] == "saved\n"
    guard.over()


def test_clients_that_stay_are_waited_for_as_long_as_was_said_last(
    mps: PretendMps, begin: Begin
) -> None:
    guard = begin(grace=0)
    assert guard.said() == "ready"
    client = guard.client(60)
    guard.wait_for_clients(0.7)
    guard.process.terminate()
    assert guard.said() == "clients are still there after 0.7 s"
    guard.over()
    assert "MPS client failed" in client.communicate()[0]


def test_term_during_the_start_ends_it(mps: PretendMps, begin: Begin) -> None:
    mps.misbehave("daemon=never")
    guard = begin(quits=0.5)
    wait_until(mps.daemons)
    guard.process.terminate()
    guard.over()


def test_a_launcher_that_is_gone_changes_nothing_until_term(mps: PretendMps, begin: Begin) -> None:
    guard = begin()
    assert guard.said() == "ready"
    guard.hang_up()
    assert guard.client(0.1).communicate()[0] == "done\n"
    guard.process.terminate()
    guard.over()


def test_a_killed_guard_takes_its_daemon_along_and_the_next_start_clears_the_rest(
    mps: PretendMps,
    begin: Begin,
) -> None:
    guard = begin()
    assert guard.said() == "ready"
    guard.process.kill()
    guard.process.wait()
    wait_until(lambda: not mps.daemons())
    assert mps.left()
    assert mps.alive("nvidia-cuda-mps-server")
    (found,) = system.findings(guard.environ, Machine())
    assert mps.left()[0] in found.what
    assert system.clear(guard.environ) == 1
    assert mps.left() == mps.alive() == []
    assert not list(system.findings(guard.environ, Machine()))


def test_what_a_guard_holds_is_no_leftover(mps: PretendMps, begin: Begin) -> None:
    guard = begin()
    assert guard.said() == "ready"
    assert system.clear(guard.environ) == 0
    assert len(mps.left()) == 1
    guard.process.terminate()
    guard.over()


def test_what_is_being_made_is_no_leftover(mps: PretendMps) -> None:
    directory, lock = system.make(mps.environ)
    assert system.clear(mps.environ) == 0
    os.close(lock)
    system.clear(mps.environ)
    assert not os.path.exists(directory)


def test_others_directories_are_left_alone(mps: PretendMps) -> None:
    (mps.tmp / "gpulaunch-mps-file").write_text("")
    (mps.tmp / "gpulaunch-mps-link").symlink_to(mps.programs)
    system.clear(mps.environ)
    assert len(mps.left()) == 2
    assert mps.control.exists()


def test_a_long_tmpdir_is_passed_over(mps: PretendMps) -> None:
    long = mps.tmp / ("x" * 90)
    long.mkdir()
    directory, lock = system.make({"TMPDIR": str(long)})
    os.close(lock)
    assert os.path.dirname(directory) == "/tmp"
    system.clear({"TMPDIR": str(long)})
    assert not os.path.exists(directory)


def test_where_no_directory_can_be_locked_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(system, "_places", lambda environ: [str(tmp_path)])
    monkeypatch.setattr(system, "MAX_PIPES_BYTES", 1000)  # the test's own path is long
    with pytest.raises(system.NoRoomError, match="written and locked in"):
        system.make({})
    assert not [*tmp_path.iterdir()]


def test_a_limit_is_a_whole_number_of_mib_that_is_rounded_up() -> None:
    assert system.memory_limit(3 * 2**30) == ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3072M")
    assert system.memory_limit(3 * 2**30 + 1)[1] == "0=3073M"
