"""Pulls the images of jobs' containers, each in a process of its own, several at once.

    PullImage ─▶ gpulaunch.containers.pulling ─┬ pulling ──▶ PullBegun, once, and `pulls`
                                               ├ ready ────▶ ImageReady ─ digest ─▶ ImageDigest
                                               └ failed ───▶ ImageFailed, as for one that dies

From `ImageReady` on the run's context says which engine has the image, and what that calls it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import Struct

from gpulaunch.base.helper_process import Helper, command
from gpulaunch.containers.engines import InstalledEngines, NoEngineError
from gpulaunch.containers.pulling import PullRequest
from gpulaunch.core.events import ImageDigest, ImageFailed, ImageReady, PullImage
from gpulaunch.core.facts import PullBegun
from gpulaunch.core.model import ContainerEngine, ImageSource
from gpulaunch.engines.context import ImageHere, RunContext
from gpulaunch.engines.pool import cache_directory

PULLING = "gpulaunch.containers.pulling"
"""The module whose `main` pulls one image, and says how that goes."""


class _Pulling(Struct, frozen=True, tag_field="said", tag="pulling"):
    pass


class _Ready(Struct, frozen=True, tag_field="said", tag="ready"):
    id: str
    digest: str
    pulled: bool


class _Digest(Struct, frozen=True, tag_field="said", tag="digest"):
    digest: str


class _Failed(Struct, frozen=True, tag_field="said", tag="failed"):
    why: str


_Said: TypeAlias = _Pulling | _Ready | _Digest | _Failed


_DECODER: msgspec.json.Decoder[_Said] = msgspec.json.Decoder(_Said)


class Images:
    """Owns the processes that pull, each by an engine that fits its image.

        PullImage ─▶ gpulaunch.containers.pulling ─┬ pulling ──▶ PullBegun, once, and `pulls`
                                                   ├ ready ────▶ ImageReady ─ digest ─▶ ImageDigest
                                                   └ failed ───▶ ImageFailed, as for one that dies

    From `ImageReady` on the run's context says which engine has the image, and what that calls it.
    `cluster`: jobs run on a cluster's nodes. `module`: what each process runs.
    """

    def __init__(self, context: RunContext, cluster: bool, module: str = PULLING) -> None:
        self._context = context
        self._cluster = cluster
        self._module = module
        self._helpers: dict[ImageSource, Helper] = {}
        # When the pull began, of those that are not answered yet; None: it has not begun.
        self._begun: dict[ImageSource, float | None] = {}
        self._installed = InstalledEngines(context.base)

    def pull(self, instruction: PullImage) -> None:
        """Begin to see to it that the image is there. Answered through `post`; never blocks."""
        source = instruction.source
        try:
            engine = self._installed.engine_for(source, self._cluster)
        except NoEngineError as error:
            self._begun[source] = None
            self._answer(ImageFailed(source, str(error)))
            return
        if (before := self._helpers.get(source)) is not None:
            before.close()  # it has said that it failed, and is on its way out
        helper = self._helpers[source] = Helper(
            self._context.loop, partial(self._said, source, engine), partial(self._ended, source)
        )
        self._begun[source] = None
        try:
            helper.start(self._command(instruction, engine), self._context.base)
        except OSError as error:  # processes, memory or descriptors are scarce
            self._answer(ImageFailed(source, f"no process to pull it: {error.strerror}"))

    def pulls(self) -> dict[ImageSource, float]:
        """Return the images that are being pulled, each with the seconds since that began."""
        now = time.monotonic()
        return {source: now - at for source, at in self._begun.items() if at is not None}

    def close(self) -> None:
        """End all pulls."""
        for helper in self._helpers.values():
            helper.close()
        self._helpers.clear()

    def _command(self, instruction: PullImage, engine: ContainerEngine) -> list[str]:
        source = instruction.source
        cache = os.path.join(cache_directory(self._context.base), "images")
        asked = PullRequest(engine, source.image, source.pull, instruction.known, cache)
        return command(self._module, msgspec.json.encode(asked).decode(), title="pulling")

    def _said(self, source: ImageSource, engine: ContainerEngine, line: bytes) -> None:
        with suppress(
            msgspec.DecodeError, RecursionError
        ):  # a program's own words, which lead to no answer
            match _DECODER.decode(line):
                case _Digest(digest):
                    self._context.post(ImageDigest(source, digest))
                case _ if source not in self._begun:
                    pass  # it was answered for
                case _Pulling():
                    if self._begun[source] is None:
                        self._context.post(PullBegun(source, engine))
                        self._begun[source] = time.monotonic()
                case _Ready(id, digest, pulled):
                    self._context.images[source] = ImageHere(engine, id)
                    self._answer(ImageReady(source, id, digest, engine, pulled))
                case _Failed(why):
                    self._answer(ImageFailed(source, why))

    def _ended(self, source: ImageSource, status: int | None) -> None:
        """Forget a helper that is gone; answer for it where it did not."""
        del self._helpers[source]
        if source not in self._begun:
            return
        if status is None:
            how = "does not end"
        elif status < 0:
            how = f"was killed by signal {-status}"
        else:
            how = f"ended with status {status}"
        self._answer(ImageFailed(source, f"what was to pull it {how}, and did not say why"))

    def _answer(self, event: ImageReady | ImageFailed) -> None:
        del self._begun[event.source]
        self._context.post(event)
