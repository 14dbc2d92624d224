"""Reads configuration files: text, then a tree with places, then keys; and joins the two.

Goes on after every mistake that leaves the rest readable. Never raises for what a file holds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gpulaunch.config.keys import KEYS
from gpulaunch.config.model import CardCounts, CardLimits, Configuration, NamedCard
from gpulaunch.errors import JobFileError, Mistake, UsageError
from gpulaunch.files import others_may_write, read_at_most, user_name
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.convert import unknown_key
from gpulaunch.jobfile.mistakes import Mistakes, as_field_error
from gpulaunch.jobfile.source import JobFileText, decode, open_regular
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import YamlNode
from gpulaunch.jobfile.values import found

WHAT = "a configuration file"
MAX_BYTES = 1 << 20
NOT_THE_MACHINES = "limits stand in the machine's file, /etc/gpulaunch/config.yaml"


class FileText(Struct, frozen=True):
    """A file's bytes, and by key why its value does not hold."""

    data: bytes
    untrusted: Mapping[str, str]


class FileConfig(Struct):
    """One file: the values of its keys, converted, and where each of them stands."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    root: YamlNode = field(default_factory=lambda: YamlNode(0, {}))
    mistakes: list[Mistake] = field(default_factory=list)

    def place(self, *steps: str | int) -> str:
        """Return where a part of the file stands: `FILE:LINE`."""
        line, _ = tree.place(self.root.find(steps, key=True))
        return f"{self.name}:{line + 1}"


def read(machine: str, own: str) -> Configuration:
    """Return what the machine's and the user's file say together; an empty path: there is none."""
    return joined(read_file(machine, is_machine=True), read_file(own, is_machine=False))


def read_file(path: str, is_machine: bool) -> FileConfig:
    """Return one file's keys and its mistakes."""
    made = FileConfig(path)
    if not path:
        return made
    try:
        text = _text(path, is_machine)
        source = JobFileText(path, Path(path).parent, text.data, decode(text.data, path), WHAT)
        if any(line.strip() and not line.lstrip().startswith("#") for line in source.lines):
            _read_keys(source, text.untrusted, made)
    except JobFileError as error:
        made.mistakes += error.found
    except UsageError as error:
        made.mistakes.append(Mistake(str(error), str(error), path))
    return made


def _text(path: str, is_machine: bool) -> FileText:
    """Return the file's bytes. Raises UsageError."""
    with open_regular(Path(path), WHAT) as file:
        stat = os.fstat(file.fileno())
        data = read_at_most(file, MAX_BYTES + 1) or b""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: {WHAT} may have at most {MAX_BYTES:,} bytes")
    why = _why_untrusted(path, stat, is_machine)
    untrusted = {"notify": why} if why else {}  # its commands are executed
    limits = why if is_machine else NOT_THE_MACHINES
    return FileText(data, {**untrusted, "limits": limits} if limits else untrusted)


def _why_untrusted(path: str, stat: os.stat_result, is_machine: bool) -> str:
    """Return why another user may have written the file; empty if none can."""
    owners = {0} if is_machine else {0, os.geteuid()}
    if stat.st_uid not in owners:
        owner = "root" if is_machine else user_name(os.geteuid())
        return f"its owner is {user_name(stat.st_uid)}, not {owner}: chown {owner}"
    if stat.st_mode & 0o022 if is_machine else others_may_write(path, stat):
        return f"other users may write to it (mode {stat.st_mode & 0o777:04o}): chmod go-w"
    return ""


def _read_keys(source: JobFileText, untrusted: Mapping[str, str], made: FileConfig) -> None:
    """Convert the keys of a file's text. Raises JobFileError where it is no YAML."""
    made.root, early = tree.parse(source)
    mistakes = Mistakes(source, made.root)
    for at, message in early:
        mistakes.add_at(at, message)
    if not isinstance(made.root.value, dict):
        mistakes.add((), f"expected keys like runs:, found {found(made.root.plain())}")
        mistakes.raise_if_any()
        return
    for key, node in made.root.value.items():
        if key not in KEYS:
            mistakes.add((key,), unknown_key(key, tuple(KEYS)), key=True)
        elif why := untrusted.get(key):
            mistakes.add((key,), f"does not hold: {why}", key=True)
        elif node.value is not None:
            _convert((key,), node, made, mistakes)
    made.mistakes += mistakes.found()


def _convert(path: Steps, node: YamlNode, made: FileConfig, mistakes: Mistakes) -> None:
    key = str(path[0])
    try:
        made.values[key] = KEYS[key].convert(node.plain())
    except ValueError as error:
        mistakes.add_bad(path, as_field_error(error))


# ── Both files together ─────────────────────────────────────────────────────────────────────────


def joined(machine: FileConfig, own: FileConfig) -> Configuration:
    """Return what both files say: of most keys the user's wins, what the machine's limits holds."""
    said = {key: own if key in own.values else machine for key in KEYS}
    if "lease_dir" in machine.values:
        said["lease_dir"] = machine  # all launchers of the machine have to agree
    given = {key: file for key, file in said.items() if key in file.values}
    values = {key: file.values[key] for key, file in given.items()}
    never = (*_named(machine, "never"), *_named(own, "never"))
    says_last = "last" in own.values.get("gpus", {})  # maybe that there is none
    last = _named(own if says_last else machine, "last")
    sources = {key: file.place(key) for key, file in given.items()}
    for file in (machine, own):
        sources |= {
            f"slurm.{key}": file.place("slurm", key) for key in file.values.get("slurm", ())
        }
    return Configuration(
        never=never,
        last=last,
        free_below=values.get("free_below"),
        runs=values.get("runs"),
        notify=values.get("notify", ()),
        slurm={**machine.values.get("slurm", {}), **own.values.get("slurm", {})},
        lease_dir=values.get("lease_dir"),
        limits=_limits(machine),
        sources=sources,
        mistakes=(*machine.mistakes, *own.mistakes),
    )


def _named(file: FileConfig, which: str) -> tuple[NamedCard, ...]:
    names = file.values.get("gpus", {}).get(which, ())
    return tuple(NamedCard(name, file.place("gpus", which, n)) for n, name in enumerate(names))


def _limits(machine: FileConfig) -> CardLimits:
    given: Mapping[str, Mapping[str, int]] = machine.values.get("limits", {})

    def of(kind: str) -> CardCounts:
        counts = given.get(kind, {})
        return CardCounts(counts, {name: machine.place("limits", kind, name) for name in counts})

    return CardLimits(of("users"), of("groups"))
