"""Where tensors came from: the operation, line and module that made each, while somebody watches.

Keeps no tensor, no storage's memory and no module alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_MODULE_CALL = torch.nn.Module._call_impl.__code__
# How many storages are remembered before those that are gone are forgotten.
_SWEEP = 20_000


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of Python."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


def lines(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from here outwards that are neither torch's own nor this package's."""
    while frame is not None:
        if not is_internal(frame.f_code):
            yield frame
        frame = frame.f_back


def is_internal(code: CodeType) -> bool:
    # "<eval_with_key>" and "<frozen ...>": generated, no line that a person could open.
    return code.co_filename.startswith((_TORCH, _HERE, "<eval_with_key>", "<frozen"))


def is_layer(code: CodeType) -> bool:
    """Tell whether code is torch.nn's: its frames hold the tensors that it checks."""
    return code.co_filename.startswith(f"{_TORCH}nn{os.sep}")


def is_installed(code: CodeType) -> bool:
    """Tell whether code is an installed library's, not the user's own."""
    return f"{os.sep}site-packages{os.sep}" in code.co_filename


def place(frame: FrameType) -> SourceLine:
    return _place(frame.f_code, frame.f_lineno)


def _place(code: CodeType, line: int) -> SourceLine:
    return SourceLine(code.co_filename, line, getattr(code, "co_qualname", code.co_name))


def calls(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that call modules, innermost first."""
    found = []
    while frame is not None:
        if frame.f_code is _MODULE_CALL:
            found.append(frame)
        frame = frame.f_back
    return found


@dataclass(frozen=True, slots=True)
class TensorOrigin:
    operation: str
    place: SourceLine | None
    module: weakref.ref[torch.nn.Module] | None


class Origins:
    """What made each storage that has appeared since the watch began.

    By storage, not by tensor: autograd hands out another tensor than the one that was made. A weak
    reference to a storage keeps its address from being used again, so no entry speaks of another.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[StorageWeakRef, Any, CodeType | None, int, Any]] = {}
        self._sweep_at = _SWEEP

    def note(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Remember what `func` made; neither a view of what was there before, nor an argument."""
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                key = storage_of(tensor)
                if key is not None and key not in self._made and not _among(key, args):
                    self._remember(key, tensor, func)

    def _remember(self, key: int, tensor: torch.Tensor, func: Any) -> None:
        frame: FrameType | None = sys._getframe(2)
        code, line, module = None, 0, None
        while frame is not None:
            if code is None and not is_internal(frame.f_code):
                code, line = frame.f_code, frame.f_lineno
            if frame.f_code is _MODULE_CALL:
                module = weakref.ref(frame.f_locals["self"])
                break
            frame = frame.f_back
        self._made[key] = (StorageWeakRef(tensor.untyped_storage()), func, code, line, module)
        if len(self._made) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        # A list first: autograd's threads may add to it meanwhile.
        entries = list(self._made.items())
        self._made = {key: entry for key, entry in entries if not entry[0].expired()}
        self._sweep_at = max(_SWEEP, 2 * len(self._made))

    def of(self, tensor: torch.Tensor) -> TensorOrigin | None:
        """None for what was there before."""
        key = storage_of(tensor)
        if key is None or key not in self._made:
            return None
        _, func, code, line, module = self._made[key]
        return TensorOrigin(str(func), None if code is None else _place(code, line), module)


def _among(key: int, args: Sequence[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) and storage_of(one) == key for one in args)


def storage_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage record; None for one without (sparse, nested)."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None
