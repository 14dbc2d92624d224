"""The keys of a configuration file: what each accepts, for the reader, for editors and for people.

Each converter says what it expected and what it found, and opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from gpulaunch.config.paths import VARIABLE
from gpulaunch.core.selection import parse_selection
from gpulaunch.free_below import EXPECTED, parse_free_below
from gpulaunch.jobfile import engines, notify_spec
from gpulaunch.jobfile import fields as f
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import integer, keys, scalar, texts
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.schema import TARGET
from gpulaunch.jobfile.tree import Plain

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
        return dict(engines.held(engines.fixed({"slurm": value})).get("slurm", {}))
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
    count = integer(0, "how many cards at once: 0, 1, 2 ...")
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
