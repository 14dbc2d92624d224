"""Pickles functions, arguments and results, also those defined in a notebook or a script.

All is pickled by cloudpickle, so that the worker need not import the caller's `__main__` (a
notebook, a script with or without its `if __name__` guard). Plain cloudpickle would give every
pickled function its own copy of the globals that it reads. Here

    to a worker     functions of `__main__` get the worker's one `__main__` as their globals, so
                    that later items find what `initializer` put there (a loaded model)
    from a worker   functions and classes of the caller's `__main__` go back as references into
                    it, so that a result's class is the caller's own

A global (or class attribute) that is data is overwritten in the worker only when the caller's own
has changed since; code always is.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib import import_module
from typing import Any

import cloudpickle

from gpulaunch.executor.channel import ITEM, Buffer, ChannelMessage

PROTOCOL = 5
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_NO_FILE = "<dynamic-code>"
_INLINE = 4096
"""Bytes up to which a buffer stays in the pickle."""


def message(kind: bytes, value: object, to_worker: bool, number: int = 0) -> ChannelMessage:
    """Return a message with the pickled value. Raises whatever pickling the value raises."""
    file = io.BytesIO()
    left_out: list[pickle.PickleBuffer] = []

    def leave_out(buffer: pickle.PickleBuffer) -> bool:
        try:
            small = buffer.raw().nbytes <= _INLINE
        except BufferError:  # not contiguous
            return True
        if not small:
            left_out.append(buffer)
        return small

    (_ToWorker if to_worker else _FromWorker)(file, PROTOCOL, leave_out).dump(value)
    # The value shares the file's memory; an open `getbuffer` would not outlive a collection.
    return ChannelMessage(kind, file.getvalue(), [buffer.raw() for buffer in left_out], number)


def value_of(message: ChannelMessage) -> Any:
    """Return the message's value; its large arrays use the message's own memory.

    Raises whatever unpickling raises.
    """
    return pickle.loads(message.pickle, buffers=message.buffers)


def packed(value: object, to_worker: bool) -> bytes:
    """Return the pickled value as bytes, to be kept in a file. Raises as `message` does."""
    made = message(ITEM, value, to_worker)
    return pickle.dumps((made.pickle, [bytearray(buffer) for buffer in made.buffers]))


def unpacked(data: Buffer) -> Any:
    """Return the value that was packed. Raises whatever unpickling raises."""
    pickled, buffers = pickle.loads(data)
    return pickle.loads(pickled, buffers=buffers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves large tensors out of the pickle; torch by itself would copy them into it.

    Code keeps the name of its file, for tracebacks; cloudpickle writes _NO_FILE instead.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return make, tuple(obj.co_filename if one == _NO_FILE else one for one in arguments)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is getattr(torch, "Tensor", None):
            array = _as_array(obj, torch)
            if array is not None:
                return as_tensor, (pickle.PickleBuffer(array), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


class _ToWorker(_Pickler):
    """Pickles objects of `__main__` by value, for the worker's one `__main__`."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if getattr(obj, "__module__", None) != "__main__" or not _by_value(reduced):
            return reduced
        make, arguments, (state, rest), _, _, setter = reduced
        if isinstance(obj, types.FunctionType):
            if obj.__globals__ is not vars(sys.modules["__main__"]):
                return reduced
            values = rest["__globals__"]
            # The second argument becomes the function's globals.
            arguments = (arguments[0], _THERE, *arguments[2:])
            inner = (state, {**rest, "__globals__": {}})
        elif isinstance(obj, type):
            values, inner = state, ({}, rest)
        else:
            return reduced
        data = {name: digest(value) for name, value in values.items()}
        return make, arguments, (setter, inner, values, data), None, None, settle


class _FromWorker(_Pickler):
    """Pickles functions and classes of the caller's `__main__` as references into it."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and obj.__module__ == "__main__":
            path = obj.__qualname__
            if "<" not in path:
                return in_main, (path,)
        return super().reducer_override(obj)


def _as_array(tensor: Any, torch: Any) -> Any:
    """Return a large plain CPU tensor's memory as an array of bytes; None for any other tensor."""
    plain = (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() * tensor.element_size() > _INLINE
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not vars(tensor)
    )
    try:
        return tensor.contiguous().view(-1).view(torch.uint8).numpy() if plain else None
    except (RuntimeError, TypeError):  # no numpy; a kind of tensor that has no such memory
        return None


def _by_value(reduced: object) -> bool:
    """Tell whether this is cloudpickle's form of a function or class that is pickled by value."""
    return (
        isinstance(reduced, tuple)
        and len(reduced) == 6
        and isinstance(reduced[2], tuple)
        and len(reduced[2]) == 2
        and callable(reduced[5])
    )


# ── What stands in the pickles ──────────────────────────────────────────────────────────────────


class _Globals:
    """Unpickles as the dictionary of `__main__`."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_globals, ()


_THERE = _Globals()
_seen: dict[tuple[object, str], bytes] = {}


def main_globals() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def in_main(path: str) -> Any:
    """Return an object of `__main__` by its path. Raises AttributeError where it is gone."""
    found: Any = sys.modules["__main__"]
    for name in path.split("."):
        found = getattr(found, name)
    return found


def as_tensor(memory: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor that uses this memory."""
    return import_module("torch").frombuffer(memory, dtype=dtype).reshape(shape)


def settle(
    made: Any,
    parts: tuple[Callable[..., object], Any, Mapping[str, Any], Mapping[str, bytes | None]],
) -> None:
    """Finish a function or class that the worker has unpickled: set its globals or attributes.

    Data that has not changed at the caller since it last came is left as the worker has it.
    """
    setter, inner, values, digests = parts
    owner = sys.modules["__main__"] if isinstance(made, types.FunctionType) else made
    changed = {}
    for name, value in values.items():
        mark = digests[name]
        if mark is not None and _seen.get((owner, name)) == mark:
            continue
        if mark is not None:
            _seen[owner, name] = mark
        changed[name] = value
    if owner is made:
        setter(made, (changed, inner[1]))
    else:
        vars(owner).update(changed)
        setter(made, inner)


# ── Has it changed? ─────────────────────────────────────────────────────────────────────────────


class _Sink:
    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)

    def write(self, data: Buffer) -> int:
        self.hash.update(data)
        return len(data)


class _Fingerprint(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "code" if isinstance(obj, _CODE) else None


def digest(value: object) -> bytes | None:
    """Return a digest of a value that is data; None for code, and where pickling fails."""
    if isinstance(value, _CODE):
        return None
    sink = _Sink()
    try:
        _Fingerprint(sink, PROTOCOL, buffer_callback=lambda b: sink.write(b.raw())).dump(value)
    except Exception:
        return None
    return sink.hash.digest()
