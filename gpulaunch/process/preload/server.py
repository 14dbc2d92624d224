"""A spawner in the jobs' own interpreter, which has imported what they import.

    supervisor ─exec─▶ guard ─fork, exec─▶ server ─fork─▶ guardian ─▶ monitor ─▶ job (no exec)

What it owns: importing, the check whether jobs may be forked afterwards, and a forked child's last
steps from keeper to job. What it never does: run the job's script. The server is an interpreter
that was started with the jobs' own options and script, and has not opened the script yet (see
`hook/sitecustomize.py`). Its forked jobs go on from there, so that `__main__`, tracebacks,
`sys.path`, atexit, exit status and flushing are the interpreter's own work, as in a cold start.

The keepers are `keeper.py`, loaded by path, with all that it promises. Standard library only,
Python 3.8 and newer; no import from the package.

The guard runs as `python -I -S server.py CONTROL SPEC` in gpulaunch's interpreter. It ends the
server, and all processes that imports have started, when they take too long or the supervisor goes
away; once the server serves, the guard only waits for its end.

    before it serves                 then
    supervisor dies                  guard kills the server and sweeps
    guard dies                       the kernel kills the server (PR_SET_PDEATHSIG)
    server dies, hangs or refuses    guard says why and sweeps; the jobs start cold
    hooks of imports at forks hang   likewise, and sooner; `hooks.py` and `quiet_fork` keep such
                                     hooks from its keepers
    afterwards                       as for any spawner: pairs go on, the supervisor starts another
"""

from __future__ import annotations

import os
import sys

if False:  # For the type checker: the job's interpreter imports as little as it can.
    from typing import Any, Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ROOM = "GPULAUNCH_ROOM"
ROOM_SIZE = 4096
MOST_SAID = 64 << 10
FORKING, FORKED = b"forking\n", b"forked\n"
FOLDER = os.path.dirname(os.path.abspath(__file__))


class PreloadRefused(Exception):
    """Jobs cannot be forked from this interpreter; the text says why."""


def load(path: str) -> Any:
    """Load a module by its path, without an entry in sys.modules."""
    import types

    module = types.ModuleType("gpulaunch_" + os.path.basename(path)[:-3])
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", 0, True), module.__dict__)
    return module


def read_spec(fd: int) -> dict[str, Any]:
    import json

    spec: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    return spec


def raw(text: str) -> bytes:
    """Return the bytes that came through JSON as Latin-1, one character each."""
    return text.encode("latin-1")


def raw_dict(texts: dict[str, str]) -> dict[bytes, bytes]:
    return {raw(name): raw(value) for name, value in texts.items()}


# ── The guard ───────────────────────────────────────────────────────────────────────────────────


class Guard:
    """The process that watches a server until it serves."""

    def __init__(self, control: int, spec: int) -> None:
        import signal

        self.keeper = load(os.path.join(os.path.dirname(FOLDER), "keeper.py"))
        blocked = signal.valid_signals() - self.keeper.HEARD_SIGNALS
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.keeper.rename("keeper-preload")
        self.spec = read_spec(spec)
        self.keeper.close_all_but({0, 1, 2, control, spec})
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        self.keeper.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.forking = False
        self.channel = self.keeper.KeeperChannel(control)
        self.waker = self.keeper.Waker()
        self.report, write = os.pipe()
        self.server = self.start(control, spec, write)
        os.close(write)

    def start(self, control: int, spec: int, report: int) -> int:
        me = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            self.keeper.settle_in(me)
            self.keeper.stdio(raw(self.spec["log"]))
            self.keeper.enter(raw(self.spec["cwd"]))
            fds = [report, control, spec]
            for fd in fds:
                os.set_inheritable(fd, True)
            env = raw_dict(self.spec["env"])
            env[b"GPULAUNCH_PRELOAD"] = b"1:%d:%d:%d" % tuple(fds)
            argv = [raw(word) for word in [*self.spec["start"], "-c", "pass"]]
            os.execve(raw(self.spec["python"]), argv, env)
        except BaseException as problem:
            refuse(report, str(problem))
        os._exit(1)

    def watch(self) -> None:
        """Watch until the server serves, or never will; then wait for its end."""
        import json
        import select
        import time

        end = time.monotonic() + float(self.spec["limit"])
        said = b""
        while True:
            poller = select.poll()
            for fd in (self.report, self.waker.fd, self.channel.fd):
                poller.register(fd, select.POLLIN)
            ready = dict(poller.poll(max(0, end - time.monotonic()) * 1000))
            self.waker.clear()
            if self.report in ready:
                words = os.read(self.report, 65536)
                said += words
                for stage, key in ((FORKING, "at_fork"), (FORKED, "limit")):
                    if said.startswith(stage):
                        said, self.forking = said[len(stage) :], stage == FORKING
                        end = time.monotonic() + float(self.spec[key])
                if not words or said.endswith(b"\n"):
                    break
            elif self.channel.fd in ready:
                self.give_up()
            elif time.monotonic() >= end:
                self.give_up(self.what_took_long())
            else:
                self.reap()
        answer = json.loads(said) if said else {"refused": self.how_it_ended()}
        if "refused" in answer:
            self.give_up(str(answer["refused"]))
        self.keeper.prctl(PR_SET_CHILD_SUBREAPER, 0)
        # A blocking send, unlike keepers': without this message the supervisor would wait for ever.
        self.channel.socket.send(json.dumps({"is": "ready", **answer}).encode())
        self.channel.socket.close()
        os.close(self.report)
        # From here on the supervisor sees by the end of file if the server fails.
        os.waitpid(self.server, 0)

    def what_took_long(self) -> str:
        if self.forking:
            return f"{self.keeper.AT_FORK} had not returned after {float(self.spec['at_fork']):g} s"
        return f"importing took longer than {float(self.spec['limit']):g} s"

    def reap(self) -> None:
        """Reap what imports started and left behind, but not the server: see `how_it_ended`."""
        for pid in self.keeper.children():
            if pid != self.server:
                os.waitpid(pid, os.WNOHANG)

    def how_it_ended(self) -> str:
        _, status = os.waitpid(self.server, 0)
        what = self.keeper.AT_FORK if self.forking else "importing"
        if os.WIFSIGNALED(status):
            return f"{what} ended with signal {os.WTERMSIG(status)}"
        if os.WEXITSTATUS(status) or self.forking:
            return f"{what} ended the interpreter with status {os.WEXITSTATUS(status)}"
        return "it does not begin with what PYTHONPATH names (sitecustomize)"

    def give_up(self, why: str = "") -> None:
        """Kill the server and all below it, then tell the supervisor why, and exit."""
        self.keeper.Sweep(self.channel).to_the_end()
        if why:
            self.channel.send({"is": "refused", "why": why})
        os._exit(0)


def refuse(report: int, why: str) -> None:
    import json

    os.write(report, json.dumps({"refused": why}).encode() + b"\n")


# ── The server ──────────────────────────────────────────────────────────────────────────────────


def enter(asked: str, import_own: Callable[[], None]) -> None:
    """Become the server; return in a forked job alone.

    `asked` is `STAGE:REPORT:CONTROL:SPEC`, the latter three descriptors. The first stage runs with
    `-c pass`, so that an interpreter that does not come here does nothing at all. Only then is it
    started again with the job's script, which must never run in a server.
    """
    early = frozenset(sys.modules)
    stage, *fds = asked.split(":")
    report, control, spec_fd = (int(fd) for fd in fds)
    spec = read_spec(spec_fd)
    if stage == "1":
        env = raw_dict(spec["env"])
        env[b"GPULAUNCH_PRELOAD"] = b"2:%d:%d:%d" % (report, control, spec_fd)
        env[ROOM.encode()] = b" " * ROOM_SIZE
        # The last argument reserves space for the jobs' command lines, as `ps` shows them.
        argv = [raw(word) for word in [*spec["start"], *spec["target"], " " * ROOM_SIZE]]
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
        self.target = [os.fsdecode(raw(word)) for word in spec["target"]]
        self.report = report
        self.control = control
        self.early = early
        self.own_error: BaseException | None = None
        self.spawner: Any = None
        self.keeper = load(os.path.join(os.path.dirname(FOLDER), "keeper.py"))
        parts = ("finding", "reads", "safety", "after_fork", "hooks")
        self.finding, self.reading, self.safety, self.after_fork, hooks = (
            load(os.path.join(FOLDER, f"{name}.py")) for name in parts
        )
        self.hooks = hooks.Hooks()
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
        import time

        spec = self.spec
        self.mend_environment()
        self.hooks.take()
        watched = self.safety.tools()
        before = set(self.safety.descriptors())
        drawn = self.after_fork.seeds()
        began = time.monotonic()
        with self.reading.Reads() as reads:
            try:
                import_own()
            except BaseException as problem:
                self.own_error = problem
            path = self.finding.beside_script(self.target)
            why = self.safety.shadowed(path, self.early)
            if why:
                raise PreloadRefused(why)
            sys.path[:0] = path
            modules, left_out = self.import_all()
            self.sets = self.finding.sets(self.target)
            if path and sys.path[:1] == path:
                del sys.path[0]
        self.changed = reads.changed()
        flush()
        with open(raw(spec["log"]), "rb") as file:
            self.said = file.read(MOST_SAID)
        self.check(watched, before, reads.names)
        self.local = self.safety.local_files(self.finding.installed)
        if self.after_fork.seeds() != drawn:
            self.seeded = self.after_fork.seeds()
        self.settle()
        self.tell(
            modules=modules,
            left_out=left_out,
            reads=sorted(os.fsencode(name).decode("latin-1") for name in reads.names),
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
        import importlib

        named = self.spec["modules"]
        if named is not None:
            for name in named:
                try:
                    importlib.import_module(name)
                except BaseException as problem:
                    raise PreloadRefused(f"import {name} fails: {in_words(problem)}") from None
            return list(named), {}
        found = self.finding.find(self.target)
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
        self.keeper.opened.update(set(self.safety.descriptors()) - before)
        if self.keeper.children():
            raise PreloadRefused("an import left a process running")
        os.write(self.report, FORKING)
        self.hooks.before()
        cards = tuple(spec["cards"])
        in_child = self.in_child(os.getpid())
        why = self.safety.why_not(self.keeper.opened, cards, watched, in_child, self.keeper.AT_FORK)
        os.write(self.report, FORKED)
        if why:
            raise PreloadRefused(why)

    def in_child(self, parent: int) -> Callable[[], None]:
        """Return what a forked child of `parent` calls first, before this process serves."""

        def begin() -> None:
            self.keeper.settle_in(parent)
            self.hooks.after_in_child()

        return begin

    def settle(self) -> None:
        """Turn this interpreter into a spawner.

        Freezes all objects, so that no collection in a job copies their memory. Not `__main__`:
        what the script leaves there would not be finalised at the end.
        """
        import gc
        import signal

        keeper = self.keeper
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            self.handlers[number] = signal.getsignal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - keeper.HEARD_SIGNALS)
        for number, handler in self.handlers.items():
            if handler not in (None, signal.SIG_DFL):  # None: the interpreter's own (faulthandler)
                signal.signal(number, signal.SIG_DFL)
        os.chdir("/")
        keeper.rename("keeper-preload")
        keeper.prctl(PR_SET_CHILD_SUBREAPER, 1)
        keeper.go_on_as_job = self.go_on_as_job
        keeper.fork = quiet_fork()
        keeper.at_fork = self.hooks.after_in_child
        keeper.at_fork_limit = float(self.spec["at_fork"])
        self.spawner = keeper.SpawnServer(self.control)
        self.spawner.environment = raw_dict(self.spec["base"])
        gc.collect()
        with LeftOutOfCollection(sys.modules["__main__"], sys.modules["__main__"].__dict__):
            gc.freeze()

    def tell(self, **words: object) -> None:
        """Report to the guard that the server serves, which ends its watch."""
        import json

        self.keeper.prctl(PR_SET_PDEATHSIG, 0)
        os.write(self.report, json.dumps(words).encode() + b"\n")
        os.close(self.report)

    def serve(self) -> None:
        """Fork pairs until the supervisor is gone, then exit; return in a job alone."""
        continues = False
        try:
            self.spawner.serve()
        except self.keeper.ContinueInChild:
            continues = True
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
        finally:
            if not continues:
                os._exit(0)

    # ── The job's last steps ────────────────────────────────────────────────────────────────────

    def go_on_as_job(
        self, spec: dict[str, Any], monitor: Any, environment: dict[bytes, bytes]
    ) -> None:
        """Make the forked child the job: its command line, environment, handlers, descriptors.

        Its streams, directory and isolation are the job's already. Raises ContinueInChild; returns,
        after it has said why, if the job has to start cold after all.
        """
        import signal

        why = self.why_stale()
        if why:
            message = {"is": "cold", "attempt": spec["attempt"], "why": why, "for_good": False}
            monitor.channel.send(message)
            return
        main = spec["main"]
        environment.update(raw_dict(main["env"]))
        argv = [raw(word) for word in main["argv"]]
        room = b"%s=%s" % (ROOM.encode(), b" " * ROOM_SIZE)
        self.after_fork.show(self.keeper, room, raw(main["name"]), argv, environment)
        self.replace_environment(environment)
        sys.argv[1:] = [os.fsdecode(raw(word)) for word in main["args"]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [os.fsdecode(word) for word in argv]
        self.after_fork.reseed(self.seeded)
        for number, handler in self.handlers.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)
        self.after_fork.refresh_multiprocessing()
        written = 0
        while written < len(self.said):
            written += os.write(1, self.said[written:])
        monitor.channel.socket.detach()
        if self.spawner.control:
            self.spawner.control.socket.detach()
        self.keeper.close_all_but({0, 1, 2, *monitor.leases} | self.keeper.opened)
        self.hooks.give_back()
        raise self.keeper.ContinueInChild

    def why_stale(self) -> str:
        for path, seen in self.local.items():
            if self.safety.stamp(path) != seen:
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
        import ctypes
        import gc

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
    import ctypes

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


if __name__ == "__main__":
    Guard(int(sys.argv[1]), int(sys.argv[2])).watch()
