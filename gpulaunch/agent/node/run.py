"""The way of an attempt on its node: claim, check, keepers, exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys

from ..client import PROGRAM, PairLink, new_pair, spawn
from ..proc import named_unkillable, own_environment
from ..shared import claim, look_anew
from ..wire import NO_SPACE, Any, shown
from .attempt import (
    NodeAttempt,
    awaited,
    forget_silence,
    name_of_ours,
    read_ticket,
    say,
    taken_before,
)
from .grant import Grant, Problem, filled
from .signals import StopSignals, held_back
from .status import LOST, NO_ROOM, STARTED_BEFORE, UNEXPLAINED, UNFIT, exit_status

NFS_VISIBILITY_TIMEOUT = 60.0  # seconds for which NFS clients may cache what they last saw
LOOK = 5.0  # seconds between two looks whether the client wants an attempt stopped
LEAVING_TIMEOUT = 10.0  # seconds for the keepers to exit before this process does


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
    attempt.ticket = awaited(read_ticket, attempt.ticket_file, asked, patience)
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
    grant.check(ticket.gpus)
    attempt.link_results(ticket.after)
    with contextlib.ExitStack() as stack:
        message = filled(ticket, grant, stack)
        keepers = stack.enter_context(contextlib.closing(Keepers(grant)))
        keepers.launch(attempt.id, message)
        end = keepers.await_end(attempt, asked)
    if end is not None:
        attempt.make_durable(end)
        status = exit_status(end, ticket.order.success_codes)
        if status == 0:
            forget_silence(ticket.order.log)
        return status
    if not os.path.lexists(attempt.end_file):  # a keeper makes this file first of all
        raise Problem(did_not_start(grant))
    say(f"{attempt.id}: its keepers were killed; how it ended nobody saw")
    return LOST


def did_not_start(grant: Grant) -> str:
    return f"its keepers did not start on node {grant.node}"


def keepers_program() -> str:
    """Return the path of the compiled keepers for this machine, which are beside this archive."""
    return f"{os.path.splitext(PROGRAM)[0]}-{os.uname().machine}"


class Keepers:
    """A spawner and one pair, as the launcher's own machine has them for its cards.

    When this process dies, they stop the job and exit.
    """

    def __init__(self, grant: Grant) -> None:
        """Start the spawner and one pair; jobs start from the grant's environment.

        Raises OSError and Problem.
        """
        self.attempt = ""
        with held_back():
            self.process, self.control = spawn([keepers_program()], grant.environ)
        try:
            self.pair = PairLink(new_pair(self.control))
        except (BrokenPipeError, ConnectionResetError):  # the spawner has ended already
            raise Problem(did_not_start(grant)) from None

    def launch(self, attempt: str, message: bytes) -> None:
        self.attempt = attempt
        self.pair.tell(message)

    def await_end(self, attempt: NodeAttempt, asked: StopSignals) -> dict[str, Any] | None:
        """Return the end, once no process of the attempt is left; None if both keepers are gone."""
        told: tuple[bool, bool] = (False, False)
        while True:
            stop = attempt.new_stop()
            if stop is not None:
                asked.read(now=stop[2])
            if (asked.stop, asked.now) != told:
                told = (asked.stop, asked.now)
                known = stop or attempt.read_stop()
                reason, by, _ = known or UNEXPLAINED
                # Slurm's own TERM comes early enough for the job's warning (`--signal`).
                self.pair.stop(self.attempt, reason, by, asked.now, gently=known is None)
            attempt.beat()
            asked.wait(LOOK, self.pair.socket.fileno())
            for message in self.pair.messages():
                if message is None:
                    return None
                if message["is"] == "ended":
                    end: dict[str, Any] = message["end"]
                    return end
                if message["is"] == "unkillable":
                    shown = named_unkillable(message["pids"])
                    say(f"{attempt.id}: {shown} cannot be killed, and is waited for")

    def close(self) -> None:
        """Close the sockets and wait for the keepers to exit.

        If this process exited first, Slurm would kill them and report that.
        """
        self.pair.socket.close()
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING_TIMEOUT)
