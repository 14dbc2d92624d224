"""What a job's container sees of this machine's files: its own directories, at their own paths.

Pure. The job's directory, that of its input, the run's, which holds `{{out}}` and `{{keep}}`, and
what `mounts:` adds: so that no path in a command changes its meaning.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable

from gpulaunch.core.model import Mount


def own_paths(paths: Iterable[str], added: Iterable[Mount] = ()) -> tuple[Mount, ...]:
    """Return the mounts of these paths and the added ones, the outer before the inner.

    A path that another mount shows already, as it is, has none of its own. Where two have the same
    target, the added one counts, and of these the last.
    """
    wanted = {path: Mount(path, path) for path in map(os.path.normpath, paths)}
    wanted |= {mount.target: mount for mount in added}
    kept: list[Mount] = []
    for target in sorted(wanted, key=lambda path: path.count("/")):
        mount = wanted[target]
        around = [one for one in kept if _is_below(target, one.target)]
        if not (around and _shows(around[-1], mount)):
            kept.append(mount)
    return tuple(kept)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def _shows(outer: Mount, inner: Mount) -> bool:
    """Tell whether the outer mount shows the inner one's source at its target already."""
    there = outer.source.rstrip("/") + inner.target[len(outer.target.rstrip("/")) :]
    return there == inner.source and outer.read_only == inner.read_only
