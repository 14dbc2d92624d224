"""What a person would call a tensor or a module, from the frames of the moment.

A module is named from the variable that holds it (`model.layers.3.attn`), a tensor as a module's
parameter, buffer or attribute, else as a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from types import FrameType
from typing import Any

import torch

from gpulaunch.torch.origins import calls, is_installed, lines, place, storage_of
from gpulaunch.torch.walk import INPUT, Named, Walk

_FRAMES = 40
_VALUES = 2_000  # of a frame's variables, however nested


class Names:
    """Reads the frames' variables; make one when something has gone wrong, and drop it then."""

    def __init__(self, frame: FrameType | None) -> None:
        self._frames = list(islice(lines(frame), _FRAMES))
        called = calls(frame)
        self.called: list[torch.nn.Module] = [one.f_locals["self"] for one in called]
        # Who called the outermost module has the name that a person gave it.
        self._outside = list(islice(lines(called[-1] if called else frame), _FRAMES))

    def module(self, module: torch.nn.Module) -> str:
        for name, root in self._roots:
            for path, part in root.named_modules():
                if part is module:
                    return f"{name}.{path}" if path else name
        return type(module).__name__

    def tensor(self, tensor: torch.Tensor) -> list[Named]:
        """Return a tensor's names, or those of the tensor whose memory it is a view of.

        As a module's own, else as a variable, here and in the outermost frame that has it.
        """
        found = [named for named in self._registered if _is(named.tensor, tensor)]
        if found:
            return found[:1]
        held = (_variable(frame, tensor) for frame in self._frames)
        variables = [named for named in held if named is not None]
        return variables[:1] + variables[-1:] if len(variables) > 1 else variables

    @cached_property
    def _registered(self) -> list[Named]:
        """Return the tensors of the modules being called, and of what holds them."""
        walk = Walk()
        held = [root for root in self._roots if any(self._holds(root[1], m) for m in self.called)]
        return [named for name, root in held for named in walk.module(root, name)]

    def _holds(self, root: torch.nn.Module, module: torch.nn.Module) -> bool:
        return any(part is module for part in root.modules())

    @cached_property
    def _roots(self) -> list[tuple[str, torch.nn.Module]]:
        """Variables that hold modules, the outermost frame's first; then those being called."""
        found: list[tuple[str, torch.nn.Module]] = []
        for frame in reversed(self._outside):
            held = dict(frame.f_locals)
            found += _modules_among(held, "")
            this = held.get("self")
            if not isinstance(this, torch.nn.Module) and hasattr(this, "__dict__"):
                found += _modules_among(vars(this), "self.")
        return found + [(type(module).__name__, module) for module in reversed(self.called)]


def _modules_among(held: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, value in held.items():
        if isinstance(value, torch.nn.Module) and name != "self":
            yield prefix + name, value


def _variable(frame: FrameType, tensor: torch.Tensor) -> Named | None:
    """Return what a frame calls a tensor: a variable of its own first, then what is inside one."""
    held = {name: value for name, value in dict(frame.f_locals).items() if name[:2] != "__"}
    for name, value in held.items():
        if isinstance(value, torch.Tensor) and _is(value, tensor):
            return Named(name, value, f"{INPUT} in {place(frame)}")
    if is_installed(frame.f_code):
        return None  # a library's variables are many, and no name that a person knows
    walk = Walk()
    nested = (walk.value(value, name) for name, value in held.items()
              if not isinstance(value, (torch.Tensor, torch.nn.Module)))  # fmt: skip
    for named in islice(chain.from_iterable(nested), _VALUES):
        if _is(named.tensor, tensor):
            return replace(named, kind=f"{INPUT} in {place(frame)}")
    return None


def variables(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a line could have passed on: the frame's, its own module's."""
    for name, value in dict(frame.f_locals).items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif name == "self" and isinstance(value, torch.nn.Module):
            held = {**value._parameters, **value._buffers, **vars(value)}
            for inner, one in held.items():
                if isinstance(one, torch.Tensor):
                    yield f"self.{inner}", one


def _is(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    key = storage_of(one)
    return key is not None and key == storage_of(other)
