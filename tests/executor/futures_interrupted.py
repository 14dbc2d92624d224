"""The script that interrupts waits for futures at each bytecode: `... LIBRARY SHAPE`.

Says `fine`, or at which bytecodes something was wrong. Catches the interrupt, as a notebook does,
and goes on with the same future.
"""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress

import gpulaunch.executor.future
from gpulaunch.executor import GpuFuture
from tests.executor.aim import Aim

LATE = 5.0
"""Seconds after which the future that was waited for is done, where no interrupt ended the wait."""
MOST = 2000

Futures = list[GpuFuture[int]]


def result(sent: Futures) -> None:
    sent[0].result()


def result_in_time(sent: Futures) -> None:
    sent[0].result(3600)


def exception(sent: Futures) -> None:
    sent[0].exception()


def wait(sent: Futures) -> None:
    futures.wait(sent)


def wait_for_one(sent: Futures) -> None:
    futures.wait([*sent, futures.Future()], return_when=futures.FIRST_COMPLETED)


def as_completed(sent: Futures) -> None:
    for _ in futures.as_completed(sent):
        pass


def result_that_comes(sent: Futures) -> None:
    in_a_thread(lambda: finish_once_awaited(sent[0]))
    sent[0].result()


def wait_for_what_comes(sent: Futures) -> None:
    in_a_thread(lambda: finish_in_turn(sent))
    futures.wait(sent)


def as_what_comes_is_completed(sent: Futures) -> None:
    in_a_thread(lambda: finish_in_turn(sent))
    for _ in futures.as_completed(sent):
        pass


SHAPES: dict[str, Callable[[Futures], None]] = {
    "result": result,
    "result_that_comes": result_that_comes,
    "result_in_time": result_in_time,
    "exception": exception,
    "wait": wait,
    "wait_for_one": wait_for_one,
    "as_completed": as_completed,
    "wait_for_what_comes": wait_for_what_comes,
    "as_what_comes_is_completed": as_what_comes_is_completed,
}


def finish(sent: Futures) -> None:
    for future in sent:
        with suppress(futures.InvalidStateError):  # another thread was quicker
            future.set_result(1)


def finish_in_turn(sent: Futures) -> None:
    """Each once somebody waits for it, by `futures.wait` or `as_completed`."""
    for future in sent:
        end = time.monotonic() + LATE
        while not future._waiters and time.monotonic() < end:
            time.sleep(0.0001)
        finish([future])


def finish_once_awaited(future: GpuFuture[int]) -> None:
    end = time.monotonic() + LATE
    while not future._condition._waiters and time.monotonic() < end:
        time.sleep(0.0001)
    finish([future])


def in_a_thread(body: Callable[[], object]) -> _thread.LockType:
    """Can be acquired once that is done. A `Thread`'s end has callbacks that an interrupt is lost
    in, wherever the interpreter happens to run them."""
    over = _thread.allocate_lock()
    over.acquire()

    def run() -> None:
        body()
        over.release()

    _thread.start_new_thread(run, ())
    return over


def wrong(aim: Aim, number: int, body: Callable[[Futures], None]) -> tuple[str, float | None]:
    """What was wrong with an interrupt at that bytecode, and how many seconds it took to come.

    None: all was over before that bytecode.
    """
    sent: Futures = [GpuFuture() for _ in range(3)]
    interrupted = threading.Semaphore(0)
    over = in_a_thread(lambda: interrupted.acquire(timeout=LATE) or finish(sent))
    problem, began, over_before = "nothing came", time.monotonic(), False
    try:
        aim.at(number)
        body(sent)
        over_before = aim.count() < number
    except KeyboardInterrupt as interrupt:
        problem = "it came with a second traceback" if interrupt.__context__ else ""
    except BaseException as error:
        problem = f"{error!r} came"
    took = time.monotonic() - began
    interrupted.release()
    over.acquire()
    if over_before:
        return "", None
    if took > LATE / 2:
        problem = problem or "it came late"
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        problem = problem or "the handler was not put back"
    if not in_a_thread(lambda: finish(sent)).acquire(timeout=LATE):
        problem = problem or "a lock was kept"
    elif any(future.result(0) != 1 for future in sent):
        problem = problem or "the future was spoilt"
    return problem, took


def main(library: str, shape: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    gpulaunch.executor.future.SLICE = 0.02
    aim = Aim(library)
    problems = 0
    for number in range(1, MOST):
        problem, took = wrong(aim, number, SHAPES[shape])
        if problem:
            problems += 1
            print(number, problem, flush=True)
        waits = took is not None and took > 0.1  # so does what comes from here on
        if took is None or waits or problems > 5:
            break
    print("fine" if not problems and number > 50 else f"{number} bytecodes")


if __name__ == "__main__":
    main(*sys.argv[1:])
