"""The supervisor's side: descriptors, a spawner that dies, pairs that are gone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.model import Exited
from gpulaunch.engines.client import (
    AttemptOver,
    Gone,
    ProgramStarted,
    Spawner,
    SpawnerGoneError,
    reap,
)
from tests.helpers import open_files, wait_until
from tests.process.support import Slot, children_of


def test_two_hundred_launches_leak_no_descriptor(tmp_path: Path, keeper: str) -> None:
    before = open_files()
    with Spawner(keeper) as spawner:
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            with Slot(spawner, folder) as slot:
                for _ in range(10):
                    slot.run("true")
                slot.finish()
        wait_until(lambda: children_of(spawner.pid) == [])
        held = len(os.listdir(f"/proc/{spawner.pid}/fd"))
    assert held == 5  # standard ones, the supervisor's socket, and what tells of children
    assert not open_files() - before


def test_a_dead_spawner_is_noticed_its_pairs_live_on_and_another_takes_over(
    tmp_path: Path, keeper: str
) -> None:
    with Spawner(keeper) as spawner, Slot(spawner, tmp_path) as slot:
        slot.launch("sleep", "0.3")
        slot.expect(ProgramStarted)
        assert select.select([spawner], [], [], 0)[0] == []
        os.kill(spawner.pid, signal.SIGKILL)
        assert select.select([spawner], [], [], 5)[0] == [spawner]
        with pytest.raises(SpawnerGoneError):
            spawner.pair()
        assert slot.expect(AttemptOver).end.outcome == Exited(0)
        (tmp_path / "next").mkdir()
        with Spawner(keeper) as other, Slot(other, tmp_path / "next") as next_slot:
            assert next_slot.run("true").end.outcome == Exited(0)
        assert slot.run("true").end.outcome == Exited(0)
        slot.finish()


def test_a_pair_on_its_way_when_the_spawner_dies_has_not_begun_what_was_launched(
    tmp_path: Path, keeper: str
) -> None:
    with Spawner(keeper) as spawner:
        os.kill(spawner.pid, signal.SIGSTOP)
        with Slot(spawner, tmp_path) as slot:
            slot.launch("true")
            os.kill(spawner.pid, signal.SIGKILL)
            assert slot.expect(Gone) == Gone("job.1", unread=True)
            slot.pair.stop("cancelled")
            assert slot.pair.on_readable() == []


def test_a_launch_that_may_have_been_read_is_the_pairs_own(tmp_path: Path, keeper: str) -> None:
    """Only the stop after it may be what the pair left unread."""
    with Spawner(keeper) as spawner:
        os.kill(spawner.pid, signal.SIGSTOP)
        with Slot(spawner, tmp_path) as slot:
            slot.launch("true")
            slot.pair.stop("cancelled")
            os.kill(spawner.pid, signal.SIGKILL)
            assert slot.expect(Gone) == Gone("job.1")


def test_a_program_that_is_not_there_is_one_clear_error() -> None:
    before = open_files()
    with pytest.raises(GpulaunchError, match="/no/keeper cannot be started: No such file"):
        Spawner("/no/keeper")
    assert not open_files() - before


def test_a_program_that_is_no_keeper_is_noticed_as_a_dead_spawner() -> None:
    with Spawner("/bin/false") as spawner:
        assert select.select([spawner], [], [], 5)[0] == [spawner]
        with pytest.raises(SpawnerGoneError):
            spawner.pair()


def test_an_idle_pair_finishes_when_asked_and_a_busy_one_refuses(slot: Slot) -> None:
    slot.launch("sleep", "100", grace=0.1)
    with pytest.raises(RuntimeError):
        slot.pair.end()
    with pytest.raises(RuntimeError):
        slot.launch("true")
    slot.pair.stop("cancelled")
    slot.expect(AttemptOver)
    slot.pair.end()
    assert slot.expect(Gone).attempt is None


def test_closing_the_pair_ends_its_job(spawner: Spawner, slot: Slot) -> None:
    slot.launch("sleep", "100")
    started = slot.expect(ProgramStarted)
    slot.pair.close()
    wait_until(lambda: not Path(f"/proc/{started.pid}").exists())
    wait_until(slot.end)
    wait_until(lambda: children_of(spawner.pid) == [])


def test_a_closed_spawner_leaves_its_pairs_to_finish(tmp_path: Path, keeper: str) -> None:
    spawner = Spawner(keeper)
    with Slot(spawner, tmp_path) as slot:
        slot.launch("sleep", "0.2")
        slot.expect(ProgramStarted)
        pid = spawner.pid
        spawner.close()
        assert slot.expect(AttemptOver).end.outcome == Exited(0)
        slot.finish()
    os.waitpid(pid, 0)  # it ended by itself


def test_a_spawner_that_outlived_its_closing_is_reaped_when_the_next_one_comes(
    tmp_path: Path, keeper: str
) -> None:
    spawner = Spawner(keeper)
    with Slot(spawner, tmp_path) as slot:
        slot.launch("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done")
        slot.expect(ProgramStarted)
        stat = Path(f"/proc/{spawner.pid}/stat")
        spawner.close()
        assert reap() == 1
        (tmp_path / "go").touch()
        slot.expect(AttemptOver)
        slot.finish()
    wait_until(lambda: ") Z" in stat.read_text())
    with Spawner(keeper):
        assert not stat.exists()


def test_idle_keepers_do_not_wake(spawner: Spawner, slot: Slot) -> None:
    slot.launch("sleep", "1.0", timeout=100.0, idle_timeout=50.0)
    slot.expect(ProgramStarted)
    pids = [spawner.pid, *children_of(spawner.pid)]
    pids += children_of(pids[1])

    def switches() -> list[str]:
        lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids]
        return [line for text in lines for line in text if line.startswith("voluntary")]

    wait_until(lambda: all(b") S" in Path(f"/proc/{p}/stat").read_bytes() for p in pids))
    before = switches()
    assert select.select([slot.pair], [], [], 0.4)[0] == []
    assert switches() == before
    slot.expect(AttemptOver)


ALONE = """
import sys
from pathlib import Path
from gpulaunch.engines.client import Spawner
from tests.process.support import Slot
with Spawner(sys.argv[2]) as spawner, Slot(spawner, Path(sys.argv[1])) as slot:
    slot.run("env")
    slot.finish()
"""


@pytest.mark.parametrize("streams", ["", "<&-", "<&- >&- 2>&-"])
def test_a_bare_supervisor_hands_on_its_environment_and_nothing_else(
    tmp_path: Path, keeper: str, streams: str
) -> None:
    """In the C locale, where Python sets a variable of its own; with standard streams closed."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    script = f'exec "$0" -c "$1" "$2" "$3" {streams}'
    subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, ALONE, str(tmp_path), keeper],
        env=given,
        check=True,
    )
    lines = (tmp_path / "1.log").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert {name: found[name] for name in given} == given
    assert set(found) - set(given) <= {"PWD", "OLDPWD", "SHLVL", "_"}  # the shell's


def test_a_python_built_for_an_old_libc_launches_as_well(
    tmp_path: Path, keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with Spawner(keeper) as spawner, Slot(spawner, tmp_path) as slot:
        assert slot.run("printf", "%s", "x" * 100_000).end.outcome == Exited(0)
        assert slot.log.stat().st_size == 100_000
        slot.finish()
