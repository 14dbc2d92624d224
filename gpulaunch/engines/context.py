"""What all attempts of a run share, and which failures of a launch are tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from gpulaunch.base.loop import Loop
from gpulaunch.core.model import ContainerEngine, ImageSource
from gpulaunch.engines.environment import EnvironmentMaker
from gpulaunch.engines.protocol import Post
from gpulaunch.journal.rundir import RunDir

SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC})
"""Errors of a launch for lack of descriptors, memory or disk: it is tried again."""
SCARCITY_RETRY_DELAY = 1.0
"""Seconds until such a launch is tried again."""


class ImageHere(Struct, frozen=True):
    """An image that is here: the engine that runs it, and what that calls it: an id, or a file."""

    engine: ContainerEngine
    id: str


class RunContext(Struct):
    """What all attempts of the run share.

    `environments` makes the jobs' from the keepers' own, `base`. What happens to the run comes in
    through `loop`, and goes to the supervisor through `post`. `images`: those that are here.
    """

    run: RunDir
    run_id: str
    epoch: int
    environments: EnvironmentMaker
    loop: Loop
    post: Post
    force_uuid: bool = False
    images: dict[ImageSource, ImageHere] = field(default_factory=dict)
    warn: Callable[[str | None, str], None] = field(default=lambda job, text: None)

    @property
    def base(self) -> Mapping[str, str]:
        """The keepers' own environment."""
        return self.environments.base
