"""What the tests' workers call: importable, and quick to import."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, NoReturn

from gpulaunch.executor.channel import RESULT, ChannelMessage, WorkerChannel

state: dict[str, Any] = {}


def double(x: int) -> int:
    return 2 * x


def add(x: int, y: int) -> int:
    return x + y


def ratio(x: int) -> float:
    return 1 / x


def pid() -> int:
    return os.getpid()


def echo(value: Any) -> Any:
    return value


def keep(**values: Any) -> None:
    state.update(values)


def kept(name: str) -> Any:
    return state.get(name)


def count() -> int:
    state["count"] = state.get("count", 0) + 1
    return int(state["count"])


def count_here(_: object) -> int:
    return count()


def modules() -> set[str]:
    return set(sys.modules)


def environment(name: str) -> str | None:
    return os.environ.get(name)


def appear_and_wait(here: str, there: str) -> str:
    """Make the file `here`, and wait until `there` exists."""
    Path(here).touch()
    wait_for(there)
    return here


def wait_for(path: str) -> None:
    end = time.monotonic() + 120
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.005)


def fail(text: str) -> NoReturn:
    raise ValueError(text)


def fail_from(text: str) -> NoReturn:
    try:
        fail(text)
    except ValueError as error:
        raise KeyError("outer") from error


def raise_it(kind: type[BaseException], *args: Any) -> NoReturn:
    raise kind(*args)


def kill_me(number: int = signal.SIGKILL) -> NoReturn:
    os.kill(os.getpid(), number)
    time.sleep(1000)
    raise AssertionError


def leave(status: int, words: str = "") -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    os._exit(status)


def crash() -> NoReturn:
    import ctypes

    ctypes.string_at(0)
    raise AssertionError


def recurse(n: int = 0) -> int:
    return recurse(n + 1) + 1


def generator() -> Any:
    return (n for n in range(3))


def a_lambda() -> Any:
    return lambda: 41


def close_standard_streams() -> str:
    for fd in (0, 1, 2):
        os.close(fd)
    return "closed"


def close_everything() -> str:
    os.closerange(3, 4096)
    return "closed"


def say(words: str) -> None:
    os.write(1, f"out {words}\n".encode())
    os.write(2, f"err {words}\n".encode())


def daemonise(note: str) -> int:
    """A grandchild in a session of its own, whose PID is written to `note`."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        partial = f"{note}.partial"
        Path(partial).write_text(str(os.getpid()))
        os.rename(partial, note)
        while True:
            time.sleep(1000)
    os.waitpid(child, 0)
    wait_for(note)
    return os.getpid()


def hold_card(directory: str, seconds: float = 0.01) -> str:
    """Fails where somebody else has this card's file locked: the file is the card."""
    import fcntl

    card = os.environ["GPULAUNCH_GPU_INDEX"]
    with open(f"{directory}/card-{card}", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(seconds)
    return card


class NotForPickles(Exception):
    def __reduce__(self) -> NoReturn:
        raise TypeError("this one cannot be pickled")


class NotBackAgain(Exception):
    """Pickles; what comes out cannot be made: the classic."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class Unread:
    """Pickles, and cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fail, ("not to be read",)


def unread() -> Unread:
    return Unread()


def fail_to_begin(path: str, times: int) -> None:
    """As an initializer: dies so many times, over all workers, then succeeds."""
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) <= times:
        os._exit(9)


def refuse_to_begin() -> NoReturn:
    raise RuntimeError("no model here")


def send_a_result() -> None:
    """As an initializer: sends a result before the worker has said that it is ready."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as link:
            WorkerChannel(link).send(ChannelMessage(RESULT, b"x", [], 1))


def gpu_and_pid() -> tuple[str, int]:
    return os.environ["GPULAUNCH_GPU_UUID"], os.getpid()


def is_broken(error: BaseException | None) -> bool:
    return isinstance(error, BrokenExecutor)
