"""The script that is interrupted: `interrupted.py SHAPE DIRECTORY [LIBRARY NUMBER]`.

It never ends by itself. With a library the interrupt comes at that bytecode; without, by whoever
waits for `ready` on its standard output.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress

from gpulaunch import GpuExecutor
from tests.executor import work
from tests.executor.aim import Aim

NEVER = "/never"


def result(executor: GpuExecutor) -> None:
    executor.submit(work.wait_for, NEVER).result()


def wait(executor: GpuExecutor) -> None:
    futures.wait([executor.submit(work.wait_for, NEVER) for _ in range(3)])


def as_completed(executor: GpuExecutor) -> None:
    sent = [executor.submit(work.double, 1), executor.submit(work.wait_for, NEVER)]
    for future in futures.as_completed(sent):
        future.result()


def map_(executor: GpuExecutor) -> None:
    for _ in executor.map(work.wait_for, [NEVER] * 4, buffersize=2):
        pass


def many(executor: GpuExecutor) -> None:
    while True:
        executor.submit(work.double, 2).result()


def shutdown(executor: GpuExecutor) -> None:
    running = executor.submit(work.wait_for, NEVER)
    while not running.running():
        time.sleep(0.005)
    executor.submit(work.wait_for, NEVER)
    executor.shutdown(cancel_futures=True)


def threads(executor: GpuExecutor) -> None:
    """The interpreter waits for the other one at its exit."""
    executor.submit(work.wait_for, NEVER).exception()


def another(executor: GpuExecutor) -> None:
    with suppress(BaseException):
        executor.submit(work.wait_for, NEVER).exception()


def leave(executor: GpuExecutor) -> None:
    executor.submit(work.wait_for, NEVER)


def with_(body: Callable[[GpuExecutor], None]) -> Callable[[GpuExecutor], None]:
    def inside(executor: GpuExecutor) -> None:
        with executor:
            body(executor)

    return inside


SHAPES: dict[str, Callable[[GpuExecutor], None]] = {
    "result": result,
    "wait": wait,
    "as_completed": as_completed,
    "map": map_,
    "many": many,
    "shutdown": shutdown,
    "threads": threads,
    "with": with_(result),
    "with-wait": with_(wait),
    "with-map": with_(map_),
    "end-of-with": with_(leave),
    "exit": leave,
}


def main(shape: str, library: str = "", number: str = "") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    executor = GpuExecutor(simulate=1)
    if shape == "threads":
        threading.Thread(target=another, args=(executor,)).start()
    aim = Aim(library) if library else None
    if aim:
        atexit.register(lambda: os.write(1, b"%d\n" % aim.count()))
        aim.at(int(number))
    else:
        os.write(1, b"ready\n")
    SHAPES[shape](executor)


if __name__ == "__main__":
    main(*sys.argv[1:])
