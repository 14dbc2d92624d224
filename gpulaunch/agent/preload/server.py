"""The server: an interpreter that imports what jobs import, forks them, and goes on as one."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable

from .. import kernel
from ..launch import LaunchOrder
from ..wire import Any, coded, decoded, raw, raw_all, raw_dict, read_spec
from . import after_fork, finding, safety
from .guard import AT_FORK, FORKED, FORKING, refuse
from .hooks import Hooks
from .pairs import ContinueInChild, PairForker, settle_in
from .reads import Reads

ROOM = "GPULAUNCH_ROOM"
ROOM_SIZE = 4096
MOST_SAID = 64 << 10
STALE = b"\3"  # through a child's pipe: why its job is to be executed instead


class PreloadRefused(Exception):
    """Jobs cannot be forked from this interpreter; the text says why."""


def enter(asked: str, early: frozenset[str], import_own: Callable[[], None]) -> None:
    """Become the server; return in a forked job alone.

    `asked` is `STAGE:REPORT:CONTROL:SPEC`, the latter three descriptors. The first stage runs with
    `-c pass`, so that an interpreter that does not come here does nothing at all. Only then is it
    started again with the job's script, which must never run in a server. `early` are the modules
    that were there before ours.
    """
    stage, *fds = asked.split(":")
    report, control, spec_fd = (int(fd) for fd in fds)
    spec = read_spec(spec_fd)
    if stage == "1":
        env = raw_dict(spec["env"])
        env[b"GPULAUNCH_PRELOAD"] = b"2:%d:%d:%d" % (report, control, spec_fd)
        env[ROOM.encode()] = b" " * ROOM_SIZE
        # The last argument reserves space for the jobs' command lines, as `ps` shows them.
        argv = raw_all([*spec["start"], *spec["target"], " " * ROOM_SIZE])
        os.execve(raw(spec["python"]), argv, env)
    os.close(spec_fd)
    try:
        server = Server(spec, report, control, early)
        server.prepare(import_own)
    except BaseException as problem:
        refuse(report, str(problem) or type(problem).__name__)
        os._exit(0)
    server.serve()
    if server.own_error is not None:
        raise server.own_error


class Server:
    def __init__(
        self, spec: dict[str, Any], report: int, control: int, early: frozenset[str]
    ) -> None:
        self.spec = spec
        self.target = [decoded(word) for word in spec["target"]]
        self.report = report
        self.control = control
        self.early = early
        self.own_error: BaseException | None = None
        self.pairs: PairForker
        self.opened: set[int] = set()
        self.hooks = Hooks()
        self.handlers: dict[Any, Any] = {}
        self.changed: dict[bytes, bytes | None] = {}
        self.local: dict[str, tuple[int, int]] = {}
        self.said = b""
        self.sets: set[str] = set()
        self.seeded: Any = None
        self.coerced = b""

    # ── Before it serves ────────────────────────────────────────────────────────────────────────

    def prepare(self, import_own: Callable[[], None]) -> None:
        """Import, check that forking is safe, and report it.

        Raises PreloadRefused, and any exception of an import.
        """
        spec = self.spec
        self.mend_environment()
        self.hooks.take()
        watched = safety.tools()
        before = set(safety.descriptors())
        drawn = after_fork.seeds()
        began = time.monotonic()
        with Reads() as reads:
            try:
                import_own()
            except BaseException as problem:
                self.own_error = problem
            path = finding.beside_script(self.target)
            why = safety.shadowed(path, self.early)
            if why:
                raise PreloadRefused(why)
            sys.path[:0] = path
            modules, left_out = self.import_all()
            self.sets = finding.sets(self.target)
            if path and sys.path[:1] == path:
                del sys.path[0]
        self.changed = reads.changed()
        flush()
        with open(raw(spec["log"]), "rb") as file:
            self.said = file.read(MOST_SAID)
        self.check(watched, before, reads.names)
        self.local = safety.local_files(finding.installed)
        if after_fork.seeds() != drawn:
            self.seeded = after_fork.seeds()
        self.settle()
        self.tell(
            modules=modules,
            left_out=left_out,
            reads=sorted(map(coded, reads.names)),
            seconds=time.monotonic() - began,
        )

    def mend_environment(self) -> None:
        """Remove what started this server, so that imports see the job's environment."""
        given = raw_dict(self.spec["env"])
        # The interpreter itself sets LC_CTYPE in a C locale (PEP 538).
        if b"LC_CTYPE" not in given:
            self.coerced = os.environb.get(b"LC_CTYPE", b"")
        os.environ.pop(ROOM, None)
        theirs = self.spec["python_path"]
        if theirs is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environb[b"PYTHONPATH"] = raw(theirs)

    def import_all(self) -> tuple[list[str], dict[str, str]]:
        named = self.spec["modules"]
        if named is not None:
            for name in named:
                try:
                    importlib.import_module(name)
                except BaseException as problem:
                    raise PreloadRefused(f"import {name} fails: {in_words(problem)}") from None
            return list(named), {}
        found = finding.find(self.target)
        modules: list[str] = []
        left_out: dict[str, str] = dict(found.left_out)
        for name in found.modules:
            try:
                importlib.import_module(name)
            except BaseException as problem:
                left_out[name] = in_words(problem)
            else:
                modules.append(name)
        if not modules:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise PreloadRefused(
                f"nothing to import was found in {found.where}" + f" ({reasons})" * bool(reasons)
            )
        return modules, left_out

    def check(self, watched: dict[str, Any], before: set[int], reads: set[str]) -> None:
        """Raise PreloadRefused if a fork of this process would differ from a cold start."""
        spec = self.spec
        own = sorted(reads & set(spec["own"]))
        if own:
            raise PreloadRefused(f"an import reads {own[0]}, which every attempt has its own")
        for name in self.sets:
            if name in reads or name.startswith(tuple(spec["early"])):
                raise PreloadRefused(
                    f"the script itself sets {name}, which imports read: set it in env:"
                )
        self.opened.update(set(safety.descriptors()) - before)
        if kernel.children():
            raise PreloadRefused("an import left a process running")
        os.write(self.report, FORKING)
        self.hooks.before()
        cards = tuple(spec["cards"])
        in_child = self.in_child(os.getpid())
        why = safety.why_not(self.opened, cards, watched, in_child, AT_FORK)
        os.write(self.report, FORKED)
        if why:
            raise PreloadRefused(why)

    def in_child(self, parent: int) -> Callable[[], None]:
        """Return what a forked child of `parent` calls first, before this process serves."""

        def begin() -> None:
            settle_in(parent)
            self.hooks.after_in_child()

        return begin

    def settle(self) -> None:
        """Turn this interpreter into a spawner.

        Freezes all objects, so that no collection in a job copies their memory. Not `__main__`:
        what the script leaves there would not be finalised at the end.
        """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            self.handlers[number] = signal.getsignal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - kernel.HEARD_SIGNALS)
        for number, handler in self.handlers.items():
            if handler not in (None, signal.SIG_DFL):  # None: the interpreter's own (faulthandler)
                signal.signal(number, signal.SIG_DFL)
        os.chdir("/")
        kernel.rename("keeper-preload")
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self.pairs = PairForker(
            self.control,
            raw(self.spec["keepers"]),
            raw_dict(self.spec["base"]),
            self.opened,
            quiet_fork(),
            self.hooks.after_in_child,
            float(self.spec["at_fork"]),
            self.go_on_as_job,
        )
        gc.collect()
        with LeftOutOfCollection(sys.modules["__main__"], sys.modules["__main__"].__dict__):
            gc.freeze()

    def tell(self, **words: object) -> None:
        """Report to the guard that the server serves, which ends its watch."""
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
        os.write(self.report, json.dumps(words).encode() + b"\n")
        os.close(self.report)

    def serve(self) -> None:
        """Fork pairs until the supervisor is gone, then exit; return in a job alone."""
        try:
            self.pairs.serve()
        except ContinueInChild:
            return
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(0)

    # ── The job's last steps ────────────────────────────────────────────────────────────────────

    def go_on_as_job(self, launch: LaunchOrder, pipe: int, leases: list[int]) -> None:
        """Make the forked child the job: its command line, environment, handlers, descriptors.

        Its output and directory are the job's already. Raises ContinueInChild; if the job has to
        start cold after all, says why through the pipe and returns.
        """
        why, main = self.why_stale(), launch.main
        if why or main is None:
            os.write(pipe, STALE + why.encode("utf-8", "replace"))
            return
        environment = dict(self.pairs.environment)
        for name in launch.env_unset:
            environment.pop(name, None)
        environment.update({**launch.env_set, **raw_dict(main["env"])})
        argv = raw_all(main["argv"])
        room = b"%s=%s" % (ROOM.encode(), b" " * ROOM_SIZE)
        after_fork.show(room, raw(main["name"]), argv, environment)
        self.replace_environment(environment)
        sys.argv[1:] = [decoded(word) for word in main["args"]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [os.fsdecode(word) for word in argv]
        after_fork.reseed(self.seeded)
        for number, handler in self.handlers.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)
        after_fork.refresh_multiprocessing()
        written = 0
        while written < len(self.said):
            written += os.write(1, self.said[written:])
        if self.pairs.control:
            self.pairs.control.socket.detach()
        self.hooks.give_back()
        for lease in leases:
            os.set_inheritable(lease, True)
        kernel.close_all_but({0, 1, 2, *leases} | self.opened)
        raise ContinueInChild

    def why_stale(self) -> str:
        for path, seen in self.local.items():
            if safety.stamp(path) != seen:
                return f"{path} is not the file any more that was imported"
        return ""

    def replace_environment(self, environment: dict[bytes, bytes]) -> None:
        if self.coerced and not {b"LC_ALL", b"LC_CTYPE"} & environment.keys():
            environment[b"LC_CTYPE"] = self.coerced
        for name, value in self.changed.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        os.environb.clear()
        os.environb.update(environment)


class LeftOutOfCollection:
    """Hides objects from the garbage collector inside the `with` block, so that none is frozen."""

    def __init__(self, *objects: object) -> None:
        self.api = ctypes.pythonapi
        self.objects = [ctypes.py_object(one) for one in objects if gc.is_tracked(one)]

    def __enter__(self) -> None:
        for one in self.objects:
            self.api.PyObject_GC_UnTrack(one)

    def __exit__(self, *_: object) -> None:
        for one in self.objects:
            self.api.PyObject_GC_Track(one)


def quiet_fork() -> Callable[[], int]:
    """Return a fork that calls no hooks of C libraries or Python modules.

    `_Fork` (glibc 2.34, musl 1.2.3, POSIX.1-2024) is fork without pthread_atfork's handlers, and
    the interpreter does not notice it. What the interpreter would do in the child concerns other
    threads, which a server does not have. Without `_Fork` in the C library it is os.fork.
    """
    native = getattr(ctypes.PyDLL(None, use_errno=True), "_Fork", None)
    if native is None:
        return os.fork

    def fork() -> int:
        pid: int = native()
        if pid < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return pid

    return fork


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def in_words(problem: BaseException) -> str:
    text = str(problem).strip().split("\n")[0]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
