"""During the call: the first operation that mixes devices, by a dispatch mode.

torch itself decides what may meet: an operation runs as ever, and when torch refuses it for its
devices, that is told in full. Nothing is hooked into modules or autograd.
"""

from __future__ import annotations

import dis
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpulaunch.torch.devices import may_stay
from gpulaunch.torch.errors import DeviceMismatchError
from gpulaunch.torch.names import variables
from gpulaunch.torch.origins import Origins, is_internal, is_layer, lines
from gpulaunch.torch.story import told

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
_NO_DATA = "nothing: it lets this pass, and what comes out is no result"


def first_mixed_device() -> FirstMixedDevice:
    """Find the first operation inside that is given tensors of several devices.

        with first_mixed_device():
            loss = model(batch)
            loss.backward()

    Raises DeviceMismatchError (a RuntimeError, in place of torch's own, which is its cause) with
    the module's path, the user's file and line, and for each tensor its shape, dtype, device, name
    and what made it. Meta tensors (weights that were never loaded) that meet real ones are named
    too, also where torch checks nothing.

    Without such an operation it changes nothing: results, hooks, autograd and other errors are as
    they are without it. It sees this thread's operations and their backward pass; not those of
    threads started inside, nor, from torch 2.10 on, those inside compiled code, which stays
    compiled. May be nested, and used again. torch.jit.trace does not work inside, nor does it
    inside any dispatch mode.

    Costs 6 us an operation, 9 us one that makes a tensor (of which a dispatch mode that does
    nothing costs 4); waits for no card.
    """
    return FirstMixedDevice()


class FirstMixedDevice:
    """See first_mixed_device()."""

    def __init__(self) -> None:
        self._watches: list[_Watch] = []

    def __enter__(self) -> FirstMixedDevice:
        watch = _Watch()
        watch.__enter__()
        self._watches.append(watch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        watch = self._watches.pop()
        watch.__exit__(kind, error, trace)
        if isinstance(error, RuntimeError) and not isinstance(error, DeviceMismatchError):
            found = watch.before_any_operation(error, trace)
            if found is not None:
                raise found from error


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    # Newer torch asks this; for older ones, see _let_through.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled (torch 2.10 and newer; older ones run it op by op)."""
        return True

    def __init__(self) -> None:
        super().__init__()
        self._origins = Origins()
        self._thread = threading.get_ident()
        if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            _let_through()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = self._joined(func, args, kwargs) if _mixed(args, kwargs) else func(*args, **kwargs)
        self._origins.note(func, args, out)
        return out

    def _joined(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        tensors = _named(func, args, kwargs)
        if _without_data(func, tensors):
            raise told(str(func), tensors, self._frame(), self._origins, _NO_DATA)
        try:
            return func(*args, **kwargs)
        except DeviceMismatchError:
            raise  # of a watch around this one
        except RuntimeError as error:
            if not (_meeting(func, tensors) and _about_devices(error)):
                raise
            raise told(str(func), tensors, self._frame(), self._origins, str(error)) from error

    def _frame(self) -> FrameType | None:
        """Return the frame of the operation; where it is autograd's own, of who waits for it."""
        frame: FrameType | None = sys._getframe(2)
        if threading.get_ident() == self._thread or next(lines(frame), None) is not None:
            return frame
        return sys._current_frames().get(self._thread)

    def before_any_operation(
        self, error: RuntimeError, trace: TracebackType | None
    ) -> DeviceMismatchError | None:
        """Explain a check that torch makes before an operation; None for another error.

        Attention, RNN and convolution have such checks in Python.
        """
        innermost = _innermost(trace)
        if innermost is None or not _about_devices(error) or _raised_by_user(innermost):
            return None
        tensors = _at_hand(innermost.tb_frame)
        if len({tensor.device for _, tensor in tensors}) < 2:
            return None
        what = "a check before the operation itself"
        return told(what, tensors, innermost.tb_frame, self._origins, str(error))


def _let_through() -> None:
    """Higher-order operators (cond, flex_attention) run as ever under the watch."""
    for operator in list(torch._ops._higher_order_ops.values()):
        if _Watch not in operator.python_key_table:
            operator.py_impl(_Watch)(_passing(operator))


def _passing(operator: Any) -> Any:
    def run(mode: _Watch, *args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    return run


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _raised_by_user(trace: TracebackType) -> bool:
    """Tell whether the line is a `raise` of the user's: that error is theirs, whatever it says."""
    code = trace.tb_frame.f_code
    operation = dis.opname[code.co_code[trace.tb_lasti]]
    return not is_internal(code) and operation in ("RAISE_VARARGS", "RERAISE")


def _at_hand(frame: FrameType | None) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in variables from torch.nn's innermost frame to the user's line."""
    found: list[tuple[str, torch.Tensor]] = []
    while frame is not None and is_internal(frame.f_code):
        if is_layer(frame.f_code):
            found += variables(frame)
        frame = frame.f_back
    return found + (list(variables(frame)) if frame is not None else [])


# ── What may meet ─────────────────────────────────────────────────────────────────────────────────


def _mixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
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


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
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


def _name_of(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return str(schema.name) if schema is not None else str(func)


def _meeting(func: Any, tensors: Sequence[tuple[str, Any]]) -> bool:
    """Tell whether tensors of several devices meet that may not: scalars and copies may."""
    operation = _name_of(func)
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


def _without_data(func: Any, tensors: Sequence[tuple[str, Any]]) -> bool:
    """Tell whether an operation that torch let pass has read a meta tensor as if it had data.

    torch checks nothing on many of these, and a CPU kernel then reads garbage.
    """
    if not _name_of(func).startswith("aten::"):
        return False
    return "meta" in {tensor.device.type for _, tensor in tensors} and _meeting(func, tensors)


def _about_devices(error: BaseException) -> bool:
    text = str(error)
    return bool(_DEVICE_ERROR.search(text)) and not _OTHER_ERROR.search(text)
