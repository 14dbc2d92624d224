"""Devices as values, the report's search with what torch can tell of tensors, and the errors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset

from gpulaunch.diagnose.explain.report.search import FrameSearch
from gpulaunch.diagnose.explain.report.tensors import NamedTensor, Torch
from gpulaunch.diagnose.explain.report.words import report

_CPU_LIKE = ("cpu", "meta")
_EVERYTHING = 10**12
_NEVER_OPENED = (torch.optim.Optimizer, DataLoader, Dataset, torch.Generator)
# The role of what an object holds that a module holds: it is the module's own, what lies deeper is
# not (a trainer's data, say).
_DEEP = "deep"


def normal(device: torch.device | str | int) -> torch.device:
    """Return `device` with its index; cpu and meta have none.

    Raises RuntimeError where it names no device.
    """
    given = torch.device(device)
    if given.type in _CPU_LIKE:
        return torch.device(given.type)
    if given.index is not None:
        return given
    # "cuda" means the current card; asking for that must not start CUDA.
    begun = given.type == "cuda" and torch.cuda.is_initialized()
    return torch.device(given.type, int(torch.cuda.current_device()) if begun else 0)


def is_card(device: torch.device | str) -> bool:
    """Return True if a device is an accelerator: neither the CPU nor without data."""
    return not str(device).startswith(_CPU_LIKE)


def is_other_card(device: torch.device | str, target: torch.device) -> bool:
    """Return True if a device is a card, and not `target`."""
    return is_card(device) and normal(device) != target


def may_stay(tensor: torch.Tensor) -> bool:
    """Return True if torch reads a tensor as a number: it is on the CPU, without dimensions."""
    return tensor.device.type == "cpu" and not tensor.is_nested and tensor.dim() == 0


class TorchStorages(Torch):
    """torch's classes; tells tensors apart by their memory, so that a view has a name as well."""

    def key(self, tensor: Any) -> int:
        return storage_of(tensor) or id(tensor)


def storage_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage record; None for one without (sparse, nested)."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def tensors_in(held: Iterable[tuple[str, Any]]) -> list[NamedTensor]:
    """Return every tensor that modules, nested arguments and other objects hold, each once."""
    search = _WholeSearch(Torch(), math.inf, _EVERYTHING)
    for name, value in held:
        search.at([(name, value)])
    return search.tensors


class _WholeSearch(FrameSearch):
    """The search without its bounds, since what it leaves out would pass for right."""

    depth = entries = _EVERYTHING

    def sort(self, kind: type) -> str:
        return "stranger" if issubclass(kind, _NEVER_OPENED) else super().sort(kind)

    def named(self, obj: Any, path: str, sort: str) -> None:
        """Names of devices are not looked for."""

    def one(self, obj: Any, path: str, role: str, depth: int, owner: Any, where: str) -> None:
        sort = self.sort(type(obj))
        if sort == "object" and role in ("attribute", _DEEP):
            if role == _DEEP:
                return
            role = _DEEP
        elif role == _DEEP and sort in ("tensor", "module"):
            role = "attribute"
        if role == "plain" and sort not in ("tensor", "module") and hasattr(type(obj), "to"):
            where = path  # an argument is moved by the innermost thing that can be
        super().one(obj, path, role, depth, owner, where)

    def open(self, obj: Any, path: str, sort: str) -> Iterator[tuple[str, Any]]:
        for name, value in super().open(obj, path, sort):
            # The sizes are on the CPU, whatever the data is on.
            if not (isinstance(obj, PackedSequence) and name.endswith(".batch_sizes")):
                yield name, value

    def group(self, obj: Any, name: str) -> list[tuple[str, Any]]:
        return list(getattr(obj, name).items())  # a scripted module has no dictionaries

    def open_module(self, obj: Any, path: str, role: str, depth: int) -> None:
        """Parameters of the whole tree come first: a list of them is no attribute to move."""
        tree = [(path, obj)]
        for at, part in tree:  # grows
            self.registered(part, at, role, depth)
            for name, child in self.children(part, at):
                if child is not None and id(child) not in self.met:
                    self.met.add(id(child))
                    tree.append((name, child))
        for at, part in tree:
            self.unregistered(part, at, depth)


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────


class DeviceMismatchError(RuntimeError):
    """Tensors that meet, or would meet, are on several devices. `odd` has those to move."""

    def __init__(self, message: str, odd: Iterable[NamedTensor] = ()) -> None:
        super().__init__(message)
        # Without its module: an error that is kept shall not keep a model in a card's memory.
        self.odd = tuple(tensor._replace(owner=None) for tensor in odd)


class ExportedProgramError(RuntimeError):
    """The file is no program that can be loaded onto that device; its text says what to do."""


def explain(error: BaseException | None = None) -> str:
    """Explain a device error in words; '' for an error of another kind.

    Names the tensors in the traceback's frames with their devices, the odd one, the line to change.
    The report is made by `gpulaunch.diagnose.explain`, which also works where gpulaunch is not
    installed.

    `error` is the one being handled where it is left out, else the last one that an interactive
    interpreter showed. Raises ValueError where there is neither.
    """
    if error is None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None:
        raise ValueError("explain() wants an error: call it inside `except`, or pass the error")
    if isinstance(error, (DeviceMismatchError, ExportedProgramError)):
        return str(error)
    return report(type(error), error, error.__traceback__)
