"""Cards: an executor's leases are like everybody's, and its workers see their own card alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import wait
from pathlib import Path

import pytest

from gpulaunch import GpuExecutor
from gpulaunch.base.errors import GpulaunchError, NoCardsError, UsageError
from gpulaunch.executor import BrokenGpuExecutorError, NoCardsForExecutorError
from gpulaunch.gpus.discover import simulated
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.socket_locks import NameHeldError
from tests.cli.launcher import COMMAND, Launcher
from tests.executor import script, work
from tests.helpers import wait_until


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> str:
    """Pretend cards that all launchers of this test share."""
    name = uuid.uuid4().hex[:12]
    monkeypatch.setenv("GPULAUNCH_SIM_POOL", name)
    return name


def is_leased(pool: str, card: int) -> bool:
    try:
        take(simulated(card + 1, pool)[card].key).close()
    except NameHeldError:
        return True
    return False


# ── Which ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("gpus", "found"), [("all", 3), (2, 2), ([0, 2], 2), ("SIM-1", 1), (["SIM-0", 1], 2), ("2", 2)]
)
def test_cards_are_chosen_in_the_projects_words(
    tmp_path: Path, gpus: str | int | list[int | str], found: int
) -> None:
    executor = GpuExecutor(gpus, simulate=3)
    assert executor._manager._pool.size == found


def test_workers_run_on_the_cards_that_were_chosen() -> None:
    with GpuExecutor([2], simulate=3) as executor:
        assert executor.submit(work.environment, "GPULAUNCH_GPU_INDEX").result(60) == "2"


@pytest.mark.parametrize(
    ("gpus", "words"),
    [([7], "there is no card 7"), ("every", "expected all, a number"), ("", "it is empty")],
)
def test_cards_that_are_not_there_are_refused(gpus: str | list[int | str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GpuExecutor(gpus, simulate=2)


def test_more_cards_than_there_are_are_refused() -> None:
    with pytest.raises(NoCardsError, match="3 cards were asked for"):
        GpuExecutor(3, simulate=2)


def test_a_machine_without_a_card_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoCardsError, match="simulate=N"):
        GpuExecutor()


# ── What a worker finds ─────────────────────────────────────────────────────────────────────────


def test_each_worker_sees_its_own_card_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MASTER_ADDR", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    marks = [str(tmp_path / name) for name in "ab"]
    with GpuExecutor(simulate=2, cpus=3, env={"MINE": "yes", "HOME": None}) as executor:
        both = [executor.submit(work.appear_and_wait, *pair) for pair in (marks, marks[::-1])]
        wait(both, 60)
        assert {future.gpu.uuid for future in both if future.gpu} == {"SIM-0", "SIM-1"}
        names = (
            "CUDA_DEVICE_ORDER",
            "OMP_NUM_THREADS",
            "MASTER_ADDR",
            "MINE",
            "HOME",
            "PYTHONUNBUFFERED",
        )
        found = list(executor.map(work.environment, names))
        assert found == ["PCI_BUS_ID", "3", "127.0.0.1", "yes", None, "1"]
        mask = executor.submit(work.environment, "CUDA_VISIBLE_DEVICES").result(60)
        assert mask is not None
        assert "," not in mask


def test_env_may_not_set_the_mask() -> None:
    with pytest.raises(UsageError, match="choose cards with gpus="):
        GpuExecutor(simulate=1, env={"CUDA_VISIBLE_DEVICES": "1"})


def test_a_line_below_which_cards_are_free_is_read_as_in_a_job_file() -> None:
    with pytest.raises(UsageError, match=r"free_below='lots': expected memory like 2GB"):
        GpuExecutor(simulate=1, free_below="lots")
    with GpuExecutor(simulate=1, free_below="2GB,5%") as executor:
        assert executor.submit(int, "7").result(60) == 7


def test_workers_may_share_a_card(tmp_path: Path) -> None:
    marks = [str(tmp_path / name) for name in "ab"]
    with GpuExecutor(simulate=1, per_gpu=2) as executor:
        both = [executor.submit(work.appear_and_wait, *pair) for pair in (marks, marks[::-1])]
        assert [future.result(60) for future in both] == marks
        assert len(executor.gpus) == 1


def test_an_executor_in_a_worker_has_that_workers_card() -> None:
    def inner() -> tuple[str, int]:
        with GpuExecutor() as nested:
            return nested.submit(work.gpu_and_pid).result(60)

    with GpuExecutor([1], simulate=2) as executor:
        gpu, pid = executor.submit(inner).result(60)
        assert gpu == "SIM-1"
        assert pid != executor.submit(work.pid).result(60)


def test_inside_a_job_the_cards_are_the_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import sys\n"
        "from gpulaunch import GpuExecutor\n"
        "from tests.executor import work\n"
        "with GpuExecutor() as executor:\n"
        "    pairs = [sys.argv[1:], sys.argv[:0:-1]]\n"
        "    both = [executor.submit(work.appear_and_wait, *pair) for pair in pairs]\n"
        "    print(sorted(f.gpu.uuid for f in both if f.result(60)))\n"
    )
    marks = [str(tmp_path / name) for name in "ab"]
    done = subprocess.run(
        [
            *(*COMMAND, "exec", "--simulate", "3", "--gpus", "[1, 2]", "-g", "2", "--"),
            *(sys.executable, str(file), *marks),
        ],
        env=script.environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "['SIM-1', 'SIM-2']\n", done.stderr


# ── Sharing the machine ─────────────────────────────────────────────────────────────────────────


def test_work_begins_on_the_first_card_while_others_are_busy(pool: str, tmp_path: Path) -> None:
    with take(simulated(2, pool)[0].key) as busy, GpuExecutor(simulate=2) as executor:
        here, go = tmp_path / "here", tmp_path / "go"
        first = executor.submit(work.appear_and_wait, str(here), str(go))
        second = executor.submit(work.environment, "GPULAUNCH_GPU_INDEX")
        work.wait_for(str(here))
        assert [gpu.index for gpu in executor.gpus] == [1]
        busy.close()
        assert second.result(60) == "0", "the other card joined in"
        go.touch()
        first.result(60)


def test_a_card_is_not_taken_for_items_that_are_done_by_then(pool: str) -> None:
    with take(simulated(2, pool)[0].key) as busy, GpuExecutor(simulate=2) as executor:
        sent = [executor.submit(work.double, n) for n in range(6)]
        wait(sent, 60)
        wait_until(lambda: not executor._manager._crew._asked, 60)
        busy.close()
        assert executor.submit(work.double, 1).result(60) == 2
        assert [gpu.index for gpu in executor.gpus] == [1]
        assert not is_leased(pool, 0)
        assert is_leased(pool, 1)
    assert not is_leased(pool, 1), "given back, all of it, when shutdown returns"


def test_a_wait_that_runs_out_fails_what_waits(pool: str) -> None:
    with take(simulated(1, pool)[0].key), GpuExecutor(simulate=1, wait=0.1) as executor:
        future = executor.submit(work.double, 1)
        error = future.exception(60)
        assert isinstance(error, NoCardsForExecutorError | NoCardsError | BrokenGpuExecutorError)
        assert isinstance(error, GpulaunchError)
        assert str(error).startswith("no card came free in time: ")
        with pytest.raises(NoCardsForExecutorError):
            executor.submit(work.double, 1)


def test_who_has_the_card_is_said_once(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    with take(simulated(1, pool)[0].key) as busy, GpuExecutor(simulate=1) as executor:
        futures = [executor.submit(work.double, n) for n in range(3)]
        wait_until(lambda: caplog.messages, 60)
        busy.close()
        assert futures[2].result(60) == 4
    (line,) = caplog.messages
    assert line.startswith("the executor waits for a card: GPU 0 is held by ")
    assert str(os.getpid()) in line


def test_waiting_items_can_be_given_up(pool: str) -> None:
    with take(simulated(1, pool)[0].key), GpuExecutor(simulate=1) as executor:
        future = executor.submit(work.double, 1)
        executor.shutdown(cancel_futures=True)
        assert future.cancelled()


def test_executors_and_a_run_never_share_a_card(pool: str, tmp_path: Path) -> None:
    cards = tmp_path / "cards"
    cards.mkdir()
    launcher = Launcher(tmp_path, {"GPULAUNCH_SIM_POOL": pool})
    code = f"from tests.executor import work; work.hold_card({str(cards)!r}, 0.05)"
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: 'j-{{item}}', foreach: {values: [1, 2, 3, 4]},"
        f' run: [{sys.executable}, -c, "{code}"], env: {{PYTHONPATH: {script.ROOT}}}}}]',
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        threads = [threading.Thread(target=_hold_many, args=(cards,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process.wait(120) == 0
    assert len(list(cards.glob("done-*"))) == 2


def _hold_many(cards: Path) -> None:
    with GpuExecutor(simulate=2, max_tasks_per_child=4) as executor:
        assert set(executor.map(work.hold_card, [str(cards)] * 10)) <= {"0", "1"}
    (cards / f"done-{threading.get_ident()}").touch()


def test_a_card_whose_worker_is_replaced_goes_first_to_one_who_waits(
    pool: str, tmp_path: Path
) -> None:
    here, go, mine = (tmp_path / name for name in ("here", "go", "mine"))
    with GpuExecutor(simulate=1, max_tasks_per_child=1) as executor:
        first = executor.submit(work.appear_and_wait, str(here), str(go))
        second = executor.submit(work.wait_for, str(mine))
        work.wait_for(str(here))
        other = subprocess.Popen(
            [*COMMAND, "exec", "--simulate", "1", "--", "touch", str(mine)],
            stderr=subprocess.PIPE,
            text=True,
        )
        with other:
            assert other.stderr
            assert "gpulaunch exec: " in other.stderr.readline()
            go.touch()
            assert other.wait(60) == 0
        first.result(60)
        second.result(60)
