"""Images of docker and podman: looked for, pulled, loaded from archives.

A pull has no time limit: an image may be 30 GB, and docker's client says nothing while one layer
comes. That the engine answers is seen before, by the question whether the image is here.
"""

from __future__ import annotations

import json
import os
from typing import Any

from gpulaunch.containers import image_names, pull_failures
from gpulaunch.containers.client import ClientSilentError
from gpulaunch.containers.engine_calls import DiskFullError, EngineCalls, ReadyImage
from gpulaunch.containers.pull_failures import PullError
from gpulaunch.containers.registry_errors import is_not_here, trouble_of

ANSWER_SECONDS = 60.0
"""Seconds for `image inspect`, which reads a few files. On a busy machine with thousands of images
it takes seconds; podman waits for its lock while another podman unpacks a layer."""


def have(calls: EngineCalls, answer_seconds: float = ANSWER_SECONDS) -> ReadyImage:
    """Return the image, pulled or loaded where it has to be. Raises PullError."""
    images = _Images(calls, answer_seconds)
    request = calls.request
    calls.needs_engine()
    if request.known and (here := images.find(request.known)) is not None:
        return here
    if image_names.is_file(request.image):
        return images.load(request.image)
    return images.by_name(image_names.bare(request.image))


class _Images:
    def __init__(self, calls: EngineCalls, answer_seconds: float) -> None:
        self._calls = calls
        self._engine = calls.request.engine
        self._seconds = answer_seconds

    def by_name(self, name: str) -> ReadyImage:
        policy = self._calls.request.pull
        as_pulled = image_names.pulled_as(self._engine, self._calls.request.image)
        here = self.find(name)  # for `always` too: a pull does not tell a silent engine
        if here is not None and policy != "always":
            return here
        if policy == "never":
            missing = f"{self._engine} pull {as_pulled}"
            raise PullError(pull_failures.never(self._engine, name, missing))
        try:
            self._calls.pull(name, "pull", as_pulled)
        except DiskFullError:
            raise PullError(pull_failures.disk_full(self._engine, name, self._root())) from None
        return self._brought(name)

    def find(self, name: str) -> ReadyImage | None:
        """Return the image if the engine has it. Raises PullError where that cannot be told."""
        try:
            end = self._calls.ask("image", "inspect", name, seconds=self._seconds)
        except ClientSilentError:
            raise PullError(pull_failures.silent(self._engine, self._seconds)) from None
        if end.status and is_not_here(end.err):
            return None
        if end.status or not (found := _first(end.out)):
            raise PullError(self._calls.why(name, end))
        own = image_names.bare(self._calls.request.image)
        digest = image_names.digest_among(found.get("RepoDigests") or [], own)
        return ReadyImage(_whole_id(found["Id"]), digest)

    def load(self, path: str) -> ReadyImage:
        """Load an archive; where its image is here already, that changes nothing."""
        if not os.path.exists(path):
            raise PullError(f"there is no file {path}")
        end = self._calls.bring("load", "-i", path)
        if end.status and trouble_of(end.words) == "space":
            raise PullError(pull_failures.disk_full(self._engine, path, self._root()))
        names = image_names.loaded(end.out)
        if end.status or not names:
            raise PullError(pull_failures.cannot_load(self._engine, path, end.words))
        images = {image.id: image for image in map(self._brought, names)}
        if len(images) > 1:
            raise PullError(pull_failures.several_images(self._engine, path, names))
        return next(iter(images.values()))

    def _brought(self, name: str) -> ReadyImage:
        here = self.find(name)
        if here is None:
            raise PullError(f"{self._engine} has brought {name}, and does not have it: try again")
        return ReadyImage(here.id, here.digest, pulled=True)

    def _root(self) -> str:
        """Return the directory that the engine keeps images in, or ""."""
        key = "{{.DockerRootDir}}" if self._engine == "docker" else "{{.Store.GraphRoot}}"
        try:
            return self._calls.ask("info", "--format", key, seconds=self._seconds).out.strip()
        except ClientSilentError:
            return ""


def _first(text: str) -> dict[str, Any]:
    """Return the first of the images in a list of JSON; empty where there is none."""
    try:
        found = json.loads(text)
        return dict(found[0]) if "Id" in found[0] else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def _whole_id(identifier: str) -> str:
    """Return an id with its kind, which docker tells and podman leaves out, and both take."""
    return identifier if ":" in identifier else f"sha256:{identifier}"
