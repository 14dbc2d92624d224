"""What an engine promises to the supervisor.

An engine carries instructions out and says, through `post`, what happened. It decides nothing and
writes no journal. In return it may rely on this: an instruction comes only after the facts that it
rests on were written.

Cards (not for an engine that queues and places by itself)
  `Acquire(gpu)` is answered exactly once, by `Granted` (the lease is held, the card was looked at
  and is free) or `Refused` (nothing is held). After `Refused(Elsewhere)`, `Freed` comes when the
  other launcher lets go, and `HolderChanged` when it has stopped, continues, or is another one.
  `Drain(gpu)` is answered once, by `Drained` or `Refused`; in the latter case the lease is given
  back. A `Release` before the answer takes its place. None comes for a card of which `Ended` says
  that its memory is back. While a lease is held, `Wanted` says whether a launcher that holds no
  card waits for it; `Release` then hands it over.
  `GpuEvent` may come at any time from the first `Acquire` on, more than once, for a card that is
  held; one that is lost is told held or not.

Attempts
  `Launch(attempt)` is answered by `AttemptStarted`, then `Ended`, or by `Ended(NotStarted)` alone;
  always by exactly one `Ended`, and only once no descendant of the attempt is alive. The lease of
  its cards is held by the attempt's own processes as well. With `kept`, the worker that ran it
  lives on, idle, holding those leases: `Launch` with it follows, or `EndWorker`, which is answered
  by exactly one `WorkerEnded`, once nothing of it is alive. `StopAttempt` of an attempt that has
  ended meanwhile is not an error. The engine ends its attempts by itself when the supervisor is
  gone.

  `Launch(behind=attempt)` comes while that attempt still runs in the worker. This one begins there
  as soon as the other is over and `kept`, even before its `Ended` is posted. Where the worker does
  not stay, after `StopAttempt`, or after `TakeBack`, it never begins, and is `Ended(Interrupted)`;
  when it has begun by then, `TakeBack` changes nothing. The engine begins none for a supervisor
  that is gone. Once an attempt is over, its `Ended` is posted before anything of an attempt behind
  it: while the core knows of no end, the worker is there, or the answer tells that it is not.

Attempts in a queue
  An engine may queue and place by itself (Slurm). `Launch` names no card then, and is first
  answered by `AttemptQueued`, once the attempt has a place in the queue that outlives the
  supervisor; while it waits there, `why` says for what. `AttemptStarted` tells the cards and the
  node. An attempt is run once at most: after the death of a supervisor at any moment, `adopt` finds
  out whether it was submitted. Whatever has become of it, exactly one `Ended` comes, `Interrupted`
  for what was never submitted, for what the queue ended by itself (preempted, requeued) and for
  what it forgot before it began; should the queue begin it once more, that is not an attempt's
  beginning. No attempt ends because the queue does not answer, or a file system shows a record
  late; one of which nothing can be known any more is `Lost`. Attempts in a queue go on without a
  supervisor; `adopt` takes them up, and they are then reported, stopped and ended as any other.
  `AttemptStarted` is posted (again) for those that run. `StopAttempt` of one of them may come
  before `adopt` does. An attempt launched `after` others starts once they have succeeded; where one
  of them ends otherwise, or had ended before, it is `Interrupted`, and `StopAttempt` may come for
  it as well. `HoldQueue` keeps waiting attempts from starting; should this supervisor die, the next
  one's `adopt` undoes it.

  `StopAttempt` works even if the queue's controller does not answer: an attempt that has not begun
  is withdrawn, so that it never will, and is `Ended` as asked; one that runs is stopped on its
  node. The controller hears of it as well, now or later, perhaps from a later supervisor's engine.
  A withdrawal that no supervisor has recorded is found by `adopt`. Where attempts were to stop
  `now`, and the engine can neither end them nor tell their state, it may post `OutOfReach` after a
  bounded time: the supervisor exits then, and they stay without an end, for `adopt`.

What cannot be killed
  Where processes of an attempt or of an idle worker cannot be killed, or do not end in time, the
  engine warns and posts `Unending`; the end is still posted once it comes. A run that was asked to
  end does not wait for it: `close` leaves such an attempt to its keepers, with its leases, and the
  next supervisor's `adopt` finds it.

Images
  `PullImage(source)` comes once for each source until it is answered: by `ImageReady`, which
  `ImageDigest` may follow, or by `ImageFailed`, after which it may come again. Where the image is
  not there and is pulled, `PullBegun` may be posted before. Meanwhile `pulls` says since when.
  From `ImageReady` on attempts of jobs with that source may be launched, and the image is
  there for them. A pull that no job waits for any more goes on; it ends with the engine.

Records
  Before `Ended` is posted, the end is in the run directory's `ends/`; `Ends` gives the same outcome
  to a later supervisor, until `recorded` has said that the journal has the end on disk. `adopt`
  takes up attempts of an earlier supervisor: for each of them `Ended` is posted once nothing of it
  is alive any more. An engine with a queue takes them up as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from gpulaunch.core.events import Event, Instruction
from gpulaunch.core.model import AttemptId, ImageSource

Post: TypeAlias = Callable[[Event], None]


class Engine(Protocol):
    """Carries instructions out; see the module's text for what each one is answered with."""

    def carry_out(self, instruction: Instruction) -> None:
        """Begin to carry the instruction out; never blocks."""

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """Wait for attempts that an earlier supervisor left without a recorded end."""

    def recorded(self, attempts: Sequence[AttemptId]) -> None:
        """Learn that the journal has these attempts' ends on disk: their records may go."""

    def why(self, attempt: AttemptId) -> str:
        """Why a launched attempt has not started, or what is in doubt of one that has.

        In a few words; empty where nothing is known.

        Never blocks: it returns what the engine last heard, and is called for many at once.
        """

    def pulls(self) -> Mapping[ImageSource, float]:
        """Return the images that are being pulled, each with the seconds since that began.

        Never blocks: it returns what the engine last heard, and is called for many jobs at once.
        """

    def close(self) -> None:
        """Give everything back: leases, descriptors, helper processes."""
