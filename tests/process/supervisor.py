"""A small supervisor for the tests to kill: `python supervisor.py DIR NASTY MARK PAIRS MODE ...`.

Each pair takes a lease (an abstract socket) and runs nasty jobs one after the other, for ever.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import sys
from pathlib import Path

from gpulaunch.engines.client import AttemptOver, Gone, Pair, Spawner
from gpulaunch.engines.command import Command
from gpulaunch.engines.programs import find_keepers


def main() -> None:
    folder, nasty, mark, pairs, *modes = sys.argv[1:]
    numbers = itertools.count()

    def launch(pair: Pair) -> None:
        number = next(numbers)
        base = f"{folder}/{number}"
        argv = (nasty, modes[number % len(modes)], mark)
        pair.launch(
            Command(f"job.{number}", argv, base + ".log", base + ".end", timeout=0.2, grace=0.2)
        )

    def bear(lease: socket.socket) -> None:
        pair = spawner.pair([lease.fileno()])
        selector.register(pair, selectors.EVENT_READ, (pair, lease))
        launch(pair)

    selector = selectors.DefaultSelector()
    spawner = Spawner(find_keepers())
    for number in range(int(pairs)):
        lease = socket.socket(socket.AF_UNIX)
        lease.bind(f"\0gpulaunch-test/{mark}/{number}")
        bear(lease)
    Path(folder, "up").touch()
    while True:
        for key, _ in selector.select():
            pair, lease = key.data
            for report in pair.on_readable():
                if isinstance(report, AttemptOver):
                    launch(pair)
                if isinstance(report, Gone):
                    selector.unregister(pair)
                    pair.close()
                    bear(lease)


main()
