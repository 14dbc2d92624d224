"""Which engine runs a job's container on this machine, and as whom: by what is installed here.

Looks at programs in PATH and at the socket of docker's daemon; asks no daemon.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Literal

from gpulaunch.containers.command_lines import UserInside
from gpulaunch.containers.images import read_image
from gpulaunch.core.model import ContainerEngine, ImageSource
from gpulaunch.errors import GpulaunchError

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
