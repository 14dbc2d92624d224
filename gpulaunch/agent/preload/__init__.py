"""A spawner in the jobs' own interpreter, which has imported what they import.

    supervisor ─exec─▶ guard ─fork, exec─▶ server ─fork─▶ pair and job: see `pairs.py`

What it owns: importing, the check whether jobs may be forked afterwards, and a forked child's last
steps from keeper to job. What it never does: run the job's script. The server is an interpreter
that was started with the jobs' own options and script, and has not opened the script yet (see
`hook/sitecustomize.py`). Its forked jobs go on from there, so that `__main__`, tracebacks,
`sys.path`, atexit, exit status and flushing are the interpreter's own work, as in a cold start.

The guard runs as `preload CONTROL
SPEC` of `../__main__.py` in gpulaunch's interpreter. It ends the server, and all processes that
imports have started, when they take too long or the supervisor goes away; once the server serves,
the guard only waits for its end.

    before it serves                 then
    supervisor dies                  guard kills the server and sweeps
    guard dies                       the kernel kills the server (PR_SET_PDEATHSIG)
    server dies, hangs or refuses    guard says why and sweeps; the jobs start cold
    hooks of imports at forks hang   likewise, and sooner; `hooks.py` and `quiet_fork` keep such
                                     hooks from its keepers
    afterwards                       as for any spawner: pairs go on, the supervisor starts another
"""

from __future__ import annotations

import sys


def main() -> None:
    from .guard import Guard

    Guard(int(sys.argv[1]), int(sys.argv[2])).watch()
