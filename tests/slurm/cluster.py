"""A throw-away Slurm cluster on this machine: as any user, with pretend cards, gone at the end.

Several nodes are several `slurmd` here, which Debian's build allows. Its cards are links to
/dev/null: Slurm hands them out, and sets the mask, as it does with real ones. Every daemon runs
in a nest, so that killing a node kills its jobs too, and nothing outlives the tests.

python -m tests.slurm.cluster        one to play with, until Ctrl-C or its own end
"""

from __future__ import annotations

import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.helpers import wait_until
from tests.slurm import nest

PATIENCE = 60.0
"""Seconds that anything here may take at most."""
INSTALL = "apt-get install slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin:/usr/sbin:/sbin"))

CONF = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={dir}/munge/s
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/log/slurmctld
SlurmdLogFile={dir}/log/slurmd.%n
ProctrackType=proctrack/linuxproc
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
SelectType=select/cons_tres
SlurmdParameters=config_overrides
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
"""
SCHEDULER = "sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0"
QUICK = {
    "KillWait": "2",
    "SlurmdTimeout": "6",
    "MinJobAge": "300",
    "SelectTypeParameters": "CR_CPU",
    "JobAcctGatherType": "jobacct_gather/none",
    "TaskPlugin": "task/none",
}
"""Settings of slurm.conf that a test may change. In seconds: how long a job has after SIGTERM, when
a silent node counts as down, how long a finished job is known."""
LIMITED = {"TaskPlugin": "task/cgroup", "SelectTypeParameters": "CR_CPU_Memory"}
"""Of these, what the limiting of memory takes."""
MEMORY = Path("/sys/fs/cgroup/memory")


def missing() -> str:
    """What keeps a cluster from being had here, in words; empty: nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SEARCHED)]
    return f"Slurm's {', '.join(absent)} not found" if absent else ""


def unlimited() -> str:
    """What keeps a cluster here from limiting its jobs' memory, in words; empty: nothing."""
    if (MEMORY / "memory.limit_in_bytes").exists() and os.access(MEMORY, os.W_OK):
        return ""
    return "Slurm limits memory where it may make cgroups: as root, with cgroup v1"


def release() -> tuple[int, int]:
    """Of the Slurm that is found here: (22, 5)."""
    program = shutil.which("slurmctld", path=SEARCHED)
    assert program, "no slurmctld"
    said = subprocess.run([program, "-V"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)\.", said)
    assert found, said
    return int(found[1]), int(found[2])


class Nest:
    """A daemon, and all that comes of it."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", nest.__file__, *argv],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environ,
                start_new_session=True,
            )

    def kill(self) -> None:
        """At once, as when the power fails. Returns when nothing of it is left."""
        self._process.communicate()

    def over(self) -> bool:
        """Whether it has ended by itself, with all that came of it."""
        return self._process.poll() is not None


class Cluster:
    """`nodes` nodes n1, n2, ... with `gpus` cards each; `settings` are more lines of slurm.conf.

    With `memory` the kernel kills what uses more of it than its --mem, where that can be had
    (`unlimited`). With the environment `environ` Slurm's programs speak to it. Use as a context
    manager.
    """

    def __init__(
        self,
        nodes: int = 2,
        gpus: int = 2,
        settings: Mapping[str, str] | None = None,
        memory: bool = False,
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.gpus = gpus
        # Short: the path of munge's socket has 107 bytes at most.
        self.dir = Path(tempfile.mkdtemp(prefix="gl-slurm-", dir="/tmp"))
        self.environ = _environ(self.dir)
        self._settings = QUICK | (LIMITED if memory else {}) | dict(settings or {})
        self._memory = memory
        self._ports: dict[str, int] = {}
        self._daemons: dict[str, Nest] = {}

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        for name in ("dev", "state", "log", "key", "munge", *(f"spool.{n}" for n in self.nodes)):
            (self.dir / name).mkdir(mode=0o755)
        self._configure()
        self._start_munge()
        self.start_controller()
        for name in self.nodes:
            self._start_slurmd(name)
        self._wait(lambda: self._in_service(self.nodes), "the nodes are in service")

    def stop(self) -> None:
        """End everything, jobs included, and leave nothing behind. May be called twice."""
        while self._daemons:
            self._daemons.popitem()[1].kill()
        if self._memory:
            for name in self.nodes:
                remove_cgroups(MEMORY / f"slurm_{name}")
        shutil.rmtree(self.dir, ignore_errors=True)

    # ── What may happen to it ────────────────────────────────────────────────────────────────

    def kill_controller(self) -> None:
        """Until `start_controller` nobody answers; running jobs go on.

        It comes back with what it last wrote, which may be several seconds old.
        """
        self._daemons.pop("slurmctld").kill()

    def stop_controller(self) -> None:
        """As `kill_controller`, but in good order: nothing of what it knew is lost."""
        self.command("scontrol", "shutdown", "slurmctld")
        self._wait(self._daemons["slurmctld"].over, "the controller has ended")
        self.kill_controller()

    def start_controller(self) -> None:
        """Returns when it answers, and has heard of the nodes that are there."""
        self._run("slurmctld", "slurmctld", "-D", "-f", self.environ["SLURM_CONF"])
        self._wait(lambda: self._answers("scontrol", "ping"), "the controller answers")
        there = [name for name in self.nodes if name in self._daemons]
        self._wait(lambda: self._in_service(there), "the nodes are in service")

    def known(self) -> bytes:
        """What the controller last wrote down of all jobs; empty while that is nothing."""
        path = self.dir / "state/job_state"
        return path.read_bytes() if path.exists() else b""

    def all_written(self) -> bytes:
        """Wait until the controller has written down all jobs as they are, and return that.

        There must be a job that is not over. It is marked: whoever finds the mark finds all that
        was there before it.
        """
        mark, job = secrets.token_hex(8), self.command("squeue", "-h", "-o", "%A").split()[0]
        self.command("scontrol", "update", f"jobid={job}", f"comment={mark}")
        self._wait(lambda: mark.encode() in self.known(), "all jobs are written down")
        return self.known()

    def forget_since(self, known: bytes) -> None:
        """Kill the controller, and start it with what it knew then, as if it had written no more.

        Nodes, and what runs on them, go on meanwhile.
        """
        self.kill_controller()
        (self.dir / "state/job_state").write_bytes(known)
        self.start_controller()

    def kill_slurmd(self, number: int) -> None:
        """Slurm's daemon on the node n`number` alone: jobs there go on without it."""
        name = f"n{number}"
        os.kill(int((self.dir / f"slurmd.{name}.pid").read_text()), signal.SIGKILL)
        self._daemons[f"{name} before"] = self._daemons.pop(name)

    def kill_node(self, number: int) -> None:
        """The whole node n`number`, with the jobs on it; Slurm notices after SlurmdTimeout."""
        self._daemons.pop(f"n{number}").kill()

    def start_node(self, number: int) -> None:
        """Returns when the node can be given jobs again."""
        self._start_slurmd(f"n{number}")
        self._wait(lambda: self._in_service([f"n{number}"]), "the node is in service")

    def forget(self, job: str) -> None:
        """Wait until Slurm no longer knows the finished job: give the cluster a short MinJobAge.

        It looks for what to forget every 10 seconds at the most often.
        """
        self._wait(lambda: not self._answers("scontrol", "show", "job", job), f"{job} is forgotten")

    def command(self, *argv: str) -> str:
        """What one of Slurm's programs prints; it must succeed."""
        return subprocess.run(
            argv, env=self.environ, check=True, capture_output=True, text=True, timeout=PATIENCE
        ).stdout

    def log(self) -> str:
        """What the daemons said, for a failed test."""
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted((self.dir / "log").iterdir())
            for line in path.read_text(errors="replace").splitlines()[-20:]
        )

    # ── Making it ────────────────────────────────────────────────────────────────────────────

    def _configure(self) -> None:
        controller, *ports = free_ports(1 + len(self.nodes))
        self._ports = dict(zip(self.nodes, ports, strict=True))
        host = socket.gethostname().partition(".")[0]
        lines = [f"{name}={value}" for name, value in self._settings.items()]
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
            f" RealMemory=4000 Gres=gpu:{self.gpus} State=UNKNOWN"
            for name, port in self._ports.items()
        ]
        nodes = ",".join(self.nodes)
        lines.append(f"PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE")
        user = pwd.getpwuid(os.getuid()).pw_name
        fixed = CONF.format(
            dir=self.dir, host=host, port=controller, user=user, scheduler=SCHEDULER
        )
        (self.dir / "slurm.conf").write_text(fixed + "\n".join(lines) + "\n")
        # A card needs a device, or a link to one: for a plain file Slurm sets no mask.
        for index in range(self.gpus):
            (self.dir / f"dev/nvidia{index}").symlink_to("/dev/null")
        cards = f"Name=gpu File={self.dir}/dev/nvidia[0-{self.gpus - 1}]\n"
        (self.dir / "gres.conf").write_text(cards if self.gpus else "")
        # As a rule none is used; yet from 21.08 on the daemons end where their guess is not had.
        plugin = "CgroupPlugin=cgroup/v1\n" if release() >= (21, 8) else ""
        limits = "ConstrainRAMSpace=yes\n" if self._memory else ""
        (self.dir / "cgroup.conf").write_text(plugin + limits)

    def _start_munge(self) -> None:
        key, at = self.dir / "key/key", self.dir / "munge"
        key.write_bytes(secrets.token_bytes(1024))
        for path, mode in ((key, 0o600), (key.parent, 0o700), (self.dir, 0o755)):
            path.chmod(mode)
        self._run(
            "munge", "munged", "--foreground", "--force", f"--socket={at}/s", f"--key-file={key}",
            f"--pid-file={at}/pid", f"--seed-file={at}/seed", f"--log-file={self.dir}/log/munge",
        )  # fmt: skip
        self._wait((at / "s").exists, "munge is there")

    def _start_slurmd(self, name: str) -> None:
        self._run(name, "slurmd", "-D", "-N", name, "-f", self.environ["SLURM_CONF"])

    def _run(self, name: str, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=SEARCHED)
        assert found, f"no {program}"
        log = self.dir / f"log/{name}.said"
        self._daemons[name] = Nest([found, *arguments], self.environ, log)

    def _answers(self, *argv: str) -> bool:
        try:
            done = subprocess.run(
                argv, env=self.environ, check=False, capture_output=True, timeout=10
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _in_service(self, nodes: Sequence[str]) -> bool:
        """`sinfo` marks a node that does not answer with a star, when it has noticed."""
        if not nodes:
            return True  # which 20.11 takes for a mistake
        if not all(map(self._listens, nodes)):
            return False
        # A line for each node, once for each partition that has it: all are in this one.
        asked = ("-N", "-p", "main", "-n", ",".join(nodes))
        said = self.command("sinfo", "-h", *asked, "-o", "%t").split()
        return len(said) == len(nodes) and all(state in ("idle", "mix", "alloc") for state in said)

    def _listens(self, node: str) -> bool:
        with socket.socket() as at:
            return at.connect_ex(("127.0.0.1", self._ports[node])) == 0

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, PATIENCE, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None


def remove_cgroups(at: Path) -> None:
    """The deepest first; their files are the kernel's, and go with them."""
    for path, _, _ in os.walk(at, topdown=False):
        os.rmdir(path)


def processes_told_of(path: Path) -> list[int]:
    """All that have it in their environment: a cluster's daemons and jobs have its directory."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            told = Path(f"/proc/{name}/environ").read_bytes()
            if str(path).encode() in told:
                found.append(int(name))
    return found


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to outgoing connections: they stay free a while."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as at:
            try:
                at.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _environ(at: Path) -> dict[str, str]:
    """Without what an allocation that the tests themselves run in would say."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    return kept | {"SLURM_CONF": str(at / "slurm.conf"), "PATH": SEARCHED}


def main() -> None:
    """Print what to type into another terminal, and wait to be ended."""
    if why := missing():
        sys.exit(f"{why}: {INSTALL}")
    # As Ctrl-C: the `with` ends what it began.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Cluster() as cluster, suppress(KeyboardInterrupt):
        print(f"export SLURM_CONF={cluster.environ['SLURM_CONF']}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
