"""Ends and removes containers of docker and podman that outlived what stood for them.

A container ends by itself when its carrier is gone (`agent/container`): what is left then is what
the engine remembers of it, and in the worst case processes that somebody else started in it. An
attempt's folder holds the record of its container until that is removed. The carrier holds a lock
on the record while it lives, and writes PID beside it: first of all with zeros, then with the
number of the container's first process. A container whose record is not locked is nobody's; one
without a record, as far as is to be seen here, if it does not run: its carrier lives while it does.

Runs as a helper process, as an engine may not answer: one JSON argument, {"folders": [...]} or
{"engines": [...]}, for the containers of these folders, or for the caller's that are nobody's. It
prints {"removed": [names], "left": {name: why}, "silent": {engine: why}}.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct, field

from gpulaunch.agent.proc import stat_fields
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.containers.engines import LABELS, remove_line

RECORD, PID = "record.json", "pid"
ANSWER_LIMIT = 30.0
"""Seconds that an engine has for each of its answers: after that it is taken not to answer."""
END_LIMIT = 10.0
"""Seconds that killed processes of a container have to be gone; a driver's call may take some."""
REFUSAL_LIMIT = 3.0
"""Seconds during which a refused removal is tried again.

podman refuses the first removal of a container whose monitor and first process were killed
("container state improper: stopped"). During this first call podman notices that they are gone, so
that the second call succeeds.
"""
PAUSE = 0.1
"""Seconds between two attempts to remove the same container."""
_STARTED = 19
"""Field of /proc/PID/stat, from the state on: when the process was started."""


class Removal(Struct):
    """What came of it: the names of containers removed, and why others are left, by name.

    `silent`: by engine, why it is not known what it has.
    """

    removed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class SilentEngineError(GpulaunchError):
    """An engine does not say what it has; the text says how."""


def main() -> None:
    asked = json.loads(sys.argv[3])
    nobodys = "engines" in asked
    found = remove_strays(asked["engines"]) if nobodys else remove_of(asked["folders"])
    print(msgspec.json.encode(found).decode(), flush=True)


def remove_of(folders: Iterable[str]) -> Removal:
    """End and remove the containers of these folders, and the folders once that is done."""
    done = Removal()
    for folder in folders:
        record = _record(folder)
        if record is None:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        _end_processes(folder)
        _remove(done, str(record["name"]), folder, record["remove"])
    return done


def remove_strays(engines: Iterable[str]) -> Removal:
    """End and remove this user's containers that are nobody's."""
    done = Removal()
    for engine in engines:
        try:
            found = strays(engine)
        except SilentEngineError as error:
            done.silent[engine] = str(error)
            continue
        for name, folder in found.items():
            _end_processes(folder)
            _remove(done, name, folder, remove_line(engine, name))
    return done


def strays(engine: str) -> dict[str, str]:
    """Return the folders, by name, of this user's containers that no carrier stands for.

    Raises SilentEngineError.
    """
    mine = f"label={LABELS[3]}={os.geteuid()}"
    listed = _call([engine, "ps", "--all", "--filter", mine, "--format", "{{.Names}}"])
    if listed.why:
        raise SilentEngineError(listed.why)
    names = listed.text.split()
    if not names:
        return {}
    # It fails where one of them has gone meanwhile, and tells of the others all the same.
    told = _call([engine, "inspect", "--type=container", *names])
    try:
        found = json.loads(told.text)
    except (ValueError, RecursionError):
        raise SilentEngineError(told.why or f"{engine} inspect: {told.text[:80]}") from None
    folders = {_name(one): folder for one in found if (folder := _folder_of_stray(one))}
    return {name: folder for name, folder in folders.items() if not is_held(folder)}


def _folder_of_stray(container: Mapping[str, Any]) -> str:
    """Return the attempt's folder; "" where the container runs, and its record is not seen here."""
    labels = (container.get("Config") or {}).get("Labels") or {}
    folder = str(labels.get(LABELS[2], ""))
    state = container.get("State") or {}
    runs = bool(state.get("Running") or state.get("Paused"))
    return folder if not runs or os.path.exists(os.path.join(folder, RECORD)) else ""


def _name(container: Mapping[str, Any]) -> str:
    return str(container.get("Name", "")).lstrip("/")


def _record(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "name" in found else None


def is_held(folder: str) -> bool:
    """Tell whether a carrier lives that stands for the container of this folder."""
    try:
        # To be written: NFS gives nobody else an exclusive lock.
        with open(os.path.join(folder, RECORD), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it cannot be told: nothing that may be somebody's is removed
    return False


# ── Processes ───────────────────────────────────────────────────────────────────────────────────


def process_of(told: str) -> int | None:
    """Return the PID, here, of the first process in a container; None: gone, or not visible.

    `told`: the file PID of the attempt's folder, which the carrier writes.
    """
    try:
        with open(told, encoding="ascii") as file:
            pid, started = map(int, file.read().split())
        if pid and int(stat_fields(pid)[_STARTED]) == started:
            return pid
    except (OSError, ValueError, IndexError):
        pass
    return None


def _end_unstarted(container: str) -> None:
    """Kill the first process of a podman container that is waiting to be started.

    The runtime creates this process before podman records it. The process then waits at the file
    `exec.fifo` in a directory that has the container's id as its name (seen with runc). If podman
    and its monitor are killed before podman records the process, `podman rm` does not end it.
    """
    id = _call(["podman", "inspect", "--type=container", "--format={{.Id}}", container]).text
    if not (id := id.strip()):
        return
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has gone, or is another user's
            handle = os.pidfd_open(int(name))
            try:
                if _waits_for_start(name, id):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _waits_for_start(pid: str, id: str) -> bool:
    """Return True if the process has the `exec.fifo` of this container open."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            opened = os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")
            if opened.endswith(f"/{id}/exec.fifo"):
                return True
    return False


def _end_processes(folder: str) -> None:
    """Wait until the container's first process is gone, and kill it where it does not go."""
    told = os.path.join(folder, PID)
    pid = process_of(told)
    if pid is None:
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if process_of(told) == pid:  # else its number was another's before it was opened
            with suppress(OSError):  # another user's: the engine kills it
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(END_LIMIT * 1000)
    finally:
        os.close(handle)


# ── Engines ─────────────────────────────────────────────────────────────────────────────────────


def _remove(done: Removal, name: str, folder: str, line: Sequence[str]) -> None:
    """Remove the container, and its folder once it is gone; add to `done` what came of it."""
    if line[0] == "podman":
        _end_unstarted(name)
    began = time.monotonic()
    while why := _call(line).why:
        if "no such container" in why.lower():
            break
        # Another removal of the container, for example that of `--rm`, may be under way.
        limit = ANSWER_LIMIT if "in progress" in why.lower() else REFUSAL_LIMIT
        if time.monotonic() - began >= limit:
            done.left[name] = why
            return
        time.sleep(PAUSE)
    else:
        done.removed.append(name)
    shutil.rmtree(folder, ignore_errors=True)


class _Answer(Struct, frozen=True):
    """What an engine said; `why`: the last line of its complaints, "" where it has succeeded."""

    text: str = ""
    why: str = ""


def _call(line: Sequence[str]) -> _Answer:
    """Run the line, and wait for its end for so long as an engine has to answer."""
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Answer(why=f"{line[0]} did not answer within {ANSWER_LIMIT:g} s")
    except OSError as error:
        return _Answer(why=f"{line[0]}: {error.strerror}")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        return _Answer(text)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return _Answer(text, (said or [f"{line[0]} ended with status {done.returncode}"])[-1])
