"""Turns an interpreter that is about to run a job's script into the server that forks such jobs.

The job's own command line starts the server, with this directory first on PYTHONPATH. The
interpreter imports this module once it has set itself up and before it opens the script;
`../server.py` imports what is to be preloaded, and forks. A forked job returns from here, and the
interpreter goes on as it always does: it opens the script and runs it, in frames, with flags and
with an end of its own. First of all this module removes itself from sys.path, sys.modules and the
importer's cache.

Without GPULAUNCH_PRELOAD in the environment it does nothing else. Any Python can read it, 2.7 too.
"""

import os
import sys

if False:  # For the type checker: typing is not imported here.
    from typing import Any  # noqa: F401

FOLDER = os.path.dirname(__file__)
MAIN = os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "__main__.py")


def step_aside():
    # type: () -> None
    sys.path_importer_cache.pop(FOLDER, None)
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]


def import_own():
    # type: () -> None
    """Import the program's own sitecustomize. An ImportError of that name: there is none."""
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def begin():
    # type: () -> None
    ours = sys.modules.pop("sitecustomize", None)  # noqa: F841  # Python 2 empties what is let go.
    step_aside()
    asked = os.environ.pop("GPULAUNCH_PRELOAD", None)
    if asked is None:
        import_own()
        return
    if sys.version_info < (3, 8) or sys.implementation.name != "cpython":
        words = '{"refused": "it is no CPython of version 3.8 or newer"}'
        os.write(int(asked.split(":")[1]), words.encode())
        os._exit(0)
    names = {"__name__": "gpulaunch_preload", "__file__": MAIN}  # type: dict[str, Any]
    with open(MAIN, "rb") as file:
        exec(compile(file.read(), MAIN, "exec", 0, True), names)
    early = frozenset(sys.modules)
    enter = names["load"]("preload.server").enter
    names["forget"]()
    enter(asked, early, import_own)


begin()
