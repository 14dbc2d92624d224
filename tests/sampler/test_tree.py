"""Trees of real keepers' attempts, however they fork, and the CPU time of what has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psutil import STATUS_ZOMBIE, NoSuchProcess, Process

from gpulaunch.agent.client import PROGRAM
from gpulaunch.agent.proc import stat_fields
from gpulaunch.engines.client import AttemptOver, ProgramStarted, Spawner, WorkerReaped
from gpulaunch.engines.command import Task
from gpulaunch.observe.sampler.keeper import Keeper, keeper_of, spent_by_all, spent_since
from gpulaunch.observe.sampler.tree import EVERY_THREAD, Trees
from tests.helpers import goes_along, wait_until
from tests.process.conftest import nasty, slot, spawner
from tests.process.support import Slot, keepers_of, marked, token

__all__ = ["nasty", "slot", "spawner"]

BURN = "import time\nwhile time.process_time() < {}: pass\n"


@pytest.fixture
def trees() -> Trees:
    return Trees()


def begun(slot: Slot, *argv: str) -> tuple[int, Keeper]:
    slot.launch(*argv)
    started = slot.expect(ProgramStarted)
    pid, keeper = started.pid, keeper_of(started.pid, started.keeper)
    assert keeper is not None
    return pid, keeper


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", code


def test_a_keeper_is_found_from_its_main_process(spawner: Spawner, slot: Slot) -> None:
    _, keeper = begun(slot, "sleep", "60")
    assert keeper.pid == keepers_of(spawner)[1]
    assert spent_since(keeper) == 0.0


def test_only_the_parent_is_taken_for_a_keeper() -> None:
    assert keeper_of(os.getpid(), 1 if os.getppid() != 1 else 2) is None
    assert keeper_of(2**22 + 1, os.getpid()) is None


def test_daemons_of_daemons_are_of_the_tree(slot: Slot, nasty: str, trees: Trees) -> None:
    mark = token()
    _, keeper = begun(slot, nasty, "daemons", mark)
    wait_until(lambda: daemonised(mark) <= set(tree(trees, keeper)))
    wait_until(lambda: not any(map(is_alive, set(tree(trees, keeper)) - daemonised(mark))))


def daemonised(mark: str) -> set[int]:
    """The job and its three daemons, once they are what they are to be."""
    return wait_until(lambda: found if len(found := set(marked(mark))) == 4 else set())


def test_what_runs_in_a_container_is_of_the_tree_and_a_number_used_anew_is_not(
    slot: Slot, trees: Trees, tmp_path: Path
) -> None:
    """A container's first process is no descendant of the keeper: its carrier tells its number."""
    _, keeper = begun(slot, "sleep", "60")
    outside = subprocess.Popen(["sh", "-c", "sleep 60; true"], preexec_fn=goes_along())
    told = tmp_path / "pid"
    try:
        first = wait_until(lambda: Process(outside.pid).children())[0].pid
        start = stat_fields(outside.pid)[19].decode()
        told.write_text(f"{outside.pid} {start}\n")
        within = {keeper: str(told)}
        assert {outside.pid, first} <= set(trees.look([keeper], within)[keeper].processes)
        told.write_text(f"{outside.pid} {int(start) - 1}\n")
        assert outside.pid not in trees.look([keeper], within)[keeper].processes
        told.write_text("0 0\n")
        assert outside.pid not in trees.look([keeper], within)[keeper].processes
    finally:
        Process(outside.pid).children()[0].kill()
        outside.wait()


def is_alive(pid: int) -> bool:
    try:
        return Process(pid).status() != STATUS_ZOMBIE
    except NoSuchProcess:
        return False


def tree(trees: Trees, keeper: Keeper) -> dict[int, float]:
    return trees.look([keeper])[keeper].processes


def test_resident_memory_is_that_of_the_whole_tree(slot: Slot, trees: Trees) -> None:
    code = (
        "import os, time\n"
        "held = b'x' * (40 << 20)\n"
        "if os.fork() == 0: more = b'y' * (30 << 20)\n"
        "open(f'{os.getpid()}.up', 'w').close()\n"
        "time.sleep(60)\n"
    )
    _, keeper = begun(slot, *python(f"import os; os.chdir({str(slot.folder)!r})\n{code}"))
    wait_until(lambda: len(list(slot.folder.glob("*.up"))) == 2)
    resident = trees.look([keeper])[keeper].resident
    assert 80 << 20 < resident + (40 << 20) < 250 << 20


def test_the_cpu_time_of_what_ended_is_counted(slot: Slot, trees: Trees) -> None:
    child = f"subprocess.run([sys.executable, '-S', '-c', {BURN.format(0.3)!r}])"
    code = f"import subprocess, sys, time\n{child}\n{child}\nprint(flush=True)\ntime.sleep(60)"
    _, keeper = begun(slot, *python(code))
    wait_until(lambda: slot.log.exists() and slot.log.stat().st_size)
    looked = trees.look([keeper])[keeper]
    assert len(looked.processes) == 1
    assert 0.55 <= looked.cpu_seconds <= 2.0


def test_an_orphans_cpu_time_is_counted_when_it_is_gone(slot: Slot, trees: Trees) -> None:
    """Its parent is gone as well: the keeper alone has waited for it."""
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        f"        {BURN.format(0.4).strip().replace(chr(10), chr(10) + '        ')}\n"
        "        open(sys.argv[1], 'w').close()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(60)\n"
    )
    done = slot.folder / "done"
    pid, keeper = begun(slot, *python(code), str(done))
    wait_until(lambda: done.exists() and set(tree(trees, keeper)) == {pid})
    assert 0.35 <= trees.look([keeper])[keeper].cpu_seconds <= 2.0


def test_an_attempts_time_is_exact_at_its_end_and_begins_anew_with_the_next(slot: Slot) -> None:
    for seconds in (0.5, 0.2):
        _, keeper = begun(slot, *python(BURN.format(seconds)))
        slot.expect(AttemptOver)
        spent = spent_since(keeper)
        assert spent is not None
        assert seconds - 0.02 <= spent <= seconds + 0.3


def test_children_of_other_threads_are_found_within_some_looks(slot: Slot, trees: Trees) -> None:
    code = (
        "import threading, subprocess, time\n"
        "def late():\n"
        "    held = subprocess.Popen(['sleep', '60'])\n"
        "    print(flush=True)\n"
        "    time.sleep(60)\n"
        "import sys; sys.stdin.read()\n"
        "threading.Thread(target=late).start()\n"
        "time.sleep(60)\n"
    )
    _, keeper = begun(slot, *python(code))
    wait_until(lambda: slot.log.exists() and slot.log.stat().st_size)
    for _ in range(EVERY_THREAD):
        found = tree(trees, keeper)
    assert len(found) == 2


def test_a_kernel_without_lists_of_children_will_do(
    slot: Slot, nasty: str, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int, tid: str) -> list[int]:
        raise FileNotFoundError(f"/proc/{pid}/task/{tid}/children")

    monkeypatch.setattr("gpulaunch.observe.sampler.tree._children_of", missing)
    mark = token()
    _, keeper = begun(slot, nasty, "daemons", mark)
    wait_until(lambda: daemonised(mark) <= set(tree(trees, keeper)))


def test_a_keeper_that_is_gone_has_no_tree(slot: Slot, trees: Trees) -> None:
    _, keeper = begun(slot, "sleep", "60")
    assert trees.look([keeper])
    gone = Keeper(keeper.pid, keeper.start + 1, 0.0)  # its number is somebody else's by now
    assert trees.look([gone]) == {}
    assert spent_since(gone) is None


def test_of_a_worker_only_what_an_item_itself_spent_is_counted(
    slot: Slot, trees: Trees, tmp_path: Path
) -> None:
    (tmp_path / "made.py").write_text(
        "import time\n"
        "def act(item):\n"
        "    end = time.process_time() + float(item.seconds)\n"
        "    while time.process_time() < end: pass\n"
    )
    argv = (sys.executable, PROGRAM, "worker", "call", f"{tmp_path}/made.py:act", "")

    def item(seconds: str) -> Keeper:
        task = Task("k", {"seconds": seconds})
        slot.launch(*argv, task=task, cwd=str(tmp_path))
        started = slot.expect(ProgramStarted)
        keeper = keeper_of(started.pid, started.keeper, goes_on=slot.number > 1)
        assert keeper is not None
        return keeper

    item("1.0")
    assert slot.expect(AttemptOver).kept
    keeper = item("0.3")
    slot.expect(AttemptOver)
    spent, seen = spent_by_all(keeper), trees.look([keeper])[keeper].cpu_seconds
    assert spent is not None
    assert 0.2 <= spent < 0.9
    assert 0.2 <= seen < 0.9
    keeper = item("0.3")
    slot.expect(AttemptOver)
    slot.pair.retire()
    slot.expect(WorkerReaped)
    whole = spent_since(keeper)
    assert whole is not None
    assert 0.2 <= whole < 0.9
