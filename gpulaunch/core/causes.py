"""Causes and hints: what ends an attempt or a run from outside, what to do about a failure.

Values only: `gpulaunch.base.wording` words causes, `diagnose.failure.advice` hints.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from gpulaunch.core.values import Tagged

Cause: TypeAlias = Literal[
    "cancelled",  # by a person
    "retried",  # by a person
    "gave_back",  # a person drained its card
    "cut_off",  # it was running when the run was cut off
    "cut_short",  # its attempt was cut short, and nothing settled the job
    "taken_up",  # a later supervisor goes on with it
    "needed_again",
    "not_due",  # nothing that needs this service may start yet
    "never_needed",  # nothing that needs this service came to run
    "unneeded",  # nothing needs this service any more
    "others_ended",  # all other jobs have ended
    "no_more_starts",  # the run starts nothing any more
    "gives_way",  # to a launcher that waits for its card
    "handed_over",  # the card, to a launcher that waited for it
    "wait_over",  # no card came free in the time that --wait gave
    "executor",  # the GpuExecutor that it belongs to
    "executor_failed",
    "supervisor_gone",
    "keeper_killed",
    "unseen",  # nobody saw the attempt's end
    "worker_ended",  # its worker, before the attempt began
    "taken_back",  # from the worker that was to go on with it, before it began
    "no_items",  # the GpuExecutor has none yet
    "unplaceable",  # it does not fit on the run's cards
    "unplaceable_beside",  # likewise, beside its services
    "unqueueable",  # a service, where an engine queues: it would have to run beside other jobs
    "redefined",  # the job, while its attempt waited in an engine's queue
    "not_in_file",  # the job file has the job no more
    "left_out",  # this supervisor was told to leave the job as it is
    "unasked",  # a service that starts when a job that needs it is ready to go
    "room",  # it waits for room for itself and a job that needs it
    "turn",  # it waits for its turn
]
"""What needs no data to be said."""


class Because(Tagged, frozen=True, tag="because"):
    """A cause that is said by its name alone."""

    cause: Cause


class Quoted(Tagged, frozen=True, tag="quoted"):
    """Text from elsewhere: a person's, the driver's, the kernel's, a cluster's."""

    text: str


class SignalCaught(Tagged, frozen=True, tag="signal_caught"):
    """The supervisor was sent this signal (`SIGINT`)."""

    signal: str


class RecordingFailed(Tagged, frozen=True, tag="recording_failed"):
    """The journal could not be written; `error` is the system's. `over`: that was given up."""

    error: str
    over: bool = False


class CardFailed(Tagged, frozen=True, tag="card_failed"):
    """The driver reported something of a card (by its index) after which it is not used."""

    gpu: int
    report: str


class NeedEnded(Tagged, frozen=True, tag="need_ended"):
    """A job that this attempt was queued behind did not succeed."""

    job: str


class RoomFor(Tagged, frozen=True, tag="room_for"):
    """This service makes room for another job."""

    job: str


class ServiceEnded(Tagged, frozen=True, tag="service_ended"):
    """A service that the attempt needs has ended: by this status or signal, or otherwise."""

    service: str
    exit_code: int | None = None
    signal: int | None = None


ClusterCause: TypeAlias = Literal[
    "preempted",  # it makes room for another job
    "cancelled",  # by a person, through the cluster's own commands
    "requeued",  # put back into the queue
    "requeued_silently",  # likewise without a word, as when its node fails
    "node_failed",
    "need_failed",  # cancelled: what it needs did not succeed
    "told_to_end",  # for a reason that was not given
    "never_handed",  # its launcher was gone before the queue had it
    "forgotten",  # before it began
    "vanished",  # forgotten after it began, and no record tells of its end
    "unrecorded",  # over, in a state that tells nothing, and no record tells of its end
    "not_begun",  # the queue could not begin it, and holds it
    "given_up",  # the queue refused it, or forgot it, or would never start it
    "disk_full",  # where the run directory is
    "dir_unseen",  # the run directory, from its nodes
    "node_unfit",  # its nodes cannot run the run's jobs
]


class ByCluster(Tagged, frozen=True, tag="by_cluster"):
    """A cluster ended the attempt or lost it, or cannot run it.

    `node` is the one concerned, where that is known; `said` is the cluster's own word for it: a
    state, a reason, an error, or the path that a node does not see.
    """

    what: ClusterCause
    node: str = ""
    said: str = ""


EndCause: TypeAlias = (
    Because
    | ByCluster
    | Quoted
    | SignalCaught
    | RecordingFailed
    | CardFailed
    | NeedEnded
    | RoomFor
    | ServiceEnded
)
"""Why an attempt was ended from outside, or its end is not known."""


class Hint(Tagged, frozen=True, tag="hint"):
    """Advice that is known by name: a failure class, or a name of `diagnose.failure.advice`."""

    name: str


class DisksFull(Tagged, frozen=True, tag="disks_full"):
    """File systems, by a path on each, that have no room."""

    paths: tuple[str, ...]


class MemoryUse(Tagged, frozen=True, tag="memory_use"):
    """Bytes that a card's memory ran out of; None where the message does not say.

    `others`: of other processes, with their PIDs where these are known.
    """

    asked: int | None = None
    total: int | None = None
    own: int | None = None
    others: int | None = None
    pids: tuple[int, ...] = ()


class SharedFate(Tagged, frozen=True, tag="shared_fate"):
    """The jobs that were on the card through MPS as well: a fatal fault of one is all of theirs."""

    jobs: tuple[str, ...]


Advice: TypeAlias = tuple[Hint | DisksFull | MemoryUse | SharedFate | Quoted, ...]
