"""Ends and removes containers of docker and podman that outlived what stood for them.

A container ends by itself when its carrier is gone (`farside/contain`): what is left then is what
the engine remembers of it, and in the worst case processes that somebody else started in it. An
attempt's folder holds the record of its container until that is removed. The carrier holds a lock
on the record while it lives, and writes PID beside it: first of all with zeros, then with the
number of the container's first process. A container without a record, or with one that is not
locked, is nobody's.

Runs as a helper process, as an engine may not answer: one JSON argument, {"folders": [...]} or
{"engines": [...]}, for the containers of these folders, or for the caller's that are nobody's. It
prints {"removed": [names], "left": {name: why}}.
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

from msgspec import Struct, field

from gpulaunch.containers.command_lines import LABELS, remove_line
from gpulaunch.farside.proc import stat_fields

RECORD, PID = "record.json", "pid"
ANSWER_LIMIT = 30.0
"""Seconds that an engine has for each of its answers: after that it is taken not to answer."""
END_LIMIT = 10.0
"""Seconds that killed processes of a container have to be gone; a driver's call may take some."""
PAUSE = 0.1
"""Seconds between looks at whether an engine has removed a container that it is about to remove."""
_STARTED = 19
"""Field of /proc/PID/stat, from the state on: when the process was started."""


class Removal(Struct):
    """What came of it: the names of containers removed, and why others are left, by name."""

    removed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def main() -> None:
    asked = json.loads(sys.argv[3])
    nobodys = "engines" in asked
    found = remove_strays(asked["engines"]) if nobodys else remove_of(asked["folders"])
    print(json.dumps({"removed": found.removed, "left": found.left}), flush=True)


def remove_of(folders: Iterable[str]) -> Removal:
    """End and remove the containers of these folders, and the folders once that is done."""
    done = Removal()
    for folder in folders:
        record = _record(folder)
        if record is None:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        _end_processes(folder)
        name = str(record["name"])
        if why := _remove(record["engine"], name, record["remove"]):
            done.left[name] = why
        else:
            done.removed.append(name)
            shutil.rmtree(folder, ignore_errors=True)
    return done


def remove_strays(engines: Iterable[str]) -> Removal:
    """End and remove this user's containers that are nobody's."""
    done = Removal()
    for engine in engines:
        for name, folder in strays(engine).items():
            _end_processes(folder)
            if why := _remove(engine, name, remove_line(engine, name)):
                done.left[name] = why
            else:
                done.removed.append(name)
                shutil.rmtree(folder, ignore_errors=True)
    return done


def strays(engine: str) -> dict[str, str]:
    """Return the folders, by name, of this user's containers that no carrier stands for.

    Those of an engine that does not answer are not known: then there are none.
    """
    mine = f"label={LABELS[3]}={os.geteuid()}"
    names = _call([engine, "ps", "--all", "--filter", mine, "--format", "{{.Names}}"]).text.split()
    if not names:
        return {}
    try:
        found = json.loads(_call([engine, "inspect", "--type=container", *names]).text or "[]")
    except ValueError:
        return {}
    folders = {_name(one): _labels(one).get(LABELS[2], "") for one in found}
    return {name: folder for name, folder in folders.items() if folder and not is_held(folder)}


def _name(container: Mapping[str, Any]) -> str:
    return str(container.get("Name", "")).lstrip("/")


def _labels(container: Mapping[str, Any]) -> dict[str, str]:
    return (container.get("Config") or {}).get("Labels") or {}


def _record(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "name" in found else None


def is_held(folder: str) -> bool:
    """Tell whether a carrier lives that stands for the container of this folder."""
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
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


def _remove(engine: str, name: str, line: Sequence[str]) -> str:
    """Remove the container; return why that was not possible, "" where it is gone."""
    until = time.monotonic() + ANSWER_LIMIT
    while True:
        why = _call(line).why
        if not why or "no such container" in why.lower():
            return ""
        # Removed at once where another removal of it, as that of `--rm`, is not under way.
        if "in progress" not in why.lower() or time.monotonic() > until:
            return why
        time.sleep(PAUSE)


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
    if done.returncode == 0:
        return _Answer(done.stdout.decode("utf-8", "replace"))
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return _Answer(why=(said or [f"{line[0]} ended with status {done.returncode}"])[-1])
