"""Where `runs:` puts the directories of runs.

    runs: /scratch/$USER/runs ─▶ /scratch/ann/runs/PROJECT-1a2b3c4d5e6f/NAME-DATE-TIME

A directory of its own for each working directory, so that the runs of one are found without a look
at all others. Makes no directory.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpulaunch.config.files import current
from gpulaunch.config.paths import UnsetVariableError, expanded

_UNFIT = re.compile(r"[\x00-\x1f\x7f]|^\.")
_NAME_CHARACTERS = 48


def source_of_runs(environ: Mapping[str, str] = os.environ) -> str:
    """Return the words before what is wrong with where runs go: the place of `runs:`, if given."""
    source = current(environ).sources.get("runs")
    return f"{source}: runs: " if source else ""


def place_of_runs(directory: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return where runs that are begun in `directory` are kept; None: within it.

    `directory` has no symbolic links in it. Where `runs:` cannot be followed, as a variable is not
    set, it is as if it were not there: `files.required` says so before anything starts.
    """
    config = current(environ)
    if config.runs is None:
        return None
    try:
        base = expanded(config.runs, environ)
    except UnsetVariableError:
        return None
    name = _UNFIT.sub("_", directory.name or "root")[:_NAME_CHARACTERS]
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return Path(base, f"{name}-{digest}")
