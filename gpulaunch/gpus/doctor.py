"""Finds what is wrong with this machine, for `gpulaunch doctor`; changes nothing itself.

Every finding says what was found and, where it is not as it should be, what to do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpulaunch.base.errors import UsageError
from gpulaunch.base.free_below import FreeBelow
from gpulaunch.base.text import size
from gpulaunch.base.wording import option_to_take
from gpulaunch.core.events import Occupied
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import mask, socket_locks
from gpulaunch.gpus.discover import ProbeClient, find, looks
from gpulaunch.gpus.lease import holders, scope_of
from gpulaunch.gpus.machine import CardReading, DoctorFinding, Machine, is_free, line_of
from gpulaunch.gpus.mask import MASK, ORDER, PCI_ORDER, style_for
from gpulaunch.gpus.parse import numa_nodes
from gpulaunch.gpus.socket_locks import how_to_continue
from gpulaunch.gpus.xid import hearing


def _silent(environ: Mapping[str, str], machine: Machine) -> Sequence[DoctorFinding]:
    """Find nothing: what `examine` asks of a configuration where nobody gave one."""
    return ()


def examine(
    environ: Mapping[str, str],
    timeout: float = 10.0,
    isolation: Callable[[Sequence[Gpu]], DoctorFinding] | None = None,
    cluster: Callable[[Mapping[str, str]], DoctorFinding | None] = lambda environ: None,
    keepers: Callable[[], DoctorFinding] | None = None,
    logout: Callable[[], DoctorFinding] | None = None,
    left: Sequence[Callable[[Mapping[str, str]], DoctorFinding | None]] = (),
    memory: Callable[[], DoctorFinding] | None = None,
    configuration: Callable[[Mapping[str, str], Machine], Sequence[DoctorFinding]] = _silent,
    mps: Callable[[Mapping[str, str], Machine], Iterable[DoctorFinding]] = _silent,
    free_below: FreeBelow | None = None,
    lease_setting: str = socket_locks.VARIABLE,
) -> list[DoctorFinding]:
    """Return all findings, those about the driver first. Takes seconds at most per card.

    `isolation` finds out whether jobs can be kept to their cards by more than the mask, `cluster`
    whether a cluster would take them; None: there is nothing of one here. `keepers` says which
    keepers jobs get. `logout` finds out whether a run outlives its user's logout; each of `left`
    what runs have left of a kind. `memory` finds out whether jobs can be limited in the
    host's memory, `configuration` what is wrong with the configuration files, `mps` whether jobs
    may share cards through MPS. `free_below`: as in `is_free`. `lease_setting`: what sets the
    directory of the leases, in words.
    """
    with ProbeClient(environ, timeout) as client:
        machine = find(environ, timeout, client)
        seen = looks(client, machine.gpus)
    return [
        *driver(machine),
        *cards(machine, seen, free_below),
        *events(machine, hearing(machine.gpus, environ, timeout) if machine.gpus else {}),
        *device_files(machine),
        *places(machine, environ),
        *order(machine, environ),
        *inherited(machine, environ),
        *leases(machine, environ, lease_setting),
        *containers(environ),
        *configuration(environ, machine),
        *([isolation(machine.gpus)] if isolation else []),
        *mps(environ, machine),
        *filter(None, [cluster(environ)]),
        *([keepers()] if keepers else []),
        *([memory()] if memory else []),
        *([logout()] if logout else []),
        *filter(None, (find_left(environ) for find_left in left)),
    ]


def driver(machine: Machine) -> Iterator[DoctorFinding]:
    if machine.driver:
        count = f"{len(machine.gpus)} usable" if machine.gpus else "no usable"
        cuda = f", CUDA {machine.cuda}" if machine.cuda else ""
        yield DoctorFinding(
            "ok", f"driver {machine.driver}{cuda}, {count} card(s) or MIG instance(s)"
        )
    for fault in machine.faults:
        where = f"{fault.card}: " if fault.card else "NVML: "
        yield DoctorFinding(
            "warning" if machine.gpus else "error", where + fault.what, fault.advice
        )


def cards(
    machine: Machine, seen: Mapping[str, CardReading], free_below: FreeBelow | None = None
) -> Iterator[DoctorFinding]:
    """Yield what is amiss with cards, or keeps jobs from them; `free_below` as in `is_free`."""
    for gpu in machine.gpus:
        look = seen[gpu.uuid]
        where = f"GPU {gpu.index} ({gpu.name})"
        if look.sick:
            yield DoctorFinding("error", f"{where}: {look.sick}", "gpulaunch leaves it out")
        elif isinstance(busy := is_free(look, free_below=free_below), Occupied):
            yield DoctorFinding("note", f"{where} is in use: {busy.by}", _taking(busy))
        if look.windows:
            yield DoctorFinding(
                "note",
                f"{where}: Windows draws on it, and the driver names none of its programs (WSL)",
                f"less than {size(line_of(look, free_below) or 0)} of nobody's memory counts as"
                " none there; free_below: in the job file, or --free-below, sets another line",
            )
        if gpu.unified:
            yield DoctorFinding(
                "note",
                f"{where} has unified memory: it uses the host's, {size(look.free or 0)} free",
                "gpu_memory: and memory: of jobs reserve of it together; whether the card is in use"
                " is told by the processes on it alone",
            )
        elif not gpu.memory:
            why = look.unanswered.get("memory", "no answer")
            yield DoctorFinding(
                "warning",
                f"{where}: the driver does not tell the size of its memory: {why}",
                "jobs run on it, but none with gpu_memory: or share:",
            )
        if not look.sick and not look.tells_processes:
            yield DoctorFinding(
                "warning",
                f"{where}: the driver does not list its processes:"
                f" {look.unanswered['processes_C']}",
                "others on the card show by its memory alone, and what a job takes of it is not"
                " measured",
            )
        for note in look.notes:
            yield DoctorFinding("warning", f"{where}: {note}")
        if look.persistence is False:
            yield DoctorFinding(
                "warning",
                f"{where}: persistence mode is off, each first use takes seconds",
                "`sudo nvidia-smi -pm 1`, or run nvidia-persistenced",
            )
        if look.compute_mode not in (None, "default", "prohibited"):
            yield DoctorFinding(
                "note",
                f"{where}: compute mode {look.compute_mode}: one process at a time",
                "`nvidia-smi -c DEFAULT` where jobs are to share it (per_gpu)",
            )


def _taking(busy: Occupied) -> str:
    if busy.free_below is None:
        return ""
    return f"{option_to_take(busy.free_below)} takes it all the same"


def events(machine: Machine, told: Mapping[str, tuple[str, ...] | str]) -> Iterator[DoctorFinding]:
    """Yield whether the driver announces Xids to this user; earlier Xids cannot be read."""
    heard = [gpu for gpu in machine.gpus if isinstance(told.get(gpu.uuid), tuple)]
    if heard:
        which = "every card" if len(heard) == len(machine.gpus) else some(heard)
        yield DoctorFinding("ok", f"the driver reports Xids and other health events of {which}")
    deaf = defaultdict(list)
    for gpu in machine.gpus:
        if gpu not in heard:
            deaf[told.get(gpu.uuid, "the driver does not answer when asked for them")].append(gpu)
    for why, gpus in deaf.items():
        yield DoctorFinding(
            "note",
            f"no health events (Xids) of {some(gpus)}: {why}",
            "jobs run all the same; a failing card is noticed when it is looked at",
        )


def some(gpus: Sequence[Gpu]) -> str:
    """Return the cards in words: `GPU 0`, `GPUs 0, 1 and 3`; MIG instances by their card."""
    *others, last = dict.fromkeys(str(gpu.index) for gpu in gpus)
    return f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"


def device_files(machine: Machine, directory: str = "/dev") -> Iterator[DoctorFinding]:
    """Yield which files that CUDA opens are missing; NVML needs fewer, and may count such cards."""
    if not machine.gpus:
        return
    minors = sorted({gpu.minor for gpu in machine.gpus if gpu.minor is not None})
    paths = [f"{directory}/{name}" for name in ("nvidiactl", "nvidia-uvm")]
    paths += [f"{directory}/nvidia{minor}" for minor in minors]
    wsl = f"{directory}/dxg"  # one node for all cards, in the place of these
    for path in [wsl] if not minors and os.path.exists(wsl) else paths:
        if not os.path.exists(path):
            advice = "`nvidia-modprobe -u -c=0` makes it; in a container, pass it in"
            yield DoctorFinding("warning", f"{path} does not exist", advice)
        elif not os.access(path, os.R_OK | os.W_OK):
            advice = "its mode and group, or the container's or Slurm job's device list"
            yield DoctorFinding("error", f"{path} may not be opened by this user", f"see {advice}")


def places(machine: Machine, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield which CPUs are near the cards, where the machine has more than one NUMA node."""
    nodes = numa_nodes(environ)
    if not machine.gpus or nodes < 2:
        return
    if unknown := [gpu for gpu in machine.gpus if not gpu.cpus]:
        yield DoctorFinding(
            "note",
            f"{nodes} NUMA nodes, and neither the kernel nor the driver says which is near"
            f" {some(unknown)}",
            "jobs there run on all CPUs; a firmware or a virtual machine may be set to tell",
        )
    else:
        yield DoctorFinding(
            "ok", f"{nodes} NUMA nodes; jobs run on the CPUs near their card (affinity)"
        )


def order(machine: Machine, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    value = environ.get(ORDER)
    if value not in (None, PCI_ORDER, "FASTEST_FIRST"):
        yield DoctorFinding(
            "warning", f"{ORDER}={value} is no order that CUDA knows", f"use {PCI_ORDER}"
        )
    models = sorted({gpu.name for gpu in machine.gpus if not gpu.mig})
    if len(models) > 1:
        yield DoctorFinding(
            "note",
            f"cards of different models ({', '.join(models)}): outside of gpulaunch CUDA may "
            "number them otherwise than nvidia-smi",
            f"export {ORDER}={PCI_ORDER} in your shell as well",
        )
    style, why = style_for(machine)
    if style == "uuid":
        yield DoctorFinding("note", f"jobs get their cards by UUID: {why}")


def inherited(machine: Machine, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    try:
        pool = mask.pool(machine, environ)
    except UsageError as error:
        yield DoctorFinding("error", str(error))
        return
    for note in pool.notes:
        yield DoctorFinding("warning", note)
    if pool.why and machine.gpus:
        yield DoctorFinding(
            "note" if pool.gpus else "error",
            f"{pool.why}: {len(pool.gpus)} of {len(machine.gpus)} cards may be used",
            "" if pool.gpus else f"unset {MASK}, or name a card",
        )


def leases(
    machine: Machine, environ: Mapping[str, str], setting: str = socket_locks.VARIABLE
) -> Iterator[DoctorFinding]:
    """Yield who leases which card, and leases whose holder is stopped; none can be stale."""
    known = {gpu.key: f"GPU {gpu.index}" for gpu in machine.gpus}
    for key, holder in sorted(holders(scope_of(environ)).items()):
        if key.startswith("sim/"):
            continue
        where = known.get(key, key)
        if holder.stopped:
            advice = how_to_continue("stopped", holder.pid)
            yield DoctorFinding(
                "warning", f"{where} is leased by a stopped process: {holder}", advice
            )
        else:
            yield DoctorFinding("note", f"{where} is leased by {holder}")
    if directory := environ.get(socket_locks.VARIABLE):
        yield lease_directory(directory, setting)


def lease_directory(directory: str, setting: str) -> DoctorFinding:
    path = Path(directory)
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return DoctorFinding(
            "error",
            f"{setting}={directory} is not a directory this user may write to",
            f"`mkdir -m 1777 {directory}`, the same for everybody who uses the cards",
        )
    if os.getuid() and not path.stat().st_mode & 0o002:
        return DoctorFinding(
            "warning",
            f"{setting}={directory} is not writable for every user",
            f"`chmod 1777 {directory}`, where others lease these cards as well",
        )
    return DoctorFinding("ok", f"leases are also held in {directory}")


def containers(environ: Mapping[str, str], root: str = "/") -> Iterator[DoctorFinding]:
    marks = (".dockerenv", "run/.containerenv")
    inside = any(os.path.exists(os.path.join(root, mark)) for mark in marks)
    if inside and not environ.get(socket_locks.VARIABLE):
        yield DoctorFinding(
            "warning",
            "in a container: where it has a network of its own, leases do not exclude launchers "
            "outside of it",
            f"mount one directory everywhere and set {socket_locks.VARIABLE} to it",
        )
