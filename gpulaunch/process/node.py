"""The shim: runs on a node of a Slurm cluster, in the job's place, until the job is over.

    slurmd ──batch script, exec──▶ node.py ──exec──▶ keeper.py ──fork──▶ ... ──▶ job
              said/ ◀──problems──┘ │  ▲                  └─ends/ logs/
       starts/ ◀──claim, and where─┘  └─tickets/ stops/ (looked at again and again)

What it owns: that an attempt runs only once, the check of what Slurm granted, the values that only
the node knows (cards, ports), and the exit status that Slurm is to see. What it never does: start,
signal or end the job itself, which keepers do; choose a card, or change the mask that Slurm set.

It runs alone, as `python -I -S cached.py node.py RUN_DIR BATCH [SECONDS]`, on Python 3.8 and newer,
standard library only; hence one file, and no import from the package. `cached.py` beside it caches
the compiled code of it and of the keepers. `nodeside.py` writes what it reads.
SECONDS is how long a shared file system may take to show a file that was written elsewhere.

Its exit status: 0 for a success as the job file defines it, and for nothing else. For a failure the
job's own status (128 + N for signal N; 1 if that would be 0), 124 for a timeout. Without a job: 75
if the attempt was started before, or withdrawn by its client; 78 if it could not be started; 73 if
the run's disk was full before it began; 70 if nobody saw how it ended.
"""

from __future__ import annotations

import array
import binascii
import contextlib
import errno
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import IO, Any

NFS_VISIBILITY_TIMEOUT = 60.0  # seconds: NFS clients cache what they last saw for up to 60
LOOK_AGAIN = 0.5  # seconds between two looks for a file that NFS does not show yet
LOOK = 5.0  # seconds between two looks whether the client wants an attempt stopped
BEAT = 15.0  # seconds between two signs of life
DRIVER_PATIENCE = 5.0  # seconds for nvidia-smi to list the cards
LEAVING_PATIENCE = 10.0  # seconds for the keepers to exit before this process does
LOST, NO_ROOM, STARTED_BEFORE, UNFIT, TIMED_OUT = 70, 73, 75, 78, 124
NO_SPACE = "no_space"  # the kind of an error, as in ends.py

MASK, ORDER = b"CUDA_VISIBLE_DEVICES", b"CUDA_DEVICE_ORDER"
NO_CARD = "NoDevFiles"  # what Slurm 20.11 and older put into the mask of a job without cards
SLURM_ENDED_IT = "Slurm ended it"
UNEXPLAINED = ("interrupted", SLURM_ENDED_IT, False)


class Problem(Exception):
    """The attempt cannot be started here; the text says why."""


def main() -> int:
    asked = StopSignals()
    run, batch = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
    patience = float(sys.argv[3]) if len(sys.argv) > 3 else NFS_VISIBILITY_TIMEOUT
    environ = own_environment()
    try:
        attempt = NodeAttempt(run, name_of_ours(run, batch, environ, asked, patience))
    except Problem as problem:
        say(str(problem))
        return 128 + signal.SIGTERM if asked.stop else UNFIT
    return serve(attempt, environ, asked, patience)


def serve(
    attempt: NodeAttempt, environ: dict[bytes, bytes], asked: StopSignals, patience: float
) -> int:
    """Claim the attempt, run it, wait for its end; return the exit status."""
    look_anew(os.path.dirname(attempt.start_file))
    if os.path.lexists(attempt.start_file):  # its ticket may be gone: do not wait for it
        return not_again(attempt)
    attempt.ticket = await_json(attempt.ticket_file, asked, patience)
    grant = Grant(environ)
    try:
        if not claim(attempt.start_file, grant.record(attempt.id)):
            return not_again(attempt)
        if grant.visible and not asked.stop:
            grant.ask_driver()  # slow, but the attempt is claimed: no other node starts it
            attempt.tell_cards(grant.gpus)
        stop = attempt.read_stop()
        if asked.stop or stop:  # before the job began: `stop` may be there without a signal
            cause, by, _ = stop or UNEXPLAINED
            attempt.write_end(cause, by)
            return 1
        return run_it(attempt, grant, asked, patience)
    except OSError as problem:
        where = f": {shown(problem.filename)}" if problem.filename else ""
        full = problem.errno == errno.ENOSPC
        kind = NO_SPACE if full else None
        attempt.refuse(f"{problem.strerror}{where}, on node {grant.node}", kind)
        if full:
            return NO_ROOM
    except Problem as problem:
        attempt.refuse(str(problem))
    return UNFIT


def not_again(attempt: NodeAttempt) -> int:
    say(f"{attempt.id} {taken_before(attempt.start_file)}")
    return STARTED_BEFORE


def run_it(attempt: NodeAttempt, grant: Grant, asked: StopSignals, patience: float) -> int:
    """Run the ticket and return the exit status. Raises Problem and OSError if no job was run."""
    ticket = attempt.ticket
    if ticket is None:
        raise Problem(
            f"{shown(attempt.ticket_file)} was not to be seen on node {grant.node} within"
            f" {patience:.0f} s"
        )
    grant.check(int(ticket["node"]["gpus"]))
    attempt.link_results(map(raw, ticket["node"]["after"]))
    with contextlib.ExitStack() as stack:
        child = filled(ticket, grant, stack)
        keepers = stack.enter_context(contextlib.closing(Keepers(grant.environ)))
        counter = memory_counter(grant.environ)
        more = {"oom_kills": counter and coded(counter), "term_by": SLURM_ENDED_IT}
        keepers.launch({**ticket["keeper"], **more}, child)
        end = keepers.await_end(attempt, asked)
    if end is not None:
        attempt.make_durable(end)
        return exit_status(end, ticket["keeper"]["success_codes"])
    if not os.path.lexists(attempt.end_file):  # a keeper makes this file first of all
        raise Problem(f"its keepers did not start on node {grant.node}")
    say(f"{attempt.id}: its keepers were killed; how it ended nobody saw")
    return LOST


def exit_status(end: Mapping[str, Any], success_codes: Sequence[int]) -> int:
    """Return the exit status for Slurm, by which `afterok` goes. `end` is the keeper's record."""
    status, cause = end["status"], end["cause"]
    if cause in ("timeout", "idle_timeout"):
        return TIMED_OUT
    if cause is None and (end["error"] is not None or status is None):
        return NO_ROOM if end["kind"] == NO_SPACE else UNFIT
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    if cause is None and not end["missing"] and code in success_codes:
        return 0
    return code or 1


# ── What was asked for meanwhile ────────────────────────────────────────────────────────────────


class StopSignals:
    """The stops asked for: TERM and USR1 with the job's grace; USR2, or TERM after either, at once.

    Slurm sends TERM, to the job as well; the client sends the others. The client's wish is also in
    its file, which is read without any signal: both are the same wish. INT and HUP are ignored:
    there is no terminal here.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self) -> None:
        self.stop = self.now = self.signalled = False
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in self.SIGNALS:
            signal.signal(number, self.hear)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def hear(self, number: int, _: object) -> None:
        if number == signal.SIGUSR2 or (number == signal.SIGTERM and self.signalled):
            self.now = True
        self.stop = self.signalled = True

    def read(self, now: bool) -> None:
        """Take in a stop that was read from the client's file."""
        self.stop, self.now = True, self.now or now

    def wait(self, seconds: float | None, *others: int) -> None:
        """Wait for a signal, for one of the `others` to be readable, or for so many seconds."""
        poller = select.poll()
        for fd in (self.fd, *others):
            poller.register(fd, select.POLLIN)
        poller.poll(None if seconds is None else seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)


# ── Files that were written on another machine ──────────────────────────────────────────────────


def name_of_ours(
    run: bytes, batch: bytes, environ: Mapping[bytes, bytes], asked: StopSignals, patience: float
) -> bytes:
    """Return the name of the batch's attempt that this task of the array is. Raises Problem."""
    path = os.path.join(run, b"slurm", b"batches", batch + b".json")
    listed = await_json(path, asked, patience)
    if listed is None:
        raise Problem(
            f"{shown(path)} was not to be seen on node {node_name(environ)} within {patience:.0f}"
            " s: is the run directory on a file system that all nodes share?"
        )
    index = int(environ.get(b"SLURM_ARRAY_TASK_ID", b"0"))
    names = listed["attempts"]
    if not 0 <= index < len(names):
        raise Problem(f"{shown(path)} lists {len(names)} attempts, and this is number {index}")
    return raw(names[index])


def await_json(path: bytes, asked: StopSignals, patience: float) -> dict[str, Any] | None:
    """Return the file's value; None if it does not show in time, or a stop is asked for.

    It is looked for again and again: no file system reports another machine's writes.
    """
    until = time.monotonic() + patience
    while True:
        value = read_json(path)
        left = until - time.monotonic()
        if value is not None or left <= 0 or asked.stop:
            return value
        asked.wait(min(LOOK_AGAIN, left))


def read_json(path: bytes) -> dict[str, Any] | None:
    """Return the value of the file's first line; None if it is absent or not whole."""
    look_anew(os.path.dirname(path))
    try:
        with open(path, "rb") as file:
            value = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def look_anew(folder: bytes) -> None:
    """Open a directory, which makes an NFS client ask its server for what is there now."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def sync(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EBADF):  # not every file system can
            raise
    finally:
        os.close(fd)


class NodeAttempt:
    """The attempt that is to be run, and its files, whose name is `name`."""

    def __init__(self, run: bytes, name: bytes) -> None:
        slurm = os.path.join(run, b"slurm")
        self.name = name
        self.ticket: dict[str, Any] | None = None
        self.ticket_file = os.path.join(slurm, b"tickets", name + b".json")
        self.start_file = os.path.join(slurm, b"starts", name)
        self.stop_file = os.path.join(slurm, b"stops", name)
        self.end_file = os.path.join(run, b"ends", name)
        self.stop_read: tuple[int, int] | None = None
        self.beat_at = time.monotonic()
        self.results = os.path.join(run, b"results")

    @property
    def id(self) -> str:
        if self.ticket is None:
            return self.name.decode("utf-8", "surrogateescape")
        return str(self.ticket["keeper"]["attempt"])

    def link_results(self, after: Iterable[bytes]) -> None:
        """Link the outputs of those attempts to `results/JOB`, where this attempt looks for them.

        They have succeeded, and Slurm may know that before a launcher does, or without one.
        """
        for name in after:
            left = os.path.join(b"..", b"out", name)
            link = os.path.join(self.results, name.rpartition(b".")[0])
            with contextlib.suppress(OSError):
                if os.listdir(os.path.join(self.results, left)):
                    draft = os.path.join(self.results, b".new-" + binascii.hexlify(os.urandom(12)))
                    os.symlink(left, draft)
                    os.replace(draft, link)

    def read_stop(self) -> tuple[str, str, bool] | None:
        """Return why the client wants a stop, for whom, whether at once; None if it does not."""
        stop = read_json(self.stop_file)
        if stop is None:
            return None
        reason = "cancelled" if stop.get("reason") == "cancelled" else "interrupted"
        return reason, str(stop.get("by", "")), bool(stop.get("now"))

    def tell_cards(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Append the cards' names to the claim, as a line that readers take whole or not at all.

        If a full disk prevents that, readers have the cards' numbers from the claim itself.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self.start_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            with open(fd, "wb") as file:
                file.write(json.dumps({"gpus": gpus}).encode() + b"\n")

    def beat(self) -> None:
        """Touch the claim's file once in a while, as a sign of life."""
        now = time.monotonic()
        if now - self.beat_at >= BEAT:
            self.beat_at = now
            with contextlib.suppress(OSError):
                os.utime(self.start_file)

    def new_stop(self) -> tuple[str, str, bool] | None:
        """Return the client's stop if it is new since the last call; else None, after one stat."""
        try:
            file = os.stat(self.stop_file)
        except OSError:
            return None
        mark = (file.st_ino, file.st_mtime_ns)
        stop = None if mark == self.stop_read else self.read_stop()
        if stop is not None:
            self.stop_read = mark
        return stop

    def refuse(self, why: str, kind: str | None = None) -> None:
        say(f"{self.id}: {why}")
        self.write_end(error=why, kind=kind)

    def write_end(
        self,
        cause: str | None = None,
        by: str = "",
        error: str | None = None,
        kind: str | None = None,
    ) -> None:
        """Record the end of an attempt that no keeper ran, in a keeper's format."""
        record: dict[str, Any] = {
            "attempt": self.id,
            "pid": None,
            "status": None,
            "cause": cause,
            "by": by,
            "seconds": None,
            "missing": [],
            "error": error,
            "kind": kind,
            "leftovers": 0,
            "started": None,
            "ended": (time.monotonic(), time.time()),
        }
        line = json.dumps(record, separators=(",", ":")).encode()
        try:
            fd = os.open(self.end_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(b"%08x %s\n" % (binascii.crc32(line), line))
            self.make_durable(record)
        except FileExistsError:
            raise  # a keeper has begun: this is not for us to say
        except OSError as problem:
            say(f"{shown(self.end_file)} cannot be written: {problem.strerror}")

    def make_durable(self, end: Mapping[str, Any]) -> None:
        """Flush the end record to the disk, before Slurm hears of the end."""
        try:
            sync(self.end_file)
            sync(os.path.dirname(self.end_file))
        except OSError as problem:
            say(f"{shown(self.end_file)} may be lost ({problem.strerror}): {json.dumps(end)}")


# ── The claim ───────────────────────────────────────────────────────────────────────────────────


def claim(
    path: bytes, record: Mapping[str, Any], link: Callable[[bytes, bytes], None] = os.link
) -> bool:
    """Claim the attempt; return True if it is ours to run. Raises OSError.

    INVARIANT: of all claimants, on any node, only one gets True, and no reader sees half a file:
    link(2) either makes the name of a finished file or finds it taken.
    """
    folder = os.path.dirname(path)
    draft = os.path.join(folder, b".new-" + binascii.hexlify(os.urandom(12)))
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            link(draft, path)
        except OSError as problem:
            # NFS repeats a request whose answer was lost, and then finds its own link: link(2).
            if os.stat(draft).st_nlink != 2:
                if problem.errno == errno.EEXIST:
                    return False
                raise
        sync(folder)
        return True
    finally:
        os.unlink(draft)


def taken_before(path: bytes) -> str:
    start = read_json(path) or {}
    if "withdrawn" in start:
        return f"was withdrawn ({start.get('by')}): it is not started"
    where = f", as Slurm job {start['job']} on node {start.get('node')}" if "job" in start else ""
    return f"was started before{where}: it is not started again"


# ── What Slurm granted ──────────────────────────────────────────────────────────────────────────


class Grant:
    """The cards that Slurm gave this job, by the job's environment, which it never changes."""

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        self.environ = environ
        self.node = node_name(environ)
        mask = environ.get(MASK)
        self.mask = None if mask is None else shown(mask)
        words = [word.strip() for word in (self.mask or "").split(",")]
        self.visible = [word for word in words if word and word != NO_CARD]
        self.gpus = self.named({})

    def check(self, gpus: int) -> None:
        """Raise Problem if Slurm granted another number of cards; a job without cards sees none."""
        if gpus and len(self.visible) != gpus:
            mask = "not set" if self.mask is None else repr(self.mask)
            raise Problem(
                f"Slurm granted {cards(len(self.visible))} on node {self.node} ({shown(MASK)} is"
                f" {mask}), {cards(gpus)} {'was' if gpus == 1 else 'were'} asked for"
            )

    def ask_driver(self) -> None:
        """Set the cards' names from the node's driver, which may take seconds if it is faulty."""
        self.gpus = self.named(driver_says())

    def named(self, known: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
        """Return each card's number, identity and name; the latter two from `known`.

        Under device cgroups every job's first card is 0 in the mask, and for the driver; the node's
        own numbers are in SLURM_JOB_GPUS.
        """
        numbers = spread(shown(self.environ.get(b"SLURM_JOB_GPUS", b"")))
        found = []
        for place, word in enumerate(self.visible):
            uuid, name = known.get(word, ("", ""))
            if not word.isdigit():
                uuid = word
            number = int(word) if word.isdigit() else place
            if len(numbers) == len(self.visible):
                number = numbers[place]
            uuid = plain(uuid or f"{self.node}/{number}")
            found.append({"index": number, "uuid": uuid, "name": name})
        return found

    def record(self, attempt: str) -> dict[str, Any]:
        """Return the start record; `awaits_cards`: the driver's names of the cards will follow."""
        return {
            "attempt": attempt,
            "job": slurm_id(self.environ),
            "node": self.node,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "restart": int(self.environ.get(b"SLURM_RESTART_COUNT", b"0")),
            "mask": self.mask,
            "gpus": self.gpus,
            "awaits_cards": bool(self.visible),
            "boot": boot(),
            "started": (time.monotonic(), time.time()),
        }


def cards(count: int) -> str:
    return f"{count} card{'' if count == 1 else 's'}"


def node_name(environ: Mapping[bytes, bytes]) -> str:
    return plain(shown(environ.get(b"SLURMD_NODENAME", b"")) or socket.gethostname())


def slurm_id(environ: Mapping[bytes, bytes]) -> str:
    """Return Slurm's job number as squeue shows it: `12`, or `12_3` for a task of an array."""
    task = environ.get(b"SLURM_ARRAY_TASK_ID")
    if task is None:
        return shown(environ.get(b"SLURM_JOB_ID", b""))
    return shown(environ.get(b"SLURM_ARRAY_JOB_ID", b"") + b"_" + task)


def memory_counter(
    environ: Mapping[bytes, bytes],
    own: bytes = b"/proc/self/cgroup",
    mounted: bytes = b"/sys/fs/cgroup",
) -> bytes | None:
    """Return the file that counts the kernel's kills for memory in this Slurm job's own cgroup.

    None if Slurm makes no such cgroup. As in cgroups(7), of either version.
    """
    job = b"job_" + environ.get(b"SLURM_JOB_ID", b"")
    with contextlib.suppress(OSError), open(own, "rb") as file:
        for line in file:
            _, controllers, path = line.rstrip(b"\n").split(b":", 2)
            folders = path.split(b"/")
            place = [mounted, b"memory"] if controllers else [mounted]
            name = b"memory.oom_control" if controllers else b"memory.events"
            while job in folders and (not controllers or b"memory" in controllers.split(b",")):
                counter = b"/".join((*place, *filter(None, folders), name))
                if os.path.exists(counter):
                    return counter
                folders.pop()
    return None


def boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def spread(text: str) -> list[int]:
    """Return the numbers of a text like `0,2-3`; empty for any other text."""
    numbers: list[int] = []
    for word in filter(None, text.split(",")):
        match = re.match(r"([0-9]+)(?:-([0-9]+))?$", word.strip())
        if match is None:
            return []
        first = int(match.group(1))
        numbers.extend(range(first, int(match.group(2) or first) + 1))
    return numbers


def driver_says() -> dict[str, tuple[str, str]]:
    """Return each card's identity and name by its number, and by its identity (`nvidia-smi -L`).

    Empty if there is no nvidia-smi, or it takes too long: a faulty driver never answers.
    """
    try:
        process = subprocess.Popen(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        said = process.communicate(timeout=DRIVER_PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: inside the driver, SIGKILL may have no effect
        return {}
    return parsed_listing(said.decode("utf-8", "replace"))


def parsed_listing(text: str) -> dict[str, tuple[str, str]]:
    """Parse `nvidia-smi -L`: `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5f3c...)`, a line a card."""
    known = {}
    for number, name, uuid in re.findall(r"^GPU (\d+): (.*) \(UUID: (\S+)\)", text, re.MULTILINE):
        known[number] = known[uuid] = (uuid, name)
    return known


# ── What only the node can fill in ──────────────────────────────────────────────────────────────


def filled(ticket: Mapping[str, Any], grant: Grant, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Return the child's part of the command, with the node's values and the mask filled in.

    INVARIANT: the values are plain (`plain`): harmless in JSON, in any quotes of a shell, in a
    pattern of file names. Ports stay reserved until `stack` is closed.
    """
    text = json.dumps(ticket["child"])
    for name, mark in ticket["node"]["slots"].items():
        if mark and mark in text:
            text = text.replace(mark, value_of(name, grant, stack))
    child: dict[str, Any] = json.loads(text)
    changes = child["env_set"]
    changes.pop(coded(MASK), None)
    child["env_unset"] = [name for name in child["env_unset"] if raw(name) != MASK]
    if ticket["node"]["gpus"]:
        changes[coded(ORDER)] = "PCI_BUS_ID"
    else:
        changes[coded(MASK)] = ""  # Slurm leaves the mask unset, which shows every card
    return child


def value_of(name: str, grant: Grant, stack: contextlib.ExitStack) -> str:
    if name == "gpu_index":
        return ",".join(str(card["index"]) for card in grant.gpus)
    if name == "gpu_uuid":
        return ",".join(card["uuid"] for card in grant.gpus)
    if name == "card":
        return "+".join(card["uuid"] for card in grant.gpus).replace("/", "_")
    if name == "threads":
        return str(cpus_granted(grant.environ))
    if name in ("port", "master_port"):
        return str(reserve_port(stack))
    raise Problem(f"its ticket has a slot {name!r}, which this node.py does not know")


def cpus_granted(environ: Mapping[bytes, bytes]) -> int:
    """Return how many CPUs Slurm granted, by its variable.

    Without a plugin that binds processes, the affinity mask would name all the node's CPUs.
    """
    try:
        return max(1, int(environ[b"SLURM_CPUS_ON_NODE"]))
    except (KeyError, ValueError):
        return len(os.sched_getaffinity(0))


def reserve_port(stack: contextlib.ExitStack) -> int:
    """Reserve and return a port that nobody listens on and no launcher on this node has reserved.

    It binds the same abstract socket name as the package's `gpus/port.py`, so that all see it.
    """
    first, last = port_range()
    ports = list(range(first, last + 1))
    start = int.from_bytes(os.urandom(4), "little") % len(ports)
    for port in ports[start:] + ports[:start]:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(b"\0gpulaunch/1/port/%d" % port)
            name.listen(8)
        except OSError:
            name.close()
            continue
        if is_unused(port):
            stack.callback(name.close)
            return port
        name.close()
    raise Problem(f"no free TCP port from {first} to {last}")


def port_range() -> tuple[int, int]:
    """Return the first and last port to try: outside the kernel's range of outgoing connections.

    Inside it too, if the kernel leaves too few.
    """
    first, last = 20_000, 65_535
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
        if low - first >= 1000:
            return first, low - 1
        if last - high >= 1000:
            return high + 1, last
    return first, last


def is_unused(port: int) -> bool:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


# ── The keepers ─────────────────────────────────────────────────────────────────────────────────


class Keepers:
    """A spawner with one pair, as in the package's `client.py`.

    When this process dies, they stop the job, with its grace, and exit.
    """

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        """Start the spawner and one pair; jobs start from `environ`. Raises OSError."""
        self.attempt = ""
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pair, pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pair.setblocking(False)
        with control, pair:
            # If a standard stream is closed, the socket has its number.
            theirs = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
            cached = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cached.py")
            try:
                with held_back():
                    self.process = subprocess.Popen(
                        [sys.executable, "-I", "-S", cached, "keeper.py", str(theirs)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=environ,
                        pass_fds=[theirs],
                        start_new_session=True,
                    )
            finally:
                os.close(theirs)
            self.tell({"alive": False, "fds": 1}, [pair.fileno()], self.control)

    def launch(self, spec: Mapping[str, Any], child: Mapping[str, Any]) -> None:
        self.attempt = str(spec["attempt"])
        with memory_file() as file:
            file.write(json.dumps(child).encode())
            file.flush()
            self.tell(spec, [file.fileno()])

    def stop(self, reason: str, by: str, now: bool) -> None:
        stop = {"do": "stop", "attempt": self.attempt, "reason": reason, "by": by, "now": now}
        self.tell(stop)

    def await_end(self, attempt: NodeAttempt, asked: StopSignals) -> dict[str, Any] | None:
        """Return the end, once no process of the attempt is left; None if both keepers are gone."""
        told: tuple[bool, bool] = (False, False)
        while True:
            stop = attempt.new_stop()
            if stop is not None:
                asked.read(now=stop[2])
            if (asked.stop, asked.now) != told:
                told = (asked.stop, asked.now)
                reason, by, _ = stop or attempt.read_stop() or UNEXPLAINED
                self.stop(reason, by, asked.now)
            attempt.beat()
            asked.wait(LOOK, self.pair.fileno())
            for message in self.heard():
                if message is None:
                    return None
                if message["is"] == "ended":
                    end: dict[str, Any] = message["end"]
                    return end
                if message["is"] == "unkillable":
                    pids = ", ".join(map(str, message["pids"]))
                    say(f"{attempt.id}: process {pids} cannot be killed, and is waited for")

    def heard(self) -> Iterator[dict[str, Any] | None]:
        """Yield the messages that have come; None, the last, once keepers and job are gone."""
        while True:
            try:
                data = self.pair.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the pair left a message of ours unread; its last ones still come
            yield json.loads(data) if data else None
            if not data:
                return

    def tell(
        self,
        message: Mapping[str, Any],
        fds: Sequence[int] = (),
        to: socket.socket | None = None,
    ) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        # Keepers that are gone show by their end of file; a full queue holds a stop already.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            (to or self.pair).sendmsg([json.dumps(message).encode()], rights, socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Close the sockets and wait for the keepers to exit.

        If this process exited first, Slurm would kill them and report that.
        """
        self.pair.close()
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING_PATIENCE)


def memory_file() -> IO[bytes]:
    """Open a file without a name that is never on a disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("gpulaunch-launch"), "w+b")
    import tempfile  # built for an old glibc

    return tempfile.TemporaryFile(dir="/dev/shm")


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block our signals, so that a process started inside inherits them blocked.

    Slurm signals all processes of a job at once, and keepers set their own mask only later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignals.SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── Bytes and words ─────────────────────────────────────────────────────────────────────────────


def own_environment() -> dict[bytes, bytes]:
    """Return the environment as Slurm gave it, without an interpreter's own LC_CTYPE."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(entry.split(b"=", 1) for entry in entries if entry.find(b"=") > 0)


def raw(value: object) -> bytes:
    """Return the bytes that came through JSON as Latin-1, one character each."""
    return str(value).encode("latin-1")


def coded(value: bytes) -> str:
    return value.decode("latin-1")


def shown(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def plain(text: str) -> str:
    """Return the text with `_` for characters that JSON, shells, paths or patterns interpret."""
    return re.sub(r"[^A-Za-z0-9._:/-]", "_", text)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gpulaunch: {text}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    try:
        code = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = LOST
    sys.exit(code)
