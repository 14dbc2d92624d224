"""What is in force of the configuration and from where, and what is wrong with it; for people."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from gpulaunch.config import limits
from gpulaunch.config.files import MACHINE, current, user_file
from gpulaunch.config.model import Configuration
from gpulaunch.config.paths import UnsetVariableError, expanded, lease_dir, wrong_runs
from gpulaunch.engines.configured import unmatched
from gpulaunch.errors import Mistake
from gpulaunch.gpus.machine import DoctorFinding, Machine
from gpulaunch.journal.rundir import RUNS
from gpulaunch.text import several

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
