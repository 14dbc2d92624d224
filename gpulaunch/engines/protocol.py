"""What an engine promises to the supervisor.

An engine carries instructions out and says, through `post`, what happened. It decides nothing and
writes no journal. In return it may rely on this: an instruction comes only after the facts that it
rests on were written.

Cards
  `Acquire(gpu)` is answered exactly once, by `Granted` (the lease is held, the card was looked at
  and is free) or `Refused` (nothing is held). After `Refused(Elsewhere)`, `Freed` comes when the
  other launcher lets go. `Drain(gpu)` is answered once, by `Drained` or `Refused(Sick)`; in the
  latter case the lease is given back. A `Release` before the answer takes its place. While a lease
  is held, `Wanted` says whether a launcher that holds no card waits for it; `Release` then hands
  it over. `GpuEvent` may come at any time from the first `Acquire` on, more than once, for a card
  that is held; one that is lost is told held or not.

Attempts
  `Launch(attempt)` is answered by `Started`, then `Ended`, or by `Ended(NotStarted)` alone; always
  by exactly one `Ended`, and only once no descendant of the attempt is alive. The lease of its
  cards is held by the attempt's own processes as well. With `kept`, the worker that ran it lives
  on, idle, holding those leases: `Launch` with it follows, or `EndWorker`, which is answered by
  exactly one `WorkerEnded`, once nothing of it is alive. `StopAttempt` of an attempt that has ended
  meanwhile is not an error. The engine ends its attempts by itself when the supervisor is gone.

An engine with a queue of its own (Slurm)
  It is told of no card: `Launch` names none, and the engine places the attempt by itself, on its
  own cards and no others. Before `Started` comes `Queued`, with the name that the attempt has
  there, once; while it waits, `why` says for what. `Started` names the cards. The same attempt is
  run once at most, whenever and however often the supervisor is killed. Attempts go on when it is
  gone; `adopt` takes them up, and they may be stopped as if they had been launched here. One that
  was never handed over ends as interrupted. What the engine cannot find out (it does not answer, a
  file system shows a record late) ends no attempt; one of which nothing can be known any more is
  `Lost`.

Records
  Before `Ended` is posted, the end is in the run directory's `ends/`; `read_end` there gives the
  same outcome to a later supervisor. `adopt` takes up attempts of an earlier supervisor: for each
  of them `Ended` is posted once nothing of it is alive any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gpulaunch.core.events import Event, Instruction
from gpulaunch.core.model import AttemptId

Post: TypeAlias = Callable[[Event], None]


class Engine(Protocol):
    """Carries instructions out; see the module's text for what each one is answered with."""

    def carry_out(self, instruction: Instruction) -> None:
        """Begin what the instruction says; never blocks."""

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """Wait for attempts that an earlier supervisor left without a recorded end."""

    def close(self) -> None:
        """Give everything back: leases, descriptors, helper processes."""
