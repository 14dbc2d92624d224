"""A mismatch told in full: the operation, its module and line, each tensor's name and origin.

Reads frames, modules and origins when something has gone wrong, and only then.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType

import torch

from gpulaunch.torch.devices import dtype_of, is_card, may_stay, shape_of
from gpulaunch.torch.errors import DeviceMismatchError, Odd
from gpulaunch.torch.names import Names
from gpulaunch.torch.origins import Origins, is_installed, lines, place
from gpulaunch.torch.walk import ATTRIBUTE, BUFFER, INPUT, PARAMETER

_MADE_FROM_NOTHING = (
    "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
    "randperm", "scalar_tensor", "tril_indices", "triu_indices", "zeros", "lift_fresh",
)  # fmt: skip

Tensors = Sequence[tuple[str, torch.Tensor]]


def told(
    what: str, tensors: Tensors, frame: FrameType | None, origins: Origins, torch_says: str
) -> DeviceMismatchError:
    """Return the error to raise. `frame` is the operation's innermost, torch's or the user's."""
    said = "  torch says: " + torch_says.strip().split("\n")[0]
    try:
        lines, odd = _in_full(tensors, frame, origins)
    except Exception as error:  # somebody's class that fails when looked at; theirs must get out
        lines = [f"  {name}: on {tensor.device}" for name, tensor in tensors]
        lines.append(f"  (no more is known: {type(error).__name__} on looking closer)")
        odd = []
    head = f"first operation that mixes devices: {what}"
    return DeviceMismatchError("\n".join([head, *lines, said]), odd)


def _in_full(
    tensors: Tensors, frame: FrameType | None, origins: Origins
) -> tuple[list[str], list[Odd]]:
    names = Names(frame)
    usual = _usual(tensors)
    each = [
        _OperationTensor(argument, tensor, names, origins, usual) for argument, tensor in tensors
    ]
    text = [f"  in module {names.module(names.called[0])}"] if names.called else []
    text += _where(frame)
    text += [f"  {one}" for one in each]
    text += [f"  -> {one.mend}" for one in each if one.mend]
    return text, [one.odd() for one in each if one.mend]


def _usual(tensors: Tensors) -> torch.device:
    """Return where tensors should be: the card with most of them by size, else the CPU."""
    sizes: Counter[torch.device] = Counter()
    for _, tensor in tensors:
        sizes[tensor.device] += 1 + tensor.numel() * tensor.element_size()
    ranked = [device for device, _ in sizes.most_common() if device.type != "meta"]
    return next(filter(is_card, ranked), ranked[0] if ranked else torch.device("cpu"))


def _where(frame: FrameType | None) -> Iterator[str]:
    """Yield the innermost line outside torch, and the user's own where that one is a library's."""
    first = True
    for outer in lines(frame):
        own = not is_installed(outer.f_code)
        if first or own:
            at = place(outer)
            source = linecache.getline(at.file, at.line).strip()
            yield f"  {'at' if first else 'called from'} {at}" + (f": {source}" if source else "")
        if own:
            return
        first = False
    if first:
        yield "  in the backward pass, on a thread of autograd's own"


class _OperationTensor:
    """One tensor of the operation."""

    def __init__(
        self,
        argument: str,
        tensor: torch.Tensor,
        names: Names,
        origins: Origins,
        usual: torch.device,
    ) -> None:
        self._argument = argument
        self._tensor = tensor
        self._names = names.tensor(tensor)
        self._origin = origins.of(tensor)
        module = self._origin.module() if self._origin and self._origin.module else None
        self._maker = names.module(module) if module is not None else ""
        self.mend = ""
        if tensor.device != usual and not may_stay(tensor):
            self.mend = self._mend(usual)

    def __str__(self) -> str:
        shape = shape_of(self._tensor)
        shown = "" if shape is None else f" {list(shape)}"
        what = f"{dtype_of(self._tensor)}{shown} on {self._tensor.device}"
        return f"{self._argument}: {what}: {self._story()}"

    def odd(self) -> Odd:
        return Odd(
            paths=tuple(named.path for named in self._names) or (self._argument,),
            kind=self._story(),
            shape=shape_of(self._tensor),
            dtype=dtype_of(self._tensor),
            device=str(self._tensor.device),
            mend=self.mend,
        )

    def _story(self) -> str:
        told = [
            f"{named.path}{named.kind.removeprefix(INPUT)}"
            if named.kind.startswith(INPUT)
            else f"{named.kind.split(',')[0]} {named.path}"
            for named in self._names
        ]
        if self._origin is not None:
            made = f"made by {self._origin.operation}"
            made += f" at {self._origin.place}" if self._origin.place else ""
            told.append(made + (f" (module {self._maker})" if self._maker else ""))
        elif not told or self._names[-1].kind.startswith(INPUT):
            told.append("made before first_mixed_device() began, or where it cannot see")
        return "; ".join(told)

    def _mend(self, usual: torch.device) -> str:
        """Return the line to write."""
        kind = self._names[-1].kind if self._names else ""
        name = self._names[-1].path if self._names else self._argument
        if self._tensor.device.type == "meta":
            what = "load the weights before the call"
            if not kind.startswith((PARAMETER, BUFFER)):
                what = f'make it with device="{usual}"'
            return f"{name} is a meta tensor, it has no data: {what}"
        if kind.startswith(ATTRIBUTE):
            short = name.rsplit(".", 1)[-1]
            return (
                f"{name} is a plain attribute, which .to() does not move: in its class, "
                f'self.register_buffer("{short}", ..., persistent=False)'
            )
        if kind.startswith((PARAMETER, BUFFER)):
            root = name.split(".", 1)[0]
            return f'{root}.to("{usual}") before the call; or move what meets {name}'
        if self._origin and self._origin.place and _from_nothing(self._origin.operation):
            return (
                f'{self._origin.place}: make it with device="{usual}", better with the device '
                "of what it meets"
            )
        return f'{name} = {name}.to("{usual}")' if self._names else f'{name}.to("{usual}")'


def _from_nothing(operation: str) -> bool:
    return operation.removeprefix("aten.").split(".")[0] in _MADE_FROM_NOTHING
