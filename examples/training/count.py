"""A toy trainer: counts, writes each number once, and goes on from its last checkpoint.

    python count.py DIRECTORY [--to 1000] [--every 100] [--hold N]

It stands for a program that trains for days: DIRECTORY is `{{keep}}`. `--hold N` waits at N, the
first time, until the program is ended: for trying out what becomes of it.
"""

import argparse
import json
import os
import signal
import sys
import time


class Counter:
    """Numbers in a file, and beside it how many of its bytes and numbers are certain."""

    def __init__(self, directory):
        self.state = os.path.join(directory, "checkpoint.json")
        self.numbers = open(os.path.join(directory, "numbers.txt"), "a+b")  # noqa: SIM115
        self.done = size = 0
        if os.path.exists(self.state):
            with open(self.state) as file:
                self.done, size = json.load(file)
        self.numbers.truncate(size)  # what came after the last checkpoint is counted again

    def count(self):
        self.done += 1
        self.numbers.write(b"%d\n" % self.done)

    def save(self):
        """Write a checkpoint; whoever is killed meanwhile finds the one before."""
        self.numbers.flush()
        os.fsync(self.numbers.fileno())
        with open(self.state + ".new", "w") as file:
            json.dump([self.done, self.numbers.tell()], file)
        os.replace(self.state + ".new", self.state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--to", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--hold", type=int, default=0)
    asked = parser.parse_args()
    warned = []
    signal.signal(signal.SIGUSR2, lambda number, frame: warned.append(number))
    counter = Counter(asked.directory)
    print("counting from", counter.done, flush=True)
    held = os.path.join(asked.directory, "held")
    while counter.done < asked.to:
        counter.count()
        if counter.done == asked.hold and not os.path.exists(held):
            open(held, "w").close()
            while not warned:
                time.sleep(0.05)
        if warned:
            counter.save()
            sys.exit(f"warned, and saved at {counter.done}")
        if counter.done % asked.every == 0:
            counter.save()
    counter.save()
    with open(os.path.join(asked.directory, "final.txt.new"), "w") as file:
        file.write(f"counted to {counter.done}\n")
    os.replace(file.name, os.path.join(asked.directory, "final.txt"))


if __name__ == "__main__":
    main()
