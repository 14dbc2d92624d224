"""The images of jobs' containers: each is asked for once, and jobs wait until theirs is there.

    a job's turn to wait for it ─▶ AwaitingImage ─▶ PullImage ─┬▶ ImageReady: what else it waits for
                                                               └▶ ImageFailed: failed, and forgotten

An image that is there stays so for this supervisor; the next one asks anew. After a failure the
next job that waits for it asks anew as well. Nothing is asked for while no job may start.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core import graph
from gpulaunch.core.events import ImageDigest, ImageFailed, ImageReady, PullImage
from gpulaunch.core.facts import ImageKnown, PullBegun
from gpulaunch.core.reasons import ImageUnavailable
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Blocked


def ask(state: State) -> None:
    """Ask for each image that a job waits for, unless the engine was asked before."""
    images = state.jobs.images
    if not images.waiting or state.closed:
        return
    for source in images.waiting:
        if source in images.asked:
            continue
        images.asked[source] = False
        known = state.ledger.images.get(source)
        state.effects.emit(PullImage(source, known.id if known else ""))


def begun(state: State, event: PullBegun) -> None:
    """Record that an image which was asked for is not there, and is being pulled."""
    if state.jobs.images.asked.get(event.source) is False:
        state.jobs.images.asked[event.source] = True
        state.effects.fact(event)


def ready(state: State, event: ImageReady) -> None:
    """Let the jobs go on that wait for this image; record what it is, where that is news."""
    images, source = state.jobs.images, event.source
    if source not in images.asked:
        return
    del images.asked[source]
    images.ready.add(source)
    known = state.ledger.images.get(source)
    if event.pulled or known is None or (known.id, known.digest) != (event.id, event.digest):
        fact = ImageKnown(source, event.id, event.digest, event.engine, event.pulled)
        state.effects.fact(fact)
    for node in images.who_waits(source):
        graph.move_on(state, node)
    for node in state.jobs if state.config.ahead else ():
        container = node.job.container
        if isinstance(node.state, Blocked) and container and container.source == source:
            graph.may_go_ahead(state, node)


def digested(state: State, event: ImageDigest) -> None:
    """Record the digest of an image that is there, where that is news."""
    known = state.ledger.images.get(event.source)
    if known is not None and known.digest != event.digest:
        state.effects.fact(replace(known, digest=event.digest, pulled=False))


def failed(state: State, event: ImageFailed) -> None:
    """Settle the jobs that wait for this image, which cannot be had, as failed."""
    images, source = state.jobs.images, event.source
    if images.asked.pop(source, None) is None:
        return
    for node in images.who_waits(source):
        graph.settle(state, node, "failed", ImageUnavailable(source.image, event.why))
