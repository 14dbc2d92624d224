"""What every executor promises: one suite, run with ProcessPoolExecutor and with GpuExecutor."""

from __future__ import annotations

import concurrent.futures as futures
import multiprocessing
import operator
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gpulaunch import GpuExecutor
from tests.executor import work
from tests.helpers import wait_until

Make: TypeAlias = Callable[..., Executor]


def process_pool(workers: int = 1, **options: Any) -> Executor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, **options)


def gpu_executor(workers: int = 1, **options: Any) -> Executor:
    return GpuExecutor(simulate=workers, **options)


MAKES = [pytest.param(process_pool, id="processes"), pytest.param(gpu_executor, id="gpu")]


@pytest.fixture(scope="module", params=MAKES)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """One worker, for the tests that leave it as they found it."""
    with request.param() as made:
        yield made


@pytest.fixture(params=MAKES)
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


# ── Results and exceptions ──────────────────────────────────────────────────────────────────────


def test_a_call_gives_its_result(executor: Executor) -> None:
    assert executor.submit(work.add, 1, y=2).result(60) == 3


def test_builtins_and_methods_are_called_as_well(executor: Executor) -> None:
    assert executor.submit(pow, 2, 5).result(60) == 32
    assert executor.submit("a,b".split, ",").result(60) == ["a", "b"]
    assert executor.submit(operator.itemgetter(1), "xyz").result(60) == "y"


def test_an_exception_comes_with_its_traceback_there_as_its_cause(executor: Executor) -> None:
    error = executor.submit(work.fail_from, "deep").exception(60)
    assert isinstance(error, KeyError)
    assert error.args == ("outer",)
    shown = "".join(traceback.format_exception(error))
    assert "work.py" in str(error.__cause__)
    assert "in fail_from" in shown
    assert "ValueError: deep" in shown


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_any_exception_is_the_futures_own(executor: Executor, kind: type[BaseException]) -> None:
    error = executor.submit(work.raise_it, kind, 3).exception(60)
    assert type(error) is kind
    assert error.args == (3,)
    assert executor.submit(work.double, 4).result(60) == 8


def test_too_deep_a_recursion_is_an_exception_like_others(executor: Executor) -> None:
    assert isinstance(executor.submit(work.recurse).exception(60), RecursionError)


def test_arguments_that_do_not_pickle_fail_their_future_alone(executor: Executor) -> None:
    error = executor.submit(work.echo, threading.Lock()).exception(60)
    assert isinstance(error, TypeError | pickle.PicklingError)
    assert executor.submit(work.double, 4).result(60) == 8


def test_results_that_do_not_pickle_fail_their_future_alone(executor: Executor) -> None:
    error = executor.submit(work.generator).exception(60)
    assert isinstance(error, TypeError | pickle.PicklingError)
    assert executor.submit(work.double, 4).result(60) == 8


def test_a_result_larger_than_any_pipe(executor: Executor) -> None:
    values = list(range(300_000))
    assert executor.submit(work.echo, values).result(60) == values


# ── Map ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_keeps_the_order(executor: Executor, chunksize: int) -> None:
    found = executor.map(work.double, range(10), chunksize=chunksize)
    assert list(found) == [2 * n for n in range(10)]


def test_map_ends_with_its_shortest_input(executor: Executor) -> None:
    assert list(executor.map(work.add, [1, 2, 3], [10, 20])) == [11, 22]
    assert list(executor.map(work.double, [])) == []


def test_map_raises_where_the_exception_is_met(executor: Executor) -> None:
    found = executor.map(work.ratio, [1, 2, 0, 4])
    assert [next(found), next(found)] == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_map_refuses_a_chunk_of_nothing(executor: Executor) -> None:
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        executor.map(work.double, [1], chunksize=0)


def test_map_gives_up_after_its_timeout(executor: Executor, tmp_path: Path) -> None:
    here, go = str(tmp_path / "here"), str(tmp_path / "go")
    found = executor.map(work.appear_and_wait, [here], [go], timeout=0)
    with pytest.raises(futures.TimeoutError):
        next(found)
    Path(go).touch()


# ── Futures ─────────────────────────────────────────────────────────────────────────────────────


def test_what_waits_can_be_cancelled_and_what_runs_cannot(
    executor: Executor, tmp_path: Path
) -> None:
    here, go = tmp_path / "here", tmp_path / "go"
    running = executor.submit(work.appear_and_wait, str(here), str(go))
    # ProcessPoolExecutor counts as running what stands in its queue to the workers.
    others = [executor.submit(work.double, n) for n in range(6)]
    work.wait_for(str(here))
    assert not running.cancel()
    assert others[-1].cancel()
    go.touch()
    done, _ = futures.wait([running, *others], timeout=60)
    assert len(done) == 7
    assert others[-1].cancelled()
    with pytest.raises(futures.CancelledError):
        others[-1].result(0)
    assert others[0].result(0) == 0


def test_callbacks_run_and_may_submit_more(executor: Executor) -> None:
    again: list[futures.Future[int]] = []
    there = threading.Event()

    def more(done: futures.Future[int]) -> None:
        again.append(executor.submit(work.double, done.result()))
        there.set()

    executor.submit(work.double, 1).add_done_callback(more)
    assert there.wait(60)
    assert again[0].result(60) == 4


def test_as_completed_gives_every_future_once(executor: Executor) -> None:
    sent = {executor.submit(work.double, n): n for n in range(8)}
    for future in futures.as_completed(sent, timeout=60):
        assert future.result() == 2 * sent.pop(future)
    assert not sent


def test_threads_share_one(executor: Executor) -> None:
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(list(executor.map(work.double, range(5)))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0, 2, 4, 6, 8]] * 4


# ── Initializer, recycling ──────────────────────────────────────────────────────────────────────


def test_an_initializer_runs_once_in_a_worker(make: Make) -> None:
    with make(initializer=work.count) as executor:
        assert [executor.submit(work.count).result(60) for _ in range(2)] == [2, 3]


def test_an_initializer_that_always_fails_breaks_the_executor(make: Make) -> None:
    with make(initializer=work.refuse_to_begin) as executor:
        future = executor.submit(work.double, 1)
        assert isinstance(future.exception(60), futures.BrokenExecutor)
        with pytest.raises(futures.BrokenExecutor):
            executor.submit(work.double, 2)


def test_an_initializer_must_be_callable(make: Make) -> None:
    with pytest.raises(TypeError, match="initializer must be a callable"):
        make(initializer=3)


def test_a_worker_is_replaced_after_so_many_items() -> None:
    with gpu_executor(max_tasks_per_child=2) as executor:
        seen = [executor.submit(work.count).result(60) for _ in range(5)]
    assert seen == [1, 2, 1, 2, 1]


# ── Shutdown ────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_taken_after_shutdown(make: Make) -> None:
    executor = make()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(work.double, 1)
    executor.shutdown()


def test_shutdown_does_what_was_submitted(make: Make) -> None:
    executor = make()
    sent = [executor.submit(work.double, n) for n in range(5)]
    executor.shutdown()
    assert [future.result(0) for future in sent] == [0, 2, 4, 6, 8]


def test_shutdown_without_waiting_does_so_as_well(make: Make) -> None:
    executor = make()
    sent = [executor.submit(work.double, n) for n in range(5)]
    executor.shutdown(wait=False)
    assert [future.result(60) for future in sent] == [0, 2, 4, 6, 8]
    executor.shutdown()


def test_shutdown_can_cancel_what_waits(make: Make, tmp_path: Path) -> None:
    here, go = tmp_path / "here", tmp_path / "go"
    executor = make()
    running = executor.submit(work.appear_and_wait, str(here), str(go))
    others = [executor.submit(work.double, n) for n in range(8)]
    work.wait_for(str(here))
    executor.shutdown(wait=False, cancel_futures=True)
    wait_until(others[-1].cancelled, 60)
    go.touch()
    executor.shutdown()
    assert running.result(60) == str(here)


def test_an_executor_that_nobody_has_any_more_finishes_its_work(make: Make) -> None:
    sent = [make().submit(work.double, 4)]
    assert sent[0].result(60) == 8
