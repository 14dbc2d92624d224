"""Checks that a fork of this interpreter equals a cold start: threads, cards, descriptors, tools.

Looks, and changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..wire import Any

CUDA_ERROR_NOT_INITIALIZED = 3


def why_not(
    opened: set[int],
    cards: tuple[str, ...],
    watched: dict[str, Any],
    in_child: Callable[[], None],
    at_fork: str,
) -> str:
    """Return why jobs must not be forked from this interpreter, in words; else "".

    `opened` are the descriptors that imports opened, `watched` the tools as they were before;
    `in_child` is called first in a forked child; `at_fork` is a name for hooks at forks.
    """
    debug = sys.flags.dev_mode or os.environ.get("PYTHONMALLOC", "").endswith("debug")
    if sys.version_info < (3, 9) and debug:  # a bug of its own: the child's memory is corrupt
        return "Python 3.8 with debug hooks on its memory cannot fork"
    for name, tool in tools().items():
        if tool is not watched[name]:
            return f"an import replaces {name}"
    # A library that initialised CUDA leaves threads and descriptors too: name CUDA, the cause.
    for why in (
        after_a_fork(in_child, at_fork),
        driver_in_use(),
        *(why_not_shared(fd, cards) for fd in opened),
    ):
        if why:
            return why
    tasks = os.listdir("/proc/self/task")
    if len(tasks) > 1:
        return f"imports left {len(tasks) - 1} threads running ({thread_names(tasks)})"
    return ""


def shadowed(path: list[str], early: frozenset[str]) -> str:
    """Return words about a file beside the script that shadows a module that we imported; else "".

    A cold start would import that file instead of Python's own module.
    """
    ours = {name for name in sys.modules if "." not in name} - early
    for place in path:
        for name in os.listdir(place) if os.path.isdir(place) else ():
            package = os.path.isfile(os.path.join(place, name, "__init__.py"))
            if name.partition(".")[0] in ours and (name.endswith((".py", ".so")) or package):
                return f"{os.path.join(place, name)} stands before Python's own module"
    return ""


def tools() -> dict[str, Any]:
    """Return the functions that keepers need, which some libraries replace (gevent, eventlet)."""
    import json
    import select
    import signal
    import socket
    import time

    found: dict[str, Any] = {"select.poll": select.poll, "socket.socket": socket.socket}
    found["socket.socketpair"] = socket.socketpair
    for name in ("fork", "kill", "waitpid", "waitid", "pipe", "read", "write", "close", "open"):
        found["os." + name] = getattr(os, name)
    for name in ("sleep", "monotonic", "time"):
        found["time." + name] = getattr(time, name)
    for name in ("signal", "pthread_sigmask", "set_wakeup_fd"):
        found["signal." + name] = getattr(signal, name)
    for name in ("dumps", "loads"):
        found["json." + name] = getattr(json, name)
    return found


def descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # the listing's own descriptor
            continue
        found.append(int(name))
    return found


def why_not_shared(fd: int, cards: tuple[str, ...]) -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    if path.startswith(cards):
        return f"an import opened {path}: it uses the card"
    if path.startswith("socket:"):
        return "an import left a connection open"
    if path.startswith("anon_inode:"):
        kind = path.partition(":")[2].strip("[]")
        return f"an import left an {kind} descriptor open"
    return ""


def after_a_fork(in_child: Callable[[], None], what: str) -> str:
    """Fork a child as a trial; return what is wrong there, such as a device in use; else "".

    Hooks that stop threads at forks have run by then. The child forks twice itself: a lock that a
    hook keeps, in either process, shows there.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            in_child()
            native = getattr(sys.modules.get("torch"), "_C", None)
            for device in ("cuda", "xpu", "mtia"):
                bad = getattr(native, f"_{device}_isInBadFork", None)
                if bad is not None and bad():
                    os.write(write, device.upper().encode())
                    break
            for _ in (1, 2):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
            os.write(write, b".")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        device, returned, _ = file.read().decode().partition(".")
    os.waitpid(pid, 0)
    if not returned:
        return f"{what} ended a forked process"
    return f"an import initialised {device}" if device else ""


def driver_in_use() -> str:
    """Return words if CUDA's driver was initialised; else "".

    Libraries that only link to libcuda map it as well, so the driver itself is asked.
    """
    with open("/proc/self/maps", "rb") as file:
        if not any(b"libcuda.so" in line for line in file):
            return ""
    import ctypes

    try:
        code = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    except (OSError, AttributeError):
        return ""
    return "" if code == CUDA_ERROR_NOT_INITIALIZED else "an import initialised CUDA's driver"


def thread_names(tasks: list[str]) -> str:
    names = set()
    for task in tasks:
        if int(task) != os.getpid():
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.add(file.read().strip())
            except OSError:
                continue
    return ", ".join(sorted(names))


def local_files(installed: Callable[[str], bool]) -> dict[str, tuple[int, int]]:
    """Return the user's own imported files, each with its stamp: they may change during a run."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: stamp(file) for file in files if isinstance(file, str) and not installed(file)}


def stamp(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except OSError:
        return -1, -1
    return seen.st_mtime_ns, seen.st_size
