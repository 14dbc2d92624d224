"""Calls of one engine for one image: asking, pulling with tries, and telling how far it is.

The request and the answer are here as well. Tests hand in their own pauses.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from gpulaunch.containers import client, pull_failures
from gpulaunch.containers.progress import ProgressPace, PullProgress
from gpulaunch.containers.pull_failures import PullError
from gpulaunch.containers.registry_errors import trouble_of
from gpulaunch.core.model import ContainerEngine

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each further try, where the network has failed: a name server that restarts, a
registry that is overloaded. Engines try again themselves, within seconds."""


class PullRequest(Struct, frozen=True):
    """An image, and how it is to be had; `known`: its id, where this run had it before.

    `cache` is the directory for files that are made of images.
    """

    engine: ContainerEngine
    image: str
    pull: Literal["missing", "never", "always"]
    known: str
    cache: str


class ReadyImage(Struct, frozen=True):
    """An image that is here: what command lines name, and its digest where that is known.

    `pulled`: it was brought here just now. `file`: its content's digest is still to be read.
    """

    id: str
    digest: str = ""
    pulled: bool = False
    file: str = ""


class EngineCalls:
    """Runs clients for one image, and tells how far they are."""

    def __init__(
        self,
        request: PullRequest,
        progress: Callable[[str], object],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.request = request
        self._progress = progress
        self._pause = pause
        self._pace = ProgressPace()

    def needs_engine(self) -> None:
        """Raise PullError where the engine's program is not here."""
        if shutil.which(self.request.engine) is None:
            raise PullError(pull_failures.not_installed(self.request.engine))

    def tell(self, text: str) -> None:
        if self._pace.lets(text, time.monotonic()):
            self._progress(text)

    def ask(self, *arguments: str, seconds: float) -> client.ClientEnd:
        """Ask the engine something that it answers at once.

        Raises ClientSilentError, and PullError as `bring` does.
        """
        return self._run(arguments, client.nobody_hears, seconds)

    def bring(self, *arguments: str) -> client.ClientEnd:
        """Run what takes its time, telling how far it is. Raises PullError: it cannot be run."""
        progress = PullProgress()
        return self._run(arguments, lambda line: self.tell(progress.heard(line)), None)

    def _run(
        self, arguments: tuple[str, ...], heard: Callable[[str], object], seconds: float | None
    ) -> client.ClientEnd:
        engine = self.request.engine
        try:
            return client.run([engine, *arguments], heard, seconds)
        except OSError as error:  # no room for another process, or for its descriptors
            raise PullError(
                pull_failures.cannot_start(engine, error.strerror or str(error))
            ) from None

    def pull(self, image: str, *arguments: str) -> None:
        """Pull, again where the network failed. Raises PullError, or DiskFullError."""
        for pause in (*PAUSES, None):
            end = self.bring(*arguments)
            if not end.status:
                return
            if pause is None or trouble_of(end.words) != "network":
                break
            self._progress(f"the network failed: again in {pause:g} s")
            self._pause(pause)
        if trouble_of(end.words) == "space":
            raise DiskFullError
        raise PullError(self.why(image, end, tries=len(PAUSES) + 1))

    def why(self, image: str, end: client.ClientEnd, tries: int = 1) -> str:
        """Return the line for a client that failed on an image."""
        engine, machine = self.request.engine, platform.machine()
        return pull_failures.cannot_pull(engine, image, end.words, machine, tries)


class DiskFullError(Exception):
    """There was no room for the image."""
