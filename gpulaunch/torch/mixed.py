"""During the call: the first operation that mixes devices, by a dispatch mode.

torch itself decides what may meet: an operation runs as ever, and when torch refuses it for its
devices, the report says so in full. Nothing is hooked into modules or autograd.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from gpulaunch.diagnose.explain.report.messages import MIXED, kind_of
from gpulaunch.diagnose.explain.report.search import (
    INSTALLED,
    FrameSearch,
    TracebackStep,
    short,
    steps,
)
from gpulaunch.diagnose.explain.report.tensors import described
from gpulaunch.diagnose.explain.report.verdict import DeviceErrorEvidence
from gpulaunch.diagnose.explain.report.words import ReportLines, bounded
from gpulaunch.torch.tensors import DeviceMismatchError, TorchStorages, may_stay, storage_of

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_MODULE_CALL = torch.nn.Module._call_impl.__code__
# How many storages are remembered before those that are gone are forgotten.
_SWEEP = 20_000
# Operations that take tensors of several devices by design.
_JOIN_BY_DESIGN = re.compile(
    r"aten::(copy_?|_to_copy|to|set_|set_data|_copy_from(_and_resize)?|_foreach_copy_|resize_as_"
    r"|\w+_like|_local_scalar_dense|_has_compatible_shallow_copy_type|is_same_size"
    r"|_pack_padded_sequence|_pad_packed_sequence)"
)

Tensors = Sequence[tuple[str, torch.Tensor]]


class first_mixed_device(TorchDispatchMode):  # type: ignore[misc]
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = self._joined(func, args, kwargs) if _mixed(args, kwargs) else func(*args, **kwargs)
        self._origins.note(func, args, out)
        return out

    def _joined(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        tensors = _named(func, args, kwargs)
        try:
            if _without_data(func, tensors):
                raise RuntimeError(
                    "Expected all tensors to be on the same device: a meta tensor has no data, "
                    "torch lets this pass, and what comes out is no result"
                )
            return func(*args, **kwargs)
        except DeviceMismatchError:
            raise  # of a watch around this one
        except RuntimeError as error:
            if kind_of(str(error)) != MIXED:
                raise
            # A thread of autograd's own has no line of the user's: who waits for it does.
            way = _live(sys._getframe()) or _live(sys._current_frames().get(self._thread))
            raise _explained(str(func), tensors, way, self._origins, error) from error

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Explain a check that torch makes before an operation, as for attention and RNN."""
        super().__exit__(kind, error, trace)
        if not isinstance(error, RuntimeError) or isinstance(error, DeviceMismatchError):
            return
        way = steps(trace)
        if kind_of(str(error)) == MIXED and way and not _raised_by_user(way[-1]):
            what = "a check before the operation itself"
            raise _explained(what, (), way, self._origins, error) from error


def _let_through() -> None:
    """Higher-order operators (cond, flex_attention) run as ever under the watch."""
    for operator in list(torch._ops._higher_order_ops.values()):
        if first_mixed_device not in operator.python_key_table:
            operator.py_impl(first_mixed_device)(
                lambda mode, *args, operator=operator, **kwargs: operator(*args, **kwargs)
            )


# ── Where tensors came from ─────────────────────────────────────────────────────────────────────


def _is_internal(code: CodeType) -> bool:
    """Return True for code of torch or of this package, and for generated code."""
    return code.co_filename.startswith((_TORCH, _HERE, "<eval_with_key>", "<frozen"))


class TensorOrigin(NamedTuple):
    storage: StorageWeakRef
    operation: Any
    code: CodeType | None
    line: int

    def __str__(self) -> str:
        at = f" at {short(self.code.co_filename)}:{self.line}" if self.code is not None else ""
        return f"made by {self.operation}{at}"


class Origins:
    """What made each storage that has appeared since the watch began: `made`, by its address.

    By storage, not by tensor: autograd hands out another tensor than the one that was made. A weak
    reference to a storage keeps its address from being used again, so no entry speaks of another.
    """

    def __init__(self) -> None:
        self.made: dict[int, TensorOrigin] = {}
        self._sweep_at = _SWEEP

    def note(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Remember what `func` made; neither a view of what was there before, nor an argument."""
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                key = storage_of(tensor)
                known = (storage_of(one) for one in args if isinstance(one, torch.Tensor))
                if key is not None and key not in self.made and key not in known:
                    self._remember(key, tensor, func)

    def _remember(self, key: int, tensor: torch.Tensor, func: Any) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and _is_internal(frame.f_code):
            frame = frame.f_back
        storage = StorageWeakRef(tensor.untyped_storage())
        at = (None, 0) if frame is None else (frame.f_code, frame.f_lineno)
        self.made[key] = TensorOrigin(storage, func, *at)
        if len(self.made) > self._sweep_at:
            # A list first: autograd's threads may add to it meanwhile.
            entries = list(self.made.items())
            self.made = {key: made for key, made in entries if not made.storage.expired()}
            self._sweep_at = max(_SWEEP, 2 * len(self.made))


# ── What is told ────────────────────────────────────────────────────────────────────────────────


def _live(frame: FrameType | None) -> list[TracebackStep]:
    """Return the frames from here outwards, outermost first: the user's, and inside them others.

    Which libraries started the user's program says nothing.
    """
    found: list[TracebackStep] = []
    users = False
    while frame is not None and len(found) < 100:
        installed = bool(INSTALLED.search(frame.f_code.co_filename))
        if not _is_internal(frame.f_code) and not (users and installed):
            found.append(TracebackStep(frame, frame.f_lineno, frame.f_lasti))
            users = users or not installed
        frame = frame.f_back
    return found[::-1]


def _raised_by_user(step: TracebackStep) -> bool:
    """Return True for a `raise` of the user's: that error is theirs, whatever it says."""
    code = step.frame.f_code
    operation = dis.opname[code.co_code[step.lasti]]
    return not _is_internal(code) and operation in ("RAISE_VARARGS", "RERAISE")


def _explained(
    what: str, tensors: Tensors, way: list[TracebackStep], origins: Origins, error: RuntimeError
) -> DeviceMismatchError:
    """Return the error to raise, with the report on torch's."""
    storages = TorchStorages()
    look = FrameSearch(storages, 0.0)
    operands = [look.seen(tensor, name, "plain", None, "") for name, tensor in tensors]
    keys = {one.key for one in operands}
    found = DeviceErrorEvidence(MIXED, error, way, torch=storages, given=keys)
    lines = [f"first operation that mixes devices: {what}"]
    frame = way[-1].frame if way else None
    while frame is not None and frame.f_code is not _MODULE_CALL:
        frame = frame.f_back
    if frame is not None:
        lines.append(f"  in module {found.module_path(frame.f_locals['self'])}")
    named = {tensor.key: tensor.path for tensor in found.of_operation()}
    for one in operands or found.odd:
        name = f"{named[one.key]}; " if one.key in named else ""
        made = origins.made.get(one.key, "made before this began, or where it cannot see")
        lines.append(f"  {described(one, 0)}: {name}{made}")
    return DeviceMismatchError("\n".join([*lines, *bounded(ReportLines(found).lines())]), found.odd)


# ── What may meet ─────────────────────────────────────────────────────────────────────────────────


def _mixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if tensors of several devices are among the arguments of an operation."""
    first = None
    for value in args if not kwargs else (*args, *kwargs.values()):
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, torch.Tensor):
                if first is None:
                    first = one.device
                elif one.device != first:
                    return True
    return False


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors:
    """Return the operation's tensors by the names of its schema."""
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    names += [f"argument {n}" for n in range(len(names), len(args))]
    found: list[tuple[str, Any]] = []
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        if isinstance(value, (list, tuple)):
            found += [(f"{name}[{n}]", one) for n, one in enumerate(value)]
        else:
            found.append((name, value))
    return [(name, value) for name, value in found if isinstance(value, torch.Tensor)]


def _without_data(func: Any, tensors: Tensors) -> bool:
    """Return True if an operation reads a meta tensor as if it had data.

    torch checks nothing on many of these, and a CPU kernel then reads garbage.
    """
    operation = str(getattr(getattr(func, "_schema", None), "name", ""))
    if not operation.startswith("aten::") or _JOIN_BY_DESIGN.fullmatch(operation):
        return False
    # Indices may be on the CPU, whatever is indexed.
    free = "indices" if "index" in operation else "-"
    met = {t.device.type for name, t in tensors if not (may_stay(t) or name.startswith(free))}
    return "meta" in met and len(met) > 1
