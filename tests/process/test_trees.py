"""Nothing of a job survives its end, a stop, or the death of keepers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from gpulaunch.agent.proc import named_unkillable, state_of, tracer_of
from gpulaunch.agent.wire import end_line, line_of_end
from gpulaunch.core.model import Cancelled, Exited, TimedOut
from gpulaunch.engines.client import AttemptOver, Gone, ProgramStarted, Spawner, Unkillable
from tests.helpers import wait_until
from tests.process.support import (
    TRACED,
    Slot,
    children_of,
    keepers_of,
    marked,
    token,
    until,
)

MODES = [
    "daemons",
    "daemons-exit",
    "ignore-term",
    "tree",
    "stopped",
    "hopper",
    "slow-hopper",
    "hopping-daemon",
    "stop-parent",
    "subreaper",
]
ENDS_BY_ITSELF = {"daemons-exit", "hopping-daemon"}
native_only = pytest.mark.parametrize("keeper", ["native"], indirect=True)
TIMES = max(1, int(os.environ.get("GPULAUNCH_TEST_KILLS", "0")) // 10)


@pytest.mark.parametrize("mode", MODES)
def test_no_process_is_left_when_an_attempt_has_ended(slot: Slot, nasty: str, mode: str) -> None:
    mark = token()
    timeout = 60.0 if mode in ENDS_BY_ITSELF else 0.15
    ended = slot.run(nasty, mode, mark, timeout=timeout, grace=0.1)
    assert marked(mark) == []
    assert isinstance(ended.end.outcome, Exited if mode in ENDS_BY_ITSELF else TimedOut)
    if mode == "daemons-exit":
        assert ended.end.leftovers == 3
    assert slot.run("true").end.outcome == Exited(0)


@native_only
@pytest.mark.parametrize("mode", TRACED)
def test_a_process_that_its_own_descendant_traces_is_ended_too(
    slot: Slot, nasty: str, mode: str
) -> None:
    mark = token()
    ended = slot.run(nasty, mode, mark, timeout=0.3, grace=0.1)
    assert marked(mark) == []
    assert isinstance(ended.end.outcome, Exited if mode == "traced-left" else TimedOut)
    assert slot.run("true").end.outcome == Exited(0)


def test_a_process_that_cannot_be_killed_is_named_with_what_traces_it(nasty: str) -> None:
    mark = token()
    with subprocess.Popen([nasty, "traced", mark]) as traced:
        tracer = wait_until(lambda: tracer_of(traced.pid))
        said = named_unkillable([traced.pid, os.getpid()])
        assert said == f"process {traced.pid} (traced by nasty, pid {tracer}), {os.getpid()}"
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


@native_only
@pytest.mark.parametrize("victims", ["monitor", "guardian monitor"])
def test_a_traced_process_is_ended_by_whichever_keeper_is_left(
    spawner: Spawner, slot: Slot, nasty: str, victims: str
) -> None:
    mark = token()
    slot.launch(nasty, "traced", mark)
    slot.expect(ProgramStarted)
    wait_until(lambda: any(tracer_of(pid) for pid in marked(mark)))
    pids = dict(zip(("guardian", "monitor"), keepers_of(spawner), strict=True))
    for victim in victims.split():
        os.kill(pids[victim], signal.SIGKILL)
    slot.expect(Gone)
    assert marked(mark) == []


def test_a_tree_that_forked_a_thousand_is_counted_and_gone(slot: Slot) -> None:
    mark = token()
    script = f"for i in $(seq 300); do sleep 1000 {mark} 2>/dev/null & setsid sleep 1000 & done; :"
    ended = slot.run("bash", "-c", script.replace(f" {mark} 2>/dev/null", ""), env_set={"M": mark})
    assert ended.end.outcome == Exited(0)
    assert ended.end.leftovers >= 590  # a setsid that was still forking is one or two
    assert marked(mark, "environ") == []


@pytest.mark.parametrize("mode", [*MODES, "kill-parent"])
@pytest.mark.parametrize("victims", ["monitor", "guardian", "monitor guardian", "guardian monitor"])
def test_no_process_is_left_when_keepers_are_killed_and_the_pair_is_gone(
    spawner: Spawner, tmp_path: Path, nasty: str, mode: str, victims: str
) -> None:
    for turn in range(TIMES):
        mark = token()
        folder = tmp_path / str(turn)
        folder.mkdir()
        with Slot(spawner, folder) as slot:
            pids = dict(zip(("guardian", "monitor"), keepers_of(spawner), strict=True))
            slot.launch(nasty, mode, mark, grace=0.1, timeout=0.5)
            if mode != "kill-parent":  # which may be quicker than the word of its start
                slot.expect(ProgramStarted)
            wait_a_little(random.Random(f"{mode} {victims} {turn}").random() * 0.03)
            for victim in victims.split():
                try_kill(pids[victim])
            slot.expect(Gone)
            assert marked(mark) == []
        wait_until(lambda: children_of(spawner.pid) == [])
    assert not spawner.said()


@native_only
@pytest.mark.parametrize("mode", ["daemons", "traced"])
@pytest.mark.parametrize("victims", [*permutations(["spawner", "guardian", "monitor"], 2)])
def test_no_process_is_left_when_keepers_are_killed_one_after_another(
    spawner: Spawner, slot: Slot, nasty: str, mode: str, victims: tuple[str, str]
) -> None:
    """The second death leaves one keeper, which ends all: no later kill finds anything."""
    mark = token()
    guardian, monitor = keepers_of(spawner)
    pids = {"spawner": spawner.pid, "guardian": guardian, "monitor": monitor}
    slot.launch(nasty, mode, mark)
    slot.expect(ProgramStarted)
    wait_until(lambda: len(marked(mark)) == (4 if mode == "daemons" else 2))
    for victim in victims:
        try_kill(pids[victim])
        wait_until(lambda victim=victim: has_died(pids[victim]))
    slot.expect(Gone)
    assert marked(mark) == []


def has_died(pid: int) -> bool:
    """Tell whether a process is gone, with all that its death brings about at once."""
    return state_of(pid) in ("", "Z")


def wait_a_little(seconds: float) -> None:
    signal.sigtimedwait([], seconds)


def try_kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the job was quicker
        os.kill(pid, signal.SIGKILL)


def test_a_job_goes_on_when_outer_is_killed_and_its_end_is_told(
    spawner: Spawner, slot: Slot, nasty: str
) -> None:
    mark = token()
    slot.launch("sh", "-c", f"{nasty} daemons-exit {mark}; {until(slot.folder / 'go')}; exit 3")
    slot.expect(ProgramStarted)
    guardian, _ = keepers_of(spawner)
    os.kill(guardian, signal.SIGKILL)
    (slot.folder / "go").touch()
    ended = slot.expect(AttemptOver)
    assert (ended.end.outcome, ended.end.leftovers) == (Exited(3), 3)
    assert slot.expect(Gone).attempt is None
    assert marked(mark) == []


def test_a_killed_monitor_is_a_lost_attempt_by_name(spawner: Spawner, slot: Slot) -> None:
    slot.launch("sleep", "100")
    slot.expect(ProgramStarted)
    os.kill(keepers_of(spawner)[1], signal.SIGKILL)
    assert slot.expect(Gone).attempt == "job.1"
    assert slot.end() is None


def test_an_end_on_file_that_the_keeper_could_not_tell_any_more_is_told(
    spawner: Spawner, slot: Slot
) -> None:
    """Killed after writing and before sending: here, the end is another attempt's, renamed."""
    slot.run("sh", "-c", "exit 5")
    line = line_of_end(slot.end_file.read_bytes())
    assert line is not None
    record = {**json.loads(line), "attempt": "job.2"}
    _, monitor = keepers_of(spawner)
    slot.launch("sleep", "100")
    slot.expect(ProgramStarted)
    slot.end_file.write_bytes(end_line(record))
    os.kill(monitor, signal.SIGKILL)
    ended = slot.expect(AttemptOver)
    assert (ended.attempt, ended.end.outcome) == ("job.2", Exited(5))
    assert slot.expect(Gone).attempt is None


def test_a_stopped_keeper_is_woken(spawner: Spawner, slot: Slot) -> None:
    slot.run("true")
    for pid in keepers_of(spawner):
        os.kill(pid, signal.SIGSTOP)
    assert slot.run("true").end.outcome == Exited(0)


def test_a_stopped_keeper_is_woken_by_the_spawner_when_the_guardian_is_gone(
    spawner: Spawner, slot: Slot
) -> None:
    """Guardian is stopped first, and cannot wake monitor before it is killed."""
    slot.launch("sleep", "0.2")
    slot.expect(ProgramStarted)
    guardian, monitor = keepers_of(spawner)
    os.kill(spawner.pid, signal.SIGSTOP)  # or it would wake guardian
    os.kill(guardian, signal.SIGSTOP)
    os.kill(monitor, signal.SIGSTOP)
    wait_until(lambda: b") T" in Path(f"/proc/{monitor}/stat").read_bytes())
    os.kill(guardian, signal.SIGKILL)
    os.kill(spawner.pid, signal.SIGCONT)
    assert slot.expect(AttemptOver).end.outcome == Exited(0)
    slot.expect(Gone)


def test_keepers_ignore_signals_that_are_not_meant_for_them(spawner: Spawner, slot: Slot) -> None:
    slot.launch("sleep", "0.3")
    slot.expect(ProgramStarted)
    for pid in (spawner.pid, *keepers_of(spawner)):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(pid, number)
    assert slot.expect(AttemptOver).end.outcome == Exited(0)


def test_spawner_and_keepers_have_sessions_and_names_of_their_own(
    spawner: Spawner, slot: Slot
) -> None:
    slot.run("true")
    pids = [spawner.pid, *keepers_of(spawner)]
    assert [os.getsid(pid) for pid in pids] == pids
    for pid in pids:
        assert b"gpulaunch" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert Path(f"/proc/{pid}/comm").read_text().startswith("keeper-")


def test_leases_are_held_until_nothing_is_left(
    spawner: Spawner, tmp_path: Path, nasty: str
) -> None:
    """Held by spawner, guardian, monitor and job; the job closes its own, both keepers die."""
    mark = token()
    name = f"\0gpulaunch-test/{mark}"
    with socket.socket(socket.AF_UNIX) as lease, socket.socket(socket.AF_UNIX) as alive:
        lease.bind(name)
        alive.bind(name + "/alive")
        slot = Slot(spawner, tmp_path, (lease.fileno(),), alive.fileno())
        slot.launch(nasty, "daemons", mark, grace=0.1)
        slot.expect(ProgramStarted)
    wait_until(lambda: len(marked(mark)) == 4)
    assert not can_bind(name)
    assert not can_bind(name + "/alive")
    for pid in keepers_of(spawner):
        os.kill(pid, signal.SIGKILL)
    while not can_bind(name) or not can_bind(name + "/alive"):
        pass
    assert marked(mark) == []
    slot.expect(Gone)
    slot.pair.close()


def can_bind(name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(name)
        except OSError:
            return False
        return True


def test_the_alive_descriptor_is_not_the_jobs(spawner: Spawner, tmp_path: Path) -> None:
    read, write = os.pipe()
    with Slot(spawner, tmp_path, (), write) as slot:
        os.close(write)
        slot.run("ls", "-l", "/proc/self/fd")
        assert f"pipe:[{os.fstat(read).st_ino}]" not in slot.log.read_text()
        assert not at_end_of_file(read)  # a keeper holds it
        slot.finish()
    assert at_end_of_file(read)
    os.close(read)


def test_a_pair_that_is_gone_holds_no_lease_any_more(spawner: Spawner, tmp_path: Path) -> None:
    for _ in range(30):
        read, write = os.pipe()
        with Slot(spawner, tmp_path, (write, write, write), write) as slot:
            os.close(write)
            slot.finish()
            assert at_end_of_file(read)
        os.close(read)


def at_end_of_file(pipe: int) -> bool:
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


# ── Whom keepers signal ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victims", ["", "monitor", "monitor guardian"])
def test_only_direct_children_are_ever_signalled(
    tmp_path: Path, nasty: str, wrapped: str, victims: str
) -> None:
    """Their numbers cannot be recycled while we have not reaped them; any other's can."""
    record = tmp_path / "record"
    with Spawner(wrapped, {**os.environ, "WRAPPED_SPY": str(record)}) as spawner:
        for mode in ("daemons", "hopper", "tree", "daemons-exit", "ignore-term"):
            folder = tmp_path / mode
            folder.mkdir()
            mark = token()
            with Slot(spawner, folder) as slot:
                pids = dict(zip(("guardian", "monitor"), keepers_of(spawner), strict=True))
                slot.launch(nasty, mode, mark, timeout=0.1, grace=0.1)
                slot.expect(ProgramStarted)
                for victim in victims.split():
                    try_kill(pids[victim])
                slot.expect(Gone if victims else AttemptOver)
                assert marked(mark) == []
            wait_until(lambda: children_of(spawner.pid) == [])
        assert spawner.said() == ""
    assert not record.exists() or record.read_text() == ""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user may enter and write, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a process that may not be killed needs two users")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_an_unkillable_process_is_told_and_keeps_the_pair(
    open_folder: Path, nasty: str, keeper: str
) -> None:
    """Keepers of `nobody`, and a program that is root's by its setuid bit."""
    program, theirs, start = (open_folder / name for name in ("setuid", "keeper", "start"))
    shutil.copy(nasty, program)
    program.chmod(0o4755)
    shutil.copy(keeper, theirs)
    as_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    start.write_text(f'#!/bin/sh\nexec {as_nobody} {theirs} "$1"\n')
    start.chmod(0o755)
    mark = token()
    with Spawner(str(start)) as spawner, Slot(spawner, open_folder) as slot:
        go = open_folder / "go"
        slot.launch("sh", "-c", f"{program} root {mark} & {until(go)}; exit 0", grace=0.1)
        wait_until(lambda: any(os.stat(f"/proc/{pid}").st_uid == 0 for pid in marked(mark)))
        go.touch()
        said = slot.expect(Unkillable, 60.0)
        assert said.attempt == "job.1"
        assert list(said.pids) == marked(mark)
        os.kill(said.pids[0], signal.SIGKILL)
        assert slot.expect(AttemptOver).end.outcome == Exited(0)


def test_cancelling_is_quick_where_nothing_resists(slot: Slot) -> None:
    slot.launch("bash", "-c", "sleep 100 & sleep 100 & wait", grace=60.0)
    slot.expect(ProgramStarted)
    slot.pair.stop("cancelled")
    assert isinstance(slot.expect(AttemptOver).end.outcome, Cancelled)
