"""Runs a job list that a command line makes instead of a file: for `map` and `each`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.cli.options import as_options, refuse_mounts_alone, run_options_of
from gpulaunch.errors import JobFileError, UsageError


def container_entry(image: str | None, mounts: Sequence[str]) -> dict[str, Any]:
    """Return the entry's `container`, if there is to be one. Raises UsageError."""
    if image is None:
        refuse_mounts_alone(mounts)
        return {}
    return {"container": {"image": image, "mounts": list(mounts)}}


def run_made(tree: Mapping[str, Any], command: str, options: Mapping[str, Any]) -> int:
    """Run the list that `tree` spells, as `command` does; return the exit status.

    `options`: click's parsed values, by name. Raises UsageError with each mistake by its option.
    """
    from gpulaunch.app.starting import start
    from gpulaunch.app.surroundings import surroundings_at_start
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.jobfile import load_text
    from gpulaunch.journal.finding import working_directory

    asked, terminal = run_options_of(options), Terminal(options)
    try:
        around, base = surroundings_at_start(asked), working_directory()
        plan = load_text(_yaml(tree), around, name=command, base=base, as_list=False)
    except JobFileError as error:  # there is no file: its lines and columns mean nothing
        raise UsageError(as_options(error, command)) from None
    return start(plan, None, asked, terminal, options["run_dir"]).status


def _yaml(tree: Mapping[str, Any]) -> bytes:
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True).encode()
