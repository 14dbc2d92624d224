"""What is in force of the configuration and from where, and what is wrong with it; for people.

Also whether this user's runs outlive a logout (what systemd does then), and the cards of this
machine. Changes nothing.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.base.errors import Mistake, UsageError
from gpulaunch.base.text import several
from gpulaunch.engines.pool import configured, free_below_of, unmatched
from gpulaunch.gpus.discover import ProbeClient, find
from gpulaunch.gpus.inventory import inventory
from gpulaunch.gpus.lease import scope_of
from gpulaunch.gpus.machine import DoctorFinding, Machine
from gpulaunch.gpus.mask import pool
from gpulaunch.jobfile import config as limits
from gpulaunch.jobfile.config import MACHINE, current, user_file
from gpulaunch.jobfile.config_model import (
    Configuration,
    UnsetVariableError,
    expanded,
    lease_dir,
    wrong_runs,
)
from gpulaunch.journal.rundir import RUNS
from gpulaunch.run.options import NOBODY, Observer

if TYPE_CHECKING:
    from gpulaunch.base.documents import MachineCard


DEFAULT = "default"
_SHOWN = "gpulaunch gpus shows each card's index, and its UUID with --json"


class Setting(Struct, frozen=True):
    """A key, its value in words, and what sets it: `FILE:LINE`, a variable, `default`."""

    key: str
    value: str
    source: str


class InForce(Struct, frozen=True):
    """What holds for this user in this environment. `files` are those that are there."""

    files: tuple[str, ...]
    settings: tuple[Setting, ...]
    mistakes: tuple[Mistake, ...]


def in_force(environ: Mapping[str, str] = os.environ) -> InForce:
    """Return every setting, and every mistake of the files. Starts nothing, and raises nothing."""
    config = current(environ)
    files = tuple(path for path in (MACHINE, user_file(environ)) if os.path.lexists(path))
    mistakes = (*config.mistakes, *wrong_runs(config, environ))
    return InForce(files, tuple(_settings(config, environ)), mistakes)


def _settings(config: Configuration, environ: Mapping[str, str]) -> Iterator[Setting]:
    for key, cards in (("never", config.never), ("last", config.last)):
        for card in cards:
            yield Setting(f"gpus.{key}", card.name, card.source)
        if not cards:
            yield Setting(f"gpus.{key}", "no card", DEFAULT)
    yield _plain(config, "free_below", config.free_below or "512MiB, or 1% where that is more")
    yield _plain(config, "runs", _runs(config, environ))
    for target in config.notify:
        yield Setting("notify", target.name, config.sources["notify"])
    if not config.notify:
        yield Setting("notify", "nobody", DEFAULT)
    for key, words in config.slurm.items():
        yield Setting(f"slurm.{key}", " ".join(words), config.sources[f"slurm.{key}"])
    if not config.slurm:
        yield Setting("slurm", "none", DEFAULT)
    directory, source = lease_dir(config, environ)
    yield Setting("lease_dir", directory or "none", source or DEFAULT)
    yield from _limits(config)


def _plain(config: Configuration, key: str, value: str) -> Setting:
    return Setting(key, value, config.sources.get(key, DEFAULT))


def _runs(config: Configuration, environ: Mapping[str, str]) -> str:
    if config.runs is None:
        return f"{RUNS} in the working directory"
    try:
        return expanded(config.runs, environ)
    except UnsetVariableError:
        return config.runs


def _limits(config: Configuration) -> Iterator[Setting]:
    for kind, given in (("users", config.limits.users), ("groups", config.limits.groups)):
        for name, count in given.counts.items():
            yield Setting(f"limits.{kind}.{name}", several(count, "card"), given.sources[name])
    allowance = limits.allowance_of(config)
    if allowance is None:
        yield Setting("your limit", "none", DEFAULT)
    else:
        yield Setting("your limit", f"{several(allowance.limit, 'card')} at once", allowance.source)


# ── For the doctor ──────────────────────────────────────────────────────────────────────────────


def findings(environ: Mapping[str, str], machine: Machine) -> list[DoctorFinding]:
    """Return what is wrong with the configuration on this machine, or that there is none."""
    config, found = current(environ), in_force(environ)
    if not found.files:
        return [DoctorFinding("ok", "no configuration file: every default holds")]
    wrong = [
        DoctorFinding("error", mistake.text.split("\n")[0], "until then nothing is started")
        for mistake in found.mistakes
    ]
    there = f"configuration: {', '.join(found.files)} (gpulaunch config prints what holds)"
    return [
        *([] if wrong else [DoctorFinding("ok", there)]),
        *wrong,
        *(DoctorFinding("warning", line, _SHOWN) for line in unmatched(config, machine)),
        *_unknown_names(config),
        *_unwritable_runs(config, environ),
        *_other_lease_dir(config, environ),
    ]


def _unknown_names(config: Configuration) -> Iterator[DoctorFinding]:
    """Yield names in limits that no user or group has: a limit that holds for nobody."""
    users, groups = config.limits.users, config.limits.groups
    unknown = [("user", n, users.sources[n]) for n in users.counts if not limits.user_exists(n)]
    for name in groups.counts:
        if limits.group_id(name) is None:
            unknown.append(("group", name, groups.sources[name]))
    for kind, name, source in unknown:
        yield DoctorFinding(
            "warning",
            f"{source}: there is no {kind} {name} here: its limit holds for nobody",
            f"`getent {'passwd' if kind == 'user' else 'group'} {name}` looks it up",
        )


def _unwritable_runs(config: Configuration, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield that run directories cannot be made where `runs:` puts them."""
    if config.runs is None or any(wrong_runs(config, environ)):
        return
    path = Path(expanded(config.runs, environ))
    there = next(each for each in (path, *path.parents) if each.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield DoctorFinding(
            "error",
            f"{config.sources['runs']}: no run directory can be made in {path}: {there} is not to"
            " be written to by this user",
            "have it made, with a directory for each user or mode 1777",
        )


def _other_lease_dir(config: Configuration, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield that this environment holds leases elsewhere than the configuration says."""
    directory, source = lease_dir(config, environ)
    if config.lease_dir and directory != config.lease_dir:
        yield DoctorFinding(
            "warning",
            f"{source}={directory}, and {config.sources['lease_dir']} says {config.lease_dir}:"
            " launchers with one of them do not heed the other's locks in containers",
            f"unset {source}, unless the same directory is mounted there under another name",
        )


# ── Logout ────────────────────────────────────────────────────────────────────────────────────────

ANSWER = 5.0
"""Seconds for systemd-logind to answer."""
_LINGERING = Path("/var/lib/systemd/linger")
_CGROUP = Path("/proc/self/cgroup")
_ASK = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)


def ended_at_logout(
    cgroup: Path = _CGROUP,
    lingering: Path = _LINGERING,
    kills: Callable[[], bool] | None = None,
) -> str:
    """Return what ends this process's like when its user logs out; empty where nothing does.

    Sources: logind.conf(5), KillUserProcesses; loginctl(1), enable-linger; user@.service(5).
    `kills` asks whether logind kills what a session has left.
    """
    place = _place(cgroup)
    if ".service" not in place and ".scope" not in place:
        return ""
    if "/user@" in place:
        return "" if lingers(lingering) else "systemd ends a user's services with the last logout"
    if "/session-" in place and os.geteuid() and (kills or _kills)():
        return "logind ends what a session has left (KillUserProcesses=yes)"
    return ""


def lingers(lingering: Path = _LINGERING) -> bool:
    """Tell whether this user's services begin at boot, and outlive a logout."""
    return (lingering / _user()).exists()


def how_to_stay(what: str) -> str:
    """Return what a person does so that a run is not ended so."""
    if what.startswith("logind"):
        return "loginctl enable-linger, and systemd-run --user --scope before the command"
    return "loginctl enable-linger"


def finding() -> DoctorFinding:
    """Return what `gpulaunch doctor` says of whether runs outlive their user's logout."""
    what = ended_at_logout()
    if what:
        return DoctorFinding(
            "warning", f"a run that is left alone ends at logout: {what}", how_to_stay(what)
        )
    return DoctorFinding("ok", "a run that is left alone (--detach, queue) outlives the logout")


def _place(cgroup: Path) -> str:
    """Return this process's place among systemd's units; empty where there are none."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.split(":", 2)[2] for line in lines if line.startswith(("0::", "1:name="))), ""
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _kills() -> bool:
    try:
        told = subprocess.run(_ASK, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.stdout.split() == ["b", "true"]


# ── Cards ─────────────────────────────────────────────────────────────────────────────────────────


def cards_here(observer: Observer = NOBODY) -> list[MachineCard]:
    """Return what `gpulaunch gpus` shows: for each card who uses it, its lease, its health.

    What is wrong with the driver, a card or the inherited mask is noted.
    """
    with ProbeClient(os.environ) as client:
        machine = find(os.environ, client=client)
        try:
            ours = pool(machine, os.environ)
        except UsageError as error:  # the mask may mean two cards: a run would refuse it
            ours = None
            observer.note(str(error))
        config = current()
        said = configured(config, machine.gpus)
        rows = inventory(
            machine,
            client,
            scope_of(os.environ),
            ours,
            said.never,
            said.last,
            free_below_of(config),
        )
    for line in (*machine.faults, *unmatched(config, machine)):
        observer.note(str(line))
    return rows
