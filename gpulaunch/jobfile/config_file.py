"""Reads configuration files: text, then a tree with places, then keys; and joins the two.

Owns the keys: what each accepts, for the reader, for editors (JSON Schema) and for people. The
schema accepts what the reader accepts, and says more. A converter opens nothing, and says what it
expected and what it found. The reader goes on after every mistake that leaves the rest readable,
and never raises for what a file holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from msgspec import Struct, field

from gpulaunch.base.errors import JobFileError, Mistake, UsageError
from gpulaunch.base.files import others_may_write, read_at_most, user_name
from gpulaunch.base.free_below import EXPECTED, parse_free_below
from gpulaunch.core.model import parse_selection
from gpulaunch.jobfile import fields as f
from gpulaunch.jobfile import notify_spec, schedulers, tree
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.config_model import (
    VARIABLE,
    CardCounts,
    CardLimits,
    Configuration,
    NamedCard,
)
from gpulaunch.jobfile.convert import integer_field, keys, scalar, texts, unknown_key
from gpulaunch.jobfile.mistakes import (
    ErrorCollector,
    FieldError,
    Mistakes,
    as_field_error,
    converted,
)
from gpulaunch.jobfile.schema import ID, TARGET
from gpulaunch.jobfile.source import JobFileText, decode, open_regular
from gpulaunch.jobfile.suggest import did_you_mean_key, shorten
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import Plain, YamlNode
from gpulaunch.jobfile.values import found

_ROOTED = re.compile(r"/|~(/|$)|\$")
_WHERE = "a directory like /scratch/$USER/runs or ~/runs"


def gpus(value: Plain) -> dict[str, tuple[str, ...]]:
    """Return the names of cards in `never` and `last`."""
    return _parts(value, ("never", "last"), _cards, "{never: [0], last: [3]}")


def _cards(value: Plain) -> tuple[str, ...]:
    return tuple(converted(_card, texts(value)))


def _card(name: str) -> str:
    try:
        parse_selection([name])
    except ValueError:
        raise FieldError(
            f"expected a card's index or UUID (gpulaunch gpus shows them), found {v.found(name)}"
        ) from None
    return name


def free_below(value: Plain) -> str:
    """Return the text of an amount of memory or a part of a card's, as `--free-below` has it."""
    text = scalar(value, EXPECTED)
    parse_free_below(text)
    return text


def runs(value: Plain) -> str:
    """Return the directory as typed, with `~` and variables in it."""
    text = scalar(value, _WHERE)
    if not _ROOTED.match(text):
        raise FieldError(f"expected {_WHERE}, found {v.found(text)}")
    if "$" in VARIABLE.sub("", text):
        raise FieldError(f"expected $NAME or ${{NAME}} where a $ is, found {v.found(text)}")
    return text


def lease_dir(value: Plain) -> str:
    text = scalar(value, "a directory like /run/gpulaunch")
    if not text.startswith("/"):
        raise FieldError(f"expected an absolute path like /run/gpulaunch, found {v.found(text)}")
    return text


def slurm(value: Plain) -> dict[str, tuple[str, ...]]:
    """Return words for sbatch by key, as `engine: {slurm: ...}` of a job file."""
    try:
        return dict(schedulers.held(schedulers.fixed({"slurm": value})).get("slurm", {}))
    except FieldError as error:
        bads = [FieldError(bad.message, bad.path[1:], bad.key) for bad in error.each()]
        bads[0].also = tuple(bads[1:])
        raise bads[0] from None


def limits(value: Plain) -> dict[str, dict[str, int]]:
    """Return how many cards users, and members of groups, may hold at once."""
    expected = "{users: {default: 2, ann: 4}, groups: {lab: 6}}"
    return _parts(value, ("users", "groups"), _counts, expected)


def _parts(
    value: Plain, known: tuple[str, ...], convert: Callable[[Plain], Any], expected: str
) -> dict[str, Any]:
    """Return the values of these keys, converted. Raises FieldError with all that is wrong."""
    if not isinstance(value, dict):
        raise FieldError(f"expected {expected}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, known, gather)
    given = (key for key in known if value.get(key) is not None)
    found = {key: gather.take((key,), convert, value[key]) for key in given}
    gather.done()
    return found


def _counts(value: Plain) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FieldError(f"expected names with numbers like {{ann: 4}}, found {v.found(value)}")
    gather = ErrorCollector()
    count = integer_field(0, "how many cards at once: 0, 1, 2 ...")
    found = {name: gather.take((name,), count, number) for name, number in value.items()}
    gather.done()
    return found


class Key(Struct, frozen=True):
    """A key: how its value is converted, its JSON Schema, its meaning, an example."""

    convert: Callable[[Plain], Any]
    schema: f.Schema
    meaning: str
    example: str


_NAMES: f.Schema = f.any_of(f.LIST, f.COUNT)
_COUNTS: f.Schema = {"type": "object", "additionalProperties": f.COUNT}

KEYS = {
    "gpus": Key(
        gpus,
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"never": f.any_of(_NAMES, f.NULL), "last": f.any_of(_NAMES, f.NULL)},
        },
        "Cards by index or UUID: never is not used at all (what the machine's file says holds, the"
        " user's adds to it), last only after all others (the user's in place of the machine's,"
        " [] for no card).",
        "gpus:\n  never: [0]\n  last: [GPU-5f3c2a10]",
    ),
    "free_below": Key(
        free_below,
        f.TEXT,
        "How much of a card's memory nobody in particular may use while it counts as free.",
        "free_below: 2GB",
    ),
    "runs": Key(
        runs,
        {"type": "string", "pattern": r"^(?=/|~(/|$)|\$)([^$]|\$(\w|\{\w+\}))*$"},
        "Where run directories go, in place of gpulaunch-runs in the working directory: an absolute"
        " path; ~, $NAME and ${NAME} are replaced.",
        "runs: /scratch/$USER/runs",
    ),
    "notify": Key(
        notify_spec.targets,
        f.any_of(TARGET, f.array(TARGET)),
        "Whom runs tell, and when, where their job file has no notify: of its own.",
        "notify: {to: env:NTFY_URL, on: [finish]}",
    ),
    "slurm": Key(
        slurm,
        f.ENGINE["properties"]["slurm"],
        "Settings for sbatch, as engine: {slurm: ...} of a job file, which wins key by key.",
        "slurm: {partition: gpu, account: lab}",
    ),
    "lease_dir": Key(
        lease_dir,
        {"type": "string", "pattern": "^/"},
        "Where leases are held in files as well, for containers: the same for everybody. Of both"
        " files the machine's wins, and GPULAUNCH_LEASE_DIR wins over both.",
        "lease_dir: /run/gpulaunch",
    ),
    "limits": Key(
        limits,
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"users": f.any_of(_COUNTS, f.NULL), "groups": f.any_of(_COUNTS, f.NULL)},
        },
        "Cards that all launchers of one user may hold at once; in the machine's file alone. Of a"
        " group, each member may hold so many.",
        "limits:\n  users: {default: 2, ann: 4}\n  groups: {lab: 6}",
    ),
}
"""Every key of a configuration file."""


# ── One file ──────────────────────────────────────────────────────────────────────────────────────

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


# ── Schema ────────────────────────────────────────────────────────────────────────────────────────


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file."""
    return {
        "$schema": ID,
        "title": "gpulaunch configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"description": key.meaning, **f.any_of(key.schema, f.NULL)}
            for name, key in KEYS.items()
        },
    }


def explained(name: str) -> str:
    """Return what the key means, and an example. Raises UsageError."""
    name = name.removesuffix(":")
    if name not in KEYS:
        near = did_you_mean_key(name, KEYS) or f"; there are {', '.join(sorted(KEYS))}"
        raise UsageError(f"the configuration has no key {shorten(name)!r}{near}")
    key = KEYS[name]
    return f"{name}, of the configuration: {key.meaning}\n\n{indent(key.example, '    ')}\n"
