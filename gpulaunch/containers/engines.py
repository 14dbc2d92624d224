"""Which engine runs a job's container on this machine, as whom, and by which command line.

The engine is chosen by what is installed here: looks at programs in PATH and at the socket of
docker's daemon; asks no daemon. The command lines are pure, one speller an engine. docker and
podman have a client that talks to others, and start `keeper inside`, which starts the program
(`agent/container`). apptainer becomes the program itself: its line is what stands before it.

Sources: the manual pages docker-run(1), podman-run(1), apptainer-exec(1).
"""

from __future__ import annotations

import csv
import io
import json
import os
import os.path
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.containers.images import read_image
from gpulaunch.core.model import ContainerEngine, ImageSource, Mount

# ── Command lines ─────────────────────────────────────────────────────────────────────────────────

CARRIED: frozenset[ContainerEngine] = frozenset({"docker", "podman"})
"""Engines for whose containers a carrier stands among the job's processes."""
NO_PROGRAM = (
    "what gpulaunch starts in a container is missing here, as its compiled program was not built"
    " or needs libraries: install gpulaunch again where a C compiler and a static C library are,"
    " or use apptainer"
)
HERE = "/.gpulaunch"
"""The directory of a container of docker or podman that holds what gpulaunch needs there."""
KEEPER, LINK = f"{HERE}/keeper", f"{HERE}/link"
LABELS = ("gpulaunch.run", "gpulaunch.attempt", "gpulaunch.folder", "gpulaunch.user")
"""Labels of each container of docker and podman: the run's id, the attempt, its folder, and the
caller's user id."""


class UserInside(Struct, frozen=True):
    """Who the program is inside: `user` as UID:GID, empty for the image's own user.

    `groups`: others that files may be shared with. `keep_id`: the engine runs as an ordinary user,
    whose id inside is to be the same.
    """

    user: str = ""
    groups: tuple[int, ...] = ()
    keep_id: bool = False


class ContainerLine(Struct, frozen=True):
    """What is the same for every engine: the image, its mounts, options of cards and of the user's.

    `image` is what the engine calls it: an id, a name or a file. `args` stand as they were given.
    `shared_memory`: bytes that /dev/shm holds at most, for docker and podman, which give it anew.
    `memory`: bytes that all processes may use together, for the same two; 0: any.
    """

    image: str
    mounts: tuple[Mount, ...] = ()
    cards: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    shared_memory: int = 64 << 20
    memory: int = 0


class ContainerName(Struct, frozen=True):
    """How a container of docker or podman is called: its name, and a value for each of LABELS."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


def client_line(
    engine: Literal["docker", "podman"],
    line: ContainerLine,
    called: ContainerName,
    user: UserInside,
    keeper: str,
    link: str,
) -> list[str]:
    """Return the line that starts a container, waits for its end and removes it.

    `keeper`: the keepers' program; `link`: the directory of the socket to which it connects.
    """
    ours = (Mount(keeper, KEEPER, True), Mount(link, LINK, True))
    chosen = {arg.partition("=")[0] for arg in line.args}
    # As without a container, unless `args:` says otherwise: the machine's addresses and ports, and
    # as much room in /dev/shm, of which an engine gives 64 MB by itself.
    network = [] if chosen & {"--network", "--net"} else ["--network=host"]
    shared = [] if chosen & {"--shm-size", "--ipc"} else [f"--shm-size={line.shared_memory}"]
    # Both: by itself an engine lets a container have as much swap beside it.
    most = [f"--memory={line.memory}b", f"--memory-swap={line.memory}b"] if line.memory else []
    if chosen & {"--memory", "-m", "--memory-swap"}:
        most = []
    return [
        engine,
        "run",
        "--rm",
        f"--name={called.name}",
        *(f"--label={name}={value}" for name, value in called.labels.items()),
        "--pull=never",
        "--log-driver=none",
        "--sig-proxy=false",
        "--stop-signal=TERM",
        "--security-opt=label=disable",  # else SELinux forbids the mounts, and the socket
        *network,
        *shared,
        *most,
        *_user_options(engine, user),
        *(f"--mount={_mount_field(mount)}" for mount in (*ours, *line.mounts)),
        *line.cards,
        *line.args,
        f"--entrypoint={KEEPER}",
        line.image,
        "inside",
        f"{LINK}/socket",
    ]


def remove_line(engine: str, name: str) -> list[str]:
    """Return the line that ends and removes a container of docker or podman."""
    at_once = ["--time=0"] if engine == "podman" else []
    return [engine, "rm", "--force", *at_once, name]


def _user_options(engine: str, user: UserInside) -> list[str]:
    if not user.user:
        return []
    options = [f"--user={user.user}"]
    if user.keep_id:
        options.append("--userns=keep-id")
        if user.groups:  # those of an ordinary user can be kept, not named
            options.append("--group-add=keep-groups")
        return options
    if engine == "docker":
        options.append("--userns=host")  # where the daemon maps ids, files were another's
    return options + [f"--group-add={group}" for group in user.groups]


def _mount_field(mount: Mount) -> str:
    """Return the value of `--mount`, a line of CSV: so any path can stand there."""
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    return _csv([*fields, *(["readonly"] if mount.read_only else [])])


def _csv(fields: Iterable[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(fields)
    return written.getvalue()


def apptainer_line(
    engine: Literal["apptainer", "singularity"], line: ContainerLine, cwd: str
) -> list[str]:
    """Return what stands before the program and its arguments."""
    return [
        engine,
        "exec",
        "--cleanenv",
        *line.cards,
        *(word for mount in line.mounts for word in _bind(mount)),
        "--pwd",
        cwd,
        *line.args,
        line.image,
    ]


def _bind(mount: Mount) -> tuple[str, str]:
    """Return the option of a mount: `--bind`, which all versions have, where it can spell it."""
    if not set(":,\\\"'\n") & {*mount.source, *mount.target}:
        return "--bind", f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    return "--mount", _csv([*fields, *(["ro"] if mount.read_only else [])])


# ── Mounts ────────────────────────────────────────────────────────────────────────────────────────


def own_paths(paths: Iterable[str], added: Iterable[Mount] = ()) -> tuple[Mount, ...]:
    """Return the mounts of these paths and the added ones, the outer before the inner.

    A path that another mount shows already, as it is, has none of its own. Where two have the same
    target, the added one counts, and of these the last.
    """
    wanted = {path: Mount(path, path) for path in map(os.path.normpath, paths)}
    wanted |= {mount.target: mount for mount in added}
    kept: list[Mount] = []
    for target in sorted(wanted, key=lambda path: path.count("/")):
        mount = wanted[target]
        around = [one for one in kept if _is_below(target, one.target)]
        if not (around and _shows(around[-1], mount)):
            kept.append(mount)
    return tuple(kept)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def _shows(outer: Mount, inner: Mount) -> bool:
    """Tell whether the outer mount shows the inner one's source at its target already."""
    there = outer.source.rstrip("/") + inner.target[len(outer.target.rstrip("/")) :]
    return there == inner.source and outer.read_only == inner.read_only


# ── Choice of an engine ───────────────────────────────────────────────────────────────────────────

DOCKER_SOCKET = "/var/run/docker.sock"
ON_NODES: frozenset[ContainerEngine] = frozenset({"apptainer", "singularity"})
"""Engines without a daemon: a cluster's scheduler measures, limits and ends what they start."""


class NoEngineError(GpulaunchError):
    """No engine can run the image; the text says why, and what to do."""


class InstalledEngines:
    """The engines that can be used with this environment; each is looked up once."""

    def __init__(self, environ: Mapping[str, str], docker_socket: str = DOCKER_SOCKET) -> None:
        self._environ = environ
        self._docker_socket = docker_socket
        self._usable: dict[ContainerEngine, bool] = {}

    def path(self, engine: ContainerEngine) -> str | None:
        """Return the path of the engine's program; None where there is none."""
        found = shutil.which(engine, path=self._environ.get("PATH", os.defpath))
        if found is not None and engine == "docker" and _is_podman(found):
            return None  # podman by another name, which speaks otherwise
        return found

    def usable(self, engine: ContainerEngine) -> bool:
        """Tell whether the program is here and, of docker, whether there is a way to its daemon."""
        if engine not in self._usable:
            here = self.path(engine) is not None
            self._usable[engine] = here and (engine != "docker" or self._has_daemon())
        return self._usable[engine]

    def _has_daemon(self) -> bool:
        """Tell whether docker's socket may be used; one that is named elsewhere is believed."""
        named = self._environ.get("DOCKER_HOST") or self._context() != "default"
        return bool(named) or os.access(self._docker_socket, os.W_OK)

    def _context(self) -> str:
        """Return the name of docker's context, which says where its daemon is."""
        if named := self._environ.get("DOCKER_CONTEXT"):
            return named
        home = self._environ.get("HOME", "/")
        config = self._environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker")
        try:
            with open(os.path.join(config, "config.json"), "rb") as file:
                return str(json.load(file).get("currentContext") or "default")
        except (OSError, ValueError, AttributeError, RecursionError):
            return "default"

    def engine_for(self, source: ImageSource, cluster: bool = False) -> ContainerEngine:
        """Return the engine that runs this image: the one that is named, else the first that can.

        `cluster`: jobs run on other machines, of which nothing is known here: what this machine
        has counts first, else the first that could be there. Raises NoEngineError.
        """
        fitting = (source.engine,) if source.engine else read_image(source.image).engines
        able = [engine for engine in fitting if not cluster or engine in ON_NODES]
        if not able:
            raise NoEngineError(
                f"a container of {' or '.join(fitting)} is not a descendant of its job, and Slurm"
                " neither limits nor ends it: name an image that apptainer runs"
            )
        usable = next((engine for engine in able if self.usable(engine)), None)
        if usable is None and not cluster:
            raise NoEngineError(self._why_none(fitting))
        return usable or able[0]

    def _why_none(self, fitting: Sequence[ContainerEngine]) -> str:
        if "docker" in fitting and self.path("docker") is not None:
            others = ", and no other engine for it is installed" if len(fitting) > 1 else ""
            return (
                f"docker's daemon cannot be reached ({self._docker_socket} is not there, or not"
                f" yours to use: an administrator adds you to the group docker){others}"
            )
        names = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if fitting[1:] else fitting[0]
        return f"no program in PATH runs this image: install {names}"

    def user_inside(self, engine: Literal["docker", "podman"], user: str) -> UserInside:
        """Return as whom a job's program runs; `user` as in the job's container."""
        uid, gid = os.geteuid(), os.getegid()
        if user == "image":
            return UserInside()
        if user:
            return UserInside(user)
        if engine == "docker" and uid and self._daemon_is_users(uid):
            return UserInside("0:0")  # to whom the user's id is mapped there
        others = tuple(group for group in os.getgroups() if group != gid)
        keep = engine == "podman" and uid != 0
        return UserInside(f"{uid}:{gid}", others if uid else (), keep)

    def _daemon_is_users(self, uid: int) -> bool:
        """Tell whether docker's daemon runs as this user (rootless), by who owns its socket."""
        if host := self._environ.get("DOCKER_HOST", ""):
            path = host.removeprefix("unix://")
        elif self._context() != "default":
            runtime = self._environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
            path = os.path.join(runtime, "docker.sock")
        else:
            path = self._docker_socket
        try:
            return os.stat(path).st_uid == uid
        except OSError:
            return False


def _is_podman(docker: str) -> bool:
    """Tell whether the program called docker is podman's: a link to it, or a script's few lines."""
    real = os.path.realpath(docker)
    if os.path.basename(real) == "podman":
        return True
    try:
        if os.path.getsize(real) > 4096:
            return False
        with open(real, "rb") as script:
            return b"podman" in script.read()
    except OSError:
        return False
