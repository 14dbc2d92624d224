"""A nursery in the jobs' own interpreter, which has imported what they import.

    supervisor ─exec─▶ guard ─fork, exec─▶ server ─fork─▶ outer ─▶ inner ─▶ job, without an exec

What it owns: importing, saying whether jobs may be forked after it, and a forked child's last steps
from keeper to job. What it never does: run the job's script. The server is an interpreter that was
started with the jobs' own options and script, and has not come to the script yet (see
`hook/sitecustomize.py`). Its forked jobs go on from there, so that `__main__`, tracebacks,
`sys.path`, atexit, exit status and flushing are the interpreter's own work, as in a cold start.

The keepers are `keeper.py`, loaded by path, with all that it promises. Standard library only,
Python 3.8 and newer; no import from the package.

The guard runs as `python -I -S server.py CONTROL SPEC` in gpulaunch's interpreter. It ends the
server, and whatever imports have started, when they take too long or the supervisor goes away; once
the server serves, it only waits for it.

    before it serves                 then
    supervisor dies                  guard kills the server and sweeps
    guard dies                       the kernel kills the server (PR_SET_PDEATHSIG)
    server dies, hangs or refuses    guard says why and sweeps; the jobs start cold
    afterwards                       as for any nursery: pairs go on, the supervisor starts another
"""

from __future__ import annotations

import os
import sys

if False:  # For the type checker: the job's interpreter imports as little as it can.
    from typing import Any, Callable, Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NAME = 1, 36, 15
PR_SET_MM, PR_SET_MM_MAP = 35, 14
CUDA_ERROR_NOT_INITIALIZED = 3
ROOM = "GPULAUNCH_ROOM"
ROOM_SIZE = 4096
MOST_SAID = 64 << 10
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Refused(Exception):
    """Why jobs are not forked from here, in words."""


def load(path):  # type: ignore[no-untyped-def]
    """A module that is in nobody's sys.modules."""
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
    """Bytes that came through JSON as Latin-1, one character each."""
    return text.encode("latin-1")


def raw_dict(texts: dict[str, str]) -> dict[bytes, bytes]:
    return {raw(name): raw(value) for name, value in texts.items()}


# ── The guard ───────────────────────────────────────────────────────────────────────────────────


class Guard:
    """Watches over a server until it serves."""

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
        self.channel = self.keeper.Channel(control)
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
        """Until the server serves, or never will."""
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
                if not words or said.endswith(b"\n"):
                    break
            elif self.channel.fd in ready:
                self.give_up()
            elif time.monotonic() >= end:
                seconds = f"{float(self.spec['limit']):g} s"
                self.give_up(f"importing took longer than {seconds}")
            else:
                self.bury()
        answer = json.loads(said) if said else {"refused": self.how_it_ended()}
        if "refused" in answer:
            self.give_up(str(answer["refused"]))
        self.keeper.prctl(PR_SET_CHILD_SUBREAPER, 0)
        self.channel.send({"is": "ready", **answer})
        self.channel.socket.close()
        os.close(self.report)
        # What goes wrong from here on is the server's supervisor's to see, by its end of file.
        os.waitpid(self.server, 0)

    def bury(self) -> None:
        """What imports started and left behind; the server itself stays for `how_it_ended`."""
        for pid in self.keeper.children():
            if pid != self.server:
                os.waitpid(pid, os.WNOHANG)

    def how_it_ended(self) -> str:
        _, status = os.waitpid(self.server, 0)
        if os.WIFSIGNALED(status):
            return f"importing ended with signal {os.WTERMSIG(status)}"
        if os.WEXITSTATUS(status):
            return f"importing ended the interpreter with status {os.WEXITSTATUS(status)}"
        return "it does not begin with what PYTHONPATH names (sitecustomize)"

    def give_up(self, why: str = "") -> None:
        """Nothing is left of it when the supervisor hears."""
        self.keeper.Sweep(self.channel).to_the_end()
        if why:
            self.channel.send({"is": "refused", "why": why})
        os._exit(0)


def refuse(report: int, why: str) -> None:
    import json

    os.write(report, json.dumps({"refused": why}).encode() + b"\n")


# ── The server ──────────────────────────────────────────────────────────────────────────────────


def enter(asked: str, import_own: Callable[[], None]) -> None:
    """Returns in a forked job alone. `asked` is `STAGE:REPORT:CONTROL:SPEC`, the latter three fds.

    The first stage runs `-c pass`: an interpreter that does not come here does nothing at all. Only
    then is it started again with the job's script, which must never run in a server.
    """
    early = frozenset(sys.modules)
    stage, *fds = asked.split(":")
    report, control, spec_fd = (int(fd) for fd in fds)
    spec = read_spec(spec_fd)
    if stage == "1":
        env = raw_dict(spec["env"])
        env[b"GPULAUNCH_PRELOAD"] = b"2:%d:%d:%d" % (report, control, spec_fd)
        env[ROOM.encode()] = b" " * ROOM_SIZE
        # The last word makes room for the jobs' command lines, as `ps` shows them.
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
        self.report = report
        self.control = control
        self.early = early
        self.own_error: BaseException | None = None
        self.nursery: Any = None
        self.keeper = load(os.path.join(os.path.dirname(FOLDER), "keeper.py"))
        self.finding = load(os.path.join(FOLDER, "finding.py"))
        self.handlers: dict[Any, Any] = {}
        self.changed: dict[bytes, bytes | None] = {}
        self.local: dict[str, tuple[int, int]] = {}
        self.said = b""
        self.seeds: dict[str, Any] = {}

    # ── Before it serves ────────────────────────────────────────────────────────────────────────

    def prepare(self, import_own: Callable[[], None]) -> None:
        """Import, look whether it is safe to fork, and say so. Raises Refused, and what not."""
        import random
        import time

        spec = self.spec
        self.environment = mended_environment(spec)
        watched = tools()
        before = set(descriptors())
        drawn = random.getstate()
        began = time.monotonic()
        with Reads() as reads:
            try:
                import_own()
            except BaseException as problem:
                self.own_error = problem
            path = beside_script(spec["target"])
            refuse_shadowed(path, self.early)
            sys.path[:0] = path
            try:
                modules, left_out = self.import_all()
            finally:
                if path and sys.path[:1] == path:
                    del sys.path[0]
        self.changed = reads.changed()
        flush()
        self.check(watched, before, reads.names)
        self.local = local_files(path)
        if random.getstate() != drawn:  # seeded by an import; a fork would draw anew
            self.seeds["random"] = random.getstate()
        with open(raw(spec["log"]), "rb") as file:
            self.said = file.read(MOST_SAID)
        self.settle()
        self.tell(
            modules=modules,
            left_out=left_out,
            reads=sorted(os.fsencode(name).decode("latin-1") for name in reads.names),
            seconds=time.monotonic() - began,
        )

    def import_all(self) -> tuple[list[str], dict[str, str]]:
        import importlib

        named = self.spec["modules"]
        if named is not None:
            for name in named:
                try:
                    importlib.import_module(name)
                except BaseException as problem:
                    raise Refused(f"import {name} fails: {in_words(problem)}") from None
            return list(named), {}
        found = self.finding.find(self.spec["target"])
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
            raise Refused(f"nothing to import was found in {found.where}" + f" ({reasons})" * bool(reasons))
        return modules, left_out

    def check(self, watched: dict[str, Any], before: set[int], reads: set[str]) -> None:
        """Raises Refused where a fork of this process would not be what a cold start is."""
        keeper, spec = self.keeper, self.spec
        for name, was in watched.items():
            if tools()[name] is not was:
                raise Refused(f"an import replaces {name}")
        for name in self.finding.sets(spec["target"]):
            if name in reads or name.startswith(tuple(spec["early"])):
                raise Refused(f"the script itself sets {name}, which imports read: set it in env:")
        own = sorted(reads & set(spec["own"]))
        if own:
            raise Refused(f"an import reads {own[0]}, which every attempt has its own")
        keeper.opened.update(set(descriptors()) - before)
        for fd in sorted(keeper.opened):
            why = why_not_shared(fd, tuple(spec["cards"]))
            if why:
                raise Refused(why)
        if keeper.children():
            raise Refused("an import left a process running")
        why = after_a_fork() or driver_in_use()
        if why:
            raise Refused(why)
        tasks = os.listdir("/proc/self/task")
        if len(tasks) > 1:
            raise Refused(f"imports left {len(tasks) - 1} threads running ({thread_names(tasks)})")

    def settle(self) -> None:
        """From an interpreter to a nursery."""
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
        self.nursery = keeper.Nursery(self.control)
        self.nursery.environment = raw_dict(self.spec["base"])
        gc.collect()
        gc.freeze()

    def tell(self, **words: object) -> None:
        """It serves from here on; the guard need not watch any longer."""
        import json

        self.keeper.prctl(PR_SET_PDEATHSIG, 0)
        os.write(self.report, json.dumps(words).encode() + b"\n")
        os.close(self.report)

    def serve(self) -> None:
        """Ends this process, or returns in a job."""
        born = False
        try:
            self.nursery.serve()
        except self.keeper.Born:
            born = True
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
        finally:
            if not born:
                os._exit(0)

    # ── The job's last steps ────────────────────────────────────────────────────────────────────

    def go_on_as_job(self, spec: dict[str, Any], inner: Any, environment: dict[bytes, bytes]) -> None:
        """In the forked child, whose streams, directory and isolation are the job's already.

        Raises Born. Returns where the job has to start cold after all, having said why.
        """
        import signal

        why = self.why_stale()
        if why:
            inner.channel.send({"is": "cold", "attempt": spec["attempt"], "why": why})
            return
        main = spec["main"]
        environment.update(raw_dict(main["env"]))
        argv = [raw(word) for word in main["argv"]]
        self.show(main, argv, environment)
        self.replace_environment(environment)
        sys.argv[1:] = [os.fsdecode(raw(word)) for word in main["args"]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [os.fsdecode(word) for word in argv]
        self.reseed()
        for number, handler in self.handlers.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)
        refresh_multiprocessing()
        written = 0
        while written < len(self.said):
            written += os.write(1, self.said[written:])
        inner.channel.socket.detach()
        if self.nursery.control:
            self.nursery.control.socket.detach()
        self.keeper.close_all_but({0, 1, 2, *inner.leases} | self.keeper.opened)
        raise self.keeper.Born

    def why_stale(self) -> str:
        for path, seen in self.local.items():
            if stamp(path) != seen:
                return f"{path} is not the file any more that was imported"
        return ""

    def show(self, main: dict[str, Any], argv: list[bytes], environment: dict[bytes, bytes]) -> None:
        """What /proc shows of the process: the job's name, command line and environment."""
        import ctypes

        self.keeper.libc.prctl(PR_SET_NAME, ctypes.c_char_p(raw(main["name"])[:15]), 0, 0, 0)
        line = b"\0".join(argv) + b"\0"
        shown = b"".join(n + b"=" + v + b"\0" for n, v in environment.items())
        if not show_anew(self.keeper, line, shown):
            self.overwrite(line, environment)

    def overwrite(self, line: bytes, environment: dict[bytes, bytes]) -> None:
        """For kernels that cannot show other memory: what fits, into the room made at the start.

        Of the environment, what tells the launcher whose process this is.
        """
        import ctypes

        start, end, env_start, env_end = (int(n) for n in self.keeper.stat_fields("self")[45:49])
        if 0 < start < end:
            ctypes.memset(start, 0, end - start)
            ctypes.memmove(start, line, min(len(line), end - start - 1))
        if 0 < env_start < env_end:
            at = ctypes.string_at(env_start, env_end - env_start).find(ROOM.encode() + b"=")
            ours = [n + b"=" + v for n, v in environment.items() if n.startswith(b"GPULAUNCH_")]
            text = b"\0".join(ours) + b"\0"
            if at >= 0 and len(text) < ROOM_SIZE:
                ctypes.memset(env_start + at, 0, ROOM_SIZE)
                ctypes.memmove(env_start + at, text, len(text))

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

    @property
    def coerced(self) -> bytes:
        """LC_CTYPE as the interpreter itself set it in a C locale (PEP 538)."""
        return self.environment.get(b"LC_CTYPE", b"") if b"LC_CTYPE" not in raw_dict(self.spec["env"]) else b""

    def reseed(self) -> None:
        """Two jobs draw different numbers, as after cold starts, unless an import has seeded."""
        if "random" in self.seeds:
            sys.modules["random"].setstate(self.seeds["random"])
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and not seeded_by_number(numpy.get_state()):
            numpy.seed()
        torch = sys.modules.get("torch")
        # Torch draws 64 bits for a seed of its own; what people choose is smaller.
        if torch is not None and getattr(torch, "initial_seed", int)() >= 1 << 32:
            torch.default_generator.seed()


def show_anew(keeper: Any, line: bytes, environment: bytes) -> bool:
    """Have /proc show this memory as the command line and the environment. False: it cannot.

    PR_SET_MM_MAP (prctl(2)) wants every bound of the address space at once, and no privilege.
    """
    import ctypes

    fields = [int(number) for number in keeper.stat_fields("self")[23:49]]
    memory = ctypes.create_string_buffer(line + environment, len(line) + len(environment))
    at = ctypes.addressof(memory)
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    sbrk.argtypes = [ctypes.c_ssize_t]
    bounds = (ctypes.c_uint64 * 13)(
        fields[0], fields[1], fields[19], fields[20], fields[21], sbrk(0) or 0, fields[2],
        at, at + len(line), at + len(line), at + len(memory), 0, 0xFFFFFFFF << 32,
    )  # fmt: skip
    size = ctypes.c_ulong(ctypes.sizeof(bounds))
    if keeper.libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(bounds), size, 0):
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # the kernel reads it as long as we live
    return True


# ── What imports read, opened, changed ──────────────────────────────────────────────────────────


class Reads:
    """Which variables Python code reads meanwhile, by name; and what it sets.

    A copy of the whole environment (for a child process) reads none; a loop that takes some of it
    reads those.
    """

    def __enter__(self) -> Reads:
        self.whole: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self.before = dict(self.whole)
        self.seen: set[bytes] = set()
        self.batch: set[bytes] = set()
        self.pending: set[bytes] = set()
        os.environ._data = os.environb._data = Recording(self)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        data = os.environ._data  # type: ignore[attr-defined]
        self.after = {name: dict.__getitem__(data, name) for name in dict.keys(data)}
        self.whole.clear()
        self.whole.update(self.after)
        os.environ._data = os.environb._data = self.whole  # type: ignore[attr-defined]
        self.seen |= self.batch

    def iterates(self, names: set[bytes]) -> None:
        self.seen |= self.batch
        self.batch, self.pending = set(), names

    def read(self, name: bytes) -> None:
        if name not in self.pending:
            self.seen.add(name)
            return
        self.pending.discard(name)
        self.batch.add(name)
        if not self.pending:
            self.batch.clear()

    @property
    def names(self) -> set[str]:
        return {os.fsdecode(name) for name in self.seen}

    def changed(self) -> dict[bytes, bytes | None]:
        names = self.before.keys() | self.after.keys()
        return {n: self.after.get(n) for n in names if self.before.get(n) != self.after.get(n)}


class Recording(dict):  # type: ignore[type-arg]
    def __init__(self, reads: Reads) -> None:
        super().__init__(reads.whole)
        self.reads = reads

    def __getitem__(self, name: bytes) -> Any:
        self.reads.read(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        self.reads.iterates(set(super().keys()))
        return super().__iter__()


def mended_environment(spec: dict[str, Any]) -> dict[bytes, bytes]:
    """Takes out what led here, so that imports see the job's environment. As it was before."""
    was = dict(os.environb)
    os.environ.pop(ROOM, None)
    theirs = spec["python_path"]
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environb[b"PYTHONPATH"] = raw(theirs)
    return was


def beside_script(target: list[str]) -> list[str]:
    """What the interpreter will put first on sys.path for the script or `-m`; none where told."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return []
    if target[0] == "-m":
        return [os.getcwd()]
    script = os.path.join(os.getcwd(), os.fsdecode(raw(target[0])))
    if os.path.isdir(script):
        return [script]
    import zipfile

    if not script.endswith(".py") and zipfile.is_zipfile(script):
        return [script]
    return [os.path.dirname(os.path.realpath(script))]


def refuse_shadowed(path: list[str], early: frozenset[str]) -> None:
    """A file beside the script that has the name of a module of Python's own which only we needed.

    A cold start would import that file. Raises Refused.
    """
    ours = {name for name in sys.modules if "." not in name} - early
    for place in path:
        names = os.listdir(place) if os.path.isdir(place) else []
        for name in names:
            package = os.path.isfile(os.path.join(place, name, "__init__.py"))
            if name.partition(".")[0] in ours and (name.endswith((".py", ".so")) or package):
                raise Refused(f"{os.path.join(place, name)} stands before Python's own module")


def tools() -> dict[str, Any]:
    """What the keepers stand on. Libraries that replace it (gevent, eventlet) are not for them."""
    import json
    import select
    import signal
    import socket
    import time

    found: dict[str, Any] = {"select.poll": select.poll, "socket.socket": socket.socket}
    for name in ("fork", "kill", "waitpid", "waitid", "pipe", "read", "write", "close", "open"):
        found["os." + name] = getattr(os, name)
    for name in ("sleep", "monotonic", "time"):
        found["time." + name] = getattr(time, name)
    for name in ("signal", "pthread_sigmask", "set_wakeup_fd"):
        found["signal." + name] = getattr(signal, name)
    for name in ("dumps", "loads"):
        found["json." + name] = getattr(json, name)
    return found


def descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # that of the listing
            continue
        found.append(int(name))
    return found


def why_not_shared(fd: int, cards: tuple[str, ...]) -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    if path.startswith(cards):
        return f"an import opened {path}: it uses the card"
    if path.startswith("socket:"):
        return "an import left a connection open"
    if path.startswith("anon_inode:"):
        kind = path.partition(":")[2].strip("[]")
        return f"an import left an {kind} descriptor open"
    return ""


def after_a_fork() -> str:
    """What torch says of itself in a forked child; handlers that stop threads at forks have run."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            native = getattr(sys.modules.get("torch"), "_C", None)
            for device in ("cuda", "xpu", "mtia"):
                bad = getattr(native, f"_{device}_isInBadFork", None)
                if bad is not None and bad():
                    os.write(write, device.upper().encode())
                    break
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        device = file.read().decode()
    os.waitpid(pid, 0)
    return f"an import initialised {device}" if device else ""


def driver_in_use() -> str:
    """libcuda is mapped by libraries that only link to it; only the driver tells if it was begun."""
    with open("/proc/self/maps", "rb") as file:
        if not any(b"libcuda.so" in line for line in file):
            return ""
    import ctypes

    try:
        code = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    except (OSError, AttributeError):
        return ""
    return "" if code == CUDA_ERROR_NOT_INITIALIZED else "an import initialised CUDA's driver"


def thread_names(tasks: list[str]) -> str:
    names = set()
    for task in tasks:
        if int(task) != os.getpid():
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.add(file.read().strip())
            except OSError:
                continue
    return ", ".join(sorted(names))


def local_files(path: list[str]) -> dict[str, tuple[int, int]]:
    """The files beside the script that were imported: people edit them while a run goes on."""
    if not path:
        return {}
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(path[0] + os.sep):
            if "site-packages" not in file and not file.startswith((sys.prefix, sys.base_prefix)):
                found[file] = stamp(file)
    return found


def stamp(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except OSError:
        return -1, -1
    return seen.st_mtime_ns, seen.st_size


def seeded_by_number(state: Any) -> bool:
    """Whether a legacy state of numpy comes from `seed(N)`: its words then follow by a formula.

    Source: Knuth's initialisation of MT19937 (init_genrand).
    """
    try:
        key = [int(word) for word in state[1][:3]]
    except (TypeError, IndexError, ValueError):
        return False
    return all(
        key[i] == (1812433253 * (key[i - 1] ^ (key[i - 1] >> 30)) + i) & 0xFFFFFFFF for i in (1, 2)
    )


def refresh_multiprocessing() -> None:
    """What it took down of the process when it was imported."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    process.ORIGINAL_DIR = os.path.abspath(os.getcwd())  # type: ignore[attr-defined]
    current = process._current_process  # type: ignore[attr-defined]
    key = process.AuthenticationString(os.urandom(32))  # type: ignore[attr-defined]
    current._config["authkey"] = key


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def in_words(problem: BaseException) -> str:
    text = str(problem).strip().split("\n")[0]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


if __name__ == "__main__":
    Guard(int(sys.argv[1]), int(sys.argv[2])).watch()
