"""Eight pretend cards: where tensors are is pretended, their numbers are computed on the CPU.

A tensor "on cuda:1" has that device as torch itself keeps it. What must not meet is refused in
torch's words, as of the torch that is installed; what may, is computed. Which cards a process sees
follows from CUDA_VISIBLE_DEVICES by torch's own parser. There is no memory, no speed, no gradient.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CARDS = 8
# Operations that take tensors of several devices, by design.
JOINING = frozenset({"copy_", "_to_copy", "to", "lift_fresh", "_local_scalar_dense", "set_"})
# Kernels of CUDA that are called otherwise than the operation, with their arguments' names.
KERNELS = {"embedding": ("_index_select", {"weight": "self", "indices": "index"})}
SAME = "Expected all tensors to be on the same device, but"

_current = [0]


# ── Which cards there are ───────────────────────────────────────────────────────────────────────


def visible() -> int:
    """How many cards this process sees."""
    there = CARDS
    own = os.environ.get("GPULAUNCH_GPU_INDEX", "")
    if own and os.statvfs("/dev").f_flag & os.ST_RDONLY:
        there = own.count(",") + 1  # isolation: strict. Of other cards there is no node in /dev.
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if mask.startswith("SIM-"):  # what stands for UUIDs under `gpulaunch --simulate`
        return mask.count(",") + 1
    # CUDA takes an index that is not there for the end of the list.
    return len(list(takewhile(lambda index: index < there, torch.cuda._parse_visible_devices())))


def known(device: Any) -> torch.device:
    """The device with its index; an error, as CUDA's, for a card that this process does not see."""
    wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if wanted.type != "cuda":
        return wanted
    index = _current[0] if wanted.index is None else wanted.index
    if index >= visible():
        kind = getattr(torch, "AcceleratorError", RuntimeError)
        raise kind("CUDA error: invalid device ordinal")
    return torch.device("cuda", index)


def set_device(device: Any) -> None:
    _current[0] = known(device).index


# ── Tensors and operations ──────────────────────────────────────────────────────────────────────


class OnCard(torch.Tensor):
    """A tensor that is on a card for all who ask; `numbers` is a tensor of the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, device: torch.device) -> OnCard:
        made = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), dtype=numbers.dtype, device=device
        )
        made.numbers = numbers
        return made

    def __repr__(self) -> str:
        return f"{self.numbers!r}"[:-1] + f", device='{self.device}')"

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __getitem__(self, index: Any) -> OnCard:
        # torch's own makes the card the current one first, by asking the driver.
        return OnCard(self.numbers[tree_map(under, index)], self.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.numbers[tree_map(under, index)] = under(value)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


class Cards(TorchDispatchMode):
    """Under every operation, those that make tensors of nothing included."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if is_tracing() or any(type(tensor).__name__ == "FakeTensor" for tensor in tensors):
        return func(*args, **kwargs)  # torch.export, which has fakes of its own
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with torch._pretend_cards:  # inference mode has not taken it apart
            return func.decompose(*args, **kwargs)
    name = func._schema.name.partition("::")[2]
    device = tensors[0].device if tensors else None
    if name not in JOINING:
        device = meeting(func, name, args, kwargs) or device
    if kwargs.get("device") is not None:
        device = known(kwargs["device"])
        kwargs = {**kwargs, "device": "cpu" if device.type == "cuda" else device}
    out = func(*tree_map(under, args), **tree_map(under, kwargs))
    if device is None or device.type != "cuda":
        return out
    given = {id(tensor.numbers): tensor for tensor in tensors if isinstance(tensor, OnCard)}

    def over(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return given[id(leaf)] if id(leaf) in given else OnCard(leaf, device)

    return tree_map(over, out)


def is_tracing() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def under(leaf: Any) -> Any:
    return leaf.numbers if isinstance(leaf, OnCard) else leaf


# ── What may meet ───────────────────────────────────────────────────────────────────────────────


def meeting(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.device | None:
    """The one device of an operation's tensors, None where it has none; else torch's error."""
    found = None
    names = [argument.name for argument in func._schema.arguments]
    for argument, value in [*zip(names, args, strict=False), *kwargs.items()]:
        for tensor in tree_leaves(value):
            if not isinstance(tensor, torch.Tensor) or may_stay(tensor, name, argument):
                continue
            if found is not None and tensor.device != found:
                raise RuntimeError(words(func, name, argument, found, tensor.device))
            found = tensor.device
    return found


def may_stay(tensor: torch.Tensor, name: str, argument: str) -> bool:
    """Numbers of the CPU go with any device; so do its indices in `x[indices]`."""
    index = name.startswith("index") and argument == "indices"
    return tensor.device.type == "cpu" and (tensor.dim() == 0 or index)


def words(func: Any, name: str, argument: str, found: Any, other: Any) -> str:
    """aten/src/ATen/TensorIterator.cpp and core/adaption.cpp; the latter changed in torch 2.8."""
    both = f"found at least two devices, {found} and {other}!"
    if torch.Tag.pointwise in func.tags:
        return f"{SAME} {both}"
    kernel, renamed = KERNELS.get(name, (name, {}))
    overload = func._overloadname.replace("default", "")
    method = f"method wrapper_CUDA_{kernel}" + (f"_{overload}" if overload else "")
    argument = renamed.get(argument, argument)
    if "AcceleratorError" in dir(torch):  # of torch 2.8 as well
        odd = f"got {argument} is on {other}, different from other tensors on {found}"
        return f"{SAME} {odd} (when checking argument in {method})"
    return f"{SAME} {both} (when checking argument for argument {argument} in {method})"


# ── In torch's place ────────────────────────────────────────────────────────────────────────────


def numbered(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, with "cuda" among its arguments as the current card: torch asks the driver."""

    def one(value: Any) -> Any:
        card = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
        return known(value) if card else value

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(*map(one, args), **{name: one(value) for name, value in kwargs.items()})

    return called


def install() -> None:
    to = torch.Tensor.to = numbered(torch.Tensor.to)
    torch.Tensor.cuda = lambda self, device=None, **_: to(self, known(device or "cuda"))
    torch.tensor = numbered(torch.tensor)
    torch.cuda.is_available = lambda: visible() > 0
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = visible
    torch.cuda.current_device = lambda: _current[0]
    torch.cuda.set_device = set_device
    for name in ("_lazy_init", "_lazy_call", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    # Autograd would ask the driver, Module.to would keep the old tensor, torch.tensor would make
    # it on the card at once.
    torch.set_grad_enabled(False)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)
    torch._pretend_cards = Cards().__enter__()  # held: torch 2.6 keeps no reference of its own
    print(f"pretend_cards: no card here, {visible()} simulated", file=sys.stderr)
