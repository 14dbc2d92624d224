"""What the world knows of the images of one run: which it was asked for, and what came of that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpulaunch.core.events import Event, ImageFailed, ImageReady, PullImage
from gpulaunch.core.facts import PullBegun
from gpulaunch.core.jobs import Node
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Container, ImageSource, Job
from gpulaunch.core.run import Run

IMAGES = (
    Container("a", "docker"),
    Container("b", "podman"),
    Container("b", "podman", pull="always"),
    Container("c"),  # its engine is not chosen
)


@dataclass
class Pulls:
    """`there`: images that the run was told of; `ids`: by which name, also by earlier answers.

    `in_vain`: who waits for an image of which the run is just told that it cannot be had.
    """

    asked: list[ImageSource] = field(default_factory=list)
    there: set[ImageSource] = field(default_factory=set)
    ids: dict[ImageSource, str] = field(default_factory=dict)
    answers: int = 0
    in_vain: list[Node] = field(default_factory=list)

    def ask(self, pull: PullImage, closed: bool) -> None:
        """Take the instruction, strictly."""
        source = pull.source
        assert not closed, f"{pull} while nothing may start"
        assert source not in self.asked, f"{pull} twice"
        assert source not in self.there, f"{pull}, which is there"
        known = self.ids.get(source, "")
        assert pull.known == known, f"{pull}, which is known as {known!r}"
        self.asked.append(source)

    def answer(self, source: ImageSource, rng: random.Random, calm: bool) -> list[Event]:
        """What the run is to be told of an image that it asked for."""
        self.answers += 1
        begun: list[Event] = [PullBegun(source, "docker")] * rng.choice([0, 1, 1, 2])
        if not calm and rng.random() < 0.3:
            return [*begun, ImageFailed(source, "no such image")]
        id = rng.choice([self.ids.get(source, "id"), f"id{self.answers}"])
        return [*begun, ImageReady(source, id, rng.choice(["", "digest"]), "docker", bool(begun))]

    def hear(self, event: Event, run: Run) -> None:
        """Note what the run is told just now."""
        self.in_vain = []
        if not isinstance(event, ImageReady | ImageFailed) or event.source not in self.asked:
            return  # nonsense
        self.asked.remove(event.source)
        if isinstance(event, ImageReady):
            self.there.add(event.source)
            self.ids[event.source] = event.id
        else:
            self.in_vain = run._state.jobs.images.who_waits(event.source)

    def check_heard(self, run: Run, alone: bool) -> None:
        """Check that images are on record, and that who waited for one that failed is over.

        `alone`: nothing else was told, that could have had them wait for something else before.
        """
        for source in self.there:
            known = run.ledger.images[source].id
            assert known == self.ids[source], f"{source} is {self.ids[source]}, recorded {known}"
        for node in self.in_vain if alone else ():
            assert not node.waits, f"{node.name} waits on for an image that cannot be had"

    def check_launch(self, job: Job) -> None:
        source = job.container.source if job.container is not None else None
        assert source is None or source in self.there, f"{job.name} starts before {source} is there"

    def nonsense(self) -> list[Event]:
        """Answers for images that nobody asked for, or that came before."""
        sources = [image.source for image in IMAGES]
        unasked = [source for source in sources if source and source not in self.asked]
        return [
            event
            for source in unasked
            for event in (
                PullBegun(source, "docker"),
                ImageReady(source, "nonsense", "", "docker", True),
                ImageFailed(source, "nobody asked"),
            )
        ]

    def forget(self, recorded: Ledger) -> None:
        """Begin anew with the next supervisor, which knows what is on record."""
        self.asked.clear()
        self.there.clear()
        self.ids = {source: known.id for source, known in recorded.images.items()}


def in_containers(jobs: Sequence[Job], rng: random.Random, share: float) -> tuple[Job, ...]:
    """The same jobs, some of them in containers."""
    return tuple(
        replace(job, container=rng.choice(IMAGES)) if rng.random() < share else job for job in jobs
    )
