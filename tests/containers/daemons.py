"""Real docker and podman for tests: in directories of their own, and gone at the end.

dockerd runs in a nest, with a mount namespace of its own: nothing of it outlives the tests. podman
has no daemon; it is had as root and as a user that is made for the tests. Nothing needs a network:
images are made of a static busybox.
"""

from __future__ import annotations

import io
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers import wait_until
from tests.slurm.cluster import SEARCHED, Nest

PATIENCE = 60.0
BOX = "box:1"
"""An image of busybox alone, which every engine here has."""
INSTALL = "apt-get install docker.io podman runc uidmap busybox-static"
CONTAINERS_CONF = """\
[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
"""
"""ulimits: runc cannot raise them where the tests have less than podman's defaults."""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


class Unavailable(Exception):
    """An engine cannot be had here. Its words say why."""


@dataclass(frozen=True)
class RealEngine:
    """`client`: the command line up to the engine's verb, with `environ`, as the user `account`
    (None: as the tests). `folder`: is that user's own, has a short path, and goes with the engine.
    """

    name: str
    client: tuple[str, ...]
    environ: dict[str, str]
    folder: Path
    account: pwd.struct_passwd | None = None
    options: tuple[str, ...] = ()
    """After `run`: who the program is inside, where that takes an option."""
    daemon: int = 0
    """The PID of dockerd."""
    images: dict[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> int:
        return self.account.pw_uid if self.account else os.geteuid()

    def popen(self, argv: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start a program as the user of the engine."""
        if self.account:
            more |= {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        environ = {**self.environ, **more.pop("env", {})}
        return subprocess.Popen(argv, env=environ, cwd=self.folder, **more)

    def command(self, *words: str, stdin: bytes = b"") -> str:
        """Return what the client prints."""
        done = self.popen(
            [*self.client, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, wrong = done.communicate(stdin, timeout=PATIENCE)
        assert done.returncode == 0, (words, out, wrong)
        return out.decode()

    def containers(self) -> list[str]:
        """The names of all containers, running or not."""
        return self.command("ps", "--all", "--format", "{{.Names}}").split()

    def import_image(
        self, name: str, files: Mapping[str, bytes] | None = None, busybox: bool = True
    ) -> str:
        """Make an image of busybox and these programs; return its name."""
        self.command("import", "-", name, stdin=packed_root(files or {}, busybox))
        return name

    def own(self, path: Path) -> Path:
        """Give a path, and what is below it, to the engine's user."""
        if self.account:
            for each in (path, *path.rglob("*")):
                os.chown(each, self.account.pw_uid, self.account.pw_gid)
        return path


def packed_root(files: Mapping[str, bytes], busybox: bool) -> bytes:
    """A root directory as a tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        if busybox:
            files = {**files, "bin/busybox": busybox_here().read_bytes()}
            listed = subprocess.run(
                [busybox_here(), "--list"], capture_output=True, text=True, check=True
            )
            for name in listed.stdout.split():
                entry = tarfile.TarInfo(f"bin/{name}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                if name != "busybox":
                    archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def busybox_here() -> Path:
    """A static busybox. Raises Unavailable."""
    found = shutil.which("busybox")
    if not found or b"ld-linux" in Path(found).read_bytes()[:4096]:
        raise Unavailable(f"no static busybox: {INSTALL}")
    return Path(found)


def needed(*programs: str) -> None:
    absent = [name for name in programs if not shutil.which(name, path=SEARCHED)]
    if absent:
        raise Unavailable(f"{', '.join(absent)} not found: {INSTALL}")
    busybox_here()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A directory that everybody may enter: sockets below have short paths."""
    folder = Path(tempfile.mkdtemp(prefix="glc-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        unmounted(folder)
        shutil.rmtree(folder, ignore_errors=True)


def unmounted(folder: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in sorted(mounts, reverse=True):
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)


def plain_environ(**more: str) -> dict[str, str]:
    return {"PATH": SEARCHED, "LANG": "C.UTF-8", **more}


# ── docker ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def real_docker() -> Iterator[RealEngine]:
    """A dockerd of its own. Raises Unavailable."""
    needed("dockerd", "docker", "containerd", "runc", "unshare")
    if os.geteuid() != 0:
        raise Unavailable("dockerd runs as root")
    with short_folder() as folder:
        nest = Nest(dockerd_in(folder), plain_environ(), folder / "log")
        try:
            host = f"unix://{folder}/socket"
            environ = plain_environ(DOCKER_HOST=host, HOME=str(folder))
            answers = ["docker", "version"]
            wait_until(lambda: nest.over() or succeeds(answers, environ), PATIENCE, f"{folder}/log")
            if nest.over():
                raise Unavailable((folder / "log").read_text().splitlines()[-1])
            daemon = int((folder / "pid").read_text())
            own = folder / "own"
            own.mkdir()
            engine = RealEngine("docker", ("docker",), environ, own, daemon=daemon)
            engine.import_image(BOX)
            yield engine
            os.kill(daemon, signal.SIGCONT)
            os.kill(daemon, signal.SIGTERM)
            wait_until(nest.over, PATIENCE, "dockerd ends")
        finally:
            nest.kill()


def dockerd_in(folder: Path) -> list[str]:
    return [
        "unshare",
        "--mount",
        "--propagation=private",
        "dockerd",
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--storage-driver=vfs",
        f"--host=unix://{folder}/socket",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
    ]


def succeeds(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    done = subprocess.run(
        argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


# ── podman ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def real_podman(account: pwd.struct_passwd | None = None) -> Iterator[RealEngine]:
    """podman with a storage of its own, as the tests' user or another one. Raises Unavailable."""
    needed("podman", "conmon", "runc")
    with short_folder() as folder:
        own = folder / "own"
        for each in (own, own / "xdg"):
            each.mkdir(mode=0o700)
        (own / "containers.conf").write_text(CONTAINERS_CONF.format(folder=own))
        (own / "storage.conf").write_text(STORAGE_CONF.format(folder=own))
        environ = plain_environ(
            HOME=str(own),
            XDG_RUNTIME_DIR=str(own / "xdg"),
            CONTAINERS_CONF=str(own / "containers.conf"),
            CONTAINERS_STORAGE_CONF=str(own / "storage.conf"),
        )
        rootless = account is not None or os.geteuid() != 0
        options = ("--userns=keep-id",) if rootless else ()
        engine = RealEngine("podman", ("podman",), environ, own, account, options)
        engine.own(own)
        try:
            try:
                engine.import_image(BOX)
                engine.command("run", "--rm", *options, BOX, "true")
            except AssertionError as wrong:
                raise Unavailable(f"podman runs no container here: {wrong}") from None
            yield engine
            engine.command("rm", "--all", "--force")
        finally:
            ended_below(own)


def ended_below(folder: Path) -> None:
    """Kill what podman left: a process that keeps a user's namespace, monitors of containers."""
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            environ = Path(f"/proc/{int(name)}/environ").read_bytes()
            if f"CONTAINERS_CONF={folder}/".encode() in environ:
                os.kill(int(name), signal.SIGKILL)


@contextmanager
def another_user() -> Iterator[pwd.struct_passwd | None]:
    """A user for rootless containers: one made for the tests where they run as root."""
    needed("newuidmap", "newgidmap")
    if os.geteuid() != 0:
        yield None
        return
    needed("useradd", "userdel")
    name = f"gl-{secrets.token_hex(4)}"
    make = ["useradd", "--no-create-home", name]
    wait_until(lambda: succeeds(make, plain_environ()), PATIENCE, "another useradd has ended")
    try:
        yield pwd.getpwnam(name)
    finally:
        drop = ["userdel", "--force", name]
        wait_until(lambda: succeeds(drop, plain_environ()), PATIENCE, "another userdel has ended")
