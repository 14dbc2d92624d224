"""Wraps an attempt's command so that its program runs in a container.

    program ─┬─ docker, podman: the carrier, with a record of what to start and hand on
             └─ apptainer: the engine's line before the program's

Writes the record; starts nothing. Errors are OSError or NotContainedError, and the attempt then
counts as not started.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2s
from typing import Literal

from msgspec import Struct, field

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.containers.engines import (
    LABELS,
    NO_PROGRAM,
    ContainerLine,
    ContainerName,
    InstalledEngines,
    apptainer_line,
    client_line,
    own_paths,
    remove_line,
)
from gpulaunch.core.model import AttemptId, Container, ContainerEngine, Gpu, Job
from gpulaunch.diagnose import explain
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import AttemptPlace, Delta, EnvironmentMaker
from gpulaunch.engines.programs import INSTALLED, Programs, program_inside
from gpulaunch.gpus.mask import MASK, ORDER, PCI_ORDER, visible

INSIDE = "GPULAUNCH_INSIDE_"
"""Stands before the names of variables that the carrier hands on: its own are its client's."""
MARKS = ("GPULAUNCH_RUN_ID", "GPULAUNCH_JOB", "GPULAUNCH_ATTEMPT")
"""Variables by which what outlived all keepers is found (`engines.local.containers`)."""
PREFIX = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
_PATH = "PYTHONPATH"
"""By which `explain` is found; where the job does not set it, the image's own follows."""
_NAME_PART = 40
"""Characters of a job's name that its container's name shows."""


SHOWN = "NVIDIA_VISIBLE_DEVICES"
"""Names the devices that NVIDIA's runtime shows; `void` for none."""


class NotContainedError(GpulaunchError):
    """The program cannot be started in a container as the job says; the text is one line."""


class Containing(Struct, frozen=True):
    """What a container is made for: an attempt of a job, its place, and where its image is.

    `caches`: the directory of compiler caches. `folder` is the attempt's own, not there yet, for
    the record of a carrier. `programs`: where gpulaunch's own are. `own`: the variables that the
    job sets; None removes one.
    """

    job: Job
    container: Container
    place: AttemptPlace
    here: ImageHere
    caches: str
    folder: str
    programs: Programs = INSTALLED
    own: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def engine(self) -> ContainerEngine:
        return self.here.engine

    @property
    def cards(self) -> CardsInside:
        mark = self.place.slots.mask if self.place.slots else ""
        return cards_inside(self.engine, self.place.gpus, mark)

    def line(self) -> ContainerLine:
        """Return what every engine is told."""
        paths = [self.job.cwd, self.place.run_dir, self.place.out]
        paths += [self.caches] if os.path.isdir(self.caches) else []
        paths += [os.path.dirname(path) for path in self.job.batch or ()]
        paths += [self.programs.at(explain.HOME)] if self.job.explain else []
        mounts = own_paths(filter(None, paths), self.container.mounts)  # exec has no run
        cards, args = self.cards.options, self.container.args
        memory = self.job.demand.memory
        return ContainerLine(self.here.id, mounts, cards, args, _shared_memory(), memory)


def _shared_memory() -> int:
    """Return how many bytes this machine's /dev/shm may hold."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 8 << 30
    return found.f_blocks * found.f_frsize


def caches_of(image: str, place: AttemptPlace, cache: str) -> str:
    """Return the directory of an image's compiler caches: what one image built may not fit another.

    On a cluster it is the run's, which is there on every node.
    """
    own = blake2s(image.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    home = (place.run_dir, "cache") if place.slots else (cache, "containers")
    return os.path.join(*home, own)


def contained(
    job: Job,
    here: ImageHere,
    place: AttemptPlace,
    environments: EnvironmentMaker,
    folder: str,
    argv: tuple[str, ...],
    own: Mapping[str, str | None],
) -> tuple[tuple[str, ...], Delta]:
    """Return the line that runs `argv` in the job's container, and the changes that go with it.

    `here`: the container's image; the rest as for Containing. Makes the directory of compiler
    caches, and for a carrier the folder. Raises OSError, NotContainedError.
    """
    assert job.container is not None
    caches = caches_of(here.id, place, environments.machine.cache)
    programs = environments.programs
    made = Containing(job, job.container, place, here, caches, folder, programs, own)
    with suppress(OSError):  # a home that is not to be written: there are no caches then
        os.makedirs(caches, 0o700, exist_ok=True)
    return wrapped(made, argv, environments.inside(job, place, own, caches))


def wrapped(
    made: Containing, argv: tuple[str, ...], inside: Mapping[str, str]
) -> tuple[tuple[str, ...], Delta]:
    """Return the line and the changes; `inside`: the variables that the program is to have."""
    unmasked = {name: value for name, value in inside.items() if name not in (MASK, ORDER)}
    handed = {**unmasked, **made.cards.inside}
    match made.engine:
        case "apptainer" | "singularity":
            return _by_apptainer(made, made.engine, argv, handed)
        case "docker" | "podman":
            return _by_carrier(made, made.engine, argv, handed)


def _by_apptainer(
    made: Containing,
    engine: Literal["apptainer", "singularity"],
    argv: tuple[str, ...],
    handed: Mapping[str, str],
) -> tuple[tuple[str, ...], Delta]:
    line = apptainer_line(engine, made.line(), made.job.cwd)
    prefix = PREFIX[engine]
    variables = {prefix + name: value for name, value in handed.items()}
    # Else the value of a variable is evaluated as the shell's code would be. By variable and not by
    # option, which older versions refuse.
    variables[f"{engine.upper()}_NO_EVAL"] = "1"
    others = {other + name for other in PREFIX.values() if other != prefix for name in handed}
    return (*line, *argv), Delta({**variables, **_marks(handed)}, frozenset(others))


def _by_carrier(
    made: Containing,
    engine: Literal["docker", "podman"],
    argv: tuple[str, ...],
    handed: Mapping[str, str],
) -> tuple[tuple[str, ...], Delta]:
    keeper = program_inside(made.programs)
    if keeper is None:
        raise NotContainedError(f"{engine}: {NO_PROGRAM}")
    called = _called(made)
    user = InstalledEngines(os.environ).user_inside(engine, made.container.user)
    if user.user and user.user.partition(":")[0] != "0":
        known = _who(made.container.user)
        handed = {**{k: v for k, v in known.items() if k not in made.own}, **handed}
    removed = [name for name, value in made.own.items() if value is None]
    start = client_line(engine, made.line(), called, user, keeper, made.folder)
    record = {
        "engine": engine,
        "name": called.name,
        "image": made.container.image,
        "start": start,
        "remove": remove_line(engine, called.name),
        "answers": [engine, "ps", "--quiet", "--last=1"],
        "cwd": made.job.cwd,
        "inside": list(handed),
        "unset": [name for name in (*removed, MASK, ORDER) if name not in handed],
        "first": [_PATH] if made.job.explain and _PATH not in made.own else [],
        "warn": made.job.warn.signal if made.job.warn else None,
        "anyone": bool(made.container.user),
        "cpus": made.place.near.cpus if made.place.near is not None else (),
    }
    _fresh(made.folder)
    path = os.path.join(made.folder, "record.json")
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(record, file)
    line = (*made.programs.command("container"), path, *argv)
    variables = {INSIDE + name: value for name, value in handed.items()}
    return line, Delta({**variables, **_marks(handed)}, frozenset())


def _who(user: str) -> dict[str, str]:
    """Return what says who an ordinary user is: an image does not know the user's number.

    Without HOME that would be /, where such a user may write nothing. `user`: as the job says it.
    """
    home = {"HOME": "/tmp"}
    if user:  # another one than the caller
        return home
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return {**home, "USER": name, "LOGNAME": name}


def _fresh(folder: str) -> None:
    """Make the attempt's folder; one of a launch that did not come about is replaced.

    A carrier opens its folder to the container's user (`anyone`), and the run's directory may be
    open to all. So the directory between them, where it is made here, keeps everybody else out.
    """
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    os.mkdir(folder, 0o700)


def _marks(handed: Mapping[str, str]) -> dict[str, str]:
    return {name: handed[name] for name in MARKS if name in handed}


def _called(made: Containing) -> ContainerName:
    """Return a name that no other container has, and labels that say whose it is."""
    job, place = made.job.name, made.place
    attempt = AttemptId(job, place.attempt)
    part = re.sub(r"[^A-Za-z0-9_.-]+", "_", job)[:_NAME_PART]
    own = blake2s(made.folder.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    labels = (place.run, str(attempt), made.folder, str(os.geteuid()))
    name = f"gpulaunch-{part}.{place.attempt}-{own}"
    return ContainerName(name, dict(zip(LABELS, labels, strict=True)))


# ── The cards that a container sees ─────────────────────────────────────────────────────────────
#
#     engine       cards                                        mask inside
#     docker       --gpus "device=UUID,UUID"                    none: only these devices are there
#     podman       --device nvidia.com/gpu=UUID, one for each   none, likewise
#     apptainer    --nv, which shows all devices                CUDA_VISIBLE_DEVICES=UUID,UUID
#     any          no card                                      CUDA_VISIBLE_DEVICES= (empty)
#     any          pretend cards: as without a card             as outside of a container
#
# Devices that are there alone are numbered from 0, so a mask of numbers from outside would name
# others, or none: it is not applied a second time. CUDA's images ask for all cards by themselves
# (NVIDIA_VISIBLE_DEVICES=all), which counts where NVIDIA's runtime is docker's default one: each
# container of docker and podman says otherwise.
#
# Sources: the NVIDIA Container Toolkit's documentation ("Specialized Configurations with Docker",
# "Support for Container Device Interface"), Apptainer's "GPU Support".


class CardsInside(Struct, frozen=True):
    """What shows a container its cards: options of the engine, and variables of the program."""

    options: tuple[str, ...] = ()
    inside: Mapping[str, str] = field(default_factory=dict)


def cards_inside(engine: ContainerEngine, gpus: Sequence[Gpu], mark: str = "") -> CardsInside:
    """Return what shows a container of this engine exactly these cards, numbered from 0.

    `mark`: stands for the UUIDs, comma-separated, where only a cluster's node will know the cards.
    """
    pretend = any(gpu.simulated for gpu in gpus)
    uuids = mark.split(",") if mark else [gpu.named for gpu in gpus if not gpu.simulated]
    if not uuids:
        mask = visible(gpus, "index") if pretend else {MASK: ""}
        none = (f"--env={SHOWN}=void",) if engine in ("docker", "podman") else ()
        return CardsInside(none, inside=mask)
    listed = ",".join(uuids)
    if engine == "docker":
        # The option's value is read as a line of CSV: the quotes keep the commas in one field.
        options: tuple[str, ...] = ("--gpus", f'"device={listed}"')
        return CardsInside(options, inside={ORDER: PCI_ORDER})
    if engine == "podman":
        options = tuple(f"--device=nvidia.com/gpu={uuid}" for uuid in uuids)
        return CardsInside((*options, f"--env={SHOWN}=void"), inside={ORDER: PCI_ORDER})
    return CardsInside(("--nv",), inside={MASK: listed})
