"""Runs a program until standard input ends, or it does; then nothing that came of it is left.

    python -I -S nest.py PROGRAM [ARGUMENT ...]

Daemons and the jobs under them leave their parents. Here they become this process's own children
again (it is their subreaper), whatever they do, and are killed until there is none. As the writing
end of standard input is the tests' own, that holds as well where the tests themselves are killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36


def below() -> list[int]:
    """All that came of this process, those included that were left to it; parents come first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as file:
            # The program's name, in parentheses, may hold anything; the parent is two fields on.
            parent = int(file.read().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(number: int = 0, frame: object = None) -> None:
    """Ends with the last of them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        raise SystemExit(0) from None


def end() -> None:
    """As when the power fails: nothing is to see something else go, and to act on it.

    So all are stopped first, and the youngest killed first: what stops, and has lost its parent,
    would be woken (SIGHUP, SIGCONT). What the killed leave behind comes here in turn.
    """
    stopped: set[int] = set()
    while new := set(below()) - stopped:
        send(signal.SIGSTOP, new)
        stopped |= new
    with suppress(ChildProcessError):
        while True:
            send(signal.SIGKILL, reversed(below()))
            os.waitpid(-1, 0)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (1, 2, 15)],
        )
        signal.signal(signal.SIGCHLD, reap)
        reap()
        os.read(0, 1)
        child.returncode = 0  # reaped above, or below
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end()


if __name__ == "__main__":
    main()
