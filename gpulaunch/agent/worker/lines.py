"""Any program as a worker: reads an item a line, answers a line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal

from ..ending import die_by
from .pipes import ANSWERS, LOADED, ItemPipes, open_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LONGEST_ANSWER = 65536
READS = 64  # of 64 KiB in a row at most: more than a pipe holds, and output never delays answers


class Lines:
    """Passes items to a program's standard input, its answers to the keeper, its output to logs.

    The output goes into the log of the item that the program works on.
    """

    def __init__(self, channel: ItemPipes, argv: list[str]) -> None:
        self.channel = channel
        self.argv = argv
        self.log = os.dup(1)
        self.item: int | None = None
        self.words = b""
        self.output = self.heard = self.stdin = -1
        self.pid = 0

    def serve(self) -> int:
        wake, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # The program gets its own TERM, and is read to its end. SIG_IGN would survive exec.
        signal.signal(signal.SIGTERM, lambda *_: None)
        if not self.start():
            return 127
        while True:
            poller = select.poll()
            for fd in (wake, self.output, self.heard, self.channel.fd if self.item is None else -1):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
            ready = dict(poller.poll())
            if wake in ready:
                os.read(wake, 4096)
            self.pump()
            self.listen()
            status = self.ended()
            if status is not None:
                return self.last_words(status)
            if self.channel.fd in ready and self.item is None:
                self.take()

    def start(self) -> bool:
        """Start the program with pipes for its output; return False, and log why, if that fails."""
        theirs_in, self.stdin = os.pipe()
        self.output, theirs_out = os.pipe()
        self.heard, theirs_answers = os.pipe()
        for fd in (self.output, self.heard):
            os.set_blocking(fd, False)
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 0),
            (os.POSIX_SPAWN_DUP2, theirs_out, 1),
            (os.POSIX_SPAWN_DUP2, theirs_out, 2),
            (os.POSIX_SPAWN_DUP2, theirs_answers, ANSWERS),
        ]
        try:
            self.pid = os.posix_spawnp(self.argv[0], self.argv, os.environ, file_actions=actions)
        except OSError as error:
            self.say(f"cannot start {self.argv[0]}: {error.strerror}")
            return False
        for fd in (theirs_in, theirs_out, theirs_answers):
            os.close(fd)
        return True

    def take(self) -> None:
        """Pass the next item to the program; after the last, close the program's input."""
        task = self.channel.next()
        if task is None:
            if self.stdin >= 0:
                os.close(self.stdin)
                self.stdin = -1
            self.item = -1  # no more items
            return
        self.item = task["item"]
        if task["fresh"]:
            self.channel.answer(LOADED)
        else:
            try:
                log = open_log(task["log"])
            except OSError as error:
                self.item = None
                text = f"cannot create its log {task['log']}: {error.strerror}"
                self.channel.answer(task["item"], error=text)
                return
            os.dup2(log, self.log)
            os.close(log)
        line = json.dumps(task["values"]).encode() + b"\n"
        self.send(line)

    def send(self, line: bytes) -> None:
        """Write the line while reading the program's output: it may print before it reads on."""
        os.set_blocking(self.stdin, False)
        while line:
            try:
                line = line[os.write(self.stdin, line) :]
            except BlockingIOError:
                poller = select.poll()
                poller.register(self.stdin, select.POLLOUT)
                poller.register(self.output, select.POLLIN)
                poller.poll(1000)
                self.pump()
            except OSError:
                return  # the program closed its input: its end, or its answer, comes next

    def pump(self) -> None:
        """Copy the program's output into the item's log; a full disk loses it, as always."""
        for _ in range(READS):
            data = read(self.output) if self.output >= 0 else None
            if data is None:
                return
            if not data:
                os.close(self.output)
                self.output = -1
                return
            try:
                while data:
                    data = data[os.write(self.log, data) :]
            except OSError:
                pass

    def listen(self) -> None:
        while self.heard >= 0:
            data = read(self.heard)
            if data is None:
                return
            if not data:
                os.close(self.heard)
                self.heard = -1
                return
            self.words += data
            while b"\n" in self.words:
                line, _, self.words = self.words.partition(b"\n")
                self.judge(line)
            if len(self.words) > LONGEST_ANSWER:
                self.refuse(self.words)

    def judge(self, line: bytes) -> None:
        code = None
        try:
            answer = json.loads(line.decode())
        except ValueError:
            self.refuse(line)
        if isinstance(answer, dict) and answer.get("error"):
            code = 1
            self.pump()  # its words before ours
            self.say(str(answer["error"]))
        elif isinstance(answer, dict):
            code = answer.get("exit", 0 if not answer else None)
        elif not isinstance(answer, bool):
            code = answer
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= 255:
            self.refuse(line)
        if self.item is None or self.item < 0:
            self.refuse(line, "no item was being worked on")
        self.pump()
        # With more words after its answer, a program is out of step with its items: replace it.
        self.channel.answer(self.item, code, spoiled=bool(self.words))
        self.item = None

    def refuse(self, line: bytes, why: str = "") -> NoReturn:
        """Log why, kill the program and exit: after such an answer its item is uncertain."""
        self.pump()
        shown = line[:200].decode("utf-8", "backslashreplace")
        why = why or 'expected an exit code or {"exit": 0}'
        self.say(f"worker: found the answer {shown}; {why}")
        if self.pid:  # else it has ended by itself, and its number may be another's
            os.kill(self.pid, signal.SIGKILL)
        os._exit(1)

    def ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return status

    def last_words(self, status: int) -> int:
        """Die by the program's signal, or return its status, but 1 for 0 without an answer."""
        self.pump()
        self.listen()
        if os.WIFSIGNALED(status):
            die_by(os.WTERMSIG(status))
        code = os.WEXITSTATUS(status)
        if self.item is not None and self.item >= 0 and code == 0:
            self.say("worker: the program ended, with status 0, before it answered")
            return 1
        return code

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.log, text.encode("utf-8", "backslashreplace") + b"\n")


def read(fd: int) -> bytes | None:
    """Return what can be read now: None for nothing yet, empty at the end."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.EINTR:
            return None
        return b""
