"""Libraries that take an executor, or whose users call one, with a GpuExecutor on two cards.

    python executor_users.py WHO

Prints a line of JSON: what was computed, and when which card was whose.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures

from gpulaunch import GpuExecutor

COUNT = 20
Call = tuple[float, str, float, float]


def square(number: float) -> Call:
    """The result, the card, when it began and when it ended."""
    began = time.monotonic()
    value = sum(number for _ in range(1000)) / 1000 * number
    return value, os.environ["GPULAUNCH_GPU_INDEX"], began, time.monotonic()


def fail(number: int) -> None:
    raise ValueError(number)


def as_completed(executor: GpuExecutor) -> Iterator[Call]:
    sent = {executor.submit(square, number): number for number in range(COUNT)}
    done = {sent[future]: future.result() for future in futures.as_completed(sent)}
    yield from (done[number] for number in range(COUNT))


def wait(executor: GpuExecutor) -> Iterator[Call]:
    sent = [executor.submit(square, number) for number in range(COUNT)]
    failing = executor.submit(fail, 1)
    done, _ = futures.wait([*sent, failing], return_when=futures.FIRST_EXCEPTION)
    assert failing in done
    done, pending = futures.wait(sent)
    assert not pending
    yield from (future.result() for future in sent)


def in_asyncio(executor: GpuExecutor) -> Iterator[Call]:
    async def main() -> list[Call]:
        loop = asyncio.get_running_loop()
        calls = (loop.run_in_executor(executor, square, number) for number in range(COUNT))
        done = await asyncio.gather(*calls)
        failed = await asyncio.gather(
            loop.run_in_executor(executor, fail, 7), return_exceptions=True
        )
        assert repr(failed) == "[ValueError(7)]"
        late = loop.run_in_executor(executor, square, 0)
        assert (await asyncio.wait_for(late, 60))[0] == 0
        return [*done]

    yield from asyncio.run(main())


def with_tqdm(executor: GpuExecutor) -> Iterator[Call]:
    from tqdm import tqdm

    bar = tqdm(executor.map(square, range(COUNT)), total=COUNT, mininterval=0)
    yield from bar
    assert bar.n == COUNT


def with_dask(executor: GpuExecutor) -> Iterator[Call]:
    import dask

    with dask.config.set(scheduler=executor):
        yield from dask.compute(*(dask.delayed(square)(number) for number in range(COUNT)))


def with_dask_bag(executor: GpuExecutor) -> Iterator[Call]:
    from dask import bag

    yield from bag.range(COUNT, npartitions=5).map(square).compute(scheduler=executor)


def with_dask_that_fails(executor: GpuExecutor) -> Iterator[Call]:
    import dask

    with contextlib.suppress(ValueError):
        dask.compute(dask.delayed(fail)(3), scheduler=executor)
        raise AssertionError("expected a ValueError")
    yield from executor.map(square, range(COUNT))


def with_optuna(executor: GpuExecutor) -> Iterator[Call]:
    """Threads of a study, each of which waits for its own call."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    calls: dict[int, Call] = {}

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, COUNT - 1)
        call = executor.submit(square, x).result()
        assert call[0] == x * x
        number = trial.number
        calls[number] = (number * number, *call[1:])  # by its number, as there is no order
        return call[0]

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=COUNT, n_jobs=4)
    assert study.best_value == min(trial.value for trial in study.trials)
    yield from (calls[number] for number in range(COUNT))


USERS: tuple[Callable[[GpuExecutor], Iterator[Call]], ...] = (
    *(as_completed, wait, in_asyncio, with_tqdm),
    *(with_dask, with_dask_bag, with_dask_that_fails, with_optuna),
)

if __name__ == "__main__":
    user = {user.__name__: user for user in USERS}[sys.argv[1]]
    with GpuExecutor(simulate=2) as executor:
        print(json.dumps([*user(executor)]))
