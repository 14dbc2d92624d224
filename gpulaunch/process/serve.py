"""A worker's own side: one process that loads once and takes item after item.

    serve.py call FUNCTION [LOAD]      a Python function; runs in the job's interpreter
    serve.py lines PROGRAM [ARG ...]   any program: an item a line in, an answer a line out

It owns the worker's descriptors: which log they write to, and where items come from. It never
decides when the worker ends, how long an item may take, or what an end means: its keeper does.
One file, standard library only, Python 3.8 and newer, run by path.

    keeper ──{"item": 7, "log": ..., "env": ..., "values": {...}}──▶ descriptor 0
           ◀──{"loaded": 12.5}, {"item": 7, "exit": 0}────────────── descriptor 3

Both descriptors are moved to high numbers before anything else is imported: a function that reads
standard input or closes it finds /dev/null. An answer with `spoiled` says that the process is not
to be used again; one with `error`, that the item could not be begun.

A program's items and answers look like this; what it prints goes into the item's log.

    its standard input  {"job": "fold-a", "path": "/data/a.fasta", "out": "...", ...}
    its descriptor 3    0    or {"exit": 0}, or {"error": "no such chain"}: that line, and status 1
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWERS = 3
HIGH = 64
LONGEST_ANSWER = 65536
READS = 64
"""Reads of 64 KiB in a row at most: more than a pipe holds, and output never delays answers."""

# Errors after which a process is not trusted with another item: the device's context is gone, or
# its memory is full of what the failed item left.
SPOILING_NAMES = (
    "OutOfMemoryError", "AcceleratorError", "CudaError", "CUDARuntimeError", "CUDADriverError",
    "XlaRuntimeError", "CUDABackendError",
)  # fmt: skip
SPOILING_WORDS = (
    "out of memory", "cuda error", "cuda driver", "cuda runtime", "device-side assert", "hip error",
    "cublas", "cudnn", "cufft", "cusolver", "nccl", "illegal memory access", "misaligned address",
    "resource_exhausted", "unable to find an engine",
)  # fmt: skip


class Item(dict):  # type: ignore[type-arg]
    """A job's item: `item["stem"]`, or `item.stem` unless dict itself has an attribute so named."""

    def __getattr__(self, name: str) -> str:
        try:
            value: str = self[name]
        except KeyError:
            raise AttributeError(
                f"an item has no {name!r}; it has: {', '.join(sorted(self))}"
            ) from None
        return value


class ItemPipes:
    """The descriptors of items and answers, at numbers that no program uses by accident."""

    def __init__(self) -> None:
        allowed = os.sysconf("SC_OPEN_MAX")  # the soft limit; -1: there is none
        high = min(HIGH, allowed // 2) if allowed >= 0 else HIGH
        self.fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, high)
        self.answers = fcntl.fcntl(ANSWERS, fcntl.F_DUPFD_CLOEXEC, high)
        os.close(ANSWERS)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if null:
            os.close(null)
        self.rest = b""

    def next(self) -> dict[str, Any] | None:
        """Return the next item; None after the last."""
        while b"\n" not in self.rest:
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        item: dict[str, Any] = json.loads(line.decode())
        return item

    def answer(self, **what: object) -> None:
        """Send an answer to the keeper; exit if the keeper is gone."""
        try:
            os.write(self.answers, json.dumps(what).encode() + b"\n")
        except OSError:
            os._exit(0)


def open_log(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


# ── A Python function ───────────────────────────────────────────────────────────────────────────


class Calls:
    """Loads once, then calls the function with each item."""

    def __init__(self, channel: ItemPipes, function: str, load: str) -> None:
        self.channel = channel
        self.names = (function, load)
        self.function: Callable[..., object] = lambda *_: None
        self.arguments: list[object] = []
        self.pid = os.getpid()
        self.spoiled = False

    def serve(self) -> int:
        while not self.spoiled:
            task = self.channel.next()
            if task is None:
                return 0
            try:
                self.begin(task)
            except OSError as error:
                text = f"cannot begin: {error.strerror}: {error.filename}"
                self.channel.answer(item=task["item"], error=text)
                continue
            code = self.load() if task["fresh"] else 0
            if not self.spoiled:
                code = self.guarded(self.call, task)
            if os.getpid() != self.pid:
                return code  # a child that the item forked has come back through here
            flush()
            self.channel.answer(item=task["item"], exit=code, spoiled=self.spoiled)
        return 0

    def begin(self, task: dict[str, Any]) -> None:
        """Switch to the item's log, variables and directory."""
        if not task["fresh"]:
            flush()
            log = open_log(task["log"])
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.environ.update(task["env"])
        os.chdir(task["cwd"])

    def load(self) -> int:
        begun = time.monotonic()
        code = self.guarded(self.load_all, {})
        if os.getpid() == self.pid:
            flush()
            # The next item would fail the same way, or find the loading half done.
            if self.spoiled and not code:
                print("worker: the loading ended the program", file=sys.stderr)
                code = 1
            self.spoiled = self.spoiled or code != 0
            self.channel.answer(loaded=time.monotonic() - begun)
        return code

    def load_all(self, _: dict[str, Any]) -> int:
        function, load = self.names
        self.function = find(function)
        self.arguments = [find(load)()] if load else []
        return 0

    def call(self, task: dict[str, Any]) -> int:
        result = self.function(*self.arguments, Item(task["values"]))
        if result is False:
            print("the function returned False", file=sys.stderr)
            return 1
        kind = type(result).__name__
        if kind in ("coroutine", "generator", "async_generator"):
            getattr(result, "close", lambda: None)()
            print(f"the function returned a {kind}: nothing was run", file=sys.stderr)
            return 1
        return 0

    def guarded(self, act: Callable[[dict[str, Any]], int], task: dict[str, Any]) -> int:
        """Call `act` and return its exit code; print a traceback as the interpreter would."""
        try:
            return act(task)
        except SystemExit as error:
            self.spoiled = True
            return exit_code(error)
        except KeyboardInterrupt as error:
            self.spoiled = True
            tell(error)
            return 128 + signal.SIGINT
        except BaseException as error:
            self.spoiled = self.spoiled or spoils(error)
            tell(error)
            return 1


def find(name: str) -> Callable[..., object]:
    """Return the function of `FILE.py:function` or `package.module:function`."""
    import importlib

    place, _, attribute = name.rpartition(":")
    module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SystemExit(f"worker: there is no {attribute} in {place}")
        found = getattr(found, part)
    if not callable(found):
        raise SystemExit(f"worker: {attribute} in {place} is no function")
    function: Callable[..., object] = found
    return function


def load_file(path: str) -> Any:
    """Import the file once, as a module of its own name, by which its objects can be pickled."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = os.path.basename(path)[: -len(".py")]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    if known is not None:
        name = "gpulaunch_worker_" + name  # a module of the interpreter has that name
        if name in sys.modules:
            return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"worker: {path} is no Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def spoils(error: BaseException | None) -> bool:
    """Whether the error, or its cause, shows that the process must not take another item."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            return True
        if any(kind.__name__ in SPOILING_NAMES for kind in type(error).__mro__):
            return True
        text = str(error).lower()
        if any(word in text for word in SPOILING_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def tell(error: BaseException) -> None:
    """Print the traceback from the function's own file on, by the program's excepthook if set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)


def exit_code(error: SystemExit) -> int:
    """Return the status as the interpreter would: None is 0, a number itself, other text 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 255
    print(error.code, file=sys.stderr)
    return 1


def flush() -> None:
    """Flush Python's buffers, then C libraries', so that an item's output is in its own log."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    try:
        import ctypes

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError, AttributeError):
        pass


def call(channel: ItemPipes, function: str, load: str) -> int:
    place = function.rpartition(":")[0]
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    is_file = place.endswith(".py")
    sys.path.insert(0, os.path.dirname(place) if is_file else os.getcwd())
    sys.argv = [place]
    return Calls(channel, function, load).serve()


# ── A program that reads lines ──────────────────────────────────────────────────────────────────


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
        import select

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
            self.channel.answer(loaded=0.0)
        else:
            try:
                log = open_log(task["log"])
            except OSError as error:
                self.item = None
                text = f"cannot create its log {task['log']}: {error.strerror}"
                self.channel.answer(item=task["item"], error=text)
                return
            os.dup2(log, self.log)
            os.close(log)
        line = json.dumps(task["values"]).encode() + b"\n"
        self.send(line)

    def send(self, line: bytes) -> None:
        """Write the line while reading the program's output: it may print before it reads on."""
        import select

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
        self.channel.answer(item=self.item, exit=code, spoiled=bool(self.words))
        self.item = None

    def refuse(self, line: bytes, why: str = "") -> None:
        """Log why, kill the program and exit: after such an answer its item is uncertain."""
        self.pump()
        shown = line[:200].decode("utf-8", "backslashreplace")
        why = why or 'expected an exit code or {"exit": 0}'
        self.say(f"worker: found the answer {shown}; {why}")
        os.kill(self.pid, signal.SIGKILL)
        os._exit(1)

    def ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

    def last_words(self, status: int) -> int:
        """Die by the program's signal, or return its status, but 1 for 0 without an answer."""
        self.pump()
        self.listen()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            try:
                import resource

                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its own
            except (ImportError, OSError, ValueError):
                pass
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
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


def main() -> None:
    channel = ItemPipes()
    if sys.argv[1] == "lines":
        code = Lines(channel, sys.argv[2:]).serve()
    else:
        code = call(channel, sys.argv[2], sys.argv[3])
    sys.exit(code)


if __name__ == "__main__":
    main()
