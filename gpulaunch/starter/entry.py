"""The translator's values: an entry of the job file to be, a remark, and the two together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

Read: TypeAlias = Callable[[str], "str | None"]
"""The text of a file that the script names, None where it cannot be read."""


class Untranslatable(Exception):
    """Why a piece of the script has no counterpart, in words."""


class StarterRemark(NamedTuple):
    """Something of the script that the job file does not say, or says otherwise, and why."""

    line: int
    text: str
    why: str


class Translation(Struct, frozen=True):
    """`yaml_text` is empty where no command of the script became a job."""

    yaml_text: str
    untranslated: tuple[StarterRemark, ...]


class ForeachLoop(Struct, frozen=True):
    """What gives an entry its items.

    `variable` is the script's name for it and `placeholder` the job file's. `kind` is how the job
    file says it: glob, values, lines (all under foreach) or matrix. `at` is its place in the
    script: two loops that look alike are two.
    """

    variable: str
    kind: str
    values: tuple[str, ...]
    placeholder: str = "item"
    at: int = 0


class StarterEntry(Struct, frozen=True):
    """One entry of `jobs:`. Text is already escaped for placeholders; comments are not escaped."""

    name: str
    run: str
    gpus: int = 1
    loops: tuple[ForeachLoop, ...] = ()
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    venv: str | None = None
    conda: str | None = None
    modules: tuple[str, ...] = ()
    timeout: str | None = None
    cpus: str | None = None
    comments: tuple[str, ...] = ()
    in_turn: bool = False
    extra: tuple[tuple[str, str], ...] = ()
    """Further fields, their values as YAML."""
