"""Problems, and words that are harmless anywhere."""

from __future__ import annotations

import contextlib
import os
import re


class Problem(Exception):
    """The attempt cannot be started here; the text says why."""


def plain(text: str) -> str:
    """Return the text with `_` for characters that JSON, shells, paths or patterns interpret."""
    return re.sub(r"[^A-Za-z0-9._:/-]", "_", text)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gpulaunch: {text}\n".encode("utf-8", "replace"))
