"""The optional dependencies (extras), and the line that says which are missing. Imports none."""

from __future__ import annotations

from importlib.util import find_spec

from gpulaunch.errors import UsageError

MODULES = {
    "top": ("textual",),
    "notify": ("apprise", "requests"),
    "prometheus": ("prometheus_client",),
    "init": ("tree_sitter", "tree_sitter_bash"),
}
"""What each extra of pyproject.toml brings, by the names under which it is imported."""


def missing(extra: str) -> str:
    """Return which of the extra's modules are missing and how to install them; empty for none."""
    absent = [name for name in MODULES[extra] if find_spec(name) is None]
    return f"{' and '.join(absent)}: pip install 'gpulaunch[{extra}]'" if absent else ""


def require(extra: str, what: str) -> None:
    """Raise UsageError where the extra that `what` needs is not installed."""
    if lack := missing(extra):
        raise UsageError(f"{what} needs {lack}")
