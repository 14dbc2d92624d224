"""What the helpers raise. Each text is complete: what was expected, found, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Odd:
    """A tensor on another device than the rest.

    `paths` are all the names it goes by (a tied weight has several), `mend` what to call or write.
    """

    paths: tuple[str, ...]
    kind: str
    shape: tuple[int | str, ...] | None
    dtype: str
    device: str
    mend: str

    def __str__(self) -> str:
        name = self.paths[0] + "".join(f" (also {other})" for other in self.paths[1:3])
        shape = "shape not known yet" if self.shape is None else f"{list(self.shape)}"
        return f"{name}: {self.kind}, {self.dtype} {shape}, on {self.device}"


class DeviceMismatchError(RuntimeError):
    """Tensors that meet, or would meet, are on several devices. `odd` has each of them."""

    def __init__(self, message: str, odd: Sequence[Odd] = ()) -> None:
        super().__init__(message)
        self.odd = tuple(odd)


class ExportedProgramError(RuntimeError):
    """The file is no program that can be loaded onto that device; its text says what to do."""
