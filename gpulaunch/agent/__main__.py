"""Runs one of the programs here: `python -I -S .../agent/__main__.py PROGRAM [ARG ...]`.

The programs are one package, which is found by its place alone and has a name of its own. So
neither `gpulaunch` nor the directory that holds it (with `gpulaunch/torch`, for one) is ever to be
imported from an interpreter of somebody else's.
"""

import os
import signal
import sys

if False:  # For the type checker: typing is not imported here.
    from typing import Any  # noqa: F401

NAME = "gpulaunch_agent"


def load(program):
    # type: (str) -> Any
    """Import a module of the package. Only our own interpreters write .pyc files beside it."""
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path[:1] == [here]:  # the script's directory, as the interpreter sees it
        del sys.path[0]
    package = sys.modules[NAME] = type(sys)(NAME)
    package.__path__ = [here]
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = written or not sys.flags.isolated
    name = NAME + "." + program
    __import__(name)
    sys.dont_write_bytecode = written
    return sys.modules[name]


def forget():
    # type: () -> None
    """Let an interpreter that goes on as a job find nothing of the package; it works on."""
    for name in [n for n in sys.modules if n == NAME or n.startswith(NAME + ".")]:
        for path in sys.modules[name].__dict__.get("__path__", ()):
            sys.path_importer_cache.pop(path, None)
        del sys.modules[name]


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it is not told how a child ended
    load(sys.argv.pop(1)).main()
elif __name__ == "__mp_main__":  # in a process that multiprocessing spawns from a worker
    Item = load("worker.calls").Item
