"""STUB: the lead's engine takes this file's place; here are the names that the session uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulaunch.core.events import Instruction
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.attempts import Context
from gpulaunch.engines.protocol import Post
from gpulaunch.loop import Loop


@dataclass(frozen=True, slots=True)
class Settings:
    """`words` go to every sbatch."""

    words: tuple[str, ...] = ()


class SlurmEngine:
    def __init__(self, context: Context, settings: Settings, loop: Loop, post: Post) -> None:
        raise NotImplementedError("a stub")

    def carry_out(self, instruction: Instruction) -> None: ...

    def adopt(self, attempts: Sequence[AttemptId]) -> None: ...

    def why(self, attempt: AttemptId) -> str:
        return ""

    def close(self) -> None: ...
