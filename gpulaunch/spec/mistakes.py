"""Everything that is wrong with a job file, collected, and shown in one go in the file's order."""

from __future__ import annotations

from gpulaunch.errors import JobFileError
from gpulaunch.spec.source import Source
from gpulaunch.spec.tree import Node, Path, place

SHOWN = 50
_ENOUGH = 1000


class Bad(ValueError):
    """A value that is not what its field wants; `path` leads on from the field to the culprit."""

    def __init__(self, message: str, path: Path = (), key: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.key = key


class Mistakes:
    """Collects up to a thousand, then gives up; shows fifty."""

    def __init__(self, source: Source, root: Node) -> None:
        self.source = source
        self.root = root
        self._kept: list[tuple[int, str]] = []

    def add(self, path: Path, message: str, *, key: bool = False) -> None:
        """`path` leads from the file's top; `key`: point at the last step's key, not its value."""
        self.add_at(self.root.find(path, key), f"{spell(path)}{message}")

    def add_at(self, at: int, message: str) -> None:
        self._kept.append((at, message))
        if self.count >= _ENOUGH:
            self.raise_if_any()

    @property
    def count(self) -> int:
        return len(self._kept)

    def lines(self) -> list[str]:
        """One block per mistake, in the order of the file."""
        found = sorted(set(self._kept))
        blocks = [self.source.point(*place(at), message) for at, message in found[:SHOWN]]
        if len(found) > SHOWN:
            least = "at least " if self.count >= _ENOUGH else ""
            blocks.append(f"{self.source.name}: and {least}{len(found) - SHOWN:,} more mistakes")
        return blocks

    def raise_if_any(self) -> None:
        if self.count:
            raise JobFileError(self.lines())


def spell(path: Path) -> str:
    """`jobs[3].env.A: ` for ("jobs", 3, "env", "A"); nothing for the file itself."""
    out = ""
    for step in path:
        if isinstance(step, int):
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return f"{out}: " if out else ""
