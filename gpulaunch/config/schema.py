"""The configuration's JSON Schema, for editors, and its keys in words with examples, for people.

The schema accepts what the reader accepts, and says more.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

from gpulaunch.config.keys import KEYS
from gpulaunch.errors import UsageError
from gpulaunch.jobfile import fields as f
from gpulaunch.jobfile.schema import ID
from gpulaunch.jobfile.suggest import did_you_mean_key, shorten


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
