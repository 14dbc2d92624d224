"""During the call: the first operation that mixes devices, by a dispatch mode.

torch itself decides what may meet: an operation runs as ever, and when torch refuses it for its
devices, that is told in full. Nothing is hooked into modules or autograd.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpulaunch.torch import mixes
from gpulaunch.torch.errors import DeviceMismatchError
from gpulaunch.torch.names import variables
from gpulaunch.torch.origins import Origins, is_internal, is_layer, lines
from gpulaunch.torch.story import told

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
        if mixes.mixed(args, kwargs):
            out = self._joined(func, args, kwargs)
        else:
            out = func(*args, **kwargs)
        self._origins.note(func, args, out)
        return out

    def _joined(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        tensors = mixes.named(func, args, kwargs)
        if mixes.without_data(func, tensors):
            raise told(str(func), tensors, self._frame(), self._origins, _NO_DATA)
        try:
            return func(*args, **kwargs)
        except DeviceMismatchError:
            raise  # of a watch around this one
        except RuntimeError as error:
            if not (mixes.meeting(func, tensors) and mixes.about_devices(error)):
                raise
            raise told(str(func), tensors, self._frame(), self._origins, str(error)) from error

    def _frame(self) -> FrameType | None:
        """Return the operation's; of the thread that waits for it where it is autograd's own."""
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
        if innermost is None or not mixes.about_devices(error) or _raised_by_user(innermost):
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
    """Whether the line is a `raise` of the user's: that error is theirs, whatever it says."""
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
