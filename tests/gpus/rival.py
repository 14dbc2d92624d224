"""A rival launcher, run as a program: takes cards, works on them in children, dies by SIGKILL.

    python -m tests.gpus.rival DIRECTORY POOL CARDS ROUNDS (holds|lets-go) UID

Waits for its standard input to close, so that all rivals start in the same instant. In each round
a launcher takes any one card; in one it works there and hands the lease to whoever wants it, in
the next it leaves a child that works there, and is killed. Work that finds other work going on on
its card writes a line into DIRECTORY/doubles.
"""

from __future__ import annotations

import ctypes  # noqa: F401  (the other user may not be able to read the interpreter's library)
import fcntl
import os
import select
import signal
import sys
import time

from gpulaunch.gpus.lease import Lease, Waiter, take
from gpulaunch.gpus.socket_locks import NameHeldError

WORK = 0.02


def main() -> None:
    directory, pool, cards, rounds, holds, user = sys.argv[1:]
    if int(user) != os.getuid():
        os.setgroups([])
        os.setuid(int(user))
    keys = [f"{pool}/{n}" for n in range(int(cards))]
    sys.stdin.read()
    for n in range(int(rounds)):
        launcher = os.fork()
        if not launcher:
            launch(directory, keys, n, holds == "holds")
        os.waitpid(launcher, 0)


def launch(directory: str, keys: list[str], n: int, holds: bool) -> None:
    lease = take_any(keys[n % len(keys) :] + keys[: n % len(keys)])
    card = lease.name.rpartition("/")[2]
    if n % 2:
        work(directory, card)
        lease.hand_over()
        os._exit(0)
    if not os.fork():
        if not holds:
            lease.close()
        work(directory, card)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def take_any(keys: list[str]) -> Lease:
    while True:
        waiters: list[Waiter] = []
        try:
            for key in keys:
                try:
                    return take(key)
                except NameHeldError:
                    if waiter := Waiter.connect(f"gpu/{key}", want=True):
                        waiters.append(waiter)
            if len(waiters) == len(keys) and (lease := wait(waiters)):
                return lease
        finally:
            for waiter in waiters:
                waiter.close()


def wait(waiters: list[Waiter]) -> Lease | None:
    """A lease that was handed to us, and on with any more of them; None: try to take one."""
    readable, _, _ = select.select(waiters, [], [])
    news = [waiter.on_readable() for waiter in readable]
    handed = [lease for lease in news if isinstance(lease, Lease)]
    for lease in handed[1:]:
        lease.hand_over()
    return handed[0] if handed else None


def work(directory: str, card: str) -> None:
    with open(f"{directory}/canary-{card}", "r+b") as canary:
        try:
            fcntl.flock(canary, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(directory, "doubles", card)
        time.sleep(WORK)
        note(directory, "done", card)


def note(directory: str, file: str, line: str) -> None:
    with open(f"{directory}/{file}", "a") as out:
        out.write(line + "\n")


if __name__ == "__main__":
    main()
