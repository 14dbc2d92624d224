"""The way of an attempt on its node: claim, check, keepers, exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys

from ..shared import claim, look_anew
from ..wire import NO_SPACE, coded, own_environment, raw_all, shown
from .attempt import NodeAttempt, await_json, name_of_ours, taken_before
from .filling import filled
from .grant import Grant, memory_counter
from .keepers import Keepers
from .limits import NFS_VISIBILITY_TIMEOUT
from .signals import StopSignals
from .status import LOST, NO_ROOM, SLURM_ENDED_IT, STARTED_BEFORE, UNEXPLAINED, UNFIT, exit_status
from .words import Problem, say


def main() -> None:
    try:
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = LOST
    sys.exit(code)


def run() -> int:
    asked = StopSignals()
    run, batch = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
    patience = float(sys.argv[3]) if len(sys.argv) > 3 else NFS_VISIBILITY_TIMEOUT
    environ = own_environment()
    try:
        attempt = NodeAttempt(run, name_of_ours(run, batch, environ, asked, patience))
    except Problem as problem:
        say(str(problem))
        return 128 + signal.SIGTERM if asked.stop else UNFIT
    return serve(attempt, environ, asked, patience)


def serve(
    attempt: NodeAttempt, environ: dict[bytes, bytes], asked: StopSignals, patience: float
) -> int:
    """Claim the attempt, run it, wait for its end; return the exit status."""
    look_anew(os.path.dirname(attempt.start_file))
    if os.path.lexists(attempt.start_file):  # its ticket may be gone: do not wait for it
        return not_again(attempt)
    attempt.ticket = await_json(attempt.ticket_file, asked, patience)
    grant = Grant(environ)
    try:
        if claim([attempt.start_file], grant.record(attempt.id)) == [False]:
            return not_again(attempt)
        if grant.visible and not asked.stop:
            grant.ask_driver()  # slow, but the attempt is claimed: no other node starts it
            attempt.tell_cards(grant.gpus)
        stop = attempt.read_stop()
        if asked.stop or stop:  # before the job began: `stop` may be there without a signal
            cause, by, _ = stop or UNEXPLAINED
            attempt.write_end(cause, by)
            return 1
        return run_it(attempt, grant, asked, patience)
    except OSError as problem:
        where = f": {shown(os.fsencode(problem.filename))}" if problem.filename else ""
        full = problem.errno == errno.ENOSPC
        kind = NO_SPACE if full else None
        attempt.refuse(f"{problem.strerror}{where}, on node {grant.node}", kind)
        if full:
            return NO_ROOM
    except Problem as problem:
        attempt.refuse(str(problem))
    return UNFIT


def not_again(attempt: NodeAttempt) -> int:
    say(f"{attempt.id} {taken_before(attempt.start_file)}")
    return STARTED_BEFORE


def run_it(attempt: NodeAttempt, grant: Grant, asked: StopSignals, patience: float) -> int:
    """Run the ticket and return the exit status. Raises Problem and OSError if no job was run."""
    ticket = attempt.ticket
    if ticket is None:
        raise Problem(
            f"{shown(attempt.ticket_file)} was not to be seen on node {grant.node} within"
            f" {patience:.0f} s"
        )
    grant.check(int(ticket["node"]["gpus"]))
    attempt.link_results(raw_all(ticket["node"]["after"]))
    with contextlib.ExitStack() as stack:
        child = filled(ticket, grant, stack)
        keepers = stack.enter_context(contextlib.closing(Keepers(grant.environ)))
        counter = memory_counter(grant.environ)
        more = {"oom_kills": counter and coded(counter), "term_by": SLURM_ENDED_IT}
        keepers.launch({**ticket["keeper"], **more}, child)
        end = keepers.await_end(attempt, asked)
    if end is not None:
        attempt.make_durable(end)
        return exit_status(end, ticket["keeper"]["success_codes"])
    if not os.path.lexists(attempt.end_file):  # a keeper makes this file first of all
        raise Problem(f"its keepers did not start on node {grant.node}")
    say(f"{attempt.id}: its keepers were killed; how it ended nobody saw")
    return LOST
