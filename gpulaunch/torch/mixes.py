"""Which tensors an operation was given, whether their devices may meet, what torch says if not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gpulaunch.torch.devices import may_stay

# Operations that take tensors of several devices by design.
_JOIN_BY_DESIGN = frozenset(
    "aten::" + name
    for name in ("copy_", "copy", "_to_copy", "to", "set_", "set_data", "_copy_from",
                 "_copy_from_and_resize", "resize_as_", "empty_like", "zeros_like", "ones_like",
                 "full_like", "rand_like", "randn_like", "randint_like", "_local_scalar_dense",
                 "_has_compatible_shallow_copy_type", "is_same_size", "_foreach_copy_",
                 "_pack_padded_sequence", "_pad_packed_sequence")
)  # fmt: skip
# Indices may be on the CPU, whatever is indexed.
_INDEXED = frozenset(
    "aten::" + name
    for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index",
                 "_unsafe_index_put")
)  # fmt: skip
# Texts: torch 2.6 to 2.13, at::checkSameGPU and its kin, structured kernels, RNN, convolution, fake
# tensors. Checked only where tensors of several devices went in.
_DEVICE_ERROR = re.compile(
    r"same (?:device|GPU)|two (?:different )?devices|different devices?\b|different from other"
    r"|expected (?:a |an |object of )?(?:the )?(?:device|'?cuda'?|'?cpu'? )"
    r"|(?:is|are|be|not) on (?:the )?(?:expected device|GPU|CPU|cuda|cpu)"
    r"|and weight type|device type|Mismatching .* device",
    re.IGNORECASE,
)
_OTHER_ERROR = re.compile(r"CUDA error|out of memory", re.IGNORECASE)


def mixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether tensors of several devices are among the arguments of an operation."""
    first = None
    for value in args if not kwargs else (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if first is None:
                first = value.device
            elif value.device != first:
                return True
        elif isinstance(value, (list, tuple)):
            for one in value:
                if isinstance(one, torch.Tensor):
                    if first is None:
                        first = one.device
                    elif one.device != first:
                        return True
    return False


def named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the operation's tensors by the names of its schema."""
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    names += [f"argument {n}" for n in range(len(names), len(args))]
    return list(_tensors([*zip(names, args, strict=False), *kwargs.items()]))


def _tensors(held: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in held:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from _tensors([(f"{name}[{n}]", one) for n, one in enumerate(value)])


def name_of(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return str(schema.name) if schema is not None else str(func)


def meeting(func: Any, tensors: Sequence[tuple[str, Any]]) -> bool:
    """Whether tensors of several devices meet here that cannot: scalars, indices and copies may."""
    operation = name_of(func)
    if operation in _JOIN_BY_DESIGN:
        return False
    indexed = operation in _INDEXED
    met = {
        tensor.device
        for name, tensor in tensors
        if not may_stay(tensor)
        and not (indexed and name.startswith("indices") and tensor.device.type == "cpu")
    }
    return len(met) > 1


def without_data(func: Any, tensors: Sequence[tuple[str, Any]]) -> bool:
    """Whether an operation that torch let pass has read a meta tensor as if it had data.

    torch checks nothing on many of these, and a CPU kernel then reads garbage.
    """
    if not name_of(func).startswith("aten::"):
        return False
    return "meta" in {tensor.device.type for _, tensor in tensors} and meeting(func, tensors)


def about_devices(error: BaseException) -> bool:
    text = str(error)
    return bool(_DEVICE_ERROR.search(text)) and not _OTHER_ERROR.search(text)
