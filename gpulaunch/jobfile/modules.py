"""Reads `modules:` and checks what it stands beside.

modules: [gcc/13, cuda/12.4]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import scalar
from gpulaunch.jobfile.mistakes import FieldError, converted
from gpulaunch.jobfile.tree import Plain

_NAME = re.compile(r"[^\s-]\S*")
_A_NAME = "the name of a module like cuda/12.4"
_EXPECTED = "modules like [gcc/13, cuda/12.4]"


def modules(value: Plain) -> tuple[str, ...]:
    """Return names of environment modules, in the order in which they are loaded.

    A text is read as behind `module load`. Raises FieldError.
    """
    names = value.split() if isinstance(value, str) else value
    if not names or not isinstance(names, list):
        raise FieldError(f"expected {_EXPECTED}, found {v.found(value)}")
    return tuple(converted(_name, names))


def _name(value: Plain) -> str:
    name = scalar(value, _A_NAME)
    if not _NAME.fullmatch(name):
        raise FieldError(f"expected {_A_NAME}, found {v.found(name)}")
    return name


def check(fields: Mapping[str, Any], inherits: Callable[[str], bool]) -> None:
    """Raise FieldError for modules of a job that a preload server would fork.

    `inherits` tells of a field whether it comes from `defaults:`.
    """
    if not (fields.get("modules") and fields.get("preload")):
        return
    field, other = "preload", "modules"
    if inherits(field) and not inherits(other):
        field, other = other, field
    null = f", or write {other}: null in this job" if inherits(other) else ""
    raise FieldError(
        "modules: say which libraries a program finds when it starts, and a preload server starts"
        f" before any job: leave {field}: out{null}",
        (field,),
        key=True,
    )
