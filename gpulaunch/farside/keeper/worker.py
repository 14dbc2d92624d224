"""A worker between its items: the pipes to it, and its end."""

from __future__ import annotations

import contextlib
import json
import os

from ..launch import LaunchOrder
from ..proc import children_of
from ..wire import Any
from .kernel import children


class WorkerItem:
    """What a worker is handed; `keep`: it has answered, and may take another one."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.load_timeout: float | None = self.task["load_timeout"]
        self.loading = self.keep = False


class WorkerPipes:
    """A process that is handed one item after the other, and the pipes to it."""

    def __init__(
        self, launch: LaunchOrder, task: dict[str, Any], pid: int, items: int, answers: int
    ) -> None:
        self.by = launch.id
        self.grace = launch.grace
        self.key = task["key"]
        self.most: int | None = task["items"]
        self.memory: int | None = task["memory"]
        self.pid = pid
        self.items = items
        self.answers = answers
        self.count = 0
        self.outbox = b""
        self.words = b""
        self.silent = False
        os.set_blocking(items, False)
        os.set_blocking(answers, False)

    def suits(self, task: dict[str, Any]) -> bool:
        """Tell whether the worker may take this item; not if it has written something unasked."""
        return task["key"] == self.key and not self.hear()

    def hand(self, task: dict[str, Any], fresh: bool) -> None:
        self.count += 1
        self.outbox = json.dumps({**task, "item": self.count, "fresh": fresh}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[os.write(self.items, self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""  # the worker closed its input: it is about to end

    def hear(self) -> list[dict[str, object] | None]:
        """Return the worker's answers since the last call; None for each that is invalid."""
        try:
            while len(self.words) < 65536:
                data = os.read(self.answers, 65536)
                if not data:  # the worker closed its answers: it is about to end
                    self.silent = True
                    break
                self.words += data
        except BlockingIOError:
            pass
        *lines, self.words = self.words.split(b"\n")
        if len(self.words) >= 65536:
            lines, self.words = [*lines, b""], b""
        return [_answer(line) for line in lines]

    def may_stay(self) -> bool:
        """Tell whether the worker may take another item, by its limits of items and of memory."""
        if self.most is not None and self.count >= self.most:
            return False
        return self.memory is None or tree_memory(self.pid) <= self.memory

    def has_died(self) -> bool:
        """Tell whether the worker has died between items; reaps its dead descendants on the way."""
        for pid in children():
            if pid != self.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return bool(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def close_input(self) -> None:
        if self.items >= 0:
            os.close(self.items)
            self.items, self.outbox = -1, b""

    def close(self) -> None:
        self.close_input()
        os.close(self.answers)


def _answer(line: bytes) -> dict[str, object] | None:
    try:
        word = json.loads(line.decode())
    except ValueError:
        return None
    return word if isinstance(word, dict) else None


def tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants, as far as /proc shows them."""
    page, total, todo = os.sysconf("SC_PAGE_SIZE"), 0, [pid]
    while todo:
        pid = todo.pop()
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * page
        except OSError:
            continue  # the process has ended
        todo += children_of(pid)
    return total
