"""The processes between the supervisor and a job: spawner, guardian, monitor.

    supervisor ──exec once──▶ spawner ──fork──▶ guardian ──fork──▶ monitor ──fork, exec──▶ job

What it owns: starting a job, its signals, timeouts and end, and the proof that no process of it is
left; also a worker, between the items that it takes (`serve/` is the worker's own side). What it
never does: decide what runs, touch a card, write an environment's value anywhere.
Its program is `keeper FD` of `../__main__.py`. With `try-isolation` for the descriptor it prints on
standard error why strict isolation is not possible here, if so, and exits. A preload server has
these modules in the jobs' own interpreter, where some jobs need no exec (`host.py`).

Who adopts whom. All three are subreapers, so an orphan goes to the nearest one that lives:

    dies                 then
    supervisor             the monitor sees the end of file: TERM, grace, KILL, sweep, end written
    monitor                the guardian adopts the job's processes, kills them, exits
    guardian               the spawner adopts the monitor, which finishes its job and leaves
    monitor and guardian   the spawner kills what it adopts; until then it holds socket and leases
    spawner                pairs go on; the supervisor starts another spawner

When the supervisor is stopped (Ctrl-Z, SIGSTOP), a pair without a job leaves, so that others have
its cards; pairs with a job go on.

INVARIANT: the supervisor sees the end of file of a pair's socket only when no process of its job is
left. Spawner, guardian and monitor each hold the socket, and each closes it only after its own
sweep. `sweep.py` says why a sweep is a proof.
"""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1] == "try-isolation":
        from .isolation import try_isolation

        sys.exit(try_isolation())
    from .spawner import run

    run(int(sys.argv[1]))
