"""A pretend torch: enough of tensors and modules to put them on cards that are not there.

The classes stand where torch has them, modules keep their parameters where torch's do, and mixing
devices raises torch's own messages. Reading a value, as `repr` or `item` would, is remembered in
TOUCHED: a report must not.
"""

from __future__ import annotations

import types
from collections import OrderedDict

__version__ = "2.13.0+fake"
version = types.SimpleNamespace(cuda="12.8")


class device:
    def __init__(self, spec):
        self.type, _, index = str(spec).partition(":")
        self.index = int(index) if index else (0 if self.type == "cuda" else None)

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


class dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __str__(self):
        return "torch." + self.name


TOUCHED = []
float32, int64 = dtype("float32", 4), dtype("int64", 8)


class Tensor:
    def __init__(self, *shape, device="cpu", dtype=float32):
        self.shape, self.dtype = shape, dtype
        self.device = globals()["device"](device)
        if self.device.type == "cuda" and self.device.index >= CARDS:
            raise RuntimeError("CUDA error: invalid device ordinal")

    def to(self, where):
        return type(self)(*self.shape, device=where, dtype=self.dtype)

    def cuda(self, index=0):
        return self.to(f"cuda:{index}")

    def _with(self, other):
        return together(self, other)

    __add__ = __mul__ = __matmul__ = __getitem__ = _with

    def _touched(self, *_):
        TOUCHED.append(self)
        raise AssertionError("a value was read")

    __repr__ = __bool__ = __len__ = __iter__ = __eq__ = item = _touched
    __hash__ = object.__hash__


class Generator:
    def __init__(self, device="cpu"):
        self.device = globals()["device"](device)


CARDS = 4


def together(*tensors):
    placed = [t for t in tensors if t.shape or t.device.type != "cpu"]
    for other in placed[1:]:
        if other.device != placed[0].device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{placed[0].device} and {other.device}!"
            )
    return placed[0]


def ones(*shape, device="cpu", dtype=float32):
    return Tensor(*shape, device=device, dtype=dtype)


arange = zeros = randn = ones


def cat(tensors):
    return together(*tensors)


def load(path, map_location=None):
    if map_location is None:
        raise RuntimeError(
            "Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is "
            "1. Please use torch.load with map_location to map your storages to an existing device."
        )
    return {}


class Parameter(Tensor):
    pass


class Module:
    def __init__(self):
        for name in ("_parameters", "_buffers", "_modules"):
            self.__dict__[name] = OrderedDict()

    def __setattr__(self, name, value):
        groups = {Parameter: "_parameters", Module: "_modules"}
        for kind, group in groups.items():
            if isinstance(value, kind):
                self.__dict__[group][name] = value
                return
        self.__dict__[name] = value

    def __getattr__(self, name):
        for group in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(group, ()):
                return self.__dict__[group][name]
        raise AttributeError(name)

    def register_buffer(self, name, tensor, persistent=True):
        self._buffers[name] = tensor

    def to(self, where):
        for group in (self._parameters, self._buffers):
            for name in group:
                group[name] = group[name].to(where)
        for module in self._modules.values():
            module.to(where)
        return self

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)


class Linear(Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight, self.bias = Parameter(m, n), Parameter(m)

    def forward(self, x):
        return together(x, self.weight, self.bias)


class Embedding(Linear):
    pass


nn = types.SimpleNamespace(Module=Module, Linear=Linear, Embedding=Embedding, Parameter=Parameter)
