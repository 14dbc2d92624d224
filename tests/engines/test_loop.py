"""The loop: descriptors, timers and signals in one thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from gpulaunch.base.loop import LATEST, Loop
from tests.helpers import open_files, wait_until


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_the_newest_timer_of_a_key_counts(loop: Loop) -> None:
    fired: list[str] = []
    at = time.monotonic()
    loop.call_at("a", at + 30, lambda: fired.append("old"))
    loop.call_at("a", at, lambda: fired.append("new"))
    loop.call_at("b", at, lambda: fired.append("forgotten"))
    loop.forget("b")
    loop.turn()
    assert fired == ["new"]
    loop.turn(block=False)
    assert fired == ["new"]


def test_what_is_put_off_waits_for_all_that_has_come_but_not_for_ever() -> None:
    clock = [0.0]
    loop = Loop(lambda: clock[0])
    read, write = os.pipe()
    os.write(write, b"x")
    order: list[str] = []
    loop.watch(read, lambda: order.append("read"))
    loop.later(lambda: order.append("put off"))
    loop.turn()
    assert order == ["read"]
    clock[0] = LATEST
    loop.turn()
    assert order == ["read", "put off", "read"]
    loop.later(lambda: order.append("put off again"))
    os.read(read, 1)
    loop.turn(block=False)
    assert order[3:] == ["put off again"]
    loop.close()
    os.close(read)
    os.close(write)


def test_timers_fire_in_order_of_their_time(loop: Loop) -> None:
    fired: list[int] = []
    at = time.monotonic()
    for n in (3, 1, 2):
        loop.call_at(str(n), at + n / 1000, lambda n=n: fired.append(n))  # type: ignore[misc]
    while len(fired) < 3:
        loop.turn()
    assert fired == [1, 2, 3]


def test_a_callback_may_unwatch_another_that_is_ready(loop: Loop) -> None:
    pipes = [os.pipe(), os.pipe()]
    called: list[int] = []

    def first_come(which: int) -> None:
        called.append(which)
        loop.unwatch(pipes[1 - which][0])

    for which, (read, write) in enumerate(pipes):
        os.write(write, b"x")
        loop.watch(read, lambda which=which: first_come(which))  # type: ignore[misc]
    loop.turn()
    assert len(called) == 1
    for pipe in pipes:
        loop.unwatch(pipe[0])
        for fd in pipe:
            os.close(fd)


def test_what_a_thread_found_or_raised_is_handed_over_in_a_turn(loop: Loop) -> None:
    before = open_files()
    found: list[object] = []
    loop.in_thread(lambda: threading.current_thread() is threading.main_thread(), found.append)
    loop.in_thread({}.popitem, found.append)
    while len(found) < 2:
        loop.turn()
    assert False in found
    assert any(isinstance(one, KeyError) for one in found)
    wait_until(lambda: open_files() == before)


def test_work_that_is_forgotten_is_not_handed_over(loop: Loop) -> None:
    before = open_files()
    goes_on, found = threading.Event(), list[object]()
    forget = loop.in_thread(goes_on.wait, found.append)
    forget()
    forget()
    goes_on.set()
    wait_until(lambda: open_files() == before)
    loop.turn(block=False)
    assert found == []


def test_where_no_thread_is_to_be_had_nothing_stays_open(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = open_files()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError):
        loop.in_thread(list, print)
    assert open_files() == before


def test_signals_arrive_as_callbacks_and_handlers_are_put_back(loop: Loop) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    got: list[int] = []
    loop.on_signals([signal.SIGUSR1], got.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    while not got:
        loop.turn()
    assert set(got) == {signal.SIGUSR1}
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_the_wakeup_of_a_loop_around_it_is_put_back() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(write)
    try:
        inner = Loop()
        inner.on_signals([signal.SIGUSR1], lambda number: None)
        assert signal.set_wakeup_fd(-1) != write
        inner.close()
        assert signal.set_wakeup_fd(-1) == write
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def test_an_idle_loop_does_not_wake(loop: Loop) -> None:
    fired: list[float] = []
    begun = time.monotonic()
    loop.call_after("end", 0.2, lambda: fired.append(time.monotonic()))
    turns = 0
    while not fired:
        loop.turn()
        turns += 1
    assert turns == 1
    assert fired[0] - begun >= 0.2
