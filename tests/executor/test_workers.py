"""A worker's life and death: one item lost at most, the executor repaired, nobody left behind."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future, wait
from pathlib import Path
from typing import Any

import pytest

from gpulaunch import GpuExecutor
from gpulaunch.base.files import locked_directory
from gpulaunch.executor import BrokenGpuExecutorError, GpuFuture, RemoteError, WorkerDiedError
from tests.executor import script, work
from tests.helpers import descriptors_left, open_files, wait_until


@pytest.fixture(scope="module")
def executor() -> Iterator[GpuExecutor]:
    """One worker, for the tests that leave it as they found it or repaired."""
    with GpuExecutor(simulate=1) as made:
        yield made


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def death(future: Future[Any]) -> WorkerDiedError:
    error = future.exception(60)
    assert isinstance(error, WorkerDiedError), error
    assert not isinstance(error, BrokenExecutor)
    return error


# ── Death ───────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_dies_costs_one_item(executor: GpuExecutor) -> None:
    sent: list[Future[Any]] = [executor.submit(work.double, 1)]
    sent.append(executor.submit(work.kill_me))
    sent.extend(executor.submit(work.double, n) for n in range(3))
    assert death(sent[1]).signal == signal.SIGKILL
    assert [sent[0].result(60), *(future.result(60) for future in sent[2:])] == [2, 0, 2, 4]


def test_a_death_names_the_signal_the_card_and_the_last_words(executor: GpuExecutor) -> None:
    error = death(executor.submit(work.crash))
    assert (error.signal, error.exit_code) == (signal.SIGSEGV, None)
    assert error.gpu is not None
    assert error.gpu.uuid == "SIM-0"
    assert "the worker on card 0 (SIM-0) was killed by SIGSEGV" in str(error)
    assert "in crash" in error.stderr, "where Python was, by faulthandler"
    assert error.stderr in str(error)


def test_a_death_by_exit_names_the_status(executor: GpuExecutor) -> None:
    error = death(executor.submit(work.leave, 7, "x" * 10_000 + " the end"))
    assert (error.signal, error.exit_code) == (None, 7)
    assert "exited with status 7" in str(error)
    assert error.stderr.endswith("x the end")
    assert len(error.stderr) <= 4096


def test_a_death_can_be_pickled(executor: GpuExecutor) -> None:
    import pickle

    error = death(executor.submit(work.leave, 3, "words"))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.exit_code, copy.gpu) == (str(error), 3, error.gpu)


def test_a_worker_that_dies_while_idle_costs_nothing(executor: GpuExecutor) -> None:
    for _ in range(3):
        os.kill(executor.submit(work.pid).result(60), signal.SIGKILL)
        # At once: some of them reach the dead one first.
        assert [executor.submit(work.double, n).result(60) for n in range(3)] == [0, 2, 4]


def test_an_item_that_a_dead_worker_did_not_begin_is_done_at_shutdown_too() -> None:
    for _ in range(3):
        executor = GpuExecutor(simulate=1)
        os.kill(executor.submit(work.pid).result(60), signal.SIGKILL)
        future = executor.submit(work.double, 4)
        executor.shutdown()
        assert future.result(0) == 8


def test_a_function_that_closes_what_is_not_its_own_ends_its_worker(executor: GpuExecutor) -> None:
    error = death(executor.submit(work.close_everything))
    assert error.exit_code == 70
    assert "connection to its executor is closed" in str(error)
    assert executor.submit(work.double, 2).result(60) == 4


def test_standard_streams_may_be_closed(executor: GpuExecutor) -> None:
    before = executor.submit(work.pid).result(60)
    assert executor.submit(work.close_standard_streams).result(60) == "closed"
    assert executor.submit(work.pid).result(60) == before
    os.kill(before, signal.SIGKILL)


def test_what_a_function_leaves_running_ends_with_its_worker(
    executor: GpuExecutor, tmp_path: Path
) -> None:
    note = tmp_path / "daemon"
    executor.submit(work.daemonise, str(note)).result(60)
    daemon = int(note.read_text())
    assert alive(daemon)
    executor.submit(work.leave, 1).exception(60)
    wait_until(lambda: not alive(daemon), 60)


def test_workers_that_die_at_their_start_are_replaced(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    with GpuExecutor(
        simulate=1, initializer=work.fail_to_begin, initargs=(str(tries), 2)
    ) as executor:
        assert executor.submit(work.double, 1).result(60) == 2
    assert tries.read_text() == "xxx"


def test_workers_that_die_at_every_start_break_the_executor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = tmp_path / "tries"
    executor = GpuExecutor(simulate=1, initializer=work.fail_to_begin, initargs=(str(tries), 1000))
    with caplog.at_level(logging.WARNING, "gpulaunch.executor"), executor:
        sent = [executor.submit(work.double, n) for n in range(3)]
        errors = [future.exception(60) for future in sent]
        with pytest.raises(BrokenGpuExecutorError):
            executor.submit(work.double, 1)
    assert all(isinstance(error, BrokenGpuExecutorError) for error in errors)
    assert "exited with status 9 before it was ready" in str(errors[0])
    assert tries.read_text() == "xxx"
    assert "a worker did not become ready" in caplog.text


def test_an_initializers_exception_is_the_cause() -> None:
    with GpuExecutor(simulate=2, initializer=work.refuse_to_begin) as executor:
        error = executor.submit(work.double, 1).exception(60)
        assert isinstance(error, BrokenGpuExecutorError)
        assert "its initializer failed: RuntimeError: no model here" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
        assert "in refuse_to_begin" in str(error.__cause__.__cause__)


def test_a_worker_whose_greeting_has_no_meaning_is_ended() -> None:
    with GpuExecutor(simulate=1, initializer=work.send_a_result) as executor:
        error = executor.submit(work.double, 1).exception(60)
        assert isinstance(error, BrokenGpuExecutorError)
        assert "before it was ready" in str(error)


# ── Ahead: items that a worker has before it has begun them ─────────────────────────────────────


def sent_ahead(
    executor: GpuExecutor, gate: Path, first: Sequence[Any], others: Sequence[Sequence[Any]]
) -> tuple[GpuFuture[Any], list[GpuFuture[Any]]]:
    """The futures of these calls; `first` runs, and the others, four at most, are ahead then.

    They are submitted while their worker is held up by another item: else it may find none to take.
    """
    executor.submit(work.wait_for, str(gate))
    running = executor.submit(*first)
    waiting = [executor.submit(*call) for call in others]
    gate.touch()
    wait_until(lambda: running.running() and all(future.place for future in waiting), 60)
    return running, waiting


def test_those_who_kill_their_workers_cost_nobody_else(executor: GpuExecutor) -> None:
    sent: list[Future[Any]] = [executor.submit(work.kill_me) for _ in range(6)]
    others = [executor.submit(work.double, n) for n in range(3)]
    assert [death(future).signal for future in sent] == [signal.SIGKILL] * 6
    assert [future.result(60) for future in others] == [0, 2, 4]


def test_what_is_ahead_at_a_worker_that_dies_is_begun_by_another(
    executor: GpuExecutor, tmp_path: Path
) -> None:
    here = str(tmp_path / "here")
    before = executor.submit(work.pid).result(60)
    running, waiting = sent_ahead(
        executor, tmp_path / "gate", (work.appear_and_wait, here, "/never"), [(work.pid,)] * 3
    )
    blocked = [executor.submit(work.double, n) for n in range(9)]
    work.wait_for(here)
    os.kill(before, signal.SIGKILL)
    assert death(running).signal == signal.SIGKILL
    assert {future.result(60) for future in waiting} == {executor.submit(work.pid).result(60)}
    assert [future.result(60) for future in blocked] == [2 * n for n in range(9)]


def test_what_is_ahead_does_not_run_once_it_is_cancelled(
    executor: GpuExecutor, tmp_path: Path
) -> None:
    here, go = str(tmp_path / "here"), tmp_path / "go"
    names = [str(tmp_path / f"ran-{n}") for n in range(3)]
    first, *others = ((work.appear_and_wait, name, str(go)) for name in (here, *names))
    running, waiting = sent_ahead(executor, tmp_path / "gate", first, others)
    work.wait_for(here)
    assert [future.running() for future in [running, *waiting]] == [True, False, False, False]
    assert waiting[1].gpu is None
    assert waiting[1].cancel()
    other = threading.Thread(target=waiting[2].cancel)
    other.start()
    other.join()
    assert not running.cancel()
    go.touch()
    assert waiting[0].result(60) == names[0]
    wait(waiting, 60)
    assert [os.path.exists(name) for name in names] == [True, False, False]
    assert waiting[2].cancelled()


def test_what_is_ahead_is_cancelled_at_shutdown(tmp_path: Path) -> None:
    here, go = str(tmp_path / "here"), tmp_path / "go"
    executor = GpuExecutor(simulate=1)
    first = (work.appear_and_wait, here, str(go))
    running, waiting = sent_ahead(executor, tmp_path / "gate", first, [(work.double, 1)] * 3)
    waiting += [executor.submit(work.double, n) for n in range(8)]
    work.wait_for(here)
    executor.shutdown(wait=False, cancel_futures=True)
    wait(waiting, 60)
    assert all(future.cancelled() for future in waiting)
    go.touch()
    executor.shutdown()
    assert running.result(0) == here


def test_no_worker_is_idle_while_another_has_items_ahead(tmp_path: Path) -> None:
    here, go, never = (str(tmp_path / name) for name in ("here", "go", "never"))
    with GpuExecutor(simulate=2) as executor:
        both = [executor.submit(work.appear_and_wait, here + end, go) for end in "ab"]
        wait_until(lambda: all(future.running() for future in both), 60)
        long = executor.submit(work.appear_and_wait, here, never)
        short = [executor.submit(work.double, n) for n in range(200)]
        Path(go).touch()
        assert [future.result(60) for future in short] == [2 * n for n in range(200)]
        assert long.running()
        Path(never).touch()


def test_a_worker_gets_no_more_ahead_than_it_is_to_run() -> None:
    with GpuExecutor(simulate=1, max_tasks_per_child=3) as executor:
        found = list(executor.map(work.count_here, range(8)))
    assert found == [1, 2, 3, 1, 2, 3, 1, 2]


def test_large_and_small_items_keep_their_order(executor: GpuExecutor) -> None:
    sizes = [1, 100_000, 2, 3, 20_000, 5_000, 4_000_000, 1]
    found = list(executor.map(work.echo, [bytes(size) for size in sizes]))
    assert [len(one) for one in found] == sizes


def test_an_item_ahead_that_does_not_pickle_fails_alone(executor: GpuExecutor) -> None:
    values = [1, threading.Lock(), 2, threading.Lock(), 3]
    sent = [executor.submit(work.echo, value) for value in values]
    errors = [future.exception(60) for future in sent]
    assert [error is None for error in errors] == [True, False, True, False, True]


# ── What comes back ─────────────────────────────────────────────────────────────────────────────


def test_an_exception_that_does_not_pickle_is_told_in_words(executor: GpuExecutor) -> None:
    error = executor.submit(work.raise_it, work.NotForPickles, "lost").exception(60)
    assert isinstance(error, RemoteError)
    assert "NotForPickles: lost" in str(error)
    assert "in raise_it" in str(error.__cause__)


def test_an_exception_that_cannot_be_made_again_is_told_in_words(executor: GpuExecutor) -> None:
    error = executor.submit(work.raise_it, work.NotBackAgain, "a", "b").exception(60)
    assert isinstance(error, RemoteError)
    assert "NotBackAgain: a" in str(error)
    assert executor.submit(work.double, 2).result(60) == 4


def test_a_result_that_cannot_be_read_fails_its_future_alone(executor: GpuExecutor) -> None:
    before = executor.submit(work.pid).result(60)
    with pytest.raises(ValueError, match="not to be read"):
        executor.submit(work.unread).result(60)
    assert executor.submit(work.pid).result(60) == before


def test_functions_can_be_results(executor: GpuExecutor) -> None:
    assert executor.submit(work.a_lambda).result(60)() == 41
    assert executor.submit(lambda x: x + 1, 1).result(60) == 2


def test_a_future_names_its_card(executor: GpuExecutor) -> None:
    future = executor.submit(work.environment, "GPULAUNCH_GPU_UUID")
    assert isinstance(future, GpuFuture)
    assert future.result(60) == "SIM-0"
    assert future.gpu is not None
    assert future.gpu.uuid == "SIM-0"
    assert executor.gpus == (future.gpu,)


def test_nothing_of_an_item_is_kept(executor: GpuExecutor) -> None:
    class Big:
        pass

    argument = Big()
    gone = weakref.ref(argument)
    executor.submit(id, argument).result(60)
    del argument
    gc.collect()
    executor.submit(work.double, 1).result(60)
    assert gone() is None


# ── Order and size of work ──────────────────────────────────────────────────────────────────────


def test_workers_are_started_as_items_come(tmp_path: Path) -> None:
    with GpuExecutor(simulate=3) as executor:
        assert executor.gpus == ()
        for n in range(3):
            executor.submit(work.double, n).result(60)
        assert len(executor.gpus) == 1
        marks = [str(tmp_path / name) for name in "ab"]
        crossed = [executor.submit(work.appear_and_wait, *pair) for pair in (marks, marks[::-1])]
        wait(crossed, 60)
        assert len(executor.gpus) == 2
    assert executor.gpus == ()


def test_map_reads_its_inputs_as_they_are_needed(executor: GpuExecutor) -> None:
    read: list[int] = []

    def inputs() -> Iterator[int]:
        n = 0
        while True:
            read.append(n)
            yield n
            n += 1

    found = executor.map(work.double, inputs(), buffersize=3, chunksize=2)
    assert len(read) == 6
    assert [next(found) for _ in range(4)] == [0, 2, 4, 6]
    assert len(read) == 10
    found.close()  # type: ignore[attr-defined]


def test_workers_import_next_to_nothing(executor: GpuExecutor) -> None:
    assert list(executor.map(work.double, range(3), chunksize=2)) == [0, 2, 4]
    found = executor.submit(work.modules).result(60)
    assert not {"gpulaunch.executor.pool", "gpulaunch.core.run", "gpulaunch.engines"} & found


def test_a_map_that_is_given_up_cancels_what_waits(executor: GpuExecutor, tmp_path: Path) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    blocker = executor.submit(work.appear_and_wait, str(tmp_path / "here"), str(go))
    found = executor.map(work.appear_and_wait, [str(ran)] * 3, [str(go)] * 3, timeout=0)
    with pytest.raises(futures.TimeoutError):
        next(found)
    go.touch()
    blocker.result(60)
    executor.submit(work.double, 1).result(60)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"simulate": 0}, "simulate: expected at least 1, found 0"),
        ({"simulate": 1, "per_gpu": 0}, "per_gpu: expected at least 1"),
        ({"simulate": 1, "gpus": 0}, "gpus: expected at least 1"),
        ({"simulate": 1, "max_tasks_per_child": 0}, "max_tasks_per_child: expected at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        GpuExecutor(**options)


def test_an_initializer_that_does_not_pickle_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        GpuExecutor(simulate=1, initializer=work.echo, initargs=(threading.Lock(),))


def test_as_many_workers_as_it_may_have_are_told_to_who_asks_as_dask_does() -> None:
    with GpuExecutor(simulate=3, per_gpu=2) as executor:
        assert executor._max_workers == 6


def test_an_executor_that_nobody_has_any_more_gives_its_card_back(tmp_path: Path) -> None:
    executor = GpuExecutor(simulate=1)
    worker = executor.submit(work.pid).result(60)
    del executor
    gc.collect()
    wait_until(lambda: not alive(worker), 60)


def test_an_executor_cannot_be_sent(executor: GpuExecutor) -> None:
    error = executor.submit(work.echo, executor).exception(60)
    assert "a GpuExecutor cannot be pickled" in str(error)


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────


def test_a_callback_may_shut_its_executor_down() -> None:
    executor = GpuExecutor(simulate=1)
    done = threading.Event()

    def shut(_: Future[int]) -> None:
        executor.shutdown(wait=True)
        done.set()

    executor.submit(work.double, 1).add_done_callback(shut)
    assert done.wait(60)
    executor.shutdown()


def test_terminating_ends_what_runs_and_cancels_what_waits(tmp_path: Path) -> None:
    here = tmp_path / "here"
    executor = GpuExecutor(simulate=1)
    running = executor.submit(work.appear_and_wait, str(here), str(tmp_path / "never"))
    waiting = executor.submit(work.double, 1)
    work.wait_for(str(here))
    executor.terminate_workers()
    assert isinstance(running.exception(0), BrokenGpuExecutorError)
    assert waiting.cancelled()
    assert executor.gpus == ()


def test_a_ctrl_c_in_a_with_block_ends_its_workers(tmp_path: Path) -> None:
    here = tmp_path / "here"
    sent: list[Future[str]] = []

    def interrupted() -> None:
        with GpuExecutor(simulate=1) as executor:
            sent.append(executor.submit(work.appear_and_wait, str(here), str(tmp_path / "never")))
            work.wait_for(str(here))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert isinstance(sent[0].exception(0), BrokenGpuExecutorError)


def test_an_executor_gives_all_its_descriptors_and_threads_back() -> None:
    with GpuExecutor(simulate=1) as executor:
        executor.submit(work.leave, 1).exception(60)
    threads, before = threading.active_count(), open_files()
    for _ in range(3):
        with GpuExecutor(simulate=2) as executor:
            list(executor.map(work.double, range(4)))
            executor.submit(work.leave, 1).exception(60)
            assert executor.submit(work.double, 1).result(60) == 2
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads, 60)
    wait_until(lambda: not open_files() - before, 60)


KILLED_IN_BETWEEN = """
import os, signal
from gpulaunch import GpuExecutor
from gpulaunch.executor.worker_slot import WorkerSlot
from tests.executor import work
if __name__ == "__main__":
    WorkerSlot.put_away = lambda slot: os.kill(os.getpid(), signal.SIGKILL)
    with GpuExecutor(simulate=1) as executor:
        executor.submit(work.double, 1).result(60)
"""
LATER = """
from gpulaunch import GpuExecutor
from tests.executor import work
if __name__ == "__main__":
    with GpuExecutor(simulate=1) as executor:
        print(executor.submit(work.double, 1).result(60))
"""


def test_the_next_executor_removes_the_files_that_a_killed_one_left(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    env = {"TMPDIR": str(place)}
    (place / "gpulaunch-worker-file").touch()
    held = place / "gpulaunch-worker-held"
    held.mkdir()
    lock = locked_directory(str(held), fcntl.LOCK_SH)
    assert lock is not None
    assert script.run(tmp_path / "killed.py", KILLED_IN_BETWEEN, env=env)[2] == -signal.SIGKILL
    assert len(list(place.iterdir())) == 3
    assert script.run(tmp_path / "later.py", LATER, env=env) == ("2\n", "", 0)
    assert {path.name for path in place.iterdir()} == {held.name, "gpulaunch-worker-file"}
    os.close(lock)


def test_scarce_descriptors_delay_workers_and_fail_nothing(tmp_path: Path) -> None:
    here, go = tmp_path / "here", tmp_path / "go"
    with GpuExecutor(simulate=2) as executor:
        first = executor.submit(work.appear_and_wait, str(here), str(go))
        work.wait_for(str(here))
        with descriptors_left(3):
            second = executor.submit(work.double, 4)
            with pytest.raises(futures.TimeoutError):
                second.result(0.5)
        assert second.result(60) == 8
        assert not first.done()
        go.touch()


def test_idle_workers_wake_nobody(executor: GpuExecutor) -> None:
    pid = executor.submit(work.pid).result(60)

    def switches() -> list[str]:
        found = []
        for thread in executor._manager.threads:
            assert thread.native_id is not None
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            found.append(status.split("voluntary_ctxt_switches:")[1].split()[0])
        found.append(Path(f"/proc/{pid}/status").read_text().split("_switches:")[1].split()[0])
        return found

    for _ in range(60):
        before = switches()
        threading.Event().wait(1.0)
        if switches() == before:
            return
    raise AssertionError("they never rest for a second")


# ── A short story of everything at once ─────────────────────────────────────────────────────────


def test_many_items_with_deaths_errors_and_cancels_all_come_out() -> None:
    import random

    dice = random.Random(7)
    kinds = [work.double] * 12 + [work.ratio, work.leave, work.kill_me]
    with GpuExecutor(simulate=3, max_tasks_per_child=15) as executor:
        sent = []
        for n in range(120):
            kind = dice.choice(kinds)
            arguments = () if kind is work.kill_me else (n % 40,)
            sent.append((kind, n % 40, executor.submit(kind, *arguments)))
            if dice.random() < 0.1:
                sent[dice.randrange(len(sent))][2].cancel()
        wait([future for *_, future in sent], 120)
        for kind, n, future in sent:
            assert future.done()
            if future.cancelled():
                continue
            error = future.exception(0)
            if kind is work.double:
                assert error is None, error
                assert future.result(0) == 2 * n
            elif kind is work.ratio:
                assert isinstance(error, ZeroDivisionError) == (n == 0)
            else:
                assert isinstance(error, WorkerDiedError)
