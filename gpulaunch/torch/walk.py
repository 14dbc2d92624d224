"""Every tensor in a module or in nested arguments, with the path that a person would type.

Looks, and changes nothing: no property is read that could compute, no iterator is advanced, no
lazy mapping's failure gets out. Each container is entered once, so cycles end.

pytree is no help here: a Hugging Face BatchEncoding is one leaf to it.
"""

from __future__ import annotations

import dataclasses
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

PARAMETER = "parameter"
BUFFER = "buffer"
ATTRIBUTE = "plain attribute, which .to() does not move"
UNLISTED = "of a module outside the module tree, which .to() does not move"
INPUT = "input"

_ROOT = "model"
_BASE_ATTRIBUTES = frozenset(vars(torch.nn.Module())) | {"_hf_hook"}
_SCALARS = frozenset(
    {type(None), str, bytes, bytearray, int, float, complex, bool, range, slice, torch.dtype,
     torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator}
)  # fmt: skip
_NEVER_ENTERED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    Iterator,
    torch.optim.Optimizer,
    torch.utils.data.Dataset,
    torch.utils.data.DataLoader,
)
# How many objects deep below a module's own attributes: a trainer that it refers to is not its own.
_OBJECTS_OF_A_MODULE = 1
_OBJECTS_OF_AN_INPUT = 16


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor, its path, and the innermost thing around it that has a `.to()` ("" : none)."""

    path: str
    tensor: torch.Tensor
    kind: str
    movable: str = ""


class Walk:
    """One walk over a module and its inputs: what has been entered is not entered again."""

    def __init__(self) -> None:
        # The objects themselves, not their ids alone: an id is used again once its object is gone.
        self._entered: dict[int, object] = {}

    def module(self, module: torch.nn.Module, path: str = _ROOT) -> Iterator[Named]:
        """Parameters and buffers of the whole tree, then what else its modules hold."""
        tree = list(self._tree(module, path))
        registered: set[int] = set()
        for where, part in tree:
            for named in _registered(part, where, path):
                registered.add(id(named.tensor))
                yield named
        for where, part in tree:
            held = ((f"{where}.{name}", value) for name, value in vars(part).items()
                    if name not in _BASE_ATTRIBUTES)  # fmt: skip
            for named in self._nested(held, ATTRIBUTE, _OBJECTS_OF_A_MODULE):
                if id(named.tensor) not in registered:
                    yield named

    def value(self, value: object, path: str) -> Iterator[Named]:
        """Return what a nested argument holds."""
        return self._nested([(path, value)], INPUT, _OBJECTS_OF_AN_INPUT)

    def _tree(self, module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
        waiting = [(path, module)]
        while waiting:
            where, part = waiting.pop()
            if not self._enter(part):
                continue
            yield where, part
            children = [(f"{where}.{name}", child) for name, child in part._modules.items()]
            waiting += [(at, child) for at, child in reversed(children) if child is not None]

    def _nested(
        self, held: Iterable[tuple[str, object]], kind: str, objects: int
    ) -> Iterator[Named]:
        waiting = [(path, value, "", objects) for path, value in _reverse(held)]
        while waiting:
            path, value, movable, objects = waiting.pop()
            if _is_a(value, torch.Tensor):
                yield Named(path, value, kind, movable)
            elif _is_a(value, torch.nn.Module):
                for named in self.module(value, path) if id(value) not in self._entered else ():
                    yield _as_held(named, kind)
            elif self._enter(value):
                inside, deeper = _children(value, path)
                below = objects - deeper
                if below < 0:  # too deep by this path; by another it may be reached
                    del self._entered[id(value)]
                    continue
                if hasattr(type(value), "to"):
                    movable = path
                waiting += [(at, child, movable, below) for at, child in _reverse(inside)]

    def _enter(self, thing: object) -> bool:
        """Tell whether a container is met for the first time. Nothing else is entered."""
        if _is_a(thing, _NEVER_ENTERED) or id(thing) in self._entered:
            return False
        self._entered[id(thing)] = thing
        return True


def _is_a(value: Any, kinds: Any) -> bool:
    """isinstance() asks an object for its class, and an unbound proxy's answer is an error."""
    try:
        return isinstance(value, kinds)
    except Exception:
        return False


def _reverse(held: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """Last first, as a stack wants them; without the many things that hold no tensor."""
    found = [(path, value) for path, value in held if type(value) not in _SCALARS]
    found.reverse()
    return found


def _as_held(named: Named, kind: str) -> Named:
    """Return a tensor as what holds it: `.to()` misses a module that stands in a plain list."""
    if kind == ATTRIBUTE and named.kind in (PARAMETER, BUFFER):
        return dataclasses.replace(named, kind=f"{named.kind} {UNLISTED}")
    return named


def _registered(part: torch.nn.Module, where: str, root: str) -> Iterator[Named]:
    if _moved_when_called(part):
        return
    for kind, held in ((PARAMETER, part._parameters), (BUFFER, part._buffers)):
        for name, tensor in held.items():
            if tensor is not None:
                yield Named(f"{where}.{name}", tensor, kind, root)


def _moved_when_called(part: torch.nn.Module) -> bool:
    """accelerate keeps such a module's weights elsewhere, and brings them for each call."""
    hook = getattr(part, "_hf_hook", None)
    return any(getattr(one, "offload", False) for one in (hook, *getattr(hook, "hooks", ())))


def _children(value: Any, path: str) -> tuple[list[tuple[str, object]], int]:
    """Return what a container holds; and 1 for an object of somebody's class, else 0."""
    try:
        if isinstance(value, PackedSequence):
            # batch_sizes must be on the CPU, whatever the data is on.
            return _attributes(value, path, ("data", "sorted_indices", "unsorted_indices")), 0
        if isinstance(value, Mapping):
            return [(f"{path}[{_key(key)}]", child) for key, child in value.items()], 0
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return _attributes(value, path, value._fields), 0
        if isinstance(value, (list, tuple, deque, set, frozenset)):
            return [(f"{path}[{n}]", child) for n, child in enumerate(value)
                    if type(child) not in _SCALARS], 0  # fmt: skip
        if dataclasses.is_dataclass(value):
            return _attributes(value, path, (field.name for field in dataclasses.fields(value))), 0
        return _attributes(value, path, _own_names(value)), 1
    except Exception:  # somebody's class that fails when looked at
        return [], 0


def _own_names(value: object) -> Iterator[str]:
    """Return what is stored in the object itself: no property, no class attribute."""
    slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    named = chain.from_iterable((slot,) if isinstance(slot, str) else slot for slot in slots)
    return chain(getattr(value, "__dict__", ()), (name for name in named if name[:2] != "__"))


def _attributes(value: object, path: str, names: Iterable[str]) -> list[tuple[str, object]]:
    return [(f"{path}.{name}", getattr(value, name, None)) for name in names]


def _key(key: object) -> str:
    shown = repr(key)
    return shown if len(shown) <= 60 else shown[:57] + "..."
