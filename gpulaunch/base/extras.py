"""The optional dependencies (extras), and the line that says which are missing. Imports none."""

from __future__ import annotations

import re
from importlib.util import find_spec

from gpulaunch.base.errors import UsageError

MODULES = {
    "top": {"textual": "8.2.5"},
    "notify": {"apprise": "1.9", "requests": "2.31"},
    "prometheus": {"prometheus_client": "0.21"},
    "mcp": {"mcp": "2.3"},
    "init": {"tree_sitter": "0.25", "tree_sitter_bash": "0.25.1"},
    "parquet": {"pyarrow": "14"},
}
"""What each extra of pyproject.toml brings, by the names under which it is imported, and the oldest
version that will do: an environment may have another one for another program's sake."""


def missing(extra: str) -> str:
    """Return what the extra lacks and how to install it; empty where all of it is there."""
    lack = [found for name, oldest in MODULES[extra].items() if (found := _lack(name, oldest))]
    return f"{' and '.join(lack)}: pip install 'gpulaunch[{extra}]'" if lack else ""


def require(extra: str, what: str) -> None:
    """Raise UsageError where the extra that `what` needs is not installed."""
    if lack := missing(extra):
        raise UsageError(f"{what} needs {lack}")


def _lack(name: str, oldest: str) -> str:
    """Return the module's name where it is absent or too old; empty where it will do."""
    if find_spec(name) is None:
        return name
    from importlib.metadata import PackageNotFoundError, version

    try:
        here = version(name)
    except PackageNotFoundError:  # its files alone
        return ""
    return f"{name} {oldest} or newer (here is {here})" if _parts(here) < _parts(oldest) else ""


def _parts(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]
