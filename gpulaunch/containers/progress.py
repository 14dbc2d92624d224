"""How far a pull is, by the lines that an engine's client prints without a terminal. Pure.

docker tells each layer's states by its id (`f89328afeb59: Download complete`); podman, and
apptainer before 1.4, name each layer when they begin with it, and never how many there are;
apptainer names the steps that it takes. None of them tells bytes where no terminal is.
"""

from __future__ import annotations

import re

_LAYER = re.compile(r"([0-9a-f]{12,64}): ([A-Z][A-Za-z ]+)")
_BLOB = re.compile(r"Copying blob (?:sha256:)?([0-9a-f]{12,64})")
_CONFIG = re.compile(r"Copying config ")
_STEP = re.compile(r"(?:INFO:\s+|\[INFO\] )(.+)")
_UNPACKED = ("Pull complete", "Already exists")
_DOWNLOADED = ("Download complete", "Extracting", *_UNPACKED)
PERIOD = 1.0
"""Seconds at least between two words on how far a pull is."""
_LONGEST_STEP = 80


class PullProgress:
    """What has been heard from one pull."""

    def __init__(self) -> None:
        self._layers: dict[str, str] = {}
        self._blobs: set[str] = set()

    def heard(self, line: str) -> str:
        """Take a line in; return how far the pull is if the line says so, or ""."""
        if layer := _LAYER.match(line):
            return self._layer(*layer.groups())
        if blob := _BLOB.match(line):
            self._blobs.add(blob.group(1)[:12])
            return f"layer {len(self._blobs)}"
        if _CONFIG.match(line):
            return "every layer is here, writing the image"
        step = _STEP.match(line)
        return _step(step.group(1)) if step else ""

    def _layer(self, layer: str, state: str) -> str:
        self._layers[layer] = state
        if state == "Pulling fs layer":  # they are announced one by one: how many is not known yet
            return ""
        states = list(self._layers.values())
        downloaded = sum(state in _DOWNLOADED for state in states)
        unpacked = sum(state in _UNPACKED for state in states)
        text = f"{downloaded} of {len(states)} layers"
        return f"{text}, {unpacked} unpacked" if unpacked else text


def _step(text: str) -> str:
    words = text.strip().rstrip(".").strip()[:_LONGEST_STEP]
    return words[:1].lower() + words[1:]


class ProgressPace:
    """Which words are worth saying: new ones, and at most one a PERIOD."""

    def __init__(self) -> None:
        self._said = ""
        self._at: float | None = None

    def lets(self, text: str, now: float) -> bool:
        """Tell whether the text is to be said at `now`, monotonic seconds; it counts as said."""
        early = self._at is not None and now - self._at < PERIOD
        if not text or early or text == self._said:
            return False
        self._said, self._at = text, now
        return True
