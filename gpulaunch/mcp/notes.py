"""What is noted while a tool does its work: collected for its answer, printed nowhere."""

from __future__ import annotations

from gpulaunch.app.observer import Observer
from gpulaunch.digest.words import visible_lines
from gpulaunch.mcp.bounds import bounded


class NoteTaker(Observer):
    """Takes the notes and warnings of a call."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def note(self, text: str, urgent: bool = False) -> None:
        self.taken.append(text)

    def warn(self, text: str) -> None:
        self.taken.append(f"warning: {text}")

    @property
    def lines(self) -> list[str]:
        """The notes, of each its lines, and where there are too many how many more there are."""
        return bounded(line for text in self.taken for line in visible_lines(text).split("\n"))
