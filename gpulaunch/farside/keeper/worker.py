"""A worker between its items: the pipes to it, and its end."""

from __future__ import annotations

import contextlib
import os

from ..launch import LaunchOrder, WorkerItem
from ..proc import children_of
from .kernel import children

LONGEST_ANSWER = 65536  # bytes


class WorkerAnswer:
    """An answer to the item of this number, with an exit code, or an error; 0: it has loaded.

    `spoiled`: the worker is not to be used again.
    """

    def __init__(self, item: int, code: int, spoiled: bool, error: str) -> None:
        self.item = item
        self.code = code
        self.spoiled = spoiled
        self.error = error

    @classmethod
    def read(cls, line: bytes) -> WorkerAnswer | None:
        """Return the answer of a line, as `serve/pipes.py` writes it; None if it is none."""
        words = line.split(b" ", 3)
        if len(words) < 4 or b"\0" in line:
            return None
        if not all(word.isdigit() and len(word) < 10 for word in words[:3]):
            return None
        item, code, spoiled = map(int, words[:3])
        text = words[3].decode("utf-8", "replace")
        return cls(item, code, spoiled != 0, text) if code < 256 else None


class WorkerPipes:
    """A process that is handed one item after the other, and the pipes to it."""

    def __init__(
        self, launch: LaunchOrder, item: WorkerItem, pid: int, items: int, answers: int
    ) -> None:
        self.by = launch.id
        self.grace = launch.grace
        self.key = item.key
        self.most = item.items
        self.memory = item.memory
        self.pid = pid
        self.items = items
        self.answers = answers
        self.count = 0
        self.outbox = b""
        self.words = b""
        self.silent = False
        os.set_blocking(items, False)
        os.set_blocking(answers, False)

    def suits(self, item: WorkerItem) -> bool:
        """Tell whether the worker may take this item; not if it has written something unasked."""
        return item.key == self.key and not self.hear()

    def hand(self, item: WorkerItem, fresh: bool) -> None:
        self.count += 1
        self.outbox = item.numbered(self.count, fresh)
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[os.write(self.items, self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""  # the worker closed its input: it is about to end

    def hear(self) -> list[WorkerAnswer | None]:
        """Return the worker's answers since the last call; None for each that is invalid."""
        try:
            while len(self.words) < LONGEST_ANSWER:
                data = os.read(self.answers, 65536)
                if not data:  # the worker closed its answers: it is about to end
                    self.silent = True
                    break
                self.words += data
        except BlockingIOError:
            pass
        *lines, self.words = self.words.split(b"\n")
        if len(self.words) >= LONGEST_ANSWER:
            lines, self.words = [*lines, b""], b""
        return [WorkerAnswer.read(line) for line in lines]

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
